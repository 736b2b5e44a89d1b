package process

import (
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit/internal/guest/procfs"
	"github.com/sandpit-dev/sandpit/internal/guest/settings"
	"github.com/sandpit-dev/sandpit/internal/guest/spawn"
	"github.com/sandpit-dev/sandpit/internal/guest/wire"
	"github.com/sandpit-dev/sandpit/internal/testkit"
)

// adopts makes orphans children of the test, as they are the guest's, and returns an empty table, whose reaper the test calls.
func adopts(t *testing.T) *Table {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0) })
	table := &Table{settings: settings.New(), touch: func() {}, procs: make(map[uint64]*process)}
	table.reaper.clear()
	return table
}

// reaps calls the reaper until the test ends.
func (t *Table) reaps(test *testing.T) {
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			t.reaper.reap()
			select {
			case <-stop:
				return
			case <-time.After(time.Millisecond):
			}
		}
	}()
	test.Cleanup(func() { close(stop); <-done })
}

// helper makes a process that stands for a helper, and ends with the test.
func helper(t *testing.T, r *reaper, program string, argv []string, stdout *os.File) *spawn.Proc {
	p, err := r.begin(nil, func(made func(int) bool) (*spawn.Proc, error) {
		files := []uintptr{stdout.Fd(), stdout.Fd(), stdout.Fd()}
		pid, err := syscall.ForkExec(program, argv, &syscall.ProcAttr{Env: os.Environ(), Files: files})
		if err != nil {
			return nil, err
		}
		made(pid)
		return spawn.Forked(pid, pid, nil, nil), nil
	}, func(bool) {}, func() bool { return false })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = syscall.Kill(p.PID(), syscall.SIGKILL)
		testkit.Until(t, "it is reaped", func() bool { r.reap(); return syscall.Kill(p.PID(), 0) == syscall.ESRCH })
	})
	return p
}

// state returns the state of a process, as in proc_pid_stat(5), or 0 if there is none.
func state(pid int) byte {
	var scan procfs.Scanner
	for _, p := range scan.Below([]int{os.Getpid()}, nil) {
		if p.PID == pid {
			return p.State
		}
	}
	return 0
}

// A command of sudo has not ended before what it has left has, also if that has killed the command's helper and so
// escaped from its tree.
func TestSudoEndsWithWhatItLeaves(t *testing.T) {
	testkit.NeedRoot(t, "a helper of the user of the command")
	sh := testkit.NeedProgram(t, "sh")
	table := adopts(t)
	r := &table.reaper
	requester := helper(t, r, testkit.NeedProgram(t, "sleep"), []string{"sleep", "1000"}, os.Stderr)
	pidfd, err := unix.PidfdOpen(requester.PID(), 0)
	if err != nil {
		t.Fatal(err)
	}

	left := filepath.Join(t.TempDir(), "left")
	script := `leader=$$ helper=$PPID
setsid ` + sh + ` -c "while [ -e /proc/$leader ]; do :; done; sleep 0.1; echo \$\$ >` + left + `; kill -9 $helper; exec sleep 1000" >/dev/null 2>&1 &`
	// The helper is dead before it is known, and nothing hunts for what it leaves as long as a helper is being made.
	table.maker = make(maker)
	defer close(table.maker)
	go func() {
		for f := range table.maker {
			r.mu.Lock()
			f()
			testkit.Until(t, "the helper is killed", func() bool {
				var scan procfs.Scanner
				for _, p := range scan.Below([]int{os.Getpid()}, nil) {
					if p.Parent == os.Getpid() && p.State == 'Z' {
						return true
					}
				}
				return false
			})
			r.mu.Unlock()
		}
	}()
	r.making.RLock()

	ours, theirs, err := seqpacket()
	if err != nil {
		t.Fatal(err)
	}
	defer ours.Close()
	null, err := os.OpenFile("/dev/null", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	fd := int(null.Fd())
	m := wire.Start{Argv: []string{sh, "-c", script}, Dir: "/", Env: os.Environ()}
	if _, _, err := ours.WriteMsgUnix(m.Append(nil), unix.UnixRights(fd, fd, fd), nil); err != nil {
		t.Fatal(err)
	}
	answer := make(chan *wire.Exit, 1)
	go func() {
		answer <- table.serveSudo(theirs, requester.PID(), pidfd)
		theirs.Close()
	}()
	testkit.Until(t, "the helper is entered", func() bool { r.mu.Lock(); defer r.mu.Unlock(); return len(r.helpers) == 2 })
	table.reaps(t)
	testkit.Until(t, "the hunt has begun", func() bool { r.mu.Lock(); defer r.mu.Unlock(); return r.hunt != nil })
	select {
	case e := <-answer:
		r.making.RUnlock()
		t.Fatalf("the command has ended, with %+v, before what it has left", e)
	case <-time.After(killPatience / 20):
	}
	r.making.RUnlock()
	if e := <-answer; e.StartError != "" {
		t.Errorf("got %+v", e)
	}
	b, err := os.ReadFile(left)
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil {
		t.Fatal(err)
	}
	if s := state(pid); s != 0 && s != 'Z' {
		t.Errorf("what it has left is in state %c", s)
	}
}

func seqpacket() (*net.UnixConn, *os.File, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, err
	}
	f := os.NewFile(uintptr(fds[0]), "ours")
	defer f.Close()
	c, err := net.FileConn(f)
	if err != nil {
		unix.Close(fds[1])
		return nil, nil, err
	}
	if err := unix.SetNonblock(fds[1], true); err != nil {
		return nil, nil, err
	}
	return c.(*net.UnixConn), os.NewFile(uintptr(fds[1]), "theirs"), nil
}
