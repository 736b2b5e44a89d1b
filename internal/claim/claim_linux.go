// Package claim takes numbered things that exist once, such as ranges of user
// ids and names of sandboxes, for as long as the claiming program holds a
// descriptor.
//
// A claim is a lock on one byte of a file (F_OFD_SETLK of fcntl(2)). The kernel
// drops it at any death of the holder, and nothing is left of it. The file stays
// empty. Only those who may open the file can take or deny a claim, unlike the
// names of abstract sockets, which are free to every user of the machine.
package claim

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// ErrTaken says that somebody else holds the claim.
var ErrTaken = errors.New("it is taken")

// Open opens the file of claims, and makes it, with its directory, when it is
// missing. Each claim needs a descriptor of its own from Open.
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
	return fd, nil
}

// Take takes claim n with a descriptor from Open, until Drop or until the last
// copy of the descriptor is closed. The error is ErrTaken when it is held
// through another descriptor, in this process or another.
func Take(fd int, n int64) error {
	err := set(fd, unix.F_WRLCK, n)
	if err == unix.EAGAIN || err == unix.EACCES {
		return ErrTaken
	}
	return os.NewSyscallError("fcntl", err)
}

// Drop gives claim n back.
func Drop(fd int, n int64) error { return os.NewSyscallError("fcntl", set(fd, unix.F_UNLCK, n)) }

func set(fd int, kind int16, n int64) error {
	for {
		err := unix.FcntlFlock(uintptr(fd), unix.F_OFD_SETLK, &unix.Flock_t{Type: kind, Start: n, Len: 1})
		if err != unix.EINTR {
			return err
		}
	}
}
