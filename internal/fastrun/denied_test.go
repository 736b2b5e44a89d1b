package fastrun

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sandpit-dev/sandpit"
)

// What was denied before does not count.
func TestDeniedSince(t *testing.T) {
	d := func(destination string, count int64) sandpit.EgressDenial {
		return sandpit.EgressDenial{Destination: destination, Why: "no rule allows it", Count: count}
	}
	before := []sandpit.EgressDenial{d("", 2), d("gone.test", 1), d("a.test", 3), d("b.test", 1)}
	now := []sandpit.EgressDenial{d("", 5), d("a.test", 3), d("c.test", 1), d("b.test", 4)}
	if diff := cmp.Diff([]sandpit.EgressDenial{d("", 2), d("c.test", 1), d("b.test", 3)}, DeniedSince(before, now)); diff != "" {
		t.Error(diff)
	}
	// Destinations that were dropped and came again.
	before = []sandpit.EgressDenial{d("a.test", 3), d("b.test", 2)}
	now = []sandpit.EgressDenial{d("", 6), d("a.test", 1), d("b.test", 2)}
	if diff := cmp.Diff([]sandpit.EgressDenial{d("", 3), d("a.test", 1)}, DeniedSince(before, now)); diff != "" {
		t.Error(diff)
	}
	if got := DeniedSince(now, now); len(got) > 0 {
		t.Errorf("of nothing: %v", got)
	}
}
