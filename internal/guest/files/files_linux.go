// Package files does the file work of the guest. It runs on threads that have the
// rights of the sandbox's user, and resolves all paths inside the sandbox's own root.
package files

import (
	"bytes"
	"encoding/binary"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit/internal/guest/proctable"
	"github.com/sandpit-dev/sandpit/internal/guest/wire"
)

// A Host is who has asked for an operation that sends something.
type Host interface {
	// Begin says that the operation has begun.
	Begin()
	// Send sends n bytes of content that begin at buf[wire.HeaderSize], and
	// overwrites what is before them. It waits until the host has room.
	Send(buf []byte, n int) error
	// Gone reports whether nobody wants the operation any more.
	Gone() bool
	// Await calls f, which waits. Others may have the thread meanwhile.
	Await(f func())
}

// Retry calls f again while it is interrupted.
func Retry(f func() error) error {
	for {
		if err := f(); err != unix.EINTR {
			return err
		}
	}
}

// Describe fills a message from what stat says.
func Describe(name string, st *unix.Stat_t) wire.File {
	return wire.File{
		Name: name, Size: st.Size, Mode: uint64(st.Mode), ModTime: st.Mtim.Nano(),
		UID: uint64(st.Uid), GID: uint64(st.Gid),
	}
}

// BaseName is the last element of a path.
func BaseName(path string) string {
	path = strings.TrimRight(path, "/")
	if path == "" {
		return "/"
	}
	return path[strings.LastIndexByte(path, '/')+1:]
}

// Stat describes a file.
func Stat(path string, follow bool) (*wire.File, error) {
	var st unix.Stat_t
	flags := unix.AT_SYMLINK_NOFOLLOW
	if follow {
		flags = 0
	}
	if err := Retry(func() error { return unix.Fstatat(unix.AT_FDCWD, path, &st, flags) }); err != nil {
		return nil, err
	}
	f := Describe(BaseName(path), &st)
	if st.Mode&unix.S_IFMT == unix.S_IFLNK {
		target, err := Readlink(unix.AT_FDCWD, path)
		if err != nil {
			return nil, err
		}
		f.Target = target
	}
	return &f, nil
}

// Readlink returns the target of a link.
func Readlink(dir int, path string) (string, error) {
	var b [unix.PathMax]byte
	n, err := unix.Readlinkat(dir, path, b[:])
	if err != nil {
		return "", err
	}
	return string(b[:n]), nil
}

// ReadDir returns the first limit entries whose names are greater than after.
func ReadDir(path, after string, limit int, gone func() bool) (*wire.Entries, error) {
	fd, err := openDir(unix.AT_FDCWD, path, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	names, more, err := namesAfter(fd, after, limit, make([]byte, 32<<10), gone)
	if err != nil {
		return nil, err
	}
	out := &wire.Entries{More: more}
	size := 0
	for _, name := range names {
		var st unix.Stat_t
		err := unix.Fstatat(fd, name, &st, unix.AT_SYMLINK_NOFOLLOW)
		if err == unix.ENOENT {
			continue // just removed
		}
		f := Describe(name, &st)
		if err == nil && st.Mode&unix.S_IFMT == unix.S_IFLNK {
			f.Target, _ = Readlink(fd, name)
		}
		out.List = append(out.List, f)
		if size += len(name) + len(f.Target) + 8; size > wire.MaxReply {
			break // the reply will not hold more anyway
		}
	}
	if len(out.List) < len(names) && size > wire.MaxReply {
		out.More = true
	}
	return out, nil
}

// openDir opens a directory.
func openDir(at int, path string, flags int) (fd int, err error) {
	err = Retry(func() (err error) {
		fd, err = unix.Openat(at, path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC|unix.O_NONBLOCK|flags, 0)
		return err
	})
	return fd, err
}

func getdents(fd int, buf []byte) (n int, err error) {
	err = Retry(func() (err error) {
		n, err = unix.Getdents(fd, buf)
		return err
	})
	return max(n, 0), err
}

// eachEntry calls f with each entry of a buffer that getdents has filled, but
// not with "." and "..", until it returns false.
func eachEntry(b []byte, f func(name []byte, kind byte) bool) {
	for len(b) >= proctable.DirentName {
		size := int(binary.NativeEndian.Uint16(b[16:]))
		if size < proctable.DirentName || size > len(b) {
			return
		}
		name := b[proctable.DirentName:size]
		if i := bytes.IndexByte(name, 0); i >= 0 {
			name = name[:i]
		}
		kind := b[18]
		b = b[size:]
		if string(name) == "." || string(name) == ".." {
			continue
		}
		if !f(name, kind) {
			return
		}
	}
}

// Mkdir makes a directory, with parents those above it too.
func Mkdir(path string, mode uint32, parents bool) error {
	path = trimSlashes(path)
	if !parents {
		return unix.Mkdir(path, mode&0o7777)
	}
	// Usually all but the last are there, so it is tried from the end.
	missing := []string{path}
	for range 4 * unix.PathMax { // somebody may be removing what is made here
		if len(missing) == 0 {
			return nil
		}
		last := missing[len(missing)-1]
		m := uint32(0o755)
		if len(missing) == 1 {
			m = mode & 0o7777
		}
		switch err := unix.Mkdir(last, m); err {
		case nil:
			missing = missing[:len(missing)-1]
		case unix.EEXIST:
			var st unix.Stat_t
			if err := unix.Stat(last, &st); err != nil {
				return err
			}
			if st.Mode&unix.S_IFMT != unix.S_IFDIR {
				return unix.ENOTDIR
			}
			missing = missing[:len(missing)-1]
		case unix.ENOENT:
			dir, _ := splitPath(last)
			dir = trimSlashes(dir)
			if dir == "" || dir == last || len(missing) > unix.PathMax/2 {
				return err
			}
			missing = append(missing, dir)
		default:
			return err
		}
	}
	return unix.ENOENT
}

// trimSlashes removes slashes from the end of a path, but not the only one.
func trimSlashes(path string) string {
	if t := strings.TrimRight(path, "/"); t != "" || path == "" {
		return t
	}
	return "/"
}

// Join joins two paths without cleaning them: a/../b may be another file
// than b where a is a symbolic link.
func Join(dir, name string) string {
	if strings.HasSuffix(dir, "/") {
		return dir + name
	}
	return dir + "/" + name
}
