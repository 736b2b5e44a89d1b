package api

import (
	"bufio"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"slices"
	"strconv"
	"strings"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/api/stream"
	"github.com/sandpit-dev/sandpit/internal/errcode"
	"github.com/sandpit-dev/sandpit/internal/fault"
	"github.com/sandpit-dev/sandpit/internal/gate"
	"github.com/sandpit-dev/sandpit/internal/httpconn"
	"github.com/sandpit-dev/sandpit/internal/preview"
)

// Headers that name a port of a sandbox, on any path.
const (
	headerSandbox = "X-Sandpit-Sandbox"
	headerPort    = "X-Sandpit-Port"

	ownHeaders = "X-Sandpit-" // what the server's own begin with
)

// target is where a request is passed on to.
type target struct {
	sandbox string
	port    string
	byHost  bool // the name that was asked for is the port's alone, not the server's
}

// passingID is the operation of a request to a port of a sandbox.
const passingID = "proxy"

// proxyRoute is the route of requests to ports of sandboxes.
func proxyRoute() *Route {
	return &Route{ID: passingID, Guarded: true, selfAudited: true, handle: forward}
}

// splitSandboxHost splits <port>-<id>.<domain>.
func splitSandboxHost(name string, domains []string) (sandbox, port string, ok bool) {
	label, rest, ok := strings.Cut(name, ".")
	if !ok {
		return "", "", false
	}
	port, sandbox, ok = strings.Cut(label, "-")
	if !ok || port == "" || sandbox == "" || strings.Trim(port, "0123456789") != "" {
		return "", "", false
	}
	for _, d := range domains {
		if rest == d {
			return sandbox, port, true
		}
	}
	return "", "", false
}

// proxy passes requests on to ports of sandboxes, and to nothing else: the one
// way out that it has is sandpit.Networker.
type proxy struct {
	transport *http.Transport
	forward   httputil.ReverseProxy
}

// passedKey is the key of the *passed in the context of a forwarded request.
type passedKey struct{}

// passed is a call that is passed on.
type passed struct {
	*call
	dial func(context.Context) (net.Conn, error)
}

func passedOf(ctx context.Context) passed { return ctx.Value(passedKey{}).(passed) }

// within returns a context of the call's own that has p.
func (p passed) within() context.Context { return context.WithValue(p.Ctx, passedKey{}, p) }

// finalAnswers is a transport that drops informational answers (status 1xx but
// 101). httputil.ReverseProxy asks for them by a trace in the context, sends them
// on without ModifyResponse, and then clears the headers that the server has set.
type finalAnswers struct{ http.RoundTripper }

// RoundTrip sends a request under the context of its call, which has no trace.
func (t finalAnswers) RoundTrip(r *http.Request) (*http.Response, error) {
	return t.RoundTripper.RoundTrip(r.WithContext(passedOf(r.Context()).within()))
}

// maxProxyHeader bounds the headers that a sandbox answers with, in bytes.
const maxProxyHeader = 64 << 10

func newProxy(a *API) *proxy {
	p := new(proxy)
	p.transport = &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			conn, err := passedOf(ctx).dial(ctx)
			if err != nil {
				return nil, err
			}
			return httpconn.HearAnswer(stream.PatientWriter{Conn: conn, Stall: a.gate.Limits().Tunnel}), nil
		},
		DisableKeepAlives:      true, // a connection belongs to one request of one caller
		DisableCompression:     true,
		MaxResponseHeaderBytes: maxProxyHeader,
	}
	p.forward = httputil.ReverseProxy{
		Rewrite:        rewrite,
		Transport:      finalAnswers{p.transport},
		FlushInterval:  -1,
		BufferPool:     stream.Buffers{},
		ModifyResponse: confine,
		ErrorLog:       slog.NewLogLogger(a.gate.Log().Handler(), slog.LevelDebug),
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, err error) {
			c := w.(proxyWriter).call
			var network *net.OpError
			if errcode.Of(err) == errcode.Internal || errors.As(err, &network) {
				err = fmt.Errorf("forwarding the request: %w: %w", sandpit.ErrUnavailable, err)
			}
			c.Fail(err)
		},
	}
	return p
}

// target returns the port to which a request is forwarded.
func (a *API) target(r *http.Request) (target, bool) {
	if sandbox, port, ok := splitSandboxHost(gate.HostName(r.Host), a.domains); ok {
		return target{sandbox, port, true}, true
	}
	sandbox, port := r.Header.Get(headerSandbox), r.Header.Get(headerPort)
	if sandbox == "" && port == "" {
		return target{}, false
	}
	if sandbox == "" {
		sandbox = "-" // no sandbox has that name
	}
	return target{sandbox, port, false}, true
}

// forward passes the request on.
func forward(c *call) error {
	c.forward, _ = c.api.target(c.R)
	port, err := parsePort(c.forward.port)
	if err != nil {
		return err
	}
	detail := "port " + strconv.Itoa(int(port))
	if id := c.Caller.Preview; id != "" {
		detail += " preview " + id
	}
	if err := c.Intend(detail); err != nil {
		return err
	}
	if answered, err := c.enterPreview(); answered || err != nil {
		return err
	}
	if err := c.OpenStream(); err != nil {
		return err
	}
	if err := c.keepKeys(); err != nil {
		return err
	}
	n, err := c.sandbox()
	if c.Caller.Preview != "" && errors.Is(err, sandpit.ErrNotFound) {
		err = gate.ErrPreviewEnded // with its sandbox
	}
	if err != nil {
		return err
	}
	r := c.R.WithContext(passed{c, func(ctx context.Context) (net.Conn, error) { return n.Dial(ctx, port) }}.within())
	if r.Body != nil && r.Body != http.NoBody {
		// An early answer of the sandbox is passed on at once.
		_ = http.NewResponseController(c.W).EnableFullDuplex() // of HTTP/2 that is so anyway
		r.Body = c.Body(-1, 0)
	}
	c.api.proxy.forward.ServeHTTP(proxyWriter{c.W, c}, r)
	return nil
}

// keepKeys refuses a request that has a key of ours where rewrite does not take it
// away: nothing in a sandbox may learn one.
func (c *call) keepKeys() error {
	where := ""
	if c.hasKey(c.R.URL.String()) || c.hasKey(c.R.Host) {
		where = "address"
	}
	for name, values := range c.R.Header {
		switch {
		case name == headerAuthorization || strings.HasPrefix(name, ownHeaders):
		case c.hasKey(strings.ToLower(name)):
			where = "name of a header"
		case slices.ContainsFunc(values, c.hasKey):
			where = fmt.Sprintf("header %.80q", name)
		}
	}
	if where == "" {
		return nil
	}
	return gate.Invalid("the "+where+" contains a key of this server, which must not reach a sandbox", "send it in the header "+headerKey+" only")
}

// hasKey reports whether a text has something of the form of a key, ticket or preview, as it stands or
// encoded for URLs, in base64 as in the credentials of Basic authentication (RFC
// 7617), or in both.
func (c *call) hasKey(text string) bool {
	in := func(text string) bool { return c.api.opts.Keys.In(text) || gate.HasTicket(text) || preview.In(text) }
	plain := unescape(text)
	return in(text) || plain != text && in(plain) || hasEncoded(plain, in)
}

// unescape decodes what is encoded for URLs, as far as it is well-formed. It keeps the
// rest, as lenient readers of a request do.
func unescape(text string) string {
	at := strings.IndexByte(text, '%')
	if at < 0 {
		return text
	}
	plain := []byte(text[:at])
	for ; at < len(text); at++ {
		b := text[at]
		if b == '%' && at+2 < len(text) {
			if n, err := strconv.ParseUint(text[at+1:at+3], 16, 8); err == nil {
				b = byte(n)
				at += 2
			}
		}
		plain = append(plain, b)
	}
	return string(plain)
}

// hasEncoded reports whether in finds something in the base64 of a text, of either
// alphabet, wherever it begins.
func hasEncoded(text string, in func(string) bool) bool {
	runs := strings.FieldsFunc(strings.NewReplacer("-", "+", "_", "/").Replace(text), func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '+' && r != '/'
	})
	for _, run := range runs {
		for from := range min(4, len(run)) {
			// What is behind the last whole byte makes it an error, but no difference.
			plain, _ := base64.RawStdEncoding.DecodeString(run[from:])
			if in(string(plain)) {
				return true
			}
		}
	}
	return false
}

// proxyWriter is the writer of a call that is passed on.
type proxyWriter struct {
	*gate.Writer
	call *call
}

// Hijack takes over the connection of a request that the sandbox has made another
// one, usually a WebSocket. It ends with the call, and with either direction:
// who keeps the other one open holds nothing here.
func (w proxyWriter) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, rw, err := w.Writer.Hijack()
	if err != nil {
		return nil, nil, err
	}
	w.call.NoteOutcome(http.StatusSwitchingProtocols, "", nil)
	context.AfterFunc(w.call.Ctx, func() { _ = conn.Close() })
	return stream.PatientWriter{Conn: conn, Stall: w.call.api.gate.Limits().Tunnel}, rw, nil
}

// rewrite makes the request that the sandbox gets. What was for Sandpit, the
// caller's key before all, is not in it.
func rewrite(r *httputil.ProxyRequest) {
	c := passedOf(r.In.Context())
	out := r.Out
	out.URL.Scheme, out.URL.Host = "http", "sandbox"
	out.URL.RawQuery = r.In.URL.RawQuery // ReverseProxy drops what it can't read: keepKeys has seen all
	out.Host = r.In.Host
	if !c.forward.byHost {
		out.Host = "localhost:" + c.forward.port
	}
	if kept := slices.DeleteFunc(out.Header[headerAuthorization], c.hasKey); len(kept) > 0 {
		out.Header[headerAuthorization] = kept
	} else {
		out.Header.Del(headerAuthorization)
	}
	for name := range out.Header {
		if strings.HasPrefix(name, ownHeaders) {
			delete(out.Header, name)
		}
	}
	out.Trailer = nil // their names: what they say is not sent anyway
	r.SetXForwarded()
	if isSecure(r.In) { // a proxy before the server may provide the TLS
		out.Header.Set("X-Forwarded-Proto", "https")
	}
	out.Header.Del("X-Forwarded-For") // who the callers are is not the guest's business
}

// confine keeps what a sandbox answers under the name of the server itself from
// being a page of the server, and from saying anything of the server to browsers.
func confine(r *http.Response) error {
	if r.StatusCode < 200 && r.StatusCode != http.StatusSwitchingProtocols { // what is from 100 on never gets here
		return fault.Errorf(sandpit.ErrProtocol, "forwarding the request: the sandbox responded with the invalid status %03d", r.StatusCode)
	}
	c := passedOf(r.Request.Context())
	c.confineHeader(r.Header)
	keepPrivate(r.Header)
	if !c.forward.byHost {
		r.Header.Set("Content-Security-Policy", "sandbox")
	}
	c.confineHeader(r.Trailer) // those that are announced
	if r.StatusCode != http.StatusSwitchingProtocols {
		r.Body = trailingBody{r.Body, func() { c.confineHeader(r.Trailer) }}
	}
	return nil
}

// keepPrivate keeps caches that serve several users from storing an answer: it was for a caller who
// has proven a right, in a way that they may not know (RFC 9111, 3.5 and 5.2.2; RFC 9213, 2.1).
func keepPrivate(h http.Header) {
	kept := []string{"private"}
	for _, line := range h["Cache-Control"] {
		for part := range strings.SplitSeq(line, ",") {
			part = strings.TrimSpace(part)
			switch name, _, _ := strings.Cut(strings.ToLower(part), "="); name {
			case "", "public", "private", "s-maxage":
			default:
				kept = append(kept, part)
			}
		}
	}
	h.Set("Cache-Control", strings.Join(kept, ", "))
	h.Del("Cdn-Cache-Control")
	h.Del("Surrogate-Control")
}

// confineHeader removes what a sandbox must not send, from headers or trailers.
func (c *call) confineHeader(h http.Header) {
	if c.W.Header().Get("Access-Control-Allow-Origin") != "" { // the server's word: of two, browsers take none
		h.Del("Access-Control-Allow-Origin")
	}
	if !c.forward.byHost { // browsers would keep these for the server's own name
		for _, name := range [...]string{"Set-Cookie", "Set-Cookie2", "Strict-Transport-Security", "Public-Key-Pins", "Alt-Svc", "Clear-Site-Data", "Accept-Ch", "Nel", "Report-To", "Reporting-Endpoints"} {
			h.Del(name)
		}
	}
	if c.forward.byHost {
		confineSite(h)
	}
	h.Del("X-Request-Id") // ours
}

// trailingBody is the body of an answer, whose trailers are there when it has been
// read to its end and closed.
type trailingBody struct {
	io.ReadCloser
	closed func()
}

// Close closes the body, and notes that the trailers are complete.
func (b trailingBody) Close() error {
	err := b.ReadCloser.Close()
	b.closed()
	return err
}
