package codec

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	v1 "github.com/sandpit-dev/sandpit/internal/api/v1"
)

// little takes some bytes and no more.
type little struct{ left, asked int }

func (l *little) Write(b []byte) (int, error) {
	l.asked += len(b)
	if len(b) > l.left {
		return 0, errors.New("full")
	}
	l.left -= len(b)
	return len(b), nil
}

// What is written element by element is what is written at once, and a list that
// is too long is not built to its end. (The catalogue's L11e.)
func TestEncode(t *testing.T) {
	long := strings.Repeat(`"processes":[]\`, 1000)
	ps := []v1.Process{{ID: "p1", Argv: []string{long, "<&"}, StartedAt: time.Unix(1, 2)}, {ID: long, Argv: []string{}}}
	for _, v := range []any{
		v1.ProcessList{Processes: ps, Next: long},
		v1.ProcessList{Processes: []v1.Process{}},
		&v1.ProcessList{Processes: ps},
		v1.SandboxList{Sandboxes: []v1.Sandbox{{Labels: map[string]string{"sandboxes": `":[]`}}}, Next: `"sandboxes":[]`},
		v1.GrepResult{Truncated: true},
		v1.NamedPolicy{Name: "x", Policy: json.RawMessage(`{}`)},
		ps[0],
		map[string]int{"a": 1},
		v1.MetricsHistory{Samples: make([]v1.Metrics, 3)},
		v1.AuditList{Next: "3"},
		v1.Capabilities{},
	} {
		want, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		want = bytes.ReplaceAll(want, []byte(":null"), []byte(":[]"))
		var got bytes.Buffer
		if err := Encode(&got, v); err != nil || !bytes.Equal(bytes.ReplaceAll(got.Bytes(), []byte(":null"), []byte(":[]")), want) {
			t.Errorf("%T is %.200s (%v), not %.200s", v, got.Bytes(), err, want)
		}
	}
	w := &little{left: 100 << 10}
	if err := Encode(w, v1.ProcessList{Processes: make([]v1.Process, 100_000)}); err == nil || w.asked > 101<<10 {
		t.Errorf("it was asked to take %d bytes: %v", w.asked, err)
	}
}
