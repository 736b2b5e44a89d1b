package linux_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit/internal/driver"
	"github.com/sandpit-dev/sandpit/internal/driver/drivertest"
	"github.com/sandpit-dev/sandpit/internal/testkit"
)

// fillDescriptors opens so many files that new ones have high numbers, and
// leaves a hole here and there.
func fillDescriptors(t *testing.T) {
	t.Helper()
	var fds []int
	for range 400 {
		fd, err := unix.Open("/dev/null", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		fds = append(fds, fd)
	}
	for i := 100; i < 103; i++ {
		unix.Close(fds[i])
	}
	fds = slices.Delete(fds, 100, 103)
	t.Cleanup(func() {
		for _, fd := range fds {
			unix.Close(fd)
		}
	})
}

// guestDescriptors lists what the guest of a sandbox has open.
func guestDescriptors(t *testing.T, inst driver.Instance) []string {
	t.Helper()
	dir := "/proc/" + strconv.Itoa(stateOf(t, inst.Handle()).PID) + "/fd"
	names, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, name := range names {
		// Of a socket or a pipe the kind is enough: its number is its own.
		to, err := os.Readlink(filepath.Join(dir, name.Name()))
		if kind, _, ok := cutKind(to); err == nil && ok {
			to = kind
		}
		found = append(found, name.Name()+" "+to)
	}
	slices.Sort(found)
	return found
}

func cutKind(link string) (kind, number string, ok bool) {
	for _, kind := range []string{"socket", "pipe"} {
		if len(link) > len(kind) && link[:len(kind)+1] == kind+":" {
			return kind, link[len(kind)+1:], true
		}
	}
	return "", "", false
}

// A program with many descriptors makes the sandboxes that one with few makes,
// and nothing of its own gets into them or is left behind.
func TestManyDescriptors(t *testing.T) {
	testkit.NeedWorkingHost(t)
	t.Cleanup(unchanged(t))
	keep := t.TempDir()
	d := persistentDriver(t, keep)
	first, err := d.Create(t.Context(), persistentPlan(t, d))
	if err != nil {
		t.Fatal(err)
	}
	c := greet(t, first, persistentConfig())
	want := guestDescriptors(t, first)
	c.Close()
	fillDescriptors(t)
	plans := make([]driver.Plan, 8)
	for i := range plans {
		plans[i] = persistentPlan(t, d)
	}
	before := descriptors(t)
	var at sync.WaitGroup
	for _, plan := range plans {
		at.Go(func() {
			inst, err := d.Create(t.Context(), plan)
			if err != nil {
				t.Error(err)
				return
			}
			defer greet(t, inst, persistentConfig()).Close()
			if diff := cmp.Diff(want, guestDescriptors(t, inst)); diff != "" {
				t.Errorf("the guest's descriptors (-with few, +with many):\n%s", diff)
			}
			if err := inst.Destroy(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	at.Wait()
	eventually(t, "the descriptors of this program are what they were", func() bool {
		return cmp.Equal(before, descriptors(t))
	})
	if err := first.Destroy(t.Context()); err != nil {
		t.Error(err)
	}

	fault := errors.New("injected")
	for _, step := range createSteps {
		d := failingAt(step, fault)
		if _, err := d.Create(t.Context(), drivertest.Plan(d, hostRoot(t))); !errors.Is(err, fault) {
			t.Errorf("at %s the error is %v", step, err)
		}
	}
}
