// Package codec reads and writes the JSON of /v1. Bodies are read strictly, so that
// nothing that a client asks for is dropped; long lists are written element by element;
// errors are v1.Error. What is read and written counts as memory that the call holds.
package codec

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"reflect"
	"strconv"
	"strings"

	v1 "github.com/sandpit-dev/sandpit/internal/api/v1"
	"github.com/sandpit-dev/sandpit/internal/errcode"
	"github.com/sandpit-dev/sandpit/internal/gate"
)

// Answer sends v as the answer to a call that has changed nothing: it returns an error if the call
// can't hold so much.
func Answer(c *gate.Call, status int, v any) error {
	var body bytes.Buffer
	err := Encode(&gate.Holder{Call: c, Kind: gate.InMemory, W: &body, Free: gate.FreeBody, Each: gate.HeldByte}, v)
	if err != nil {
		return Unheld(err)
	}
	body.WriteByte('\n')
	Write(c.W, status, body.Bytes())
	return nil
}

// Report sends v as the answer to a call that has changed something, which nobody must be told did
// not happen. v describes one thing, or a few, and has bounds: it counts as far as the call can hold
// it.
func Report(c *gate.Call, status int, v any) error {
	body, err := json.Marshal(v)
	if err != nil {
		return err
	}
	if len(body) > gate.FreeBody {
		_ = c.Hold(gate.InMemory, gate.HeldByte*int64(len(body)))
	}
	Write(c.W, status, append(body, '\n'))
	return nil
}

// Unheld returns the error of an answer for which Call.Hold has returned err.
func Unheld(err error) error {
	var r *gate.Refusal
	if errors.As(err, &r) && r.Code == errcode.TooLarge {
		return &gate.Refusal{Code: errcode.OutputTooLarge, Message: "the response needs more of the server's memory than one caller may use", Hint: "request less at once"}
	}
	return err
}

// Encode writes v as JSON. If v is a struct with a list, the list is written element by
// element, so that w can refuse a long one before it is built.
func Encode(w io.Writer, v any) error {
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

// Write sends JSON as the answer.
func Write(w http.ResponseWriter, status int, body []byte) {
	h := w.Header()
	h["Content-Type"] = []string{"application/json"}
	h["Content-Length"] = []string{strconv.Itoa(len(body))}
	h["X-Content-Type-Options"] = []string{"nosniff"}
	w.WriteHeader(status)
	_, _ = w.Write(body) // the client may have left
}

// Describe returns the status of an error, and the error as clients of /v1 read it.
func Describe(c *gate.Call, err error) (status int, e v1.Error) {
	f := c.Describe(err)
	return f.Status, Error(f)
}

// Error returns a failure in the JSON of /v1.
func Error(f gate.Failure) v1.Error {
	return v1.Error{Code: f.Code, Message: f.Message, Hint: f.Hint, Path: f.Path, RequestID: f.RequestID, ExitCode: f.ExitCode, Stage: string(f.Stage), Errno: f.Errno}
}
