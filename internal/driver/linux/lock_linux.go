package linux

import (
	"context"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit/internal/sysprog"
)

// A mount namespace that ends takes its mounts apart: a descriptor of a mount, which a
// sandbox has passed to another one, would then show what a cover was mounted on. The
// kernel leaves a mount where it is, whatever ends, if a user namespace has got it together
// with what it is mounted on from another one (MNT_LOCKED). So a mount that has covers is
// put together by the builder, copied in a user and mount namespace below those of
// the sandbox, which locks it, and the copy is attached.

// coveredTargets returns where the trees that have covers are attached.
func (c *compiler) coveredTargets() (targets []string) {
	last := -1
	for _, cover := range c.covers { // by tree
		if cover.tree == last {
			continue
		}
		last = cover.tree
		if i := last - len(c.plan.Root.Layers); i < len(c.plan.Root.Binds) {
			targets = append(targets, c.plan.Root.Binds[i].Target)
		} else {
			targets = append(targets, c.mounts[i-len(c.plan.Root.Binds)].Target)
		}
	}
	return targets
}

// lockCovers has the owner copy what has covers, and attaches the copies.
func (c *compiler) lockCovers() {
	targets := c.coveredTargets()
	if len(targets) == 0 {
		return
	}
	const namespaces = "max_user_namespaces" // of which the sandbox may have none
	c.writable("/proc/sys")
	c.writeSysctls(sysctl{namespaces, "1"})
	c.tellOwner("reporting that covers are mounted", coveredByte)
	c.message = make([]byte, unix.CmsgSpace(4*maxTrees))
	hdr := messageHeader(c.p, make([]byte, 1), c.message)
	c.p.Call("waiting for locked covers", unix.SYS_RECVMSG, sysprog.Int(c.answer), hdr, sysprog.Int(unix.MSG_CMSG_CLOEXEC)).Want(1)
	c.writeSysctls(sysctl{namespaces, "0"})
	c.readOnly("/proc/sys", false)
	for i, target := range targets {
		// EINVAL: it is in another one, which is locked.
		c.p.Call("detaching "+target, unix.SYS_UMOUNT2, c.p.Str(target), sysprog.Int(unix.MNT_DETACH)).Ignore(unix.EINVAL)
		c.attach(c.p.Mem32(c.message, unix.CmsgLen(0)+4*i), target)
	}
}

// lockCovers makes the copies and sends them to the builder.
func (c *creation) lockCovers(ctx context.Context) error {
	targets := c.rest.coveredTargets()
	if len(targets) == 0 {
		return nil
	}
	if _, err := c.await(ctx, coveredByte); err != nil {
		return err
	}
	ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("socketpair", err)
	}
	defer unix.Close(ends[0])
	l := &compiler{build: c.rest.build, p: new(sysprog.Program)}
	l.p.Call("entering the sandbox", unix.SYS_SETNS, sysprog.Int(c.child.PidFD), sysprog.Int(unix.CLONE_NEWUSER|unix.CLONE_NEWNS))
	l.identity()
	l.p.Call("locking covers", unix.SYS_UNSHARE, sysprog.Int(unix.CLONE_NEWUSER|unix.CLONE_NEWNS))
	control := controlMessage(len(targets))
	for i, target := range targets {
		fd := l.openTree("copying "+target, target, true)
		l.p.Store32(fd, control, unix.CmsgLen(0)+4*i)
		l.p.Free(fd)
	}
	l.p.Call("sending copies", unix.SYS_SENDMSG, sysprog.Int(ends[1]), messageHeader(l.p, []byte{goMessage}, control), sysprog.Int(unix.MSG_NOSIGNAL)).Want(1)
	locker, err := l.p.Fork(sysprog.ForkOptions{Cgroup: -1, Report: ends[1]})
	unix.Close(ends[1])
	if err != nil {
		return fmt.Errorf("locking covers: %w", err)
	}
	reap(locker.PID)
	defer locker.Release()
	buf, oob := make([]byte, sysprog.ReportSize), make([]byte, unix.CmsgSpace(4*maxTrees))
	n, oobn, err := hear(ctx, ends[0], buf, oob)
	if err != nil {
		return fmt.Errorf("locking covers: %w", err)
	}
	if failed, ok := l.p.DecodeReport(buf[:n]); ok {
		return c.explainStep(failed)
	}
	copies := receivedFDs(oob[:oobn])
	defer closeAll(copies)
	if len(copies) != len(targets) {
		return fmt.Errorf("locking covers: received %d of %d mounts", len(copies), len(targets))
	}
	return c.tell(copies)
}
