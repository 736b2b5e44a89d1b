package network

import (
	"errors"
	"io"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/waiter"
)

var _ taker = noted{}

// take reads from an origin that has spoken.
func (w noted) take(from syscall.RawConn) (taken int64, err error) {
	if to, ok := w.r.to.(*counted); ok && w.r.spoke() {
		return to.take(from)
	}
	return 0, nil
}

// much is how many bytes a connection has taken that keeps a processor busy.
const much = 1 << 20

// moved notes that bytes were taken.
func (c *counted) moved(n int64) {
	c.flow.moved(0, n)
	if c.taken += n; c.taken >= much && c.idle == nil {
		c.idle = c.sockets.busy()
	}
}

// rest says that nothing more is taken.
func (c *counted) rest() {
	if c.idle != nil {
		c.idle()
	}
}

// fionread tells how many bytes a connection has received (FIONREAD of asm-generic/ioctls.h, SIOCINQ of tcp(7)).
const fionread = 0x541b

// take reads what a connection has received into the buffers of the sandbox's end, packet by packet.
func (c *counted) take(from syscall.RawConn) (taken int64, err error) {
	var entry waiter.Entry
	var writable <-chan struct{}
	for {
		r := received{}
		if err := from.Control(func(fd uintptr) { r.left, _ = unix.IoctlGetInt(int(fd), fionread) }); err != nil || r.left == 0 {
			return taken, err
		}
		r.left = min(r.left, passSize)
		if err := c.bounds.count(c.ctx, c.flow, 0, r.left); err != nil {
			return taken, err
		}
		for r.left > 0 {
			var n int64
			var failed tcpip.Error
			if err := from.Control(func(fd uintptr) {
				r.fd = fd
				n, failed = c.ep.Write(&r, tcpip.WriteOptions{})
			}); err != nil {
				return taken, err
			}
			taken += n
			c.moved(n)
			switch _, full := failed.(*tcpip.ErrWouldBlock); {
			case r.err != nil:
				return taken, os.NewSyscallError("read", r.err)
			case full && writable != nil:
				<-writable
			case full: // there may be room before this is registered
				entry, writable = waiter.NewChannelEntry(waiter.WritableEvents)
				c.queue.EventRegister(&entry)
				defer c.queue.EventUnregister(&entry)
			case failed != nil:
				return taken, errors.New(failed.String())
			}
		}
	}
}

// received is what a connection has received and nobody has read: so many bytes, at least. Whoever is promised
// them by Len has to get them all.
type received struct {
	fd   uintptr
	left int
	err  error // of read(2)
}

var _ tcpip.Payloader = (*received)(nil)

// Len returns how many bytes are left.
func (r *received) Len() int { return r.left }

// Read reads some of them. It returns io.EOF when none is left.
func (r *received) Read(b []byte) (int, error) {
	if r.left == 0 {
		return 0, io.EOF
	}
	if len(b) == 0 {
		return 0, nil
	}
	n, err := readDescriptor(r.fd, b[:min(len(b), r.left)])
	if err == nil && n == 0 {
		err = io.ErrUnexpectedEOF
	}
	r.left -= n
	r.err = err
	return n, err
}
