package linux

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/cgroup"
	"github.com/sandpit-dev/sandpit/internal/driver"
	"github.com/sandpit-dev/sandpit/internal/seccomp"
	"github.com/sandpit-dev/sandpit/internal/sysprog"
)

// Name is the driver's name.
const Name = "linux"

// namespaces are those that clone makes. The child makes its cgroup namespace
// once it is in its cgroup, and its network namespace while its owner is busy.
const namespaces = unix.CLONE_NEWUSER | unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS

// Options say where the driver finds things.
type Options struct {
	// Dir is where the embedded guest program is kept. Made when missing.
	Dir string

	// Guest is the guest program. Nil: this program is its own guest, which
	// its main function must provide for (see GuestName).
	Guest []byte

	// GuestDigest tells one build of Guest from another, in hexadecimal.
	// Empty: it is computed, which takes a few milliseconds.
	GuestDigest string

	// KeepDir is where the sockets of sandboxes are that outlive their maker
	// (driver.Plan.Ephemeral). Made when missing. Empty: such are refused.
	KeepDir string

	// Fault, when set, is called before each step of Create with its name; an
	// error makes that step fail. For tests of what is left behind.
	Fault func(step string) error
}

// Driver makes sandboxes on this machine. It implements driver.Driver.
type Driver struct {
	opts   Options
	host   func() (*host, error)
	layout func() (*cgroup.Layout, error)
}

var _ driver.Driver = (*Driver)(nil)

// New returns a driver. It does nothing yet.
func New(opts Options) *Driver {
	return &Driver{
		opts:   opts,
		host:   sync.OnceValues(findHost),
		layout: sync.OnceValues(cgroup.Detect),
	}
}

// Name returns "linux".
func (d *Driver) Name() string { return Name }

// Create makes a sandbox. See driver.Driver.
func (d *Driver) Create(ctx context.Context, plan driver.Plan) (driver.Instance, error) {
	c := creation{driver: d, plan: &plan, mark: time.Now(), socks: [2]int{-1, -1}, build: [2]int{-1, -1}, ids: idMap{lock: -1}, child: sysprog.Child{PidFD: -1}, watch: -1}
	inst, err := c.run(ctx)
	if err != nil {
		c.undo()
		return nil, err
	}
	return inst, nil
}

// creation is one sandbox being made. undo takes back all that it has done so far.
type creation struct {
	driver *Driver
	plan   *driver.Plan
	mark   time.Time

	mounts  []hostMount
	ids     idMap
	late    bool // the guest waits for its root: see build
	group   *cgroup.Group
	socks   [2]int // the socket pair to the guest: ours, the child's
	build   [2]int // that to the builder
	program *sysprog.Program
	child   sysprog.Child
	started bool
	watcher sysprog.Child
	watch   int // our end of the watcher's connection

	// Of a sandbox that outlives its maker, keep_linux.go.
	kept   identity      // of its first process
	socket string        // path of the socket on which its guest listens
	saved  *cgroup.Saved // of a sandbox that is taken over: its cgroup
}

// step ends the step before it and starts another.
func (c *creation) step(ctx context.Context, name string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if f := c.driver.opts.Fault; f != nil {
		return f(name)
	}
	return nil
}

func (c *creation) trace(name string) {
	if c.plan.Trace != nil {
		now := time.Now()
		c.plan.Trace(name, now.Sub(c.mark))
		c.mark = now
	}
}

func (c *creation) undo() {
	if c.started {
		_ = unix.Kill(c.child.PID, unix.SIGKILL) // not reaped yet
		reap(c.child.PID)
		c.child.Release()
	}
	if c.child.PidFD >= 0 {
		unix.Close(c.child.PidFD)
	}
	c.closeSockets()
	var err error
	if c.group != nil {
		err = c.group.Remove()
	}
	c.stopWatcher(err == nil)
	_ = c.forgetKept()
	c.ids.close()
}

// closeSockets closes what is open of the socket pairs.
func (c *creation) closeSockets() {
	for _, fd := range []*int{&c.socks[0], &c.socks[1], &c.build[0], &c.build[1]} {
		if *fd >= 0 {
			unix.Close(*fd)
			*fd = -1
		}
	}
}

// stopWatcher ends the watcher. When not all is removed, it is told that its
// owner has gone, and goes on to remove that.
func (c *creation) stopWatcher(removed bool) {
	if c.watch < 0 {
		return
	}
	if removed {
		_ = sysprog.EndWatch(c.watch) // or it is dead
	}
	unix.Close(c.watch)
	c.watch = -1
	end := func(w sysprog.Child) {
		reap(w.PID)
		w.Release()
	}
	if removed {
		end(c.watcher)
	} else {
		go end(c.watcher) // it may take a minute
	}
}

func (c *creation) run(ctx context.Context) (*instance, error) {
	d, plan := c.driver, c.plan
	h, err := d.host()
	if err != nil {
		return nil, err
	}
	if err := c.step(ctx, "host"); err != nil {
		return nil, err
	}
	if err := refuseUnknown(plan.Enforce); err != nil {
		return nil, err
	}
	if err := checkDescriptors(); err != nil {
		return nil, err
	}
	guest, err := guestFile(d.opts.Dir, d.opts.Guest, d.opts.GuestDigest)
	if err != nil {
		return nil, err
	}
	if d.opts.Guest == nil {
		if c.late, err = checkOwnGuest(guest, plan); err != nil {
			return nil, err
		}
	}
	if err := c.lookAtMounts(); err != nil {
		return nil, err
	}
	mappable := true
	for _, l := range plan.Root.Layers {
		mappable = mappable && canMap(l)
	}
	for _, b := range plan.Root.Binds {
		mappable = mappable && canMap(b.Source)
	}
	if c.ids, err = h.chooseIDs(plan.UID, plan.GID, plan.MultiUser, mappable); err != nil {
		return nil, err
	}
	c.trace("host")

	if err := c.step(ctx, "cgroup"); err != nil {
		return nil, err
	}
	if err := c.makeGroup(); err != nil {
		return nil, err
	}
	c.trace("cgroup")

	if err := c.step(ctx, "program"); err != nil {
		return nil, err
	}
	// Close-on-exec, and above 2 for certain: 0, 1 and 2 are always open in a
	// program of this runtime.
	for _, pair := range []*[2]int{&c.socks, &c.build} {
		fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return nil, os.NewSyscallError("socketpair", err)
		}
		*pair = fds
	}
	filter := seccomp.Encode(seccomp.Program(runtime.GOARCH))
	if len(filter) == 0 {
		return nil, fmt.Errorf("making a sandbox: there is no seccomp policy for %s: %w", runtime.GOARCH, sandpit.ErrUnsupported)
	}
	b := build{
		plan: plan, mounts: c.mounts, ids: c.ids, socket: c.socks[1], answer: c.build[1], base: baseDir(), guest: guest, late: c.late,
		argv:     []string{GuestName, "bootstrap"},
		filter:   filter,
		landlock: landlockABI(),
	}
	var mapped [2]int
	if err := unix.Pipe2(mapped[:], unix.O_CLOEXEC); err != nil {
		return nil, os.NewSyscallError("pipe2", err)
	}
	defer closeAll(mapped[:])
	b.mapped = mapped[0]
	into := -1
	if c.group != nil {
		if fd, ok := c.group.FD(); ok {
			into = fd
		}
		if b.join, err = c.group.OpenJoin(); err != nil {
			return nil, err
		}
		defer closeAll(b.join)
		b.cgroup2 = into >= 0 && len(b.join) == 0
	}
	if c.program, err = compile(b); err != nil {
		return nil, err
	}
	c.trace("program")

	if err := c.step(ctx, "clone"); err != nil {
		return nil, err
	}
	// A child that is to die with its owner dies with the thread that made it.
	// A goroutine of its own runs on a thread that the runtime keeps; the
	// caller's may be locked to one that ends.
	cloned := make(chan struct{})
	go func() {
		defer close(cloned)
		c.child, err = c.program.Fork(sysprog.ForkOptions{Flags: namespaces, PidFD: true, Cgroup: into, Report: c.socks[1]})
	}()
	<-cloned
	if err != nil {
		return nil, explainClone(err)
	}
	c.started = true
	for _, fd := range []*int{&c.socks[1], &c.build[1]} {
		unix.Close(*fd)
		*fd = -1
	}
	if c.watch >= 0 {
		if err := sysprog.WatchPidFD(c.watch, c.child.PidFD); err != nil {
			return nil, fmt.Errorf("telling the watcher: %w", err)
		}
	}
	c.trace("clone")

	if err := c.step(ctx, "ids"); err != nil {
		return nil, err
	}
	if err := c.ids.write(c.child.PID); err != nil {
		return nil, err
	}
	if _, err := unix.Write(mapped[1], []byte{0}); err != nil {
		return nil, c.explainDeath(os.NewSyscallError("write", err))
	}
	c.trace("ids")

	if err := c.step(ctx, "trees"); err != nil {
		return nil, err
	}
	var sent []int
	if c.ids.mapped {
		if sent, err = openTrees(trees(plan), c.mounts, c.ids, plan.UID, plan.GID, c.child.PID); err != nil {
			return nil, err
		}
	}
	err = send(c.build[0], goMessage, sent)
	closeAll(sent)
	if err != nil {
		return nil, c.explainDeath(err)
	}
	c.trace("trees")

	if err := c.step(ctx, "answer"); err != nil {
		return nil, err
	}
	if err := c.await(ctx); err != nil {
		return nil, err
	}
	unix.Close(c.build[0])
	c.build[0] = -1
	c.trace("setup")
	if !plan.Ephemeral {
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
	return newInstance(c), nil
}

// leastDescriptors is how many descriptors this program must be allowed: those
// of a sandbox being made, and the numbers from 64 on to which its first
// process moves some of them.
const leastDescriptors = 128

// checkDescriptors says clearly what would otherwise fail in some odd place.
func checkDescriptors() error {
	var lim unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &lim); err == nil && lim.Cur < leastDescriptors {
		return sandpit.WithHint(fmt.Errorf("making a sandbox: this program may open only %d files: %w", lim.Cur, sandpit.ErrExhausted),
			fmt.Sprintf("allow at least %d (ulimit -n)", leastDescriptors))
	}
	return nil
}

// refuseUnknown refuses what this driver does not know how to enforce. What
// it knows, and this machine can't do, is refused where it is done.
func refuseUnknown(enforce map[string]bool) error {
	for what, on := range enforce {
		switch what {
		case "memory", "cpus", "pids", "disk", "files", "nofile", "output", "life", "seccomp", "write-paths", "landlock":
		default:
			if on {
				return fmt.Errorf("limiting %s: this driver does not know how: %w", what, sandpit.ErrUnsupported)
			}
		}
	}
	return nil
}

// lookAtMounts looks at the sources of the mounts.
func (c *creation) lookAtMounts() error {
	for _, m := range c.plan.Mounts {
		var st unix.Stat_t
		err := unix.Lstat(m.Source, &st)
		hm := hostMount{Mount: m, uid: st.Uid, gid: st.Gid}
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return sandpit.WithHint(fmt.Errorf("mounting %s: it does not exist on this machine: %w", m.Source, sandpit.ErrInvalid), "make it, or mend the path of the mount")
		case err != nil:
			return &fs.PathError{Op: "mounting", Path: m.Source, Err: err}
		case st.Mode&unix.S_IFMT == unix.S_IFREG:
			hm.file = true
		case st.Mode&unix.S_IFMT != unix.S_IFDIR:
			return fmt.Errorf("mounting %s: only directories and regular files can be mounted: %w", m.Source, sandpit.ErrInvalid)
		}
		c.mounts = append(c.mounts, hm)
	}
	return nil
}

// makeGroup makes the cgroup with the limits that must be enforced.
func (c *creation) makeGroup() error {
	layout, err := c.driver.layout()
	if err != nil {
		return err
	}
	plan, lim := c.plan, cgroup.Limits{}
	if plan.Enforce["memory"] {
		lim.Memory = plan.Limits.Memory
	}
	if plan.Enforce["cpus"] {
		lim.CPUs = plan.Limits.CPUs
	}
	if plan.Enforce["pids"] {
		lim.Pids = plan.Limits.Pids
	}
	if lim == (cgroup.Limits{}) {
		return c.startWatcher(nil, "")
	}
	lim.Devices = true // where there is such a controller, a second wall
	c.group, err = layout.CreateAnnounced(plan.ID, lim, c.startWatcher)
	return err
}

// startWatcher makes the process that removes the cgroup, and the child if it
// hangs, when this process is killed. It is there before anything is made that
// could be left.
func (c *creation) startWatcher(dirs []string, killFile string) error {
	if !c.plan.Ephemeral {
		return nil
	}
	ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("socketpair", err)
	}
	w, err := sysprog.Watch(sysprog.Cleanup{Dirs: dirs, KillFile: killFile}, ends[0])
	unix.Close(ends[0])
	if err != nil {
		unix.Close(ends[1])
		return fmt.Errorf("starting the watcher: %w", err)
	}
	c.watcher, c.watch = w, ends[1]
	return nil
}

// await waits until the builder has made the sandbox, and passes the Landlock
// ruleset on that it may have made.
func (c *creation) await(ctx context.Context) error {
	shut := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		_ = unix.Shutdown(c.build[0], unix.SHUT_RDWR)
		close(shut)
	})
	defer func() {
		if !stop() {
			<-shut // before the descriptor is closed, and its number another's
		}
	}()
	buf, oob := make([]byte, sysprog.ReportSize), make([]byte, unix.CmsgSpace(4))
	for {
		n, oobn, _, _, err := unix.Recvmsg(c.build[0], buf, oob, unix.MSG_CMSG_CLOEXEC)
		fd := receivedFD(oob[:oobn])
		if fd >= 0 {
			defer unix.Close(fd)
		}
		if err == nil && n == 1 && buf[0] == readyByte && c.late {
			if err := send(c.socks[0], goMessage, nil); err != nil {
				return c.explainDeath(err)
			}
		}
		switch {
		case err == unix.EINTR:
			continue
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil && err != unix.ECONNRESET:
			return c.explainDeath(os.NewSyscallError("recvmsg", err))
		case n == 1 && buf[0] == readyByte && fd >= 0:
			if err := send(c.socks[0], landlockMessage, []int{fd}); err != nil {
				return c.explainDeath(err)
			}
			return nil
		case n == 1 && buf[0] == readyByte:
			return nil
		}
		e, ok := c.program.DecodeReport(buf[:max(n, 0)])
		if !ok {
			// The first process has died, and the builder with it.
			n, _, _ := unix.Recvfrom(c.socks[0], buf, unix.MSG_DONTWAIT)
			e, ok = c.program.DecodeReport(buf[:max(n, 0)])
		}
		if ok {
			return c.explainStep(e)
		}
		return c.explainDeath(errors.New("it ended without a word"))
	}
}

// explainDeath says why a child that is being set up has died. err is how that
// was noticed; the child may have said more.
func (c *creation) explainDeath(err error) error {
	buf := make([]byte, sysprog.ReportSize)
	for _, sock := range []int{c.build[0], c.socks[0]} {
		if n, _, rerr := unix.Recvfrom(sock, buf, unix.MSG_DONTWAIT); rerr == nil {
			if e, ok := c.program.DecodeReport(buf[:n]); ok && e.Errno != unix.ENOMEM {
				return c.explainStep(e)
			}
		}
	}
	if c.group != nil {
		if st, serr := c.group.Stats(); serr == nil && st.OOMKills > 0 {
			return sandpit.WithHint(fmt.Errorf("setting up the sandbox: the memory limit of %d bytes is too small: %w", c.plan.Limits.Memory, sandpit.ErrInvalid), "raise the memory limit")
		}
	}
	return fmt.Errorf("setting up the sandbox: %w", err)
}

// baseDirs are directories that exist on every Linux machine. The sandbox is
// built on one of them, in a mount namespace of its own.
var baseDirs = []string{"/tmp", "/run", "/mnt", "/proc"}

func baseDir() string {
	i := slices.IndexFunc(baseDirs, func(d string) bool {
		var st unix.Stat_t
		return unix.Stat(d, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFDIR
	})
	return baseDirs[max(i, 0)]
}
