// Package portproxy forwards HTTP requests to TCP ports of sandboxes. Several wire APIs use it; each finds the sandbox and
// the port of a request, and decides who may send it.
//
// A request loses what was for the server before the sandbox sees it: keys and the headers of the API. Requests
// with a key elsewhere are refused. Answers lose what browsers would apply to other hosts than that of the port.
package portproxy

import (
	"bufio"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
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

// Options configure a proxy. All of them must be set.
type Options struct {
	Gate *gate.Gate // that the calls have passed

	// HasKey reports whether a text has something of the form of a key or token of the server.
	HasKey func(text string) bool

	// KeyHeaders are the headers in which callers send their keys, which are removed; first the one to recommend. Other
	// values in them, such as the credentials of a program in the sandbox, are forwarded.
	KeyHeaders []string

	// Own is what the names of the headers of the API begin with. They are not forwarded.
	Own string
}

// Target is where a request is forwarded to.
type Target struct {
	Port uint16

	// OwnHost says that the host name of the request is that port's alone, and not the server's.
	OwnHost bool

	// Dial connects to the port.
	Dial func(context.Context) (net.Conn, error)
}

// Proxy forwards requests, by nothing but Target.Dial. Its methods are safe for concurrent use.
type Proxy struct {
	opts    Options
	forward httputil.ReverseProxy
}

// passedKey is the key of the passed in the context of a forwarded request.
type passedKey struct{}

// passed is a call that is forwarded.
type passed struct {
	*gate.Call
	proxy *Proxy
	to    Target
}

func passedOf(ctx context.Context) passed { return ctx.Value(passedKey{}).(passed) }

// within returns a context of the call's own that has p.
func (p passed) within() context.Context { return context.WithValue(p.Ctx, passedKey{}, p) }

// New returns a proxy.
func New(opts Options) *Proxy {
	p := &Proxy{opts: opts}
	p.forward = httputil.ReverseProxy{
		Rewrite: rewrite,
		Transport: finalAnswers{&http.Transport{
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				conn, err := passedOf(ctx).to.Dial(ctx)
				if err != nil {
					return nil, err
				}
				return httpconn.HearAnswer(stream.PatientWriter{Conn: conn, Stall: opts.Gate.Limits().Tunnel}), nil
			},
			DisableKeepAlives:      true, // a connection belongs to one request of one caller
			DisableCompression:     true,
			MaxResponseHeaderBytes: maxHeader,
		}},
		FlushInterval:  -1,
		BufferPool:     stream.Buffers{},
		ModifyResponse: confine,
		ErrorLog:       slog.NewLogLogger(opts.Gate.Log().Handler(), slog.LevelDebug),
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, err error) {
			var network *net.OpError
			if errcode.Of(err) == errcode.Internal || errors.As(err, &network) {
				err = fmt.Errorf("forwarding the request: %w: %w", sandpit.ErrUnavailable, err)
			}
			w.(writer).call.Fail(err)
		},
	}
	return p
}

// ParsePort reads the number of a port.
func ParsePort(text string) (uint16, error) {
	n, err := strconv.ParseUint(text, 10, 16)
	if err != nil || n == 0 || text[0] == '0' { // each port has one name, by which dialects keep some for themselves
		return 0, gate.Invalid(fmt.Sprintf("%.20q is not a port", text), "use a number from 1 to 65535")
	}
	return uint16(n), nil
}

// PortOfHost returns the sandbox and the port that a host name (see gate.HostName) of the form PORT-SANDBOX.DOMAIN has. The
// port has digits alone; ParsePort says whether it is one.
func PortOfHost(name, domain string) (sandbox, port string, ok bool) {
	label, ok := strings.CutSuffix(name, "."+domain)
	port, sandbox, _ = strings.Cut(label, "-")
	if !ok || port == "" || strings.Trim(port, "0123456789") != "" || sandbox == "" || strings.Contains(sandbox, ".") {
		return "", "", false
	}
	return sandbox, port, true
}

// Forward forwards the request of a call, and its answer. Call CheckKeys before.
func (p *Proxy) Forward(c *gate.Call, to Target) {
	if c.R.Method == http.MethodConnect { // after its answer clients take the connection for a tunnel, which it is not
		c.Fail(gate.Invalid("CONNECT can't be forwarded to a port", "use an upgrade of the connection, or 'sandpit forward'"))
		return
	}
	r := c.R.WithContext(passed{c, p, to}.within())
	if r.Body != nil && r.Body != http.NoBody {
		// An early answer of the sandbox is passed on at once.
		_ = http.NewResponseController(c.W).EnableFullDuplex() // of HTTP/2 that is so anyway
		r.Body = c.Body(-1, 0)
	}
	p.forward.ServeHTTP(writer{c.W, c}, r)
}

// finalAnswers is a transport that drops informational answers (status 1xx but
// 101). httputil.ReverseProxy asks for them by a trace in the context, sends them
// on without ModifyResponse, and then clears the headers that the server has set.
type finalAnswers struct{ http.RoundTripper }

// RoundTrip sends a request under the context of its call, which has no trace.
func (t finalAnswers) RoundTrip(r *http.Request) (*http.Response, error) {
	return t.RoundTripper.RoundTrip(r.WithContext(passedOf(r.Context()).within()))
}

// maxHeader bounds the headers that a sandbox answers with, in bytes.
const maxHeader = 64 << 10

// CheckKeys refuses a request that has a key of the server where Forward does not remove it:
// nothing in a sandbox may learn one.
func (p *Proxy) CheckKeys(c *gate.Call) error {
	where := ""
	if p.HasKey(c.R.URL.String()) || p.HasKey(c.R.Host) {
		where = "address"
	}
	for name, values := range c.R.Header {
		switch {
		case slices.Contains(p.opts.KeyHeaders, name) || strings.HasPrefix(name, p.opts.Own):
		case p.HasKey(strings.ToLower(name)):
			where = "name of a header"
		case slices.ContainsFunc(values, p.HasKey):
			where = fmt.Sprintf("header %.80q", name)
		}
	}
	if where == "" {
		return nil
	}
	return gate.Invalid("the "+where+" contains a key of this server, which must not reach a sandbox", "send it in the header "+p.opts.KeyHeaders[0]+" only")
}

// HasKey reports whether a text has something of the form of a key, ticket, token or preview, as it stands or
// encoded for URLs, in base64 as in the credentials of Basic authentication (RFC
// 7617), or in both.
func (p *Proxy) HasKey(text string) bool {
	in := func(text string) bool { return p.opts.HasKey(text) || gate.HasTicket(text) || preview.In(text) }
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

// writer is the writer of a call that is forwarded.
type writer struct {
	*gate.Writer
	call *gate.Call
}

// Hijack takes over the connection of a request that the sandbox has made another
// one, usually a WebSocket. It ends with the call, and with either direction:
// who keeps the other one open holds nothing here.
func (w writer) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, rw, err := w.Writer.Hijack()
	if err != nil {
		return nil, nil, err
	}
	w.call.NoteOutcome(http.StatusSwitchingProtocols, "", nil)
	context.AfterFunc(w.call.Ctx, func() { _ = conn.Close() })
	return stream.PatientWriter{Conn: conn, Stall: w.call.Gate().Limits().Tunnel}, rw, nil
}

// rewrite makes the request that the sandbox gets. What was for Sandpit, the
// caller's key before all, is not in it.
func rewrite(r *httputil.ProxyRequest) {
	c := passedOf(r.In.Context())
	out := r.Out
	out.URL.Scheme, out.URL.Host = "http", "sandbox"
	out.URL.RawQuery = r.In.URL.RawQuery // ReverseProxy drops what it can't read: keepKeys has seen all
	out.Host = r.In.Host
	if !c.to.OwnHost {
		out.Host = "localhost:" + strconv.Itoa(int(c.to.Port))
	}
	for _, name := range c.proxy.opts.KeyHeaders {
		if kept := slices.DeleteFunc(out.Header[name], c.proxy.HasKey); len(kept) > 0 {
			out.Header[name] = kept
		} else {
			out.Header.Del(name)
		}
	}
	for name := range out.Header {
		if strings.HasPrefix(name, c.proxy.opts.Own) {
			delete(out.Header, name)
		}
	}
	out.Trailer = nil // their names: what they say is not sent anyway
	r.SetXForwarded()
	if IsSecure(r.In) { // a proxy before the server may provide the TLS
		out.Header.Set("X-Forwarded-Proto", "https")
	}
	private := addressHeaders() // the guest must not learn the addresses of callers
	maps.DeleteFunc(out.Header, func(name string, _ []string) bool {
		// Programs that get headers as variables can't tell the two.
		return slices.Contains(private, http.CanonicalHeaderKey(strings.ReplaceAll(name, "_", "-")))
	})
}

// addressHeaders are those in which proxies before the server tell the address of the client.
func addressHeaders() []string {
	return []string{
		"Forwarded", "Forwarded-For", "X-Forwarded", "X-Forwarded-For", "X-Forwarded-Client-Cert", "X-Original-Forwarded-For", "X-Real-Ip", "X-Client-Ip", "X-Cluster-Client-Ip", "Client-Ip", "True-Client-Ip", "X-Proxyuser-Ip", "X-Remote-Addr",
		"Cf-Connecting-Ip", "Cf-Connecting-Ipv6", "Cf-Pseudo-Ipv4", "Fastly-Client-Ip", "Fly-Client-Ip", "X-Appengine-User-Ip", "X-Azure-Clientip", "X-Azure-Socketip", "X-Envoy-External-Address",
		"Cloudfront-Viewer-Address", "Do-Connecting-Ip", "X-Vercel-Forwarded-For", "X-Nf-Client-Connection-Ip", "Wl-Proxy-Client-Ip", "Proxy-Client-Ip",
	}
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
	if !c.to.OwnHost {
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
func (c passed) confineHeader(h http.Header) {
	if c.W.Header().Get("Access-Control-Allow-Origin") != "" { // the server's word: of two, browsers take none
		h.Del("Access-Control-Allow-Origin")
	}
	if !c.to.OwnHost { // browsers would keep these for the server's own name
		for _, name := range [...]string{"Set-Cookie", "Set-Cookie2", "Strict-Transport-Security", "Public-Key-Pins", "Alt-Svc", "Clear-Site-Data", "Accept-Ch", "Nel", "Report-To", "Reporting-Endpoints"} {
			h.Del(name)
		}
	}
	if c.to.OwnHost {
		confineSite(h)
	}
	for name := range h { // the server's own
		if name == "X-Request-Id" || strings.HasPrefix(name, "X-Sandpit-") {
			h.Del(name)
		}
	}
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

// confineSite removes from the answer of a port's own host what browsers would apply to other hosts
// of the domain, or to the preview: they clear the cookies of all of them (Clear Site Data, 4.2). They
// would also report the URLs of previews, with tokens, to others (Network Error Logging, Reporting),
// and let another server answer, also later (RFC 7838).
func confineSite(h http.Header) {
	for _, name := range [...]string{"Clear-Site-Data", "Nel", "Report-To", "Reporting-Endpoints", "Alt-Svc"} {
		h.Del(name)
	}
	cookies := h["Set-Cookie"]
	h.Del("Set-Cookie")
	for _, line := range cookies {
		parts := strings.Split(line, ";")
		if name, _, _ := strings.Cut(parts[0], "="); preview.IsCookie(name) {
			continue
		}
		kept := parts[:1]
		for _, part := range parts[1:] {
			if name, _, _ := strings.Cut(part, "="); !strings.EqualFold(strings.TrimSpace(name), "Domain") {
				kept = append(kept, part)
			}
		}
		h.Add("Set-Cookie", strings.Join(kept, ";"))
	}
}

// IsSecure reports whether the client uses TLS, with the server or a proxy before it. A client that
// lies about that gets a URL or a cookie that it can't use.
func IsSecure(r *http.Request) bool {
	return r.TLS != nil || strings.EqualFold(r.Header.Get("X-Forwarded-Proto"), "https")
}
