package cgroup

import (
	"errors"
	"io/fs"

	"golang.org/x/sys/unix"
)

// The files of cgroupfs are read and written by bare system calls: os.File
// would add an allocation, a finalizer and a poller registration to each.
//
// Everything is repeated on EINTR: some v1 files, memory.limit_in_bytes among
// them, give up for any pending signal, and the Go runtime sends itself many.

// maxFile bounds what is read of one file.
const maxFile = 4 << 20

// readFile reads a whole file of procfs or cgroupfs.
func readFile(name string) ([]byte, error) {
	fd, err := open(name, unix.O_RDONLY)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	buf := make([]byte, 0, 4096)
	for {
		if len(buf) == cap(buf) {
			if len(buf) >= maxFile {
				return nil, &fs.PathError{Op: "read", Path: name, Err: unix.EFBIG}
			}
			buf = append(buf, make([]byte, len(buf))...)[:len(buf)]
		}
		n, err := unix.Read(fd, buf[len(buf):cap(buf)])
		switch {
		case err == unix.EINTR:
		case err != nil:
			return nil, &fs.PathError{Op: "read", Path: name, Err: err}
		case n == 0:
			return buf, nil
		default:
			buf = buf[:len(buf)+n]
		}
	}
}

// readSmall reads the start of a file into buf.
func readSmall(name string, buf []byte) ([]byte, error) {
	fd, err := open(name, unix.O_RDONLY)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	for {
		n, err := unix.Read(fd, buf)
		if err == nil {
			return buf[:n], nil
		}
		if err != unix.EINTR {
			return nil, &fs.PathError{Op: "read", Path: name, Err: err}
		}
	}
}

// writeFile writes data in one write to an existing file.
func writeFile(name, data string) error {
	fd, err := open(name, unix.O_WRONLY)
	if err != nil {
		return err
	}
	err = writeFD(fd, data)
	unix.Close(fd)
	if err != nil {
		return &fs.PathError{Op: "write", Path: name, Err: err}
	}
	return nil
}

func writeFD(fd int, data string) error {
	var small [64]byte
	buf := append(small[:0], data...)
	for {
		_, err := unix.Write(fd, buf)
		if err != unix.EINTR {
			return err
		}
	}
}

func open(name string, flags int) (int, error) {
	for {
		fd, err := unix.Open(name, flags|unix.O_CLOEXEC, 0)
		if err == nil {
			return fd, nil
		}
		if err != unix.EINTR {
			return -1, &fs.PathError{Op: "open", Path: name, Err: err}
		}
	}
}

func mkdir(name string) error {
	for {
		err := unix.Mkdir(name, 0o755)
		if err == nil {
			return nil
		}
		if err != unix.EINTR {
			return &fs.PathError{Op: "mkdir", Path: name, Err: err}
		}
	}
}

// rmdir removes a directory; one that is gone is not an error.
func rmdir(name string) error {
	for {
		err := unix.Rmdir(name)
		switch err {
		case nil, unix.ENOENT:
			return nil
		case unix.EINTR:
		default:
			return &fs.PathError{Op: "rmdir", Path: name, Err: err}
		}
	}
}

// gone reports whether err says that a directory or a file in it has just been
// removed by somebody else: ENODEV is what cgroupfs answers in between.
func gone(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENODEV)
}
