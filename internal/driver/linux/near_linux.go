package linux

import (
	"os"
	"slices"
	"sync"

	"golang.org/x/sys/unix"
)

// near keeps a few low numbers of descriptors for what a first process needs.
//
// A process that is made gets a copy of its maker's table of descriptors and
// closes what is not for it, which takes longer than all else once a server
// holds a thousand sandboxes. A process that is made sharing the table, and then
// takes of it a copy of the low numbers alone, takes no longer than in an empty
// program. The numbers must be taken while they are low: when the first sandbox
// of a driver comes, and until the last has gone.
type near struct {
	mu    sync.Mutex
	users int   // guarded by mu: sandboxes, made and being made
	fds   []int // guarded by mu: ascending; each is an O_PATH descriptor of "/" while it is not lent

	lent sync.Mutex // held while they are lent
}

// nearCount is for the sockets of the guest and its builder, the pipe that
// tells of the id maps, and a file of a cgroup in each hierarchy of v1, of
// which Linux has 13 controllers.
const nearCount = 16

// nearFrom is from which number on a descriptor shows that the table is long: at
// some hundred descriptors a copy of it takes as long as waiting until the
// process has one of its own.
const nearFrom = 256

// hold keeps the numbers until drop. Where no descriptor can be had it keeps none.
func (n *near) hold() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.users++; n.users > 1 {
		return
	}
	for range nearCount {
		fd, err := openNothing()
		if err != nil {
			break
		}
		n.fds = append(n.fds, fd)
	}
	slices.Sort(n.fds)
}

func (n *near) drop() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.users--; n.users == 0 {
		closeAll(n.fds)
		n.fds = nil
	}
}

// openNothing opens what holds nothing and can do nothing.
func openNothing() (int, error) {
	fd, err := unix.Open("/", unix.O_PATH|unix.O_CLOEXEC, 0)
	return fd, os.NewSyscallError("open", err)
}

// lend makes low numbers mean these descriptors, too, and puts those in their
// place. A process that is made then needs no descriptor from the number below
// on. When it has a table of its own, back is to be called. Where it does not
// pay or can't be done, below is 0, and nothing has changed.
func (n *near) lend(fds []*int) (below int, back func(), err error) {
	back = func() {}
	if !slices.ContainsFunc(fds, func(fd *int) bool { return *fd >= nearFrom }) {
		return 0, back, nil
	}
	n.lent.Lock()
	n.mu.Lock()
	slots := n.fds
	n.mu.Unlock()
	if len(slots) < len(fds) {
		n.lent.Unlock()
		return 0, back, nil
	}
	slots = slots[:len(fds)]
	nothing, err := openNothing()
	if err != nil {
		n.lent.Unlock()
		return 0, back, err
	}
	back = func() {
		for _, slot := range slots {
			_ = unix.Dup3(nothing, slot, unix.O_CLOEXEC) // which can't fail between open ones
		}
		unix.Close(nothing)
		n.lent.Unlock()
	}
	for i, fd := range fds {
		if err := unix.Dup3(*fd, slots[i], unix.O_CLOEXEC); err != nil {
			back()
			return 0, func() {}, os.NewSyscallError("dup3", err)
		}
	}
	for i, fd := range fds {
		*fd = slots[i]
	}
	return slots[len(slots)-1] + 1, back, nil
}
