package dialect

import (
	"cmp"
	"encoding/json"
	"reflect"
	"strings"
)

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
