package api

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"reflect"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/errcode"
	"github.com/sandpit-dev/sandpit/internal/otlp"
)

// call is one request on its way.
type call struct {
	api    *API
	w      *response
	r      *http.Request
	ctx    context.Context // ends with the client, and with the server
	cancel context.CancelCauseFunc
	route  *Route
	id     string
	began  time.Time

	caller  Caller
	known   bool   // caller is set
	target  string // the sandbox, as asked for
	detail  string // what of it, for the audit
	forward target // of the reverse proxy

	intended  bool        // the audit has it
	vital     bool        // it is carried out even if the audit can't record it yet
	overShare error       // the refusal, when its key has used up its share of the audit
	vain      bool        // it is proved to have touched nothing; see untouched
	ended     atomic.Bool // the body has been read to its end
	streams   int         // open; guarded by limiter.mu, as the next two

	held     [heldKinds]int64 // bytes
	released bool             // nothing more is counted

	deadlines sync.Mutex // of the connection; held while they are set
	over      bool       // the handler is about to return; guarded by deadlines

	span *otlp.Span

	status int // outcome
	code   string
	err    error
}

// newRequestID names a request for people and logs: 80 bits of chance.
func newRequestID() string { return strings.ToLower(rand.Text()[:16]) }

// operation is what the call does, as the reference names it.
func (c *call) operation() string {
	if c.route == nil {
		return "none"
	}
	return c.route.ID
}

// serve does what every route needs and then what the route is for.
func (c *call) serve() {
	defer c.recover()
	c.target = c.r.PathValue("sb")
	if c.forward.sandbox != "" {
		c.target = c.forward.sandbox
	}
	if err := c.admit(); err != nil {
		c.fail(c.untouched(err))
		return
	}
	if err := c.route.handle(c); err != nil {
		c.fail(err)
	}
}

// admit decides whether the call may be made.
func (c *call) admit() error {
	if c.route.Open {
		return nil
	}
	if err := c.authenticate(); err != nil {
		return err
	}
	if err := c.api.limiter.request(c); err != nil {
		return err
	}
	c.detail = c.subject()
	if c.route.Admin && !c.caller.Admin {
		return &refusal{status: http.StatusForbidden, code: "forbidden", message: "only an administrator may do this", hint: "use an administrator's key"}
	}
	if enc := c.r.Header.Get("Content-Encoding"); enc != "" && !strings.EqualFold(enc, "identity") && c.forward.sandbox == "" {
		return &refusal{status: http.StatusUnsupportedMediaType, code: errcode.UnsupportedMedia, message: "a compressed body is not taken", hint: "send it as it is"}
	}
	if len(c.route.Query) == 0 && c.r.URL.RawQuery != "" && c.forward.sandbox == "" {
		if err := c.query().err; err != nil { // of the others their handlers see to that
			return err
		}
	}
	if c.route.Guarded && c.route.In == nil && !c.route.late {
		// Those with a body say more once it is read.
		return c.intend(c.detail)
	}
	return nil
}

// recover turns a panic into an error of the server. One that is meant to break
// the connection off goes on.
func (c *call) recover() {
	p := recover()
	if p == nil {
		return
	}
	if p == http.ErrAbortHandler { //nolint:errorlint // a panic's value is compared as net/http does
		panic(p)
	}
	c.api.opts.Log.Error("a handler panicked", "request", c.id, "operation", c.operation(), "panic", p, "stack", string(debug.Stack()))
	c.fail(errors.New("the handler panicked"))
}

// methods returns the methods for which there is a route to a path.
func (c *call) methods(r *http.Request, path string) (all []string) {
	for _, method := range [...]string{http.MethodGet, http.MethodPost, http.MethodPut, http.MethodDelete} {
		probe := &http.Request{Method: method, URL: &url.URL{Path: path}, Host: r.Host}
		if _, pattern := c.api.mux.Handler(probe); pattern != "/" && pattern != "" {
			all = append(all, method)
		}
	}
	return all
}

// lost answers a request for which there is no route. r is nil if its path is not a
// valid one.
func (c *call) lost(r *http.Request) {
	var allowed []string
	if r != nil {
		allowed = c.methods(r, r.URL.Path)
	}
	if len(allowed) > 0 {
		c.w.Header().Set("Allow", strings.Join(allowed, ", "))
		c.fail(&refusal{status: http.StatusMethodNotAllowed, code: errcode.MethodNotAllowed, message: "this path does not take " + r.Method, hint: "use " + strings.Join(allowed, " or ")})
		return
	}
	hint := "see /docs"
	if r != nil && strings.HasSuffix(r.URL.Path, "/") && len(c.methods(r, strings.TrimSuffix(r.URL.Path, "/"))) > 0 {
		hint = "remove the slash at the end"
	}
	c.fail(&refusal{status: http.StatusNotFound, code: errcode.NoRoute, message: "there is no such path", hint: hint})
}

// outcome notes how the call ended.
func (c *call) outcome(status int, code string, err error) {
	if c.status == 0 {
		c.status, c.code, c.err = status, code, err
	}
}

// answered reports whether the answer has begun.
func (c *call) answered() bool { return c.w.status != 0 || c.w.hijacked.Load() }

// finish tells everybody how the call ended.
func (c *call) finish() {
	if c.status == 0 {
		if c.status = c.w.status; c.status == 0 {
			c.status = http.StatusOK // as net/http answers for a handler that says nothing
		}
	}
	c.api.limiter.release(c)
	c.recordEnd()
	c.api.metrics.observe(c)
	c.endSpan()
	c.deadlines.Lock()
	c.over = true
	c.deadlines.Unlock()
	if !c.w.hijacked.Load() {
		c.w.renew() // for what net/http has yet to send
		c.linger()
	}
}

// untouched notes that the call fails before it has touched anything. Any other
// vital call may have changed something, however it ends: its client may have left,
// or a part of the work be done.
func (c *call) untouched(err error) error {
	c.vain = true
	return err
}

// sandbox finds the sandbox that the path names. Handlers do that before they touch
// anything.
func (c *call) sandbox() (sandpit.Sandbox, error) {
	sb, err := c.api.opts.Backend.Client(c.caller).Get(c.ctx, c.target)
	if err != nil {
		return nil, c.untouched(err)
	}
	if c.vital && !c.intended {
		c.target = sb.ID() // by whichever name it was asked for: see enterLater
	}
	return sb, nil
}

// answer sends v as JSON.
func (c *call) answer(status int, v any) error {
	var body bytes.Buffer
	// A request whose answer is refused here changes nothing, and can be repeated.
	err := encode(&holder{c: c, kind: inMemory, w: &body, free: freeBody, of: heldByte}, v)
	if err != nil {
		return err
	}
	body.WriteByte('\n')
	c.writeJSON(status, body.Bytes())
	return nil
}

// encode writes v as JSON. The list of a struct that has one is written element
// by element, so that w can refuse before a long one is built.
func encode(w io.Writer, v any) error {
	of := reflect.ValueOf(v)
	i, name := listField(of)
	if i < 0 {
		text, err := json.Marshal(v)
		if err == nil {
			_, err = w.Write(text)
		}
		return err
	}
	list := of.Field(i)
	rest := reflect.New(of.Type()).Elem()
	rest.Set(of)
	rest.Field(i).Set(reflect.MakeSlice(list.Type(), 0, 0))
	text, err := json.Marshal(rest.Interface())
	if err != nil {
		return err
	}
	// No string has these bytes: its quotes have backslashes.
	at := bytes.Index(text, []byte(`"`+name+`":[]`)) + len(name) + len(`"":[`)
	if _, err := w.Write(text[:at]); err != nil {
		return err
	}
	for k := range list.Len() {
		element, err := json.Marshal(list.Index(k).Interface())
		if err != nil {
			return err
		}
		if k > 0 {
			element = append([]byte{','}, element...)
		}
		if _, err := w.Write(element); err != nil {
			return err
		}
	}
	_, err = w.Write(text[at:])
	return err
}

// listField returns the index and JSON name of the field of a struct that is a list of
// structs and is never left out, or -1 if there is none.
func listField(of reflect.Value) (int, string) {
	if of.Kind() != reflect.Struct {
		return -1, ""
	}
	for i := range of.NumField() {
		f := of.Type().Field(i)
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		if f.Type.Kind() == reflect.Slice && f.Type.Elem().Kind() == reflect.Struct && name != "" && options == "" {
			return i, name
		}
	}
	return -1, ""
}

func (c *call) writeJSON(status int, body []byte) {
	h := c.w.Header()
	h["Content-Type"] = []string{"application/json"}
	h["Content-Length"] = []string{strconv.Itoa(len(body))}
	h["X-Content-Type-Options"] = []string{"nosniff"}
	c.w.WriteHeader(status)
	_, _ = c.w.Write(body) // a client that has gone reads nothing
}

// done answers that there is nothing to say.
func (c *call) done() error {
	c.w.WriteHeader(http.StatusNoContent)
	return nil
}

// asJSON makes a handler of a function from nothing but the path and query.
func asJSON[Out any](f func(*call) (Out, error)) func(*call) error {
	return func(c *call) error {
		out, err := f(c)
		if err != nil {
			return err
		}
		return c.answer(c.route.Status, out)
	}
}

// fromJSON makes a handler of a function from a JSON body.
func fromJSON[In, Out any](f func(*call, *In) (Out, error)) func(*call) error {
	return func(c *call) error {
		in := new(In)
		if err := c.decode(in, maxBody); err != nil {
			return c.untouched(err)
		}
		if err := c.intendFor(in); err != nil {
			return err
		}
		out, err := f(c, in)
		if err != nil {
			return err
		}
		return c.answer(c.route.Status, out)
	}
}

// fromJSONOnly is fromJSON for a function that has nothing to answer.
func fromJSONOnly[In any](f func(*call, *In) error) func(*call) error {
	return func(c *call) error {
		in := new(In)
		if err := c.decode(in, maxBody); err != nil {
			return c.untouched(err)
		}
		if err := c.intendFor(in); err != nil {
			return err
		}
		if err := f(c, in); err != nil {
			return err
		}
		return c.done()
	}
}

// only makes a handler of a function that has nothing to answer.
func only(f func(*call) error) func(*call) error {
	return func(c *call) error {
		if err := f(c); err != nil {
			return err
		}
		return c.done()
	}
}

// response notes what is sent, and gives the client a time in which it must
// have taken each part.
type response struct {
	http.ResponseWriter
	call     *call
	status   int
	bytes    int64
	hijacked atomic.Bool
}

// stall is how long a client may take nothing of what is sent to it.
const stall = 30 * time.Second

// renew gives the client time from now on.
func (w *response) renew() { w.call.writeFor(w.call.api.opts.Limits.Stall) }

// Unwrap is for http.ResponseController.
func (w *response) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// WriteHeader sends the status.
func (w *response) WriteHeader(status int) {
	if w.status == 0 && status >= 200 {
		w.status = status
	}
	w.ResponseWriter.WriteHeader(status)
}

// Write sends a part of the body.
func (w *response) Write(b []byte) (int, error) {
	if w.status == 0 {
		w.status = http.StatusOK
	}
	w.renew()
	n, err := w.ResponseWriter.Write(b)
	w.bytes += int64(n)
	if err != nil {
		err = gone(err)
	}
	return n, err
}

// flush sends what is held back.
func (w *response) flush() error {
	w.renew()
	if err := http.NewResponseController(w.ResponseWriter).Flush(); err != nil {
		return gone(err)
	}
	return nil
}

// Hijack takes the connection over. The head of the answer is sent before, which
// must not fail for the time that the handler has taken.
func (w *response) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	w.renew()
	conn, rw, err := http.NewResponseController(w.ResponseWriter).Hijack()
	if err == nil {
		w.hijacked.Store(true)
		if w.call.forward.sandbox != "" {
			w.call.outcome(http.StatusSwitchingProtocols, "", nil)
			conn = w.call.handOn(conn)
		}
	}
	return conn, rw, err
}
