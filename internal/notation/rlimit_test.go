package notation

import (
	"testing"

	"github.com/sandpit-dev/sandpit"
)

// Limits are read as docker and people write them, with sizes where they are bytes.
func TestParseRlimit(t *testing.T) {
	const unlimited = sandpit.RlimitUnlimited
	for text, want := range map[string]sandpit.Rlimit{
		"cpu=60":               {Resource: "cpu", Soft: 60, Hard: 60},
		"nproc=10:20":          {Resource: "nproc", Soft: 10, Hard: 20},
		"core=0":               {Resource: "core"},
		"stack=8m":             {Resource: "stack", Soft: 8 << 20, Hard: 8 << 20},
		"fsize=1.5K:unlimited": {Resource: "fsize", Soft: 1536, Hard: unlimited},
		"as=-1":                {Resource: "as", Soft: unlimited, Hard: unlimited},
	} {
		if got, err := ParseRlimit(text); err != nil || got != want {
			t.Errorf("%s: got %+v, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "cpu", "cpu=", "cpu=1m", "nproc=1k", "cpu=-2", "stack=8x", "stack=0m", "stack=-8m", "x=1", "cpu=2:1", "fsize=2m:1m", "stack=8388608t", "cpu=9223372036854775808"} {
		if got, err := ParseRlimit(text); err == nil {
			t.Errorf("%q is read as %+v", text, got)
		}
	}
}
