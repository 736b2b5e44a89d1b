package network

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/net/http/httpguts"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/egress"
	"github.com/sandpit-dev/sandpit/internal/intercept"
)

// peekSize is how much of what a client sends first is looked at: more than a TLS ClientHello
// with post-quantum keys, and than the first line of a request.
const peekSize = 32 << 10

// holdTime is how long a piece of a line is held back. A client that sends a request in pieces
// sends them faster; one that waits for an answer to such a piece is delayed, once.
const holdTime = 2 * time.Second

// serve passes a connection of the sandbox on to its origin until both directions have ended.
// What the client sends first is looked at before it is passed on, while the origin may already
// speak. Together they decide:
//
//	client begins with                  origin is silent              origin has spoken
//	a request of HTTP/1                 each request is checked       denied
//	the preface of HTTP/2               each request is checked       the same after its SETTINGS, else denied
//	a request of no version of HTTP     denied                        relayed
//	another line of three words         relayed, until a header Host  relayed
//	                                    or a response of HTTP/1
//	TLS                                 the name is checked, and      the name is checked, then relayed
//	                                    each request if a secret is
//	                                    for the destination
//	anything else                       relayed                       relayed
//	nothing, and ends its direction     relayed                       relayed
//
// A server of HTTP/1 never speaks first. Where rules are about requests, see serveRequests.
func (n *Network) serve(in *counted, out net.Conn, d *dialler) error {
	defer in.Close()
	defer out.Close()
	r := bufio.NewReaderSize(in, peekSize)
	if d.set.rules.Intercepts(d.to) {
		return n.serveRequests(in, r, out, d)
	}
	down := &relay{from: out, to: in, reset: d.flow.reset}
	down.start()
	kind, err := classify(r, func() { _ = in.SetReadDeadline(time.Now().Add(n.waits.hold)) })
	_ = in.SetReadDeadline(time.Time{})
	if isTimeout(err) {
		down.resume()
		kind, err = passPieces(r, out)
	}
	why := ""
	switch {
	case errors.Is(err, io.EOF):
		err = nil // the client may still read, and pass finds its end again
	case errors.Is(err, errTooLate):
		why = err.Error()
	case err != nil:
		return ended(err)
	}
	switch kind {
	case kindHTTP, kindHTTP2:
		switch {
		case down.stop():
			return n.serveHTTP(in, r, down.from, d, nil, kind == kindHTTP2)
		case down.over():
			return ended(down.err)
		}
		why = "HTTP to an origin that speaks first can't be checked"
	case kindUnsure:
		if !down.spoke() {
			why = "HTTP servers may take its first line for a request, which can't be checked"
		}
	case kindTLS:
		why = checkHello(r, d.to, d.set.rules)
		if why == "" && d.set.requests.About(d.to) && down.stop() {
			return n.serveHTTP(in, r, down.from, d, d.set.requests.TLS, false)
		}
	case kindWords:
		if down.suspect() {
			err = passWords(r, out, down.spoke)
		}
		if errors.Is(err, errHost) {
			why = err.Error()
		}
	case kindOther:
	}
	if why != "" {
		d.flow.decide(sandpit.EgressDecision{Why: why})
		return nil
	}
	down.resume()
	if err == nil {
		err = pass(out, r)
	}
	if err == nil && !d.flow.wasEnded() { // else the origin would take a clean end for all
		closeWrite(out)
	}
	if failed := ended(down.wait()); failed != nil {
		err = failed // of which the other is a consequence
	}
	if errors.Is(err, errAnswer) {
		d.flow.decide(sandpit.EgressDecision{Why: err.Error()})
		return nil
	}
	if err = ended(err); err != nil {
		return errors.New(intercept.Reason(err))
	}
	return nil
}

// serveRequests serves a destination of which every request is decided. Whatever can't be read
// as such is refused.
func (n *Network) serveRequests(in intercept.Conn, r *bufio.Reader, out net.Conn, d *dialler) error {
	kind, err := classify(r, func() {})
	if err != nil {
		return ended(err)
	}
	why := "the rules about requests to " + d.to.String() + " allow nothing but HTTPS"
	if kind == kindTLS {
		why = checkHello(r, d.to, d.set.rules)
	}
	if why != "" {
		d.flow.decide(sandpit.EgressDecision{Why: why})
		return nil
	}
	return n.serveHTTP(in, r, out, d, d.set.requests.TLS, false)
}

// relay copies what an origin says, in a goroutine of its own.
type relay struct {
	from  net.Conn
	to    net.Conn
	reset func()        // ends both: what was copied is not all
	done  chan struct{} // closed once it has ended
	err   error         // why; to be read after done

	mu        sync.Mutex
	spoken    bool   // something was copied, guarded by mu
	stopped   bool   // before that; guarded by mu
	free      bool   // nothing is held back any more, guarded by mu
	suspected bool   // the origin may be a server of HTTP/1 that must not be reached, guarded by mu
	version   int    // bytes of the beginning of a response of HTTP/1 that a suspected one has sent, guarded by mu
	held      []byte // that came first and was not copied, guarded by mu
}

func (r *relay) start() {
	r.done = make(chan struct{})
	go func() {
		defer close(r.done)
		r.err = pass(noted{r}, r.from)
		if to, ok := r.to.(*counted); ok {
			to.rest()
		}
		switch {
		case errors.Is(r.err, errHeld), r.isStopped() && isTimeout(r.err):
		case r.err != nil:
			r.reset()
		default:
			closeWrite(r.to)
		}
	}()
}

func (r *relay) isStopped() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.stopped
}

// noted notes that something is copied.
type noted struct{ r *relay }

var (
	errHeld   = errors.New("what the origin says is held back")
	errAnswer = errors.New("the origin has taken what can't be checked for a request of HTTP")
)

func (w noted) Write(b []byte) (int, error) {
	if err := w.r.note(b); err != nil {
		return 0, err
	}
	return w.r.to.Write(b)
}

// response is the beginning of each response of HTTP/1 (RFC 9112, section 4).
const response = "HTTP/"

// note returns an error if b may not be copied, or not yet. The beginning of HTTP/2 waits for what the
// client says: if that is HTTP/2, too, both are spoken here.
func (r *relay) note(b []byte) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.spoken:
		return nil
	case r.suspected && bytes.HasPrefix(b, []byte(response[r.version:])):
		return errAnswer
	case r.suspected && bytes.HasPrefix([]byte(response[r.version:]), b):
		r.version += len(b) // which may still become one, so the origin counts as silent
		return nil
	case !r.free && (r.stopped || isSettings(b)):
		r.held = bytes.Clone(b)
		return errHeld
	}
	r.spoken = true
	return nil
}

// isSettings reports whether b begins with the frame by which a server begins HTTP/2 (RFC 9113,
// sections 3.4, 4.1 and 6.5).
func isSettings(b []byte) bool {
	const header, setting = 9, 6
	return len(b) >= header && [2]byte(b) == [2]byte{} && b[2]%setting == 0 && len(b) >= header+int(b[2]) &&
		[header - 3]byte(b[3:]) == [header - 3]byte{4} // SETTINGS without a flag, on stream 0
}

// spoke reports whether something was copied, or has come.
func (r *relay) spoke() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.spoken || r.held != nil
}

// suspect reports whether the origin is silent. If it is, it must not answer as a server of HTTP/1 does.
func (r *relay) suspect() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.suspected = !r.spoken && r.held == nil
	r.free = r.suspected
	return r.suspected
}

// stop ends the relay before it has copied anything, so that from can be read by somebody else. It
// reports false if something was copied, or the origin has ended.
func (r *relay) stop() bool {
	r.mu.Lock()
	r.stopped = !r.spoken
	stopped := r.stopped
	r.mu.Unlock()
	if !stopped {
		return false
	}
	_ = r.from.SetReadDeadline(time.Unix(1, 0))
	<-r.done
	_ = r.from.SetReadDeadline(time.Time{})
	if r.held != nil {
		r.from = &ahead{r.from, r.held}
		return true
	}
	return isTimeout(r.err)
}

// resume goes on with what was held back, if anything was. From now on nothing is.
func (r *relay) resume() {
	r.mu.Lock()
	r.free = true
	held := r.held
	r.held = nil
	r.mu.Unlock()
	if held != nil {
		<-r.done
		r.from = &ahead{r.from, held}
		r.start()
	}
}

// over reports whether the relay has ended.
func (r *relay) over() bool {
	select {
	case <-r.done:
		return true
	default:
		return false
	}
}

// ahead is a connection of which some bytes were read.
type ahead struct {
	net.Conn
	read []byte
}

func (c *ahead) Read(b []byte) (int, error) {
	if len(c.read) > 0 {
		n := copy(b, c.read)
		c.read = c.read[n:]
		return n, nil
	}
	return c.Conn.Read(b)
}

func isTimeout(err error) bool {
	var t net.Error
	return errors.As(err, &t) && t.Timeout()
}

func (r *relay) wait() error {
	<-r.done
	return r.err
}

func closeWrite(c net.Conn) {
	if w, ok := c.(interface{ CloseWrite() error }); ok {
		_ = w.CloseWrite()
	}
}

// ended leaves out the errors of a connection that was closed.
func ended(err error) error {
	if err == nil || errors.Is(err, io.EOF) || errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

// kind is what a client speaks.
type kind int

const (
	kindOther kind = iota
	kindTLS
	kindHTTP   // a request of HTTP/1
	kindHTTP2  // without TLS
	kindUnsure // what some servers of HTTP take for a request, in no version of HTTP
	kindWords  // what few servers do, if a header follows
)

// What begins a TLS record (RFC 8446, section 5.1); a ClientHello is recordHandshake.
const (
	recordFirst     = 0x14
	recordHandshake = 0x16
	recordLast      = 0x18
)

// classify looks at what a client sends first, and consumes nothing. It waits for no more than
// tells HTTP and TLS from all else: a client that begins with bytes or with a whole line of something
// else is served at once. It calls more before it waits for another piece, and fails with a timeout
// if that took too long.
func classify(r *bufio.Reader, more func()) (kind, error) {
	for size := 1; ; size = min(r.Buffered()+1, peekSize) {
		b, err := r.Peek(size)
		if len(b) == 0 {
			return kindOther, err
		}
		b, _ = r.Peek(r.Buffered())
		if k, sure := looksLike(b); sure {
			return k, nil
		}
		switch {
		case len(b) >= peekSize:
			return kindHTTP, nil // which refuses it
		case isTimeout(err):
			return kindOther, err
		case err != nil:
			return kindOther, nil // half a line is nobody's request
		}
		more()
	}
}

// errTooLate is why a connection ends whose beginning was passed on before it became a request or
// TLS, so that nobody can check it any more.
var errTooLate = errors.New("a request or TLS that begins in pieces, with long pauses, can't be checked")

// passPieces passes on what may still become a request or TLS, piece by piece, until it is sure that
// it is kindWords or kindOther. If it becomes a request or TLS, the error is errTooLate, and the origin has less
// than its name.
func passPieces(r *bufio.Reader, out net.Conn) (kind, error) {
	var passed []byte
	for {
		b, err := r.Peek(1)
		if len(b) == 0 {
			return kindOther, ended(err) // which the caller finds again
		}
		b, _ = r.Peek(r.Buffered())
		passed = append(passed, b...)
		kind, sure := looksLike(passed)
		switch {
		case sure && (kind == kindOther || kind == kindWords):
			return kind, nil
		case sure, len(passed) >= peekSize:
			return kindOther, errTooLate
		}
		if _, err := out.Write(b); err != nil {
			return kindOther, err
		}
		_, _ = r.Discard(len(b))
	}
}

// errHost is why a connection ends of which few servers would take what the sandbox has sent for a request.
var errHost = errors.New("a line with a Host follows what HTTP servers may take for a request, which can't be checked")

// passWords passes on a line and what follows it, until the origin has spoken. The error is errHost if a header
// with a host is among it, of which the origin has less than the name then.
func passWords(r *bufio.Reader, out net.Conn, spoke func() bool) error {
	header := hostHeader{inLine: true}
	for !spoke() {
		b, err := r.Peek(1)
		if len(b) == 0 {
			return ended(err) // which the caller finds again
		}
		b, _ = r.Peek(r.Buffered())
		if header.ends(b) && !spoke() {
			return errHost
		}
		if _, err := out.Write(b); err != nil {
			return err
		}
		_, _ = r.Discard(len(b))
	}
	return nil
}

// hostHeader finds the name of the header Host, and the colon after it, at the beginning of a line. Lines end as
// some servers end them.
type hostHeader struct {
	inLine bool // that is another one
	seen   int  // bytes of the name
}

// ends reports whether b, which comes next, has the end of it.
func (h *hostHeader) ends(b []byte) bool {
	const name = "host"
	for _, c := range b {
		switch {
		case c == '\n', c == '\r':
			h.inLine, h.seen = false, 0
		case h.inLine:
		case h.seen == len(name) && c == ':':
			return true
		case h.seen < len(name) && c|0x20 == name[h.seen]:
			h.seen++
		case !space(rune(c)) || 0 < h.seen && h.seen < len(name):
			h.inLine = true
		}
	}
	return false
}

// preface is the line by which a client begins HTTP/2 (RFC 9113, section 3.4).
const preface = "PRI * HTTP/2.0\r\n"

// looksLike says what begins with b, and whether more bytes could change that. Origins read HTTP
// leniently: empty lines before it, methods of their own, other white space (RFC 9112, sections
// 2.2 and 3), also that of Latin-1 and Unicode. So a line that begins like a request is waited for,
// in however many pieces it comes. TLS may begin with records that some origins pass over, such as
// a warning: what follows them is read as theirs.
func looksLike(b []byte) (k kind, sure bool) {
	if recordFirst <= b[0] && b[0] <= recordLast {
		if len(b) < 2 {
			return kindTLS, false
		}
		if b[1] == 3 {
			return kindTLS, true
		}
		return kindOther, true
	}
	if bytes.HasPrefix(b, []byte(preface)) {
		return kindHTTP2, true
	}
	for len(b) > 0 && space(rune(b[0])) {
		b = b[1:]
	}
	if len(b) == 0 {
		return kindHTTP, false
	}
	line, _, whole := bytes.Cut(b, []byte("\n"))
	method := string(line)
	if i := slices.IndexFunc(line, func(c byte) bool { return space(rune(c)) }); i >= 0 {
		method = method[:i]
	}
	registered := slices.Contains(methods(), strings.ToUpper(method)) && len(method) < len(line)
	binary := func(c byte) bool { return c < ' ' && !space(rune(c)) || c == 0x7f }
	switch {
	case !httpguts.ValidHeaderFieldName(method), // which is a token, too
		!registered && slices.ContainsFunc(line, binary):
		return kindOther, true
	case !whole:
		return kindHTTP, false
	case bytes.Contains(bytes.ToUpper(line), []byte("HTTP/")):
		return kindHTTP, true
	case registered && mayRequest(method, string(line)), otherVersion().Match(line):
		return kindUnsure, true
	case len(strings.FieldsFunc(string(line), space)) > 2:
		return kindWords, true
	}
	return kindOther, true
}

// space reports whether some origin takes c for white space. None of it is in a method.
func space(c rune) bool {
	return c == ' ' || '\t' <= c && c <= '\r' || 0x1c <= c && c <= 0x1f || c >= 0x80
}

// mayRequest reports whether some server takes a line without a version of HTTP for a request: that of
// HTTP/0.9 is GET and a path (RFC 1945, section 4.1). Some servers of it take any word for a path and read
// a header, or the host in a URL. Others, such as memcached, have commands of the same names in small letters.
func mayRequest(method, line string) bool {
	words := strings.FieldsFunc(line, space)
	return method == strings.ToUpper(method) && len(words) > 1 &&
		(words[1][0] == '/' || strings.Contains(words[1], "://") || method == "GET" && len(words) == 2)
}

// otherVersion matches lines that end like a request of a protocol which looks like HTTP, such as RTSP (RFC
// 7826). Node.js and others serve them as HTTP.
var otherVersion = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`\s\S+\s+[A-Z]+/[0-9]+\.[0-9]+\s*$`) })

// methods are those that begin HTTP requests: the registered ones (RFC 9110, section 16.1.2)
// that do more than extensions of WebDAV, and PRI of HTTP/2.
func methods() []string {
	return []string{
		"GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH", "PRI", "PROPFIND", "PROPPATCH", "MKCOL",
		"COPY", "MOVE", "LOCK", "UNLOCK", "SEARCH", "REPORT", "MERGE", "BIND", "ACL", "PURGE", "QUERY", "LINK", "UNLINK",
	}
}

var errSeen = errors.New("the ClientHello was read")

// checkHello says why a ClientHello is refused, or "". It consumes nothing.
func checkHello(r *bufio.Reader, to egress.Destination, rules *egress.Rules) (why string) {
	var hello *tls.ClientHelloInfo
	peeked := &peekConn{r: r}
	err := tls.Server(peeked, &tls.Config{GetConfigForClient: func(h *tls.ClientHelloInfo) (*tls.Config, error) {
		hello = h
		return nil, errSeen
	}}).Handshake()
	switch {
	case hello == nil:
		return fmt.Sprintf("what begins like TLS is not a valid ClientHello: %v", err)
	case to.Host == "" && hello.ServerName == "":
		return ""
	case hello.ServerName == "":
		return "TLS without a server name (SNI) to " + to.Host
	}
	name, err := egress.Name(hello.ServerName)
	switch {
	case err != nil:
		return "the server name of TLS is not valid: " + err.Error()
	case to.Host != "" && name != to.Host:
		return "TLS asks for " + name + " on a connection to " + to.Host
	case to.Host == "":
		return rules.Around(to, name)
	}
	return ""
}

// peekConn reads what r has and will have, without consuming it. It can't be written to.
type peekConn struct {
	net.Conn // nil
	r        *bufio.Reader
	at       int
}

func (c *peekConn) Read(b []byte) (int, error) {
	if c.at >= peekSize {
		return 0, io.ErrUnexpectedEOF
	}
	if _, err := c.r.Peek(c.at + 1); err != nil {
		return 0, err
	}
	all, _ := c.r.Peek(c.r.Buffered())
	n := copy(b, all[c.at:])
	c.at += n
	return n, nil
}

func (*peekConn) Write(b []byte) (int, error)      { return len(b), nil } // an alert
func (*peekConn) Close() error                     { return nil }
func (*peekConn) SetDeadline(time.Time) error      { return nil }
func (*peekConn) SetReadDeadline(time.Time) error  { return nil }
func (*peekConn) SetWriteDeadline(time.Time) error { return nil }
func (*peekConn) LocalAddr() net.Addr              { return &net.TCPAddr{} }
func (*peekConn) RemoteAddr() net.Addr             { return &net.TCPAddr{} }
