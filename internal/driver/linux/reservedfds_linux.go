package linux

import (
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// reservedFDs keeps a few low numbers of descriptors for what a first process needs.
//
// A process that is made gets a copy of its maker's table of descriptors and
// closes what is not for it, which takes longer than all else once a server
// holds a thousand sandboxes. A process that is made sharing the table, and then
// takes of it a copy of the low numbers alone, takes no longer than in an empty
// program. The numbers must be taken while they are low: when the first sandbox
// of a driver comes, and until the last has gone.
type reservedFDs struct {
	mu    sync.Mutex
	users int   // guarded by mu: sandboxes, made and being made
	fds   []int // guarded by mu: ascending; each is an O_PATH descriptor of "/" while it is not lent, as the first always is

	lent chan struct{} // one place: taken while they are lent
}

// reservedFDsPatience bounds the wait for borrowed numbers. The goroutine that makes a
// process holds them for a moment. If the kernel blocks it, the others do without.
const reservedFDsPatience = time.Second

// borrow waits until the numbers are free, and reports false if that takes too long.
func (n *reservedFDs) borrow() bool { return offer(n.lent, struct{}{}, reservedFDsPatience) }

// giveBack releases the numbers.
func (n *reservedFDs) giveBack() { <-n.lent }

// reservedCount is one descriptor that is never lent, the sockets of the guest and
// its builder, the pipe that tells of the id maps, and a file of a cgroup in
// each hierarchy of v1, of which Linux has 13 controllers.
const reservedCount = 17

// longTable is the number from which on a descriptor shows that the table is long: at
// some hundred descriptors a copy of it takes as long as waiting until the
// process has one of its own.
const longTable = 256

// hold keeps the numbers until drop. Where no descriptor can be had it keeps none.
func (n *reservedFDs) hold() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.users++; n.users > 1 {
		return
	}
	// What holds nothing and can do nothing.
	for fd, err := unix.Open("/", unix.O_PATH|unix.O_CLOEXEC, 0); err == nil; fd, err = unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, fd+1) {
		if n.fds = append(n.fds, fd); len(n.fds) == reservedCount {
			return
		}
	}
}

func (n *reservedFDs) drop() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.users--; n.users == 0 {
		closeAll(n.fds)
		n.fds = nil
	}
}

// lend makes low numbers mean these descriptors, too, and puts those in their
// place. A process that is made then needs no descriptor from the number below
// on. When it has a table of its own, back is to be called. Where it does not
// pay or can't be done, below is 0, and nothing has changed.
func (n *reservedFDs) lend(fds []*int) (below int, back func(), err error) {
	back = func() {}
	if !slices.ContainsFunc(fds, func(fd *int) bool { return *fd >= longTable }) {
		return 0, back, nil
	}
	if !n.borrow() {
		return 0, back, nil
	}
	n.mu.Lock()
	held := n.fds
	n.mu.Unlock()
	if len(held) <= len(fds) {
		n.giveBack()
		return 0, back, nil
	}
	nothing, slots := held[0], held[1:len(fds)+1]
	back = func() {
		for _, slot := range slots {
			_ = unix.Dup3(nothing, slot, unix.O_CLOEXEC) // which can't fail between open ones
		}
		n.giveBack()
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
