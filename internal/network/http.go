package network

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/egress"
)

const (
	maxHead         = 64 << 10         // bytes of a request's header; parsed, it takes several times as much
	maxResponseHead = 256 << 10        // bytes of a response's header
	headTimeout     = 30 * time.Second // for a request's header, from its first bytes
	idleTimeout     = 5 * time.Minute  // between requests
)

// serveHTTP passes requests on one by one. Each is read whole and written anew, so that nobody
// reads another Host in it than was checked here. The connection to the origin that was made
// already serves the first request. With i, both sides speak TLS, which ends here.
func (n *Network) serveHTTP(in net.Conn, r *bufio.Reader, out net.Conn, d *dialler, i *interception) error {
	requests, end := context.WithCancel(n.ctx)
	defer end()
	first := make(chan net.Conn, 1)
	first <- out
	transport := &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			select {
			case conn := <-first:
				return conn, nil
			default:
				return n.dialMore(ctx, requests, d)
			}
		},
		DisableCompression: true, // the client asks for it itself
		MaxConnsPerHost:    1,
		Protocols:          new(http.Protocols),
		// There is no ResponseHeaderTimeout: some answers take many minutes, and the
		// connection counts as the sandbox's for as long as it waits.
		MaxResponseHeaderBytes: maxResponseHead,
	}
	transport.Protocols.SetHTTP1(true)
	scheme := "http"
	if i != nil {
		scheme = "https"
		i.transport(transport, d)
	}
	defer transport.CloseIdleConnections()
	proxy := &httputil.ReverseProxy{
		Rewrite:       func(r *httputil.ProxyRequest) { rewrite(r, scheme) },
		Transport:     transport,
		FlushInterval: -1,
		ErrorLog:      log.New(io.Discard, "", 0),
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) {
			p := putOf(r)
			if v := p.denied(); v != nil {
				n.refuse(w, r, d, *v)
				return
			}
			if errors.Is(err, errAgain) {
				return
			}
			http.Error(w, "sandpit: the origin failed: "+p.hideText(reasonOf(err)), http.StatusBadGateway)
		},
		ModifyResponse: func(r *http.Response) error {
			p := putOf(r.Request)
			if p.tries.again(r.Request.Context(), r.StatusCode) {
				return errAgain
			}
			p.hideResponse(r)
			if r.StatusCode == http.StatusSwitchingProtocols {
				d.flow.switchProtocol()
				if p.secrets.changed(n.rules.Load().secrets, d.to) { // before Set could see the flow
					return errSecretChanged
				}
				p.messages(r, func(error) {
					if v := p.denied(); v != nil {
						n.noteDenied(d, *v)
					}
				})
			}
			return nil
		},
	}
	server := &http.Server{
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			defer func() {
				if failed := recover(); failed != nil { // as ReverseProxy says that the response is not whole
					if !r.ProtoAtLeast(1, 1) { // whose bodies end with the connection
						d.flow.reset()
					}
					panic(failed)
				}
			}()
			if v := n.request(d, r); !v.Allowed {
				n.refuse(w, r, d, v)
				return
			}
			set := n.rules.Load()
			release, err := n.hold(r, set.secrets, d.to, i != nil)
			if err != nil {
				return // its client is gone
			}
			defer release()
			tries := n.newAttempts(r, set, d.to, i != nil)
			for more := true; more; set, more = n.rules.Load(), tries.more {
				tries.more = false
				r, p := set.secrets.put(tries.next(r), d.to, i != nil)
				p.tries, p.current = tries, func() secrets { return n.rules.Load().secrets }
				if i != nil && p.denied() == nil {
					p.sign(r, d.to)
				}
				if v := p.denied(); v != nil {
					n.refuse(w, r, d, *v)
					return
				}
				proxy.ServeHTTP(hidingWriter{w, p}, r)
			}
		}),
		HTTP2: &http.HTTP2Config{MaxConcurrentStreams: maxStreams}, Protocols: new(http.Protocols),
		MaxHeaderBytes: maxHead, IdleTimeout: idleTimeout, ReadHeaderTimeout: n.waits.head,
		ErrorLog:    log.New(io.Discard, "", 0),
		BaseContext: func(net.Listener) context.Context { return n.ctx },
	}
	server.SetKeepAlivesEnabled(!d.proxied)
	server.Protocols.SetHTTP1(true)
	var inside *tls.Config
	if i != nil {
		server.Protocols.SetHTTP2(true)
		inside = i.inside(d.to.Host)
	}
	l := newOneConn(&bufferedConn{Conn: in, r: r}, inside)
	err := server.Serve(l)
	<-l.served // also of a connection that was taken over
	if errors.Is(err, http.ErrServerClosed) || errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

// reasonOf returns why a connection failed, without the addresses of this machine and its networks, which
// are not the sandbox's business.
func reasonOf(err error) string {
	op := (*net.OpError)(nil)
	if !errors.As(err, &op) {
		return err.Error()
	}
	for inner := op; errors.As(inner.Err, &inner); {
		op = inner
	}
	why := op.Err
	if call := (*os.SyscallError)(nil); errors.As(why, &call) {
		why = call.Err
	}
	return op.Op + ": " + why.Error()
}

// errAgain is why a response is dropped: the request is sent again.
var errAgain = errors.New("the request is sent again")

// rewrite leaves a request as it is, except for what is between two hosts only.
func rewrite(r *httputil.ProxyRequest, scheme string) {
	u := r.In.URL // of which nothing goes on that names a host
	r.Out.URL = &url.URL{Scheme: scheme, Host: r.In.Host, Path: u.Path, RawPath: u.RawPath, RawQuery: u.RawQuery, ForceQuery: u.ForceQuery}
	r.Out.Trailer = r.In.Trailer // the values come after the body
	if offersHTTP(r.Out.Header.Get("Upgrade")) {
		r.Out.Header.Del("Upgrade") // to requests that nobody here would read
		r.Out.Header.Del("Connection")
		r.Out.Header.Del("HTTP2-Settings")
	}
	for _, name := range []string{"Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto"} {
		if v, ok := r.In.Header[name]; ok {
			r.Out.Header[name] = v
		}
	}
	if _, ok := r.Out.Header["User-Agent"]; !ok {
		r.Out.Header.Set("User-Agent", "") // none is sent
	}
}

// offersHTTP reports whether an upgrade could lead to another version of HTTP (RFC 7540, section
// 3.2), or to TLS in which another host is asked for (RFC 2817).
func offersHTTP(upgrade string) bool {
	return slices.ContainsFunc(strings.Split(strings.ToLower(upgrade), ","), func(p string) bool {
		p = strings.TrimSpace(p)
		return strings.HasPrefix(p, "h2") || strings.HasPrefix(p, "http/") || strings.HasPrefix(p, "tls/")
	})
}

// request decides about a request over HTTP.
func (n *Network) request(d *dialler, r *http.Request) sandpit.EgressDecision {
	deny := func(format string, args ...any) sandpit.EgressDecision {
		return sandpit.EgressDecision{Why: fmt.Sprintf(format, args...)}
	}
	if r.Method == http.MethodConnect {
		return deny("CONNECT on a connection to %s", d.to)
	}
	if !originTarget(r) {
		return deny("HTTP asks for neither a path nor a URL of http or https on a connection to %s", d.to)
	}
	host, port := r.Host, ""
	if h, p, err := net.SplitHostPort(host); err == nil {
		host, port = h, p
	}
	if port != "" && port != fmt.Sprint(d.to.Port) {
		return deny("HTTP asks for port %s on a connection to %s", port, d.to)
	}
	if d.to.Host == "" {
		if a, ok := egress.Addr(strings.Trim(host, "[]")); ok && a == d.to.Addr {
			return n.rules.Load().rules.Request(d.to, r.Method, "")
		}
		return deny("HTTP asks for %q on a connection to %s", host, d.to)
	}
	name, err := egress.Name(host)
	if err != nil {
		return deny("the Host of HTTP is not valid: %v", err)
	}
	if name != d.to.Host {
		return deny("HTTP asks for %s on a connection to %s", name, d.to)
	}
	return decideRequest(n.rules.Load().rules, d.to, r)
}

// originTarget reports whether the target of a request is a path, a URL of HTTP, or the * of OPTIONS
// (RFC 9112, section 3.2). Of a URL, the Host of r is that of the URL, and not the header's.
func originTarget(r *http.Request) bool {
	u := r.URL
	switch {
	case u.Opaque != "":
		return false
	case u.Scheme != "" || u.Host != "":
		return (u.Scheme == "http" || u.Scheme == "https") && u.Host != "" && (u.Path == "" || u.Path[0] == '/')
	case u.Path == "*":
		return r.Method == http.MethodOptions
	}
	return strings.HasPrefix(u.Path, "/")
}

// noteDenied notes a request that is not allowed.
func (n *Network) noteDenied(d *dialler, v sandpit.EgressDecision) sandpit.EgressDecision {
	f := n.flows.begin(d.to)
	v = f.decide(v)
	f.finish(nil)
	return v
}

// refuse answers a request that is not allowed.
func (n *Network) refuse(w http.ResponseWriter, r *http.Request, d *dialler, v sandpit.EgressDecision) {
	v = n.noteDenied(d, v)
	if r.ProtoMajor == 1 { // in HTTP/2 other requests go on
		w.Header().Set("Connection", "close")
	}
	http.Error(w, "sandpit: "+v.Why, http.StatusForbidden)
}

// bufferedConn is a connection of which some bytes were read ahead.
type bufferedConn struct {
	net.Conn
	r *bufio.Reader
}

func (c *bufferedConn) Read(b []byte) (int, error) { return c.r.Read(b) }

// CloseWrite ends the sending direction.
func (c *bufferedConn) CloseWrite() error {
	closeWrite(c.Conn)
	return nil
}

// oneConn is a listener with one connection. Accept returns net.ErrClosed once that is closed.
type oneConn struct {
	conn   chan net.Conn
	served chan struct{} // closed with the connection
	once   sync.Once
}

// newOneConn returns a listener whose connection is c, or TLS on it.
func newOneConn(c net.Conn, secure *tls.Config) *oneConn {
	l := &oneConn{conn: make(chan net.Conn, 1), served: make(chan struct{})}
	c = &closing{Conn: c, l: l}
	if secure != nil {
		c = tls.Server(c, secure)
	}
	l.conn <- c
	return l
}

// closing is the connection of a oneConn.
type closing struct {
	net.Conn
	l *oneConn
}

func (c *closing) Close() error {
	err := c.Conn.Close()
	_ = c.l.Close()
	return err
}

// CloseWrite ends the sending direction.
func (c *closing) CloseWrite() error {
	closeWrite(c.Conn)
	return nil
}

func (l *oneConn) Accept() (net.Conn, error) {
	select {
	case c := <-l.conn:
		return c, nil
	case <-l.served:
		return nil, net.ErrClosed
	}
}

func (l *oneConn) Close() error {
	l.once.Do(func() { close(l.served) })
	return nil
}

func (*oneConn) Addr() net.Addr { return net.TCPAddrFromAddrPort(netip.AddrPort{}) }
