package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/sandpit-dev/sandpit"
	v1 "github.com/sandpit-dev/sandpit/internal/api/v1"
	"github.com/sandpit-dev/sandpit/internal/diskfull"
	"github.com/sandpit-dev/sandpit/internal/errcode"
)

// refusal is an error of the API itself.
type refusal struct {
	status        int
	code          string
	message, hint string
	after         time.Duration // for Retry-After
}

// Error is what the caller reads.
func (e *refusal) Error() string { return e.message }

// Unwrap returns the kind that the code stands for.
func (e *refusal) Unwrap() error { return errcode.Kind(e.code) }

// As gives the hint to sandpit.Hint.
func (e *refusal) As(target any) bool {
	h, ok := target.(**sandpit.HintError)
	if ok = ok && e.hint != ""; ok {
		*h = &sandpit.HintError{Err: e, Hint: e.hint}
	}
	return ok
}

// errClientGone is why something has ended whose client has left. It is no
// failure of the server.
var errClientGone error = &refusal{status: statusClientGone, code: "canceled", message: "the client has gone"}

// gone is the error of a connection whose client has left, or takes and sends
// nothing any more.
func gone(err error) error { return fmt.Errorf("%w: %w", errClientGone, err) }

// invalid returns an error about what was asked.
func invalid(message, hint string) error {
	return &refusal{status: http.StatusBadRequest, code: "invalid", message: message, hint: hint}
}

// statusClientGone is what is noted of a request whose client has gone; nobody
// reads it. nginx uses the number for the same.
const statusClientGone = 499

// statusOf is the status of a code of the domain.
func statusOf(code string) int {
	switch code {
	case "invalid", "is_directory", "not_directory":
		return http.StatusBadRequest
	case "forbidden", "permission":
		return http.StatusForbidden
	case "not_found", "file_not_found":
		return http.StatusNotFound
	case "exists", "file_exists", "state", "not_empty":
		return http.StatusConflict
	case "closed":
		return http.StatusGone
	case "exhausted":
		return http.StatusTooManyRequests
	case "unsupported":
		return http.StatusNotImplemented
	case "unavailable":
		return http.StatusServiceUnavailable
	case "integrity", "protocol":
		return http.StatusBadGateway
	case "no_space", "disk_full":
		return http.StatusInsufficientStorage
	case "timeout":
		return http.StatusGatewayTimeout
	case "canceled":
		return statusClientGone
	}
	return http.StatusInternalServerError
}

// maxMessage bounds what an error says, in bytes: it may quote what was sent.
const maxMessage = 2048

func bounded(s string) string {
	if len(s) <= maxMessage {
		return s
	}
	return strings.ToValidUTF8(s[:maxMessage], "") + "…"
}

// describe returns an error as the caller gets it. Of what has no kind, the
// caller is told no more than the request's id: its text may name what is not
// his. It is logged.
func (c *call) describe(err error) (status int, e v1.Error, after time.Duration) {
	if why := c.brokenOff(); why != nil && (errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)) {
		err = why
	}
	var r *refusal
	if errors.As(err, &r) {
		if r.status == statusClientGone {
			c.api.opts.Log.Debug("a client has gone", "request", c.id, "operation", c.operation(), "error", err)
		}
		return r.status, v1.Error{Code: r.code, Message: bounded(r.message), Hint: r.hint, RequestID: c.id}, r.after
	}
	var hidden interface{ Detail() string }
	if errors.As(err, &hidden) {
		c.api.opts.Log.Warn("a request failed for a reason that its caller is not told", "request", c.id, "operation", c.operation(), "error", err, "detail", hidden.Detail())
	}
	e = v1.FromError(err)
	if e.Code == errcode.Internal && diskfull.Is(err) {
		e.Code = "disk_full"
	}
	if e.Code == "disk_full" {
		c.api.opts.Log.Error("the disk is full", "request", c.id, "operation", c.operation(), "error", err)
		e.Message, e.Path, e.Hint = "the server's disk is full", "", "free some space on it, or ask the operator to; sandboxes go on, and can be stopped and removed"
	}
	status, after = statusOf(e.Code), sandpit.RetryAfter(err)
	if after == 0 && (status == http.StatusTooManyRequests || status == http.StatusServiceUnavailable) {
		after = time.Second
	}
	if e.Code == errcode.Internal || c.isPrivate(&e) {
		c.api.opts.Log.Error("a request failed", "request", c.id, "operation", c.operation(), "error", err)
		if !c.caller.Admin {
			e.Message, e.Path = "something failed in the server", ""
		}
		e.Hint = "give the request id to who runs the server: its log says more"
	}
	e.Message, e.Hint, e.RequestID = bounded(e.Message), bounded(e.Hint), c.id
	return status, e, after
}

// isPrivate reports whether an error names files of the server and its caller is not an
// administrator. A request that is refused for a path in it may be told that path.
func (c *call) isPrivate(e *v1.Error) bool {
	dir := c.api.opts.DataDir
	return dir != "" && !c.caller.Admin && e.Code != "invalid" && e.Code != "forbidden" &&
		(strings.Contains(e.Message, dir) || strings.Contains(e.Path, dir) || strings.Contains(e.Hint, dir))
}

// fail answers with an error, unless the answer has begun: then the connection
// is broken off, so that nobody takes what was sent for the whole.
func (c *call) fail(err error) {
	status, e, after := c.describe(err)
	c.outcome(status, e.Code, err)
	if c.w.hijacked.Load() {
		return
	}
	if c.w.status != 0 {
		panic(http.ErrAbortHandler)
	}
	h := c.w.Header()
	for _, name := range [...]string{"Content-Length", "Content-Range", "Content-Disposition", "Last-Modified", "Accept-Ranges"} {
		h.Del(name)
	}
	if c.r.ProtoMajor == 1 && !c.bodyRead() {
		// Otherwise net/http would read on before it answers.
		h.Set("Connection", "close")
	}
	if after > 0 {
		h.Set("Retry-After", strconv.FormatInt(int64(math.Ceil(after.Seconds())), 10))
	}
	body, _ := json.Marshal(e) // of strings, which never fails
	c.writeJSON(status, append(body, '\n'))
}
