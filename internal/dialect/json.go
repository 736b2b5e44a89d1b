package dialect

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"reflect"
	"strings"

	"github.com/sandpit-dev/sandpit/internal/api/codec"
	"github.com/sandpit-dev/sandpit/internal/errcode"
	"github.com/sandpit-dev/sandpit/internal/gate"
)

// Unsupported returns the refusal of something that Sandpit does not have. what has a verb: "volumes are".
func Unsupported(what string) error {
	return &gate.Refusal{Code: errcode.Unsupported, Message: what + " not supported by this server"}
}

// ReadJSON reads the JSON body of a request, of at most limit bytes, as Parse does.
func ReadJSON(c *gate.Call, v any, limit int64) error {
	var buf bytes.Buffer
	if err := c.ReadAll(&buf, c.Body(limit, codec.BodyTime)); err != nil {
		return err
	}
	return Parse(c, buf.Bytes(), v)
}

// Parse decodes JSON into v, and charges its memory to the call. Empty data count as an empty object. Fields that v does not have
// are ignored, and reported by gate.Call.Ignore unless data is larger than gate.FreeBody: it then is input of a process or a file.
func Parse(c *gate.Call, data []byte, v any) error {
	if len(bytes.TrimSpace(data)) == 0 {
		return nil
	}
	if err := codec.HoldObject(c, data); err != nil {
		return err
	}
	if err := json.Unmarshal(data, v); err != nil {
		var r *gate.Refusal
		if errors.As(err, &r) {
			return r
		}
		return gate.Invalid("the body is not valid: "+codec.Readable(err), "")
	}
	if len(data) <= gate.FreeBody {
		c.Ignore(Unknown(data, v))
	}
	return nil
}

// Given reports whether a field is in JSON, with another value than null.
func Given(raw json.RawMessage) bool { return len(raw) > 0 && string(raw) != "null" }

// Exactly decodes JSON into v, and refuses fields that v does not have. what names the JSON in errors.
func Exactly(what string, data []byte, v any) error {
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		return gate.Invalid(what+": "+codec.Readable(err), "")
	}
	return nil
}

// Unknown returns the number of fields in a JSON value, and in the objects in it, that a variable of v's type
// ignores when the value is decoded into it. Types that decode their JSON themselves ignore none. Count them
// with gate.Call.Ignore: they tell the operator that clients ask for more than they get.
func Unknown(data []byte, v any) int { return (known{}).unknown(data, reflect.TypeOf(v)) }

// known are the fields of structs by their names in JSON, in lower case.
type known map[reflect.Type]map[string]reflect.Type

func (k known) unknown(data []byte, t reflect.Type) (n int) {
	for t.Kind() == reflect.Pointer && !decodes(t) {
		t = t.Elem()
	}
	if decodes(t) {
		return 0
	}
	switch t.Kind() {
	case reflect.Slice:
		if t.Elem().Kind() != reflect.Struct {
			return 0
		}
		var all []json.RawMessage
		_ = json.Unmarshal(data, &all) // what is not a list has no fields
		for _, one := range all {
			n += k.unknown(one, t.Elem())
		}
	case reflect.Struct:
		var fields map[string]json.RawMessage
		_ = json.Unmarshal(data, &fields)
		names := k.fields(t)
		for name, value := range fields {
			if f, ok := names[strings.ToLower(name)]; ok {
				n += k.unknown(value, f)
			} else {
				n++
			}
		}
	}
	return n
}

// decodes reports whether values of a type decode their JSON themselves.
func decodes(t reflect.Type) bool {
	is := reflect.TypeFor[json.Unmarshaler]()
	return t.Implements(is) || reflect.PointerTo(t).Implements(is)
}

// fields returns the fields of a struct that encoding/json knows. They are found once for all objects in a value.
func (k known) fields(t reflect.Type) map[string]reflect.Type {
	if names, ok := k[t]; ok {
		return names
	}
	names := map[string]reflect.Type{}
	for _, f := range reflect.VisibleFields(t) {
		tag, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if f.IsExported() && tag != "-" {
			names[strings.ToLower(cmp.Or(tag, f.Name))] = f.Type
		}
	}
	k[t] = names
	return names
}
