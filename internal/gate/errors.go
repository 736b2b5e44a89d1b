package gate

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/diskfull"
	"github.com/sandpit-dev/sandpit/internal/errcode"
)

// Refusal is an error of the server itself. Callers read it as it stands. Code and Message
// must be set.
type Refusal struct {
	Code          string // of package errcode, which knows its status
	Message, Hint string
	After         time.Duration // for Retry-After
}

// Invalid returns the refusal of a malformed request.
func Invalid(message, hint string) error {
	return &Refusal{Code: errcode.Invalid, Message: message, Hint: hint}
}

// Error returns the message.
func (e *Refusal) Error() string { return e.Message }

// Unwrap returns the kind that the code stands for.
func (e *Refusal) Unwrap() error { return errcode.Kind(e.Code) }

// As gives the hint to sandpit.Hint.
func (e *Refusal) As(target any) bool {
	h, ok := target.(**sandpit.HintError)
	if ok = ok && e.Hint != ""; ok {
		*h = &sandpit.HintError{Err: e, Hint: e.Hint}
	}
	return ok
}

// ErrClientGone ends calls whose client has left. It is not a failure of the server.
var ErrClientGone error = &Refusal{Code: errcode.Canceled, Message: "the client closed the connection"}

// Gone wraps the error of a connection whose client has left or is stuck. The result
// matches ErrClientGone.
func Gone(err error) error { return fmt.Errorf("%w: %w", ErrClientGone, err) }

// MaxMessage bounds the texts of an error, in bytes: they may quote the request.
const MaxMessage = 2048

// Bounded returns s, cut after MaxMessage bytes.
func Bounded(s string) string {
	if len(s) <= MaxMessage {
		return s
	}
	return strings.ToValidUTF8(s[:MaxMessage], "") + "…"
}

// Failure is an error as a caller may read it. The dialect gives it a form.
type Failure struct {
	Status int
	Code   string // of package errcode
	Message,
	Hint,
	Path string
	RequestID string
	ExitCode  int           // of errcode.StartFailed
	Stage     sandpit.Stage // of the command; "": none, or unknown
	Errno     int           // of errcode.StartFailed; 0: unknown
	After     time.Duration // when to try again; 0: unknown
}

// Text returns the message with its hint, for APIs that have no field for hints.
func (f Failure) Text() string {
	if f.Hint == "" {
		return f.Message
	}
	return f.Message + " (" + f.Hint + ")"
}

// Describe returns what the caller may read of an error. The text of an unexpected error may
// name things of others. Describe logs it, and tells the caller no more than the
// request's id.
func (c *Call) Describe(err error) Failure {
	if why := c.BrokenOff(); why != nil && (errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)) {
		err = why
	}
	var r *Refusal
	if errors.As(err, &r) {
		if r.Code == errcode.Canceled {
			c.gate.opts.Log.Debug("a client closed its connection", "request", c.ID, "operation", c.operation(), "error", err)
		}
		return Failure{Status: errcode.Status(r.Code), Code: r.Code, Message: Bounded(r.Message), Hint: r.Hint, RequestID: c.ID, After: r.After}
	}
	var hidden interface{ Detail() string }
	if errors.As(err, &hidden) {
		c.gate.opts.Log.Warn("a request failed for a reason that is hidden from the caller", "request", c.ID, "operation", c.operation(), "error", err, "detail", hidden.Detail())
	}
	f := Failure{Code: errcode.Of(err), Message: err.Error(), Hint: sandpit.Hint(err), Stage: sandpit.StageOf(err), RequestID: c.ID, After: sandpit.RetryAfter(err)}
	var start *sandpit.StartError
	if errors.As(err, &start) {
		f.ExitCode, f.Errno = start.ExitCode, start.Errno
	}
	var file *fs.PathError
	if errors.As(err, &file) {
		f.Path = file.Path
	}
	if f.Code == errcode.Internal && diskfull.Is(err) {
		f.Code = errcode.DiskFull
	}
	if f.Code == errcode.DiskFull {
		c.gate.opts.Log.Error("the disk is full", "request", c.ID, "operation", c.operation(), "error", err)
		f.Message, f.Path, f.Hint = "the server's disk is full", "", "free some space on it, or ask the operator to; running sandboxes continue, and can be stopped and removed"
	}
	f.Status = errcode.Status(f.Code)
	if f.After == 0 && (f.Status == http.StatusTooManyRequests || f.Status == http.StatusServiceUnavailable) {
		f.After = time.Second
	}
	if f.Code == errcode.Internal || c.isPrivate(&f) {
		c.gate.opts.Log.Error("a request failed", "request", c.ID, "operation", c.operation(), "error", err)
		if !c.Caller.Admin {
			f.Message, f.Path = "internal error in the server", ""
		}
		f.Hint = "give the request ID to the operator, who finds the cause in the server's log"
	}
	f.Message, f.Hint = Bounded(f.Message), Bounded(f.Hint)
	return f
}

// isPrivate reports whether an error names files of the server, and its caller is not an
// administrator. An error that refuses a path in the request may name that path.
func (c *Call) isPrivate(f *Failure) bool {
	dir := c.gate.opts.DataDir
	return dir != "" && !c.Caller.Admin && f.Code != errcode.Invalid && f.Code != errcode.Forbidden &&
		(strings.Contains(f.Message, dir) || strings.Contains(f.Path, dir) || strings.Contains(f.Hint, dir))
}

// Fail answers with an error. If the answer has begun, Fail breaks the connection off, so
// that the client does not take a part for the whole answer.
func (c *Call) Fail(err error) {
	if c.W.refused {
		return // it has failed already
	}
	f := c.Describe(err)
	c.NoteOutcome(f.Status, f.Code, err)
	if c.W.hijacked.Load() {
		return
	}
	if c.W.status != 0 {
		panic(http.ErrAbortHandler)
	}
	h := c.W.Header()
	for _, name := range [...]string{"Content-Length", "Content-Range", "Content-Disposition", "Last-Modified", "Accept-Ranges"} {
		h.Del(name)
	}
	if c.R.ProtoMajor == 1 && !c.bodyRead() {
		// Otherwise net/http would read the rest of the body before it answers.
		h.Set("Connection", "close")
	}
	if f.After > 0 {
		h.Set("Retry-After", strconv.FormatInt(int64(math.Ceil(f.After.Seconds())), 10))
	}
	c.service.dialect.Fail(c, f)
}
