package settings

import (
	"runtime"

	"golang.org/x/sys/unix"
)

// maker is a thread that makes all processes, which inherit what it has taken on:
//
//   - A Landlock domain. Programs of one domain may trace each other and look into each
//     other's /proc. If each took the ruleset for itself, a debugger could not attach to
//     what another command has started.
//   - A cgroup: a new process counts where the thread is that makes it. The guest's other
//     threads do not count there.
type maker chan func()

func newMaker() maker {
	m := make(maker)
	go func() {
		runtime.LockOSThread() // and never unlock: the runtime makes no threads from this one
		for f := range m {
			f()
		}
	}()
	return m
}

// do calls f on the thread and returns when it has returned.
func (m maker) do(f func()) {
	done := make(chan struct{})
	m <- func() {
		defer close(done)
		f()
	}
	<-done
}

// takeOn calls f on the thread that makes all processes from now on.
func (s *Settings) takeOn(f func() error) (err error) {
	s.mu.Lock()
	if s.maker == nil {
		s.maker = newMaker()
	}
	m := s.maker
	s.mu.Unlock()
	m.do(func() { err = f() })
	return err
}

// CountIn makes processes that are started from now on count in the cgroup whose file of
// threads is join, which it closes.
func (s *Settings) CountIn(join int) error {
	defer unix.Close(join)
	return s.takeOn(func() error {
		_, err := unix.Write(join, []byte("0"))
		return err
	})
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
