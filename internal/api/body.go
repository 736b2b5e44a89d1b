package api

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"mime"
	"net/http"
	"reflect"
	"strings"
	"sync"
	"time"

	"github.com/sandpit-dev/sandpit/internal/errcode"
	"github.com/sandpit-dev/sandpit/internal/gate"
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
	if ct := c.R.Header.Get("Content-Type"); ct != "" {
		kind, _, err := mime.ParseMediaType(ct)
		if err != nil || kind != "application/json" {
			return &gate.Refusal{Status: http.StatusUnsupportedMediaType, Code: errcode.UnsupportedMedia, Message: "the body is not JSON by its Content-Type", Hint: "send the header Content-Type: application/json"}
		}
	}
	buf := bodies.Get().(*bytes.Buffer)
	defer func() {
		if buf.Cap() <= keepBody {
			buf.Reset()
			bodies.Put(buf)
		}
	}()
	if c.R.Body != http.NoBody {
		if err := c.ReadAll(buf, c.Body(limit, bodyTime)); err != nil {
			return err
		}
	}
	return c.parse(buf.Bytes(), v)
}

// parse is the function, for what a caller has sent.
func (c *call) parse(data []byte, v any) error {
	if len(data) > freeObject {
		if err := c.Hold(gate.InMemory, gate.HeldByte*int64(len(data))+heldValue*values(data)); err != nil {
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
