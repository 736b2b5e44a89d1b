package files

import (
	"math"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit/internal/guest/conn"
	"github.com/sandpit-dev/sandpit/internal/guest/fdio"
)

// remove removes a file, a link or an empty directory.
func remove(dir int, path string) error {
	err := unix.Unlinkat(dir, path, 0)
	if err == unix.EISDIR || err == unix.EPERM { // Linux says EISDIR, POSIX EPERM
		if derr := unix.Unlinkat(dir, path, unix.AT_REMOVEDIR); derr != unix.ENOTDIR {
			return derr
		}
	}
	return err
}

const (
	// maxDepth is how many levels are remembered on the way down; below them
	// the work starts again (see treeRemover).
	maxDepth = 4096
	// maxBusy is how often a directory that is filled again while it is being
	// emptied is gone through.
	maxBusy = 100
)

// removeTree removes path with all that is in it. What does not exist is not an error.
func removeTree(dir int, path string, gone func() bool) error {
	path = trimSlashes(path)
	if path == "/" {
		return unix.EBUSY
	}
	return (&treeRemover{gone: gone, buf: make([]byte, 8<<10), left: math.MaxInt}).remove(dir, path)
}

// remove removes path with all that is in it.
func (r *treeRemover) remove(dir int, path string) error {
	for {
		err := remove(dir, path)
		switch err {
		case nil, unix.ENOENT:
			return nil
		case unix.ENOTEMPTY, unix.EEXIST: // either, says rmdir(2)
		default:
			return err
		}
		fd, err := openDir(dir, path, unix.O_NOFOLLOW)
		if err == unix.ENOENT {
			return nil
		}
		if err != nil {
			return err
		}
		if err := r.empty(fd); err != nil {
			return err
		}
		if r.busy++; r.busy > maxBusy {
			return unix.ENOTEMPTY
		}
	}
}

// treeRemover empties directories. It holds two descriptors and a few bytes
// for each level, whatever the tree looks like. It goes down by openat, which
// follows no link, and up by "..", where it checks that it comes back to where
// it was: somebody may be moving directories about meanwhile.
type treeRemover struct {
	gone func() bool
	buf  []byte
	busy int // rounds that ended with something left
	left int // how many entries may be removed or entered yet: somebody may be making new ones
}

// level is a directory on the way down.
type level struct {
	dev, ino uint64
	name     string // of the directory below, in this one
}

// empty removes what is in the directory fd, which it closes. After a tree that
// is deeper than maxDepth it returns with something left, having removed what
// was deepest.
func (r *treeRemover) empty(fd int) error {
	defer func() { unix.Close(fd) }()
	var up []level
	forgotten := false // that there are levels above up[0]
	rounds := 0
	for {
		if r.gone() {
			return conn.ErrGone
		}
		sub, err := r.sweep(fd)
		if err != nil {
			return err
		}
		if sub != "" {
			var st unix.Stat_t
			if err := unix.Fstat(fd, &st); err != nil {
				return err
			}
			if r.left--; r.left < 0 {
				return unix.ENOTEMPTY
			}
			next, err := openDir(fd, sub, unix.O_NOFOLLOW)
			switch err {
			case nil:
			case unix.ENOENT, unix.ENOTDIR, unix.ELOOP: // it was replaced: look again
				if rounds++; rounds > maxBusy {
					return unix.ENOTEMPTY
				}
				continue
			default:
				return err
			}
			if len(up) == maxDepth {
				up, forgotten = up[:0], true
				unix.Close(fd)
				fd = next
				continue
			}
			up = append(up, level{uint64(st.Dev), st.Ino, sub})
			unix.Close(fd)
			fd = next
			continue
		}
		if len(up) == 0 {
			if forgotten {
				r.busy = 0 // this was progress
			}
			return nil
		}
		parent, err := openDir(fd, "..", 0)
		if err != nil {
			return err
		}
		unix.Close(fd)
		fd = parent
		above := up[len(up)-1]
		up = up[:len(up)-1]
		var st unix.Stat_t
		if err := unix.Fstat(fd, &st); err != nil {
			return err
		}
		if uint64(st.Dev) != above.dev || st.Ino != above.ino {
			return unix.EBUSY // the directory was moved away
		}
		switch err := unix.Unlinkat(fd, above.name, unix.AT_REMOVEDIR); err {
		case nil, unix.ENOENT:
		case unix.ENOTEMPTY, unix.EEXIST, unix.ENOTDIR:
			if rounds++; rounds > maxBusy {
				return unix.ENOTEMPTY
			}
		default:
			return err
		}
	}
}

// sweep removes all from a directory but what is not empty, and returns one
// such subdirectory, or "" when nothing is left.
func (r *treeRemover) sweep(fd int) (sub string, err error) {
	for {
		if _, err := unix.Seek(fd, 0, 0); err != nil {
			return "", err
		}
		removed := false
		for {
			if r.gone() {
				return "", conn.ErrGone
			}
			n, err := fdio.Getdents(fd, r.buf)
			if err != nil {
				return "", err
			}
			if n == 0 {
				break
			}
			var first error
			fdio.EachEntry(r.buf[:n], func(name []byte, kind byte) bool {
				err := unlinkEntry(fd, string(name), kind)
				if r.left--; r.left < 0 {
					err = unix.EBUSY
				}
				switch err {
				case nil, unix.ENOENT:
					removed = true
				case unix.ENOTEMPTY, unix.EEXIST:
					sub = string(name)
					return false
				default:
					first = err
					return false
				}
				return true
			})
			if first != nil || sub != "" {
				return sub, first
			}
		}
		// Entries may be missed while others are removed: only a pass that
		// found nothing is the last.
		if !removed {
			return "", nil
		}
	}
}

// unlinkEntry removes an entry whose kind getdents has told.
func unlinkEntry(fd int, name string, kind byte) error {
	flags := 0
	if kind == unix.DT_DIR {
		flags = unix.AT_REMOVEDIR
	}
	err := unix.Unlinkat(fd, name, flags)
	if err == unix.EISDIR || err == unix.EPERM && kind == unix.DT_UNKNOWN {
		return unix.Unlinkat(fd, name, unix.AT_REMOVEDIR)
	}
	if err == unix.ENOTDIR && flags != 0 {
		return unix.Unlinkat(fd, name, 0)
	}
	return err
}
