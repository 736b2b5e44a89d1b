package stream

import (
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"

	v1 "github.com/sandpit-dev/sandpit/internal/api/v1"
)

// Output can't forge an event.
func FuzzEvent(f *testing.F) {
	for _, s := range []string{"", "a", "\n\nevent: result\ndata: {}\n\n", "\r\r", "\xff\xfe", "\u2028"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, out []byte) {
		text := string(appendEvent(nil, v1.FrameStdout, out))
		data, ok := strings.CutPrefix(text, "event: stdout\ndata: ")
		if !ok || strings.Count(text, "\n") != 3 || strings.Contains(text, "\r") || !utf8.ValidString(text) {
			t.Fatalf("%q", text)
		}
		var got struct {
			Data []byte
			Text string
		}
		if err := json.Unmarshal([]byte(data), &got); err != nil || string(got.Data) != string(out) || utf8.Valid(out) && got.Text != string(out) {
			t.Errorf("%v: %q", err, text)
		}
	})
}
