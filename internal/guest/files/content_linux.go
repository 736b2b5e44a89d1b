package files

import (
	"encoding/binary"
	"io"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit/internal/guest/conn"
	"github.com/sandpit-dev/sandpit/internal/guest/fdio"
	"github.com/sandpit-dev/sandpit/internal/guest/procfs"
	"github.com/sandpit-dev/sandpit/internal/guest/wire"
)

// openRegular opens a regular file. Anything else is refused, without waiting
// for whoever may be at its other end.
func openRegular(path string, flags int, mode uint32) (fd int, st unix.Stat_t, err error) {
	return openRegularAt(unix.AT_FDCWD, path, flags, mode)
}

func openRegularAt(dir int, path string, flags int, mode uint32) (fd int, st unix.Stat_t, err error) {
	err = fdio.Retry(func() (err error) {
		fd, err = unix.Openat(dir, path, flags|unix.O_CLOEXEC|unix.O_NONBLOCK|unix.O_NOCTTY, mode)
		return err
	})
	if err != nil {
		// A pipe without a reader, or a socket.
		if err == unix.ENXIO {
			err = unix.EINVAL
		}
		return -1, st, err
	}
	if err = unix.Fstat(fd, &st); err == nil {
		switch st.Mode & unix.S_IFMT {
		case unix.S_IFREG:
			if err = refuseOwn(fd); err == nil {
				return fd, st, nil
			}
		case unix.S_IFDIR:
			err = unix.EISDIR
		default:
			err = unix.EINVAL
		}
	}
	unix.Close(fd)
	return -1, st, err
}

// refuseOwn refuses files of /proc that show the guest itself, such as
// /proc/self/mem: to the kernel it is the guest that opens them. Its threads
// have numbers there too, and the helpers of processes share its memory. Only a
// process that is known to be another one is not the guest: one that has ended
// since may have been a thread of the guest, whose memory stays open.
func refuseOwn(fd int) error {
	var fs unix.Statfs_t
	if err := unix.Fstatfs(fd, &fs); err != nil {
		return err
	}
	if fs.Type != unix.PROC_SUPER_MAGIC {
		return nil
	}
	path, err := readlink(unix.AT_FDCWD, procName(fd))
	if err != nil {
		return err
	}
	dir, name := splitPath(path)
	// Memory is refused whichever process it belongs to: a new process shares that of the guest until it executes its program.
	if name == "mem" || strings.HasSuffix(name, " (deleted)") {
		return unix.EACCES
	}
	own := unix.Getpid()
	for _, n := range processesOn(dir) {
		if n == own || unix.Tgkill(own, n, 0) == nil {
			return unix.EACCES
		}
		if parent := procfs.Parent(n); parent == own || parent == 0 {
			return unix.EACCES
		}
	}
	return nil
}

// processesOn returns the processes and threads through whose directories a directory of a procfs is reached, as the kernel
// names it. Where such a file system is mounted elsewhere than at /proc, every number on the path may be one.
func processesOn(dir string) (ids []int) {
	rest, usual := strings.CutPrefix(dir, "/proc/")
	elements := strings.Split(rest, "/")
	for i, element := range elements {
		n, err := strconv.Atoi(element)
		process := err == nil && n > 0
		if usual && (i == 0 && !process || i > 2 || i == 2 && elements[1] != "task") {
			break
		}
		if process {
			ids = append(ids, n)
		}
	}
	return ids
}

// maxUnsized bounds what is read of a file that says it is empty, as those of
// /proc do.
const maxUnsized = 16 << 20

// read sends content of a file.
func (f *Files) read(s *conn.Stream, m *wire.Read, path string) {
	var fd int
	var st unix.Stat_t
	err := f.workers.Do(f.user, func() (err error) {
		fd, st, err = openRegular(path, unix.O_RDONLY, 0)
		return err
	})
	if err != nil {
		s.Fail(wire.FileError(err))
		return
	}
	defer unix.Close(fd)
	described := describe(baseName(path), &st)
	s.Reply(&described)

	// The end is where it was when the file was opened: one that grows as fast
	// as it is read must come to an end as well.
	left := st.Size - m.Offset
	if st.Size == 0 {
		left = maxUnsized
	}
	if m.Length >= 0 {
		left = min(left, m.Length)
	}
	newBuffer := conn.Buffer
	if left > wire.MaxData {
		newBuffer = conn.LargeBuffer
	}
	buf := newBuffer()
	defer conn.Release(buf)
	limit := int64(len(*buf) / conn.BlockSize * wire.MaxData)
	for at := m.Offset; left > 0; {
		n := 0
		err := f.move(func() error {
			return fdio.Retry(func() (err error) {
				n, err = unix.Preadv(fd, conn.Payloads(*buf, int(min(left, limit))), at)
				return err
			})
		})
		if err != nil {
			s.Fail(wire.FileError(err))
			return
		}
		if n == 0 {
			break
		}
		if s.SendBlocks(wire.Data, *buf, n) != nil {
			s.Drop()
			return
		}
		at += int64(n)
		left -= int64(n)
	}
	s.End(wire.EOF, conn.Nothing{})
}

// write makes, replaces or extends a file.
func (f *Files) write(s *conn.Stream, m *wire.Write, path string) {
	var t *target
	err := f.workers.Do(f.user, func() (err error) {
		t, err = openTarget(m, path, func(fd int) error { return setXattrs(fd, m.Attrs) })
		if u := f.user; err == nil && t.dir >= 0 && u != nil && u.Root { // others leave a file to its owner
			if err = unix.Fchown(t.fd, int(u.UID), int(u.GID)); err != nil {
				_ = t.finish(false)
			}
		}
		return err
	})
	if err != nil {
		s.In.Close()
		s.Fail(wire.FileError(err))
		return
	}
	var total int64
	wide := false
	err = s.Content(func(b []byte) error {
		if total += int64(len(b)); total >= wire.GuestWindow/2 && !wide {
			wide = true
			s.GiveCredit(s.In.Widen(wire.UploadWindow))
		}
		return f.move(func() error { return fdio.WriteAll(t.fd, b) })
	})
	good := err == io.EOF
	// The end of the stream is checked once more: an abort must not replace the file.
	if good && s.Gone() {
		good, err = false, conn.ErrGone
	}
	done := f.workers.Do(f.user, func() error { return t.finish(good) })
	if good {
		err = done
	}
	s.In.Close()
	s.Answer(&wire.Written{Bytes: total}, wire.FileError(err))
}

// target is a file being written.
type target struct {
	fd   int
	dir  int    // -1 when the file itself is written
	temp string // in dir
	name string // in dir
}

// maxLinks is the number of symbolic links in a row that are followed (ELOOP, path_resolution(7)).
const maxLinks = 40

// openTarget opens what the content is written to: the file itself when it is
// extended or written in place, and else a new one beside it, which then takes its place. attrs gives
// that one its extended attributes.
func openTarget(m *wire.Write, path string, attrs func(fd int) error) (*target, error) {
	mode := uint32(m.Mode) & 0o7777
	if m.Parents {
		if dir, _ := splitPath(path); dir != "" {
			if err := mkdir(dir, 0o755, true); err != nil {
				return nil, err
			}
		}
	}
	if m.AtEnd {
		fd, _, err := openRegular(path, unix.O_WRONLY|unix.O_APPEND|unix.O_CREAT, mode)
		return &target{fd: fd, dir: -1}, err
	}
	if m.InPlace {
		fd, _, err := openRegular(path, unix.O_WRONLY|unix.O_CREAT, mode)
		if err != nil {
			return nil, err
		}
		if _, err := unix.Seek(fd, m.Offset, unix.SEEK_SET); err != nil {
			unix.Close(fd)
			return nil, err
		}
		return &target{fd: fd, dir: -1}, nil
	}

	// Find the file that the last symbolic links lead to: that is what open(2) would write.
	at := unix.AT_FDCWD
	closeAt := func() {
		if at >= 0 {
			unix.Close(at)
		}
	}
	var name string
	for links := 0; ; links++ {
		dir, base := splitPath(path)
		if base == "" || base == "." || base == ".." {
			closeAt()
			return nil, unix.EISDIR
		}
		if dir == "" {
			dir = "."
		}
		fd, err := openDir(at, dir, unix.O_PATH)
		closeAt()
		if err != nil {
			return nil, err
		}
		at, name = fd, base
		target, err := readlink(at, name)
		if err != nil { // no link
			break
		}
		if links == maxLinks {
			closeAt()
			return nil, unix.ELOOP
		}
		path = target
	}
	t, err := openTemp(at, name, mode, attrs)
	if err != nil {
		closeAt()
		return nil, err
	}
	return t, nil
}

// openTemp makes the new file beside the one called name.
func openTemp(dir int, name string, mode uint32, attrs func(fd int) error) (*target, error) {
	var st unix.Stat_t
	err := unix.Fstatat(dir, name, &st, unix.AT_SYMLINK_NOFOLLOW)
	exists := err == nil
	switch {
	case err != nil && err != unix.ENOENT:
		return nil, err
	case exists && st.Mode&unix.S_IFMT == unix.S_IFDIR:
		return nil, unix.EISDIR
	case exists && st.Mode&unix.S_IFMT != unix.S_IFREG:
		return nil, unix.EINVAL
	}
	if exists {
		// A user who may not write the file may not replace it either.
		if err := unix.Faccessat2(dir, name, unix.W_OK, unix.AT_EACCESS|unix.AT_SYMLINK_NOFOLLOW); err != nil && err != unix.ENOSYS {
			return nil, err
		}
	}
	t := &target{dir: dir, temp: tempName(), name: name}
	if t.fd, err = createNew(dir, t.temp, mode|ownerWrites); err != nil {
		return nil, err
	}
	var made unix.Stat_t
	switch err = attrs(t.fd); {
	case err != nil:
	case exists:
		// Only root may give a file away; others have made it theirs already.
		_ = unix.Fchown(t.fd, int(st.Uid), int(st.Gid))
		err = unix.Fchmod(t.fd, st.Mode&0o777)
	case mode&ownerWrites == 0:
		if err = unix.Fstat(t.fd, &made); err == nil {
			err = unix.Fchmod(t.fd, made.Mode&mode) // without what the umask took
		}
	}
	if err != nil {
		unix.Close(t.fd)
		_ = unix.Unlinkat(dir, t.temp, 0)
		return nil, err
	}
	return t, nil
}

// ownerWrites is the permission that setting extended attributes needs (xattr(7)): a new file has it
// until it has them.
const ownerWrites = 0o200

// createNew creates a file in a directory and opens it for writing. It fails if anything has the name.
func createNew(dir int, name string, mode uint32) (fd int, err error) {
	err = fdio.Retry(func() (err error) {
		fd, err = unix.Openat(dir, name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, mode)
		return err
	})
	return fd, err
}

// tempName returns a name that nobody else thinks of.
func tempName() string {
	var random [8]byte
	_, _ = unix.Getrandom(random[:], unix.GRND_NONBLOCK)
	return ".sandpit-" + strconv.FormatUint(binary.NativeEndian.Uint64(random[:]), 36)
}

// finish puts the new file in its place, or removes it.
func (t *target) finish(good bool) error {
	err := unix.Close(t.fd) // some file systems tell of a full disk only here
	if t.dir < 0 {
		return err
	}
	defer unix.Close(t.dir)
	if good && err == nil {
		err = unix.Renameat(t.dir, t.temp, t.dir, t.name)
		if err == nil {
			return nil
		}
	}
	_ = unix.Unlinkat(t.dir, t.temp, 0)
	return err
}

// splitPath splits a path before its last element.
func splitPath(path string) (dir, base string) {
	i := strings.LastIndexByte(path, '/')
	return path[:i+1], path[i+1:]
}
