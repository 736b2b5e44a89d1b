package linux

import (
	"context"
	"fmt"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/driver"
	"github.com/sandpit-dev/sandpit/internal/fault"
)

var (
	_ driver.Preparer    = (*Driver)(nil)
	_ driver.BlankLinker = (*blank)(nil)
)

// Prepare makes a blank: namespaces, ids, cgroup, the common parts of the root, and a
// waiting guest. See driver.Preparer.
func (d *Driver) Prepare(ctx context.Context, id string, bp driver.BlankPlan) (driver.Blank, error) {
	h, err := d.host()
	if err != nil {
		return nil, err
	}
	b := &blank{made: d.newCreation(id, bp), host: h, mounts: -1}
	b.made.progress = driver.ProgressOf(ctx)
	var leave func()
	b.made.dumpable, leave = processDumpable.enter()
	defer leave()
	if err := b.prepare(ctx); err != nil {
		_ = b.undo()
		return nil, err
	}
	return b, nil
}

// blank is a sandbox that is complete up to the point where its plan is needed.
type blank struct {
	made   *creation
	host   *host
	mounts int         // descriptor that tells when this program's mounts change, or -1
	broken atomic.Bool // not usable any more

	mu   sync.Mutex   // held while it is used or dialled
	used bool         // guarded by mu
	link *driver.Link // that was made ahead, guarded by mu

	destroyErr error // guarded by mu
}

func (b *blank) prepare(ctx context.Context) error {
	c := b.made
	if err := c.step(ctx, "host"); err != nil {
		return err
	}
	if err := c.driver.refuseMissing(ctx, c.blank.Enforce); err != nil {
		return err
	}
	// Which images there will be is not known: those that are probable.
	kind := b.host.idKind(c.blank.MultiUser, canMap(existing(c.driver.opts.Dir)) && canMap("/usr"))
	if kind != idsOwn {
		// Layers and mounts will be opened by the builder, by their paths, and
		// it sees the mounts of now.
		fd, err := unix.Open("/proc/self/mountinfo", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("watching the mounts of this machine: %w", err)
		}
		b.mounts = fd
	}
	return c.prepare(ctx, b.host, kind, true)
}

func (b *blank) undo() error {
	b.broken.Store(true)
	b.made.hearing.Lock()
	defer b.made.hearing.Unlock()
	if b.mounts >= 0 {
		unix.Close(b.mounts)
		b.mounts = -1
	}
	return b.made.undo()
}

// ID returns the id. See driver.Blank.
func (b *blank) ID() string { return b.made.id }

// leastMemory is the least limit of memory, in bytes, that a blank which was
// made with a larger one is given: the limit must leave room for what the guest
// uses, or the kernel kills to make that.
const leastMemory = 32 << 20

// Fits reports whether Bind can make of it what Create would. See driver.Blank.
func (b *blank) Fits(plan driver.Plan) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.fits(&plan)
}

// fits is Fits. Precondition: b.mu is held.
func (b *blank) fits(plan *driver.Plan) bool {
	bp := &b.made.blank
	was, will := groupLimits(bp.Limits, bp.Enforce), groupLimits(plan.Limits, plan.Enforce)
	switch {
	case plan.Ephemeral != bp.Ephemeral, !was.SameKinds(will), will.Memory > 0 && will.Memory < min(was.Memory, leastMemory):
		return false
	case b.made.execInRoot && checkLibraries(&plan.Root) != nil:
		return false
	}
	kind := b.host.idKind(plan.MultiUser, mappable(plan))
	if kind != b.made.ids.kind || kind == idsSingle && (plan.UID != b.made.ids.uid || plan.GID != b.made.ids.gid) {
		return false
	}
	return (b.link == nil || plan.Link != nil && *plan.Link == *b.link) && b.usable()
}

// Usable reports whether it can still be bound. See driver.Blank.
func (b *blank) Usable() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.usable()
}

// usable is Usable with b.mu held.
func (b *blank) usable() bool {
	if b.used || b.broken.Load() {
		return false
	}
	fds := []unix.PollFd{{Fd: int32(b.made.child.PidFD), Events: unix.POLLIN}, {Fd: int32(b.mounts), Events: unix.POLLPRI}}
	for {
		// The first is ready when the guest has ended, proc_pid_mountinfo(5)
		// when a mount has come or gone; a negative descriptor never is.
		n, err := unix.Poll(fds, 0)
		if err == unix.EINTR {
			continue
		}
		if n != 0 || err != nil {
			b.broken.Store(true) // the change of mounts is told only once
		}
		return n == 0 && err == nil
	}
}

// Dial opens a connection to the guest. See driver.Blank.
func (b *blank) Dial(ctx context.Context) (net.Conn, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.used:
		return nil, b.usedError("dialling the guest of")
	case b.made.execInRoot:
		return nil, fault.Errorf(sandpit.ErrUnsupported, "dialling the guest of blank %s: it is entering its root", b.made.id)
	}
	return dialGuest(b.made.id, b.made.socks[0])
}

// Link makes the interface of the plan. See driver.BlankLinker.
func (b *blank) Link(ctx context.Context, l driver.Link) (wait func() (*os.File, error), err error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.made.hearing.Lock()
	if err := b.beginLink(&l); err != nil {
		b.made.hearing.Unlock()
		return nil, err
	}
	return func() (*os.File, error) {
		defer b.made.hearing.Unlock()
		fds, err := b.made.await(ctx, linkedByte)
		if err == nil && len(fds) != 1 {
			closeAll(fds)
			err = fmt.Errorf("received %d descriptors, not one", len(fds))
		}
		if err != nil {
			b.broken.Store(true)
			return nil, fmt.Errorf("linking blank %s: %w", b.made.id, err)
		}
		return os.NewFile(uintptr(fds[0]), linkName), nil
	}, nil
}

// beginLink has the builder make the interface. Precondition: b.mu is held.
func (b *blank) beginLink(l *driver.Link) error {
	c := b.made
	switch {
	case b.used || b.link != nil:
		return b.usedError("linking")
	case !b.usable():
		return fault.Errorf(sandpit.ErrClosed, "linking blank %s: its guest exited, or the machine's mounts changed", c.id)
	case !c.rest.hasTUN():
		return fault.Errorf(sandpit.ErrUnsupported, "linking blank %s: it could not open %s", c.id, tunPath)
	}
	b.link = l
	c.rest.linkAhead(l)
	if err := c.tell(nil); err != nil {
		b.broken.Store(true)
		return fmt.Errorf("linking blank %s: %w", c.id, err)
	}
	return nil
}

func (b *blank) usedError(what string) error {
	return fault.Errorf(sandpit.ErrState, "%s blank %s: it was used already", what, b.made.id)
}

// use claims the blank for the caller, or reports false. fits reports whether it fits a plan.
func (b *blank) use(plan *driver.Plan) (fits, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	fits, ok = b.fits(plan), !b.used
	b.used = true
	return fits, ok
}

// Bind makes the sandbox of a plan. See driver.Blank.
func (b *blank) Bind(ctx context.Context, plan driver.Plan) (driver.Instance, error) {
	fits, ok := b.use(&plan)
	if !ok {
		return nil, b.usedError("binding")
	}
	b.made.progress = driver.ProgressOf(ctx)
	dumpable, leave := processDumpable.enter()
	defer leave()
	b.made.rest.dumpable = dumpable
	inst, err := b.bind(ctx, &plan, fits)
	if err != nil {
		_ = b.undo()
		return nil, err
	}
	return inst, nil
}

func (b *blank) bind(ctx context.Context, plan *driver.Plan, fits bool) (*instance, error) {
	c := b.made
	if b.broken.Load() {
		return nil, fault.Errorf(sandpit.ErrClosed, "binding blank %s: its guest exited, or the machine's mounts changed", c.id)
	}
	if !fits || plan.ID != c.id {
		return nil, fault.Errorf(sandpit.ErrInvalid, "binding blank %s: it does not match the plan", c.id)
	}
	c.plan, c.mark = plan, time.Now()
	if err := c.step(ctx, "bind"); err != nil {
		return nil, err
	}
	if err := c.check(ctx); err != nil {
		return nil, err
	}
	if c.group != nil {
		lim := groupLimits(plan.Limits, plan.Enforce)
		if err := c.group.SetLimits(lim); err != nil {
			return nil, err
		}
	}
	c.trace("limits")
	inst, err := c.bind(ctx)
	if err == nil && b.mounts >= 0 {
		unix.Close(b.mounts)
	}
	return inst, err
}

// Destroy removes a blank that is not used. See driver.Blank.
func (b *blank) Destroy(ctx context.Context) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.used {
		b.used = true
		b.made.progress = driver.ProgressOf(ctx)
		b.destroyErr = b.undo()
	}
	return b.destroyErr
}
