package intercept

import (
	"bytes"
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/egress"
	"github.com/sandpit-dev/sandpit/internal/engine"
	"github.com/sandpit-dev/sandpit/internal/fault"
	"github.com/sandpit-dev/sandpit/internal/sigv4"
)

const (
	minPlaceholder = 16        // bytes: no program sends one by chance
	minHidden      = 8         // bytes of a value that is taken out of responses: shorter ones occur by chance
	maxEarly       = 3         // bytes of a value's beginning that come back before it is known to be one
	maxWholeBody   = 256 << 10 // bytes of a body that keeps its length when a value is put in
	maxFormer      = 32        // secrets that were replaced or removed, whose values are still taken out of responses
	maxFormerSize  = 256 << 10 // bytes of these values
)

// secrets are those of a sandbox. They are immutable. No error and no decision of theirs has a
// value.
type secrets []secret

type secret struct {
	engine.Secret
	hosts  egress.Hosts
	signs  sigv4.Credentials // if Sign
	former bool              // it was replaced or removed: it is not put in, but does not come back either
}

// compileSecrets reads secrets. Errors match sandpit.ErrInvalid.
func compileSecrets(all []engine.Secret) (secrets, error) {
	var ss secrets
	for _, s := range all {
		hosts, err := egress.ParseHosts(s.Hosts)
		odd := func(r rune) bool {
			return r <= ' ' || r > '~' || r == '"' || r == '\\' || r == '%' || r == '+' || r == '&'
		}
		switch {
		case err != nil:
			return nil, fmt.Errorf("secret %q: %w", s.Name, err)
		case len(hosts) == 0:
			return nil, fault.Invalidf("secret %q has no hosts", s.Name)
		case len(s.Value) == 0:
			return nil, fault.Invalidf("secret %q is empty", s.Name)
		case len(s.Placeholder) < minPlaceholder, strings.ContainsFunc(s.Placeholder, odd):
			return nil, fault.Invalidf("secret %q has a placeholder that is shorter than %d bytes, or has characters that are encoded in URLs", s.Name, minPlaceholder)
		}
		next := secret{Secret: s, hosts: hosts}
		if s.Sign {
			if next.signs, err = sigv4.Read(string(s.Value)); err != nil {
				return nil, fmt.Errorf("secret %q: %w", s.Name, err)
			}
		}
		ss = append(ss, next)
	}
	return ss, nil
}

// has reports whether s is one of the secrets, with the same value and hosts.
func (ss secrets) has(s secret) bool {
	return slices.ContainsFunc(ss, func(o secret) bool {
		return !o.former && bytes.Equal(o.Value, s.Value) && slices.Equal(o.Hosts, s.Hosts)
	})
}

// with returns the secrets and what was before them, of which it keeps the latest maxFormer, up to
// maxFormerSize.
func (ss secrets) with(was secrets) secrets {
	var former secrets
	size := 0
	for _, s := range was {
		if ss.has(s) {
			continue
		}
		if size += len(s.Value); size > maxFormerSize || len(former) == maxFormer {
			break
		}
		s.former = true
		former = append(former, s)
	}
	return slices.Concat(ss, former)
}

// changed reports whether a secret for a destination was replaced or removed.
func (ss secrets) changed(now secrets, to egress.Destination) bool {
	return slices.ContainsFunc(ss, func(s secret) bool { return !s.former && s.hosts.Contain(to) && !now.has(s) })
}

// about reports whether one of the secrets is for a destination.
func (ss secrets) about(to egress.Destination) bool {
	return slices.ContainsFunc(ss, func(s secret) bool { return s.hosts.Contain(to) })
}

// exchange is a request with its response: what was done with the placeholders, and what is hidden.
type exchange struct {
	secrets secrets        // of the sandbox when it was made
	hidden  []substitution // what is taken out of the response
	to      egress.Destination
	current func() secrets          // of the sandbox now
	trailer func(http.Header) error // puts secrets into the request's trailer, at the end of its body

	inMessages []substitution // of a WebSocket that the sandbox asks for
	tries      *attempts      // of the request

	held    func()       // ends what Server.hold has counted
	waiting atomic.Int32 // for the end of the body and the response, before held is called

	mu     sync.Mutex
	denial *sandpit.EgressDecision // guarded by mu, as bodies are sent while responses are read
}

// exchangeKey is the key of an exchange in the context of a request.
type exchangeKey struct{}

func exchangeOf(r *http.Request) *exchange {
	e, _ := r.Context().Value(exchangeKey{}).(*exchange)
	return e
}

// denied returns why the request is denied, or nil.
func (e *exchange) denied() *sandpit.EgressDecision {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.denial
}

func (e *exchange) deny(rule, format string, args ...any) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.denial = &sandpit.EgressDecision{Rule: rule, Why: fmt.Sprintf(format, args...)}
	return fault.Errorf(sandpit.ErrForbidden, "%s", e.denial.Why)
}

// put puts the values of secrets that are for a destination into a request over TLS that ends
// here, in place of their placeholders: into values of the header and the credentials of basic
// authentication (RFC 7617), and where it is asked for into the query and the body. The placeholder
// of another secret denies the request: the sandbox sends it where it does not belong.
func (ss secrets) put(r *http.Request, to egress.Destination, secure bool) (*http.Request, *exchange) {
	e := &exchange{secrets: ss, to: to, current: func() secrets { return ss }, trailer: func(http.Header) error { return nil }}
	r = r.WithContext(context.WithValue(r.Context(), exchangeKey{}, e))
	if len(ss) == 0 {
		return r, e
	}
	var mine, others secrets
	for _, s := range ss {
		if !secure || !s.hosts.Contain(to) {
			if !s.former {
				others = append(others, s)
			}
			continue
		}
		if s.Sign { // by exchange.sign; the value goes nowhere
			continue
		}
		e.hideValue(s)
		if !s.former {
			mine = append(mine, s)
		}
	}
	r.Header = r.Header.Clone()
	if e.fields(r.Header, others, to, func(v string) (string, error) { return e.header(v, mine, others, to) }) != nil {
		return r, e
	}
	if i := others.in(r.URL.RequestURI()); i >= 0 {
		_ = e.misplaced(others[i], to)
		return r, e
	}
	var inBody []substitution
	for _, s := range mine {
		if s.Query && strings.Contains(r.URL.RawQuery, s.Placeholder) {
			u := *r.URL
			u.RawQuery = strings.ReplaceAll(u.RawQuery, s.Placeholder, url.QueryEscape(string(s.Value)))
			e.hide(s, url.QueryEscape(string(s.Value)))
			r.URL = &u
		}
		if s.Body {
			value := inBodyOf(r, string(s.Value))
			e.hide(s, value)
			inBody = append(inBody, substitution{find: []byte(s.Placeholder), put: []byte(value), late: func() error {
				return e.deny("secret "+s.Name, "the placeholder of secret %q comes in pieces, with long pauses, so that its value can't be put in", s.Name)
			}})
		}
	}
	replaced := len(inBody) > 0
	for _, s := range others {
		inBody = append(inBody, substitution{
			find: []byte(s.Placeholder), refuse: func() error { return e.misplaced(s, to) },
			early: len(s.Placeholder), // of which a part is worth nothing
		})
	}
	e.body(r, inBody, replaced)
	e.trailer = func(h http.Header) error { // not of basic authentication, which e would have to note while the response comes in
		return e.fields(h, others, to, func(v string) (string, error) { return e.replaced(v, mine, others, to) })
	}
	if isWebSocket(r.Header) && len(inBody)+len(e.hidden) > 0 {
		e.inMessages = inBody
		r.Header.Del("Sec-Websocket-Extensions") // such as compression
	}
	if len(e.hidden) > 0 {
		// What comes back can be read, and whole: it may be a value that an earlier request has stored.
		r.Header.Set("Accept-Encoding", "identity")
		r.Header.Del("Range")
		r.Header.Del("If-Range")
	}
	return r, e
}

// in returns the first secret whose placeholder a text has, or -1.
func (ss secrets) in(text string) int {
	return slices.IndexFunc(ss, func(s secret) bool { return strings.Contains(text, s.Placeholder) })
}

func (e *exchange) misplaced(s secret, to egress.Destination) error {
	return e.deny("secret "+s.Name, "the placeholder of secret %q was sent to %s; it is for %s, over HTTPS", s.Name, to, strings.Join(s.Hosts, ", "))
}

// holds has release called once nothing of a request is held any more: its body was sent, and its response does not
// make it be sent again.
func (e *exchange) holds(r *http.Request, release func()) {
	e.held = release
	e.waiting.Store(2)
	if r.Body != nil {
		r.Body = newEnding(r.Body, func() error { e.passed(); return nil })
	}
}

// passed notes one of the two.
func (e *exchange) passed() {
	if e.waiting.Add(-1) == 0 {
		e.held()
	}
}

// fields puts secrets into the values of a header or a trailer.
func (e *exchange) fields(h http.Header, others secrets, to egress.Destination, put func(string) (string, error)) error {
	for name, values := range h {
		for i, v := range values {
			next, err := put(v)
			if err != nil {
				return err
			}
			values[i] = next
		}
		name = strings.ToLower(name)
		if i := slices.IndexFunc(others, func(s secret) bool { return strings.Contains(name, strings.ToLower(s.Placeholder)) }); i >= 0 {
			return e.misplaced(others[i], to)
		}
	}
	return nil
}

// ending is a body that calls ended once at its end, and reads nothing from then on. Read and Close share no field
// that changes: a transport closes a body while another of its goroutines reads it.
type ending struct {
	io.Closer
	from  io.Reader    // nil once it has ended; only used by Read
	ended func() error // only used by Read
}

func newEnding(body io.ReadCloser, ended func() error) *ending {
	return &ending{body, body, ended}
}

func (b *ending) Read(to []byte) (int, error) {
	if b.from == nil {
		return 0, io.EOF
	}
	n, err := b.from.Read(to)
	if !errors.Is(err, io.EOF) {
		return n, err
	}
	b.from = nil
	if bad := b.ended(); bad != nil {
		return n, bad
	}
	return n, io.EOF
}

// header returns the value of a header field with secrets put in.
func (e *exchange) header(v string, mine, others secrets, to egress.Destination) (string, error) {
	const basic = "basic "
	if len(v) > len(basic) && strings.EqualFold(v[:len(basic)], basic) {
		if plain, err := base64.StdEncoding.DecodeString(strings.TrimSpace(v[len(basic):])); err == nil {
			next, err := e.replaced(string(plain), mine, others, to)
			if err != nil || next == string(plain) {
				return v, err
			}
			encoded := base64.StdEncoding.EncodeToString([]byte(next))
			e.hide(mine[mine.in(string(plain))], encoded)
			return v[:len(basic)] + encoded, nil
		}
	}
	next, err := e.replaced(v, mine, others, to)
	if err == nil && next != v && strings.ContainsFunc(next, func(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f }) {
		name := mine[mine.in(v)].Name
		return v, e.deny("secret "+name, "the value of secret %q has characters that a header can't have", name)
	}
	return next, err
}

func (e *exchange) replaced(text string, mine, others secrets, to egress.Destination) (string, error) {
	if i := others.in(text); i >= 0 {
		return text, e.misplaced(others[i], to)
	}
	for _, s := range mine {
		text = strings.ReplaceAll(text, s.Placeholder, string(s.Value))
	}
	return text, nil
}

// inBodyOf returns a value as the body of a request has it.
func inBodyOf(r *http.Request, value string) string {
	kind, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type"))
	switch {
	case kind == "application/x-www-form-urlencoded":
		return url.QueryEscape(value)
	case kind == "application/json", strings.HasSuffix(kind, "+json"):
		if text, err := json.Marshal(value); err == nil {
			return string(text[1 : len(text)-1])
		}
	}
	return value
}

// body has the body of a request read through substitutions, of which some put values in if
// replaced.
func (e *exchange) body(r *http.Request, subs []substitution, replaced bool) {
	if len(subs) == 0 || r.Body == nil || r.Body == http.NoBody || r.ContentLength == 0 {
		return
	}
	body := newSubstituted(r.Body, subs)
	r.Body = body
	switch {
	case r.ContentLength > maxWholeBody, r.ContentLength < 0:
		if replaced {
			r.ContentLength = -1
			body.waiting = r.Context()
		}
	case r.ContentLength > 0: // it is refused whole, and some origins want to know its length
		whole, err := io.ReadAll(body)
		if err == nil {
			r.ContentLength = int64(len(whole))
		}
		r.Body = &readWhole{bytes.NewReader(whole), err, body}
	}
	if replaced {
		r.Header.Del("Content-Length") // which is that of before
	}
}

// readWhole is a body that was read, up to an error. It is not kept from its end on, even if Close is still to come.
type readWhole struct {
	r   *bytes.Reader
	err error
	of  io.Closer
}

func (b *readWhole) Read(to []byte) (int, error) {
	if b.r.Len() == 0 {
		b.r.Reset(nil)
		return 0, cmp.Or(b.err, io.EOF)
	}
	return b.r.Read(to)
}

func (b *readWhole) Close() error { return b.of.Close() }

func (e *exchange) hideValue(s secret) {
	e.hide(s, string(s.Value))
	quoted := strconv.Quote(string(s.Value)) // as errors have it, and most JSON
	e.hide(s, quoted[1:len(quoted)-1])
}

// hide has a form of a value taken out of the response.
func (e *exchange) hide(s secret, value string) {
	if len(value) < minHidden || slices.ContainsFunc(e.hidden, func(h substitution) bool { return string(h.find) == value }) {
		return
	}
	// As long as the value, so that lengths stay right.
	cover := bytes.Repeat([]byte("*"), len(value))
	copy(cover, s.Placeholder)
	e.hidden = append(e.hidden, substitution{find: []byte(value), put: cover, early: min(maxEarly, len(value)/4)})
}

// hideResponse takes values out of a response that echoes them, so that they don't come back into the
// sandbox: out of its header, its trailer, and its body if that is not compressed.
func (e *exchange) hideResponse(r *http.Response) {
	if len(e.hidden) == 0 {
		return
	}
	e.hideHeader(r.Header)
	e.hideHeader(r.Trailer) // the names, which are sent before the body
	if r.StatusCode == http.StatusSwitchingProtocols || r.Body == nil {
		return
	}
	body := newSubstituted(r.Body, e.hidden)
	was := e.secrets
	body.refresh = func() ([]substitution, bool) { // with values that came after the request
		now := e.current()
		if slices.EqualFunc(was, now, func(a, b secret) bool { return a.former == b.former && bytes.Equal(a.Value, b.Value) }) {
			return nil, false
		}
		was = now
		for _, s := range now {
			if !s.Sign && s.hosts.Contain(e.to) {
				e.hideValue(s)
			}
		}
		return e.hidden, true
	}
	body.ended = func() { e.hideHeader(r.Trailer) }
	r.Body = body
}

// isWebSocket reports whether a header asks for a WebSocket, or agrees to one.
func isWebSocket(h http.Header) bool { return strings.EqualFold(h.Get("Upgrade"), "websocket") }

// messages has the messages of a WebSocket go through substitutions. What an origin agrees on
// otherwise passes as it is. With an error the connection ends, after failed was called.
func (e *exchange) messages(r *http.Response, failed func(error)) {
	c, ok := r.Body.(io.ReadWriteCloser)
	if ok && isWebSocket(r.Header) && len(e.inMessages)+len(e.hidden) > 0 {
		r.Body = newMessages(c, e.inMessages, e.hidden, failed)
	}
}

// hideHeader also drops fields whose name has a value, in whatever case.
func (e *exchange) hideHeader(h http.Header) {
	for name, values := range h {
		if e.inName(name) {
			delete(h, name)
			continue
		}
		for i := range values {
			values[i] = e.hideText(values[i])
		}
	}
}

func (e *exchange) hideText(text string) string {
	for _, s := range e.hidden {
		text = strings.ReplaceAll(text, string(s.find), string(s.put))
	}
	return text
}

func (e *exchange) inName(name string) bool {
	return slices.ContainsFunc(e.hidden, func(s substitution) bool {
		return strings.Contains(strings.ToLower(name), strings.ToLower(string(s.find)))
	})
}

// hidingWriter takes values out of informational responses (1xx), which httputil.ReverseProxy passes on
// without ModifyResponse.
type hidingWriter struct {
	http.ResponseWriter
	exchange *exchange
}

func (w hidingWriter) WriteHeader(status int) {
	if status < http.StatusOK {
		h := w.Header()
		w.exchange.hideHeader(h)
		// With this, which no such response has, the server sends a copy of h over HTTP/2. Else it may read h
		// while ReverseProxy clears it, if the sandbox cancels the request: that ends the process.
		h["Content-Length"] = nil
	}
	w.ResponseWriter.WriteHeader(status)
}

// Unwrap is for http.ResponseController.
func (w hidingWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }
