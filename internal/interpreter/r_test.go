package interpreter

import (
	"context"
	"runtime"
	"strings"
	"testing"

	"github.com/sandpit-dev/sandpit"
)

// shelf is a place with one file, which counts what is charged.
type shelf struct {
	Place   // of which nothing else is used
	content string
	held    int64 // bytes charged at present
	most    int64 // bytes charged at most
}

func (s *shelf) Charge(n int64) error {
	s.held += n
	s.most = max(s.most, s.held)
	return nil
}

func (s *shelf) ReadFile(context.Context, string, int64) ([]byte, error) {
	return []byte(s.content), nil
}

// Outputs of R are passed on one by one. A list of very many small ones takes no more memory than was charged for it.
func TestOutputsInFiles(t *testing.T) {
	const million = 1_000_000
	for name, c := range map[string]struct {
		content   string
		count     int
		truncated bool
	}{
		"two":           {`[{"text":"a"},{"main":true,"extra":{"x/y":"b"}}]`, 2, false},
		"none":          {`[]`, 0, false},
		"very many":     {"[" + strings.Repeat("{},", million) + "{}]", sandpit.MaxCodeOutputs, true},
		"many numbers":  {`[{"json":[` + strings.Repeat("0,", million) + "0]}]", 1, false},
		"as many":       {"[" + strings.Repeat("{},", sandpit.MaxCodeOutputs-1) + "{}]", sandpit.MaxCodeOutputs, false},
		"not a list":    {`{"text":"a"}`, 0, true},
		"a wrong value": {`[{"text":"a"},1,{"text":"b"}]`, 1, true},
		"no end":        {`[{"text":"a"}`, 1, true},
	} {
		place := &shelf{content: c.content}
		count := 0
		r := &run{c: &state{m: New(place)}, code: sandpit.Code{Output: func(sandpit.CodeOutput) { count++ }}}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		if err := r.showFile(t.Context(), "outputs", int64(len(c.content))); err != nil {
			t.Fatal(err)
		}
		runtime.ReadMemStats(&after)
		if count != c.count || r.truncated != c.truncated {
			t.Errorf("%s: %d outputs were passed on, and truncated is %t", name, count, r.truncated)
		}
		if took := int64(after.TotalAlloc - before.TotalAlloc); len(c.content) > million && took > place.most { //nolint:gosec // it counts up
			t.Errorf("%s: reading them allocated %d bytes, and %d were charged", name, took, place.most)
		}
		if place.held != 0 {
			t.Errorf("%s: %d bytes are still charged", name, place.held)
		}
	}
}
