package engine

import (
	"testing"
	"time"
)

// A sandbox is throttled in a time in which it used its share of the CPUs; in the first there is nothing to compare.
func TestThrottling(t *testing.T) {
	var usage throttling
	now := time.Now()
	for i, step := range []struct {
		used time.Duration
		cpus float64
		want bool
	}{{0, 0.1, false}, {100 * time.Millisecond, 0.1, true}, {51 * time.Millisecond, 0.1, true}, {40 * time.Millisecond, 0.1, false}, {time.Second, 0, false}, {time.Second, 1, true}} {
		now = now.Add(time.Second)
		if got := usage.since(now, usage.used+step.used, step.cpus); got != step.want {
			t.Errorf("step %d: got %t", i, got)
		}
	}
}
