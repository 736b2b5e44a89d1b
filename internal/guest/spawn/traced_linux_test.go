package spawn_test

import (
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit/internal/guest/spawn"
)

// tracedName is the name by which the test binary is a program that asks to be
// traced by its parent.
const tracedName = "traced"

func TestMain(m *testing.M) {
	if filepath.Base(os.Args[0]) == tracedName {
		os.Exit(traced(os.Args[1]))
	}
	os.Exit(m.Run())
}

// traced asks to be traced, gets a signal, and goes on.
func traced(how string) int {
	runtime.LockOSThread()
	got := make(chan os.Signal, 1)
	signal.Notify(got, syscall.SIGUSR1)
	if _, _, errno := unix.RawSyscall6(unix.SYS_PTRACE, unix.PTRACE_TRACEME, 0, 0, 0, 0, 0); errno != 0 {
		return 100
	}
	switch how {
	case "signal":
		_ = unix.Tgkill(os.Getpid(), unix.Gettid(), syscall.SIGUSR1)
		<-got
	case "exec":
		_ = unix.Exec("/bin/sh", []string{"sh", "-c", "exit 3"}, nil)
		return 101
	case "killed":
		_ = unix.Tgkill(os.Getpid(), unix.Gettid(), syscall.SIGTERM)
		select {}
	}
	return 3
}

// A program that asks its parent to trace it has not ended when it stops for a
// signal, and does not stay stopped: its helper lets it go on.
func TestTracedByItsHelper(t *testing.T) {
	null, err := os.OpenFile("/dev/null", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	fd := int(null.Fd())
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for how, want := range map[string]syscall.WaitStatus{"signal": 3 << 8, "exec": 3 << 8, "killed": syscall.WaitStatus(syscall.SIGTERM)} {
		p, err := spawn.Start(&spawn.Attr{Argv: []string{tracedName, how}, Candidates: []string{self}, Dir: "/", Stdin: fd, Stdout: fd, Stderr: fd})
		if err != nil {
			t.Fatal(err)
		}
		st, err := p.Wait()
		if err != nil || st.Wait != want {
			t.Errorf("%s: its wait status is %#x, %v, want %#x", how, st.Wait, err, want)
			_ = unix.Kill(p.PID(), unix.SIGKILL)
		}
		_, _ = syscall.Wait4(p.Helper(), nil, 0, nil)
		p.Reaped()
	}
}
