package api

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/api/codec"
	v1 "github.com/sandpit-dev/sandpit/internal/api/v1"
	"github.com/sandpit-dev/sandpit/internal/errcode"
	"github.com/sandpit-dev/sandpit/internal/fault"
	"github.com/sandpit-dev/sandpit/internal/gate"
)

// A request of a repeatable Route may have an Idempotency-Key. Then it is carried out once, and its
// repetitions get the first answer (draft-ietf-httpapi-idempotency-key-header):
//
//   - The key is taken when the handler is about to change something, that is where it calls
//     intendFor. It is bound to the path, the query and the bytes of the JSON of the body. Other
//     bodies, such as standard input, are not compared.
//   - The answer is stored if it is a success. A request that failed gives its key back, unless it may
//     have changed something.
//   - The client may leave: the request is carried out to its end, unless Route.EndsWithClient.
//   - A repeated exec attaches to the first process: see comeback.go.
const (
	headerKeyOnce  = "Idempotency-Key"
	headerReplayed = "Idempotent-Replayed" // marks the answer to an earlier request

	maxIdempotencyKey = 255      // bytes
	maxAnswer         = 64 << 10 // bytes of an answer that is stored: a command line of 8 KiB may be six times as long in JSON
)

// errReplayed ends a handler whose request has been answered as an earlier one.
var errReplayed = errors.New("the request has been answered as an earlier one")

// repeatable is a call that has taken an Idempotency-Key.
type repeatable struct {
	key        string
	writer     http.ResponseWriter // of the gate
	status     int
	answer     bytes.Buffer
	unstorable bool   // the answer is too long, or is not JSON
	made       bool   // its sandbox is there, or may be: repetitions look for that, whatever became of the answer
	settled    bool   // the store has heard how it went
	resource   string // what it has made
}

// once takes the Idempotency-Key of the call. It answers a repeated request, and then returns
// errReplayed or an error.
func (c *call) once() error {
	keys := c.R.Header.Values(headerKeyOnce)
	if len(keys) == 0 || !c.route.repeatable() || c.repeat != nil {
		return nil
	}
	key := keys[0]
	if len(keys) > 1 || key == "" || len(key) > maxIdempotencyKey {
		return c.Untouched(gate.Invalid("the Idempotency-Key must be one header of 1 to 255 bytes", "use a random UUID"))
	}
	if c.compared == nil {
		c.compare([]byte("null"))
	}
	r := &repeatable{key: key}
	if c.route.ID == createID {
		r.resource = gate.NewRequestID() // to find it if the server dies before it has noted the answer
	}
	earlier, err := c.api.opts.Idempotency.Begin(c.Ctx, Repeatable{Namespace: c.Caller.Namespace, Key: key, Hash: [sha256.Size]byte(c.compared), Resource: r.resource})
	switch {
	case errors.Is(err, sandpit.ErrInvalid):
		return c.Untouched(&gate.Refusal{Code: errcode.IdempotencyMismatch, Message: "the Idempotency-Key was used for another request", Hint: "use a new key for each request"})
	case errors.Is(err, sandpit.ErrState):
		return c.Untouched(&sandpit.RetryError{Err: err, After: time.Second})
	case err != nil && c.Vital:
		return nil // it works also when the state can't be written
	case err != nil:
		return c.Untouched(err)
	case earlier != nil && earlier.Answered:
		c.Detail += "; repeated" // for the audit
		return c.replay(earlier)
	}
	c.repeat = r
	r.writer, c.W.ResponseWriter = c.W.ResponseWriter, &recorder{c.W.ResponseWriter, r}
	if !c.route.EndsWithClient {
		c.OutliveClient()
	}
	if earlier != nil { // the server died on it
		c.Detail += "; repeated"
		return c.takeOver(earlier)
	}
	return nil
}

// compare notes the JSON of a request that may have an Idempotency-Key. It needs no memory, however
// long that is.
func (c *call) compare(body []byte) {
	if !c.route.repeatable() || c.R.Header.Get(headerKeyOnce) == "" {
		return
	}
	h := sha256.New()
	_, _ = io.WriteString(h, c.R.URL.RequestURI()+"\n") // a hash returns no errors
	if c.Caller.Nested != "" {
		_, _ = io.WriteString(h, c.Caller.Nested+"\n")
	}
	_, _ = h.Write(body)
	c.compared = h.Sum(nil)
}

// takeOver carries out a request that an earlier server may have carried out. The sandbox that a
// create has made is found by its mark. Of others the outcome is unknown.
func (c *call) takeOver(earlier *Earlier) error {
	if earlier.Resource == "" {
		return errUnknown
	}
	c.repeat.resource, c.repeat.made = earlier.Resource, true
	err := c.createdBefore(earlier.Resource)
	if errors.Is(err, sandpit.ErrNotFound) {
		c.repeat.made = false
		return nil
	}
	return err
}

// createdBefore answers with the sandbox that has a mark, as it is now. It returns errReplayed, or
// ErrNotFound if there is none.
func (c *call) createdBefore(mark string) error {
	sb, err := c.api.opts.Backend.Marked(c.Caller, mark)
	if err != nil {
		return err
	}
	c.Target = sb.ID()
	made, err := describe(c.Ctx, sb)
	if err != nil {
		return err
	}
	c.W.Header().Set(headerReplayed, "true")
	if err := c.created(made); err != nil {
		return err
	}
	return errReplayed
}

// errUnknown answers repetitions of a request that was interrupted, and may have been carried
// out.
var errUnknown error = &gate.Refusal{Code: errcode.OutcomeUnknown, Message: "the first request with this Idempotency-Key was interrupted, and may have been carried out", Hint: "look at the present state; then, if necessary, send the request with a new key"}

// unsure returns the error of a call that has returned err. If the server has broken off a call that may
// have changed something, its client must not take the error for one that allows to repeat the request:
// to repeat it would do more.
func (c *call) unsure(err error) error {
	switch {
	case err == nil, c.repeat != nil, !errors.Is(c.BrokenOff(), gate.ErrDraining), !c.MayHaveActed():
		return err
	case !errors.Is(err, sandpit.ErrUnavailable) && !errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded):
		return err
	case c.runs != "":
		return &gate.Refusal{Code: errcode.OutcomeUnknown, Message: "the server is shutting down; process " + c.runs + " of this request goes on", Hint: "attach to the process: the same request would start another one"}
	case c.begun, c.R.Method != http.MethodPut && c.route.repeatable() && !c.route.EndsWithClient:
		return &gate.Refusal{Code: errcode.OutcomeUnknown, Message: "the server is shutting down, and the request may have been carried out", Hint: "look at the present state before you send it again; requests with an Idempotency-Key can be repeated"}
	}
	return err
}

// settle tells the store how the call went, and returns what the gate must answer. err is what the
// handler has returned.
func (c *call) settle(err error) error {
	r := c.repeat
	if r == nil {
		return err
	}
	c.W.ResponseWriter = r.writer
	ctx, store := context.WithoutCancel(c.Ctx), c.api.opts.Idempotency
	var serr error
	switch ok := err == nil || errors.Is(err, errReplayed); {
	case r.settled:
	case ok && r.status/100 == 2 && !r.unstorable:
		serr = store.Finish(ctx, c.Caller.Namespace, r.key, r.resource, r.status, withoutSecret(c.route, r.answer.Bytes()))
	case !ok && r.made:
		serr = store.Finish(ctx, c.Caller.Namespace, r.key, r.resource, c.route.Status, nil)
	case errors.Is(err, errUnknown), !ok && (c.begun || c.BrokenOff() != nil && !c.route.EndsWithClient):
		stored := err
		if errors.Is(err, context.Canceled) || c.BrokenOff() != nil {
			stored = errUnknown
		}
		status, e := codec.Describe(c.Call, stored)
		body, _ := json.Marshal(e) // of strings, which never fails
		serr = store.Finish(ctx, c.Caller.Namespace, r.key, r.resource, status, append(body, '\n'))
	case ok && r.status/100 == 2:
		serr = store.Finish(ctx, c.Caller.Namespace, r.key, r.resource, r.status, nil)
	default:
		serr = store.Abandon(ctx, c.Caller.Namespace, r.key)
	}
	if serr != nil {
		c.api.gate.Log().Error("storing the response to a request with an Idempotency-Key failed", "request", c.ID, "error", serr)
	}
	return err
}

// withoutSecret removes the secret from an answer that is shown once.
func withoutSecret(route *Route, body []byte) []byte {
	var fields map[string]json.RawMessage
	if !route.ShowsSecret || json.Unmarshal(body, &fields) != nil {
		return body
	}
	delete(fields, "secret")
	var text bytes.Buffer
	enc := json.NewEncoder(&text)
	enc.SetEscapeHTML(false) // it must not become longer
	_ = enc.Encode(fields)   // of JSON, which never fails
	return text.Bytes()
}

// replay answers as an earlier request was answered. An answer that was too long to be stored is
// made again of the sandbox as it is now.
func (c *call) replay(earlier *Earlier) error {
	c.W.Header().Set(headerReplayed, "true")
	switch {
	case c.route.ID == execID && earlier.Resource != "":
		c.repeated = earlier.Resource
		return nil
	case earlier.Status == http.StatusNoContent:
		c.W.WriteHeader(earlier.Status)
		return errReplayed
	case earlier.Response == nil && c.route.ID == createID:
		err := c.createdBefore(earlier.Resource)
		if errors.Is(err, sandpit.ErrNotFound) {
			err = fault.Errorf(sandpit.ErrNotFound, "the sandbox that the first request with this Idempotency-Key has created is gone")
		}
		return err
	case earlier.Response == nil:
		return &gate.Refusal{Code: errcode.State, Message: "the first request with this Idempotency-Key has succeeded; its response was too long to be stored", Hint: "get the present state"}
	}
	if c.route.ID == createID {
		var made v1.Sandbox
		if err := json.Unmarshal(earlier.Response, &made); err != nil {
			return err
		}
		c.Target = made.ID
		c.W.Header().Set("Location", sandboxes+"/"+made.ID)
	}
	var failed v1.Error
	if earlier.Status >= 400 && json.Unmarshal(earlier.Response, &failed) == nil {
		return &gate.Refusal{Code: failed.Code, Message: failed.Message, Hint: failed.Hint}
	}
	codec.Write(c.W, earlier.Status, earlier.Response)
	return errReplayed
}

// recorder notes what a handler answers.
type recorder struct {
	http.ResponseWriter
	r *repeatable
}

// Unwrap returns the underlying writer, for http.ResponseController.
func (w *recorder) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// WriteHeader notes the status.
func (w *recorder) WriteHeader(status int) {
	if w.r.status == 0 && status >= 200 {
		w.r.status = status
		w.r.unstorable = status != http.StatusNoContent && !strings.HasPrefix(w.Header().Get("Content-Type"), "application/json")
	}
	w.ResponseWriter.WriteHeader(status)
}

// Write notes a part of the body.
func (w *recorder) Write(b []byte) (int, error) {
	if w.r.unstorable = w.r.unstorable || w.r.answer.Len()+len(b) > maxAnswer; !w.r.unstorable {
		w.r.answer.Write(b)
	}
	return w.ResponseWriter.Write(b)
}
