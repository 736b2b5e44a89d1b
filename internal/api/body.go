package api

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"mime"
	"net"
	"net/http"
	"os"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sandpit-dev/sandpit/internal/errcode"
)

// Bounds of bodies.
const (
	maxBody  = 10 << 20         // bytes of JSON
	bodyTime = 60 * time.Second // in which all of a JSON body must have come
	keepBody = 64 << 10         // bytes of a buffer that is used again
)

var bodies = sync.Pool{New: func() any { return new(bytes.Buffer) }}

// decode reads a JSON body. A field that v does not have is refused: nothing
// asked for is dropped. An empty body is an empty object.
func (c *call) decode(v any, limit int64) error {
	if ct := c.r.Header.Get("Content-Type"); ct != "" {
		kind, _, err := mime.ParseMediaType(ct)
		if err != nil || kind != "application/json" {
			return &refusal{status: http.StatusUnsupportedMediaType, code: errcode.UnsupportedMedia, message: "the body is not JSON by its Content-Type", hint: "send the header Content-Type: application/json"}
		}
	}
	buf := bodies.Get().(*bytes.Buffer)
	defer func() {
		if buf.Cap() <= keepBody {
			buf.Reset()
			bodies.Put(buf)
		}
	}()
	if c.r.Body != http.NoBody {
		if err := c.readAll(buf, c.body(limit, bodyTime)); err != nil {
			return err
		}
	}
	return c.parse(buf.Bytes(), v)
}

// parse is the function, for what a caller has sent.
func (c *call) parse(data []byte, v any) error {
	if len(data) > freeObject {
		if err := c.hold(inMemory, heldByte*int64(len(data))+heldValue*values(data)); err != nil {
			return err
		}
	}
	return parse(data, v)
}

// parse reads one JSON value and nothing else.
func parse(data []byte, v any) error {
	data = bytes.TrimSpace(data)
	if len(data) == 0 {
		return nil
	}
	if data[0] != '{' {
		return invalid("the body is not a JSON object", "see /docs")
	}
	dec := json.NewDecoder(bytes.NewReader(data))
	if err := dec.Decode(v); err != nil {
		return invalid("the body can't be read: "+readable(err), "see /docs")
	}
	if dec.InputOffset() != int64(len(data)) {
		return invalid("something follows the JSON object of the body", "send one object")
	}
	return strict(data, reflect.TypeOf(v))
}

// readable is an error of the JSON decoder without its words for programmers.
func readable(err error) string {
	var wrong *json.UnmarshalTypeError
	if errors.As(err, &wrong) {
		return "the field " + wrong.Field + " can't be a " + wrong.Value
	}
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return "it ends too early"
	}
	return strings.TrimPrefix(err.Error(), "json: ")
}

// body is the body of the request, up to a number of bytes (-1: any), of a
// client that sends on. All of it must come within a time, unless that is 0.
func (c *call) body(limit int64, within time.Duration) *body {
	b := &body{c: c, left: limit, bounded: limit >= 0}
	if within > 0 {
		b.until = time.Now().Add(within)
	}
	return b
}

type body struct {
	c       *call
	left    int64
	bounded bool
	until   time.Time
	closed  atomic.Bool
}

// Read reads a part. The client has to have sent something within a time.
func (b *body) Read(p []byte) (int, error) {
	if b.closed.Load() {
		return 0, http.ErrBodyReadAfterClose
	}
	if b.bounded && int64(len(p)) > b.left+1 {
		p = p[:b.left+1] // one more shows that there is too much
	}
	deadline := time.Now().Add(b.c.api.opts.Limits.Stall)
	if !b.until.IsZero() && b.until.Before(deadline) {
		deadline = b.until
	}
	b.c.readUntil(deadline)
	n, err := b.c.r.Body.Read(p)
	b.left -= int64(n)
	switch {
	case b.bounded && b.left < 0:
		return 0, &refusal{status: http.StatusRequestEntityTooLarge, code: errcode.TooLarge, message: "the body is too large", hint: "send less at once"}
	case err == io.EOF:
		b.c.ended.Store(true)
		b.c.readUntil(time.Time{})
	case errors.Is(err, os.ErrDeadlineExceeded):
		err = &refusal{status: http.StatusRequestTimeout, code: "timeout", message: "the body did not come in time", hint: "send on while the server reads"}
	case err != nil:
		err = b.broken(err)
	}
	return n, err
}

// broken is the error of a body that ends too early, or is none.
func (b *body) broken(err error) error {
	var network net.Error
	if b.c.r.ProtoMajor > 1 || errors.Is(err, io.ErrUnexpectedEOF) || errors.As(err, &network) {
		return gone(err)
	}
	return invalid("the body can't be read: "+err.Error(), "send chunks as HTTP/1.1 has them, or a Content-Length")
}

// Close says that nobody wants more. A Read that is under way goes on: the call
// ends without it.
func (b *body) Close() error {
	b.closed.Store(true)
	return nil
}

// bodyRead reports whether nothing of the body is left.
func (c *call) bodyRead() bool {
	return c.ended.Load() || c.r.Body == nil || c.r.Body == http.NoBody
}
