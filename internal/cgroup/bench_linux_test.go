package cgroup

import (
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit/internal/feature"
	"github.com/sandpit-dev/sandpit/internal/testkit"
)

var benchLimits = Limits{Memory: 256 << 20, CPUs: 2, Pids: 512, Devices: true}

func BenchmarkDetect(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Detect(); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkGroup prints the median of each step, with an idle process that
// is started into a new group each time, in a tight loop ("hot") and with a rest
// before each step, as in a command that runs once ("cold").
func BenchmarkGroup(b *testing.B) {
	l := layout(b)
	for _, rest := range []time.Duration{0, 60 * time.Millisecond} {
		name := "hot"
		if rest > 0 {
			name = "cold"
		}
		b.Run(name, func(b *testing.B) { benchGroup(b, l, rest) })
	}
}

func benchGroup(b *testing.B, l *Layout, rest time.Duration) {
	steps := map[string][]time.Duration{}
	step := func(name string, f func() error) {
		time.Sleep(rest)
		start := time.Now()
		if err := f(); err != nil {
			b.Fatalf("%s: %v", name, err)
		}
		steps[name] = append(steps[name], time.Since(start))
	}
	n := 0
	for b.Loop() {
		n++
		var g *Group
		step("create", func() (err error) {
			g, err = l.Create("bench"+strconv.Itoa(os.Getpid())+"x"+strconv.Itoa(n), benchLimits)
			return err
		})
		cmd := exec.Command("/bin/sleep", "100")
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		var fds []int
		step("openjoin", func() (err error) {
			fds, err = g.OpenJoin()
			return err
		})
		script := ""
		for i, fd := range fds {
			cmd.ExtraFiles = append(cmd.ExtraFiles, os.NewFile(uintptr(fd), "join"))
			script += fmt.Sprintf("echo 0 >&%d;", 3+i)
		}
		cmd.Path, cmd.Args = "/bin/sh", []string{"sh", "-c", "read go;" + script + "echo; exec sleep 100"}
		cmd.SysProcAttr.CgroupFD, cmd.SysProcAttr.UseCgroupFD = g.FD()
		in, _ := cmd.StdinPipe()
		out, _ := cmd.StdoutPipe()
		step("start into v2", cmd.Start)
		time.Sleep(2 * time.Millisecond)
		var buf [1]byte
		step("join v1 by itself", func() error {
			_, _ = in.Write([]byte("\n"))
			_, err := out.Read(buf[:])
			return err
		})
		for _, f := range cmd.ExtraFiles {
			f.Close()
		}
		step("stats", func() error { _, err := g.Stats(); return err })
		step("kill", g.kill)
		_ = cmd.Wait()
		step("remove", g.Remove)
	}
	for name, ds := range steps {
		slices.Sort(ds)
		b.ReportMetric(float64(ds[len(ds)/2].Microseconds()), unitName(name)+"-p50-µs")
		b.ReportMetric(float64(ds[len(ds)*9/10].Microseconds()), unitName(name)+"-p90-µs")
	}
}

func unitName(s string) string {
	out := []byte(s)
	for i, c := range out {
		if c == ' ' {
			out[i] = '-'
		}
	}
	return string(out)
}

// BenchmarkEmpty is Create and Remove with nothing in between.
func BenchmarkEmpty(b *testing.B) {
	l := layout(b)
	n := 0
	for b.Loop() {
		n++
		g, err := l.Create("bench"+strconv.Itoa(os.Getpid())+"y"+strconv.Itoa(n), benchLimits)
		if err != nil {
			b.Fatal(err)
		}
		if err := g.Remove(); err != nil {
			b.Fatal(err)
		}
	}
}

func layout(tb testing.TB) *Layout {
	tb.Helper()
	l, err := Detect()
	if err != nil {
		tb.Fatal(err)
	}
	if !l.Enforceable(feature.Memory) || !l.Enforceable(feature.Pids) {
		testkit.Lacks(tb, fmt.Sprintf("cgroups with limits for this user: %v", l.Gaps()))
	}
	return l
}

// BenchmarkOOMKills is what is read after every command, beside all figures.
func BenchmarkOOMKills(b *testing.B) {
	l := layout(b)
	g, err := l.Create("bench"+strconv.Itoa(os.Getpid()), benchLimits)
	if err != nil {
		b.Fatal(err)
	}
	defer g.Remove()
	b.Run("one", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := g.OOMKills(); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("all", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := g.Stats(); err != nil {
				b.Fatal(err)
			}
		}
	})
}
