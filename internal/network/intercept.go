package network

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/authority"
	"github.com/sandpit-dev/sandpit/internal/egress"
	"github.com/sandpit-dev/sandpit/internal/engine"
	"github.com/sandpit-dev/sandpit/internal/upstream"
)

const (
	maxStreams       = 32        // requests at once on a connection over HTTP/2
	maxUnread        = 256 << 10 // bytes of a response over HTTP/2 that the sandbox has not read
	maxUnreadInAll   = 1 << 20   // of all responses on a connection
	maxSessions      = 64        // with origins, that are kept to be resumed
	handshakeTimeout = 20 * time.Second
)

// An interception ends the TLS of a sandbox here, so that its requests can be read. The sandbox
// sees certificates of its own authority. What goes on to an origin is TLS again, and the origin
// has to prove its name. An encrypted ClientHello (ECH) has no key here: a client that insists on
// it fails.
type interception struct {
	text      []byte // what it was made from
	authority *authority.Authority
	trusted   *x509.CertPool // nil: those of this machine
	sessions  tls.ClientSessionCache
	config    *tls.Config // that all names begin with
}

// newInterception makes an interception, or returns that of before if it fits.
func newInterception(t engine.Terms, way *upstream.Way, was *interception) (*interception, error) {
	if was != nil && bytes.Equal(was.text, t.CA) {
		return was, nil
	}
	a, err := authority.Read(t.CA)
	if err != nil {
		return nil, err
	}
	i := &interception{text: t.CA, authority: a, trusted: way.Roots(), sessions: tls.NewLRUClientSessionCache(maxSessions)}
	i.config = &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: []string{"h2", "http/1.1"}}
	return i, nil
}

// inside returns how TLS is spoken with the sandbox, as a host. Sessions are not resumed: each
// handshake is cheap, and none carries over to another host.
func (i *interception) inside(host string) *tls.Config {
	c := i.config.Clone()
	c.SessionTicketsDisabled = true
	c.GetCertificate = func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return i.authority.Issue(host) }
	return c
}

// transport has t speak TLS with the origin.
func (i *interception) transport(t *http.Transport, d *dialler) {
	t.TLSClientConfig = &tls.Config{MinVersion: tls.VersionTLS12, ServerName: d.to.Host, RootCAs: i.trusted, ClientSessionCache: i.sessions}
	t.TLSHandshakeTimeout = handshakeTimeout
	t.ExpectContinueTimeout = time.Second // as curl waits
	t.MaxConnsPerHost = 0                 // the streams of HTTP/2 may need one each, of an origin without it
	t.HTTP2 = &http.HTTP2Config{MaxReceiveBufferPerStream: maxUnread, MaxReceiveBufferPerConnection: maxUnreadInAll}
	t.Protocols.SetHTTP2(true)
}

// dialMore makes another connection for requests of an open one. It counts as one of the
// sandbox's own. It ends with requests, at the latest, or when the rules do not allow it any more.
func (n *Network) dialMore(ctx, requests context.Context, d *dialler) (net.Conn, error) {
	release, err := n.bounds.admit()
	if err != nil {
		return nil, err
	}
	more := *d
	more.flow = n.flows.begin(d.to)
	conn, err := more.dial(ctx)
	if err == nil && !n.open(more.flow, func() { conn.Close() }) {
		err = errors.New("the rules have changed")
	}
	if err != nil {
		more.flow.finish(err)
		release()
		return nil, err
	}
	stop := context.AfterFunc(requests, func() { conn.Close() })
	return &released{Conn: conn, release: sync.OnceFunc(func() {
		stop()
		more.flow.finish(nil)
		release()
	})}, nil
}

// released is a connection that gives its place back when it is closed.
type released struct {
	net.Conn
	release func()
}

func (c *released) Close() error {
	defer c.release()
	return c.Conn.Close()
}

// asksForAnother reports whether a header says another method, path or host than the request does, which
// some frameworks believe. CGI and its successors read '_' in its name as '-' (RFC 3875, section 4.1.18).
func asksForAnother(header string) bool {
	switch strings.ReplaceAll(strings.ToLower(header), "_", "-") {
	case "x-http-method-override", "x-http-method", "x-method-override",
		"x-original-url", "x-original-uri", "x-rewrite-url", "x-forwarded-prefix", "x-forwarded-host":
		return true
	}
	return false
}

// decideRequest decides about a request to a named host.
func decideRequest(rules *egress.Rules, to egress.Destination, r *http.Request) sandpit.EgressDecision {
	if !rules.Intercepts(to) {
		return rules.Request(to, r.Method, "")
	}
	for name := range r.Header {
		if asksForAnother(name) {
			return sandpit.EgressDecision{Why: "the header " + name + " asks for another request than the rules decide about"}
		}
	}
	paths, err := egress.Paths(r.URL.EscapedPath())
	if err != nil {
		return sandpit.EgressDecision{Why: err.Error()}
	}
	var d sandpit.EgressDecision
	for _, path := range paths {
		if d = rules.Request(to, r.Method, path); !d.Allowed {
			break
		}
	}
	return d
}
