package upstream

import (
	"bufio"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"

	"golang.org/x/net/proxy"
)

// maxHead bounds what an HTTP proxy answers, in bytes.
const maxHead = 16 << 10

// connect asks an HTTP proxy for a tunnel (RFC 9110, section 9.3.6), and returns it.
func (w *Way) connect(conn net.Conn, address string) (net.Conn, error) {
	request := &http.Request{Method: http.MethodConnect, URL: &url.URL{Opaque: address}, Host: address, Header: http.Header{"User-Agent": {""}}}
	if u := w.proxy.User; u != nil {
		password, _ := u.Password()
		request.Header.Set("Proxy-Authorization", "Basic "+base64.StdEncoding.EncodeToString([]byte(u.Username()+":"+password)))
	}
	if err := request.Write(conn); err != nil {
		return nil, fmt.Errorf("asking it for a connection: %w", err)
	}
	head := &io.LimitedReader{R: conn, N: maxHead}
	r := bufio.NewReader(head)
	response, err := http.ReadResponse(r, request) //nolint:bodyclose // the connection is closed, or it is the tunnel
	switch {
	case err != nil && head.N <= 0:
		return nil, fmt.Errorf("its answer has more than %d bytes", maxHead)
	case err != nil:
		return nil, fmt.Errorf("its answer: %w", err)
	case response.StatusCode == http.StatusProxyAuthRequired && w.proxy.User == nil:
		return nil, errors.New("it wants a user and password; add them to upstream-proxy")
	case response.StatusCode == http.StatusProxyAuthRequired:
		return nil, errors.New("it refuses the user and password; correct them in upstream-proxy")
	case response.StatusCode/100 != 2 && !strings.HasSuffix(address, ":443"):
		return nil, fmt.Errorf("it refuses the connection: %d %s; it may allow CONNECT to port 443 only", response.StatusCode, http.StatusText(response.StatusCode))
	case response.StatusCode/100 != 2:
		return nil, fmt.Errorf("it refuses the connection: %d %s", response.StatusCode, http.StatusText(response.StatusCode))
	}
	if r.Buffered() == 0 {
		return conn, nil
	}
	early, _ := r.Peek(r.Buffered())
	return &tunnel{Conn: conn, early: early}, nil
}

// tunnel is a connection of which some bytes were read ahead.
type tunnel struct {
	net.Conn
	early []byte
}

func (t *tunnel) Read(b []byte) (int, error) {
	if len(t.early) > 0 {
		n := copy(b, t.early)
		t.early = t.early[n:]
		return n, nil
	}
	return t.Conn.Read(b)
}

// NetConn returns the connection to the proxy.
func (t *tunnel) NetConn() net.Conn { return t.Conn }

// CloseWrite ends the sending direction.
func (t *tunnel) CloseWrite() error {
	if w, ok := t.Conn.(interface{ CloseWrite() error }); ok {
		return w.CloseWrite()
	}
	return nil
}

// socks makes conn a connection to address (RFC 1928, RFC 1929).
func (w *Way) socks(ctx context.Context, conn net.Conn, address string) error {
	var auth *proxy.Auth
	if u := w.proxy.User; u != nil {
		password, _ := u.Password()
		auth = &proxy.Auth{User: u.Username(), Password: password}
	}
	d, err := proxy.SOCKS5("tcp", "", auth, made{conn})
	if err == nil {
		_, err = d.(proxy.ContextDialer).DialContext(ctx, "tcp", address)
	}
	if err != nil {
		if op := (*net.OpError)(nil); errors.As(err, &op) { // with addresses
			err = op.Err
		}
		return fmt.Errorf("SOCKS5: %w", err)
	}
	return nil
}

// made is a proxy.Dialer with a connection that was made.
type made struct{ conn net.Conn }

func (m made) Dial(string, string) (net.Conn, error) { return m.conn, nil }

func (m made) DialContext(context.Context, string, string) (net.Conn, error) { return m.conn, nil }
