package sysprog_test

import (
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit/internal/sysprog"
	"github.com/sandpit-dev/sandpit/internal/testkit"
)

// reap waits for a child and returns how it ended.
func reap(t *testing.T, c sysprog.Child) syscall.WaitStatus {
	t.Helper()
	var ws syscall.WaitStatus
	for {
		_, err := syscall.Wait4(c.PID, &ws, 0, nil)
		if err == syscall.EINTR {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		c.Release()
		return ws
	}
}

func fork(t *testing.T, p *sysprog.Program, report int) syscall.WaitStatus {
	t.Helper()
	c, err := p.Fork(sysprog.ForkOptions{Cgroup: -1, Report: report})
	if err != nil {
		t.Fatal(err)
	}
	return reap(t, c)
}

func TestResultsPassFromStepToStep(t *testing.T) {
	file := filepath.Join(t.TempDir(), "f")
	var p sysprog.Program
	fd := p.Call("opening", unix.SYS_OPENAT, sysprog.Int(unix.AT_FDCWD), p.Str(file), sysprog.Int(unix.O_CREAT|unix.O_WRONLY), sysprog.Int(0o600)).Result()
	p.Call("writing", unix.SYS_WRITE, sysprog.From(fd), p.Bytes([]byte("hello")), sysprog.Int(5)).Want(5)
	if ws := fork(t, &p, -1); ws.ExitStatus() != 0 {
		t.Fatalf("child ended with %v", ws)
	}
	if got, err := os.ReadFile(file); err != nil || string(got) != "hello" {
		t.Errorf("got %q, %v", got, err)
	}
}

func TestMemoryIsSharedUntilExec(t *testing.T) {
	// A result stored by the child is seen by the parent: no copy was made.
	var p sysprog.Program
	b := make([]byte, 4)
	pid := p.Call("asking", unix.SYS_GETPID).Result()
	p.Store32(sysprog.From(pid), b, 0)
	c, err := p.Fork(sysprog.ForkOptions{Cgroup: -1, Report: -1})
	if err != nil {
		t.Fatal(err)
	}
	reap(t, c)
	if got := int(*(*int32)(unsafe.Pointer(&b[0]))); got != c.PID {
		t.Errorf("child stored pid %d, want %d", got, c.PID)
	}
}

// A clone that the kernel holds up, here by CLONE_VFORK, holds up neither the
// collector nor any other goroutine. (The catalogue's L13b.)
func TestCollectorGoesOnDuringAClone(t *testing.T) {
	var began, end [2]int
	for _, fds := range []*[2]int{&began, &end} {
		if err := unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
			t.Fatal(err)
		}
		defer unix.Close(fds[0])
		defer unix.Close(fds[1])
	}
	var p sysprog.Program
	p.Call("beginning", unix.SYS_WRITE, sysprog.Int(began[1]), p.Bytes([]byte{1}), sysprog.Int(1))
	// It gives up in the end: nothing else runs in a program whose collector waits.
	ready := make([]byte, 8) // struct pollfd: the descriptor, POLLIN
	binary.LittleEndian.PutUint32(ready, uint32(end[0]))
	binary.LittleEndian.PutUint16(ready[4:], unix.POLLIN)
	p.Call("waiting", unix.SYS_PPOLL, p.Bytes(ready), sysprog.Int(1), p.Bytes(timespec(20)), sysprog.Int(0), sysprog.Int(0)).Want(1)
	forked := make(chan error, 1)
	var child sysprog.Child
	go func() {
		var err error
		child, err = p.Fork(sysprog.ForkOptions{Flags: unix.CLONE_VFORK, Cgroup: -1, Report: -1})
		forked <- err
	}()
	if _, err := unix.Read(began[0], make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	collected := make(chan struct{})
	go func() {
		runtime.GC()
		close(collected)
	}()
	<-collected
	if _, err := unix.Write(end[1], []byte{1}); err != nil {
		t.Fatal(err)
	}
	if err := <-forked; err != nil {
		t.Fatal(err)
	}
	if ws := reap(t, child); ws.ExitStatus() != 0 {
		t.Errorf("the collector has waited for the clone: the child ended with %v", ws)
	}
}

// timespec is a struct timespec of so many seconds.
func timespec(seconds uint64) []byte {
	b := make([]byte, 16)
	binary.LittleEndian.PutUint64(b, seconds)
	return b
}

func TestFailureIsReportedByName(t *testing.T) {
	for _, tc := range []struct {
		name  string
		build func(*sysprog.Program)
		what  string
		errno syscall.Errno
	}{
		{"errno", func(p *sysprog.Program) {
			p.Call("first", unix.SYS_GETPID)
			p.Call("second", unix.SYS_CHDIR, p.Str("/nowhere"))
		}, "second", syscall.ENOENT},
		{"unwanted result", func(p *sysprog.Program) {
			p.Call("asking", unix.SYS_GETPID).Want(^uintptr(0))
		}, "asking", syscall.EPIPE},
		{"after an ignored error", func(p *sysprog.Program) {
			p.Call("tolerated", unix.SYS_CHDIR, p.Str("/nowhere")).Ignore(syscall.ENOENT).SkipAfterIgnored(1)
			p.Call("skipped", unix.SYS_CHDIR, p.Str("/nowhere"))
			p.Call("last", unix.SYS_CLOSE, sysprog.Int(-1))
		}, "last", syscall.EBADF},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r, w, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			defer w.Close()
			var p sysprog.Program
			tc.build(&p)
			if ws := fork(t, &p, int(w.Fd())); ws.ExitStatus() != 125 {
				t.Errorf("child ended with %v", ws)
			}
			b := make([]byte, 100)
			n, err := r.Read(b)
			if err != nil {
				t.Fatal(err)
			}
			e, ok := p.DecodeReport(b[:n])
			if !ok || e.What != tc.what || !errors.Is(e, tc.errno) {
				t.Errorf("got %v, want %s: %v", e, tc.what, tc.errno)
			}
		})
	}
}

// A child goes on with programs that are put together while it waits, one after the other, and
// finds its registers as they were.
func TestContinue(t *testing.T) {
	for _, spawned := range []bool{false, true} {
		pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(pair[0])
		defer unix.Close(pair[1])
		file := filepath.Join(t.TempDir(), "f")
		p := new(sysprog.Program)
		fd := p.Call("opening", unix.SYS_OPENAT, sysprog.Int(unix.AT_FDCWD), p.Str(file), sysprog.Int(unix.O_CREAT|unix.O_WRONLY), sysprog.Int(0o600)).Result()
		p.Call("waiting", unix.SYS_READ, sysprog.Int(pair[1]), p.Bytes(make([]byte, 1)), sysprog.Int(1)).Want(1)
		q := p.Continue()
		first := p
		if spawned {
			first = new(sysprog.Program)
			first.Spawn("spawning", p, pair[1])
			first.Call("waiting for it", unix.SYS_WAIT4, sysprog.Int(-1), sysprog.Int(0), sysprog.Int(0), sysprog.Int(0))
		}
		c, err := first.Fork(sysprog.ForkOptions{Cgroup: -1, Report: pair[1]})
		if err != nil {
			t.Fatal(err)
		}
		for i := range 100 { // more than fits without being moved
			q.Call("writing", unix.SYS_WRITE, sysprog.From(fd), q.Bytes([]byte{byte(i)}), sysprog.Int(1)).Want(1)
		}
		other := q.Call("asking", unix.SYS_GETPID).Result()
		if other == fd {
			t.Error("a register is used twice")
		}
		q.Call("waiting again", unix.SYS_READ, sysprog.Int(pair[1]), q.Bytes(make([]byte, 1)), sysprog.Int(1)).Want(1)
		r := q.Continue()
		runtime.GC()
		if _, err := unix.Write(pair[0], []byte{1}); err != nil {
			t.Fatal(err)
		}
		r.Call("writing more", unix.SYS_WRITE, sysprog.From(fd), r.Bytes([]byte{100}), sysprog.Int(1)).Want(1)
		r.Call("failing", unix.SYS_CHDIR, r.Str("/nowhere"))
		runtime.GC()
		if _, err := unix.Write(pair[0], []byte{1}); err != nil {
			t.Fatal(err)
		}
		b := make([]byte, 100)
		n, err := unix.Read(pair[0], b)
		if err != nil {
			t.Fatal(err)
		}
		if e, ok := first.DecodeReport(b[:n]); !ok || e.What != "failing" || !errors.Is(e, syscall.ENOENT) {
			t.Errorf("got %v", e)
		}
		reap(t, c)
		got, err := os.ReadFile(file)
		if err != nil || len(got) != 101 || got[100] != 100 {
			t.Errorf("got %v, %v", got, err)
		}
	}
}

func TestDecodeReportRefusesOtherBytes(t *testing.T) {
	var p sysprog.Program
	for _, b := range [][]byte{nil, {'R'}, make([]byte, sysprog.ReportSize), make([]byte, 100)} {
		if e, ok := p.DecodeReport(b); ok {
			t.Errorf("%v was read as %v", b, e)
		}
	}
}

func TestManyChildrenAtOnce(t *testing.T) {
	var p sysprog.Program
	p.Call("asking", unix.SYS_GETPID)
	done := make(chan error, 64)
	for range cap(done) {
		go func() {
			c, err := p.Fork(sysprog.ForkOptions{Cgroup: -1, Report: -1})
			if err == nil {
				_, err = syscall.Wait4(c.PID, nil, 0, nil)
				c.Release()
			}
			done <- err
		}()
	}
	for range cap(done) {
		if err := <-done; err != nil {
			t.Error(err)
		}
		runtime.GC() // what children point to must not move or go
	}
}

func TestWatcherCleansUpWhenItsOwnerIsGone(t *testing.T) {
	// "sleep" stands for a sandbox, directories for its cgroup.
	for _, tc := range []struct {
		name  string
		leave bool
	}{{"owner died", false}, {"owner said it is done", true}} {
		t.Run(tc.name, func(t *testing.T) {
			var sleep sysprog.Program
			ts := make([]byte, 16)
			ts[0] = 60
			sleep.Call("sleeping", unix.SYS_NANOSLEEP, sleep.Bytes(ts), sysprog.Int(0))
			victim, err := sleep.Fork(sysprog.ForkOptions{PidFD: true, Cgroup: -1, Report: -1})
			if err != nil {
				t.Fatal(err)
			}
			defer unix.Close(victim.PidFD)

			dir := t.TempDir()
			inner := filepath.Join(dir, "a", "b")
			if err := os.MkdirAll(inner, 0o755); err != nil {
				t.Fatal(err)
			}
			kill := filepath.Join(dir, "kill")
			if err := os.WriteFile(kill, nil, 0o600); err != nil {
				t.Fatal(err)
			}
			conn, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				t.Fatal(err)
			}
			watcher, err := sysprog.Watch(sysprog.Cleanup{KillFile: kill, Dirs: []string{inner, filepath.Dir(inner)}}, conn[0])
			if err != nil {
				t.Fatal(err)
			}
			unix.Close(conn[0])
			if err := sysprog.WatchPidFD(conn[1], victim.PidFD); err != nil {
				t.Fatal(err)
			}
			if tc.leave {
				if err := sysprog.EndWatch(conn[1]); err != nil {
					t.Fatal(err)
				}
			}
			unix.Close(conn[1])
			if ws := reap(t, watcher); ws.ExitStatus() != 0 {
				t.Errorf("watcher ended with %v", ws)
			}
			_, err = os.Stat(filepath.Dir(inner))
			if gone := os.IsNotExist(err); gone == tc.leave {
				t.Errorf("directories gone: %t", gone)
			}
			if tc.leave {
				_ = unix.Kill(victim.PID, unix.SIGKILL)
			}
			if ws := reap(t, victim); ws.Signal() != syscall.SIGKILL {
				t.Errorf("victim ended with %v", ws)
			}
			if got, _ := os.ReadFile(kill); (string(got) == "1") == tc.leave {
				t.Errorf("kill file holds %q", got)
			}
		})
	}
}

// TestWatchDoesNotWaitForShared: a shared directory that is busy is left to
// whoever is in it.
func TestWatchDoesNotWaitForShared(t *testing.T) {
	testkit.NeedRoot(t, "to make a directory busy here, by a mount")
	dir := t.TempDir()
	busy, own := filepath.Join(dir, "busy"), filepath.Join(dir, "own")
	for _, d := range []string{busy, own} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := unix.Mount("tmpfs", busy, "tmpfs", 0, "size=4k"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(busy, unix.MNT_DETACH) })
	conn, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	watcher, err := sysprog.Watch(sysprog.Cleanup{Dirs: []string{own}, Shared: []string{busy}}, conn[0])
	unix.Close(conn[0])
	if err != nil {
		t.Fatal(err)
	}
	pidfd, err := unix.PidfdOpen(watcher.PID, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(pidfd)
	unix.Close(conn[1])
	// A watcher that waits does so for a minute.
	n, err := unix.Poll([]unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}, 20_000)
	for err == unix.EINTR {
		n, err = unix.Poll([]unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}, 20_000)
	}
	if n != 1 || err != nil {
		t.Error("the watcher waits for a directory that others are in")
		_ = unix.Kill(watcher.PID, unix.SIGKILL)
	}
	reap(t, watcher)
	if _, err := os.Stat(own); !os.IsNotExist(err) {
		t.Errorf("its own directory is left: %v", err)
	}
}

func TestWatchRefusesWhatDoesNotFit(t *testing.T) {
	long := "/" + strings.Repeat("a", 5000)
	for _, c := range []sysprog.Cleanup{{KillFile: long}, {Dirs: []string{long}}, {Dirs: make([]string, 1000)}} {
		if _, err := sysprog.Watch(c, 0); !errors.Is(err, syscall.ENAMETOOLONG) {
			t.Errorf("got %v", err)
		}
	}
}

func BenchmarkFork(b *testing.B) {
	var p sysprog.Program
	p.Call("asking", unix.SYS_GETPID)
	for b.Loop() {
		c, err := p.Fork(sysprog.ForkOptions{Cgroup: -1, Report: -1})
		if err != nil {
			b.Fatal(err)
		}
		_, _ = syscall.Wait4(c.PID, nil, 0, nil)
		c.Release()
	}
}

func TestEachCallsForEveryBit(t *testing.T) {
	// Descriptors 60 and 62 are opened, 61 is not.
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	var p sysprog.Program
	p.Call("copying", unix.SYS_DUP3, sysprog.Int(int(w.Fd())), sysprog.Int(0), sysprog.Int(0)).Each(1, 1<<60|1<<62)
	p.Call("looking", unix.SYS_FCNTL, sysprog.Int(0), sysprog.Int(unix.F_GETFD)).Each(0, 1<<60|1<<62)
	p.Call("ignoring", unix.SYS_FCNTL, sysprog.Int(0), sysprog.Int(unix.F_GETFD)).Each(0, 1<<60|1<<61|1<<62).Ignore(syscall.EBADF)
	p.Call("failing", unix.SYS_FCNTL, sysprog.Int(0), sysprog.Int(unix.F_GETFD)).Each(0, 1<<60|1<<61)
	if ws := fork(t, &p, int(w.Fd())); ws.ExitStatus() != 125 {
		t.Errorf("child ended with %v", ws)
	}
	b := make([]byte, sysprog.ReportSize)
	if _, err := r.Read(b); err != nil {
		t.Fatal(err)
	}
	if e, ok := p.DecodeReport(b); !ok || e.What != "failing" || !errors.Is(e, syscall.EBADF) {
		t.Errorf("got %v", e)
	}
}

// A child that takes only the lower part of the table of descriptors has that,
// as a copy, and nothing else.
func TestBelow(t *testing.T) {
	var ends [2]int
	if err := unix.Pipe2(ends[:], unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	defer unix.Close(ends[0])
	defer unix.Close(ends[1])
	low, high := max(ends[0], ends[1]), 0
	high, err := unix.FcntlInt(uintptr(ends[1]), unix.F_DUPFD_CLOEXEC, low+1)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(high)

	var p sysprog.Program
	got := make([]byte, 4)
	none := p.Call("looking for the other", unix.SYS_FCNTL, sysprog.Int(high), sysprog.Int(unix.F_GETFD)).Ignore(unix.EBADF).Result()
	p.Store32(sysprog.From(none), got, 0)
	p.Call("writing", unix.SYS_WRITE, sysprog.Int(ends[1]), p.Bytes([]byte("x")), sysprog.Int(1)).Want(1)
	p.Call("closing its own", unix.SYS_CLOSE, sysprog.Int(ends[1]))
	p.Call("failing", unix.SYS_CLOSE, sysprog.Int(high))
	c, err := p.Fork(sysprog.ForkOptions{Cgroup: -1, Report: -1, Below: low + 1})
	if err != nil {
		t.Fatal(err)
	}
	if ws := reap(t, c); ws.ExitStatus() != 125 {
		t.Errorf("the child ended with %v: it could close what it has not", ws)
	}
	if n := int32(binary.NativeEndian.Uint32(got)); n != -1 {
		t.Errorf("looking for the other gave %d", n)
	}
	b := make([]byte, 8)
	if n, err := unix.Read(ends[0], b); n != 1 || err != nil {
		t.Errorf("read %d, %v", n, err)
	}
	for _, fd := range []int{ends[1], high} {
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err != nil {
			t.Errorf("descriptor %d of the maker: %v", fd, err)
		}
	}
}
