package linux

import (
	"sync"

	"golang.org/x/sys/unix"
)

// dumpable keeps this program dumpable if it is (PR_SET_DUMPABLE of prctl(2)),
// and never makes it so.
//
// A process that changes its user makes its memory not dumpable, and until a
// child has executed the guest, or has ended, that is this program's memory: its
// files in /proc are root's then, those of its children too, it leaves no core
// file, and its user can't debug it. So each sets that right at once, and for one
// that was killed before, leave does.
//
// All drivers of a program share the one that processDumpable is.
type dumpable struct {
	mu    sync.Mutex
	users int  // guarded by mu: sandboxes that are being made
	was   bool // guarded by mu: it was dumpable before the first of these
}

// processDumpable is of the process, as the right is: two drivers that each kept their own
// note of it would take what the other's child did for the program's choice.
var processDumpable dumpable

// enter notes that a sandbox is being made, until leave, and reports whether the program
// itself is dumpable.
func (d *dumpable) enter() (was bool, leave func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.users == 0 {
		n, err := unix.PrctlRetInt(unix.PR_GET_DUMPABLE, 0, 0, 0, 0)
		d.was = err == nil && n == 1
	}
	d.users++
	return d.was, func() {
		d.restore()
		d.mu.Lock()
		d.users--
		d.mu.Unlock()
	}
}

// restore makes the program dumpable again, and reports false if it was not.
func (d *dumpable) restore() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.was {
		_ = unix.Prctl(unix.PR_SET_DUMPABLE, 1, 0, 0, 0)
	}
	return d.was
}
