// Package files does the file work of the guest. All paths are resolved inside the
// sandbox's own root, by threads with the rights of the sandbox's user.
package files

import (
	"math"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit/internal/guest/conn"
	"github.com/sandpit-dev/sandpit/internal/guest/fdio"
	"github.com/sandpit-dev/sandpit/internal/guest/settings"
	"github.com/sandpit-dev/sandpit/internal/guest/wire"
	"github.com/sandpit-dev/sandpit/internal/guest/workers"
)

// Files does file operations for streams.
type Files struct {
	*shared
	user *settings.User // whose rights they have; nil: the sandbox's
}

type shared struct {
	settings *settings.Settings
	workers  *workers.Pool
	watchers atomic.Int64
	content  chan struct{} // a token for each thread that reads or writes content
}

// maxContent is how many threads read or write the content of files at once: each may
// wait for a disk, or for a program that holds a lock in the kernel.
const maxContent = 16

// MaxThreads is the maximum of threads that Files have beside those of their pool.
const MaxThreads = maxContent + maxWatchers

// New returns Files that work on the threads of a pool.
func New(s *settings.Settings, w *workers.Pool) *Files {
	return &Files{shared: &shared{settings: s, workers: w, content: make(chan struct{}, maxContent)}}
}

// move calls f, which reads or writes content.
func (f *Files) move(do func() error) error {
	f.content <- struct{}{}
	defer func() { <-f.content }()
	return do()
}

// Open carries out the file operation of an OPEN frame, and refuses other operations.
func (f *Files) Open(s *conn.Stream, op wire.Op, msg []byte) error {
	var simple func(m *wire.Path, path string) (conn.Message, error)
	switch op {
	case wire.OpAs:
		return f.as(s, msg)
	case wire.OpStat:
		var m wire.Stat
		if err := m.Decode(msg); err != nil {
			return wire.Invalid("stat: " + err.Error())
		}
		return f.call(s, m.Path, func(path string) (conn.Message, error) { return stat(&m, path) })
	case wire.OpReadDir:
		var m wire.ReadDir
		if err := m.Decode(msg); err != nil {
			return wire.Invalid("readdir: " + err.Error())
		}
		limit := int(max(1, min(m.Limit, wire.MaxEntries)))
		return f.call(s, m.Path, func(path string) (conn.Message, error) { return readDir(s, path, m.After, limit) })
	case wire.OpRead:
		var m wire.Read
		if err := m.Decode(msg); err != nil {
			return wire.Invalid("read: " + err.Error())
		}
		if m.Offset < 0 || m.Length < -1 {
			return wire.Invalid("a negative offset or length")
		}
		path, err := f.settings.Path(f.user, m.Path)
		if err != nil {
			return err
		}
		go f.read(s, &m, path)
		return nil
	case wire.OpWrite:
		var m wire.Write
		if err := m.Decode(msg); err != nil {
			return wire.Invalid("write: " + err.Error())
		}
		if err := checkXattrs(&m); err != nil {
			return err
		}
		if m.InPlace && m.AtEnd {
			return wire.Invalid("a write is either at an offset or at the end of the file: omit one of them")
		}
		if m.Offset < 0 || m.Offset > 0 && !m.InPlace {
			return wire.Invalid("the offset of a write is negative, or the write is not in place")
		}
		path, err := f.settings.Path(f.user, m.Path)
		if err != nil {
			return err
		}
		if s.In == nil {
			s.In = wire.NewQueue(wire.GuestWindow)
		}
		go f.write(s, &m, path)
		return nil
	case wire.OpCopy:
		var m wire.Path
		if err := m.Decode(msg); err != nil {
			return wire.Invalid("copy: " + err.Error())
		}
		other, err := f.settings.Path(f.user, m.Other)
		if err != nil {
			return err
		}
		return f.long(s, m.Path, func(path string) (conn.Message, error) {
			return conn.Nothing{}, copyTree(path, other, m.Flag, s.Gone)
		})
	case wire.OpFind:
		var m wire.Find
		if err := m.Decode(msg); err != nil {
			return wire.Invalid("find: " + err.Error())
		}
		return f.long(s, m.Root, func(path string) (conn.Message, error) { return find(&m, path, s.Gone) })
	case wire.OpGrep:
		m := new(wire.Grep)
		if err := m.Decode(msg); err != nil {
			return wire.Invalid("grep: " + err.Error())
		}
		return f.long(s, m.Root, func(path string) (conn.Message, error) { return nil, grep(s, m, path) })
	case wire.OpPack:
		var m wire.Path
		if err := m.Decode(msg); err != nil {
			return wire.Invalid("pack: " + err.Error())
		}
		return f.long(s, m.Path, func(path string) (conn.Message, error) { return nil, pack(s, path) })
	case wire.OpUnpack:
		var m wire.Path
		if err := m.Decode(msg); err != nil {
			return wire.Invalid("unpack: " + err.Error())
		}
		if s.In == nil {
			s.In = wire.NewQueue(wire.GuestWindow)
		}
		return f.long(s, m.Path, func(path string) (conn.Message, error) {
			defer s.In.Close()
			return conn.Nothing{}, unpack(s, path)
		})
	case wire.OpWatch:
		var m wire.Watch
		if err := m.Decode(msg); err != nil {
			return wire.Invalid("watch: " + err.Error())
		}
		path, err := f.settings.Path(f.user, m.Path)
		if err != nil {
			return err
		}
		go f.watch(s, path, m.Recursive)
		return nil
	case wire.OpEdit:
		m := new(wire.Edits)
		if err := m.Decode(msg); err != nil {
			return wire.Invalid("edit: " + err.Error())
		}
		return f.call(s, m.Path, func(path string) (conn.Message, error) { return conn.Nothing{}, edit(m, path) })
	case wire.OpSetAttr:
		m := new(wire.SetAttr)
		if err := m.Decode(msg); err != nil {
			return wire.Invalid("setattr: " + err.Error())
		}
		if err := checkAttr(m); err != nil {
			return err
		}
		return f.call(s, m.Path, func(path string) (conn.Message, error) { return conn.Nothing{}, setAttr(m, path) })
	case wire.OpMkdir:
		simple = func(m *wire.Path, path string) (conn.Message, error) {
			return conn.Nothing{}, mkdir(path, uint32(m.Mode), m.Flag)
		}
	case wire.OpRemove:
		simple = func(m *wire.Path, path string) (conn.Message, error) {
			if m.Flag {
				return conn.Nothing{}, removeTree(unix.AT_FDCWD, path, s.Gone)
			}
			return conn.Nothing{}, remove(unix.AT_FDCWD, path)
		}
	case wire.OpRename:
		return f.rename(s, msg)
	case wire.OpSymlink:
		simple = func(m *wire.Path, path string) (conn.Message, error) {
			if strings.IndexByte(m.Other, 0) >= 0 || m.Other == "" {
				return nil, wire.Invalid("the target of the link is empty or has a NUL in it")
			}
			return conn.Nothing{}, unix.Symlink(m.Other, path)
		}
	case wire.OpReadlink:
		simple = func(_ *wire.Path, path string) (conn.Message, error) {
			target, err := readlink(unix.AT_FDCWD, path)
			return &wire.Path{Path: target}, err
		}
	case wire.OpChmod:
		simple = func(m *wire.Path, path string) (conn.Message, error) {
			return conn.Nothing{}, unix.Chmod(path, uint32(m.Mode)&0o7777)
		}
	default:
		return wire.Fail(wire.CodeUnsupported, "operation "+strconv.Itoa(int(op))+" is unknown to this guest")
	}
	var m wire.Path
	if err := m.Decode(msg); err != nil {
		return wire.Invalid(err.Error())
	}
	return f.call(s, m.Path, func(path string) (conn.Message, error) { return simple(&m, path) })
}

// as carries out a file operation with the rights of another user. Nothing is checked for
// that user in advance: the operation's thread is that user to the kernel.
func (f *Files) as(s *conn.Stream, msg []byte) error {
	var m wire.As
	if err := m.Decode(msg); err != nil {
		return wire.Invalid("as: " + err.Error())
	}
	switch op := wire.Op(m.Op); {
	case m.Op != uint64(op) || !op.OfFiles():
		return wire.Invalid("operation " + strconv.FormatUint(m.Op, 10) + " is not one of files")
	case m.User == "": // to LookUser it is the guest itself
		return wire.Invalid("the user is empty")
	case op == wire.OpWrite || op == wire.OpUnpack:
		s.In = wire.NewQueue(wire.GuestWindow) // the content may follow at once
	}
	go func() { // the files that name users may be on a disk that does not answer
		u, err := f.settings.LookUser(m.User)
		if err == nil {
			other := &Files{shared: f.shared}
			if c := f.settings.Config(); m.Root || !u.Same(&c.User) {
				u.Root = m.Root
				other.user = &u
			}
			err = other.Open(s, wire.Op(m.Op), []byte(m.Message))
		}
		if err != nil {
			if s.In != nil {
				s.In.Close()
			}
			s.Fail(err)
		}
	}()
	return nil
}

// call answers a call with what do does on a worker.
func (f *Files) call(s *conn.Stream, path string, do func(path string) (conn.Message, error)) error {
	path, err := f.settings.Path(f.user, path)
	if err != nil {
		return err
	}
	go func() {
		var m conn.Message
		err := f.workers.Do(f.user, func() (err error) {
			m, err = do(path)
			return err
		})
		s.Answer(m, wire.FileError(err))
	}()
	return nil
}

// long is call for what may take long, on a thread of its own. If do has sent
// a reply itself, it returns no message: then EOF is the end of the content.
func (f *Files) long(s *conn.Stream, path string, do func(path string) (conn.Message, error)) error {
	path, err := f.settings.Path(f.user, path)
	if err != nil {
		return err
	}
	go func() {
		var m conn.Message
		err := f.workers.Alone(f.user, func() (err error) {
			m, err = do(path)
			return err
		})
		switch {
		case err != nil:
			s.Fail(wire.FileError(err))
		case m == nil:
			s.End(wire.EOF, conn.Nothing{})
		default:
			s.End(wire.Reply, m)
		}
	}()
	return nil
}

// describe fills a message from what stat says.
func describe(name string, st *unix.Stat_t) wire.File {
	return wire.File{
		Name: name, Size: st.Size, Mode: uint64(st.Mode), ModTime: nanoseconds(st.Mtim),
		UID: uint64(st.Uid), GID: uint64(st.Gid),
	}
}

// nanoseconds returns a time in nanoseconds since 1970: the nearest that 64 bits can tell, of those before 1678 and after 2261.
func nanoseconds(t unix.Timespec) int64 {
	const most = math.MaxInt64 / int64(time.Second)
	switch sec := int64(t.Sec); {
	case sec >= most:
		return math.MaxInt64
	case sec <= -most:
		return math.MinInt64
	}
	return t.Nano()
}

// baseName is the last element of a path.
func baseName(path string) string {
	path = strings.TrimRight(path, "/")
	if path == "" {
		return "/"
	}
	return path[strings.LastIndexByte(path, '/')+1:]
}

func stat(m *wire.Stat, path string) (conn.Message, error) {
	var st unix.Stat_t
	flags := unix.AT_SYMLINK_NOFOLLOW
	if m.Follow {
		flags = 0
	}
	if err := fdio.Retry(func() error { return unix.Fstatat(unix.AT_FDCWD, path, &st, flags) }); err != nil {
		return nil, err
	}
	f := describe(baseName(path), &st)
	if st.Mode&unix.S_IFMT == unix.S_IFLNK {
		target, err := readlink(unix.AT_FDCWD, path)
		if err != nil {
			return nil, err
		}
		f.Target = target
	} else if m.Attrs {
		f.Attrs = xattrs(path, &st)
	}
	return &wire.Described{File: f}, nil
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
func readDir(s *conn.Stream, path, after string, limit int) (conn.Message, error) {
	fd, err := openDir(unix.AT_FDCWD, path, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	names, more, err := namesAfter(fd, after, limit, make([]byte, 32<<10), s.Gone)
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
	err = fdio.Retry(func() (err error) {
		fd, err = unix.Openat(at, path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC|unix.O_NONBLOCK|flags, 0)
		return err
	})
	return fd, err
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
