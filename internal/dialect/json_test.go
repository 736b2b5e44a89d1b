package dialect_test

import (
	"encoding/json"
	"testing"

	"github.com/sandpit-dev/sandpit/internal/dialect"
)

// Fields that decoding ignores are counted, at every depth, as encoding/json ignores them.
func TestUnknown(t *testing.T) {
	type inner struct {
		A int `json:"a"`
	}
	var of struct {
		inner
		Plain string
		One   *inner          `json:"one"`
		Many  []inner         `json:"many"`
		Raw   json.RawMessage `json:"raw"`
		Map   map[string]int  `json:"map"`
		Not   int             `json:"-"`
	}
	for text, want := range map[string]int{
		`{}`: 0, `[]`: 0, `null`: 0, `5`: 0, ``: 0,
		`{"a":1,"plain":"","ONE":{"a":1},"many":[{"a":1},null],"raw":{"x":1},"map":{"x":1}}`: 0,
		`{"x":{"y":1},"Not":1}`:                                2,
		`{"one":{"x":1,"y":2},"many":[{"x":1},{"a":1,"z":1}]}`: 4,
		`{"one":5,"many":{"x":1}}`:                             0,
	} {
		if got := dialect.Unknown([]byte(text), &of); got != want {
			t.Errorf("%s has %d unknown fields, want %d", text, got, want)
		}
	}
}
