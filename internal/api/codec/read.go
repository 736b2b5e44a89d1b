package codec

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"mime"
	"net/http"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/sandpit-dev/sandpit/internal/errcode"
	"github.com/sandpit-dev/sandpit/internal/gate"
)

// keepBody bounds the buffers of bodies that are used again, in bytes.
const keepBody = 64 << 10

var bodies = sync.Pool{New: func() any { return new(bytes.Buffer) }}

// BodyTime is the time in which a whole JSON body must arrive.
const BodyTime = 60 * time.Second

// MaxBody is the maximum body of most requests, in bytes.
const MaxBody = 10 << 20

// MergePatch is the media type of a change of a resource (RFC 7396). It is JSON.
const MergePatch = "application/merge-patch+json"

// Read reads the body of a call, which has at most limit bytes. A field that v does not
// have is refused. An empty body is an empty object, or refused in a PUT, which would replace everything. If seen is not nil, it gets the bytes of a valid
// body, and must not keep them.
func Read(c *gate.Call, v any, limit int64, seen func(body []byte)) error {
	if ct := c.R.Header.Get("Content-Type"); ct != "" {
		kind, _, err := mime.ParseMediaType(ct)
		if err != nil || kind != "application/json" && (kind != MergePatch || c.R.Method != http.MethodPatch) {
			return &gate.Refusal{Code: errcode.UnsupportedMedia, Message: "the Content-Type of the body is not JSON", Hint: "send the header Content-Type: application/json"}
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
		if err := c.ReadAll(buf, c.Body(limit, BodyTime)); err != nil {
			return err
		}
	}
	if c.R.Method == http.MethodPut && len(bytes.TrimSpace(buf.Bytes())) == 0 {
		return gate.Invalid("the body is empty", "send a JSON object; {} replaces everything with the defaults")
	}
	if err := ParseHeld(c, buf.Bytes(), v); err != nil {
		return err
	}
	if seen != nil {
		seen(buf.Bytes())
	}
	return nil
}

// ParseHeld is Parse, and counts data and v as memory that the call holds.
func ParseHeld(c *gate.Call, data []byte, v any) error {
	if err := HoldObject(c, data); err != nil {
		return err
	}
	return Parse(data, v)
}

// HoldObject counts JSON, and what is made of it, as memory that the call holds.
func HoldObject(c *gate.Call, data []byte) error {
	if len(data) <= freeObject {
		return nil
	}
	return c.Hold(gate.InMemory, gate.HeldByte*int64(len(data))+heldValue*values(data))
}

// Parse reads one JSON value and nothing else.
func Parse(data []byte, v any) error {
	data = bytes.TrimSpace(data)
	if len(data) == 0 {
		return nil
	}
	if data[0] != '{' {
		return gate.Invalid("the body is not a JSON object", "see /docs")
	}
	dec := json.NewDecoder(bytes.NewReader(data))
	err := dec.Decode(v)
	var wrong *json.UnmarshalTypeError
	if err != nil && !errors.As(err, &wrong) {
		return gate.Invalid("the body is not valid: "+Readable(err), "see /docs")
	}
	if dec.InputOffset() != int64(len(data)) {
		return gate.Invalid("unexpected data after the JSON object in the body", "send a single JSON object")
	}
	if refused := strict(data, reflect.TypeOf(v)); refused != nil {
		return refused
	}
	if wrong != nil { // of a type that decodes its JSON itself, or a number out of range
		return gate.Invalid("the body is not valid: "+Readable(err), "see /docs")
	}
	return nil
}

// Readable returns the text of an error of encoding/json without Go's terms.
func Readable(err error) string {
	var wrong *json.UnmarshalTypeError
	if errors.As(err, &wrong) {
		field := wrong.Field
		for i := strings.IndexByte(field, '.'); i > 0 && 'A' <= field[0] && field[0] <= 'Z'; i = strings.IndexByte(field, '.') {
			field = field[i+1:] // without the embedding Go types
		}
		if field == "" {
			return "it must be " + jsonKind(wrong.Type)
		}
		return strconv.Quote(field) + " must be " + jsonKind(wrong.Type)
	}
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return "it ends before the JSON is complete"
	}
	return strings.TrimPrefix(err.Error(), "json: ")
}

// jsonKind describes the JSON values that a Go type is read from.
func jsonKind(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Bool:
		return "true or false"
	case reflect.String:
		return "a string"
	case reflect.Float32, reflect.Float64:
		return "a number"
	case reflect.Slice, reflect.Array:
		if t.Elem().Kind() == reflect.Uint8 {
			return "a string in base64"
		}
		return "a list of " + plural(jsonKind(t.Elem()))
	case reflect.Struct, reflect.Map:
		return "an object"
	case reflect.Pointer:
		return jsonKind(t.Elem())
	}
	return "a whole number in range"
}

// plural returns what jsonKind returns for the elements of a list.
func plural(kind string) string {
	_, noun, _ := strings.Cut(kind, " ") // without the article
	if noun, rest, ok := strings.Cut(noun, " in "); ok {
		return noun + "s in " + rest
	}
	return noun + "s"
}

// freeObject is the size of a parsed body up to which it is not counted, in bytes.
const freeObject = 4 << 10

// heldValue is the memory of a JSON value, garbage included, in bytes.
const heldValue = 200

// values returns the number of values in JSON, or somewhat more.
func values(data []byte) int64 {
	n := int64(1)
	for i := 0; i < len(data); i++ {
		switch data[i] {
		case ',', '[', '{':
			n++
		case '"':
			for i++; i < len(data) && data[i] != '"'; i++ {
				if data[i] == '\\' {
					i++
				}
			}
		}
	}
	return n
}
