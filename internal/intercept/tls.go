package intercept

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"net/http"
	"time"

	"github.com/sandpit-dev/sandpit/internal/authority"
)

const (
	maxStreams       = 32        // requests at once on a connection over HTTP/2
	maxUnread        = 256 << 10 // bytes of a response over HTTP/2 that the sandbox has not read
	maxSessions      = 64        // with origins, that are kept to be resumed
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
// handshake is cheap, and none carries over to another host.
func (i *TLS) inside(host string) *tls.Config {
	c := i.config.Clone()
	c.SessionTicketsDisabled = true
	c.GetCertificate = func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return i.authority.Issue(host) }
	return c
}

// transport has t speak TLS with the origin.
func (i *TLS) transport(t *http.Transport, host string) {
	t.TLSClientConfig = &tls.Config{MinVersion: tls.VersionTLS12, ServerName: host, RootCAs: i.trusted, ClientSessionCache: i.sessions}
	t.TLSHandshakeTimeout = handshakeTimeout
	t.ExpectContinueTimeout = time.Second // as curl waits
	t.MaxConnsPerHost = 0                 // the streams of HTTP/2 may need one each, of an origin without it
	t.HTTP2 = &http.HTTP2Config{MaxReceiveBufferPerStream: maxUnread, MaxReceiveBufferPerConnection: MaxUnread}
	t.Protocols.SetHTTP2(true)
}
