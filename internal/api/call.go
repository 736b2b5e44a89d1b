package api

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"reflect"
	"strconv"
	"strings"

	"github.com/sandpit-dev/sandpit"
	v1 "github.com/sandpit-dev/sandpit/internal/api/v1"
	"github.com/sandpit-dev/sandpit/internal/gate"
)

// call is one request of /v1 on its way.
type call struct {
	*gate.Call
	api     *API
	route   *Route
	forward target // of the reverse proxy
}

// invalid returns an error about what was asked.
func invalid(message, hint string) error {
	return &gate.Refusal{Status: http.StatusBadRequest, Code: "invalid", Message: message, Hint: hint}
}

// describe returns an error as /v1 tells it.
func (c *call) describe(err error) (status int, e v1.Error) {
	f := c.Describe(err)
	return f.Status, errorOf(f)
}

// sandbox finds the sandbox that the path names. Handlers do that before they touch
// anything.
func (c *call) sandbox() (sandpit.Sandbox, error) {
	sb, err := c.api.opts.Backend.Client(c.Caller).Get(c.Ctx, c.Target)
	if err != nil {
		return nil, c.Untouched(err)
	}
	if c.EntersLater() {
		c.Target = sb.ID() // by whichever name it was asked for: see enterLater
	}
	return sb, nil
}

// answer sends v as JSON.
func (c *call) answer(status int, v any) error {
	var body bytes.Buffer
	// A request whose answer is refused here changes nothing, and can be repeated.
	err := encode(&gate.Holder{Call: c.Call, Kind: gate.InMemory, W: &body, Free: gate.FreeBody, Each: gate.HeldByte}, v)
	if err != nil {
		return err
	}
	body.WriteByte('\n')
	writeJSON(c.W, status, body.Bytes())
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

func writeJSON(w http.ResponseWriter, status int, body []byte) {
	h := w.Header()
	h["Content-Type"] = []string{"application/json"}
	h["Content-Length"] = []string{strconv.Itoa(len(body))}
	h["X-Content-Type-Options"] = []string{"nosniff"}
	w.WriteHeader(status)
	_, _ = w.Write(body) // a client that has gone reads nothing
}

// done answers that there is nothing to say.
func (c *call) done() error {
	c.W.WriteHeader(http.StatusNoContent)
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
			return c.Untouched(err)
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
			return c.Untouched(err)
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

// list is a list that JSON shows as one also when it is empty.
func list[T any](all []T) []T {
	if all == nil {
		return []T{}
	}
	return all
}
