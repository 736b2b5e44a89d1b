package sandpittest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/feature"
)

var limitProperties = []property{
	{"C2: a memory bomb is killed, said to be one, and the sandbox lives on", testMemoryBomb},
	{"C2: memory in files of /tmp and /dev/shm counts", testMemoryFiles},
	{"C1: a fork bomb is held, and Remove is quick", testForkBomb},
	{"C1: a sandbox has as many processes as its limit says", testProcessLimit},
	{"C1: a sandbox at its process limit keeps its guest", testGuestAtProcessLimit},
	{"C3: processor time is held", testCPUs},
	{"C3: a neighbour of one that takes all it can goes on with its work", testNeighbour},
	{"C4: a full disk is ErrNoSpace, and space comes back", testDiskFull},
	{"C5: inodes run out inside only", testInodes},
	{"C1, C4, C5: a command that fails is told the limits that were hit, and no other one", testLimitsHit},
	{"C6: open files are held", testNoFile},
	{"resource limits hold in the command that has them", testRlimits},
	{"a command that has reached its limit of CPU time is told so", testCPUExceeded},
	{"resource limits of a sandbox hold in the commands that have no others", testRlimitsOfSandbox},
	{"no core file and no locked memory beyond the limits", testOtherLimits},
	{"limits told are limits asked for", testLimitsTold},
	{"a sandbox of the least limits works", testLeastLimits},
}

func testMemoryBomb(t *testing.T, e *env) {
	e.need(t, feature.Memory)
	sb := e.sandbox(t, sandpit.Spec{Limits: sandpit.Limits{Memory: 96 << 20}})
	for name, cmd := range map[string]sandpit.Command{
		"the program itself": {Argv: []string{"dd", "if=/dev/zero", "of=/dev/null", "bs=1000M", "count=1"}},
		"an endless line":    {Argv: []string{"sh", "-c", "exec tail /dev/zero"}},
	} {
		t.Run(name, func(t *testing.T) {
			out := run(t, sb, cmd)
			if !out.OOMKilled || out.Signal != int(syscall.SIGKILL) || out.Success() || out.TimedOut {
				t.Errorf("got %+v, %s", out.Result, brief(out.Stderr))
			}
			if got := shell(t, sb, "echo alive"); got != "alive" {
				t.Errorf("got %q", got)
			}
		})
	}
	out := run(t, sb, sandpit.Command{Script: "dd if=/dev/zero of=/dev/null bs=1000M count=1; exit $?"})
	if !out.OOMKilled || out.ExitCode != 137 || out.Signal != 0 {
		t.Errorf("of a child: %+v, %s", out.Result, brief(out.Stdout))
	}
	if m, err := sb.Metrics(t.Context()); err != nil || m.OOMKills < 3 || m.MemoryPeak > 97<<20 {
		t.Errorf("metrics are %+v, %v", m, err)
	}
	// One that has nothing to do with it is not blamed, nor one that got over it.
	if out := run(t, sb, sandpit.Command{Script: "dd if=/dev/zero of=/dev/null bs=1000M count=1; exit 0"}); out.OOMKilled || !out.Success() {
		t.Errorf("got %+v", out.Result)
	}
	if out := run(t, sb, sandpit.Command{Script: "kill -9 $$"}); out.OOMKilled {
		t.Errorf("got %+v", out.Result)
	}
	if info, err := sb.Info(t.Context()); err != nil || info.State != sandpit.StateRunning {
		t.Errorf("state is %s, %v", info.State, err)
	}
}

func testMemoryFiles(t *testing.T, e *env) {
	e.need(t, feature.Memory)
	for _, dir := range []string{"/tmp", "/dev/shm"} {
		sb := e.sandbox(t, sandpit.Spec{Limits: sandpit.Limits{Memory: 64 << 20}})
		out := run(t, sb, sandpit.Command{Script: "head -c 200000000 /dev/zero >" + dir + "/f; echo $?"})
		if m, err := sb.Metrics(t.Context()); err != nil || m.Memory > 65<<20 {
			t.Errorf("metrics are %+v, %v, after %+v", m, err, out.Result)
		}
		if err := sb.Files().Remove(guarded(t), dir+"/f", false); err != nil {
			t.Error(err)
		}
		if got := shell(t, sb, "echo alive"); got != "alive" {
			t.Errorf("got %q", got)
		}
	}
}

func testForkBomb(t *testing.T, e *env) {
	e.need(t, feature.Pids)
	sb := e.sandbox(t, sandpit.Spec{Limits: sandpit.Limits{Pids: 64}})
	p := start(t, sb, sandpit.Command{Script: `for i in 1 2 3 4 5 6 7 8; do sleep 86601 & done; (f() { f | f & }; f) & exec sleep 86601`})
	var peak int64
	end := time.Now().Add(900 * time.Millisecond)
	eventually(t, "there are many processes", func() bool {
		if m, err := sb.Metrics(t.Context()); err == nil {
			peak = max(peak, m.Pids)
		}
		return peak >= 10 && time.Now().After(end)
	})
	if peak > 64 {
		t.Errorf("there were %d processes", peak)
	}
	must(t, p.Kill(guarded(t)))
	if res := wait(t, p); res.Signal != int(syscall.SIGKILL) {
		t.Errorf("got %+v", res)
	}
	eventually(t, "a process can be started again", func() bool {
		out, err := sandpit.Shell(guarded(t), sb, "echo again")
		return err == nil && out.Success()
	})
	// Another one, and away with it while it runs.
	start(t, sb, sandpit.Command{Script: `for i in 1 2 3 4 5 6 7 8; do sleep 86601 & done; (f() { f | f & }; f; while :; do f; done) & exec sleep 86601`})
	eventually(t, "it is many processes", func() bool { m, err := sb.Metrics(t.Context()); return err == nil && m.Pids >= 10 })
	before := time.Now()
	if err := sb.Remove(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Logf("Remove took %v", time.Since(before))
}

// needUncountedGuest skips a test of sandboxes whose guests do not count against the
// limit of processes.
func (e *env) needUncountedGuest(t *testing.T) {
	t.Helper()
	e.need(t, feature.Pids)
	if why, counted := e.gaps[feature.GapGuestPids]; counted {
		t.Skip(why)
	}
}

// What counts is a command's helper, the command, and all that it starts.
func testProcessLimit(t *testing.T, e *env) {
	e.needUncountedGuest(t)
	const limit = 32
	sb := e.sandbox(t, sandpit.Spec{Limits: sandpit.Limits{Pids: limit}})
	out, err := sandpit.Shell(guarded(t), sb, "i=2; while sleep 86602 & do i=$((i+1)); echo $i; done")
	if err != nil {
		t.Fatal(err)
	}
	if lines := strings.Fields(string(out.Stdout)); len(lines) == 0 || lines[len(lines)-1] != fmt.Sprint(limit) {
		t.Errorf("of %d processes there were %v", limit, lines)
	}
	if m, err := sb.Metrics(t.Context()); err != nil || m.Pids != limit-1 { // the shell has ended
		t.Errorf("%d processes are counted, %v", m.Pids, err)
	}
}

// Whatever the guest is asked for while programs inside take all that they can, it does,
// or it says that there can be no more processes.
func testGuestAtProcessLimit(t *testing.T, e *env) {
	e.needUncountedGuest(t)
	sb := e.sandbox(t, sandpit.Spec{Limits: sandpit.Limits{Pids: 32}})
	shell(t, sb, "mkdir /tmp/d; head -c 400000 /dev/zero >/tmp/d/big")
	for _, tt := range [...]struct{ name, script string }{
		// The shell ends when it can't fork. Those that sleep stay.
		{"all asleep", `while :; do sleep 86603 & done 2>/dev/null`},
		{"fork bomb", `f() { f | f & }; for i in 1 2 3 4 5 6 7 8; do sleep 86603 & done; f; f; exec sleep 86603`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := start(t, sb, sandpit.Command{Script: tt.script, Background: true})
			full := tt.name == "all asleep"
			if full {
				wait(t, p)
			}
			// Each of these holds a thread of the guest.
			ctx, cancel := context.WithCancel(guarded(t))
			defer cancel()
			var ready, ended sync.WaitGroup
			for range 8 {
				ready.Add(2)
				ended.Go(func() {
					var once sync.Once
					defer once.Do(ready.Done)
					_ = sb.Files().Download(ctx, "/tmp/d", writerFunc(func([]byte) (int, error) {
						once.Do(ready.Done)
						<-ctx.Done()
						return 0, ctx.Err()
					}))
				})
				ended.Go(func() {
					var once sync.Once
					defer once.Do(ready.Done)
					for range sb.Files().Watch(ctx, "/tmp", true) {
						once.Do(ready.Done)
					}
				})
			}
			ready.Wait()
			var calls sync.WaitGroup
			for range 16 {
				calls.Go(func() {
					for range 2 {
						_, err := sandpit.Exec(ctx, sb, "true")
						if full && err == nil || err != nil && !errors.Is(err, sandpit.ErrExhausted) {
							t.Errorf("a command gives %v", err)
						}
						if _, err := sb.Processes(ctx); err != nil {
							t.Error(err)
						}
						if r, err := sb.Files().Open(ctx, "/tmp/d/big", 0, -1); err != nil {
							t.Error(err)
						} else if n, err := io.Copy(io.Discard, r); n != 400000 || err != nil {
							t.Errorf("read %d bytes: %v", n, err)
						}
					}
				})
			}
			calls.Wait()
			cancel()
			ended.Wait()
			must(t, p.Kill(guarded(t)))
			eventually(t, "a process can be started again", func() bool {
				out, err := sandpit.Exec(guarded(t), sb, "true")
				return err == nil && out.Success()
			})
		})
	}
	// A sandbox at its limit is removed like any other.
	wait(t, start(t, sb, sandpit.Command{Script: "while :; do sleep 86603 & done 2>/dev/null", Background: true}))
	must(t, sb.Remove(t.Context()))
}

// writerFunc is an io.Writer.
type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }

func testCPUs(t *testing.T, e *env) {
	e.need(t, feature.CPUs)
	sb := e.sandbox(t, sandpit.Spec{Limits: sandpit.Limits{CPUs: 0.25}})
	before, err := sb.Metrics(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	run(t, sb, sandpit.Command{Script: "while :; do :; done & while :; do :; done", Timeout: 2 * time.Second})
	after, err := sb.Metrics(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	// Two loops would use up to 2 processors. Twice the quota leaves room for
	// periods begun and for killing.
	if used, peak := after.CPU-before.CPU, time.Since(began)/2; used > peak || used == 0 {
		t.Errorf("%v of processor time in %v", used, time.Since(began))
	}
}

// The neighbour's share is not timed, which no loaded machine would allow to
// hold: all of its work is done, none fails, and the other stays in its limits.
func testNeighbour(t *testing.T, e *env) {
	e.need(t, feature.Memory, feature.CPUs, feature.Pids, feature.Disk)
	limits := sandpit.Limits{Memory: 96 << 20, CPUs: 0.5, Pids: 100, Disk: 32 << 20}
	hog := e.sandbox(t, sandpit.Spec{Limits: limits})
	neighbour := e.sandbox(t, sandpit.Spec{})
	before, err := hog.Metrics(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	for _, script := range []string{
		`while :; do dd if=/dev/zero of=/dev/null bs=500M count=1 2>/dev/null; done`,
		`while :; do head -c 200000000 /dev/zero >/tmp/full 2>/dev/null; echo >>/tmp/times; rm /tmp/full; done`,
		`while :; do :; done & while :; do :; done`,
		`f() { f | f & }; while :; do f; done`,
	} {
		start(t, hog, sandpit.Command{Script: script, Timeout: guard})
	}
	eventually(t, "the other has come to its limits", func() bool {
		m, err := hog.Metrics(t.Context())
		return err == nil && m.OOMKills > 0
	})

	var work written
	p := start(t, neighbour, sandpit.Command{Script: `while read -r line; do echo "$line" >/tmp/f && cat /tmp/f; done`, Stdin: true, Stdout: &work})
	for i := range 25 {
		word := fmt.Sprintf("round %d", i)
		if _, err := fmt.Fprintln(p.Stdin(), word); err != nil {
			t.Fatal(err)
		}
		work.until(t, word+"\n")
		put(t, neighbour, "/tmp/g", word)
		if got := shell(t, neighbour, "cat /tmp/g; (dd if=/dev/zero bs=1M count=8 | wc -c) 2>/dev/null"); got != word+"8388608" {
			t.Errorf("got %q", got)
		}
		m, err := hog.Metrics(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if m.Pids > limits.Pids || m.MemoryPeak > limits.Memory+1<<20 {
			t.Errorf("the other is over its limits: %+v", m)
		}
	}
	_ = p.Stdin().Close()
	if res := wait(t, p); !res.Success() {
		t.Errorf("the work ended with %+v", res)
	}
	if m, err := neighbour.Metrics(t.Context()); err != nil || m.OOMKills != 0 {
		t.Errorf("the neighbour has %+v, %v", m, err)
	}
	// A sandbox is made beside it, too.
	if got := shell(t, e.sandbox(t, sandpit.Spec{}), "echo new"); got != "new" {
		t.Errorf("got %q", got)
	}
	after, err := hog.Metrics(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	// Half a processor; twice that leaves room for periods begun.
	if used, peak := after.CPU-before.CPU, time.Since(began); used > peak || used == 0 {
		t.Errorf("the other had %v of processor time in %v", used, peak)
	}
}

func testDiskFull(t *testing.T, e *env) {
	e.need(t, feature.Disk)
	sb := e.sandbox(t, sandpit.Spec{User: "root", Limits: sandpit.Limits{Disk: 8 << 20}})
	put(t, sb, "/tmp/old", "old")
	for _, opt := range []sandpit.WriteOptions{{}, {Append: true}} {
		_, err := sb.Files().Write(guarded(t), "/tmp/old", &noiseReader{n: 32 << 20}, opt)
		isPathError(t, err, sandpit.ErrNoSpace)
		if !opt.Append {
			if got := get(t, sb, "/tmp/old"); got != "old" {
				t.Errorf("the old file holds %s", brief([]byte(got)))
			}
		}
	}
	if err := sb.Files().Remove(t.Context(), "/tmp/old", false); err != nil {
		t.Fatal(err)
	}
	for name, script := range map[string]string{
		"write":            `head -c 32000000 /dev/zero >/tmp/f`,
		"in the root":      `mkdir -p /var/x && head -c 32000000 /dev/zero >/var/x/f`,
		"in shared memory": `head -c 32000000 /dev/zero >/dev/shm/f`,
		"fallocate":        `fallocate -l 32000000 /tmp/f`,
		"copy-up":          `for f in /usr/bin/* /usr/lib/*/*.so*; do if [ -f "$f" ]; then cp "$f" /tmp/ || exit 1; fi; done`,
		"deleted but open": `exec 5>/tmp/f; rm /tmp/f; head -c 32000000 /dev/zero >&5`,
	} {
		t.Run(name, func(t *testing.T) {
			out := run(t, sb, sandpit.Command{Script: script})
			if out.Success() || !strings.Contains(string(out.Stderr), "No space left") {
				t.Errorf("got %+v, %s", out.Result, brief(out.Stderr))
			}
			shell(t, sb, "rm -rf /tmp/* /var/x /dev/shm/*")
		})
	}
	// A sparse file takes no space until it is written.
	shell(t, sb, "truncate -s 1T /tmp/sparse; rm /tmp/sparse")
	if n, err := sb.Files().Write(guarded(t), "/tmp/f", &noiseReader{n: 4 << 20}, sandpit.WriteOptions{}); err != nil {
		t.Errorf("after all that %d bytes can be written: %v", n, err)
	}
	// Many sandboxes have room each.
	other := e.sandbox(t, sandpit.Spec{Limits: sandpit.Limits{Disk: 8 << 20}})
	if n, err := other.Files().Write(guarded(t), "/tmp/f", &noiseReader{n: 4 << 20}, sandpit.WriteOptions{}); err != nil {
		t.Errorf("in another sandbox %d bytes can be written: %v", n, err)
	}
}

func testInodes(t *testing.T, e *env) {
	e.need(t, feature.Files)
	sb := e.sandbox(t, sandpit.Spec{Limits: sandpit.Limits{Files: 300}})
	out := run(t, sb, sandpit.Command{Script: "mkdir /tmp/d; cd /tmp/d; seq 1 1000 | xargs touch"})
	if out.Success() || !strings.Contains(string(out.Stderr), "No space left") {
		t.Errorf("got %+v, %s", out.Result, brief(out.Stderr))
	}
	if n := shell(t, sb, "ls /tmp/d | wc -l"); n == "1000" || n == "0" {
		t.Errorf("%s files were made", n)
	}
	isPathError(t, sb.Files().Mkdir(t.Context(), "/tmp/new", 0o755, false), sandpit.ErrNoSpace)
	_, err := sb.Files().Write(t.Context(), "/tmp/new", strings.NewReader("x"), sandpit.WriteOptions{})
	isPathError(t, err, sandpit.ErrNoSpace)
	if err := sb.Files().Remove(guarded(t), "/tmp/d", true); err != nil {
		t.Fatal(err)
	}
	put(t, sb, "/tmp/new", "x")
}

func testNoFile(t *testing.T, e *env) {
	e.need(t, feature.NoFile)
	sb := e.sandbox(t, sandpit.Spec{Limits: sandpit.Limits{NoFile: 64}})
	if got := shell(t, sb, "ulimit -n; ulimit -Hn"); got != "64\n64" {
		t.Errorf("got %q", got)
	}
	if out := run(t, sb, sandpit.Command{Script: "ulimit -n 65"}); out.Success() {
		t.Error("the limit can be raised")
	}
	if got := command(t, sb, sandpit.Command{Script: "ulimit -n", Terminal: normal}); got != "64" {
		t.Errorf("got %q", got)
	}
	root := e.sandbox(t, sandpit.Spec{User: "root", Limits: sandpit.Limits{NoFile: 64}})
	if out := run(t, root, sandpit.Command{Script: "ulimit -n 65"}); out.Success() {
		t.Error("root can raise the limit")
	}
}

func testRlimits(t *testing.T, e *env) {
	for _, user := range []string{"", "root"} {
		sb := e.sandbox(t, sandpit.Spec{User: user, Limits: sandpit.Limits{NoFile: 64}})
		limits := []sandpit.Rlimit{
			{Resource: "nofile", Soft: 20, Hard: 30},
			{Resource: "cpu", Soft: 50, Hard: sandpit.RlimitUnlimited},
			{Resource: "fsize", Soft: 512, Hard: 1024},
			{Resource: "core"},
			{Resource: "nice"},
			{Resource: "stack", Soft: 1 << 20, Hard: 1 << 20},
		}
		for _, terminal := range []*sandpit.TerminalSize{nil, normal} {
			got := command(t, sb, sandpit.Command{Script: "ulimit -n; ulimit -Hn; ulimit -t; ulimit -Ht; ulimit -c; ulimit -Hs", Rlimits: limits, Terminal: terminal})
			if want := "20\n30\n50\nunlimited\n0\n1024"; strings.ReplaceAll(got, "\r", "") != want {
				t.Errorf("got %q, want %q", got, want)
			}
		}
		if out := run(t, sb, sandpit.Command{Script: "ulimit -n 31", Rlimits: limits}); out.Success() {
			t.Errorf("%q can raise a limit", user)
		}
		if out := run(t, sb, sandpit.Command{Script: "head -c 4096 /dev/zero > /tmp/large", Rlimits: limits}); out.Success() {
			t.Error("a file is larger than fsize")
		}
		if got := shell(t, sb, "stat -c %s /tmp/large; head -c 4096 /dev/zero | wc -c; ulimit -n"); got != "512\n4096\n64" {
			t.Errorf("the file, and what other commands can do: %q", got)
		}
		for text, limit := range map[string]sandpit.Rlimit{
			"nofile is too high":   {Resource: "nofile", Soft: 1, Hard: 65},
			"nice is too high":     {Resource: "nice", Hard: 40},
			"rtprio is too high":   {Resource: "rtprio", Soft: 1, Hard: 1},
			"core is too high":     {Resource: "core", Hard: sandpit.RlimitUnlimited},
			"soft rlimit cpu":      {Resource: "cpu", Soft: 2, Hard: 1},
			"cpu is out of range":  {Resource: "cpu", Hard: sandpit.RlimitUnlimited - 1},
			`"NPROC" is not known`: {Resource: "NPROC"},
		} {
			_, err := sb.Start(t.Context(), sandpit.Command{Argv: []string{"true"}, Rlimits: []sandpit.Rlimit{limit}})
			if !errors.Is(err, sandpit.ErrInvalid) || !strings.Contains(err.Error(), text) || sandpit.StageOf(err) != sandpit.StageLimits {
				t.Errorf("%+v: got %v, of the stage %q", limit, err, sandpit.StageOf(err))
			}
		}
	}
}

func testCPUExceeded(t *testing.T, e *env) {
	sb := e.sandbox(t, sandpit.Spec{})
	const busy = "while :; do :; done"
	for _, tt := range []struct {
		script     string
		soft, hard uint64
		want       bool
	}{
		{busy, 1, 2, true}, // SIGXCPU
		{busy, 1, 1, true}, // SIGKILL
		{"sh -c '" + busy + "'; exit $?", 1, 1, true}, // that of a child
		{"kill -9 $$", 1, 1, false},
		{"exit 152", 1, 1, false},
		{"exit 3", 1, 1, false},
	} {
		out := run(t, sb, sandpit.Command{Script: tt.script, Rlimits: []sandpit.Rlimit{{Resource: "cpu", Soft: tt.soft, Hard: tt.hard}}})
		if out.CPUExceeded != tt.want || out.Success() || out.OOMKilled || out.TimedOut {
			t.Errorf("%s: got %+v", tt.script, out.Result)
		}
	}
}

func testRlimitsOfSandbox(t *testing.T, e *env) {
	limits := []sandpit.Rlimit{{Resource: "nofile", Soft: 20, Hard: 30}, {Resource: "cpu", Soft: 50, Hard: 60}}
	sb := e.sandbox(t, sandpit.Spec{Rlimits: limits})
	const show = "ulimit -n; ulimit -Hn; ulimit -t; ulimit -Ht"
	for want, cmd := range map[string]sandpit.Command{
		"20\n30\n50\n60": {},
		"20\n30\n40\n40": {Rlimits: []sandpit.Rlimit{{Resource: "cpu", Soft: 40, Hard: 40}}},
		"35\n35\n50\n60": {NoFile: 35},
	} {
		cmd.Script = show
		if got := command(t, sb, cmd); got != want {
			t.Errorf("%+v: got %q, want %q", cmd, got, want)
		}
	}
	for text, limit := range map[string]sandpit.Rlimit{
		"rtprio is too high": {Resource: "rtprio", Soft: 1, Hard: 1},
		"soft rlimit cpu":    {Resource: "cpu", Soft: 2, Hard: 1},
		`"x" is not known`:   {Resource: "x"},
	} {
		_, err := e.client.Create(guarded(t), sandpit.Spec{Image: e.opt.Image, Rlimits: []sandpit.Rlimit{limit}})
		if !errors.Is(err, sandpit.ErrInvalid) || !strings.Contains(err.Error(), text) {
			t.Errorf("%+v: got %v", limit, err)
		}
	}
	// Limits with which no program starts are those that were asked for.
	sb = e.sandbox(t, sandpit.Spec{Rlimits: []sandpit.Rlimit{{Resource: "as", Soft: 1, Hard: 1}}})
	if out, err := sandpit.Shell(t.Context(), sb, "true"); err == nil && out.Success() {
		t.Error("a program runs without memory")
	}
}

func testOtherLimits(t *testing.T, e *env) {
	sb := e.sandbox(t, sandpit.Spec{})
	if got := shell(t, sb, "ulimit -c; ulimit -Hc"); got != "0\n0" {
		t.Errorf("core files: %q", got)
	}
}

func testLimitsTold(t *testing.T, e *env) {
	asked := sandpit.Limits{Disk: 100 << 20, Files: 5000, NoFile: 500, Output: 1 << 20, Life: time.Hour}
	if e.opt.Features[feature.Memory] {
		asked.Memory = 200 << 20
	}
	if e.opt.Features[feature.CPUs] {
		asked.CPUs = 0.5
	}
	if e.opt.Features[feature.Pids] {
		asked.Pids = 100
	}
	sb := e.sandbox(t, sandpit.Spec{Limits: asked})
	info, err := sb.Info(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for name, pair := range map[feature.Feature][2]any{
		"memory": {asked.Memory, info.Limits.Memory}, "cpus": {asked.CPUs, info.Limits.CPUs}, "pids": {asked.Pids, info.Limits.Pids},
		"disk": {asked.Disk, info.Limits.Disk}, "files": {asked.Files, info.Limits.Files}, "nofile": {asked.NoFile, info.Limits.NoFile},
		"output": {asked.Output, info.Limits.Output}, "life": {asked.Life, info.Limits.Life},
	} {
		if e.opt.Features[name] && pair[0] != pair[1] {
			t.Errorf("%s: asked for %v, told %v", name, pair[0], pair[1])
		}
	}
	for what := range e.gaps {
		t.Run("not enforced "+string(what), func(t *testing.T) {
			e.refused(t, sandpit.Spec{Limits: onlyLimit(t, what)}, sandpit.ErrUnsupported)
		})
	}
}

// onlyLimit returns limits of which only one is set, by the name of its gap, to its
// default.
func onlyLimit(t *testing.T, what feature.Feature) (only sandpit.Limits) {
	t.Helper()
	field, ok := reflect.TypeFor[sandpit.Limits]().FieldByNameFunc(func(name string) bool { return strings.EqualFold(name, string(what)) })
	if !ok {
		t.Fatalf("the gap %q is not that of a limit", what)
	}
	reflect.ValueOf(&only).Elem().FieldByIndex(field.Index).Set(reflect.ValueOf(sandpit.DefaultLimits()).FieldByIndex(field.Index))
	return only
}

func testLeastLimits(t *testing.T, e *env) {
	least := sandpit.Limits{Disk: sandpit.MinDisk, Files: sandpit.MinFiles, NoFile: sandpit.MinNoFile}
	if e.opt.Features[feature.Memory] {
		least.Memory = sandpit.MinMemory
	}
	if e.opt.Features[feature.Pids] {
		least.Pids = sandpit.MinPids
	}
	sb := e.sandbox(t, sandpit.Spec{Limits: least})
	if got := shell(t, sb, "echo works; echo x >/tmp/x; cat /tmp/x"); got != "works\nx" {
		t.Errorf("got %q", got)
	}
	// Work that needs no more than a little goes on for a while.
	for i := range 20 {
		if got := command(t, sb, sandpit.Command{Argv: []string{"echo", fmt.Sprint(i)}}); got != fmt.Sprint(i) {
			t.Fatalf("got %q", got)
		}
	}
	p := start(t, sb, sandpit.Command{Argv: []string{"cat"}, Stdin: true})
	if _, err := io.WriteString(p.Stdin(), strings.Repeat("x", 200000)); err != nil {
		t.Error(err)
	}
	_ = p.Stdin().Close()
	if res := wait(t, p); res.StdoutBytes != 200000 {
		t.Errorf("got %+v", res)
	}
}

func testLimitsHit(t *testing.T, e *env) {
	e.need(t, feature.Pids)
	sb := e.sandbox(t, sandpit.Spec{Limits: sandpit.Limits{Pids: 20, Disk: 4 << 20, Files: 1000}})
	// The inner shell gives up at the limit; the outer one goes on when what that started has ended.
	const forks = "(for i in $(seq 40); do sleep 0.2 & done) 2>/dev/null; " +
		"while set -- /proc/[0-9]*; [ $# -gt 10 ]; do :; done; "
	for _, tt := range []struct {
		script             string
		pids, disk, filled bool
	}{
		{"exit 3", false, false, false},
		{forks + "exit 0", false, false, false},
		{"exit 3", false, false, false}, // which the command before has nothing to do with
		{forks + "exit 3", true, false, false},
		{"head -c 9000000 /dev/zero >/tmp/a", false, true, false},
		{"exit 3", false, true, false},
		{"rm /tmp/a; exit 3", false, false, false},
		{"mkdir /tmp/d && cd /tmp/d && touch $(seq 2000)", false, false, true},
		{"rm -r /tmp/d", false, false, false},
	} {
		out := run(t, sb, sandpit.Command{Script: tt.script})
		if out.PidsRefused != tt.pids || out.DiskFull != tt.disk || out.FilesFull != tt.filled || out.OOMKilled {
			t.Errorf("%s: got %+v, %s", tt.script, out.Result, brief(out.Stderr))
		}
	}
}
