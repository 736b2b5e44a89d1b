// Package httpconn has connections for net/http: one coalesces small writes and acknowledges what it reads, the
// other delivers an early response even if sending the request failed.
package httpconn

// net/http writes a chunk of a body as the end of its own small buffer, with the
// chunk's head and first bytes in it, and then the rest. The other end is woken
// for the few bytes, and again for the many.

import (
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
)

const (
	// maxHeld is the longest piece that is held back, and most of the buffers that
	// net/http writes from.
	maxHeld = 16 << 10

	// sendBuffer is what the kernel holds of what is sent, at most, for a
	// connection that has much to send: the two ends then take fewer turns. It
	// grants less where net.core.wmem_max says so.
	sendBuffer = 512 << 10
)

// Conn is a connection that can coalesce small writes, and acknowledge at once what it reads.
type Conn struct {
	net.Conn
	prompt atomic.Bool // each Read acknowledges

	mu    sync.Mutex // held while writing
	on    bool
	grown bool
	held  []byte
}

// New returns a connection that coalesces nothing until Hold is called.
func New(c net.Conn) *Conn { return &Conn{Conn: c} }

// Find returns the Conn that a connection is or wraps, or nil.
func Find(c net.Conn) *Conn {
	for {
		switch in := c.(type) {
		case *Conn:
			return in
		case interface{ NetConn() net.Conn }:
			c = in.NetConn()
		default:
			return nil
		}
	}
}

// NetConn returns the underlying connection.
func (c *Conn) NetConn() net.Conn { return c.Conn }

// Hold makes small writes wait for the next one, until Release is called. On a nil Conn it
// is a no-op.
func (c *Conn) Hold() {
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.on = true
	c.grow()
}

// Grow enlarges the kernel's send buffer, as Hold also does. On a nil Conn it is a no-op.
func (c *Conn) Grow() {
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.grow()
}

// grow is Grow. Precondition: c.mu is held.
func (c *Conn) grow() {
	if c.grown {
		return
	}
	c.grown = true
	if b, ok := c.Conn.(interface{ SetWriteBuffer(bytes int) error }); ok {
		_ = b.SetWriteBuffer(sendBuffer) // if not, it is as it was
	}
}

// Prompt makes each Read acknowledge what has arrived, and not only when the kernel does. A peer that does not set TCP_NODELAY
// sends a small message only after the acknowledgement of those before. On a nil Conn, and where the connection is not TCP,
// Prompt is a no-op.
func (c *Conn) Prompt() {
	if c != nil {
		c.prompt.Store(true)
	}
}

// Read reads what there is.
func (c *Conn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if n > 0 && c.prompt.Load() {
		acknowledge(c.Conn)
	}
	return n, err
}

// Release sends the held data. The error is that of Write.
func (c *Conn) Release() error {
	if c == nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.on = false
	_, err := c.flush(nil)
	return err
}

// Write writes b after the held data.
func (c *Conn) Write(b []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.on && len(c.held)+len(b) <= maxHeld:
		c.held = append(c.held, b...)
		return len(b), nil
	case len(c.held) == 0:
		return c.Conn.Write(b)
	}
	return c.flush(b)
}

// CloseWrite closes the sending direction; no data may be held. The error matches
// errors.ErrUnsupported if the directions can't be closed separately.
func (c *Conn) CloseWrite() error {
	if in, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return in.CloseWrite()
	}
	return fmt.Errorf("closing the write side: %w", errors.ErrUnsupported)
}

// flush writes what is held back and b. Precondition: c.mu is held.
func (c *Conn) flush(b []byte) (int, error) {
	if len(c.held) == 0 && len(b) == 0 {
		return 0, nil
	}
	pieces := net.Buffers{c.held, b}
	n, err := pieces.WriteTo(c.Conn)
	n = max(0, n-int64(len(c.held)))
	c.held = c.held[:0]
	return int(n), err
}
