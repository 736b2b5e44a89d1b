// Package nonblock makes system calls that do not block. Unlike those of package
// os, they never make the Go runtime need another thread, which a program at its
// process limit can't have. They keep the processor of the runtime meanwhile.
package nonblock

import (
	"io"
	"os"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// File is an open descriptor in non-blocking mode: a socket, pipe or terminal.
// Read and Write wait in the runtime's poller.
type File struct {
	*os.File
	raw syscall.RawConn
}

// NewFile takes over fd.
func NewFile(fd int, name string) (*File, error) {
	f := os.NewFile(uintptr(fd), name)
	n, err := Of(f)
	if err != nil {
		f.Close()
	}
	return n, err
}

// Of takes over a file that the runtime's poller watches.
func Of(f *os.File) (*File, error) {
	raw, err := f.SyscallConn()
	if err != nil {
		return nil, err
	}
	return &File{f, raw}, nil
}

// SyscallConn returns what gives access to the descriptor.
func (f *File) SyscallConn() (syscall.RawConn, error) { return f.raw, nil }

// Read reads at least one byte. The error is io.EOF at the end of the file.
func (f *File) Read(b []byte) (n int, err error) {
	rerr := f.raw.Read(func(fd uintptr) bool {
		n, err = Read(int(fd), b)
		return err != unix.EAGAIN
	})
	if rerr != nil {
		err = rerr
	}
	if err != nil {
		return 0, &os.PathError{Op: "read", Path: f.Name(), Err: err}
	}
	if n == 0 && len(b) > 0 {
		return 0, io.EOF
	}
	return n, nil
}

// Write writes all of b.
func (f *File) Write(b []byte) (n int, err error) {
	werr := f.raw.Write(func(fd uintptr) bool {
		for err = nil; n < len(b) && err == nil; {
			var k int
			k, err = Call(unix.SYS_WRITE, fd, uintptr(unsafe.Pointer(&b[n])), uintptr(len(b)-n))
			n += k
		}
		return err != unix.EAGAIN
	})
	if werr != nil {
		err = werr
	}
	if err != nil {
		return n, &os.PathError{Op: "write", Path: f.Name(), Err: err}
	}
	return n, nil
}

// WriteString is Write.
func (f *File) WriteString(s string) (int, error) { return f.Write([]byte(s)) }

// Read reads once from a descriptor that does not block.
func Read(fd int, b []byte) (int, error) {
	if len(b) == 0 {
		return 0, nil
	}
	return Call(unix.SYS_READ, uintptr(fd), uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)))
}

// Open opens a file of /proc.
func Open(dir int, path string, flags int) (int, error) {
	b, err := unix.BytePtrFromString(path)
	if err != nil {
		return -1, err
	}
	return Call(unix.SYS_OPENAT, uintptr(dir), uintptr(unsafe.Pointer(b)), uintptr(flags))
}

// Close closes a descriptor that Open has returned.
func Close(fd int) { _, _, _ = unix.RawSyscall(unix.SYS_CLOSE, uintptr(fd), 0, 0) }

// Call makes a system call that does not block, again while it is interrupted.
//
//go:uintptrescapes
func Call(nr, a, b, c uintptr) (int, error) {
	for {
		r, _, errno := unix.RawSyscall(nr, a, b, c)
		switch errno {
		case 0:
			return int(r), nil
		case unix.EINTR:
		default:
			return 0, errno
		}
	}
}
