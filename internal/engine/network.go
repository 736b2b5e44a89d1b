package engine

import (
	"context"
	"net"

	"github.com/sandpit-dev/sandpit"
)

// Dial connects to a port. See sandpit.Networker.
func (s *Sandbox) Dial(ctx context.Context, port uint16) (net.Conn, error) {
	if err := s.enter(ctx); err != nil {
		return nil, err
	}
	defer s.leave()
	c, err := s.guest.Dial(ctx, port)
	if err != nil {
		return nil, s.explain(err)
	}
	return &conn{Conn: c, s: s}, nil
}

// Ports lists the listening ports. See sandpit.Networker.
func (s *Sandbox) Ports(ctx context.Context) ([]sandpit.Port, error) {
	if err := s.enter(ctx); err != nil {
		return nil, err
	}
	defer s.leave()
	ports, err := s.guest.Ports(ctx)
	if err != nil {
		return nil, s.explain(err)
	}
	return ports, nil
}

// conn is a connection to a port, whose traffic keeps the sandbox from being
// idle, or resumes it.
type conn struct {
	net.Conn
	s *Sandbox
}

// Read reads data from inside.
func (c *conn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.s.touch()
	return n, err
}

// Write sends data inside.
func (c *conn) Write(b []byte) (int, error) {
	if err := c.s.enter(context.Background()); err != nil {
		return 0, err
	}
	defer c.s.leave()
	return c.Conn.Write(b)
}

// CloseWrite closes the sending direction.
func (c *conn) CloseWrite() error {
	if w, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return w.CloseWrite()
	}
	return nil
}
