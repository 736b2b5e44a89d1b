package linux

import (
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/driver"
	"github.com/sandpit-dev/sandpit/internal/feature"
	"github.com/sandpit-dev/sandpit/internal/sysprog"
)

// prepare is what the builder does before the plan is known.
func (c *compiler) prepare() {
	// While the owner writes id maps, it does what does not need them.
	c.loopback()
	// What the host mounts later must not appear in here, as it would where its
	// mounts are shared, which is so under systemd.
	c.p.Call("making mounts private", unix.SYS_MOUNT, sysprog.Int(0), c.p.Str("/"), sysprog.Int(0), sysprog.Int(unix.MS_REC|unix.MS_PRIVATE), sysprog.Int(0))
	c.devices = make([]sysprog.Reg, len(deviceNames))
	for i, name := range deviceNames {
		c.devices[i] = c.openTree("opening /dev/"+name, "/dev/"+name, false)
		c.setattr("setting the mode of /dev/"+name, c.devices[i], false, unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NOEXEC|unix.MOUNT_ATTR_RDONLY)
	}
	c.sysTrees = make([]sysprog.Arg, len(sysPaths))
	for i, name := range sysPaths {
		c.sysTrees[i] = sysprog.From(c.p.Call("opening "+name, unix.SYS_OPEN_TREE, sysprog.Int(unix.AT_FDCWD), c.p.Str(name), sysprog.Int(unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE)).Ignore(unix.ENOENT).Result())
	}
	c.awaitMaps()
	c.identity()
	if c.ids.mapped {
		// Nothing of the host is opened by its path any more: it can go. Who
		// waits here for long keeps no file system of the host busy.
		c.furnish()
		c.changeRoot()
	}
	if c.announce {
		c.tellOwner("reporting that the blank is ready", preparedByte)
	}
	c.awaitOwner()
}

// awaitOwner waits for the message that comes when it is known what is to be done next: to build,
// with the mount trees that only the owner could make, or to make the interface before that.
func (c *compiler) awaitOwner() {
	c.message = make([]byte, unix.CmsgSpace(4*maxTrees))
	hdr := messageHeader(c.p, make([]byte, 1), c.message)
	c.p.Call("waiting for the owner", unix.SYS_RECVMSG, sysprog.Int(c.answer), hdr, sysprog.Int(unix.MSG_CMSG_CLOEXEC)).Want(1)
}

// linkAhead is what the builder of a blank does if it is to make the interface before the plan is known.
func (c *compiler) linkAhead(l *driver.Link) {
	c.answerOwner(linkedByte, []sysprog.Arg{c.makeLink(l)})
	c.awaitOwner()
	c.p, c.ahead = c.p.Continue(), true
}

// bind is what the builder does once the plan is known.
func (c *compiler) bind(plan *driver.Plan, mounts []hostMount) {
	c.plan, c.mounts, c.pinned = plan, mounts, map[string]bool{}
	c.p.Grow(restSteps)
	host := []byte(plan.Hostname)
	if len(host) > 0 {
		c.p.Call("setting the hostname", unix.SYS_SETHOSTNAME, c.p.Bytes(host), sysprog.Int(len(host)))
	}
	ts := trees(plan)
	fds := make([]sysprog.Arg, len(ts))
	for i, t := range ts {
		fds[i] = c.hostTree(t, i)
	}
	if c.ids.mapped {
		c.resizeScratch()
	} else {
		// Only now: a layer may lie below where the scratch file system is mounted.
		c.limits = plan.Limits
		c.furnish()
	}
	c.makeCover()
	shown := slices.Clone(fds) // of the trees as they are attached
	for i, m := range c.mounts {
		if m.NoSockets && !m.file {
			n := len(ts) - len(c.mounts) + i
			shown[n] = c.withoutSockets(m.Source, strconv.Itoa(i), fds[n])
		}
	}
	layers := len(plan.Root.Layers)
	c.rootfs(fds[:layers], shown[layers:layers+len(plan.Root.Binds)])
	for _, d := range plan.Root.Dirs {
		c.mkdirAll(d)
	}
	for i, bind := range plan.Root.Binds {
		n := layers + i
		c.attach(shown[n], bind.Target)
		c.cover(n, fds[n], shown[n])
	}
	tmpfs := plan.Tmpfs
	for i, m := range c.mounts {
		// No mount may hide the tmpfs inside it, nor a tmpfs the mounts inside it.
		for len(tmpfs) > 0 && path.Clean(tmpfs[0].Target) < path.Clean(m.Target) {
			c.tmpfs(tmpfs[0])
			tmpfs = tmpfs[1:]
		}
		n := len(plan.Root.Layers) + len(plan.Root.Binds) + i
		c.target(m)
		c.pin(m)
		c.check(m.Source, fds[n], m.id)
		c.attach(shown[n], m.Target)
		c.cover(n, fds[n], shown[n])
	}
	for _, t := range tmpfs {
		c.tmpfs(t)
	}
	c.lockMounts()
	var answer []sysprog.Arg
	if c.linked = plan.Link != nil && c.hasTUN() && !c.ahead; c.linked {
		answer = append(answer, c.makeLink(plan.Link))
	}
	for _, ruleset := range c.writePaths() {
		answer = append(answer, sysprog.From(ruleset))
	}
	c.answerOwner(readyByte, answer)
}

// tmpfs mounts a tmpfs of the plan.
func (c *compiler) tmpfs(t sandpit.Tmpfs) {
	c.mkdirAll(t.Target)
	c.mount("tmpfs", t.Target, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "size="+strconv.FormatInt(t.Size, 10)+",mode=1777")
}

// furnish makes, in the scratch file system, what is the same in every sandbox,
// and from there is moved to its places.
func (c *compiler) furnish() {
	c.scratch()
	c.dev(c.devices)
	c.proc()
	c.sys(c.sysTrees)
}

// scratch mounts the one tmpfs in which lies all that the sandbox may write,
// whose size and inodes are the limits, and enters it.
func (c *compiler) scratch() {
	opts := scratchLimits(c.limits) + ",mode=0755"
	c.mount("tmpfs", c.base, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, opts)
	c.p.Call("entering the scratch file system", unix.SYS_CHDIR, c.p.Str(c.base))
	for _, name := range [...]string{"root", "upper", "work", "dev", "proc", "sys"} {
		c.mkdir(name, 0o755)
	}
	c.mkdirForAll("shm")
}

// mkdirForAll makes a directory in which everybody may make files.
func (c *compiler) mkdirForAll(name string) {
	c.mkdir(name, 0o1777)
	c.p.Call("setting the mode of "+name, unix.SYS_FCHMODAT, sysprog.Int(unix.AT_FDCWD), c.p.Str(name), sysprog.Int(0o1777))
}

// upperTmp is /tmp of a root that can be written, of which it is a part. It is made before the overlay, so that its owner and
// mode are the same whatever the image has.
const upperTmp = "upper/tmp"

// tmpApart reports whether /tmp is a mount of its own, because the root can't be written.
func (c *compiler) tmpApart() bool { return c.plan.ReadOnly || c.plan.Write != nil }

// scratchLimits are the options of a tmpfs that hold the limits, tmpfs(5).
func scratchLimits(l sandpit.Limits) string {
	return fmt.Sprintf("size=%d,nr_inodes=%d", l.Disk, l.Files)
}

// resizeScratch gives the scratch file system, which we are in, the limits of
// the plan, if it was made with others.
func (c *compiler) resizeScratch() {
	if opts := scratchLimits(c.plan.Limits); opts != scratchLimits(c.limits) {
		c.p.Call("mounting tmpfs with other limits", unix.SYS_MOUNT, sysprog.Int(0), c.p.Str("."), sysprog.Int(0), sysprog.Int(unix.MS_REMOUNT|unix.MS_NOSUID|unix.MS_NODEV), c.p.Str(opts))
	}
}

// rootfs builds the root file system and makes it the root. It puts in place of
// the mount trees of the plan's binds those that show them.
func (c *compiler) rootfs(layers, binds []sysprog.Arg) {
	names := make([]string, len(layers))
	for i, fd := range layers {
		names[i] = "l" + strconv.Itoa(i)
		c.mkdir(names[i], 0o755)
		c.move(fd, names[i])
	}
	if c.tmpApart() {
		c.mkdirForAll("tmp")
	} else {
		c.mkdirForAll(upperTmp)
	}
	c.files()
	// volatile: nothing here outlives the sandbox, so nothing is ever synced.
	lower := "lowerdir=" + strings.Join(names, ":") + ",upperdir=upper,workdir=work,volatile,userxattr"
	c.mount("overlay", "root", "overlay", unix.MS_NOSUID|unix.MS_NODEV, lower)
	c.showBinds(binds)

	// What was made ahead goes to its places. Each must be a real directory:
	// an image in which one is a link is refused.
	for _, d := range [...]string{"/proc", "/dev", "/sys"} {
		c.furnished(d, sysprog.Int(unix.AT_FDCWD), d[1:])
	}
	if c.tmpApart() {
		c.furnished("/tmp", sysprog.From(c.openTree("opening /tmp", "tmp", false)), "")
	}

	c.p.Call("entering the root", unix.SYS_CHDIR, c.p.Str("root"))
	if c.ids.mapped {
		c.coverRoot()
	} else {
		c.changeRoot()
	}
}

// furnished moves a mount to its place in the root.
func (c *compiler) furnished(at string, from sysprog.Arg, name string) {
	c.p.Call("creating "+at, unix.SYS_MKDIRAT, sysprog.Int(unix.AT_FDCWD), c.p.Str("root"+at), sysprog.Int(0o755)).Ignore(unix.EEXIST)
	fd := c.p.Call("looking at "+at+" of the image, which must be a directory and not a link", unix.SYS_OPENAT, sysprog.Int(unix.AT_FDCWD), c.p.Str("root"+at), sysprog.Int(unix.O_PATH|unix.O_NOFOLLOW|unix.O_DIRECTORY|unix.O_CLOEXEC)).Result()
	c.p.Call("attaching "+at, unix.SYS_MOVE_MOUNT, from, c.p.Str(name), sysprog.From(fd), c.p.Str(""), sysprog.Int(unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH))
	c.p.Call("closing "+at, unix.SYS_CLOSE, sysprog.From(fd))
	c.p.Free(fd)
}

// showBinds makes the mounts that show the plan's binds, and puts descriptors of
// them in place of the mount trees that it is given. Each is an overlay of its
// own, for two reasons. The inodes of an overlay are private to it: file locks,
// leases and inotify watches of the sandbox neither see nor hinder what others do
// with the same files. And an overlay reads with the rights of the process that
// mounted it. Here that process owns nothing (idMap) and is in no group: whoever the
// sandbox's user is, it reads only what everybody may read.
//
// Where only one id exists, that id reads what its owner on the host may read.
func (c *compiler) showBinds(trees []sysprog.Arg) {
	for i, fd := range trees {
		c.mkdir(bindName(i), 0o755)
		c.move(fd, bindName(i))
	}
	c.filesystemIDs(0, 0, c.ids.otherUID, c.ids.otherGID)
	c.asIs = make([]byte, 4*len(trees))
	over := map[string]bool{}
	for _, f := range c.plan.Root.Files {
		if dir, _, ok := c.overBind(f); ok {
			over[dir] = true
		}
	}
	for i, b := range c.plan.Root.Binds {
		lower := "l" + strconv.Itoa(len(c.plan.Root.Layers)-1) + path.Clean("/"+b.Target) + ":" + bindName(i)
		if dir := "o" + strconv.Itoa(i); over[dir] {
			lower = dir + ":" + lower
		}
		step := c.overlay("showing "+b.Source, bindName(i), lower)
		if !c.ids.mapped {
			// A user namespace may not look below a mount of the host's, and an
			// overlay of an overlay is the deepest that there is: what the kernel
			// can't show in this way is shown as it is. That is a gap, which
			// Examine and Lacks list.
			failed := step.Ignore(unix.EINVAL).Result()
			c.p.Store32(sysprog.From(failed), c.asIs, 4*i)
			c.p.Free(failed)
		}
	}
	c.filesystemIDs(c.ids.otherUID, c.ids.otherGID, 0, 0)
	c.stayDumpable()
	for i := range trees {
		trees[i] = sysprog.From(c.openTree("opening "+c.plan.Root.Binds[i].Target, bindName(i), true))
	}
}

// bindName is the name of the i-th bind in the scratch file system.
func bindName(i int) string { return "b" + strconv.Itoa(i) }

// filesystemIDs changes the ids with which files are used, from those of a user to
// those of another. An id other than 0 takes the capabilities that have to do with
// files, too, until it is 0 again.
func (c *compiler) filesystemIDs(fromUID, fromGID, uid, gid uint32) {
	if !c.ids.multi {
		return // only one id exists inside
	}
	// These calls return the id of before, also when they have changed nothing:
	// the way back fails where the way there did.
	c.p.Call("setting the file system's group", unix.SYS_SETFSGID, sysprog.Int(gid)).Want(uintptr(fromGID))
	c.p.Call("setting the file system's user", unix.SYS_SETFSUID, sysprog.Int(uid)).Want(uintptr(fromUID))
}

// overlay mounts a read-only overlay of lower directories, of which it needs two,
// on a directory of the scratch file system, which may be one of them. Its inodes
// are its own, other than those of what it shows.
//
// What it shows is the host's, and shown as it is: marks by which an overlay hides
// files are not read. Those of root, trusted.*, can't be read in a user namespace,
// and those of others, user.*, are read with the option userxattr only. The root
// file system has that option, as it makes such marks.
func (c *compiler) overlay(what, on, lower string) sysprog.Step {
	return c.p.Call(what, unix.SYS_MOUNT, c.p.Str("overlay"), c.p.Str(on), c.p.Str("overlay"), sysprog.Int(unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV), c.p.Str("lowerdir="+lower))
}

// withoutSockets returns a tree that shows another through an overlay, in which
// sockets and named pipes are other inodes than on the host: nobody listens at
// them. The second lower directory is empty.
func (c *compiler) withoutSockets(source, name string, tree sysprog.Arg) sysprog.Arg {
	name = "s" + name
	c.mkdir(name, 0o755)
	c.p.Call("creating an empty directory", unix.SYS_MKDIRAT, sysprog.Int(unix.AT_FDCWD), c.p.Str("empty"), sysprog.Int(0o755)).Ignore(unix.EEXIST)
	c.move(tree, name)
	c.overlay("mounting "+source+withoutItsSockets, name, name+":empty")
	fd := c.openTree("opening "+source+withoutItsSockets, name, false)
	c.setattr("setting the mode of "+source, fd, false, attrRead)
	return sysprog.From(fd)
}

// withoutItsSockets ends the names of the steps of withoutSockets.
const withoutItsSockets = " without its sockets"

// coverRoot puts the working directory, a mount, over the scratch file system,
// which has been the root since the host's was left, and enters it there.
// pivot_root(2) would look at every thread of the machine once more, and have
// the kernel wait for all processors to let go of what it takes away. What is
// covered is the sandbox's own, and nothing leads there: no descriptor, no
// process, and nobody inside may change a root or a mount.
func (c *compiler) coverRoot() {
	c.p.Call("covering the root", unix.SYS_MOUNT, c.p.Str("."), c.p.Str("/"), sysprog.Int(0), sysprog.Int(unix.MS_MOVE), sysprog.Int(0))
	c.p.Call("changing the root", unix.SYS_CHROOT, c.p.Str("."))
	c.p.Call("entering the root", unix.SYS_CHDIR, c.p.Str("/"))
}

// changeRoot makes the working directory, a mount, the root, and takes away
// what was the root before.
func (c *compiler) changeRoot() {
	c.p.Call("changing the root", unix.SYS_PIVOT_ROOT, c.p.Str("."), c.p.Str("."))
	c.p.Call("leaving the old root", unix.SYS_UMOUNT2, c.p.Str("."), sysprog.Int(unix.MNT_DETACH))
	c.p.Call("entering the root", unix.SYS_CHDIR, c.p.Str("/"))
}

// overBind returns the directory for the plan's files that lie over a bind, and the path of one
// of them in it.
func (c *compiler) overBind(f driver.File) (dir, rest string, ok bool) {
	for i, b := range c.plan.Root.Binds {
		if rest, ok := strings.CutPrefix(path.Clean("/"+f.Path), path.Clean("/"+b.Target)+"/"); ok {
			return "o" + strconv.Itoa(i), "/" + rest, true
		}
	}
	return "", "", false
}

// files writes the plan's files into the upper directory, before the overlay is made of it, and
// those that lie over binds into others. These are empty, so no link of the image can lead
// elsewhere, and the image's files of that name are covered.
func (c *compiler) files() {
	made := map[string]bool{"upper": true, upperTmp: !c.tmpApart()}
	type written struct {
		top        string // what is written through one file system must not show in another
		mode       uint32
		data, rest *byte
		sizes      [2]int
	}
	first := map[written]string{}
	for _, f := range c.plan.Root.Files {
		top, name := "upper", path.Clean("/"+f.Path)
		if dir, rest, ok := c.overBind(f); ok {
			top, name = dir, rest
		}
		name = top + name
		var dirs []string
		for d := path.Dir(name); d != "." && !made[d]; d = path.Dir(d) {
			dirs = append(dirs, d)
			made[d] = true
		}
		for _, d := range slices.Backward(dirs) {
			c.mkdir(d, 0o755)
		}
		is := written{top, f.Mode, unsafe.SliceData(f.Data), unsafe.SliceData(f.Rest), [2]int{len(f.Data), len(f.Rest)}}
		if same := first[is]; same != "" {
			c.p.Call("creating "+f.Path, unix.SYS_LINKAT, sysprog.Int(unix.AT_FDCWD), c.p.Str(same), sysprog.Int(unix.AT_FDCWD), c.p.Str(name), sysprog.Int(0))
			continue
		}
		if len(f.Data) > 0 {
			first[is] = name
		}
		fd := c.p.Call("creating "+f.Path, unix.SYS_OPENAT, sysprog.Int(unix.AT_FDCWD), c.p.Str(name), sysprog.Int(unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY|unix.O_CLOEXEC), sysprog.Int(f.Mode)).Result()
		for _, part := range [...][]byte{f.Data, f.Rest} {
			if len(part) > 0 {
				c.p.Call("writing "+f.Path, unix.SYS_WRITE, sysprog.From(fd), c.p.Bytes(part), sysprog.Int(len(part))).Want(uintptr(len(part)))
			}
		}
		c.p.Call("closing "+f.Path, unix.SYS_CLOSE, sysprog.From(fd))
		c.p.Free(fd)
	}
}

// hostMount is a mount whose source was checked.
type hostMount struct {
	sandpit.Mount
	file bool   // a regular file, not a directory
	id   fileID // of the source
	uid  uint32 // owner on the host
	gid  uint32
}

// target makes the place for a mount: a directory or an empty file.
func (c *compiler) target(m hostMount) {
	if m.file {
		c.mkdirAll(path.Dir(m.Target))
		c.p.Call("creating "+m.Target, unix.SYS_MKNODAT, sysprog.Int(unix.AT_FDCWD), c.p.Str(m.Target), sysprog.Int(unix.S_IFREG|0o644), sysprog.Int(0)).Ignore(unix.EEXIST)
		return
	}
	c.mkdirAll(m.Target)
}

// pin mounts the directories between a writable mount and a read-only one inside it
// on themselves. The kernel lets a directory be moved that has mounts below it, but
// not one on which something is mounted: else a sandbox could move the read-only
// mount away with a directory above it, and make that anew.
func (c *compiler) pin(m hostMount) {
	outer := feature.ProtectedIn(c.plan.Mounts, m.Mount)
	if outer == "" {
		return
	}
	for _, d := range parents(path.Dir(m.Target)) {
		if len(d) > len(outer) && !c.pinned[d] {
			c.pinned[d] = true
			fd := c.openTree("opening "+d, d, true)
			c.attach(sysprog.From(fd), d)
			c.p.Call("closing "+d, unix.SYS_CLOSE, sysprog.From(fd))
			c.p.Free(fd)
		}
	}
}

// writePaths makes the root read-only, wholly or but for the paths that may be
// written. It returns the registers of Landlock rulesets for programs, which hold
// together: where other sandboxes can pass descriptors, one that says that only what is
// in this root may be opened, and one that says which paths may be written. The latter
// is not enough there: its rules belong to directories, also where they are in other
// sandboxes.
func (c *compiler) writePaths() (rulesets []sysprog.Reg) {
	plan := c.plan
	if plan.Write != nil {
		regs := make([]sysprog.Reg, len(plan.Write))
		for i, w := range plan.Write {
			c.mkdirAllOwned(w, plan.UID, plan.GID)
			regs[i] = c.openTree("opening "+w, w, true)
		}
		c.readOnly("/", true)
		// The guest says in /proc which processes are to be killed first when memory runs out. For
		// them it stays closed by Landlock, where there is one; what a process may write there is
		// about itself.
		c.writable("/proc")
		for i, w := range plan.Write {
			c.attach(sysprog.From(regs[i]), w)
		}
	} else if plan.ReadOnly {
		c.readOnly("/", false)
	}
	if c.landlock > 0 && showSockets(c.mounts) {
		rulesets = append(rulesets, ownRootSteps(c.p, c.landlock))
	}
	if c.landlock > 0 && plan.Write != nil {
		rulesets = append(rulesets, writeSteps(c.p, c.landlock, plan.Write))
	}
	return rulesets
}
