package linux

import (
	"errors"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/sysprog"
)

// A guest that can't be executed may be found out only when something was sent to it,
// which it leaves unread, or when it was dialled. What it has said is told either way.
func TestGuestThatFailsLateIsExplained(t *testing.T) {
	i, gone := guestThatFails(t)
	if err := i.Explain(gone); err == nil || !strings.Contains(err.Error(), "setting up the sandbox: "+executingGuest) || errors.Is(err, sandpit.ErrClosed) {
		t.Errorf("dialled: %v", err)
	}
	i, gone = guestThatFails(t)
	if err := i.explainDeath(gone); !strings.Contains(err.Error(), "setting up the sandbox: "+executingGuest) {
		t.Errorf("sent something: %v", err)
	}
	i, _ = guestThatFails(t)
	if err := i.explainAnswer(t.Context(), nil, nil); !strings.Contains(err.Error(), "setting up the sandbox: "+executingGuest) {
		t.Errorf("waited for: %v", err)
	}
}

// guestThatFails returns an instance whose guest could not be executed, and has not read
// what was sent to it.
func guestThatFails(t *testing.T) (i *instance, gone error) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fds[0]) })
	p := new(sysprog.Program)
	p.Call(executingGuest, unix.SYS_EXECVEAT, sysprog.Int(-1), p.Str(""), sysprog.Int(0), sysprog.Int(0), sysprog.Int(unix.AT_EMPTY_PATH))
	i = &instance{creation: creation{driver: New(Options{Dir: t.TempDir()}), id: "id", program: p, socks: [2]int{fds[0], -1}, build: [2]int{-1, -1}}, done: make(chan struct{})}
	close(i.done)
	gone = errors.New("gone")
	if err := i.Explain(gone); !errors.Is(err, gone) {
		t.Errorf("one that has said nothing: %v", err)
	}
	conn, err := dialGuest(i.id, i.socks[0])
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	child, err := p.Fork(sysprog.ForkOptions{Cgroup: -1, Report: fds[1]})
	if err != nil {
		t.Fatal(err)
	}
	for err = syscall.EINTR; err == syscall.EINTR; {
		_, err = syscall.Wait4(child.PID, nil, 0, nil)
	}
	if err != nil {
		t.Fatal(err)
	}
	child.Release()
	unix.Close(fds[1])
	return i, gone
}

// When no program of the machine can load a filter, the error says that the kernel
// has no room for more, and does not blame this program.
func TestNoMemoryForFilters(t *testing.T) {
	c := &creation{driver: New(Options{Dir: t.TempDir()}), id: "id"}
	err := c.explainStep(&sysprog.StepError{What: loadingFilter, Errno: 524})
	if !errors.Is(err, sandpit.ErrExhausted) || !strings.Contains(sandpit.Hint(err), "net.core.bpf_jit_limit") {
		t.Errorf("got %v (hint: %s), want ErrExhausted", err, sandpit.Hint(err))
	}
}
