package guest_test

import (
	"testing"

	"github.com/sandpit-dev/sandpit/internal/cgroup"
	"github.com/sandpit-dev/sandpit/internal/guest/files"
	"github.com/sandpit-dev/sandpit/internal/guest/workers"
)

// A guest that is as busy as it may be has room for the threads of Go's runtime, of which
// it has about six: it runs Go code on one.
func TestThreadsFitTheAllowance(t *testing.T) {
	const runtime = 12
	if n := workers.MaxThreads + files.MaxThreads + runtime; n > cgroup.Allowance {
		t.Errorf("a guest may have %d threads, and its cgroup allows %d", n, cgroup.Allowance)
	}
}
