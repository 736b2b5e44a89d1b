package linux

import (
	"encoding/binary"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/driver"
	"github.com/sandpit-dev/sandpit/internal/guest/spawn"
	"github.com/sandpit-dev/sandpit/internal/sysprog"
)

// guestCapabilities is what the guest keeps in its user namespace: what a root
// process inside may have, since a child can't have more than its parent, and
// CAP_SETPCAP to take even that from its children.
const guestCapabilities = spawn.RootCapabilities | 1<<unix.CAP_SETPCAP

// Descriptors of the guest.
const (
	guestSocket  = 3 // the socket pair's inner end
	guestProgram = 4 // the guest itself, closed by its execution
)

// build is what the program of one sandbox is compiled from.
type build struct {
	plan   *driver.Plan
	mounts []hostMount
	ids    idMap
	socket int    // the guest's end of its socket pair
	answer int    // the builder's end of its own: the guest makes its socket non-blocking
	mapped int    // reading end of a pipe: a byte comes when the id maps are written
	base   string // an existing host directory to build on
	guest  string // host path of the guest program
	late   bool   // the guest can be executed only in its root, which the owner says is there
	argv   []string
	filter []byte // seccomp, as struct sock_filter array

	join     []int // files of cgroups to which the child writes "0" to join them
	cgroup2  bool  // show the v2 cgroup at /sys/fs/cgroup
	landlock int   // ABI version of Landlock, 0 for none
}

// rights of mounts.
const (
	attrPlain = unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV
	attrRead  = attrPlain | unix.MOUNT_ATTR_RDONLY
)

// compiler adds the steps of one sandbox to a program.
type compiler struct {
	build
	p sysprog.Program

	message []byte // the received control message, with descriptors
}

// trees lists the host paths whose mount trees the owner must send along with
// the first message, in order, when it can map their ids: the layers, the
// binds and the mounts.
func trees(plan *driver.Plan) []tree {
	var ts []tree
	for _, l := range plan.Root.Layers {
		ts = append(ts, tree{path: l, attr: attrRead})
	}
	for _, b := range plan.Root.Binds {
		ts = append(ts, tree{path: b.Source, attr: attrRead, recursive: true})
	}
	for _, m := range plan.Mounts {
		attr := uint64(attrPlain)
		if m.ReadOnly {
			attr = attrRead
		}
		ts = append(ts, tree{path: m.Source, attr: attr, recursive: true, owned: true})
	}
	return ts
}

// tree is a host path whose mount tree goes into a sandbox.
type tree struct {
	path      string
	attr      uint64
	recursive bool
	owned     bool // its owner on the host is the sandbox's user inside
}

// compile puts together all that happens between the clone and the guest's
// first instruction, by two processes side by side: the first, which becomes
// the guest, and a builder, which makes the root file system. Executing a
// program and starting its runtime takes about as long as building does.
//
// They share their namespaces, so that the builder's pivot_root changes the
// guest's root too. The owner sends the guest no connection before the builder
// has answered: nothing of the sandbox runs while the host can be seen.
func compile(b build) (*sysprog.Program, error) {
	if n := len(trees(b.plan)); n > maxTrees {
		return nil, fmt.Errorf("putting together the sandbox: %d layers, binds and mounts are more than the %d that fit: %w", n, maxTrees, sandpit.ErrInvalid)
	}
	builder, first := &compiler{build: b}, &compiler{build: b}
	builder.p.Grow(builderSteps)
	first.p.Grow(firstSteps)
	builder.builder()
	if err := first.first(&builder.p); err != nil {
		return nil, err
	}
	return &first.p, nil
}

// How many steps there are of what every sandbox has, about.
const (
	builderSteps = 240
	firstSteps   = 48
)

// first is what the first process does up to executing the guest.
func (c *compiler) first(builder *sysprog.Program) error {
	p := &c.p
	c.dieWithOwner()
	// An owner that has died before that is noticed by the end of what is read
	// from it: if nobody here holds the other ends, of this sandbox or another.
	c.keepOnly(append([]int{c.socket, c.answer, c.mapped}, c.join...))
	p.Call("starting a session", unix.SYS_SETSID)
	p.Call("setting the umask", unix.SYS_UMASK, sysprog.Int(0o022)) // for the builder, too
	c.namespaces()

	// Everything that has a path on the host comes before the builder, which
	// may change the root at any moment. What stands at the root is moved to
	// the new one by that; what stands elsewhere would stay outside.
	guest := c.openTree("opening the guest program", c.guest, false)
	c.setattr("sealing the guest program", guest, false, attrRead)
	null := p.Call("opening /dev/null", unix.SYS_OPENAT, sysprog.Int(unix.AT_FDCWD), p.Str("/dev/null"), sysprog.Int(unix.O_RDWR|unix.O_CLOEXEC), sysprog.Int(0)).Result()
	p.Call("leaving the owner's directory", unix.SYS_CHDIR, p.Str("/"))

	p.Spawn("starting the builder", builder, c.answer)
	p.Call("waiting for the id maps", unix.SYS_READ, sysprog.Int(c.mapped), p.Bytes(make([]byte, 1)), sysprog.Int(1)).Want(1)
	c.identity()
	return c.becomeGuest(guest, null)
}

// keepOnly closes all descriptors above 2 but these.
func (c *compiler) keepOnly(fds []int) {
	closeRange := func(first, last uint32) {
		c.p.Call("closing the owner's descriptors", unix.SYS_CLOSE_RANGE, sysprog.Int(first), sysprog.Int(last), sysprog.Int(0))
	}
	next := 3
	slices.Sort(fds)
	for _, fd := range fds {
		if fd > next {
			closeRange(uint32(next), uint32(fd-1))
		}
		next = max(next, fd+1)
	}
	closeRange(uint32(next), ^uint32(0))
}

// builder is what the builder does.
func (c *compiler) builder() {
	plan := c.plan
	// While the owner writes id maps and maps the ids of mount trees, it does
	// what needs neither.
	c.loopback()
	// What the host mounts later must not appear in here, as it would where its
	// mounts are shared, which is so under systemd.
	c.p.Call("making mounts private", unix.SYS_MOUNT, sysprog.Int(0), c.p.Str("/"), sysprog.Int(0), sysprog.Int(unix.MS_REC|unix.MS_PRIVATE), sysprog.Int(0))
	devices := make([]sysprog.Reg, len(deviceNames))
	for i, name := range deviceNames {
		devices[i] = c.openTree("opening /dev/"+name, "/dev/"+name, false)
		c.setattr("setting the rights of /dev/"+name, devices[i], false, unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NOEXEC)
	}
	sys := make([]sysprog.Arg, len(sysPaths))
	for i, name := range sysPaths {
		sys[i] = sysprog.From(c.p.Call("opening "+name, unix.SYS_OPEN_TREE, sysprog.Int(unix.AT_FDCWD), c.p.Str(name), sysprog.Int(unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE)).Ignore(unix.ENOENT).Result())
	}
	ts := trees(plan)
	if c.ids.mapped {
		c.receive(len(ts))
	}
	fds := make([]sysprog.Arg, len(ts))
	for i, t := range ts {
		fds[i] = c.hostTree(t, i)
	}
	if !c.ids.mapped {
		c.receive(0)
	}
	c.identity()
	parts := c.rootfs(fds[:len(plan.Root.Layers)])
	c.kernelFilesystems(devices, parts, sys)
	for _, d := range plan.Root.Dirs {
		c.mkdirAll(d)
	}
	for i, bind := range plan.Root.Binds {
		c.attach(fds[len(plan.Root.Layers)+i], bind.Target)
	}
	for _, t := range plan.Tmpfs {
		c.mkdirAll(t.Target)
		c.mount("tmpfs", t.Target, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "size="+strconv.FormatInt(t.Size, 10)+",mode=1777")
	}
	for i, m := range c.mounts {
		fd := fds[len(plan.Root.Layers)+len(plan.Root.Binds)+i]
		c.target(m)
		c.attach(fd, m.Target)
	}
	c.answerOwner(c.writePaths())
}

// receive waits for the owner's message. It comes when the id maps are written,
// and carries the mount trees that only the owner could make.
func (c *compiler) receive(trees int) {
	c.message = make([]byte, unix.CmsgSpace(4*max(trees, 1)))
	hdr := messageHeader(&c.p, make([]byte, 1), c.message)
	c.p.Call("waiting for the owner", unix.SYS_RECVMSG, sysprog.Int(c.answer), hdr, sysprog.Int(unix.MSG_CMSG_CLOEXEC)).Want(1)
}

// answerOwner tells the owner that the root is made, and gives it the Landlock
// ruleset, if there is one, for the guest.
func (c *compiler) answerOwner(ruleset *sysprog.Reg) {
	const what = "answering the owner"
	if ruleset == nil {
		c.p.Call(what, unix.SYS_WRITE, sysprog.Int(c.answer), c.p.Bytes([]byte{readyByte}), sysprog.Int(1)).Want(1)
		return
	}
	control := make([]byte, unix.CmsgSpace(4)) // struct cmsghdr, then the descriptor
	binary.NativeEndian.PutUint64(control, uint64(unix.CmsgLen(4)))
	binary.NativeEndian.PutUint32(control[8:], unix.SOL_SOCKET)
	binary.NativeEndian.PutUint32(control[12:], unix.SCM_RIGHTS)
	c.p.Store32(*ruleset, control, unix.CmsgLen(0))
	hdr := messageHeader(&c.p, []byte{readyByte}, control)
	c.p.Call(what, unix.SYS_SENDMSG, sysprog.Int(c.answer), hdr, sysprog.Int(unix.MSG_NOSIGNAL)).Want(1)
}

// maxTrees is how many descriptors one message may carry: SCM_MAX_FD of unix(7).
const maxTrees = 253

// dieWithOwner asks for SIGKILL when the owner dies. A change of credentials
// undoes it: at the start it serves until the id maps are there.
func (c *compiler) dieWithOwner() {
	c.p.Call("asking to die with the owner", unix.SYS_PRCTL, sysprog.Int(unix.PR_SET_PDEATHSIG), sysprog.Int(int(unix.SIGKILL)))
}

// hostTree returns a descriptor of a detached mount tree of a host path, the
// i-th of those that the owner sends if it sends them.
func (c *compiler) hostTree(t tree, i int) sysprog.Arg {
	if c.ids.mapped {
		return c.p.Mem32(c.message, unix.CmsgLen(0)+4*i)
	}
	if !t.owned {
		fd := c.openTree("opening "+t.path, t.path, t.recursive)
		c.setattr("setting the rights of "+t.path, fd, t.recursive, t.attr)
		return sysprog.From(fd)
	}
	// Someone else may write to a directory above a mount: no link is followed.
	how := binary.NativeEndian.AppendUint64(nil, unix.O_PATH|unix.O_CLOEXEC)
	how = binary.NativeEndian.AppendUint64(how, 0)
	how = binary.NativeEndian.AppendUint64(how, unix.RESOLVE_NO_SYMLINKS)
	fd := c.p.Call("opening "+t.path, unix.SYS_OPENAT2, sysprog.Int(unix.AT_FDCWD), c.p.Str(t.path), c.p.Bytes(how), sysprog.Int(len(how))).Result()
	flags := unix.OPEN_TREE_CLONE | unix.OPEN_TREE_CLOEXEC | unix.AT_EMPTY_PATH
	if t.recursive {
		flags |= unix.AT_RECURSIVE
	}
	c.p.Call("opening "+t.path, unix.SYS_OPEN_TREE, sysprog.From(fd), c.p.Str(""), sysprog.Int(flags)).Into(fd)
	c.setattr("setting the rights of "+t.path, fd, t.recursive, t.attr)
	return sysprog.From(fd)
}

func (c *compiler) openTree(what, path string, recursive bool) sysprog.Reg {
	flags := unix.OPEN_TREE_CLONE | unix.OPEN_TREE_CLOEXEC
	if recursive {
		flags |= unix.AT_RECURSIVE
	}
	return c.p.Call(what, unix.SYS_OPEN_TREE, sysprog.Int(unix.AT_FDCWD), c.p.Str(path), sysprog.Int(flags)).Result()
}

// setattr sets mount attributes of a tree.
func (c *compiler) setattr(what string, fd sysprog.Reg, recursive bool, set uint64) {
	flags := unix.AT_EMPTY_PATH
	if recursive {
		flags |= unix.AT_RECURSIVE
	}
	attr := mountAttr(set, 0, 0)
	c.p.Call(what, unix.SYS_MOUNT_SETATTR, sysprog.From(fd), c.p.Str(""), sysprog.Int(flags), c.p.Bytes(attr), sysprog.Int(len(attr)))
}

// mountAttr is struct mount_attr of mount_setattr(2).
func mountAttr(set, clear, userns uint64) []byte {
	b := binary.NativeEndian.AppendUint64(nil, set)
	b = binary.NativeEndian.AppendUint64(b, clear)
	b = binary.NativeEndian.AppendUint64(b, 0) // propagation
	return binary.NativeEndian.AppendUint64(b, userns)
}

// namespaces joins the cgroup and makes the namespaces that clone has not made:
// that of the cgroup, which shows what it is made in as the root, and that of
// the network, because it takes the kernel longer than all others together.
func (c *compiler) namespaces() {
	for _, fd := range c.join {
		c.p.Call("joining the cgroup", unix.SYS_WRITE, sysprog.Int(fd), c.p.Bytes([]byte("0")), sysprog.Int(1))
	}
	c.p.Call("making network and cgroup namespaces", unix.SYS_UNSHARE, sysprog.Int(unix.CLONE_NEWNET|unix.CLONE_NEWCGROUP))
	host := []byte(c.plan.Hostname)
	if len(host) > 0 {
		c.p.Call("setting the hostname", unix.SYS_SETHOSTNAME, c.p.Bytes(host), sysprog.Int(len(host)))
	}
}

// loopback brings the loopback interface up.
func (c *compiler) loopback() {
	s := c.p.Call("bringing up the loopback", unix.SYS_SOCKET, sysprog.Int(unix.AF_INET), sysprog.Int(unix.SOCK_DGRAM|unix.SOCK_CLOEXEC), sysprog.Int(0)).Result()
	ifreq := make([]byte, 40) // struct ifreq, netdevice(7)
	copy(ifreq, "lo")
	binary.NativeEndian.PutUint16(ifreq[16:], unix.IFF_UP|unix.IFF_RUNNING)
	c.p.Call("bringing up the loopback", unix.SYS_IOCTL, sysprog.From(s), sysprog.Int(unix.SIOCSIFFLAGS), c.p.Bytes(ifreq))
}

// identity takes the user id inside that the guest runs with.
func (c *compiler) identity() {
	if c.ids.multi {
		c.p.Call("dropping groups", unix.SYS_SETGROUPS, sysprog.Int(0), sysprog.Int(0))
	}
	c.p.Call("setting the group", unix.SYS_SETRESGID, sysprog.Int(c.ids.gid), sysprog.Int(c.ids.gid), sysprog.Int(c.ids.gid))
	c.p.Call("setting the user", unix.SYS_SETRESUID, sysprog.Int(c.ids.uid), sysprog.Int(c.ids.uid), sysprog.Int(c.ids.uid))
}

// rootParts are mounts made while the host's root is still there.
type rootParts struct {
	tmp, shm sysprog.Reg // parts of the scratch file system
	proc     sysprog.Reg
}

// rootfs builds the root file system and makes it the root. All that the
// sandbox may write lies in one tmpfs, whose size and inodes are the limits.
func (c *compiler) rootfs(layers []sysprog.Arg) rootParts {
	plan := c.plan
	opts := fmt.Sprintf("size=%d,nr_inodes=%d,mode=0755", plan.Limits.Disk, plan.Limits.Files)
	c.mount("tmpfs", c.base, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, opts)
	c.p.Call("entering the scratch file system", unix.SYS_CHDIR, c.p.Str(c.base))
	for _, d := range []struct {
		name string
		mode int
	}{{"root", 0o755}, {"upper", 0o755}, {"work", 0o755}, {"tmp", 0o1777}, {"shm", 0o1777}} {
		c.mkdir(d.name, d.mode)
		if d.mode != 0o755 {
			c.p.Call("setting the mode of "+d.name, unix.SYS_FCHMODAT, sysprog.Int(unix.AT_FDCWD), c.p.Str(d.name), sysprog.Int(d.mode))
		}
	}
	names := make([]string, len(layers))
	for i, fd := range layers {
		names[i] = "l" + strconv.Itoa(i)
		c.mkdir(names[i], 0o755)
		c.move(fd, names[i])
	}
	c.files()
	// volatile: nothing here outlives the sandbox, so nothing is ever synced.
	lower := "lowerdir=" + strings.Join(names, ":") + ",upperdir=upper,workdir=work,volatile,userxattr"
	c.mount("overlay", "root", "overlay", unix.MS_NOSUID|unix.MS_NODEV, lower)

	parts := rootParts{
		tmp: c.openTree("opening /tmp", "tmp", false),
		shm: c.openTree("opening /dev/shm", "shm", false),
	}
	c.setattr("setting the rights of /dev/shm", parts.shm, false, attrPlain|unix.MOUNT_ATTR_NOEXEC)

	// The kernel gives a user namespace a new /proc only while another one,
	// wholly visible, is in sight: one that is masked would not be so any more.
	parts.proc = c.p.Call("mounting proc", unix.SYS_FSOPEN, c.p.Str("proc"), sysprog.Int(unix.FSOPEN_CLOEXEC)).Result()
	c.p.Call("mounting proc", unix.SYS_FSCONFIG, sysprog.From(parts.proc), sysprog.Int(unix.FSCONFIG_CMD_CREATE), sysprog.Int(0), sysprog.Int(0), sysprog.Int(0))
	c.p.Call("mounting proc", unix.SYS_FSMOUNT, sysprog.From(parts.proc), sysprog.Int(unix.FSMOUNT_CLOEXEC), sysprog.Int(attrPlain|unix.MOUNT_ATTR_NOEXEC)).Into(parts.proc)

	c.p.Call("entering the root", unix.SYS_CHDIR, c.p.Str("root"))
	c.p.Call("changing the root", unix.SYS_PIVOT_ROOT, c.p.Str("."), c.p.Str("."))
	c.p.Call("leaving the host's root", unix.SYS_UMOUNT2, c.p.Str("."), sysprog.Int(unix.MNT_DETACH))
	c.p.Call("entering the root", unix.SYS_CHDIR, c.p.Str("/"))
	return parts
}

// files writes the plan's files into the upper directory, before the overlay
// is made of it: it is empty, so no link of the image can lead elsewhere, and
// what the image has of that name is covered.
func (c *compiler) files() {
	made := map[string]bool{}
	for _, f := range c.plan.Root.Files {
		name := "upper" + path.Clean("/"+f.Path)
		var dirs []string
		for d := path.Dir(name); d != "upper" && !made[d]; d = path.Dir(d) {
			dirs = append(dirs, d)
			made[d] = true
		}
		for _, d := range slices.Backward(dirs) {
			c.mkdir(d, 0o755)
		}
		fd := c.p.Call("making "+f.Path, unix.SYS_OPENAT, sysprog.Int(unix.AT_FDCWD), c.p.Str(name), sysprog.Int(unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY|unix.O_CLOEXEC), sysprog.Int(f.Mode)).Result()
		if len(f.Data) > 0 {
			c.p.Call("writing "+f.Path, unix.SYS_WRITE, sysprog.From(fd), c.p.Bytes(f.Data), sysprog.Int(len(f.Data))).Want(uintptr(len(f.Data)))
		}
		c.p.Call("closing "+f.Path, unix.SYS_CLOSE, sysprog.From(fd))
		c.p.Free(fd)
	}
}

// deviceNames are the device files of a sandbox. They are the host's own,
// shown by bind mounts: no device can be made in a user namespace.
var deviceNames = [...]string{"null", "zero", "full", "random", "urandom", "tty"}

// deviceLinks are the links that programs expect in /dev (null(4), proc(5)).
var deviceLinks = [...][2]string{
	{"fd", "/proc/self/fd"},
	{"stdin", "/proc/self/fd/0"},
	{"stdout", "/proc/self/fd/1"},
	{"stderr", "/proc/self/fd/2"},
	{"ptmx", "pts/ptmx"},
}

// sysPaths is all that a sandbox sees of the host's /sys: how many processors
// and memory nodes there are.
var sysPaths = [...]string{"/sys/devices/system/cpu", "/sys/devices/system/node"}

// maskedFiles and maskedDirs of /proc tell about the host, or act on it.
var (
	maskedFiles = [...]string{
		"/proc/interrupts", "/proc/kallsyms", "/proc/kcore", "/proc/keys", "/proc/kmsg", "/proc/latency_stats",
		"/proc/modules", "/proc/sched_debug", "/proc/sysrq-trigger", "/proc/timer_list", "/proc/timer_stats",
	}
	maskedDirs = [...]string{"/proc/acpi", "/proc/asound", "/proc/bus", "/proc/driver", "/proc/dynamic_debug", "/proc/fs", "/proc/irq", "/proc/scsi"}
)

// kernelFilesystems mounts /proc, /dev, /sys and /tmp. Each must be a real
// directory: an image in which one is a link is refused.
func (c *compiler) kernelFilesystems(devices []sysprog.Reg, parts rootParts, sys []sysprog.Arg) {
	for _, d := range []string{"/proc", "/dev", "/sys", "/tmp"} {
		c.p.Call("making "+d, unix.SYS_MKDIRAT, sysprog.Int(unix.AT_FDCWD), c.p.Str(d), sysprog.Int(0o755)).Ignore(unix.EEXIST)
		fd := c.p.Call("looking at "+d+" of the image, which must be a directory and not a link", unix.SYS_OPENAT, sysprog.Int(unix.AT_FDCWD), c.p.Str(d), sysprog.Int(unix.O_PATH|unix.O_NOFOLLOW|unix.O_DIRECTORY|unix.O_CLOEXEC)).Result()
		c.p.Call("closing "+d, unix.SYS_CLOSE, sysprog.From(fd))
		c.p.Free(fd)
	}
	c.attach(sysprog.From(parts.tmp), "/tmp")

	c.mount("tmpfs", "/dev", "tmpfs", unix.MS_NOSUID|unix.MS_NOEXEC, "size=64k,nr_inodes=64,mode=0755")
	for i, name := range deviceNames {
		c.mknod("/dev/" + name)
		c.attach(sysprog.From(devices[i]), "/dev/"+name)
	}
	for _, l := range deviceLinks {
		c.p.Call("making /dev/"+l[0], unix.SYS_SYMLINKAT, c.p.Str(l[1]), sysprog.Int(unix.AT_FDCWD), c.p.Str("/dev/"+l[0]))
	}
	for _, d := range []string{"/dev/pts", "/dev/shm", "/dev/mqueue"} {
		c.mkdir(d, 0o755)
	}
	pts := "newinstance,ptmxmode=0666,mode=0620"
	if c.ids.multi {
		pts += ",gid=5" // tty, as the device numbers of every distribution have it
	}
	c.mount("devpts", "/dev/pts", "devpts", unix.MS_NOSUID|unix.MS_NOEXEC, pts)
	c.attach(sysprog.From(parts.shm), "/dev/shm")
	c.mount("mqueue", "/dev/mqueue", "mqueue", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "")

	c.attach(sysprog.From(parts.proc), "/proc")
	null := c.p.Str("/dev/null")
	for _, name := range maskedFiles {
		c.p.Call("masking "+name, unix.SYS_MOUNT, null, c.p.Str(name), sysprog.Int(0), sysprog.Int(unix.MS_BIND), sysprog.Int(0)).Ignore(unix.ENOENT)
	}

	c.mount("tmpfs", "/sys", "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "size=4k,nr_inodes=32,mode=0755")
	c.mkdir("/sys/empty", 0o555)
	for _, d := range []string{"/sys/devices", "/sys/devices/system", "/sys/fs", "/sys/fs/cgroup"} {
		c.mkdir(d, 0o755)
	}
	for i, name := range sysPaths {
		c.mkdir(name, 0o755)
		c.p.Call("showing "+name, unix.SYS_MOVE_MOUNT, sys[i], c.p.Str(""), sysprog.Int(unix.AT_FDCWD), c.p.Str(name), sysprog.Int(unix.MOVE_MOUNT_F_EMPTY_PATH)).Ignore(unix.EBADF)
	}
	if c.cgroup2 {
		c.p.Call("showing the cgroup", unix.SYS_MOUNT, c.p.Str("cgroup2"), c.p.Str("/sys/fs/cgroup"), c.p.Str("cgroup2"), sysprog.Int(unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC|unix.MS_RDONLY), sysprog.Int(0)).Ignore(unix.EPERM, unix.EBUSY)
	}
	c.seal("/sys", attrRead|unix.MOUNT_ATTR_NOEXEC, true)
	for _, name := range maskedDirs {
		c.p.Call("masking "+name, unix.SYS_MOUNT, c.p.Str("/sys/empty"), c.p.Str(name), sysprog.Int(0), sysprog.Int(unix.MS_BIND), sysprog.Int(0)).Ignore(unix.ENOENT)
	}

	// /proc/sys, read-only; a bind of itself, because it is no mount of its own.
	fd := c.openTree("sealing /proc/sys", "/proc/sys", false)
	c.setattr("sealing /proc/sys", fd, false, attrRead|unix.MOUNT_ATTR_NOEXEC)
	c.attach(sysprog.From(fd), "/proc/sys")
	c.p.Free(fd)
}

// hostMount is a mount whose source has been looked at.
type hostMount struct {
	sandpit.Mount
	file bool   // a regular file, not a directory
	uid  uint32 // owner on the host
	gid  uint32
}

// target makes the place for a mount: a directory or an empty file.
func (c *compiler) target(m hostMount) {
	if m.file {
		c.mkdirAll(path.Dir(m.Target))
		c.p.Call("making "+m.Target, unix.SYS_MKNODAT, sysprog.Int(unix.AT_FDCWD), c.p.Str(m.Target), sysprog.Int(unix.S_IFREG|0o644), sysprog.Int(0)).Ignore(unix.EEXIST)
		return
	}
	c.mkdirAll(m.Target)
}

// writePaths makes the root read-only, wholly or but for the paths that may be
// written, and returns the register of a Landlock ruleset that says the same.
func (c *compiler) writePaths() *sysprog.Reg {
	plan := c.plan
	if plan.Write == nil {
		if plan.ReadOnly {
			c.readOnly("/", false)
		}
		return nil
	}
	regs := make([]sysprog.Reg, len(plan.Write))
	for i, w := range plan.Write {
		c.mkdirAllOwned(w, plan.UID, plan.GID)
		regs[i] = c.openTree("opening "+w, w, true)
	}
	c.readOnly("/", true)
	// The guest says in /proc which processes are to be killed first for want of
	// memory. For them it stays closed by Landlock, where there is one; what a
	// process may write there is about itself.
	c.writable("/proc")
	for i, w := range plan.Write {
		c.attach(sysprog.From(regs[i]), w)
	}
	if c.landlock == 0 {
		return nil
	}
	ruleset := landlockSteps(&c.p, c.landlock, plan.Write)
	return &ruleset
}

// becomeGuest gives up what the guest does not need, and becomes the guest.
func (c *compiler) becomeGuest(guest, null sysprog.Reg) error {
	p := &c.p
	for _, lim := range []struct {
		what string
		res  int
		cur  uint64
	}{{"core files", unix.RLIMIT_CORE, 0}, {"locked memory", unix.RLIMIT_MEMLOCK, 64 << 10}} {
		b := binary.NativeEndian.AppendUint64(nil, lim.cur)
		b = binary.NativeEndian.AppendUint64(b, lim.cur)
		p.Call("limiting "+lim.what, unix.SYS_PRLIMIT64, sysprog.Int(0), sysprog.Int(lim.res), p.Bytes(b), sysprog.Int(0)).Ignore(unix.EPERM)
	}

	// Descriptors: first out of the way of each other, then to their places.
	const fdStage = "putting descriptors in their places"
	high := func(fd sysprog.Arg) sysprog.Reg {
		return p.Call(fdStage, unix.SYS_FCNTL, fd, sysprog.Int(unix.F_DUPFD_CLOEXEC), sysprog.Int(64)).Result()
	}
	sock, prog := high(sysprog.Int(c.socket)), high(sysprog.From(guest))
	null = high(sysprog.From(null))
	for fd := range 3 {
		p.Call(fdStage, unix.SYS_DUP3, sysprog.From(null), sysprog.Int(fd), sysprog.Int(0))
	}
	p.Call(fdStage, unix.SYS_DUP3, sysprog.From(sock), sysprog.Int(guestSocket), sysprog.Int(0))
	p.ReportVia(guestSocket)
	p.Call(fdStage, unix.SYS_DUP3, sysprog.From(prog), sysprog.Int(guestProgram), sysprog.Int(unix.O_CLOEXEC))
	p.Call("closing descriptors", unix.SYS_CLOSE_RANGE, sysprog.Int(guestProgram+1), sysprog.Int(^uint32(0)), sysprog.Int(0))

	// Capabilities. The bounding set is what a root process inside may have;
	// the guest gets the rest of its own by inheritance, as an ordinary user
	// by the ambient set. What is inherited must be set first: it can't go
	// beyond the bounding set.
	p.Call("setting capabilities", unix.SYS_CAPSET, p.Bytes(spawn.CapHeader()), p.Bytes(spawn.CapData(guestCapabilities, guestCapabilities)))
	// All 64 are tried: this kernel may have more than are known here.
	p.Call("dropping capabilities", unix.SYS_PRCTL, sysprog.Int(unix.PR_CAPBSET_DROP)).Each(1, ^uint64(spawn.RootCapabilities)).Ignore(unix.EINVAL)
	p.Call("keeping capabilities", unix.SYS_PRCTL, sysprog.Int(unix.PR_CAP_AMBIENT), sysprog.Int(unix.PR_CAP_AMBIENT_RAISE)).Each(2, guestCapabilities)
	if c.plan.Ephemeral {
		c.dieWithOwner()
	} else {
		// Until it is told otherwise the guest ends with the socket to its owner.
		p.Call("outliving the owner", unix.SYS_PRCTL, sysprog.Int(unix.PR_SET_PDEATHSIG), sysprog.Int(0))
	}
	p.Call("forbidding new privileges", unix.SYS_PRCTL, sysprog.Int(unix.PR_SET_NO_NEW_PRIVS), sysprog.Int(1), sysprog.Int(0), sysprog.Int(0), sysprog.Int(0))
	p.ResetSignals()
	if c.late {
		p.Call("waiting for the root", unix.SYS_READ, sysprog.Int(guestSocket), p.Bytes(make([]byte, 1)), sysprog.Int(1)).Want(1)
	}

	// struct sock_fprog: a count, and a pointer to the instructions.
	fprog := make([]byte, 16)
	binary.NativeEndian.PutUint16(fprog, uint16(len(c.filter)/8))
	p.PutPointer(fprog, 8, c.filter)
	p.Call("loading the seccomp filter", unix.SYS_SECCOMP, sysprog.Int(unix.SECCOMP_SET_MODE_FILTER), sysprog.Int(0), p.Bytes(fprog))

	argv, err := p.Strs(c.argv)
	if err != nil {
		return err
	}
	// One processor at a time until there is more to do: a runtime that wakes
	// threads on all of them takes a third more processor time to start.
	envp, err := p.Strs([]string{"GOMAXPROCS=1"})
	if err != nil {
		return err
	}
	p.Call("executing the guest", unix.SYS_EXECVEAT, sysprog.Int(guestProgram), p.Str(""), argv, envp, sysprog.Int(unix.AT_EMPTY_PATH))
	return nil
}

// readyByte is what the builder answers when all is in place.
const readyByte = 'R'

func (c *compiler) mount(source, target, fstype string, flags int, data string) {
	opts := sysprog.Int(0)
	if data != "" { // not "": the kernel would take a page for it
		opts = c.p.Str(data)
	}
	c.p.Call("mounting "+fstype+" on "+target, unix.SYS_MOUNT, c.p.Str(source), c.p.Str(target), c.p.Str(fstype), sysprog.Int(flags), opts)
}

// attach puts a detached tree at a path inside.
func (c *compiler) attach(fd sysprog.Arg, target string) { c.move(fd, target) }

func (c *compiler) move(fd sysprog.Arg, target string) {
	c.p.Call("attaching "+target, unix.SYS_MOVE_MOUNT, fd, c.p.Str(""), sysprog.Int(unix.AT_FDCWD), c.p.Str(target), sysprog.Int(unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_SYMLINKS))
}

func (c *compiler) readOnly(target string, recursive bool) {
	c.seal(target, unix.MOUNT_ATTR_RDONLY, recursive)
}

// writable takes back that one mount is read-only.
func (c *compiler) writable(target string) {
	attr := mountAttr(0, unix.MOUNT_ATTR_RDONLY, 0)
	c.p.Call("making "+target+" writable", unix.SYS_MOUNT_SETATTR, sysprog.Int(unix.AT_FDCWD), c.p.Str(target), sysprog.Int(0), c.p.Bytes(attr), sysprog.Int(len(attr)))
}

// seal sets attributes of a mount inside, or of all below it too.
func (c *compiler) seal(target string, set uint64, recursive bool) {
	flags := 0
	if recursive {
		flags = unix.AT_RECURSIVE
	}
	attr := mountAttr(set, 0, 0)
	c.p.Call("making "+target+" read-only", unix.SYS_MOUNT_SETATTR, sysprog.Int(unix.AT_FDCWD), c.p.Str(target), sysprog.Int(flags), c.p.Bytes(attr), sysprog.Int(len(attr)))
}

func (c *compiler) mkdir(name string, mode int) {
	c.p.Call("making "+name, unix.SYS_MKDIRAT, sysprog.Int(unix.AT_FDCWD), c.p.Str(name), sysprog.Int(mode))
}

func (c *compiler) mknod(name string) {
	c.p.Call("making "+name, unix.SYS_MKNODAT, sysprog.Int(unix.AT_FDCWD), c.p.Str(name), sysprog.Int(unix.S_IFREG|0o644), sysprog.Int(0))
}

// parents returns every directory of a path, from the top, itself included.
func parents(p string) []string {
	var all []string
	for d := path.Clean(p); d != "/" && d != "."; d = path.Dir(d) {
		all = append(all, d)
	}
	slices.Reverse(all)
	return all
}

// mkdirAll makes a directory inside. EROFS: it may be there, under a
// read-only mount; then attaching tells.
func (c *compiler) mkdirAll(name string) {
	for _, d := range parents(name) {
		c.p.Call("making "+d, unix.SYS_MKDIRAT, sysprog.Int(unix.AT_FDCWD), c.p.Str(d), sysprog.Int(0o755)).Ignore(unix.EEXIST, unix.EROFS, unix.EACCES)
	}
}

// mkdirAllOwned is mkdirAll for a directory that, when it is new, belongs to a user.
func (c *compiler) mkdirAllOwned(name string, uid, gid uint32) {
	all := parents(name)
	if len(all) == 0 {
		return
	}
	c.mkdirAll(path.Dir(name))
	c.p.Call("making "+name, unix.SYS_MKDIRAT, sysprog.Int(unix.AT_FDCWD), c.p.Str(name), sysprog.Int(0o755)).Ignore(unix.EEXIST, unix.EROFS, unix.EACCES).SkipAfterIgnored(1)
	c.p.Call("giving "+name+" to the user", unix.SYS_FCHOWNAT, sysprog.Int(unix.AT_FDCWD), c.p.Str(name), sysprog.Int(uid), sysprog.Int(gid), sysprog.Int(unix.AT_SYMLINK_NOFOLLOW))
}
