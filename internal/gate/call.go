package gate

import (
	"context"
	"crypto/rand"
	"errors"
	"log/slog"
	"net/http"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sandpit-dev/sandpit/internal/errcode"
	"github.com/sandpit-dev/sandpit/internal/otlp"
)

// Call is one request in progress. It belongs to the goroutine of its handler, and ends when
// the handler returns.
//
// A handler may start goroutines that use the call. They may read the exported fields, which
// must not be set meanwhile. W, and each body, serve one goroutine at a time. After the
// handler has returned, such goroutines may only call Cancel, Hold, BrokenOff and Protect, which each of them defers.
type Call struct {
	W *Writer

	// R is the request. Read its body with Body, which bounds it. A library that takes
	// a request gets R.WithContext(Ctx), with its Body replaced in the same way.
	R *http.Request

	Ctx context.Context // ends with the client, with the key, and with the server

	// Cancel ends Ctx with a cause.
	Cancel context.CancelCauseFunc

	// ID names the request for people and logs.
	ID string

	// Caller is who makes the request. It is the zero value on routes that are Open.
	Caller Caller

	// Target is the sandbox that the request names, and Detail what else it is about, both
	// for the audit. Handlers may set them when they know more.
	Target, Detail string

	// Vital is Route.Vital, or what Route.VitalIf has said. A handler may change it before it calls Intend.
	Vital bool

	gate    *Gate
	service *service
	route   *Route // nil while none is found
	began   time.Time

	known         bool        // Caller is set
	intended      bool        // the audit has it
	later         bool        // see IntendLater
	errAuditShare error       // the refusal, when its key has used up its share of the audit
	unchanged     bool        // it has provably touched nothing; see Untouched
	ended         atomic.Bool // the body has been read to its end
	streams       int         // open; guarded by limiter.mu, as the next two

	held     [heldKinds]int64 // bytes
	released bool             // nothing more is counted

	// control sets the deadlines of the connection, also while a handler replaces W.ResponseWriter.
	control   *http.ResponseController
	deadlines sync.Mutex // held while they are set
	over      bool       // the handler is about to return; guarded by deadlines
	unread    bool       // StopReading was called; guarded by deadlines

	span *otlp.Span

	status int // outcome
	code   string
	err    error
}

// NewRequestID returns a name for a request: 80 random bits.
func NewRequestID() string { return strings.ToLower(rand.Text()[:16]) }

// Gate returns the gate that the call has passed.
func (c *Call) Gate() *Gate { return c.gate }

// UntilDrained returns a context that ends with Ctx, and with ErrDraining when the gate begins to drain: for calls that only
// follow something, such as events or logs. The handler must end it.
func (c *Call) UntilDrained() (context.Context, context.CancelCauseFunc) {
	ctx, end := context.WithCancelCause(c.Ctx)
	stop := context.AfterFunc(c.gate.live, func() { end(ErrDraining) })
	return ctx, func(cause error) { stop(); end(cause) }
}

// operation returns the ID of the route, or "none".
func (c *Call) operation() string {
	if c.route == nil {
		return "none"
	}
	return c.route.ID
}

// serve admits the call and runs the handler of the route.
func (c *Call) serve(route *Route) {
	defer c.recover()
	c.route, c.Vital = route, route.Vital
	if route.Target != nil {
		c.Target = route.Target(c.R)
	}
	if err := c.admit(); err != nil {
		c.Fail(c.Untouched(err))
		return
	}
	if err := route.Handle(c); err != nil {
		c.Fail(err)
	} else if !c.answered() {
		_ = c.W.refuse(http.StatusOK) // which net/http would answer
	}
}

// admit refuses a call that may not be made.
func (c *Call) admit() error {
	if c.route.Open {
		return nil
	}
	if err := c.authenticate(); err != nil {
		return err
	}
	if err := c.gate.limiter.request(c); err != nil {
		return err
	}
	if c.route.Detail != nil {
		c.Detail = c.route.Detail(c.R)
	}
	if c.route.Admin && !c.Caller.Admin {
		return &Refusal{Code: errcode.Forbidden, Message: "this requires an administrator's key", Hint: "ask the operator to do it, or for a key of 'sandpit key create --admin'"}
	}
	if c.route.SelfAudited {
		return nil
	}
	return c.Intend(c.Detail)
}

// recover turns a panic of the handler into an internal error. It passes on
// http.ErrAbortHandler, which breaks the connection off.
func (c *Call) recover() {
	p := recover()
	if p == nil {
		return
	}
	if p == http.ErrAbortHandler { //nolint:errorlint // a panic's value is compared as net/http does
		panic(p)
	}
	c.Fail(c.panicked("a handler", p))
}

// Protect is deferred by goroutines of a handler, as the gate protects only the handler itself. If one panics, Protect logs
// that and calls failed, and the server goes on. what says what the goroutine does.
func (c *Call) Protect(what string, failed func(error)) {
	if p := recover(); p != nil {
		failed(c.panicked(what, p))
	}
}

func (c *Call) panicked(what string, p any) error {
	return Panicked(c.gate.opts.Log.With("request", c.ID, "operation", c.operation()), what, p)
}

// Panicked logs that something has panicked, with what recover returned, and returns an error that says so to clients.
func Panicked(log *slog.Logger, what string, p any) error {
	log.Error(what+" panicked", "panic", p, "stack", string(debug.Stack()))
	return errors.New("internal error in the server")
}

// NoteOutcome notes the outcome for the audit, metrics and traces, unless one has been noted.
func (c *Call) NoteOutcome(status int, code string, err error) {
	if c.status == 0 {
		c.ReplaceOutcome(status, code, err)
	}
}

// ReplaceOutcome notes the outcome, even if one has been noted.
func (c *Call) ReplaceOutcome(status int, code string, err error) {
	c.status, c.code, c.err = status, code, err
}

// answered reports whether the answer has begun.
func (c *Call) answered() bool { return c.W.status != 0 || c.W.hijacked.Load() }

// finish records how the call ended, and releases what it holds.
func (c *Call) finish() {
	if c.status == 0 {
		if c.status = c.W.status; c.status == 0 {
			c.status = http.StatusOK // as net/http answers for a handler that says nothing
		}
	}
	c.gate.limiter.release(c)
	c.recordEnd()
	c.gate.metrics.observe(c)
	c.endSpan()
	c.deadlines.Lock()
	c.over = true
	c.deadlines.Unlock()
	if !c.W.hijacked.Load() {
		c.W.renew() // for what net/http has yet to send
		c.linger()
	}
}

// Untouched notes that the call failed before it changed anything, and returns err. The audit
// assumes of any other vital call that it may have changed something, whatever its
// status: its client may have left, or a part of the work may be done.
func (c *Call) Untouched(err error) error {
	c.unchanged = true
	return err
}

// MayHaveActed reports whether the call may have changed something: the audit has it, or need not
// have it yet, and its handler has not called Untouched.
func (c *Call) MayHaveActed() bool { return (c.intended || c.Vital) && !c.unchanged }

// Intended reports whether the audit has what the call is about to do: a dialect may tell of an error
// with a status of success only then.
func (c *Call) Intended() bool { return c.intended }

// EntersLater reports whether the call is vital and goes on without an entry in the audit. Its
// handler should find out whether there is anything to change, and else call
// Untouched: then its entry makes room for others.
func (c *Call) EntersLater() bool { return c.Vital && !c.intended }
