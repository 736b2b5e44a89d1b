package cgroup

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/feature"
	"github.com/sandpit-dev/sandpit/internal/testkit"
	"golang.org/x/sys/unix"
)

// helperEnv makes the test binary one of the helpers below.
const helperEnv = "SANDPIT_CGROUP_HELPER"

func TestMain(m *testing.M) {
	switch helper := os.Getenv(helperEnv); helper {
	case "":
		os.Exit(m.Run())
	case "bomb":
		bomb()
	case "forks":
		forks()
	case "spin":
		for { //nolint:staticcheck // a processor kept busy is the point
		}
	case "hold":
		hold()
	case "own":
		own()
	case "gaps":
		gaps()
	default:
		fmt.Fprintln(os.Stderr, "unknown helper", helper)
		os.Exit(2)
	}
}

// bomb touches memory until it is killed.
func bomb() {
	waitGo()
	var all [][]byte
	for range 1 << 16 {
		b := make([]byte, 1<<20)
		for i := 0; i < len(b); i += 4096 {
			b[i] = 1
		}
		all = append(all, b)
	}
	fmt.Println("survived", len(all))
}

// hold holds 40 MiB until it is told to go on.
func hold() {
	b := make([]byte, 40<<20)
	for i := 0; i < len(b); i += 4096 {
		b[i] = 1
	}
	fmt.Println("holding", len(b))
	waitGo()
	fmt.Println("held", b[len(b)-4096])
}

// forks starts processes until it can't, and says how many.
func forks() {
	waitGo()
	n := 0
	var err error
	for ; n < 500; n++ {
		cmd := exec.Command("/bin/sleep", "1000")
		if err = cmd.Start(); err != nil {
			break
		}
	}
	fmt.Println(n, errors.Is(err, unix.EAGAIN))
	time.Sleep(time.Hour)
}

// own makes a group and waits to be killed.
func own() {
	l, err := Detect()
	if err == nil {
		var g *Group
		if g, err = l.Create(os.Getenv("ID"), testLimits); err == nil {
			fmt.Println(strings.Join(g.Paths(), "\t"))
			time.Sleep(time.Hour)
		}
	}
	fmt.Println("error:", err)
}

// gaps prints what Detect finds for this user, and what Create says.
func gaps() {
	l, err := Detect()
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, g := range l.Gaps() {
		fmt.Printf("gap\t%s\t%s\t%s\n", g.What, g.Why, g.Fix)
	}
	_, err = l.Create("user1", Limits{Memory: 64 << 20})
	fmt.Printf("create\t%v\t%v\t%s\n", errors.Is(err, sandpit.ErrUnsupported), err, sandpit.Hint(err))
	g, err := l.Create("user2", Limits{})
	fmt.Printf("empty\t%v\n", err)
	if err == nil {
		s, err := g.Stats()
		fmt.Printf("stats\t%d %d %v\n", s.Memory, s.OOMKills, err)
		fmt.Printf("remove\t%v\n", g.Remove())
	}
}

// waitGo waits for a line, so that nothing happens before the test is ready.
func waitGo() { _, _ = bufio.NewReader(os.Stdin).ReadString('\n') }

var testLimits = Limits{Memory: 64 << 20, CPUs: 0.5, Pids: 64, Devices: true}

var ids atomic.Int64

func newID() string { return fmt.Sprintf("test%dx%d", os.Getpid(), ids.Add(1)) }

// newGroup makes a group that is gone after the test.
func newGroup(t *testing.T, l *Layout, limits Limits) *Group {
	t.Helper()
	g, err := l.Create(newID(), limits)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := g.Remove(); err != nil {
			t.Error(err)
		}
		for _, p := range g.Paths() {
			if _, err := os.Stat(p); err == nil && strings.HasSuffix(p, "/"+prefix+g.id) {
				t.Errorf("%s is left", p)
			}
		}
	})
	return g
}

// child is a started process.
type child struct {
	*exec.Cmd
	out *bufio.Reader
	in  *os.File
}

func start(t *testing.T, cmd *exec.Cmd) child {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stdin, cmd.Stderr = r, os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	r.Close()
	t.Cleanup(func() {
		w.Close()
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return child{cmd, bufio.NewReader(out), w}
}

// startIn starts a command in a group by the way that sandboxes take: it is
// born in the v2 part, and joins the others itself, by a shell that then
// executes it. It counts against the limit of processes.
func startIn(t *testing.T, g *Group, cmd *exec.Cmd) child {
	t.Helper()
	fds, err := g.OpenJoin()
	if err != nil {
		t.Fatal(err)
	}
	more, err := g.OpenWork()
	if err != nil {
		t.Fatal(err)
	}
	fds = append(fds, more...)
	script := ""
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "join")
		defer f.Close()
		cmd.ExtraFiles = append(cmd.ExtraFiles, f)
		if fd := 3 + i; fd < 10 {
			script += fmt.Sprintf("echo 0 >&%[1]d || exit 1; exec %[1]d>&-; ", fd)
		} else { // which sh has no redirections for
			script += fmt.Sprintf("echo 0 >/proc/self/fd/%d || exit 1; ", fd)
		}
	}
	cmd.Args = append([]string{"sh", "-c", script + `exec "$@"`, "sh", cmd.Path}, cmd.Args[1:]...)
	cmd.Path = "/bin/sh"
	cmd.SysProcAttr = &syscall.SysProcAttr{}
	cmd.SysProcAttr.CgroupFD, cmd.SysProcAttr.UseCgroupFD = g.FD()
	return start(t, cmd)
}

func helper(t *testing.T, name string, env ...string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env = append(append(os.Environ(), helperEnv+"="+name), env...)
	return cmd
}

func (c child) line(t *testing.T) string {
	t.Helper()
	s, err := c.out.ReadString('\n')
	if err != nil {
		t.Fatalf("reading from the child: %v", err)
	}
	return strings.TrimSuffix(s, "\n")
}

func TestLimitsAreSet(t *testing.T) {
	l := layout(t)
	g := newGroup(t, l, testLimits)
	want := map[string]string{
		"memory.max": "67108864", "memory.swap.max": "0", "memory.oom.group": "0", "cpu.max": "50000 100000", "pids.max": "64",
		"memory.limit_in_bytes": "67108864", "memory.memsw.limit_in_bytes": "67108864", "memory.kmem.tcp.limit_in_bytes": "8388608", "cpu.cfs_quota_us": "50000", "cpu.cfs_period_us": "100000",
		"devices.list": "c 1:3 rwm\nc 1:5 rwm\nc 1:7 rwm\nc 1:8 rwm\nc 1:9 rwm\nc 5:0 rwm\nc 5:2 rwm\nc 136:* rwm\nc 0:0 m",
	}
	found := 0
	for _, d := range g.dirs {
		want["pids.max"] = "64"
		if d.work {
			want["pids.max"], want["work/pids.max"] = "193", "65"
		}
		for name, value := range want {
			if strings.HasPrefix(name, "devices") && d.ctrls&devices == 0 {
				continue
			}
			data, err := os.ReadFile(filepath.Join(d.path, name))
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}
			found++
			if got := strings.TrimSpace(string(data)); err != nil || got != value {
				t.Errorf("%s/%s is %q, %v; want %q", d.path, name, got, err, value)
			}
		}
	}
	if found < 4 {
		t.Errorf("only %d limits found in %q", found, g.Paths())
	}
}

func TestIDIsTakenOnce(t *testing.T) {
	l := layout(t)
	id := newID()
	var won, exist atomic.Int64
	var wg sync.WaitGroup
	var groups [16]*Group
	for i := range groups {
		wg.Go(func() {
			// Different limits need different hierarchies: the id is one all the same.
			limits := testLimits
			if i%2 == 0 {
				limits = Limits{Pids: 64}
			}
			g, err := l.Create(id, limits)
			switch {
			case err == nil:
				won.Add(1)
				groups[i] = g
			case errors.Is(err, fs.ErrExist):
				exist.Add(1)
			default:
				t.Error(err)
			}
		})
	}
	wg.Wait()
	for _, g := range groups {
		if g != nil {
			if _, err := os.Stat(g.Paths()[0]); err != nil {
				t.Errorf("a loser has removed the winner's group: %v", err)
			}
			if err := g.Remove(); err != nil {
				t.Error(err)
			}
		}
	}
	if won.Load() != 1 || exist.Load() != 15 {
		t.Errorf("%d made the group and %d found it taken, want 1 and 15", won.Load(), exist.Load())
	}
	g, err := l.Create(id, testLimits)
	if err != nil {
		t.Fatalf("the id is free again, but: %v", err)
	}
	if err := errors.Join(g.Remove(), g.Remove()); err != nil {
		t.Error(err)
	}
	if _, err := g.Stats(); !errors.Is(err, sandpit.ErrClosed) {
		t.Errorf("Stats after Remove: %v, want ErrClosed", err)
	}
	if _, err := g.OpenJoin(); !errors.Is(err, sandpit.ErrClosed) {
		t.Errorf("OpenJoin after Remove: %v, want ErrClosed", err)
	}
}

func TestBadRequests(t *testing.T) {
	l := layout(t)
	for _, id := range []string{"", ".", "..", "a/b", "../x", "a\x00b", "-x", "a b", "ä", strings.Repeat("x", 65)} {
		if _, err := l.Create(id, testLimits); !errors.Is(err, sandpit.ErrInvalid) {
			t.Errorf("id %q: %v, want ErrInvalid", id, err)
		}
	}
	for _, limits := range []Limits{{Memory: -1}, {Pids: -1}, {CPUs: -1}, {CPUs: 0.001}, {CPUs: 1e9}} {
		if _, err := l.Create(newID(), limits); !errors.Is(err, sandpit.ErrInvalid) {
			t.Errorf("%+v: %v, want ErrInvalid", limits, err)
		}
	}
}

// A step of Create that fails must leave nothing of those before it.
func TestCreateLeavesNothingOnError(t *testing.T) {
	l := layout(t)
	left := func(id string) (dirs []string) {
		for _, p := range l.places {
			if dir := p.dir + "/" + prefix + id; p.dir != "" {
				if _, err := os.Stat(dir); err == nil {
					dirs = append(dirs, dir)
					_ = os.Remove(dir)
				}
			}
		}
		return dirs
	}
	// A hierarchy where mkdir works and the limits' files are missing.
	for i := 1; i < len(l.places); i++ {
		broken := layout(t)
		broken.places[i].dir = t.TempDir()
		id := newID()
		g, err := broken.Create(id, testLimits)
		if err == nil { // one that these limits do not need
			err = g.Remove()
		} else {
			err = nil
		}
		if dirs := left(id); err != nil || dirs != nil {
			t.Errorf("with %s broken, %q are left, %v", l.places[i].dir, dirs, err)
		}
		if entries, _ := os.ReadDir(broken.places[i].dir); len(entries) > 0 {
			t.Errorf("%s is left", entries)
		}
	}
	// Running out of descriptors at each one.
	var old unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &old); err != nil {
		t.Fatal(err)
	}
	probe, err := unix.Open("/", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	unix.Close(probe)
	failed := 0
	for n := range 4 {
		id := newID()
		tight := unix.Rlimit{Cur: uint64(probe + n), Max: old.Max}
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &tight); err != nil {
			t.Fatal(err)
		}
		g, err := l.Create(id, testLimits)
		if err2 := unix.Setrlimit(unix.RLIMIT_NOFILE, &old); err2 != nil {
			t.Fatal(err2)
		}
		if err == nil {
			err = g.Remove()
		} else if errors.Is(err, unix.EMFILE) {
			failed++
			err = nil
		}
		if dirs := left(id); err != nil || dirs != nil {
			t.Errorf("without descriptors, %q are left, %v", dirs, err)
		}
	}
	if failed == 0 {
		t.Error("no try has run out of descriptors")
	}
}

func TestStats(t *testing.T) {
	l := layout(t)
	g := newGroup(t, l, Limits{Memory: 64 << 20, CPUs: 4, Pids: 64})
	c := startIn(t, g, helper(t, "spin"))
	deadline := time.Now().Add(time.Minute)
	for {
		s, err := g.Stats()
		if err != nil {
			t.Fatal(err)
		}
		if s.CPU > 20*time.Millisecond && s.Pids >= 1 && s.Memory >= 0 && s.OOMKills == 0 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("stats stay at %+v", s)
		}
		time.Sleep(5 * time.Millisecond)
	}
	if err := g.kill(); err != nil {
		t.Fatal(err)
	}
	if err := c.Wait(); err == nil || c.ProcessState.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		t.Errorf("the killed process ended with %v", c.ProcessState)
	}
}

// The way in that costs nothing: born in v2, and joining v1 by itself, from
// inside of new user and pid namespaces.
func TestJoinFromNewNamespaces(t *testing.T) {
	for name, old := range older() {
		t.Run(name, func(t *testing.T) { joinFromNewNamespaces(t, layoutOf(t, old)) })
	}
}

func joinFromNewNamespaces(t *testing.T, l *Layout) {
	g := newGroup(t, l, testLimits)
	fds, err := g.OpenJoin()
	if err != nil {
		t.Fatal(err)
	}
	script := "read go; "
	cmd := exec.Command("/bin/sh", "-c")
	for i, fd := range fds {
		cmd.ExtraFiles = append(cmd.ExtraFiles, os.NewFile(uintptr(fd), "join"))
		script += fmt.Sprintf("echo 0 >&%d || exit 1; ", 3+i)
	}
	cmd.Args = append(cmd.Args, script+"echo joined; read end")
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  unix.CLONE_NEWUSER | unix.CLONE_NEWPID,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}},
	}
	cmd.SysProcAttr.CgroupFD, cmd.SysProcAttr.UseCgroupFD = g.FD()
	c := start(t, cmd)
	for _, f := range cmd.ExtraFiles {
		f.Close()
	}
	fmt.Fprintln(c.in, "go")
	if got := c.line(t); got != "joined" {
		t.Fatalf("the child says %q", got)
	}
	for _, d := range g.dirs {
		data, err := os.ReadFile(d.path + "/cgroup.procs")
		if err != nil || !strings.Contains("\n"+string(data), "\n"+strconv.Itoa(c.Process.Pid)+"\n") {
			t.Errorf("%s holds %q, %v; want %d", d.path, data, err, c.Process.Pid)
		}
	}
}

// C2: memory ends inside, with the death counted.
func TestMemoryBomb(t *testing.T) {
	l := layout(t)
	g := newGroup(t, l, testLimits)
	c := startIn(t, g, helper(t, "bomb"))
	fmt.Fprintln(c.in, "go")
	_ = c.Wait()
	if c.ProcessState.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		t.Errorf("the bomb ended with %v", c.ProcessState)
	}
	s, err := g.Stats()
	if err != nil {
		t.Fatal(err)
	}
	if s.OOMKills < 1 {
		t.Errorf("no oom kill is counted: %+v", s)
	}
	if kills, err := g.OOMKills(); err != nil || kills != s.OOMKills {
		t.Errorf("alone, %d are counted, %v, want %d", kills, err, s.OOMKills)
	}
	if s.MemoryPeak != -1 && (s.MemoryPeak < 32<<20 || s.MemoryPeak > 65<<20) {
		t.Errorf("peak is %d, want about %d", s.MemoryPeak, 64<<20)
	}
}

// What a sandbox runs shares the processors with its first process as a whole, however many there are.
func TestProgramsAreOneForTheScheduler(t *testing.T) {
	for name, old := range older() {
		l := layoutOf(t, old)
		if l.kernel < hasWork {
			continue
		}
		t.Run(name, func(t *testing.T) {
			g := newGroup(t, l, testLimits)
			c := startIn(t, g, helper(t, "forks"))
			fmt.Fprintln(c.in, "go")
			c.line(t)
			for _, d := range g.dirs {
				if d.ctrls&cpu == 0 {
					continue
				}
				if d.v2 {
					if passed, err := os.ReadFile(d.path + "/cgroup.subtree_control"); err != nil || !strings.Contains(string(passed), "cpu") {
						t.Errorf("the child has %q, %v", passed, err)
					}
				}
				list, err := os.ReadFile(d.path + work + map[bool]string{false: "/tasks", true: "/cgroup.threads"}[d.v2])
				if n := strings.Count(string(list), "\n"); err != nil || n < 32 {
					t.Errorf("%d of them are in the child, %v", n, err)
				}
			}
			if err := g.Remove(); err != nil {
				t.Fatal(err)
			}
			_ = c.Wait()
		})
	}
}

// C1: forks end at the cap, and the tree dies.
func TestForkBomb(t *testing.T) {
	for name, old := range older() {
		t.Run(name, func(t *testing.T) {
			l := layoutOf(t, old)
			g := newGroup(t, l, testLimits)
			c := startIn(t, g, helper(t, "forks"))
			fmt.Fprintln(c.in, "go")
			var n int
			var again bool
			if _, err := fmt.Sscan(c.line(t), &n, &again); err != nil || n == 0 || n >= 64 || !again {
				t.Errorf("%d processes were started under a limit of 64, EAGAIN %v, %v", n, again, err)
			}
			s, err := g.Stats()
			if err != nil || s.Pids > 64 || s.Pids < 32 {
				t.Errorf("%d processes counted, %v", s.Pids, err)
			}
			began := time.Now()
			if err := g.Remove(); err != nil {
				t.Fatal(err)
			}
			t.Logf("removed with %d processes in %v", s.Pids, time.Since(began))
			_ = c.Wait()
		})
	}
}

// older are the machines whose ways to kill differ, made of this one.
func older() map[string]func(*host) {
	return map[string]func(*host){
		"cgroup.kill":               func(*host) {},
		"cgroup.freeze and signals": func(h *host) { h.kernel = min(h.kernel, kernel(5, 10)) },
		"v1 freezer and signals":    func(h *host) { h.kernel = min(h.kernel, kernel(4, 19)) },
		"v1 only":                   func(h *host) { h.self = bytes.Replace(h.self, []byte("\n0::/"), []byte("\n0:x:/"), 1) },
	}
}

// layoutOf is the layout that there would be on an older machine.
func layoutOf(t *testing.T, old func(*host)) *Layout {
	t.Helper()
	h, err := thisHost()
	if err != nil {
		t.Fatal(err)
	}
	old(h)
	l := h.detect()
	if !l.Enforceable(feature.Memory) || !l.Enforceable(feature.Pids) {
		testkit.Lacks(t, fmt.Sprintf("cgroups with limits for this user: %v", l.Gaps()))
	}
	return l
}

// D1: sessions of their own, double forks, ignored signals and stopped
// processes do not hide anything.
func TestKillTree(t *testing.T) {
	for name, old := range older() {
		t.Run(name, func(t *testing.T) {
			l := layoutOf(t, old)
			g := newGroup(t, l, testLimits)
			c := startIn(t, g, exec.Command("/bin/sh", "-c", `read go
setsid sh -c 'trap "" TERM HUP INT; sleep 1000 & setsid sh -c "sleep 1000 & sleep 1000 & kill -STOP \$\$" & wait' &
(sleep 1000 & sh -c 'while :; do sleep 0.01; done' &) &
echo ready; exit 0`))
			fmt.Fprintln(c.in, "go")
			if got := c.line(t); got != "ready" {
				t.Fatal(got)
			}
			var alive []int64
			// The bound is for a tree that never grows; an emulated machine is slow.
			for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
				data, err := os.ReadFile(g.dirs[0].path + "/cgroup.procs")
				if err != nil {
					t.Fatal(err)
				}
				if alive = pidLines(data); len(alive) >= 6 {
					break
				}
			}
			if len(alive) < 6 {
				t.Fatalf("only %d processes in the tree", len(alive))
			}
			var pidfds []int
			for _, pid := range alive {
				fd, err := unix.PidfdOpen(int(pid), 0)
				if err == unix.ESRCH {
					continue // the loop's sleep
				}
				if err != nil {
					t.Fatal(err)
				}
				defer unix.Close(fd)
				pidfds = append(pidfds, fd)
			}
			if err := g.Remove(); err != nil {
				t.Fatal(err)
			}
			// A process leaves its group a moment before it has ended. Orphans
			// are reaped by init when it gets to it.
			for _, fd := range pidfds {
				p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
				n, err := unix.Poll(p, 60_000)
				for err == unix.EINTR {
					n, err = unix.Poll(p, 60_000)
				}
				if n != 1 || err != nil {
					info, _ := os.ReadFile(fmt.Sprintf("/proc/self/fdinfo/%d", fd))
					t.Errorf("a process is still there: %v\n%s", err, info)
				}
			}
		})
	}
}

// Where processes are counted and nothing is frozen, the processes of the group are those
// of its child.
func TestKillsWhatCountsAgainstTheLimit(t *testing.T) {
	l := layoutOf(t, older()["v1 only"])
	l.places = slices.DeleteFunc(l.places, func(p place) bool { return p.ctrls != pids })
	if len(l.places) == 0 {
		testkit.Lacks(t, "a hierarchy of v1 that only counts processes")
	}
	g := newGroup(t, l, Limits{Pids: 10})
	c := startIn(t, g, exec.Command("/bin/sh", "-c", "echo ready; read forever"))
	if got := c.line(t); got != "ready" {
		t.Fatal(got)
	}
	if err := g.Kill(); err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadFile(g.dirs[0].path + work + "/cgroup.procs"); err != nil || len(left) > 0 {
		t.Errorf("left are %q, %v", left, err)
	}
}

// What is killed takes its time: as long as processes end, they are waited for.
func TestPatience(t *testing.T) {
	var p patience
	for left := 3; left > 0; left-- {
		p.until = time.Now().Add(-time.Second) // its time has gone by
		if p.left = left + 1; p.over(left) {
			t.Errorf("over though one has just ended, with %d left", left)
		}
	}
	if p.over(1) {
		t.Error("over at once")
	}
	p.until = time.Now().Add(-time.Second)
	if !p.over(1) {
		t.Error("not over though nothing has ended for long")
	}
}

func TestGroupsInsideAreRemoved(t *testing.T) {
	l := layout(t)
	g := newGroup(t, l, testLimits)
	if err := os.MkdirAll(g.dirs[0].path+"/a/b", 0o755); err != nil {
		t.Fatal(err)
	}
	if err := g.Remove(); err != nil {
		t.Fatal(err)
	}
}

// The owner is killed with -9; what a watcher or the next sandpit must do works.
func TestDeadOwner(t *testing.T) {
	l := layout(t)
	if prep := l.places[0].prep; prep == prepScope || prep == prepLeaf {
		testkit.Lacks(t, "groups outside of a scope of systemd")
	}
	newOwner := func() (child, []string) {
		c := start(t, helper(t, "own", "ID="+newID()))
		line := c.line(t)
		if strings.HasPrefix(line, "error:") {
			t.Fatal(line)
		}
		return c, strings.Split(line, "\t")
	}
	exists := func(path string) bool { _, err := os.Stat(path); return err == nil }

	live, livePaths := newOwner()
	dead, paths := newOwner()
	l.Sweep()
	for _, p := range append(livePaths, paths...) {
		if !exists(p) {
			t.Fatalf("the sweep has removed %s of a live owner", p)
		}
	}
	_ = dead.Process.Kill()
	_ = dead.Wait()
	// Another program's sweep may be at it just now.
	for _, p := range paths {
		for end := time.Now().Add(time.Minute); exists(p) && !strings.HasSuffix(p, "/sandpit"); l.Sweep() {
			if time.Now().After(end) {
				t.Fatalf("%s is left by the sweep", p)
			}
		}
	}

	_ = live.Process.Kill()
	_ = live.Wait()
	for _, p := range livePaths {
		// The directory that all share may have groups of others.
		if err := unix.Rmdir(p); err != nil && err != unix.ENOENT && !strings.HasSuffix(p, "/sandpit") {
			t.Errorf("removing %s as a watcher does: %v", p, err)
		}
	}
}

func TestSweepKeeps(t *testing.T) {
	l := ownLayout(t)
	g := newGroup(t, l, testLimits)
	c := startIn(t, g, exec.Command("/bin/cat"))
	fmt.Fprintln(c.in, "joined")
	if got := c.line(t); got != "joined" {
		t.Fatal(got)
	}
	// The owner is gone, the sandbox runs on, as across a server's restart.
	unix.Close(g.fd)
	g.fd = -1
	l.Sweep()
	for _, d := range g.dirs {
		if _, err := os.Stat(d.path); err != nil {
			t.Errorf("the sweep has touched a group with a process: %v", err)
		}
	}
	_ = c.Process.Kill()
	_ = c.Wait()
	if n := l.Sweep(); n < 1 {
		t.Errorf("swept %d, want 1", n)
	}
}

// What a dead owner left in one hierarchy only is in nobody's way.
func TestLeftoverOfOneHierarchy(t *testing.T) {
	l := ownLayout(t)
	if len(l.places) < 2 {
		testkit.Lacks(t, "cgroup v1 with several hierarchies")
	}
	id := newID()
	last := l.places[len(l.places)-1]
	left := last.dir + "/" + prefix + id
	if err := os.Mkdir(left, 0o755); err != nil {
		t.Fatal(err)
	}
	defer unix.Rmdir(left)
	g, err := l.Create(id, testLimits)
	if err != nil {
		t.Fatal(err)
	}
	if err := g.Remove(); err != nil {
		t.Fatal(err)
	}
	_ = os.Mkdir(left, 0o755)
	if n := l.Sweep(); n < 1 {
		t.Errorf("swept %d, want 1", n)
	}
	if _, err := os.Stat(left); err == nil {
		t.Error("the left-over directory is still there")
	}
}

// Many make and remove groups in the one directory that all share, while the
// sweep runs: nobody fails, and the directory is gone at the end.
func TestSharedDirectoryRaces(t *testing.T) {
	base := layout(t)
	if !base.places[0].v2 {
		testkit.Lacks(t, "cgroup v2")
	}
	dir := base.places[0].dir + "/test-" + newID()
	if base.places[0].prep == prepShared {
		dir = filepath.Dir(base.places[0].dir) + "/test-" + newID()
	} else if base.places[0].prep != prepNone {
		testkit.Lacks(t, "a directory of cgroups that this user's programs share")
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	defer unix.Rmdir(dir)
	l := &Layout{places: []place{{v2: true, dir: dir + "/sandpit", prep: prepShared}}, kernel: base.kernel}
	stop := make(chan struct{})
	var sweeper, wg sync.WaitGroup
	sweeper.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				l.Sweep()
			}
		}
	})
	for range 8 {
		wg.Go(func() {
			for range 60 {
				g, err := l.Create(newID(), Limits{})
				if err != nil {
					t.Error(err)
					return
				}
				if _, err := os.Stat(g.dirs[0].path); err != nil {
					t.Error(err)
				}
				if err := g.Remove(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	close(stop)
	sweeper.Wait()
	if _, err := os.Stat(dir + "/sandpit"); err == nil {
		t.Error("the shared directory is left")
	}
}

// An ordinary user without a delegated group is told so, by name.
func TestOrdinaryUser(t *testing.T) {
	testkit.NeedRoot(t, "to become another user")
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(self)
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("/tmp", "sandpit-cgroup-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	// #nosec G302: another user must be able to run it.
	if err := errors.Join(os.Chmod(dir, 0o755), os.WriteFile(dir+"/test", data, 0o755)); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(dir + "/test")
	cmd.Dir = "/"
	cmd.Env = []string{helperEnv + "=gaps"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	t.Logf("%s", out)
	for _, want := range []string{"gap\tmemory\t", "gap\tcpus\t", "gap\tpids\t", "create\ttrue\t", "empty\t<nil>", "stats\t-1 -1 <nil>", "remove\t<nil>"} {
		if !strings.Contains(string(out), want) {
			t.Errorf("no %q in the output", want)
		}
	}
}
