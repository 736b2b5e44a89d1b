package files

import (
	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit/internal/guest/conn"
	"github.com/sandpit-dev/sandpit/internal/guest/fdio"
	"github.com/sandpit-dev/sandpit/internal/guest/wire"
)

// copyTree copies a file or link, or a directory with its content. Links
// are copied, not followed; sockets, pipes and devices are refused.
func copyTree(from, to string, recursive bool, gone func() bool) error {
	from, to = trimSlashes(from), trimSlashes(to)
	var st unix.Stat_t
	if err := unix.Fstatat(unix.AT_FDCWD, from, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return err
	}
	c := &copier{gone: gone}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		fd, st, err := openRegular(from, unix.O_RDONLY|unix.O_NOFOLLOW, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		t, err := openTarget(&wire.Write{Mode: uint64(st.Mode & 0o777)}, to, func(to int) error { return copyXattrs(to, fd) })
		if err != nil {
			return err
		}
		err = c.content(t.fd, fd)
		if err == nil {
			err = unix.Fchmod(t.fd, st.Mode&0o777)
		}
		if ferr := t.finish(err == nil); err == nil {
			err = ferr
		}
		return err
	case unix.S_IFLNK:
		return c.link(unix.AT_FDCWD, from, unix.AT_FDCWD, to)
	case unix.S_IFDIR:
		if !recursive {
			return unix.EISDIR
		}
	default:
		return unix.EINVAL
	}
	src, err := openDir(unix.AT_FDCWD, from, unix.O_NOFOLLOW)
	if err != nil {
		return err
	}
	defer unix.Close(src)
	if err := notInside(to, src); err != nil {
		return err
	}
	return c.dir(src, unix.AT_FDCWD, to, 0)
}

// notInside refuses a path that is inside of the directory fd: a copy of it
// would be endless.
func notInside(path string, fd int) error {
	var top unix.Stat_t
	if err := unix.Fstat(fd, &top); err != nil {
		return err
	}
	parent, _ := splitPath(path)
	if parent == "" {
		parent = "."
	}
	at, err := openDir(unix.AT_FDCWD, parent, 0)
	if err != nil {
		return err
	}
	defer func() { unix.Close(at) }()
	var last unix.Stat_t
	for range maxDepth {
		var st unix.Stat_t
		if err := unix.Fstat(at, &st); err != nil {
			return err
		}
		if st.Dev == top.Dev && st.Ino == top.Ino {
			return unix.EINVAL
		}
		if st.Dev == last.Dev && st.Ino == last.Ino { // the root
			return nil
		}
		last = st
		up, err := openDir(at, "..", 0)
		if err != nil {
			return nil // as far as can be seen
		}
		unix.Close(at)
		at = up
	}
	return nil
}

// copier copies within a tree.
type copier struct {
	gone func() bool
	move bool   // the originals are to be removed: copies keep times, and owners as far as the user may give files away
	dev  uint64 // with move: the file system of all directories
	buf  []byte

	entries int // that were begun
}

// dir copies the directory src to a new one called name in at.
func (c *copier) dir(src, at int, name string, depth int) error {
	if depth >= maxTreeDepth {
		return unix.ENAMETOOLONG
	}
	var st unix.Stat_t
	if err := unix.Fstat(src, &st); err != nil {
		return err
	}
	if c.move {
		if uint64(st.Dev) != c.dev {
			return unix.EBUSY // a mount point
		}
		if err := mayRemove(src); err != nil {
			return err
		}
	}
	if err := unix.Mkdirat(at, name, 0o700); err != nil {
		return err
	}
	dst, err := openDir(at, name, unix.O_NOFOLLOW)
	if err != nil {
		return err
	}
	defer unix.Close(dst)
	buf := make([]byte, 8<<10)
	for {
		n, err := fdio.Getdents(src, buf)
		if err != nil {
			return err
		}
		if n == 0 {
			return c.finish(dst, src, &st, st.Mode&0o7777&^0o6000)
		}
		var first error
		fdio.EachEntry(buf[:n], func(name []byte, _ byte) bool {
			first = c.entry(src, string(name), dst, string(name), depth)
			return first == nil
		})
		if first != nil {
			return first
		}
	}
}

// entry copies one entry of a directory to a new one called to.
func (c *copier) entry(src int, name string, dst int, to string, depth int) error {
	if c.gone() {
		return conn.ErrGone
	}
	c.entries++
	var st unix.Stat_t
	if err := unix.Fstatat(src, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		if err == unix.ENOENT {
			return nil // just removed
		}
		return err
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		fd, err := openDir(src, name, unix.O_NOFOLLOW)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		return c.dir(fd, dst, to, depth+1)
	case unix.S_IFLNK:
		if err := c.link(src, name, dst, to); err != nil {
			return err
		}
		return c.finishLink(dst, to, &st)
	}
	in, st, err := openRegularAt(src, name, unix.O_RDONLY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	defer unix.Close(in)
	out, err := createNew(dst, to, 0o600)
	if err != nil {
		return err
	}
	if err = c.content(out, in); err == nil {
		err = c.finish(out, in, &st, st.Mode&0o777)
	}
	if cerr := unix.Close(out); err == nil {
		err = cerr
	}
	return err
}

// finish gives a copy the attributes and mode of its original, and when that is moved, its times and owner.
func (c *copier) finish(fd, src int, st *unix.Stat_t, mode uint32) error {
	if err := copyXattrs(fd, src); err != nil {
		return err
	}
	if err := unix.Fchmod(fd, mode); err != nil || !c.move {
		return err
	}
	if err := setTimes(fd, false, []unix.Timespec{st.Atim, st.Mtim}); err != nil {
		return err
	}
	_ = unix.Fchown(fd, int(st.Uid), int(st.Gid)) // only root may
	return nil
}

// finishLink is finish for a symbolic link, which has no mode.
func (c *copier) finishLink(dir int, name string, st *unix.Stat_t) error {
	if !c.move {
		return nil
	}
	fd, err := unix.Openat(dir, name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := setTimes(fd, true, []unix.Timespec{st.Atim, st.Mtim}); err != nil {
		return err
	}
	_ = unix.Fchownat(fd, "", int(st.Uid), int(st.Gid), unix.AT_EMPTY_PATH)
	return nil
}

// link copies a symbolic link, over a file that is there.
func (c *copier) link(src int, name string, dst int, to string) error {
	target, err := readlink(src, name)
	if err != nil {
		return err
	}
	return replaceAt(dst, to, func() error { return unix.Symlinkat(target, dst, to) })
}

// replaceAt makes an entry, and removes one first that is in its place, unless
// that is a directory.
func replaceAt(dir int, name string, make func() error) error {
	err := make()
	for tries := 0; err == unix.EEXIST && tries < maxBusy; tries++ {
		if err := unix.Unlinkat(dir, name, 0); err != nil && err != unix.ENOENT {
			return err
		}
		err = make()
	}
	return err
}

// copyStep is how much is copied before it is asked whether anybody still wants it.
const copyStep = 8 << 20

// content copies a file up to the size that it has, and leaves out its holes.
func (c *copier) content(out, in int) error {
	var st unix.Stat_t
	if err := unix.Fstat(in, &st); err != nil {
		return err
	}
	for at := int64(0); at < st.Size; {
		data, end := at, st.Size
		from, err := unix.Seek(in, at, unix.SEEK_DATA)
		switch {
		case err == unix.ENXIO: // the rest is a hole
			data = st.Size
			if err := unix.Ftruncate(out, st.Size); err != nil {
				return err
			}
		case err == nil:
			data = min(from, st.Size)
			if to, err := unix.Seek(in, data, unix.SEEK_HOLE); err == nil && to > data {
				end = min(to, st.Size)
			}
		}
		for _, fd := range []int{in, out} {
			if _, err := unix.Seek(fd, data, unix.SEEK_SET); err != nil {
				return err
			}
		}
		if err := c.data(out, in, end-data); err != nil {
			return err
		}
		at = end
	}
	if st.Size > 0 {
		return nil
	}
	return c.unsized(out, in)
}

// data copies n bytes, or up to the end: in the kernel where that is possible.
func (c *copier) data(out, in int, n int64) error {
	for n > 0 {
		if c.gone() {
			return conn.ErrGone
		}
		copied, err := unix.CopyFileRange(in, nil, out, nil, int(min(n, copyStep)), 0)
		switch err {
		case nil:
			if copied == 0 {
				return nil
			}
			n -= int64(copied)
		case unix.EINTR:
		case unix.EXDEV, unix.EINVAL, unix.ENOSYS, unix.EOPNOTSUPP, unix.EPERM:
			return c.through(out, in, n)
		default:
			return err
		}
	}
	return nil
}

// through copies n bytes, or up to the end, through memory.
func (c *copier) through(out, in int, n int64) error {
	if c.buf == nil {
		c.buf = make([]byte, 64<<10)
	}
	for n > 0 {
		if c.gone() {
			return conn.ErrGone
		}
		read, err := fdio.Read(in, c.buf[:min(n, int64(len(c.buf)))])
		if err != nil || read == 0 {
			return err
		}
		if err := fdio.WriteAll(out, c.buf[:read]); err != nil {
			return err
		}
		n -= int64(read)
	}
	return nil
}

// unsized copies a file that says it is empty, as those of /proc do.
func (c *copier) unsized(out, in int) error {
	if err := c.through(out, in, maxUnsized); err != nil {
		return err
	}
	var more [1]byte
	if n, err := fdio.Read(in, more[:]); err != nil || n == 0 {
		return err
	}
	return unix.EFBIG // it has no end
}
