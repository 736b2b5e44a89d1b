package linux

import (
	"slices"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit/internal/sysprog"
)

// deviceNames are the device files of a sandbox. They are the host's own,
// shown by bind mounts: no device can be made in a user namespace. The mounts are
// read-only: a device can still be written to, but its mode, owner and times can't be
// changed.
var deviceNames = [...]string{"null", "zero", "full", "random", "urandom", "tty"}

// maxTerminals is the maximum number of pseudo-terminals of a sandbox. They count against
// one number for the whole host (kernel.pty.max, usually 4,096).
const maxTerminals = 64

// deviceLinks are the links that programs expect in /dev (null(4), proc(5)).
var deviceLinks = [...][2]string{
	{"fd", "/proc/self/fd"},
	{"stdin", "/proc/self/fd/0"},
	{"stdout", "/proc/self/fd/1"},
	{"stderr", "/proc/self/fd/2"},
	{"ptmx", "pts/ptmx"},
}

// sysPaths is everything that a sandbox sees of the host's /sys: the numbers of CPUs and
// memory nodes.
var sysPaths = [...]string{"/sys/devices/system/cpu", "/sys/devices/system/node"}

// maskedFiles and maskedDirs of /proc tell about the host, or act on it.
var (
	maskedFiles = [...]string{
		"proc/interrupts", "proc/kallsyms", "proc/kcore", "proc/keys", "proc/kmsg", "proc/latency_stats",
		"proc/modules", "proc/sched_debug", "proc/sysrq-trigger", "proc/timer_list", "proc/timer_stats",
	}
	maskedDirs = [...]string{"proc/acpi", "proc/asound", "proc/bus", "proc/driver", "proc/dynamic_debug", "proc/fs", "proc/irq", "proc/scsi"}

	// What only the host's root may read needs a mask only where root inside is
	// the host's root.
	rootFiles = [...]string{
		"proc/allocinfo", "proc/kpagecgroup", "proc/kpagecount", "proc/kpageflags", "proc/mtrr",
		"proc/pagetypeinfo", "proc/slabinfo", "proc/vmallocinfo",
	}
	rootDirs = [...]string{"proc/pressure", "proc/tty"}
)

// dev makes /dev.
func (c *compiler) dev(devices []sysprog.Reg) {
	c.mount("tmpfs", "dev", "tmpfs", unix.MS_NOSUID|unix.MS_NOEXEC, "size=64k,nr_inodes=64,mode=0755")
	for i, name := range deviceNames {
		c.mknod("dev/" + name)
		c.attach(sysprog.From(devices[i]), "dev/"+name)
	}
	for _, l := range deviceLinks {
		c.p.Call("creating /dev/"+l[0], unix.SYS_SYMLINKAT, c.p.Str(l[1]), sysprog.Int(unix.AT_FDCWD), c.p.Str("dev/"+l[0]))
	}
	for _, d := range []string{"dev/pts", "dev/shm", "dev/mqueue"} {
		c.mkdir(d, 0o755)
	}
	pts := "newinstance,ptmxmode=0666,mode=0620,max=" + strconv.Itoa(maxTerminals)
	if c.ids.multi {
		pts += ",gid=5" // tty, as the device numbers of every distribution have it
	}
	c.mount("devpts", "dev/pts", "devpts", unix.MS_NOSUID|unix.MS_NOEXEC, pts)
	shm := c.openTree("opening /dev/shm", "shm", false)
	c.setattr("setting the mode of /dev/shm", shm, false, attrPlain|unix.MOUNT_ATTR_NOEXEC)
	c.attach(sysprog.From(shm), "dev/shm")
	c.mount("mqueue", "dev/mqueue", "mqueue", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "")
}

// proc makes /proc. The kernel gives a user namespace a new one only while
// another, wholly visible, is in sight: here that of the host still is.
func (c *compiler) proc() {
	c.mount("proc", "proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "")
	null := c.p.Str("dev/null")
	files := maskedFiles[:]
	if c.ids.kind == idsSame {
		files = append(slices.Clone(files), rootFiles[:]...)
	}
	for _, name := range files {
		c.p.Call("masking /"+name, unix.SYS_MOUNT, null, c.p.Str(name), sysprog.Int(0), sysprog.Int(unix.MS_BIND), sysprog.Int(0)).Ignore(unix.ENOENT)
	}
	c.writeSysctls(c.quotas.sysctls...)
	// /proc/sys, read-only; a bind of itself, because it is not a mount of its own.
	fd := c.openTree("sealing /proc/sys", "proc/sys", false)
	c.setattr("sealing /proc/sys", fd, false, attrRead|unix.MOUNT_ATTR_NOEXEC)
	c.attach(sysprog.From(fd), "proc/sys")
	c.p.Free(fd)
}

// sys makes /sys, and masks directories of /proc with an empty one of it.
func (c *compiler) sys(trees []sysprog.Arg) {
	c.mount("tmpfs", "sys", "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "size=4k,nr_inodes=32,mode=0755")
	c.mkdir("sys/empty", 0o555)
	for _, d := range []string{"sys/devices", "sys/devices/system", "sys/fs", "sys/fs/cgroup"} {
		c.mkdir(d, 0o755)
	}
	for i, name := range sysPaths {
		c.mkdir(name[1:], 0o755)
		c.p.Call("showing "+name, unix.SYS_MOVE_MOUNT, trees[i], c.p.Str(""), sysprog.Int(unix.AT_FDCWD), c.p.Str(name[1:]), sysprog.Int(unix.MOVE_MOUNT_F_EMPTY_PATH)).Ignore(unix.EBADF)
	}
	if c.cgroup2 {
		c.p.Call("showing the cgroup", unix.SYS_MOUNT, c.p.Str("cgroup2"), c.p.Str("sys/fs/cgroup"), c.p.Str("cgroup2"), sysprog.Int(unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC|unix.MS_RDONLY), sysprog.Int(0)).Ignore(unix.EPERM, unix.EBUSY)
		// Programs are in a child of the group, which alone counts processes as their limit
		// does. They look for all limits there, or in the group.
		bind := func(from, to string, flags uint64) {
			c.p.Call("showing the cgroup", unix.SYS_MOUNT, c.p.Str("sys/fs/cgroup"+from), c.p.Str("sys/fs/cgroup"+to), sysprog.Int(0), sysprog.Int(unix.MS_BIND|flags), sysprog.Int(0)).Ignore(unix.ENOENT)
		}
		bind("/work/pids.max", "/pids.max", 0)
		bind("/work/pids.current", "/pids.current", 0)
		bind("", "/work", unix.MS_REC)
	}
	c.seal("sys", attrRead|unix.MOUNT_ATTR_NOEXEC, true)
	dirs := maskedDirs[:]
	if c.ids.kind == idsSame {
		dirs = append(slices.Clone(dirs), rootDirs[:]...)
	}
	for _, name := range dirs {
		c.p.Call("masking /"+name, unix.SYS_MOUNT, c.p.Str("sys/empty"), c.p.Str(name), sysprog.Int(0), sysprog.Int(unix.MS_BIND), sysprog.Int(0)).Ignore(unix.ENOENT)
	}
}
