package network

import (
	"io"
	"os"
	"sync"
	"syscall"
	"unsafe"

	"github.com/sandpit-dev/sandpit/internal/netaddr"
)

// packets are buffers for one packet and the header in front of it.
var packets = sync.Pool{New: func() any { return new([virtioSize + netaddr.MTU]byte) }}

// readDescriptor reads from a non-blocking descriptor, without telling the scheduler. One that knows
// of a system call wakes another thread if that takes more than 20 µs, which is as long as the copy of a
// large packet, and as expensive. The call never waits for the other end; while the kernel itself takes
// long, as when it is short of memory, what else this thread would run waits, too.
func readDescriptor(fd uintptr, b []byte) (int, error) {
	for {
		n, _, errno := syscall.RawSyscall(syscall.SYS_READ, fd, uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(len(b)))
		switch errno {
		case 0:
			return int(n), nil
		case syscall.EINTR:
		default:
			return 0, errno
		}
	}
}

// writeDescriptor writes pieces at once, as readDescriptor reads.
func writeDescriptor(fd uintptr, pieces ...[]byte) (int, error) {
	vectors := make([]syscall.Iovec, len(pieces))
	for i, p := range pieces {
		vectors[i].Base = unsafe.SliceData(p)
		vectors[i].SetLen(len(p))
	}
	for {
		n, _, errno := syscall.RawSyscall(syscall.SYS_WRITEV, fd, uintptr(unsafe.Pointer(unsafe.SliceData(vectors))), uintptr(len(vectors)))
		switch errno {
		case 0:
			return int(n), nil
		case syscall.EINTR:
		default:
			return 0, errno
		}
	}
}

// pass copies what one connection receives to another. Neither end of it is closed.
func pass(to io.Writer, from io.Reader) error {
	if c, ok := to.(syscall.Conn); ok {
		if raw, err := c.SyscallConn(); err == nil {
			to = plain{raw}
		}
	}
	if c, ok := from.(syscall.Conn); ok {
		if raw, err := c.SyscallConn(); err == nil {
			from = plain{raw}
		}
	}
	_, err := io.Copy(to, from)
	return err
}

// plain reads and writes a connection of this machine by readDescriptor and writeDescriptor.
type plain struct{ raw syscall.RawConn }

// passSize is the number of bytes that are passed to the sandbox at once: those fit into one packet.
const passSize = netaddr.MTU - 255

// taker reads what a connection has received straight to its place, if it can. It does not wait for more.
type taker interface {
	take(from syscall.RawConn) (taken int64, err error)
}

// WriteTo passes everything on. While it waits it holds no buffer.
func (p plain) WriteTo(w io.Writer) (passed int64, err error) {
	for {
		if w, ok := w.(taker); ok {
			n, err := w.take(p.raw)
			passed += n
			if err != nil {
				return passed, err
			}
		}
		var buf *[virtioSize + netaddr.MTU]byte
		n := 0
		closed := p.raw.Read(func(fd uintptr) bool {
			buf = packets.Get().(*[virtioSize + netaddr.MTU]byte)
			if n, err = readDescriptor(fd, buf[:passSize]); err == syscall.EAGAIN {
				packets.Put(buf)
				return false
			}
			return true
		})
		switch {
		case closed != nil:
			return passed, closed
		case err != nil:
			packets.Put(buf)
			return passed, os.NewSyscallError("read", err)
		case n == 0:
			packets.Put(buf)
			return passed, nil
		}
		n, err = w.Write(buf[:n])
		packets.Put(buf)
		passed += int64(n)
		if err != nil {
			return passed, err
		}
	}
}

// Read reads what is there.
func (p plain) Read(b []byte) (n int, err error) {
	closed := p.raw.Read(func(fd uintptr) bool {
		n, err = readDescriptor(fd, b)
		return err != syscall.EAGAIN
	})
	switch {
	case closed != nil:
		return 0, closed
	case err != nil:
		return 0, os.NewSyscallError("read", err)
	case n == 0 && len(b) > 0:
		return 0, io.EOF
	}
	return n, nil
}

// Write writes everything.
func (p plain) Write(b []byte) (written int, err error) {
	for written < len(b) {
		closed := p.raw.Write(func(fd uintptr) bool {
			var n int
			n, err = writeDescriptor(fd, b[written:])
			written += n
			return err != syscall.EAGAIN
		})
		if closed != nil {
			return written, closed
		}
		if err != nil {
			return written, os.NewSyscallError("write", err)
		}
	}
	return written, nil
}
