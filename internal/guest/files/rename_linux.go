package files

import (
	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit/internal/guest/conn"
	"github.com/sandpit-dev/sandpit/internal/guest/wire"
)

// rename answers a request to move a file or tree. rename(2) does it at once, but not to another
// file system, and not for a directory of an image (overlayfs); there it is copied, on a thread
// of its own.
func (f *Files) rename(s *conn.Stream, msg []byte) error {
	var m wire.Path
	if err := m.Decode(msg); err != nil {
		return wire.Invalid("rename: " + err.Error())
	}
	from, err := f.settings.Path(f.user, m.Path)
	if err != nil {
		return err
	}
	to, err := f.settings.Path(f.user, m.Other)
	if err != nil {
		return err
	}
	go func() {
		err := f.workers.Do(f.user, func() error { return unix.Rename(from, to) })
		if err == unix.EXDEV {
			err = f.workers.Alone(f.user, func() error { return move(from, to, s.Gone) })
		}
		s.Answer(conn.Nothing{}, wire.FileError(err))
	}()
	return nil
}

// move moves a file or tree by a copy. The copy is made under another name beside its place, and
// takes it at once, as rename(2) would, when it is complete and the original was taken out of its
// place. What fails before is undone; then the original is removed.
func move(from, to string, gone func() bool) error {
	src, name, err := openParent(from)
	if err != nil {
		return err
	}
	defer unix.Close(src)
	dst, place, err := openParent(to)
	if err != nil {
		return err
	}
	defer unix.Close(dst)
	if err := mayRemove(src); err != nil {
		return err
	}
	var above, st unix.Stat_t
	if err := unix.Fstat(src, &above); err != nil {
		return err
	}
	if err := unix.Fstatat(src, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT == unix.S_IFDIR {
		top, err := openDir(src, name, unix.O_NOFOLLOW)
		if err != nil {
			return err
		}
		err = notInside(to, top)
		unix.Close(top)
		if err != nil {
			return err
		}
	}
	if err := mayReplace(dst, place, st.Mode); err != nil {
		return err
	}

	c := &copier{gone: gone, move: true, dev: uint64(above.Dev)}
	temp := tempName()
	undo := func(err error) error {
		if rerr := c.remove(dst, temp); rerr != nil {
			parent, _ := splitPath(trimSlashes(to))
			return wire.Fail(wire.CodeInternal, "moving to another file system failed: "+err.Error()+"; the incomplete copy "+wire.Quote(parent+temp)+" could not be removed: "+rerr.Error()+"; remove it")
		}
		return err
	}
	if err := c.entry(src, name, dst, temp, 0); err != nil {
		return undo(err)
	}
	// In an image's directory a directory can't be renamed either, and is removed in its place.
	old := tempName()
	err = unix.Renameat(src, name, src, old)
	if err == unix.EXDEV {
		old, err = name, nil
	}
	if err == nil {
		err = unix.Renameat(dst, temp, dst, place)
		if err != nil && old != name {
			_ = unix.Renameat2(src, old, src, name, unix.RENAME_NOREPLACE)
		}
	}
	if err != nil {
		return undo(err)
	}
	if err := c.remove(src, old); err != nil {
		if old != name {
			_ = unix.Renameat2(src, old, src, name, unix.RENAME_NOREPLACE)
		}
		return wire.Fail(wire.CodeInternal, "the copy at "+wire.Quote(to)+" is complete, but the original could not be removed: "+err.Error())
	}
	return nil
}

// strangers is how many entries that were not copied are removed with the others.
const strangers = 10_000

// remove removes the copy or the original, even if the request was canceled. The number of entries that it removes is bounded, so
// that it ends if programs keep creating files there.
func (c *copier) remove(dir int, name string) error {
	r := &treeRemover{gone: func() bool { return false }, buf: make([]byte, 8<<10), left: strangers + 4*c.entries}
	return r.remove(dir, name)
}

// openParent opens the directory that a path names something in.
func openParent(path string) (fd int, name string, err error) {
	dir, name := splitPath(trimSlashes(path))
	if name == "" || name == "." || name == ".." {
		return -1, "", unix.EBUSY // as rename(2) has it
	}
	fd, err = openDir(unix.AT_FDCWD, dir, unix.O_PATH)
	return fd, name, err
}

// mayRemove returns an error if the user may not remove entries of a directory.
func mayRemove(dir int) error {
	err := unix.Faccessat2(dir, ".", unix.W_OK|unix.X_OK, unix.AT_EACCESS)
	if err == unix.ENOSYS {
		return nil // it fails later
	}
	return err
}

// mayReplace returns the error of rename(2) if the entry at a place can't be replaced by a file
// of the given mode, before that is copied.
func mayReplace(dir int, place string, mode uint32) error {
	var st unix.Stat_t
	err := unix.Fstatat(dir, place, &st, unix.AT_SYMLINK_NOFOLLOW)
	isDir, wasDir := mode&unix.S_IFMT == unix.S_IFDIR, st.Mode&unix.S_IFMT == unix.S_IFDIR
	switch {
	case err == unix.ENOENT:
		return nil
	case err != nil:
		return err
	case wasDir && !isDir:
		return unix.EISDIR
	case isDir && !wasDir:
		return unix.ENOTDIR
	}
	return nil
}
