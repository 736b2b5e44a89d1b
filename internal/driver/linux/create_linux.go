package linux

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/cgroup"
	"github.com/sandpit-dev/sandpit/internal/driver"
	"github.com/sandpit-dev/sandpit/internal/fault"
	"github.com/sandpit-dev/sandpit/internal/sysprog"
)

// Create makes a sandbox. See driver.Driver.
func (d *Driver) Create(ctx context.Context, plan driver.Plan) (driver.Instance, error) {
	c := d.newCreation(plan.ID, driver.BlankPlan{
		Ephemeral: plan.Ephemeral, UID: plan.UID, GID: plan.GID, MultiUser: plan.MultiUser, Limits: plan.Limits, Enforce: plan.Enforce,
	})
	c.plan, c.progress = &plan, driver.ProgressOf(ctx)
	var leave func()
	c.dumpable, leave = processDumpable.enter()
	defer leave()
	inst, err := c.run(ctx)
	if err != nil {
		_ = c.undo()
		return nil, err
	}
	return inst, nil
}

// creation is a sandbox in the making: first prepare, which does not depend on the plan,
// then bind. undo undoes everything done so far.
type creation struct {
	driver *Driver
	id     string
	blank  driver.BlankPlan
	plan   *driver.Plan // nil while that is not known
	mark   time.Time

	progress *driver.Progress // of whoever waits for what is being done

	mounts     []hostMount
	covers     []cover
	ids        idMap
	execInRoot bool   // the guest waits for its root: see build
	dumpable   bool   // this program is of itself
	key        uint64 // of its filter, by which it may load one more
	group      *cgroup.Group
	socks      [2]int // the socket pair to the guest: ours, the child's
	build      [2]int // that to the builder
	program    *sysprog.Program
	rest       *compiler   // of what the builder goes on with
	hearing    *sync.Mutex // held while somebody waits for the interface of a blank: see Link
	iface      int         // descriptor of the interface that it has made, until Link, or -1
	child      sysprog.Child
	started    bool
	thread     *thread // that made the child
	holdsFDs   bool    // driver.reserved is held
	watcher    sysprog.Child
	watch      int // our end of the watcher's connection

	// Of a sandbox that outlives its maker, keep_linux.go.
	first   identity      // of its first process
	socket  string        // path of the socket on which its guest listens
	place   *place        // of the directory in which that was made
	noSetID bool          // see state
	asIs    string        // a directory of the host that is shown as it is, or ""
	saved   *cgroup.Saved // of a sandbox that is taken over: its cgroup
}

func (d *Driver) newCreation(id string, b driver.BlankPlan) *creation {
	return &creation{
		driver: d, id: id, blank: b, mark: time.Now(), hearing: new(sync.Mutex),
		socks: [2]int{-1, -1}, build: [2]int{-1, -1}, ids: idMap{lock: -1}, iface: -1, child: sysprog.Child{PidFD: -1}, watch: -1,
	}
}

// step begins a step, unless ctx has ended.
func (c *creation) step(ctx context.Context, name string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return c.at(name)
}

// at says which step begins.
func (c *creation) at(name string) error {
	doing := driver.Doing{Step: name, PID: c.child.PID}
	if c.group != nil {
		doing.Cgroup = c.group.Name()
	}
	c.progress.Enter(doing)
	if f := c.driver.opts.Fault; f != nil {
		return f(name)
	}
	return nil
}

func (c *creation) trace(name string) {
	if c.plan != nil && c.plan.Trace != nil {
		now := time.Now()
		c.plan.Trace(name, now.Sub(c.mark))
		c.mark = now
	}
}

func (c *creation) run(ctx context.Context) (*instance, error) {
	h, err := c.driver.host()
	if err != nil {
		return nil, err
	}
	if err := c.step(ctx, "host"); err != nil {
		return nil, err
	}
	if err := c.check(ctx); err != nil {
		return nil, err
	}
	if err := c.prepare(ctx, h, h.idKind(c.plan.MultiUser, mappable(c.plan)), false); err != nil {
		return nil, err
	}
	return c.bind(ctx)
}

// check checks the plan.
func (c *creation) check(ctx context.Context) error {
	plan := c.plan
	if err := c.driver.refuseMissing(ctx, plan.Enforce); err != nil {
		return err
	}
	if n := len(trees(plan)); n > maxTrees {
		return fault.Errorf(sandpit.ErrInvalid, "assembling the sandbox: %d layers, binds and mounts exceed the limit of %d", n, maxTrees)
	}
	if plan.MultiUser && plan.UID != 0 && len(plan.Mounts) > 0 {
		h, err := c.driver.host()
		if err != nil {
			return err
		}
		if h.idKind(true, mappable(plan)) == idsShared {
			// Of the ids inside, root's alone is this user's, and so an owner of the mounts' files.
			return sandpit.WithHint(fault.Errorf(sandpit.ErrUnsupported, "assembling the sandbox: mounts for an ordinary user need ids of the sandbox's own if it has root inside"),
				"omit the mounts, let the sandbox run as root, or run the server as root")
		}
	}
	return c.lookAtMounts()
}

// mappable reports whether the ids of all layers and binds can be mapped.
func mappable(plan *driver.Plan) bool {
	return !slices.ContainsFunc(plan.Root.Layers, func(l string) bool { return !canMap(l) }) &&
		!slices.ContainsFunc(plan.Root.Binds, func(b driver.Bind) bool { return !canMap(b.Source) })
}

// prepare does what does not depend on the plan, but on the kind of its ids. With announce it waits until all of it is done.
func (c *creation) prepare(ctx context.Context, h *host, kind idKind, announce bool) error {
	d := c.driver
	if err := checkDescriptors(); err != nil {
		return err
	}
	d.storing.Lock() // if the disk hangs, each of them would hang there
	guest, err := guestFile(d.opts.Dir, d.opts.Guest, d.opts.GuestDigest)
	d.storing.Unlock()
	if err != nil {
		return err
	}
	if d.opts.Guest == nil {
		if c.execInRoot, err = needsRoot(guest); err != nil {
			return err
		}
	}
	if c.execInRoot && c.plan != nil {
		if err := checkLibraries(&c.plan.Root); err != nil {
			return err
		}
	}
	if c.ids, err = h.chooseIDs(c.blank.UID, c.blank.GID, kind); err != nil {
		return err
	}
	c.trace("host")
	d.reserved.hold() // before there are more descriptors
	c.holdsFDs = true

	if err := c.step(ctx, "cgroup"); err != nil {
		return err
	}
	if err := c.makeGroup(); err != nil {
		return err
	}
	c.trace("cgroup")

	if err := c.step(ctx, "program"); err != nil {
		return err
	}
	// Close-on-exec, and above 2 for certain: 0, 1 and 2 are always open in a
	// program of this runtime.
	for _, pair := range []*[2]int{&c.socks, &c.build} {
		fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return os.NewSyscallError("socketpair", err)
		}
		*pair = fds
	}
	filter, key, err := baseFilter()
	if err != nil {
		return err
	}
	c.key = key
	b := build{
		ids: c.ids, quotas: findQuotas(c.ids.base != 0), limits: c.blank.Limits, announce: announce,
		socket: c.socks[1], answer: c.build[1], base: baseDir(), guest: guest, execInRoot: c.execInRoot, dumpable: c.dumpable,
		argv:     []string{GuestName, "bootstrap"},
		filter:   filter,
		landlock: landlockABI(),
		denying:  -1,
	}
	if c.plan == nil || c.plan.Link != nil {
		b.tun = make([]byte, 4)
	}
	var mapped [2]int
	if err := unix.Pipe2(mapped[:], unix.O_CLOEXEC); err != nil {
		return os.NewSyscallError("pipe2", err)
	}
	defer closeAll(mapped[:])
	b.mapped = mapped[0]
	into := -1
	if c.group != nil {
		if fd, ok := c.group.FD(); ok {
			into = fd
		}
		join, err := c.group.OpenJoin()
		if err != nil {
			return err
		}
		defer closeAll(join)
		b.join, b.denying = slices.Clone(join), c.group.LimitsDevices()
		b.cgroup2 = into >= 0 && len(b.join) == 0
	}
	needed := []*int{&b.socket, &b.answer, &b.mapped}
	for i := range b.join {
		needed = append(needed, &b.join[i])
	}
	below, back, err := d.reserved.lend(needed)
	if err != nil {
		return err
	}
	if c.program, c.rest, err = compile(b); err != nil {
		back()
		return err
	}
	c.trace("program")

	if err := c.step(ctx, "clone"); err != nil {
		back()
		return err
	}
	c.thread, err = c.driver.parent.run(func() (err error) {
		return b.quotas.counted(&c.driver.low, func() error {
			return asUser(c.ids.base, func() error {
				c.child, err = c.program.Fork(sysprog.ForkOptions{Flags: namespaces, PidFD: true, Cgroup: into, Report: b.socket, Below: below})
				return err
			})
		})
	})
	back()
	if err != nil {
		return explainClone(err)
	}
	c.started = true
	for _, fd := range []*int{&c.socks[1], &c.build[1]} {
		unix.Close(*fd)
		*fd = -1
	}
	if c.watch >= 0 {
		if err := sysprog.WatchPidFD(c.watch, c.child.PidFD); err != nil {
			return fmt.Errorf("telling the watcher: %w", err)
		}
	}
	c.trace("clone")

	if err := c.step(ctx, "ids"); err != nil {
		return err
	}
	raiseCore(c.child.PID)
	if err := c.ids.write(ctx, c.child.PID); err != nil {
		if h.euid != 0 && !c.dumpable {
			return sandpit.WithHint(fault.Errorf(sandpit.ErrUnsupported, "mapping ids: this program is not dumpable, so it can't access the /proc files of its children"),
				"keep the program dumpable (PR_SET_DUMPABLE of prctl(2)), start it without file capabilities, or use a server")
		}
		return err
	}
	// For both that wait for it.
	if _, err := unix.Write(mapped[1], []byte{0, 0}); err != nil {
		return c.explainDeath(os.NewSyscallError("write", err))
	}
	c.trace("ids")
	if !c.execInRoot { // it does not hear of the message before it is there
		if err := c.sendForker(); err != nil {
			return err
		}
	}
	if announce {
		_, err = c.await(ctx, preparedByte)
	}
	return err
}

// sendForker gives the guest the files by which the thread that makes processes joins
// their cgroups, if there are any.
func (c *creation) sendForker() error {
	if c.group == nil {
		return nil
	}
	fds, err := c.group.OpenWork()
	if err != nil {
		return err
	}
	defer closeAll(fds)
	for _, fd := range fds {
		if err := send(c.socks[0], forkerMessage, []int{fd}); err != nil {
			return c.explainDeath(err)
		}
	}
	return nil
}

// bind does everything that depends on the plan.
func (c *creation) bind(ctx context.Context) (*instance, error) {
	plan := c.plan
	if err := c.step(ctx, "trees"); err != nil {
		return nil, err
	}
	if err := c.findCovers(); err != nil {
		return nil, err
	}
	c.rest.covers = inOrder(c.covers)
	c.rest.bind(plan, c.mounts)
	if err := c.sendTrees(trees(plan)); err != nil {
		return nil, err
	}
	c.trace("trees")
	if !c.hearing.TryLock() {
		if err := c.at("link"); err != nil {
			return nil, err
		}
		c.hearing.Lock()
	}
	c.hearing.Unlock()
	if err := c.lockMounts(ctx); err != nil {
		return nil, err
	}

	if err := c.step(ctx, "answer"); err != nil {
		return nil, err
	}
	if err := c.awaitReady(ctx); err != nil {
		return nil, err
	}
	if err := c.rest.verify(); err != nil {
		return nil, err
	}
	if n := bytes.IndexByte(c.rest.asIs, 0xff); n >= 0 {
		c.asIs = plan.Root.Binds[n/4].Source
	}
	unix.Close(c.build[0])
	c.build[0] = -1
	c.trace("setup")
	if !plan.Ephemeral && !plan.KeepLater {
		if err := c.step(ctx, "keep"); err != nil {
			return nil, err
		}
		if err := c.keep(); err != nil {
			return nil, err
		}
		c.trace("keep")
	}
	if err := c.step(ctx, "instance"); err != nil {
		return nil, err
	}
	return newInstance(c, false), nil
}

// sendTrees lets the builder continue, and sends it the trees, and descriptors of what is
// covered in them if it can't open these itself.
func (c *creation) sendTrees(ts []tree) error {
	if !c.ids.mapped {
		return c.tell(nil)
	}
	sent, err := openTrees(ts)
	if err != nil {
		return err
	}
	defer closeAll(sent)
	// Before the ids are mapped, while root can enter what only its owner can.
	covered, err := openCovered(c.rest.covers, sent)
	if err != nil {
		return err
	}
	defer closeAll(covered)
	if err := mapTrees(sent, ts, c.mounts, c.ids, c.plan.UID, c.plan.GID, c.child.PID); err != nil {
		return err
	}
	if err := c.tell(sent); err != nil {
		return err
	}
	for batch := range slices.Chunk(covered, maxTrees) {
		if err := c.tell(batch); err != nil {
			return err
		}
	}
	return nil
}

// tell sends the builder a message with descriptors.
func (c *creation) tell(fds []int) error {
	if err := send(c.build[0], goMessage, fds); err != nil {
		return c.explainDeath(err)
	}
	return nil
}

// lookAtMounts checks the sources of the mounts.
func (c *creation) lookAtMounts() error {
	for _, m := range c.plan.Mounts {
		var st unix.Stat_t
		err := unix.Lstat(m.Source, &st)
		hm := hostMount{Mount: m, id: idOf(&st), uid: st.Uid, gid: st.Gid}
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return sandpit.WithHint(fault.Errorf(sandpit.ErrInvalid, "mounting %s: it does not exist on this machine", m.Source), "create it, or correct the path of the mount")
		case err != nil:
			return &fs.PathError{Op: "mounting", Path: m.Source, Err: err}
		case st.Mode&unix.S_IFMT == unix.S_IFREG:
			hm.file = true
		case st.Mode&unix.S_IFMT != unix.S_IFDIR:
			return fault.Errorf(sandpit.ErrInvalid, "mounting %s: only directories and regular files can be mounted", m.Source)
		}
		c.mounts = append(c.mounts, hm)
	}
	return nil
}
