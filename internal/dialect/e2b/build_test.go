package e2b

import (
	"testing"

	"github.com/sandpit-dev/sandpit/internal/engine"
)

// A build that is still being made has no sandbox for its archives, and gets none.
func TestBuildsWithoutAPlace(t *testing.T) {
	all, b := new(builds), &build{namespace: "n", name: "t"}
	if err := all.add(b); err != nil {
		t.Fatal(err)
	}
	if found := all.waiting("n", "t"); found != nil {
		t.Errorf("%+v is found before it has a place", found)
	}
	all.place(b, struct{ engine.Box }{})
	if all.waiting("n", "t") != b || all.waiting("other", "t") != nil {
		t.Error("it is not found in its namespace only")
	}
}
