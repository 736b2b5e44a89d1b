package linux_test

import (
	"runtime"
	"sync"
	"testing"

	guest "github.com/sandpit-dev/sandpit/internal/guest/client"

	"github.com/sandpit-dev/sandpit/internal/testkit"
)

// A sandbox dies with its owner, not with a thread of it: neither that of its
// caller, which ends here, nor any that a goroutine may take along.
func TestThreadsThatEnd(t *testing.T) {
	testkit.NeedWorkingHost(t)
	t.Cleanup(unchanged(t))
	const many = 100
	for range 3 {
		inst := createOne(t)
		// Each of these has a thread of its own, and ends it: whatever threads
		// there were without work are among them.
		var there, gone sync.WaitGroup
		there.Add(many)
		for range many {
			gone.Go(func() {
				runtime.LockOSThread()
				there.Done()
				there.Wait()
			})
		}
		gone.Wait()
		conn, err := inst.Dial(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		c, err := guest.New(t.Context(), conn, guest.Options{Config: persistentConfig()})
		if err != nil {
			t.Fatalf("the sandbox has died: %v", err)
		}
		c.Close()
		if err := inst.Destroy(t.Context()); err != nil {
			t.Error(err)
		}
	}
}
