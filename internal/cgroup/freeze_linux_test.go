package cgroup

import (
	"os/exec"
	"testing"

	"github.com/sandpit-dev/sandpit/internal/testkit"
)

// A group that is being frozen counts as frozen: whoever asks waits for the kernel.
func TestFrozen(t *testing.T) {
	l := layout(t)
	g := newGroup(t, l, testLimits)
	if _, err := g.freezeDir(); err != nil {
		testkit.Lacks(t, "cgroups with limits for this user: the freezer is missing")
	}
	for range 8 {
		startIn(t, g, exec.Command("sh", "-c", "echo begun; while :; do sleep 0.01 & wait; done")).line(t)
	}
	for range 20 {
		if err := g.setFrozen(true); err != nil {
			t.Fatal(err)
		}
		if is, err := g.Frozen(); !is || err != nil {
			t.Fatalf("frozen: %v, %v", is, err)
		}
		if err := g.Thaw(); err != nil {
			t.Fatal(err)
		}
		if is, err := g.Frozen(); is || err != nil {
			t.Fatalf("thawed, but frozen: %v, %v", is, err)
		}
	}
}
