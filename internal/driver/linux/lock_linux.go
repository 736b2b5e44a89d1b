package linux

import (
	"context"
	"fmt"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit/internal/feature"
	"github.com/sandpit-dev/sandpit/internal/sysprog"
)

// A mount namespace that ends takes its mounts apart: a descriptor of a mount, which a
// sandbox has passed to another one, would then show what a cover, or a read-only mount
// inside a writable one, was mounted on. The kernel leaves a mount where it is, whatever
// ends, if a user namespace has got it together with what it is mounted on from another
// one (MNT_LOCKED). So a mount in which others have to stay is put together by the
// builder, copied in a user and mount namespace below those of the sandbox, which locks
// them, and the copy is attached.

// lockedTargets returns where the outermost mounts are in which others have to stay.
func (c *compiler) lockedTargets() []string {
	var targets []string
	for _, cover := range c.covers {
		if i := cover.tree - len(c.plan.Root.Layers); i < len(c.plan.Root.Binds) {
			targets = append(targets, path.Clean(c.plan.Root.Binds[i].Target))
		} else {
			targets = append(targets, path.Clean(c.mounts[i-len(c.plan.Root.Binds)].Target))
		}
	}
	for _, m := range c.mounts {
		if outer := feature.ProtectedIn(c.plan.Mounts, m.Mount); outer != "" {
			targets = append(targets, outer)
		}
	}
	slices.Sort(targets)
	all := slices.Compact(targets)
	return slices.DeleteFunc(slices.Clone(all), func(target string) bool {
		return slices.ContainsFunc(all, func(outer string) bool { return strings.HasPrefix(target, outer+"/") })
	})
}

// lockMounts has the owner copy mounts in which others have to stay, and attaches the copies.
func (c *compiler) lockMounts() {
	targets := c.lockedTargets()
	if len(targets) == 0 {
		return
	}
	const namespaces = "max_user_namespaces" // of which the sandbox may have none
	c.writable("/proc/sys")
	c.writeSysctls(sysctl{namespaces, strconv.Itoa(len(targets))})
	c.tellOwner("reporting that all is mounted", mountedByte)
	c.message = make([]byte, unix.CmsgSpace(4*maxTrees))
	hdr := messageHeader(c.p, make([]byte, 1), c.message)
	c.p.Call("waiting for locked mounts", unix.SYS_RECVMSG, sysprog.Int(c.answer), hdr, sysprog.Int(unix.MSG_CMSG_CLOEXEC)).Want(1)
	c.writeSysctls(sysctl{namespaces, "0"})
	c.readOnly("/proc/sys", false)
	for i, target := range targets {
		c.p.Call("detaching "+target, unix.SYS_UMOUNT2, c.p.Str(target), sysprog.Int(unix.MNT_DETACH))
		c.attach(c.p.Mem32(c.message, unix.CmsgLen(0)+4*i), target)
	}
}

// lockMounts makes the copies and sends them to the builder.
func (c *creation) lockMounts(ctx context.Context) error {
	targets := c.rest.lockedTargets()
	if len(targets) == 0 {
		return nil
	}
	if _, err := c.await(ctx, mountedByte); err != nil {
		return err
	}
	var copies []int
	defer func() { closeAll(copies) }()
	for _, target := range targets {
		fd, err := c.lockMount(ctx, target)
		if err != nil {
			return err
		}
		copies = append(copies, fd)
	}
	return c.tell(copies)
}

// lockMount makes a copy. The way to the target is gone before the user namespace, which
// has no ids: in it, the program may not look into directories that are closed.
func (c *creation) lockMount(ctx context.Context, target string) (int, error) {
	ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, os.NewSyscallError("socketpair", err)
	}
	defer unix.Close(ends[0])
	l := &compiler{build: c.rest.build, p: new(sysprog.Program)}
	l.p.Call("entering the sandbox", unix.SYS_SETNS, sysprog.Int(c.child.PidFD), sysprog.Int(unix.CLONE_NEWUSER|unix.CLONE_NEWNS))
	l.identity()
	l.p.Call("going to "+target, unix.SYS_CHDIR, l.p.Str(target))
	l.p.Call("locking mounts", unix.SYS_UNSHARE, sysprog.Int(unix.CLONE_NEWUSER|unix.CLONE_NEWNS))
	control := controlMessage(1)
	fd := l.p.Call("copying "+target, unix.SYS_OPEN_TREE, sysprog.Int(unix.AT_FDCWD), l.p.Str(""),
		sysprog.Int(unix.AT_EMPTY_PATH|unix.AT_RECURSIVE|unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)).Result()
	l.p.Store32(sysprog.From(fd), control, unix.CmsgLen(0))
	l.p.Free(fd)
	l.p.Call("sending a copy", unix.SYS_SENDMSG, sysprog.Int(ends[1]), messageHeader(l.p, []byte{goMessage}, control), sysprog.Int(unix.MSG_NOSIGNAL)).Want(1)
	locker, err := l.p.Fork(sysprog.ForkOptions{Cgroup: -1, Report: ends[1]})
	unix.Close(ends[1])
	if err != nil {
		return -1, fmt.Errorf("locking mounts: %w", err)
	}
	reap(locker.PID)
	defer locker.Release()
	buf, oob := make([]byte, sysprog.ReportSize), make([]byte, unix.CmsgSpace(4*maxTrees))
	n, oobn, err := hear(ctx, ends[0], buf, oob)
	if err != nil {
		return -1, fmt.Errorf("locking mounts: %w", err)
	}
	if failed, ok := l.p.DecodeReport(buf[:n]); ok {
		return -1, c.explainStep(failed)
	}
	copies := receivedFDs(oob[:oobn])
	if len(copies) != 1 {
		closeAll(copies)
		return -1, fmt.Errorf("locking mounts: received %d mounts, not one", len(copies))
	}
	return copies[0], nil
}
