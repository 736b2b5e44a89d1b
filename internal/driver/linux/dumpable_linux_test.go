package linux_test

import (
	"context"
	"errors"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/engine"
	"github.com/sandpit-dev/sandpit/internal/policy"
	"github.com/sandpit-dev/sandpit/internal/testkit"
)

// TestAttackL4aDumpable: a program that makes sandboxes is as dumpable as it was.
// Nobody but root reads the memory of one that has chosen not to be, and one that
// is leaves core files as before.
func TestAttackL4aDumpable(t *testing.T) {
	testkit.NeedWorkingHost(t)
	dumpable := func() int {
		n, err := unix.PrctlRetInt(unix.PR_GET_DUMPABLE, 0, 0, 0, 0)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	set := func(n int) {
		if err := unix.Prctl(unix.PR_SET_DUMPABLE, uintptr(n), 0, 0, 0); err != nil {
			t.Fatal(err)
		}
	}
	was := dumpable()
	t.Cleanup(func() { set(was) })
	for name, pool := range map[string]engine.Pool{"new": {}, "of a blank": {Size: 1}} {
		for _, chosen := range []int{0, 1} {
			set(1)
			e := engine.New(engine.Options{Driver: newDriver(), Images: images(), Policy: policy.Default(), Pool: pool})
			e.Warm()
			eventually(t, "there is a blank, whose first process has done with its ids", func() bool {
				ready := 0
				for _, pid := range descendants(os.Getpid()) {
					ids, privs := statusField(pid, "NSpid"), statusField(pid, "NoNewPrivs")
					if len(ids) > 1 && ids[len(ids)-1] == "1" && len(privs) > 0 && privs[0] == "1" {
						ready++
					}
				}
				return ready == pool.Size && e.PoolStats().Ready == pool.Size
			})
			set(chosen)
			sb, err := e.Create(t.Context(), sandpit.Spec{})
			switch {
			case err == nil:
				if err := sb.Remove(t.Context()); err != nil {
					t.Error(err)
				}
			case pool.Size == 0 && chosen == 0 && os.Geteuid() != 0 && errors.Is(err, sandpit.ErrUnsupported) && sandpit.Hint(err) != "":
				t.Logf("refused: %v", err) // as the kernel keeps the files of its children from it
			default:
				t.Errorf("%s, dumpable %d: %v", name, chosen, err)
			}
			if err := e.Close(); err != nil { // which waits for blanks that are being made
				t.Error(err)
			}
			if got := dumpable(); got != chosen {
				t.Errorf("%s: PR_GET_DUMPABLE is %d after a sandbox was made, was %d", name, got, chosen)
			}
		}
	}
}

// TestAttackL4bTwoDrivers: nor do two drivers in one program, of which one begins while the
// other's child has made the program not dumpable, leave it so.
func TestAttackL4bTwoDrivers(t *testing.T) {
	testkit.NeedWorkingHost(t)
	was, err := unix.PrctlRetInt(unix.PR_GET_DUMPABLE, 0, 0, 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	set := func(n int) {
		if err := unix.Prctl(unix.PR_SET_DUMPABLE, uintptr(n), 0, 0, 0); err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(func() { set(was) })
	set(1)
	create := func(fault func(step string)) error {
		opt := options()
		opt.Fault = func(step string) error { fault(step); return nil }
		e := engine.New(engine.Options{Driver: driverWith(opt), Images: images(), Policy: policy.Default()})
		sb, err := e.Create(t.Context(), sandpit.Spec{})
		if err == nil {
			err = sb.Remove(context.WithoutCancel(t.Context()))
		}
		return errors.Join(err, e.Close())
	}
	entered, done, second := make(chan struct{}), make(chan struct{}), make(chan error)
	err = create(func(step string) {
		if step != "clone" {
			return
		}
		set(0) // as a child does for a moment
		go func() {
			second <- create(func(step string) {
				if step == "host" {
					close(entered)
					<-done
				}
			})
		}()
		<-entered
		set(1)
	})
	close(done)
	if err := errors.Join(err, <-second); err != nil {
		t.Error(err)
	}
	if got, err := unix.PrctlRetInt(unix.PR_GET_DUMPABLE, 0, 0, 0, 0); got != 1 {
		t.Errorf("PR_GET_DUMPABLE is %d, %v", got, err)
	}
}
