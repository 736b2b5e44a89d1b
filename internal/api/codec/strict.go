package codec

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/sandpit-dev/sandpit/internal/gate"
)

// strict refuses JSON that another parser may read differently: a repeated field, of
// which encoding/json takes the last; a name that differs from a field's in its case; an
// unknown field; text that is not Unicode. A proxy or policy in front of the server may
// have read it differently. It names a value of a wrong type by its path.
//
// data is the JSON of an object that has been read into a value of type t.
func strict(data []byte, t reflect.Type) error {
	if !utf8.Valid(data) {
		return gate.Invalid("the body is not UTF-8", "send other bytes in base64, with the field encoding")
	}
	w := strictReader{data: data}
	if m := w.value(t); m != nil {
		return gate.Invalid(fmt.Sprintf("the field %.200q %s", m.field, m.why), m.hint)
	}
	return nil
}

// misfit says what strict refuses, and why.
type misfit struct{ field, why, hint string }

// within returns m for an object or list around it.
func (m *misfit) within(name string) *misfit {
	if m != nil && m.field != "" && m.field[0] != '[' {
		name += "."
	}
	if m != nil {
		m.field = name + m.field
	}
	return m
}

// strictReader walks through JSON that is known to be well-formed.
type strictReader struct {
	data []byte
	at   int
}

// field is a field of a struct.
type field struct {
	name    string // in JSON
	t       reflect.Type
	notNull bool
	kind    string // of its values; empty: that of the type
}

// plain reports whether values of a type, in a list or map, can't be null: it would be read as another value.
func plain(t reflect.Type) bool { return t != nil && t.Kind() != reflect.Pointer && open(t) != nil }

// next returns the next byte that is not white space.
func (w *strictReader) next() byte {
	for w.data[w.at] == ' ' || w.data[w.at] == '\t' || w.data[w.at] == '\r' || w.data[w.at] == '\n' {
		w.at++
	}
	return w.data[w.at]
}

// value goes past a value of type t, or of any type if t is nil.
func (w *strictReader) value(t reflect.Type) *misfit {
	if c := w.next(); !fits(c, open(t)) {
		return &misfit{"", "must be " + jsonKind(t), "see /docs"}
	}
	switch w.data[w.at] {
	case '{':
		return w.object(t)
	case '[':
		return w.list(t)
	case '"':
		if _, ok := w.text(); !ok {
			return &misfit{"", "contains an unpaired surrogate", "send valid UTF-16 escapes"}
		}
		return nil
	}
	for w.at < len(w.data) && strings.IndexByte(",]} \t\r\n", w.data[w.at]) < 0 {
		w.at++
	}
	return nil
}

// fits reports whether a value that begins with c can be of type t. A nil t is of any type, and
// null is of every type.
func fits(c byte, t reflect.Type) bool {
	if t == nil || c == 'n' {
		return true
	}
	list := (t.Kind() == reflect.Slice || t.Kind() == reflect.Array) && t.Elem().Kind() != reflect.Uint8
	switch c {
	case '{':
		return t.Kind() == reflect.Struct || t.Kind() == reflect.Map
	case '[':
		return list
	case '"':
		return t.Kind() == reflect.String || t.Kind() == reflect.Slice && !list
	case 't', 'f':
		return t.Kind() == reflect.Bool
	}
	return t.Kind() >= reflect.Int && t.Kind() <= reflect.Float64
}

func (w *strictReader) list(t reflect.Type) *misfit {
	if t = open(t); t != nil && (t.Kind() == reflect.Slice || t.Kind() == reflect.Array) {
		t = t.Elem()
	}
	w.at++
	for i := 0; w.next() != ']'; i++ {
		if w.data[w.at] == ',' {
			w.at++
		}
		if w.next() == 'n' && plain(t) {
			return &misfit{"[" + strconv.Itoa(i) + "]", "can't be null", "give it a value, or leave it out"}
		}
		if m := w.value(t); m != nil {
			return m.within("[" + strconv.Itoa(i) + "]")
		}
	}
	w.at++
	return nil
}

func (w *strictReader) object(t reflect.Type) *misfit {
	var fields []field
	var each reflect.Type // of the values of a map
	if t = open(t); t != nil {
		switch t.Kind() {
		case reflect.Struct:
			fields = fieldsOf(t)
		case reflect.Map:
			each = t.Elem()
		}
	}
	given := make([]bool, len(fields))
	var names map[string]bool // that are given, where any may be
	if fields == nil {
		names = map[string]bool{}
	}
	w.at++
	for w.next() != '}' {
		if w.data[w.at] == ',' {
			w.at++
			w.next()
		}
		name, ok := w.text()
		twice, in, notNull := names[string(name)], each, false
		kind := ""
		if fields != nil {
			i := slices.IndexFunc(fields, func(f field) bool { return f.name == string(name) })
			if i < 0 {
				return unknownField(string(name), fields)
			}
			twice, given[i], in, notNull, kind = given[i], true, fields[i].t, fields[i].notNull, fields[i].kind
		} else {
			names[string(name)] = true
		}
		switch {
		case !ok:
			return &misfit{string(name), "contains an unpaired surrogate in its name", "send valid UTF-16 escapes"}
		case twice:
			return &misfit{string(name), "is given twice", "give it once"}
		}
		w.next()
		w.at++ // the colon
		if w.next() == 'n' && (notNull || fields == nil && plain(in)) {
			return &misfit{string(name), "can't be null", "give it a value, or leave it out"}
		}
		if kind != "" && !fits(w.next(), in) {
			return &misfit{string(name), "must be " + kind, "see /docs"}
		}
		if m := w.value(in); m != nil {
			return m.within(string(name))
		}
	}
	w.at++
	return nil
}

func unknownField(name string, fields []field) *misfit {
	for _, known := range fields {
		if strings.EqualFold(known.name, name) {
			return &misfit{name, "is unknown", fmt.Sprintf("write it as %q", known.name)}
		}
	}
	if len(fields) == 0 {
		return &misfit{name, "is unknown", "no fields are known here"}
	}
	names := make([]string, len(fields))
	for i, f := range fields {
		names[i] = f.name
	}
	return &misfit{name, "is unknown", "the fields here are " + strings.Join(names, ", ")}
}

// text goes past a string and returns it. ok is false if it has an unpaired surrogate,
// which encoding/json would replace by U+FFFD.
func (w *strictReader) text() (text []byte, ok bool) {
	start := w.at
	w.at++
	end := bytes.IndexByte(w.data[w.at:], '"')
	if raw := w.data[w.at : w.at+end]; bytes.IndexByte(raw, '\\') < 0 {
		w.at += end + 1
		return raw, true
	}
	ok = true
	for ; w.data[w.at] != '"'; w.at++ {
		if w.data[w.at] != '\\' {
			continue
		}
		w.at++
		if w.data[w.at] != 'u' {
			continue
		}
		switch c := w.unit(w.at - 1); {
		case c >= 0xdc00 && c < 0xe000:
			ok = false
		case c >= 0xd800 && c < 0xdc00:
			low := w.unit(w.at + 5)
			if ok = ok && low >= 0xdc00 && low < 0xe000; ok {
				w.at += 6
			}
		}
	}
	w.at++
	var plain string
	_ = json.Unmarshal(w.data[start:w.at], &plain) // it is a string
	return []byte(plain), ok
}

// unit returns the number in a \uXXXX, or 0 when there is none.
func (w *strictReader) unit(at int) uint64 {
	if at+6 > len(w.data) || w.data[at] != '\\' || w.data[at+1] != 'u' {
		return 0
	}
	n, _ := strconv.ParseUint(string(w.data[at+2:at+6]), 16, 32)
	return n
}

// open returns the type behind the pointers of a type, or nil for a type that decodes
// its JSON itself.
func open(t reflect.Type) reflect.Type {
	for t != nil && t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if t == nil || t.Kind() == reflect.Interface || reflect.PointerTo(t).Implements(reflect.TypeFor[json.Unmarshaler]()) {
		return nil
	}
	return t
}

// known has the result of fieldsOf for each type of a body, []field by reflect.Type: to find
// them takes longer than all the rest.
var known sync.Map

// fieldsOf returns the fields of a struct and of those embedded in it; never nil.
func fieldsOf(t reflect.Type) []field {
	if all, ok := known.Load(t); ok {
		return all.([]field)
	}
	all := make([]field, 0, t.NumField())
	for i := range t.NumField() {
		f := t.Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case name == "-" || !f.IsExported():
		case name == "" && f.Anonymous:
			all = append(all, fieldsOf(f.Type)...)
		default:
			kind := ""
			if most := f.Tag.Get("maximum"); most != "" {
				kind = "a number from " + cmp.Or(f.Tag.Get("minimum"), "0") + " to " + most
			}
			all = append(all, field{cmp.Or(name, f.Name), f.Type, f.Tag.Get("null") == "refused", kind})
		}
	}
	known.Store(t, all)
	return all
}
