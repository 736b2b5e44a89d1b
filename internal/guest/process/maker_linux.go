package process

import (
	"runtime"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit/internal/guest/rights"
)

// maker is a thread that makes all processes, which inherit what it has taken on:
//
//   - A Landlock domain. Programs of one domain may trace each other and look into each
//     other's /proc. If each took the rulesets for itself, a debugger could not attach to
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
func (t *Table) takeOn(f func() error) (err error) {
	t.mu.Lock()
	if t.maker == nil {
		t.maker = newMaker()
	}
	m := t.maker
	t.took++
	t.mu.Unlock()
	m.do(func() { err = f() })
	return err
}

// on returns a function that runs others on the thread that makes all processes, or nil
// if any thread may.
func (t *Table) on() func(f func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.maker == nil {
		return nil
	}
	return t.maker.do
}

// Restrict puts processes that are started from now on under a Landlock ruleset, beside
// those before.
func (t *Table) Restrict(ruleset int) error {
	return t.takeOn(func() error { return rights.RestrictSelf(ruleset) })
}

// CountIn makes processes that are started from now on count in the cgroup whose file of
// threads is join, which it closes.
func (t *Table) CountIn(join int) error {
	defer unix.Close(join)
	return t.takeOn(func() error {
		_, err := unix.Write(join, []byte("0"))
		return err
	})
}
