package linux

import (
	"context"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/cgroup"
	"github.com/sandpit-dev/sandpit/internal/fault"
	"github.com/sandpit-dev/sandpit/internal/feature"
	"github.com/sandpit-dev/sandpit/internal/sysprog"
)

// undo undoes everything.
func (c *creation) undo() error {
	if c.started {
		_ = c.at("kill")
		leave := c.driver.ending.enter()
		_ = unix.Kill(c.child.PID, unix.SIGKILL) // not reaped yet
		reap(c.child.PID)
		leave()
		c.child.Release()
		c.thread.release()
	}
	if c.child.PidFD >= 0 {
		unix.Close(c.child.PidFD)
	}
	c.closeSockets()
	var err error
	if c.group != nil {
		_ = c.at("remove-cgroup")
		err = c.group.Remove()
	}
	_ = c.at("forget")
	c.stopWatcher(err == nil)
	err = errors.Join(err, c.forgetPersistent())
	c.ids.close()
	if c.holdsFDs {
		c.driver.reserved.drop()
	}
	return err
}

// closeSockets closes the open ends of the socket pairs, and the interface if nobody has asked for it.
func (c *creation) closeSockets() {
	for _, fd := range []*int{&c.socks[0], &c.socks[1], &c.build[0], &c.build[1], &c.iface} {
		if *fd >= 0 {
			unix.Close(*fd)
			*fd = -1
		}
	}
}

// stopWatcher ends the watcher. If something could not be removed, it makes the watcher
// remove that, as if its owner had gone.
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

// makeGroup makes the cgroup with the limits that must be enforced.
func (c *creation) makeGroup() error {
	layout, err := c.driver.layout()
	if err != nil {
		return err
	}
	lim := groupLimits(c.blank.Limits, c.blank.Enforce)
	if lim == (cgroup.Limits{}) {
		return c.startWatcher(nil)
	}
	lim.Devices = true // where there is such a controller, a second wall
	c.group, err = layout.CreateAnnounced(c.id, lim, c.startWatcher)
	return err
}

// groupLimits returns the limits that the cgroup enforces.
func groupLimits(l sandpit.Limits, enforce feature.Set) cgroup.Limits {
	var lim cgroup.Limits
	if enforce[feature.Memory] {
		lim.Memory = l.Memory
	}
	if enforce[feature.CPUs] {
		lim.CPUs = l.CPUs
	}
	if enforce[feature.Pids] {
		lim.Pids = l.Pids
	}
	return lim
}

// startWatcher makes the process that removes the cgroup, and the child if it
// hangs, when this process is killed. It is there before anything is made that
// could be left. group is nil where there is no cgroup.
func (c *creation) startWatcher(group *cgroup.Group) error {
	if !c.blank.Ephemeral {
		return nil
	}
	var cleanup sysprog.Cleanup
	if group != nil {
		cleanup = sysprog.Cleanup{KillFile: group.KillFile(), Dirs: group.Paths(), Shared: group.Shared()}
	}
	ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("socketpair", err)
	}
	w, err := sysprog.Watch(cleanup, ends[0])
	unix.Close(ends[0])
	if err != nil {
		unix.Close(ends[1])
		return fmt.Errorf("starting the watcher: %w", err)
	}
	c.watcher, c.watch = w, ends[1]
	return nil
}

// awaitReady waits until the builder has made the sandbox and has ended, keeps
// the interface, and passes the Landlock rulesets on that it may have made.
func (c *creation) awaitReady(ctx context.Context) error {
	rulesets, err := c.await(ctx, readyByte)
	if err != nil {
		return err
	}
	if c.rest.linked && len(rulesets) > 0 {
		c.iface, rulesets = rulesets[0], rulesets[1:]
	}
	defer closeAll(rulesets)
	if err := c.awaitBuilderEnd(ctx); err != nil {
		return err
	}
	if c.execInRoot {
		if err = send(c.socks[0], goMessage, nil); err == nil {
			err = c.sendForker()
		}
	}
	for _, ruleset := range rulesets {
		if err == nil {
			err = send(c.socks[0], landlockMessage, []int{ruleset})
		}
	}
	if err != nil {
		return c.explainDeath(err)
	}
	if len(rulesets) > 0 || c.reachesHost() {
		if err := c.confine(ctx); err != nil {
			return err
		}
	}
	c.noSetID = true
	return nil
}

// await waits for an answer of the builder. It returns the descriptors that came
// with it.
func (c *creation) await(ctx context.Context, want byte) ([]int, error) {
	buf, oob := make([]byte, sysprog.ReportSize), make([]byte, unix.CmsgSpace(4*maxAnswered))
	n, oobn, err := hear(ctx, c.build[0], buf, oob)
	fds := receivedFDs(oob[:oobn])
	if err == nil && n == 1 && buf[0] == want {
		return fds, nil
	}
	closeAll(fds)
	return nil, c.explainAnswer(ctx, buf[:n], err)
}

// awaitBuilderEnd waits until the builder, which has answered that all is made,
// has ended. It has rights in the sandbox that nobody else has, no filter of
// system calls and the memory of this program: nothing may run beside it. The
// kernel closes its descriptors, of which nobody has another copy, when it has
// let go of the memory.
func (c *creation) awaitBuilderEnd(ctx context.Context) error {
	buf := make([]byte, sysprog.ReportSize)
	n, _, err := hear(ctx, c.build[0], buf, nil)
	if err == nil && n == 0 {
		return nil
	}
	return c.explainAnswer(ctx, buf[:n], err)
}

// hear receives an answer of the builder or the guest on a socket: 0 bytes when it has
// ended, or ctx has.
func hear(ctx context.Context, sock int, buf, oob []byte) (n, oobn int, err error) {
	shut := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		_ = unix.Shutdown(sock, unix.SHUT_RDWR)
		close(shut)
	})
	defer func() {
		if !stop() {
			<-shut // before the descriptor is closed, and its number another's
		}
	}()
	err = unix.EINTR
	for err == unix.EINTR {
		n, oobn, _, _, err = unix.Recvmsg(sock, buf, oob, unix.MSG_CMSG_CLOEXEC)
	}
	if err == nil {
		err = ctx.Err()
	}
	return max(n, 0), max(oobn, 0), err
}

// explainAnswer explains an unexpected answer.
func (c *creation) explainAnswer(ctx context.Context, b []byte, err error) error {
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case err != nil && err != unix.ECONNRESET:
		return c.explainDeath(os.NewSyscallError("recvmsg", err))
	}
	e, ok := c.program.DecodeReport(b)
	if !ok {
		// The first process has died, and the builder with it.
		buf := make([]byte, sysprog.ReportSize)
		e, ok = c.program.DecodeReport(buf[:left(c.socks[0], buf)])
	}
	if ok {
		return c.explainStep(e)
	}
	return c.explainDeath(errors.New("it exited without an error message"))
}

// memory returns the memory limit in force.
func (c *creation) memory() int64 {
	if c.plan != nil {
		return c.plan.Limits.Memory
	}
	return c.blank.Limits.Memory
}

// explainDeath explains why a child has died during its set-up. err is how that was
// noticed; the child may have reported more.
func (c *creation) explainDeath(err error) error {
	buf := make([]byte, sysprog.ReportSize)
	for _, sock := range []int{c.build[0], c.socks[0]} {
		if e, ok := c.program.DecodeReport(buf[:left(sock, buf)]); ok && e.Errno != unix.ENOMEM {
			return c.explainStep(e)
		}
	}
	if c.group != nil {
		if st, serr := c.group.Stats(); serr == nil && st.OOMKills > 0 {
			return sandpit.WithHint(fault.Errorf(sandpit.ErrInvalid, "setting up the sandbox: the memory limit of %d bytes is too small", c.memory()), "raise the memory limit")
		}
	}
	return fmt.Errorf("setting up the sandbox: %w", err)
}
