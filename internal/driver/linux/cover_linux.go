package linux

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/fault"
	"github.com/sandpit-dev/sandpit/internal/sysprog"
)

// A data directory has the sockets of a server and of guests, and its files are
// of the user who makes sandboxes. No sandbox may see one: a socket can be
// connected to on a read-only mount, too. A mount of what is in a data directory
// is refused. A mount that contains one gets a cover: an empty read-only
// directory, mounted on the data directory inside the sandbox before anything
// of the sandbox runs.
//
// A mount is on a directory, not on a path: a cover stays on the data directory
// whatever becomes of its path. But it does not hold that where it is. In another
// mount namespace, such as that of a sandbox that is passed a descriptor, the kernel
// lets directories with mounts on them be moved and removed. So a writable mount that
// contains a data directory is refused (refuseWritable): only read-only ones have covers.
//
// An overlay shows nothing of what its maker, the builder, may not enter. A data
// directory in such a place has its cover on the last directory on the way to it that can
// be opened: should its owner let others in later, they find nothing there.

// fileID identifies a directory while it exists.
type fileID struct {
	major, minor uint32
	ino          uint64
}

func idOf(st *unix.Stat_t) fileID {
	return fileID{unix.Major(uint64(st.Dev)), unix.Minor(uint64(st.Dev)), st.Ino}
}

// cover is a data directory in a read-only tree that goes into a sandbox.
type cover struct {
	tree int    // its number in trees
	path string // below the top of the tree
	id   fileID
}

// inOrder returns the covers in the order of use, by tree, each once and without those
// below another one.
func inOrder(covers []cover) []cover {
	all := slices.DeleteFunc(slices.Clone(covers), func(c cover) bool {
		return slices.ContainsFunc(covers, func(o cover) bool {
			rest, in := relative(c.path, o.path)
			return in && rest != "" && o.tree == c.tree
		})
	})
	slices.SortFunc(all, func(a, b cover) int {
		return cmp.Or(a.tree-b.tree, strings.Compare(a.path, b.path))
	})
	return slices.Compact(all)
}

// inTree is how a path is opened below the top of a tree: no link leads on.
const inTree = unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS

// openCovered opens what is to be covered in trees that the owner has opened. It checks
// that it is what it was when it was looked for.
func openCovered(covers []cover, trees []int) (fds []int, err error) {
	defer func() {
		if err != nil {
			closeAll(fds)
		}
	}()
	for _, c := range covers {
		fd, err := unix.Openat2(trees[c.tree], c.path, &unix.OpenHow{Flags: unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: inTree})
		if err != nil {
			return fds, errMoved(c.path, err)
		}
		fds = append(fds, fd)
		var st unix.Stat_t
		if err := unix.Fstat(fd, &st); err != nil || idOf(&st) != c.id {
			return fds, errMoved(c.path, err)
		}
	}
	return fds, nil
}

// errMoved says that a path now leads elsewhere or nowhere.
func errMoved(name string, err error) error {
	if err == nil {
		err = errors.New("it changed meanwhile")
	}
	return sandpit.WithHint(fault.Errorf(sandpit.ErrState, "mounting %s: %w", name, err), "try again")
}

// coverDir is the name of the empty directory in the scratch file system.
const coverDir = "cover"

// makeCover makes what all covers are copies of: a detached mount of an empty
// directory of the scratch file system, which is the working directory.
func (c *compiler) makeCover() {
	if len(c.covers) == 0 {
		return
	}
	c.p.Grow(6 * len(c.covers))
	c.mkdir(coverDir, 0o555)
	c.coverFD = c.openTree("creating a cover", coverDir, false)
	c.setattr("making a cover read-only", c.coverFD, false, attrRead|unix.MOUNT_ATTR_NOEXEC)
}

// cover puts covers on the data directories in a tree that is attached. What is
// attached is the tree itself, or an overlay that shows it, in which a directory is
// known only by its path: no sandbox can change that, because none may write there.
func (c *compiler) cover(tree int, fd, attached sysprog.Arg) {
	const what = "covering the data directory in a mount"
	openIn := func(tree sysprog.Arg, name string) sysprog.Step {
		how := binary.NativeEndian.AppendUint64(nil, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC)
		how = binary.NativeEndian.AppendUint64(how, 0)
		how = binary.NativeEndian.AppendUint64(how, inTree)
		return c.p.Call(what+": opening "+name, unix.SYS_OPENAT2, tree, c.p.Str(name), c.p.Bytes(how), sysprog.Int(len(how)))
	}
	var open []sysprog.Reg
	result := func(s sysprog.Step) sysprog.Arg {
		r := s.Result()
		open = append(open, r)
		return sysprog.From(r)
	}
	for ; c.covered < len(c.covers); c.covered++ {
		p := c.covers[c.covered]
		if p.tree != tree {
			return
		}
		var at sysprog.Arg
		if c.ids.mapped { // and looked at by the owner
			at = c.sentCovered()
		} else {
			at = result(openIn(fd, p.path))
			c.check(p.path, at, p.id)
		}
		in := at
		if attached != fd {
			names := strings.Split(p.path, "/")
			in = result(openIn(attached, names[0]))
			for i := range names[1:] {
				// Below a cover, which is then covered again, there is nothing.
				s := openIn(attached, path.Join(names[:i+2]...)).Ignore(unix.EACCES, unix.ENOENT).SkipAfterIgnored(2)
				next := s.Result()
				c.p.Call(what, unix.SYS_DUP3, sysprog.From(next), in, sysprog.Int(unix.O_CLOEXEC))
				c.p.Call(what, unix.SYS_CLOSE, sysprog.From(next))
				c.p.Free(next)
			}
		}
		mount := sysprog.From(c.coverFD)
		if c.covered > 0 { // the first is where it may be copied from
			mount = result(c.p.Call(what, unix.SYS_OPEN_TREE, mount, c.p.Str(""), sysprog.Int(unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_EMPTY_PATH)))
		}
		c.p.Call(what, unix.SYS_MOVE_MOUNT, mount, c.p.Str(""), in, c.p.Str(""), sysprog.Int(unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH))
		if c.ids.mapped {
			c.p.Call(what, unix.SYS_CLOSE, at)
		}
		for _, r := range open {
			c.p.Call(what, unix.SYS_CLOSE, sysprog.From(r))
			c.p.Free(r)
		}
		open = open[:0]
	}
}

// sentCovered returns the descriptor of what is covered next, which the owner sends, as
// many at a time as fit.
func (c *compiler) sentCovered() sysprog.Arg {
	i := c.covered % maxTrees
	if i == 0 {
		c.message = bytes.Repeat([]byte{0xff}, unix.CmsgSpace(4*maxTrees)) // no descriptor where none comes
		hdr := messageHeader(c.p, make([]byte, 1), c.message)
		c.p.Call("waiting for what is to be covered", unix.SYS_RECVMSG, sysprog.Int(c.answer), hdr, sysprog.Int(unix.MSG_CMSG_CLOEXEC)).Want(1)
	}
	return c.p.Mem32(c.message, unix.CmsgLen(0)+4*i)
}

// check notes what a descriptor of the builder is, for verify.
func (c *compiler) check(name string, fd sysprog.Arg, want fileID) {
	statx := make([]byte, 256)
	c.p.Call("looking at "+name, unix.SYS_STATX, fd, c.p.Str(""), sysprog.Int(unix.AT_EMPTY_PATH), sysprog.Int(unix.STATX_INO), c.p.Bytes(statx))
	c.checked = append(c.checked, checked{name, statx, want})
}

// checked is what the builder found in place of a directory or file.
type checked struct {
	name  string
	statx []byte // struct statx of statx(2)
	want  fileID
}

// verify returns nil if the builder found everything that it should. Call it after the
// builder has ended, and before anything of the sandbox runs.
func (c *compiler) verify() error {
	for _, s := range c.checked {
		ne := binary.NativeEndian
		if got := (fileID{ne.Uint32(s.statx[136:]), ne.Uint32(s.statx[140:]), ne.Uint64(s.statx[32:])}); got != s.want {
			return errMoved(s.name, nil)
		}
	}
	return nil
}
