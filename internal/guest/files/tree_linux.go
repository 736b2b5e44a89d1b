package files

import (
	"bufio"
	"errors"
	"io"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit/internal/guest/conn"
	"github.com/sandpit-dev/sandpit/internal/guest/fdio"
	"github.com/sandpit-dev/sandpit/internal/guest/wire"
)

// pack sends a file, or a directory with all that is in it.
func pack(s *conn.Stream, path string) error {
	path = trimSlashes(path)
	// As with open(2), the last link is followed: it is what was asked for.
	var st unix.Stat_t
	if err := unix.Fstatat(unix.AT_FDCWD, path, &st, 0); err != nil {
		return err
	}
	p := &packer{s: s, buf: make([]byte, wire.HeaderSize+wire.MaxData)}
	if st.Mode&unix.S_IFMT == unix.S_IFREG {
		fd, st, err := openRegular(path, unix.O_RDONLY, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		s.Reply(conn.Nothing{})
		return p.file(fd, "", &st)
	}
	fd, err := openDir(unix.AT_FDCWD, path, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	s.Reply(conn.Nothing{})
	return p.dir(fd, "", 0)
}

// packer sends a tree.
type packer struct {
	s   *conn.Stream
	buf []byte // room for a header, and a payload
}

func (p *packer) entry(e *wire.TreeEntry) error {
	b := wire.AppendRecord(p.buf[:wire.HeaderSize], e)
	return p.s.Send(wire.Data, b, len(b)-wire.HeaderSize)
}

func treeEntry(kind uint64, rel string, st *unix.Stat_t) *wire.TreeEntry {
	return &wire.TreeEntry{Kind: kind, Path: rel, Mode: uint64(st.Mode & 0o7777), ModTime: nanoseconds(st.Mtim)}
}

func (p *packer) dir(fd int, rel string, depth int) error {
	if depth >= maxTreeDepth {
		return unix.ENAMETOOLONG
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if err := p.entry(treeEntry(wire.TreeDir, rel, &st)); err != nil {
		return err
	}
	if rel != "" {
		rel += "/"
	}
	buf := make([]byte, 8<<10)
	for {
		n, err := fdio.Getdents(fd, buf)
		if err != nil || n == 0 {
			return err
		}
		fdio.EachEntry(buf[:n], func(name []byte, _ byte) bool {
			err = p.child(fd, string(name), rel+string(name), depth)
			return err == nil
		})
		if err != nil {
			return err
		}
	}
}

func (p *packer) child(dir int, name, rel string, depth int) error {
	if p.s.Gone() {
		return conn.ErrGone
	}
	var st unix.Stat_t
	if err := unix.Fstatat(dir, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		if err == unix.ENOENT {
			return nil // just removed
		}
		return err
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		fd, err := openDir(dir, name, unix.O_NOFOLLOW)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		return p.dir(fd, rel, depth+1)
	case unix.S_IFLNK:
		e := treeEntry(wire.TreeSymlink, rel, &st)
		var err error
		if e.Target, err = readlink(dir, name); err != nil {
			return err
		}
		return p.entry(e)
	case unix.S_IFREG:
		fd, st, err := openRegularAt(dir, name, unix.O_RDONLY|unix.O_NOFOLLOW, 0)
		if err == unix.ENOENT {
			return nil
		}
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		return p.file(fd, rel, &st)
	}
	return p.entry(treeEntry(wire.TreeSkipped, rel, &st))
}

// file sends a file as long as it was when it was opened: what is missing by
// then is zeros.
func (p *packer) file(fd int, rel string, st *unix.Stat_t) error {
	e := treeEntry(wire.TreeFile, rel, st)
	e.Size = st.Size
	if err := p.entry(e); err != nil {
		return err
	}
	for left := st.Size; left > 0; {
		part := p.buf[wire.HeaderSize:][:min(left, wire.MaxData)]
		n, err := fdio.Read(fd, part)
		if err != nil {
			return err
		}
		if n == 0 {
			clear(part)
			n = len(part)
		}
		if err := p.s.Send(wire.Data, p.buf, n); err != nil {
			return err
		}
		left -= int64(n)
	}
	return nil
}

// unpack makes the tree that the host sends below a directory that exists.
// Whatever the entries say, nothing outside of it is touched: each path is
// resolved by the kernel with the directory as its root and limit.
func unpack(s *conn.Stream, path string) error {
	root, err := openDir(unix.AT_FDCWD, path, 0)
	if err != nil {
		return err
	}
	u := &unpacker{root: root, r: bufio.NewReaderSize(&wire.ContentReader{In: s.In, Credit: s.GiveCredit}, 4<<10), buf: make([]byte, 64<<10)}
	defer u.close()
	var record []byte
	for {
		b, err := wire.ReadRecord(u.r, &record)
		if err == io.EOF {
			return u.finish()
		}
		var e wire.TreeEntry
		if err == nil {
			err = e.Decode(b)
		}
		if errors.Is(err, wire.ErrMessage) || err == io.ErrUnexpectedEOF {
			return wire.Invalid("malformed tree")
		}
		if err == nil {
			err = u.entry(&e)
		}
		if errno, ok := err.(unix.Errno); ok {
			return &wire.ErrorMessage{Code: wire.CodeFile, Errno: uint64(errno), Text: wire.Quote(e.Path) + ": " + errno.Error()}
		}
		if err != nil {
			return err
		}
	}
}

// unpacker makes a tree.
type unpacker struct {
	root int
	r    *bufio.Reader
	buf  []byte

	dir           string // the directory that was opened last
	fd            int    // it, if dir is not empty
	deferredModes []deferredMode
}

// deferredMode is a directory whose owner may not change what is in it, once all is there.
type deferredMode struct {
	path string
	mode uint32
}

// maxDeferredModes bounds the directories that can't be given their mode at once.
const maxDeferredModes = 1 << 12

func (u *unpacker) close() {
	if u.dir != "" {
		unix.Close(u.fd)
		u.dir = ""
	}
	unix.Close(u.root)
}

// beneath opens what a path leads to, if that is not outside of the root.
func (u *unpacker) beneath(path string, flags uint64) (fd int, err error) {
	how := unix.OpenHow{Flags: flags | unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_MAGICLINKS}
	// EAGAIN: something was renamed meanwhile, and .. could not be trusted (openat2(2)).
	for range maxBusy {
		fd, err = unix.Openat2(u.root, path, &how)
		if err == unix.ENOSYS { // refused where the host can be written: its mode can't be seen
			return walkBeneath(u.root, path, int(flags))
		}
		if err != unix.EINTR && err != unix.EAGAIN {
			return fd, err
		}
	}
	return -1, err
}

// walkBeneath is openat2 with O_PATH, RESOLVE_BENEATH and RESOLVE_NO_MAGICLINKS,
// an element of the path at a time. flags are O_DIRECTORY and O_NOFOLLOW.
func walkBeneath(root int, path string, flags int) (int, error) {
	// Where it is: the names of real directories from root. For .. they are
	// walked again, because what a directory is in may change at any moment.
	var at []string
	if strings.HasPrefix(path, "/") {
		return -1, unix.EXDEV
	}
	fd, err := openPath(root, ".")
	for links := 0; err == nil && path != ""; {
		name, rest, _ := strings.Cut(path, "/")
		path = strings.TrimLeft(rest, "/")
		switch name {
		case "", ".":
			continue
		case "..":
			unix.Close(fd)
			if len(at) == 0 {
				return -1, unix.EXDEV
			}
			at = at[:len(at)-1]
			fd, err = openPath(root, ".")
			for _, name := range at {
				if err == nil {
					fd, err = descend(fd, name, true)
				}
			}
			continue
		}
		var target string
		if path != "" || flags&unix.O_NOFOLLOW == 0 {
			target, err = readlink(fd, name)
		} else {
			err = unix.EINVAL
		}
		switch {
		case err == unix.EINVAL: // not a link, or one that is meant itself
			fd, err = descend(fd, name, path != "" || flags&unix.O_DIRECTORY != 0)
			at = append(at, name)
		case err != nil:
		case strings.HasPrefix(target, "/"):
			err = unix.EXDEV
		case links == maxLinks:
			err = unix.ELOOP
		default:
			links++
			path = strings.TrimRight(target+"/"+path, "/")
		}
	}
	if err != nil && fd >= 0 {
		unix.Close(fd)
		fd = -1
	}
	return fd, err
}

// descend opens an entry of a directory, which it closes.
func descend(dir int, name string, directory bool) (int, error) {
	defer unix.Close(dir)
	if directory {
		return unix.Openat(dir, name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	}
	return openPath(dir, name)
}

func openPath(dir int, name string) (int, error) {
	return unix.Openat(dir, name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
}

// parent returns the directory of a path, which is made if it is missing, and
// its last element.
func (u *unpacker) parent(path string) (fd int, base string, err error) {
	dir, base := splitPath(path)
	dir = strings.TrimRight(dir, "/")
	if base == "" || base == "." || base == ".." {
		return -1, "", unix.EINVAL
	}
	if dir == "" {
		return u.root, base, nil
	}
	if dir == u.dir {
		return u.fd, base, nil
	}
	fd, err = u.beneath(dir, unix.O_DIRECTORY)
	if err == unix.ENOENT {
		at, name, perr := u.parent(dir)
		if perr != nil {
			return -1, "", perr
		}
		if err := unix.Mkdirat(at, name, 0o755); err != nil && err != unix.EEXIST {
			return -1, "", err
		}
		fd, err = u.beneath(dir, unix.O_DIRECTORY)
	}
	if err != nil {
		return -1, "", err
	}
	if u.dir != "" {
		unix.Close(u.fd)
	}
	u.dir, u.fd = dir, fd
	return fd, base, nil
}

// entry makes one entry.
func (u *unpacker) entry(e *wire.TreeEntry) error {
	path := strings.TrimRight(e.Path, "/")
	switch {
	case strings.HasPrefix(path, "/") || strings.IndexByte(e.Path, 0) >= 0 || strings.IndexByte(e.Target, 0) >= 0 || len(path) >= unix.PathMax:
		return unix.EINVAL
	case strings.Count(path, "/") >= maxTreeDepth:
		return unix.ENAMETOOLONG
	case path == "" || path == ".":
		if e.Kind != wire.TreeDir {
			return unix.EINVAL
		}
		return nil // the directory itself, which is there
	}
	at, name, err := u.parent(path)
	if err != nil {
		return err
	}
	mode := uint32(e.Mode) & 0o777
	switch e.Kind {
	case wire.TreeDir:
		return u.makeDir(at, name, path, mode)
	case wire.TreeSymlink:
		return replaceAt(at, name, func() error { return unix.Symlinkat(e.Target, at, name) })
	case wire.TreeHardlink:
		fd, err := u.beneath(strings.TrimRight(e.Target, "/"), unix.O_NOFOLLOW)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		var st unix.Stat_t
		if err := unix.Fstat(fd, &st); err != nil {
			return err
		}
		if st.Mode&unix.S_IFMT != unix.S_IFREG {
			return unix.EINVAL
		}
		dir, base := splitPath(strings.TrimRight(e.Target, "/"))
		old := u.root
		if dir != "" {
			if old, err = u.beneath(dir, unix.O_DIRECTORY); err != nil {
				return err
			}
			defer unix.Close(old)
		}
		if base == "" || base == "." || base == ".." {
			return unix.EINVAL
		}
		return replaceAt(at, name, func() error { return unix.Linkat(old, base, at, name, 0) })
	case wire.TreeFile:
		return u.file(at, name, mode, e)
	}
	return unix.EINVAL
}

func (u *unpacker) makeDir(at int, name, path string, mode uint32) error {
	err := unix.Mkdirat(at, name, mode|0o700)
	if err == unix.EEXIST {
		var st unix.Stat_t
		if err := unix.Fstatat(at, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return err
		}
		if st.Mode&unix.S_IFMT != unix.S_IFDIR {
			return unix.EEXIST
		}
		return nil // it keeps its mode
	}
	if err != nil {
		return err
	}
	fd, err := openDir(at, name, unix.O_NOFOLLOW)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if mode&0o700 != 0o700 {
		if len(u.deferredModes) == maxDeferredModes {
			return wire.Fail(wire.CodeExhausted, "too many directories that their owner can't access")
		}
		u.deferredModes = append(u.deferredModes, deferredMode{path, mode})
		return nil
	}
	return unix.Fchmod(fd, mode)
}

func (u *unpacker) file(at int, name string, mode uint32, e *wire.TreeEntry) error {
	var fd int
	err := replaceAt(at, name, func() (err error) {
		fd, err = createNew(at, name, 0o600)
		return err
	})
	if err != nil {
		return err
	}
	for left := e.Size; left > 0 && err == nil; {
		var n int
		n, err = u.r.Read(u.buf[:min(left, int64(len(u.buf)))])
		left -= int64(n)
		if err == nil {
			err = fdio.WriteAll(fd, u.buf[:n])
		}
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
	}
	if err == nil {
		err = unix.Fchmod(fd, mode)
	}
	if err == nil && e.ModTime != 0 {
		t := unix.NsecToTimespec(e.ModTime)
		_ = unix.UtimesNanoAt(fd, "", []unix.Timespec{t, t}, unix.AT_EMPTY_PATH) // a nicety
	}
	if cerr := unix.Close(fd); err == nil {
		err = cerr
	}
	if err == io.ErrUnexpectedEOF {
		return wire.Invalid("the tree ends within a file")
	}
	return err
}

// finish gives directories the modes that would have been in the way.
func (u *unpacker) finish() error {
	for i := len(u.deferredModes) - 1; i >= 0; i-- {
		l := &u.deferredModes[i]
		at, name, err := u.parent(l.path)
		if err != nil {
			return err
		}
		fd, err := openDir(at, name, unix.O_NOFOLLOW)
		if err != nil {
			return err
		}
		err = unix.Fchmod(fd, l.mode)
		unix.Close(fd)
		if err != nil {
			return err
		}
	}
	return nil
}
