// Package claim reserves unique numbered resources, such as ranges of user ids and names of
// sandboxes, while the claiming program holds a descriptor.
//
// A claim is a lock on one byte of a file (F_OFD_SETLK of fcntl(2)). The kernel drops the lock when
// the holder dies, and nothing is left. The file stays empty. Only users who may open the file can
// take or deny a claim. Names of abstract sockets, in contrast, can be taken by every user of the
// machine.
package claim

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/fault"
)

// ErrTaken says that the claim is held elsewhere.
var ErrTaken = errors.New("it is in use")

// Open opens the file of claims. It makes the file and its directory if they are missing.
// Each claim needs its own descriptor from Open. The error matches sandpit.ErrForbidden if
// users other than this one and root own or may open the file, or own or may write to its
// directory.
func Open(file string) (int, error) {
	const flags = unix.O_RDWR | unix.O_CREAT | unix.O_CLOEXEC | unix.O_NOFOLLOW
	fd, err := unix.Open(file, flags, 0o600)
	if err == unix.ENOENT {
		if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
			return -1, err
		}
		fd, err = unix.Open(file, flags, 0o600)
	}
	if err != nil {
		return -1, &fs.PathError{Op: "open", Path: file, Err: err}
	}
	if err := checkOwner(fd, file); err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// checkOwner refuses an open file, or its directory, that others have made or may
// change: they could hold every claim, or replace the file while it is in use.
func checkOwner(fd int, file string) error {
	var st, dir unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return &fs.PathError{Op: "fstat", Path: file, Err: err}
	}
	if err := unix.Stat(filepath.Dir(file), &dir); err != nil {
		return &fs.PathError{Op: "stat", Path: filepath.Dir(file), Err: err}
	}
	var why string
	switch {
	case !ours(&dir):
		file, why = filepath.Dir(file), "belongs to another user"
	case dir.Mode&0o022 != 0:
		file, why = filepath.Dir(file), "is writable by other users"
	case !ours(&st):
		why = "belongs to another user"
	case st.Mode&unix.S_IFMT != unix.S_IFREG:
		why = "is not a regular file"
	case st.Mode&0o066 != 0:
		why = "is accessible to other users"
	default:
		return nil
	}
	return sandpit.WithHint(fault.Errorf(sandpit.ErrForbidden, "%s %s", file, why),
		"check who created it; then remove it, or change its owner and mode (chown, chmod go-rwx)")
}

// ours reports whether a file belongs to this user or to root.
func ours(st *unix.Stat_t) bool { return st.Uid == 0 || int(st.Uid) == os.Geteuid() }

// Take takes claim n with a descriptor from Open, until Drop or until the last copy of the
// descriptor is closed. It returns ErrTaken if another descriptor holds it, in this process
// or another.
func Take(fd int, n int64) error {
	err := set(fd, unix.F_WRLCK, n)
	if err == unix.EAGAIN || err == unix.EACCES {
		return ErrTaken
	}
	return os.NewSyscallError("fcntl", err)
}

// Drop releases claim n.
func Drop(fd int, n int64) error { return os.NewSyscallError("fcntl", set(fd, unix.F_UNLCK, n)) }

func set(fd int, kind int16, n int64) error {
	for {
		err := unix.FcntlFlock(uintptr(fd), unix.F_OFD_SETLK, &unix.Flock_t{Type: kind, Start: n, Len: 1})
		if err != unix.EINTR {
			return err
		}
	}
}
