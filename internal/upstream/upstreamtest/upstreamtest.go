// Package upstreamtest has proxies for tests.
package upstreamtest

import (
	"context"
	"crypto/tls"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"sync"
	"testing"

	"github.com/armon/go-socks5"

	"github.com/sandpit-dev/sandpit/internal/authority"
)

// Credentials that a proxy wants.
const (
	User     = "bert"
	Password = "hush&hide"
)

// Proxy is a proxy in whose network all names and addresses lead to this machine's loopback.
type Proxy struct {
	URL   *url.URL // with User and Password
	Roots []byte   // of a proxy that speaks TLS: who has signed its certificate, in PEM

	mu    sync.Mutex
	asked []string // hosts, guarded by mu
}

// Start starts a proxy on the loopback, by the scheme of its address. It ends with the test.
func Start(t testing.TB, scheme string) *Proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return StartOn(t, scheme, l)
}

// StartOn starts a proxy on a listener, which may be in another network than the test.
func StartOn(t testing.TB, scheme string, l net.Listener) *Proxy {
	t.Helper()
	p := &Proxy{}
	if scheme == "socks5" {
		p.socks(t, l)
	} else {
		p.http(t, l, scheme == "https")
	}
	p.URL.Scheme, p.URL.User = scheme, url.UserPassword(User, Password)
	return p
}

// Asked returns the hosts that connections were asked for to: names, and addresses where the proxy
// got one.
func (p *Proxy) Asked() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.asked)
}

// Forget empties what Asked returns.
func (p *Proxy) Forget() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.asked = nil
}

func (p *Proxy) ask(host string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.asked = append(p.asked, host)
}

// dial connects to a port of the loopback.
func (p *Proxy) dial(hostport string) (net.Conn, error) {
	_, port, err := net.SplitHostPort(hostport)
	if err != nil {
		return nil, err
	}
	return net.Dial("tcp", net.JoinHostPort("127.0.0.1", port))
}

// ServeHTTP serves CONNECT.
func (p *Proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	r.Header.Set("Authorization", r.Header.Get("Proxy-Authorization"))
	user, password, _ := r.BasicAuth()
	switch {
	case user != User || password != Password:
		w.WriteHeader(http.StatusProxyAuthRequired)
		return
	case r.Method != http.MethodConnect:
		w.WriteHeader(http.StatusMethodNotAllowed)
		return
	}
	p.ask(r.URL.Hostname())
	origin, err := p.dial(r.Host)
	if err != nil {
		w.WriteHeader(http.StatusBadGateway)
		return
	}
	defer origin.Close()
	in, head, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	defer in.Close()
	_, _ = io.WriteString(in, "HTTP/1.1 200 OK\r\n\r\n")
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = io.Copy(origin, head)
		_ = origin.(*net.TCPConn).CloseWrite()
	}()
	_, _ = io.Copy(in, origin)
	if c, ok := in.(interface{ CloseWrite() error }); ok {
		_ = c.CloseWrite()
	}
	<-done
}

func (p *Proxy) http(t testing.TB, l net.Listener, secure bool) {
	server := httptest.NewUnstartedServer(p)
	server.Listener.Close()
	server.Listener = l
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	t.Cleanup(server.Close)
	p.URL = &url.URL{Host: server.Listener.Addr().String()}
	if !secure {
		server.Start()
		return
	}
	ca, err := authority.New()
	if err != nil {
		t.Fatal(err)
	}
	issuer, err := authority.Read(ca)
	if err != nil {
		t.Fatal(err)
	}
	p.Roots = authority.Certificate(ca)
	p.URL.Host = "localhost:" + p.URL.Port() // a name, which its certificate is for
	server.TLS = &tls.Config{GetCertificate: func(h *tls.ClientHelloInfo) (*tls.Certificate, error) { return issuer.Issue(h.ServerName) }}
	server.StartTLS()
}

func (p *Proxy) socks(t testing.TB, l net.Listener) {
	server, err := socks5.New(&socks5.Config{
		Credentials: socks5.StaticCredentials{User: Password},
		Resolver:    p, Rules: p, Logger: log.New(io.Discard, "", 0),
		Dial: func(_ context.Context, _, addr string) (net.Conn, error) { return p.dial(addr) },
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	p.URL = &url.URL{Host: l.Addr().String()}
	go func() { _ = server.Serve(l) }()
}

// Resolve is of socks5.NameResolver.
func (p *Proxy) Resolve(ctx context.Context, _ string) (context.Context, net.IP, error) {
	return ctx, net.IPv4(127, 0, 0, 1), nil
}

// Allow is of socks5.RuleSet.
func (p *Proxy) Allow(ctx context.Context, r *socks5.Request) (context.Context, bool) {
	host := r.DestAddr.FQDN
	if host == "" {
		host = r.DestAddr.IP.String()
	}
	p.ask(host)
	return ctx, true
}
