package intercept

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"net/http"
	"slices"
	"time"

	"github.com/sandpit-dev/sandpit/internal/authority"
)

const (
	maxSessions      = 64 // with origins, that are kept to be resumed
	handshakeTimeout = 20 * time.Second
)

// TLS ends the TLS of a sandbox here, so that its requests can be read. The sandbox
// sees certificates of its own authority. What goes on to an origin is TLS again, and the origin
// has to prove its name. An encrypted ClientHello (ECH) has no key here: a client that insists on
// it fails.
type TLS struct {
	text      []byte // what it was made from
	authority *authority.Authority
	trusted   *x509.CertPool // nil: those of this machine
	sessions  tls.ClientSessionCache
	config    *tls.Config // that all names begin with
}

// newTLS returns what ca, which is Terms.CA, makes possible, or that of before if it fits.
func newTLS(ca []byte, trusted *x509.CertPool, was *TLS) (*TLS, error) {
	if was != nil && bytes.Equal(was.text, ca) {
		return was, nil
	}
	a, err := authority.Read(ca)
	if err != nil {
		return nil, err
	}
	i := &TLS{text: ca, authority: a, trusted: trusted, sessions: tls.NewLRUClientSessionCache(maxSessions)}
	i.config = &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: []string{"h2", "http/1.1"}}
	return i, nil
}

// inside returns how TLS is spoken with the sandbox, as a host. Sessions are not resumed: each
// handshake is cheap, and none carries over to another host. begin is called first, with the
// protocols that the client speaks.
func (i *TLS) inside(host string, begin func(protocols []string)) *tls.Config {
	c := i.config.Clone()
	c.SessionTicketsDisabled = true
	c.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		begin(hello.SupportedProtos)
		return nil, nil //nolint:nilnil // no other config
	}
	c.GetCertificate = func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return i.authority.Issue(host) }
	return c
}

// outside returns how TLS is spoken with an origin.
func (i *TLS) outside(host string) *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS12, ServerName: host, RootCAs: i.trusted, ClientSessionCache: i.sessions, NextProtos: []string{"h2", "http/1.1"}}
}

// outside speaks TLS with an origin. The first handshake begins with that of the sandbox, beside it: the
// origin learns no more than that a connection was made.
type outside struct {
	ctx    context.Context // of all connections
	start  func(func())
	dial   func(ctx context.Context, network, address string) (net.Conn, error)
	config *tls.Config

	begun chan struct{} // one, until the first connection is taken
	first chan handshake
}

// A handshake is a connection on which TLS is spoken, or why there is none.
type handshake struct {
	conn net.Conn
	err  error
}

// begin begins the first handshake, for a client that speaks these protocols. One without HTTP/2 gets
// HTTP/1.1 from the origin, too: its requests may ask for another protocol, which only that can change to.
func (o *outside) begin(protocols []string) {
	if !slices.Contains(protocols, "h2") {
		o.config.NextProtos = []string{"http/1.1"}
	}
	o.begun <- struct{}{}
	o.start(func() {
		conn, err := o.next(o.ctx)
		o.first <- handshake{conn, err}
	})
}

// next makes a connection.
func (o *outside) next(ctx context.Context) (net.Conn, error) {
	conn, err := o.dial(ctx, "", "")
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, handshakeTimeout, errors.New("the TLS handshake takes too long"))
	defer cancel()
	secure := tls.Client(conn, o.config)
	if err := secure.HandshakeContext(ctx); err != nil {
		conn.Close()
		return nil, cmp.Or(context.Cause(ctx), err)
	}
	return secure, nil
}

// transport has t use these connections.
func (o *outside) transport(t *http.Transport) {
	t.DialTLSContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
		select {
		case <-o.begun:
		default:
			return o.next(ctx)
		}
		select {
		case h := <-o.first:
			return h.conn, h.err
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-o.ctx.Done():
			return nil, context.Cause(o.ctx)
		}
	}
	t.Protocols.SetHTTP2(true)
}

// speakHTTP2 lets t have a number of streams at once, and bounds what it holds of each: bytes that are unread. Responses
// that nobody reads leave room for the others.
func speakHTTP2(t *http.Transport, streams, unread int) {
	t.MaxConnsPerHost, t.MaxIdleConnsPerHost = 0, streams // they may need one each, of an origin without HTTP/2
	t.HTTP2 = &http.HTTP2Config{MaxReceiveBufferPerStream: unread, MaxReceiveBufferPerConnection: max(streams*unread, minUnsent)}
}
