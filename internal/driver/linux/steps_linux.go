package linux

import (
	"path"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit/internal/sysprog"
)

func (c *compiler) mount(source, target, fstype string, flags int, data string) {
	opts := sysprog.Int(0)
	if data != "" { // not "": the kernel would take a page for it
		opts = c.p.Str(data)
	}
	c.p.Call("mounting "+fstype+" on "+target, unix.SYS_MOUNT, c.p.Str(source), c.p.Str(target), c.p.Str(fstype), sysprog.Int(flags), opts)
}

// attach attaches a detached tree at a path inside.
func (c *compiler) attach(fd sysprog.Arg, target string) { c.move(fd, target) }

func (c *compiler) move(fd sysprog.Arg, target string) {
	c.p.Call("attaching "+target, unix.SYS_MOVE_MOUNT, fd, c.p.Str(""), sysprog.Int(unix.AT_FDCWD), c.p.Str(target), sysprog.Int(unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_SYMLINKS))
}

func (c *compiler) readOnly(target string, recursive bool) {
	c.seal(target, unix.MOUNT_ATTR_RDONLY, recursive)
}

// writable makes one mount writable again.
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
	c.p.Call("creating "+name, unix.SYS_MKDIRAT, sysprog.Int(unix.AT_FDCWD), c.p.Str(name), sysprog.Int(mode))
}

func (c *compiler) mknod(name string) {
	c.p.Call("creating "+name, unix.SYS_MKNODAT, sysprog.Int(unix.AT_FDCWD), c.p.Str(name), sysprog.Int(unix.S_IFREG|0o644), sysprog.Int(0))
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
		c.p.Call("creating "+d, unix.SYS_MKDIRAT, sysprog.Int(unix.AT_FDCWD), c.p.Str(d), sysprog.Int(0o755)).Ignore(unix.EEXIST, unix.EROFS, unix.EACCES)
	}
}

// mkdirAllOwned is mkdirAll for a directory that, when it is new, belongs to a user.
func (c *compiler) mkdirAllOwned(name string, uid, gid uint32) {
	all := parents(name)
	if len(all) == 0 {
		return
	}
	c.mkdirAll(path.Dir(name))
	c.p.Call("creating "+name, unix.SYS_MKDIRAT, sysprog.Int(unix.AT_FDCWD), c.p.Str(name), sysprog.Int(0o755)).Ignore(unix.EEXIST, unix.EROFS, unix.EACCES).SkipAfterIgnored(1)
	c.p.Call("giving "+name+" to the user", unix.SYS_FCHOWNAT, sysprog.Int(unix.AT_FDCWD), c.p.Str(name), sysprog.Int(uid), sysprog.Int(gid), sysprog.Int(unix.AT_SYMLINK_NOFOLLOW))
}
