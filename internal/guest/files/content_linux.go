package files

import (
	"encoding/binary"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit/internal/guest/proctable"
	"github.com/sandpit-dev/sandpit/internal/guest/wire"
)

// OpenRegular opens a regular file. Anything else is refused, without waiting
// for whoever may be at its other end.
func OpenRegular(path string, flags int, mode uint32) (fd int, st unix.Stat_t, err error) {
	return openRegularAt(unix.AT_FDCWD, path, flags, mode)
}

func openRegularAt(dir int, path string, flags int, mode uint32) (fd int, st unix.Stat_t, err error) {
	err = Retry(func() (err error) {
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
// have numbers there too, and the helpers of processes share its memory.
func refuseOwn(fd int) error {
	var fs unix.Statfs_t
	if err := unix.Fstatfs(fd, &fs); err != nil {
		return err
	}
	if fs.Type != unix.PROC_SUPER_MAGIC {
		return nil
	}
	path, err := Readlink(unix.AT_FDCWD, "/proc/thread-self/fd/"+strconv.Itoa(fd))
	if err != nil {
		return err
	}
	// Where it is mounted does not matter: a number as an element of the path does.
	own := unix.Getpid()
	for element := range strings.SplitSeq(path, "/") {
		n, err := strconv.Atoi(element)
		if err != nil || n <= 0 {
			continue
		}
		if n == own || unix.Tgkill(own, n, 0) == nil || proctable.Parent(n) == own {
			return unix.EACCES
		}
	}
	return nil
}

// MaxUnsized bounds what is read of a file that says it is empty, as those of
// /proc do.
const MaxUnsized = 16 << 20

// WriteAll writes all of b.
func WriteAll(fd int, b []byte) error {
	for len(b) > 0 {
		n, err := unix.Write(fd, b)
		if err != nil && err != unix.EINTR {
			return err
		}
		b = b[max(n, 0):]
	}
	return nil
}

// Target is a file being written.
type Target struct {
	FD   int
	dir  int    // -1 when the file is extended in place
	temp string // in dir
	name string // in dir
}

// maxLinks is how many symbolic links in a row are followed (ELOOP, path_resolution(7)).
const maxLinks = 40

// OpenTarget opens what the content is written to: the file itself when it is
// extended, and else a new one beside it, which then takes its place.
func OpenTarget(m *wire.Write, path string) (*Target, error) {
	mode := uint32(m.Mode) & 0o7777
	if m.Parents {
		if dir, _ := splitPath(path); dir != "" {
			if err := Mkdir(dir, 0o755, true); err != nil {
				return nil, err
			}
		}
	}
	if m.AtEnd {
		fd, _, err := OpenRegular(path, unix.O_WRONLY|unix.O_APPEND|unix.O_CREAT, mode)
		return &Target{FD: fd, dir: -1}, err
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
		target, err := Readlink(at, name)
		if err != nil { // no link
			break
		}
		if links == maxLinks {
			closeAt()
			return nil, unix.ELOOP
		}
		path = target
	}
	t, err := openTemp(at, name, mode)
	if err != nil {
		closeAt()
	}
	return t, err
}

// openTemp makes the new file beside the one called name.
func openTemp(dir int, name string, mode uint32) (*Target, error) {
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
		// Who may not write the file may not replace it either.
		if err := unix.Faccessat2(dir, name, unix.W_OK, unix.AT_EACCESS|unix.AT_SYMLINK_NOFOLLOW); err != nil && err != unix.ENOSYS {
			return nil, err
		}
	}
	var random [8]byte // a name that nobody else thinks of; O_EXCL is what keeps it apart
	_, _ = unix.Getrandom(random[:], unix.GRND_NONBLOCK)
	t := &Target{dir: dir, temp: ".sandpit-" + strconv.FormatUint(binary.NativeEndian.Uint64(random[:]), 36), name: name}
	err = Retry(func() (err error) {
		t.FD, err = unix.Openat(dir, t.temp, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, mode)
		return err
	})
	if err != nil {
		return nil, err
	}
	if exists {
		// Only root may give a file away; others have made it theirs already.
		_ = unix.Fchown(t.FD, int(st.Uid), int(st.Gid))
		if err := unix.Fchmod(t.FD, st.Mode&0o777); err != nil {
			unix.Close(t.FD)
			_ = unix.Unlinkat(dir, t.temp, 0)
			return nil, err
		}
	}
	return t, nil
}

// Finish puts the new file in its place, or removes it.
func (t *Target) Finish(good bool) error {
	err := unix.Close(t.FD) // some file systems tell of a full disk only here
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

// ReadSmall reads a file of at most limit bytes, and never blocks on what is
// not a regular file.
func ReadSmall(path string, limit int) ([]byte, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil, unix.EINVAL
	}
	return readAll(fd, st.Size, limit)
}

// readAll reads a file of at most limit bytes, which says that it has size.
func readAll(fd int, size int64, limit int) ([]byte, error) {
	if size > int64(limit) {
		return nil, unix.EFBIG
	}
	b := make([]byte, 0, max(int(size)+1, 512))
	for {
		if len(b) == cap(b) {
			b = append(b, 0)[:len(b)]
		}
		n, err := ReadOnce(fd, b[len(b):cap(b)])
		if err != nil {
			return nil, err
		}
		b = b[:len(b)+n]
		if n == 0 {
			return b, nil
		}
		if len(b) > limit {
			return nil, unix.EFBIG
		}
	}
}

// ReadOnce reads, again if it is interrupted.
func ReadOnce(fd int, b []byte) (int, error) {
	for {
		n, err := unix.Read(fd, b)
		if err != unix.EINTR {
			return max(n, 0), err
		}
	}
}
