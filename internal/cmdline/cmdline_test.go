package cmdline_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/sandpit-dev/sandpit/internal/cmdline"
)

// Clip keeps the beginning of a command line, whatever makes it long.
func TestClip(t *testing.T) {
	for name, argv := range map[string][]string{
		"one long argument":    {"echo", strings.Repeat("x", 2<<20)},
		"many short arguments": slices.Repeat([]string{"ab"}, 1<<20),
		"many empty arguments": make([]string, 1<<20),
		"cut in a character":   {"x", strings.Repeat("é", 1<<20)},
	} {
		kept, truncated := cmdline.Clip(argv)
		if size := cmdline.Size(kept); !truncated || len(kept) == 0 || size > 3*cmdline.Max || size < cmdline.Max/2 {
			t.Errorf("%s: %d arguments of %d bytes, %v", name, len(kept), size, truncated)
		}
		for i, arg := range kept {
			if !strings.HasPrefix(argv[i], arg) {
				t.Errorf("%s: argument %d is another one", name, i)
			}
		}
	}
	short := []string{"echo", "", "a b", strings.Repeat("y", 4000)}
	if kept, truncated := cmdline.Clip(short); truncated || !slices.Equal(kept, short) {
		t.Errorf("got %q, %v", kept, truncated)
	}
}
