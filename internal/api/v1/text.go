package v1

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/fault"
)

// Base64 is the value of the field "encoding". Programs, paths and output are bytes, which JSON
// strings can't hold. An object with such strings has the field: if it is absent, they are UTF-8
// text; if it is "base64", all those that its documentation lists are in base64 (RFC 4648,
// section 4).
const Base64 = "base64"

// encodingFor returns the encoding of an object with these strings.
func encodingFor(lists ...[]string) string {
	for _, all := range lists {
		if slices.ContainsFunc(all, func(s string) bool { return !utf8.ValidString(s) }) {
			return Base64
		}
	}
	return ""
}

// encode returns bytes as a string of an object with the encoding.
func encode(encoding, s string) string {
	if encoding == Base64 {
		return base64.StdEncoding.EncodeToString([]byte(s))
	}
	return s
}

// encodeAll is encode for a list. It keeps nil.
func encodeAll(encoding string, all []string) []string {
	if encoding != Base64 || all == nil {
		return all
	}
	out := make([]string, len(all))
	for i, s := range all {
		out[i] = encode(encoding, s)
	}
	return out
}

// decoder decodes the strings of an object. It keeps the first error.
type decoder struct {
	encoding string
	err      error
}

func newDecoder(encoding string) *decoder {
	d := &decoder{encoding: encoding}
	if encoding != "" && encoding != Base64 {
		d.fail("encoding", "must be base64, or absent for text")
	}
	return d
}

func (d *decoder) fail(field, why string) {
	if d.err == nil {
		d.err = sandpit.WithHint(fault.Errorf(sandpit.ErrInvalid, "the field %.200q %s", field, why), "see /docs")
	}
}

// text decodes the string of a field.
func (d *decoder) text(field, s string) string {
	if d.encoding != Base64 {
		return s
	}
	b, err := base64.StdEncoding.DecodeString(s)
	if err != nil {
		d.fail(field, "is not valid base64, which encoding asks for")
	}
	return string(b)
}

// list decodes the strings of a list. It keeps nil, and the memory of text.
func (d *decoder) list(field string, all []string) []string {
	if d.encoding != Base64 || all == nil {
		return all
	}
	out := make([]string, len(all))
	for i, s := range all {
		out[i] = d.text(field+"["+strconv.Itoa(i)+"]", s)
	}
	return out
}

// Env is variables: a list of "NAME=VALUE", in which a later one replaces an earlier one, or an
// object of names and values. At most one of the fields is set.
type Env struct {
	List []string
	Vars map[string]string
}

// IsZero reports whether there are no variables.
func (e Env) IsZero() bool { return len(e.List) == 0 && len(e.Vars) == 0 }

// MarshalJSON returns the list or the object.
func (e Env) MarshalJSON() ([]byte, error) {
	if e.Vars != nil {
		return json.Marshal(e.Vars)
	}
	return json.Marshal(e.List)
}

// UnmarshalJSON reads either form.
func (e *Env) UnmarshalJSON(data []byte) error {
	*e = Env{}
	if json.Unmarshal(data, &e.List) == nil || json.Unmarshal(data, &e.Vars) == nil {
		return nil
	}
	return errors.New(`"env" must be a list of strings "NAME=VALUE", or an object whose values are strings`)
}

// env decodes variables. Names of an object are text in each encoding.
func (d *decoder) env(e Env) []string {
	if len(e.Vars) == 0 {
		return d.list("env", e.List)
	}
	all := make([]string, 0, len(e.Vars))
	for _, name := range slices.Sorted(maps.Keys(e.Vars)) {
		if name == "" || strings.ContainsAny(name, "=\x00") {
			d.fail("env", "has the name "+strconv.Quote(name)+"; a name must not be empty, nor contain \"=\" or NUL")
		}
		all = append(all, name+"="+d.text("env."+name, e.Vars[name]))
	}
	return all
}
