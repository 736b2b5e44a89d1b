package notation

import (
	"strings"
	"testing"
)

func TestIsName(t *testing.T) {
	for _, good := range []string{"a", "0", "Work-1_b.c", strings.Repeat("a", 63)} {
		if !IsName(good) {
			t.Errorf("%q is no name", good)
		}
	}
	for _, bad := range []string{"", ".", "..", "-a", "_a", "a/b", "a b", "a\n", "ä", "a\x00", strings.Repeat("a", 64)} {
		if IsName(bad) {
			t.Errorf("%q is a name", bad)
		}
	}
}
