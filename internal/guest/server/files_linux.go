package server

import (
	"bytes"
	"encoding/binary"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit/internal/guest/wire"
)

// openFile does the file operations. All paths are resolved here, inside the
// sandbox's own root, by threads with the rights of the sandbox's user.
func (s *stream) openFile(op wire.Op, msg []byte) error {
	var simple func(m *wire.Path, path string) (message, error)
	switch op {
	case wire.OpStat:
		var m wire.Stat
		if err := m.Decode(msg); err != nil {
			return invalid("stat: " + err.Error())
		}
		return s.file(m.Path, func(path string) (message, error) { return stat(path, m.Follow) })
	case wire.OpReadDir:
		var m wire.ReadDir
		if err := m.Decode(msg); err != nil {
			return invalid("readdir: " + err.Error())
		}
		limit := int(max(1, min(m.Limit, wire.MaxEntries)))
		return s.file(m.Path, func(path string) (message, error) { return s.readDir(path, m.After, limit) })
	case wire.OpRead:
		var m wire.Read
		if err := m.Decode(msg); err != nil {
			return invalid("read: " + err.Error())
		}
		if m.Offset < 0 || m.Length < -1 {
			return invalid("a negative offset or length")
		}
		path, err := s.c.g.path(m.Path)
		if err != nil {
			return err
		}
		go s.read(&m, path)
		return nil
	case wire.OpWrite:
		var m wire.Write
		if err := m.Decode(msg); err != nil {
			return invalid("write: " + err.Error())
		}
		path, err := s.c.g.path(m.Path)
		if err != nil {
			return err
		}
		s.in = wire.NewQueue(wire.GuestWindow)
		go s.write(&m, path)
		return nil
	case wire.OpCopy:
		var m wire.Path
		if err := m.Decode(msg); err != nil {
			return invalid("copy: " + err.Error())
		}
		other, err := s.c.g.path(m.Other)
		if err != nil {
			return err
		}
		return s.long(m.Path, func(path string) (message, error) {
			return nothing{}, copyTree(path, other, m.Flag, s.isGone)
		})
	case wire.OpFind:
		var m wire.Find
		if err := m.Decode(msg); err != nil {
			return invalid("find: " + err.Error())
		}
		return s.long(m.Root, func(path string) (message, error) { return find(&m, path, s.isGone) })
	case wire.OpGrep:
		m := new(wire.Grep)
		if err := m.Decode(msg); err != nil {
			return invalid("grep: " + err.Error())
		}
		return s.long(m.Root, func(path string) (message, error) { return nil, s.grep(m, path) })
	case wire.OpPack:
		var m wire.Path
		if err := m.Decode(msg); err != nil {
			return invalid("pack: " + err.Error())
		}
		return s.long(m.Path, func(path string) (message, error) { return nil, s.pack(path) })
	case wire.OpUnpack:
		var m wire.Path
		if err := m.Decode(msg); err != nil {
			return invalid("unpack: " + err.Error())
		}
		s.in = wire.NewQueue(wire.GuestWindow)
		return s.long(m.Path, func(path string) (message, error) {
			defer s.in.Close()
			return nothing{}, s.unpack(path)
		})
	case wire.OpWatch:
		var m wire.Watch
		if err := m.Decode(msg); err != nil {
			return invalid("watch: " + err.Error())
		}
		path, err := s.c.g.path(m.Path)
		if err != nil {
			return err
		}
		go s.watch(path, m.Recursive)
		return nil
	case wire.OpEdit:
		m := new(wire.Edits)
		if err := m.Decode(msg); err != nil {
			return invalid("edit: " + err.Error())
		}
		return s.file(m.Path, func(path string) (message, error) { return nothing{}, edit(m, path) })
	case wire.OpMkdir:
		simple = func(m *wire.Path, path string) (message, error) {
			return nothing{}, mkdir(path, uint32(m.Mode), m.Flag)
		}
	case wire.OpRemove:
		simple = func(m *wire.Path, path string) (message, error) {
			if m.Flag {
				return nothing{}, removeTree(path, s.isGone)
			}
			return nothing{}, remove(path)
		}
	case wire.OpRename:
		simple = func(m *wire.Path, path string) (message, error) {
			other, err := s.c.g.path(m.Other)
			if err != nil {
				return nil, err
			}
			return nothing{}, unix.Rename(path, other)
		}
	case wire.OpSymlink:
		simple = func(m *wire.Path, path string) (message, error) {
			if strings.IndexByte(m.Other, 0) >= 0 || m.Other == "" {
				return nil, invalid("the target of the link is empty or has a NUL in it")
			}
			return nothing{}, unix.Symlink(m.Other, path)
		}
	case wire.OpReadlink:
		simple = func(_ *wire.Path, path string) (message, error) {
			target, err := readlink(unix.AT_FDCWD, path)
			return &wire.Path{Path: target}, err
		}
	case wire.OpChmod:
		simple = func(m *wire.Path, path string) (message, error) {
			return nothing{}, unix.Chmod(path, uint32(m.Mode)&0o7777)
		}
	default:
		return fail(wire.CodeUnsupported, "operation "+strconv.Itoa(int(op))+" is unknown to this guest")
	}
	var m wire.Path
	if err := m.Decode(msg); err != nil {
		return invalid(err.Error())
	}
	return s.file(m.Path, func(path string) (message, error) { return simple(&m, path) })
}

// path makes a path of a request absolute. It may be any bytes but NUL.
func (g *guest) path(p string) (string, error) {
	if p == "" || strings.IndexByte(p, 0) >= 0 {
		return "", invalid("the path is empty or has a NUL in it")
	}
	if p[0] == '/' {
		return p, nil
	}
	c := g.config()
	return joinPath(c.workDir(&c.user), p), nil
}

// file answers a call with what f does on a worker.
func (s *stream) file(path string, f func(path string) (message, error)) error {
	path, err := s.c.g.path(path)
	if err != nil {
		return err
	}
	go func() {
		var m message
		err := s.c.g.workers.do(func() (err error) {
			m, err = f(path)
			return err
		})
		s.answer(m, fileError(err))
	}()
	return nil
}

// long is file for what may take long, on a thread of its own. An f that has sent
// a reply itself returns no message: then EOF is the end of the content.
func (s *stream) long(path string, f func(path string) (message, error)) error {
	path, err := s.c.g.path(path)
	if err != nil {
		return err
	}
	go func() {
		var m message
		err := s.c.g.workers.alone(func() (err error) {
			m, err = f(path)
			return err
		})
		switch {
		case err != nil:
			s.fail(fileError(err))
		case m == nil:
			s.end(wire.EOF, nothing{})
		default:
			s.end(wire.Reply, m)
		}
	}()
	return nil
}

// fileError makes an errno an error of a file operation.
func fileError(err error) error {
	if errno, ok := err.(unix.Errno); ok {
		return &guestError{code: wire.CodeFile, errno: errno, text: errno.Error()}
	}
	return err
}

// retry calls f again while it is interrupted.
func retry(f func() error) error {
	for {
		if err := f(); err != unix.EINTR {
			return err
		}
	}
}

// describe fills a message from what stat says.
func describe(name string, st *unix.Stat_t) wire.File {
	return wire.File{
		Name: name, Size: st.Size, Mode: uint64(st.Mode), ModTime: st.Mtim.Nano(),
		UID: uint64(st.Uid), GID: uint64(st.Gid),
	}
}

// baseName is the last element of a path.
func baseName(path string) string {
	path = strings.TrimRight(path, "/")
	if path == "" {
		return "/"
	}
	return path[strings.LastIndexByte(path, '/')+1:]
}

func stat(path string, follow bool) (message, error) {
	var st unix.Stat_t
	flags := unix.AT_SYMLINK_NOFOLLOW
	if follow {
		flags = 0
	}
	if err := retry(func() error { return unix.Fstatat(unix.AT_FDCWD, path, &st, flags) }); err != nil {
		return nil, err
	}
	f := describe(baseName(path), &st)
	if st.Mode&unix.S_IFMT == unix.S_IFLNK {
		target, err := readlink(unix.AT_FDCWD, path)
		if err != nil {
			return nil, err
		}
		f.Target = target
	}
	return &f, nil
}

func readlink(dir int, path string) (string, error) {
	var b [unix.PathMax]byte
	n, err := unix.Readlinkat(dir, path, b[:])
	if err != nil {
		return "", err
	}
	return string(b[:n]), nil
}

// readDir returns the first limit entries whose names are greater than after.
func (s *stream) readDir(path, after string, limit int) (message, error) {
	fd, err := openDir(unix.AT_FDCWD, path, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	names, more, err := namesAfter(fd, after, limit, make([]byte, 32<<10), s.isGone)
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
		f := describe(name, &st)
		if err == nil && st.Mode&unix.S_IFMT == unix.S_IFLNK {
			f.Target, _ = readlink(fd, name)
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
	err = retry(func() (err error) {
		fd, err = unix.Openat(at, path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC|unix.O_NONBLOCK|flags, 0)
		return err
	})
	return fd, err
}

func getdents(fd int, buf []byte) (n int, err error) {
	err = retry(func() (err error) {
		n, err = unix.Getdents(fd, buf)
		return err
	})
	return max(n, 0), err
}

// eachEntry calls f with each entry of a buffer that getdents has filled, but
// not with "." and "..", until it returns false.
func eachEntry(b []byte, f func(name []byte, kind byte) bool) {
	for len(b) >= direntName {
		size := int(binary.NativeEndian.Uint16(b[16:]))
		if size < direntName || size > len(b) {
			return
		}
		name := b[direntName:size]
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

// mkdir makes a directory, with parents those above it too.
func mkdir(path string, mode uint32, parents bool) error {
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
