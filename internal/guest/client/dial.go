package client

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/guest/wire"
)

// Dial connects to a TCP port on the sandbox's loopback, over IPv4, or IPv6 if nothing
// listens there. The error matches sandpit.ErrUnavailable if nothing listens on either. The
// connection ends with the client.
func (c *Client) Dial(ctx context.Context, port uint16) (*Conn, error) {
	if port == 0 {
		return nil, fmt.Errorf("dialling port 0: %w", sandpit.ErrInvalid)
	}
	conn, err := c.dial(ctx, "127.0.0.1", port)
	if errors.Is(err, sandpit.ErrUnavailable) {
		if six, err6 := c.dial(ctx, "::1", port); err6 == nil {
			return six, nil
		}
	}
	return conn, err
}

// DialUnix connects to a unix socket of the sandbox, with the rights of its user.
func (c *Client) DialUnix(ctx context.Context, path string) (*Conn, error) {
	return c.dial(ctx, path, 0)
}

func (c *Client) dial(ctx context.Context, address string, port uint16) (*Conn, error) {
	conn := &Conn{address: address}
	if port > 0 {
		conn.address = net.JoinHostPort(address, strconv.Itoa(int(port)))
	}
	s, err := c.open(ctx, wire.OpDial, &wire.Dial{Address: address, Port: uint64(port)}, true, 0)
	if err == nil {
		_, err = s.wait(ctx)
	}
	if err != nil {
		return nil, fmt.Errorf("dialling %s in the sandbox: %w", printable(conn.address), err)
	}
	conn.s, conn.port = s, port
	return conn, nil
}

// hungUp handles the end of a connection.
func (c *Client) hungUp(s *stream, b []byte) error {
	var m wire.Closed
	if err := m.Decode(b); err != nil {
		return err
	}
	c.forget(s)
	switch m.Errno {
	case 0:
	case econnreset:
		s.in.Fail(syscall.ECONNRESET)
	default:
		s.in.Fail(fmt.Errorf("the connection in the sandbox broke (error %d)", m.Errno))
	}
	s.in.Finish()
	s.out.Fail(errPeerClosed)
	return nil
}

// Conn is a connection to a listener in a sandbox. It is a net.Conn whose directions can be
// closed separately.
type Conn struct {
	s       *stream
	address string
	port    uint16

	rmu  sync.Mutex // while reading
	rest []byte

	wmu sync.Mutex // while writing

	mu      sync.Mutex
	closed  bool
	eof     bool
	read    deadline
	written deadline
}

var _ net.Conn = (*Conn)(nil)

// Read reads data from the other end; io.EOF when it has ended.
func (c *Conn) Read(b []byte) (int, error) {
	c.rmu.Lock()
	defer c.rmu.Unlock()
	if len(c.rest) == 0 {
		_, rest, err := c.s.in.Next()
		if err != nil {
			return 0, c.mapped(err)
		}
		c.rest = rest
	}
	n := copy(b, c.rest)
	if c.rest = c.rest[n:]; len(c.rest) == 0 {
		c.s.credit(c.s.in.Done())
	}
	return n, nil
}

// Write sends data. The error is syscall.EPIPE if the other end accepts no more.
func (c *Conn) Write(b []byte) (int, error) {
	c.wmu.Lock()
	defer c.wmu.Unlock()
	n, err := c.s.send(context.Background(), b)
	return n, c.mapped(err)
}

func (c *Conn) mapped(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, wire.ErrWoken):
		return os.ErrDeadlineExceeded
	case c.isClosed():
		return net.ErrClosed
	case errors.Is(err, errPeerClosed):
		return syscall.EPIPE
	}
	return err
}

func (c *Conn) isClosed() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.closed
}

// CloseWrite closes the direction to the sandbox: the listener reads an end of file after
// the written data.
func (c *Conn) CloseWrite() error {
	c.mu.Lock()
	first := !c.eof && !c.closed
	c.eof = true
	c.mu.Unlock()
	if !first {
		return nil
	}
	c.s.out.Fail(net.ErrClosed)
	c.wmu.Lock()
	defer c.wmu.Unlock()
	c.s.endContent()
	return nil
}

// Close closes both directions. Data that was written before still arrives.
func (c *Conn) Close() error {
	c.mu.Lock()
	first := !c.closed
	c.closed = true
	c.read.stop()
	c.written.stop()
	c.mu.Unlock()
	if first {
		c.s.in.Abort(net.ErrClosed)
		c.s.close()
	}
	return nil
}

// LocalAddr returns the host's end, which has no address.
func (c *Conn) LocalAddr() net.Addr { return addr{"sandpit", "host"} }

// RemoteAddr returns the dialled address.
func (c *Conn) RemoteAddr() net.Addr {
	if c.port == 0 {
		return addr{"unix", c.address}
	}
	return addr{"tcp", c.address}
}

// addr is an address inside a sandbox.
type addr struct{ network, address string }

func (a addr) Network() string { return a.network }
func (a addr) String() string  { return a.address }

// SetDeadline sets both deadlines.
func (c *Conn) SetDeadline(t time.Time) error {
	_ = c.SetReadDeadline(t)
	return c.SetWriteDeadline(t)
}

// SetReadDeadline makes a waiting Read fail with os.ErrDeadlineExceeded after t.
func (c *Conn) SetReadDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return net.ErrClosed
	}
	c.read.set(&c.mu, t, c.s.in.Wake)
	return nil
}

// SetWriteDeadline does the same for Write.
func (c *Conn) SetWriteDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return net.ErrClosed
	}
	c.written.set(&c.mu, t, c.s.out.Wake)
	return nil
}

// deadline wakes who waits at a time.
type deadline struct {
	timer *time.Timer
	round int // of set; an earlier timer does nothing
}

// set is called with mu held.
func (d *deadline) set(mu *sync.Mutex, t time.Time, wake func(bool)) {
	d.stop()
	left := time.Until(t)
	switch {
	case t.IsZero():
		wake(false)
	case left <= 0:
		wake(true)
	default:
		wake(false)
		round := d.round
		d.timer = time.AfterFunc(left, func() {
			mu.Lock()
			defer mu.Unlock()
			if d.round == round {
				wake(true)
			}
		})
	}
}

func (d *deadline) stop() {
	d.round++
	if d.timer != nil {
		d.timer.Stop()
	}
}

// Ports lists the listening TCP ports in the sandbox's network, at most 4,096.
func (c *Client) Ports(ctx context.Context) ([]sandpit.Port, error) {
	var m wire.Ports
	if err := c.call(ctx, wire.OpPorts, nil, &m); err != nil {
		return nil, fmt.Errorf("listing ports: %w", err)
	}
	out := make([]sandpit.Port, len(m.List))
	for i, p := range m.List {
		ip, _ := netip.AddrFromSlice([]byte(p.Address))
		out[i] = sandpit.Port{Port: uint16(p.Port), Address: ip.String()}
	}
	return out, nil
}
