package client

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"time"

	"github.com/sandpit-dev/sandpit"
	v1 "github.com/sandpit-dev/sandpit/internal/api/v1"
)

// Ports returns the TCP ports on which processes in the sandbox listen. See
// sandpit.Networker.
func (s *sandbox) Ports(ctx context.Context) ([]sandpit.Port, error) {
	var all []sandpit.Port
	err := pages(ctx, s, "/ports", url.Values{}, func(v v1.PortList) (string, error) {
		all = append(all, v.Ports...)
		return v.Next, nil
	})
	if err != nil {
		return nil, err
	}
	return all, nil
}

// Dial connects to a TCP port of the sandbox. See sandpit.Networker.
func (s *sandbox) Dial(ctx context.Context, port uint16) (net.Conn, error) {
	if err := s.open(); err != nil {
		return nil, err
	}
	var conn net.Conn
	err := s.c.inTurn(ctx, func() (again bool, err error) {
		conn, err = s.c.upgrade(ctx, s.path+"/ports/"+strconv.Itoa(int(port))+"/tcp", "tcp")
		return true, err
	})
	if err != nil {
		return nil, s.explain(ctx, err)
	}
	return conn, nil
}

// maxHead bounds the head of the answer, in bytes, and what is read ahead behind it.
const maxHead = 1 << 20

// upgrade makes a connection of its own and has the server speak another
// protocol on it (RFC 9110, 7.8). http.Transport could not end one direction.
func (c *Client) upgrade(ctx context.Context, path, protocol string) (net.Conn, error) {
	if err := c.open(); err != nil {
		return nil, err
	}
	ctx, cancel := c.under(ctx)
	defer cancel()
	ctx, done := context.WithTimeoutCause(ctx, patience, errSilent)
	defer done()
	conn, err := c.endpoint.open(ctx)
	if err != nil {
		return nil, c.failed(ctx, err)
	}
	// What follows takes no context: when it ends, the connection's time is over.
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	fail := func(err error) (net.Conn, error) {
		stop()
		_ = conn.Close()
		return nil, err
	}
	req, err := http.NewRequest(http.MethodGet, c.base+path, nil)
	if err != nil {
		return fail(fmt.Errorf("calling the server: %w: %w", sandpit.ErrInvalid, err))
	}
	req.Header = c.header.Clone()
	req.Header.Set("Connection", "Upgrade")
	req.Header.Set("Upgrade", protocol)
	if err := req.Write(conn); err != nil {
		return fail(c.failed(ctx, err))
	}
	head := &io.LimitedReader{R: conn, N: maxHead}
	in := bufio.NewReader(head)
	resp, err := http.ReadResponse(in, req)
	if err != nil {
		return fail(c.failed(ctx, err))
	}
	if resp.StatusCode != http.StatusSwitchingProtocols {
		return fail(refusal(resp))
	}
	if !stop() {
		return fail(c.failed(ctx, ctx.Err()))
	}
	t := &tunnel{Conn: conn, in: in}
	t.unlink = context.AfterFunc(c.ctx, func() { _ = conn.Close() })
	return t, nil
}

// tunnel is a connection that the server has handed on.
type tunnel struct {
	net.Conn
	unlink func() bool // from the client, which closes it

	mu sync.Mutex
	in *bufio.Reader // what came with the answer; nil when it is used up
}

func (t *tunnel) Read(b []byte) (int, error) {
	t.mu.Lock()
	if t.in != nil {
		if n := t.in.Buffered(); n > 0 {
			n, err := t.in.Read(b[:min(n, len(b))])
			t.mu.Unlock()
			return n, err
		}
		t.in = nil
	}
	t.mu.Unlock()
	return t.Conn.Read(b)
}

// CloseWrite closes the write side. Reading continues.
func (t *tunnel) CloseWrite() error {
	if c, ok := t.Conn.(interface{ CloseWrite() error }); ok {
		return c.CloseWrite()
	}
	return fmt.Errorf("closing the write side: %w", errors.ErrUnsupported)
}

// Close closes the connection.
func (t *tunnel) Close() error {
	t.unlink()
	return t.Conn.Close()
}
