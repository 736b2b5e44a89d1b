package settings

import (
	"runtime"

	"golang.org/x/sys/unix"
)

// domain is a thread under a Landlock ruleset, which makes all programs. What is
// made by it is in the same Landlock domain, and programs of one domain may trace
// each other and look into each other's /proc. If each took the ruleset for itself, a
// debugger could not attach to what another command has started.
type domain struct{ work chan func() }

// newDomain starts a thread and puts it under a ruleset.
func newDomain(ruleset int) (*domain, error) {
	d := &domain{make(chan func())}
	entered := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlock
		err := RestrictSelf(ruleset)
		entered <- err
		if err != nil {
			return
		}
		for f := range d.work {
			f()
		}
	}()
	return d, <-entered
}

// do calls f on the thread and returns when it has returned.
func (d *domain) do(f func()) {
	done := make(chan struct{})
	d.work <- func() {
		defer close(done)
		f()
	}
	<-done
}

// RestrictSelf puts the calling thread permanently under a ruleset.
func RestrictSelf(ruleset int) error {
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	if _, _, errno := unix.RawSyscall(unix.SYS_LANDLOCK_RESTRICT_SELF, uintptr(ruleset), 0, 0); errno != 0 {
		return errno
	}
	return nil
}
