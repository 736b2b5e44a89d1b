package server

import (
	"io"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit/internal/guest/fault"
	"github.com/sandpit-dev/sandpit/internal/guest/files"
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
			return fault.Invalid("stat: " + err.Error())
		}
		return s.file(m.Path, func(path string) (message, error) { return files.Stat(path, m.Follow) })
	case wire.OpReadDir:
		var m wire.ReadDir
		if err := m.Decode(msg); err != nil {
			return fault.Invalid("readdir: " + err.Error())
		}
		limit := int(max(1, min(m.Limit, wire.MaxEntries)))
		return s.file(m.Path, func(path string) (message, error) { return files.ReadDir(path, m.After, limit, s.Gone) })
	case wire.OpRead:
		var m wire.Read
		if err := m.Decode(msg); err != nil {
			return fault.Invalid("read: " + err.Error())
		}
		if m.Offset < 0 || m.Length < -1 {
			return fault.Invalid("a negative offset or length")
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
			return fault.Invalid("write: " + err.Error())
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
			return fault.Invalid("copy: " + err.Error())
		}
		other, err := s.c.g.path(m.Other)
		if err != nil {
			return err
		}
		return s.long(m.Path, func(path string) (message, error) {
			return nothing{}, files.Copy(path, other, m.Flag, s.Gone)
		})
	case wire.OpFind:
		var m wire.Find
		if err := m.Decode(msg); err != nil {
			return fault.Invalid("find: " + err.Error())
		}
		return s.long(m.Root, func(path string) (message, error) { return files.Find(&m, path, s.Gone) })
	case wire.OpGrep:
		m := new(wire.Grep)
		if err := m.Decode(msg); err != nil {
			return fault.Invalid("grep: " + err.Error())
		}
		return s.long(m.Root, func(path string) (message, error) { return nil, files.Grep(s, m, path) })
	case wire.OpPack:
		var m wire.Path
		if err := m.Decode(msg); err != nil {
			return fault.Invalid("pack: " + err.Error())
		}
		return s.long(m.Path, func(path string) (message, error) { return nil, files.Pack(s, path) })
	case wire.OpUnpack:
		var m wire.Path
		if err := m.Decode(msg); err != nil {
			return fault.Invalid("unpack: " + err.Error())
		}
		s.in = wire.NewQueue(wire.GuestWindow)
		return s.long(m.Path, func(path string) (message, error) {
			defer s.in.Close()
			return nothing{}, files.Unpack(&awaitReader{s, &wire.ContentReader{In: s.in, Credit: s.giveCredit}}, path)
		})
	case wire.OpWatch:
		var m wire.Watch
		if err := m.Decode(msg); err != nil {
			return fault.Invalid("watch: " + err.Error())
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
			return fault.Invalid("edit: " + err.Error())
		}
		return s.file(m.Path, func(path string) (message, error) { return nothing{}, files.Edit(m, path) })
	case wire.OpMkdir:
		simple = func(m *wire.Path, path string) (message, error) {
			return nothing{}, files.Mkdir(path, uint32(m.Mode), m.Flag)
		}
	case wire.OpRemove:
		simple = func(m *wire.Path, path string) (message, error) {
			if m.Flag {
				return nothing{}, files.RemoveTree(path, s.Gone)
			}
			return nothing{}, files.Remove(path)
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
				return nil, fault.Invalid("the target of the link is empty or has a NUL in it")
			}
			return nothing{}, unix.Symlink(m.Other, path)
		}
	case wire.OpReadlink:
		simple = func(_ *wire.Path, path string) (message, error) {
			target, err := files.Readlink(unix.AT_FDCWD, path)
			return &wire.Path{Path: target}, err
		}
	case wire.OpChmod:
		simple = func(m *wire.Path, path string) (message, error) {
			return nothing{}, unix.Chmod(path, uint32(m.Mode)&0o7777)
		}
	default:
		return fault.New(wire.CodeUnsupported, "operation "+strconv.Itoa(int(op))+" is unknown to this guest")
	}
	var m wire.Path
	if err := m.Decode(msg); err != nil {
		return fault.Invalid(err.Error())
	}
	return s.file(m.Path, func(path string) (message, error) { return simple(&m, path) })
}

// path makes a path of a request absolute. It may be any bytes but NUL.
func (g *guest) path(p string) (string, error) {
	if p == "" || strings.IndexByte(p, 0) >= 0 {
		return "", fault.Invalid("the path is empty or has a NUL in it")
	}
	if p[0] == '/' {
		return p, nil
	}
	c := g.config()
	return files.Join(c.workDir(&c.user), p), nil
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
		s.answer(m, fault.Of(err))
	}()
	return nil
}

// long is file for work that may take long, or wait for the host. An f that has sent
// a reply itself returns no message: then EOF is the end of the content.
func (s *stream) long(path string, f func(path string) (message, error)) error {
	path, err := s.c.g.path(path)
	if err != nil {
		return err
	}
	go func() {
		var m message
		err := s.c.g.workers.alone(s, func() (err error) {
			m, err = f(path)
			return err
		})
		switch {
		case err != nil:
			s.fail(fault.Of(err))
		case m == nil:
			s.end(wire.EOF, nothing{})
		default:
			s.end(wire.Reply, m)
		}
	}()
	return nil
}

// awaitReader reads what the host sends.
type awaitReader struct {
	s *stream
	r io.Reader
}

func (a *awaitReader) Read(b []byte) (n int, err error) {
	a.s.Await(func() { n, err = a.r.Read(b) })
	return n, err
}
