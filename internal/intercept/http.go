package intercept

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log"
	"maps"
	"net"
	"net/http"
	"net/http/httputil"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/egress"
)

// Bounds of a connection, in bytes.
const (
	MaxHead         = 64 << 10  // of a request's header; parsed, it takes several times as much
	MaxResponseHead = 256 << 10 // of a response's header
	MaxUnread       = 256 << 10 // of a response over HTTP/2 that the sandbox has not read
)

// Requests at once over HTTP/2.
const (
	allStreams = 512 // on all connections of a sandbox that have more than minStreams
	maxStreams = 32  // on a connection
	minStreams = 4   // of a connection beside many others
)

// What HTTP/2 holds that the other side has not read, in bytes.
const (
	AllUnread   = 64 << 20 // of responses, on all connections of a sandbox; each may have minStreams of minUnread beyond it
	minUnread   = 16 << 10 // of a response on a connection beside many others
	minUnsent   = 64 << 10 // of the bodies of a connection's requests; the smallest window that Go takes
	unsentShare = 8        // the part of its responses that these bodies may have beyond it
)

const idleTimeout = 5 * time.Minute // between requests

// Conn is a connection of a sandbox.
type Conn interface {
	net.Conn
	CloseWrite() error // ends the sending direction

	// Drain discards what comes until the client ends, or for a time. Unlike Read it may be called while Read is.
	Drain(most time.Duration)
}

// Connection says what the requests of a connection are for. No field but TLS is nil.
type Connection struct {
	To      egress.Destination
	TLS     *TLS // Terms.TLS where both sides speak it; nil: neither does
	HTTP2   bool // without TLS: both sides speak HTTP/2 from the beginning
	Proxied bool // each request may be for another host, so one is served

	// Dial makes another connection to To, which ends with requests, at the latest.
	Dial func(ctx, requests context.Context) (net.Conn, error)

	// Denied notes a request that is not allowed. It returns what the sandbox is told.
	Denied func(sandpit.EgressDecision) sandpit.EgressDecision

	// Switched notes that no more requests follow, but another protocol.
	Switched func()

	// Reset ends the connection, so that the sandbox does not take what it got for all.
	Reset func()
}

// Serve passes requests on one by one. Each is read whole and written anew, so that nobody
// reads another Host in it than was checked here. The connection to the origin that was made
// already, out, serves the first request. What was read ahead of in is in r.
func (s *Server) Serve(in Conn, r *bufio.Reader, out net.Conn, c Connection) error {
	requests, end := context.WithCancel(s.ctx)
	defer end()
	first := make(chan net.Conn, 1)
	first <- out
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		select {
		case conn := <-first:
			return conn, nil
		default:
			return c.Dial(ctx, requests)
		}
	}
	transport := &http.Transport{
		DialContext:        dial,
		DisableCompression: true, // the client asks for it itself
		MaxConnsPerHost:    1,
		Protocols:          new(http.Protocols),
		// There is no ResponseHeaderTimeout: some answers take many minutes, and the
		// connection counts as the sandbox's for as long as it waits.
		MaxResponseHeaderBytes: MaxResponseHead,
	}
	config := new(http.HTTP2Config)
	if c.TLS != nil || c.HTTP2 {
		streams, unread, release := s.shareStreams()
		defer release()
		speakHTTP2(transport, streams, unread)
		config.MaxConcurrentStreams = streams
		config.MaxReceiveBufferPerConnection = max(streams*unread/unsentShare, minUnsent)
	}
	transport.Protocols.SetHTTP1(!c.HTTP2)
	if c.HTTP2 {
		transport.Protocols.SetUnencryptedHTTP2(true)
	}
	scheme := "http"
	if c.TLS != nil {
		scheme = "https"
	}
	defer transport.CloseIdleConnections()
	proxy := &httputil.ReverseProxy{
		Rewrite:       func(r *httputil.ProxyRequest) { rewrite(r, scheme) },
		Transport:     transport,
		FlushInterval: -1,
		ErrorLog:      log.New(io.Discard, "", 0),
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) {
			e := exchangeOf(r)
			if v := e.denied(); v != nil {
				refuse(w, r, c, *v)
				return
			}
			if errors.Is(err, errAgain) {
				return
			}
			http.Error(w, "sandpit: the origin failed: "+e.hideText(Reason(err)), http.StatusBadGateway)
		},
		ModifyResponse: func(r *http.Response) error {
			e := exchangeOf(r.Request)
			if e.tries.again(r.Request.Context(), r.StatusCode) {
				return errAgain
			}
			e.tries.body = nil
			e.passed()
			e.hideResponse(r)
			if r.StatusCode == http.StatusSwitchingProtocols {
				c.Switched()
				if e.secrets.changed(s.terms().secrets, c.To) { // before the change could end the connection
					return ErrSecretChanged
				}
				e.messages(r, func(error) {
					if v := e.denied(); v != nil {
						c.Denied(*v)
					}
				})
			}
			return nil
		},
	}
	var unread atomic.Bool // a part of the last request's body
	server := &http.Server{
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			// Else Go's server would discard what it has of a body over HTTP/1.1 once the origin answers.
			_ = http.NewResponseController(w).EnableFullDuplex()
			defer func() {
				if failed := recover(); failed != nil { // as ReverseProxy says that the response is not whole
					if !r.ProtoAtLeast(1, 1) { // whose bodies end with the connection
						c.Reset()
					}
					panic(failed)
				}
			}()
			defer endUnlessWhole(r, &unread)()
			if v := s.terms().request(c.To, r); !v.Allowed {
				refuse(w, r, c, v)
				return
			}
			terms := s.terms()
			release, err := s.hold(r, terms.secrets, c.To, c.TLS != nil)
			if err != nil {
				panic(http.ErrAbortHandler) // its client is gone, and would take the end for an answer
			}
			defer release()
			proceed(w, r)
			tries := s.newAttempts(r, terms, c.To, c.TLS != nil)
			for more := true; more; terms, more = s.terms(), tries.more {
				tries.more = false
				r, e := terms.secrets.put(tries.next(r), c.To, c.TLS != nil)
				e.tries, e.current = tries, func() secrets { return s.terms().secrets }
				if c.TLS != nil && e.denied() == nil {
					e.sign(r, c.To)
				}
				if v := e.denied(); v != nil {
					refuse(w, r, c, *v)
					return
				}
				e.holds(r, release)
				proxy.ServeHTTP(hidingWriter{w, e}, r)
			}
		}),
		HTTP2: config, Protocols: new(http.Protocols),
		MaxHeaderBytes: MaxHead, IdleTimeout: idleTimeout, ReadHeaderTimeout: s.head,
		ErrorLog:    log.New(io.Discard, "", 0),
		BaseContext: func(net.Listener) context.Context { return s.ctx },
	}
	server.SetKeepAlivesEnabled(!c.Proxied)
	server.Protocols.SetHTTP1(!c.HTTP2)
	server.Protocols.SetUnencryptedHTTP2(c.HTTP2)
	var inside *tls.Config
	if c.TLS != nil {
		server.Protocols.SetHTTP2(true)
		outside := &outside{ctx: requests, start: s.start, dial: dial, config: c.TLS.outside(c.To.Host), first: make(chan handshake, 1), begun: make(chan struct{}, 1)}
		outside.transport(transport)
		inside = c.TLS.inside(c.To.Host, outside.begin)
	}
	l := newOneConn(&bufferedConn{in, r}, inside, &unread)
	err := server.Serve(l)
	<-l.served // also of a connection that was taken over
	if errors.Is(err, http.ErrServerClosed) || errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

// shareStreams returns how many requests at once a connection over HTTP/2 may have, and how many bytes of each
// response may be unread, until release is called.
func (s *Server) shareStreams() (n, unread int, release func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n = min(max((allStreams-s.streams)/8, minStreams), maxStreams)
	unread = min(max((AllUnread-s.unread)/8/n, minUnread), MaxUnread)
	s.streams += n
	s.unread += n * unread
	return n, unread, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.streams -= n
		s.unread -= n * unread
	}
}

// Reason returns why a connection failed, without the addresses of this machine and its networks, which
// are not the sandbox's business.
func Reason(err error) string {
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
	passTrailer(r)
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

// passTrailer has the trailer follow the body. Its map is r.Out's own, and changes only where the body is
// read: the origin's side of the transport is not the goroutine that serves the sandbox.
func passTrailer(r *httputil.ProxyRequest) {
	if len(r.Out.Trailer) == 0 || r.Out.Body == nil {
		return
	}
	// Else, with HTTP/1.1 and a method that seldom has a body, the transport reads the body beside the
	// header, in which it names the trailer's fields.
	r.Out.TransferEncoding = []string{"chunked"}
	to := r.Out.Trailer
	r.Out.Body = newEnding(r.Out.Body, func() error {
		maps.Copy(to, r.In.Trailer)
		return exchangeOf(r.In).trailer(to)
	})
}

// offersHTTP reports whether an upgrade could lead to another version of HTTP (RFC 7540, section
// 3.2), or to TLS in which another host is asked for (RFC 2817).
func offersHTTP(upgrade string) bool {
	return slices.ContainsFunc(strings.Split(strings.ToLower(upgrade), ","), func(p string) bool {
		p = strings.TrimSpace(p)
		return strings.HasPrefix(p, "h2") || strings.HasPrefix(p, "http/") || strings.HasPrefix(p, "tls/")
	})
}

// request decides about a request over HTTP to a destination.
func (t *Terms) request(to egress.Destination, r *http.Request) sandpit.EgressDecision {
	deny := func(format string, args ...any) sandpit.EgressDecision {
		return sandpit.EgressDecision{Why: fmt.Sprintf(format, args...)}
	}
	if r.Method == http.MethodConnect {
		return deny("CONNECT on a connection to %s", to)
	}
	if !originTarget(r) {
		return deny("HTTP asks for neither a path nor a URL of http or https on a connection to %s", to)
	}
	host, port := r.Host, ""
	if h, p, err := net.SplitHostPort(host); err == nil {
		host, port = h, p
	}
	if port != "" && port != fmt.Sprint(to.Port) {
		return deny("HTTP asks for port %s on a connection to %s", port, to)
	}
	if to.Host == "" {
		if a, ok := egress.Addr(strings.Trim(host, "[]")); ok && a == to.Addr {
			return t.rules.Request(to, r.Method, "")
		}
		return deny("HTTP asks for %q on a connection to %s", host, to)
	}
	name, err := egress.Name(host)
	if err != nil {
		return deny("the Host of HTTP is not valid: %v", err)
	}
	if name != to.Host {
		return deny("HTTP asks for %s on a connection to %s", name, to)
	}
	return decideRequest(t.rules, to, r)
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

// proceed asks for the body of a request that waits until it is wanted, and has it wanted: an origin that answers
// such a request before it asks for the body may never get that from Go's transport, and Go's server
// would ask while another response is written.
func proceed(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get("Expect") == "" {
		return
	}
	r.Header.Del("Expect")
	if r.ProtoMajor == 1 && r.ProtoAtLeast(1, 1) && r.ContentLength != 0 {
		w.WriteHeader(http.StatusContinue)
	}
}

// endUnlessWhole returns what ends a connection of HTTP/1 after its request r, and says so, if the body of r was not read to
// its end: what is left of it must not be read as the next request, as Go's server does with EnableFullDuplex.
func endUnlessWhole(r *http.Request, unread *atomic.Bool) func() {
	if r.ProtoMajor != 1 || r.Body == http.NoBody {
		return func() {}
	}
	var whole atomic.Bool
	r.Body = newEnding(r.Body, func() error { whole.Store(true); return nil })
	return func() {
		if server, ok := r.Context().Value(http.ServerContextKey).(*http.Server); ok && !whole.Load() {
			server.SetKeepAlivesEnabled(false) // it has no other connection
			unread.Store(true)
		}
	}
}

// refuse answers a request that is not allowed.
func refuse(w http.ResponseWriter, r *http.Request, c Connection, v sandpit.EgressDecision) {
	v = c.Denied(v)
	if r.ProtoMajor == 1 { // in HTTP/2 other requests go on
		w.Header().Set("Connection", "close")
	}
	http.Error(w, "sandpit: "+v.Why, http.StatusForbidden)
}

// bufferedConn is a connection of which some bytes were read ahead.
type bufferedConn struct {
	Conn
	r *bufio.Reader
}

func (c *bufferedConn) Read(b []byte) (int, error) { return c.r.Read(b) }

// oneConn is a listener with one connection. Accept returns net.ErrClosed once that is closed.
type oneConn struct {
	conn   chan net.Conn
	served chan struct{} // closed with the connection
	once   sync.Once
}

// newOneConn returns a listener whose connection is c, or TLS on it. unread says, once it is closed, that its client may still
// send a request that was answered.
func newOneConn(c Conn, secure *tls.Config, unread *atomic.Bool) *oneConn {
	l := &oneConn{conn: make(chan net.Conn, 1), served: make(chan struct{})}
	var conn net.Conn = &closing{c, l, unread}
	if secure != nil {
		conn = tls.Server(conn, secure)
	}
	l.conn <- conn
	return l
}

// closing is the connection of a oneConn.
type closing struct {
	Conn
	l      *oneConn
	unread *atomic.Bool
}

// lingerTime bounds how long a client may go on sending a request that was answered.
const lingerTime = 10 * time.Second

// Close closes the connection. If something is unread it reads that first: a connection that is closed before is
// reset, and many clients read an answer only when they have sent their request.
func (c *closing) Close() error {
	if c.unread.Load() && c.CloseWrite() == nil {
		c.Drain(lingerTime) // what came with the request may still be read by Go's server
	}
	err := c.Conn.Close()
	_ = c.l.Close()
	return err
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
