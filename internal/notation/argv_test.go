package notation_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/sandpit-dev/sandpit/internal/notation"
)

// Of a command line the beginning is kept, whatever it is long by.
func TestClipArgv(t *testing.T) {
	for name, argv := range map[string][]string{
		"one long argument":    {"echo", strings.Repeat("x", 2<<20)},
		"many short arguments": slices.Repeat([]string{"ab"}, 1<<20),
		"many empty arguments": make([]string, 1<<20),
		"cut in a character":   {"x", strings.Repeat("é", 1<<20)},
	} {
		kept, truncated := notation.ClipArgv(argv)
		if size := notation.ArgvSize(kept); !truncated || len(kept) == 0 || size > 3*notation.MaxArgv || size < notation.MaxArgv/2 {
			t.Errorf("%s: %d arguments of %d bytes, %v", name, len(kept), size, truncated)
		}
		for i, arg := range kept {
			if !strings.HasPrefix(argv[i], arg) {
				t.Errorf("%s: argument %d is another one", name, i)
			}
		}
	}
	short := []string{"echo", "", "a b", strings.Repeat("y", 4000)}
	if kept, truncated := notation.ClipArgv(short); truncated || !slices.Equal(kept, short) {
		t.Errorf("got %q, %v", kept, truncated)
	}
}
