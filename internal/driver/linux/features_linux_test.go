package linux

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sandpit-dev/sandpit/internal/feature"
	"github.com/sandpit-dev/sandpit/internal/landlock"
)

// Mounts inside mounts are a feature of exactly the kernels that have Landlock. On others
// both are explained.
func TestNestedMountsNeedLandlock(t *testing.T) {
	caps := New(Options{}).Probe(t.Context())
	_, err := landlock.Probe()
	for _, f := range []feature.Feature{feature.NestedMounts, feature.Landlock} {
		if caps.Features[f] != (err == nil) {
			t.Errorf("%s: %v, and Landlock: %v", f, caps.Features[f], err)
		}
	}
	var gaps []string
	for _, g := range withoutLandlock(errors.New("this kernel has none")) {
		gaps = append(gaps, g.What)
	}
	if diff := cmp.Diff([]string{"nested-mounts", "landlock"}, gaps); diff != "" {
		t.Error(diff)
	}
}
