package linux_test

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/driver"
	"github.com/sandpit-dev/sandpit/internal/driver/drivertest"
	"github.com/sandpit-dev/sandpit/internal/driver/linux"
	guest "github.com/sandpit-dev/sandpit/internal/guest/client"
	"github.com/sandpit-dev/sandpit/internal/testkit"
)

// persistentPlan is a plan of a sandbox that outlives its maker.
func persistentPlan(t *testing.T, d *recorder) driver.Plan {
	t.Helper()
	plan := drivertest.Plan(d, hostRoot(t))
	plan.Ephemeral = false
	return plan
}

func persistentDriver(t *testing.T, keep string) *recorder {
	t.Helper()
	testkit.NeedWorkingHost(t)
	opt := options()
	opt.KeepDir = keep
	return driverWith(opt)
}

// greet makes a client of an instance.
func greet(t *testing.T, i driver.Instance, conf *guest.Config) *guest.Client {
	t.Helper()
	conn, err := i.Dial(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	c, err := guest.New(t.Context(), conn, guest.Options{Config: conf})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func persistentConfig() *guest.Config {
	return &guest.Config{User: "1000", Output: 1 << 20, NoFile: 1024}
}

// L18: other files in KeepDir are not sandboxes, and a sandbox that was left, taken over by
// its ID alone and destroyed leaves nothing: no file there, and no descriptor here.
func TestKeepDirIsLeftEmpty(t *testing.T) {
	keep := t.TempDir()
	d := persistentDriver(t, keep)
	before := pidfds(t)
	first := left(t, d, persistentPlan(t, d))
	handle := first.Handle()
	others := []string{"dead.sock", "dead.json", "other"}
	for _, name := range others {
		if err := os.WriteFile(filepath.Join(keep, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if ids, err := d.Persistent(t.Context()); err != nil || !slices.Equal(ids, []string{handle.ID}) {
		t.Errorf("it finds %v, %v", ids, err)
	}
	for _, name := range others {
		if err := os.Remove(filepath.Join(keep, name)); err != nil {
			t.Fatal(err)
		}
	}
	handle.State = nil // as if its maker had been killed before it wrote that down
	second, err := persistentDriver(t, keep).Recover(t.Context(), handle)
	if err != nil {
		t.Fatal(err)
	}
	if err := second.Destroy(t.Context()); err != nil {
		t.Fatal(err)
	}
	select {
	case <-first.Done(): // reaps it
	case <-t.Context().Done():
	}
	eventually(t, "no more pidfds are open than were", func() bool { return pidfds(t) <= before })
	if files, _ := os.ReadDir(keep); len(files) > 0 {
		t.Errorf("left: %v", files)
	}
}

// L18: the driver of a copy of the directory, or of a handle, neither counts nor takes over
// what lives in the original, wherever that is; with the directory moved it stays whole.
func TestCopiesOwnNothing(t *testing.T) {
	home := t.TempDir()
	at := func(name string) string { return filepath.Join(home, name) }
	d := persistentDriver(t, at("original"))
	first, err := d.Create(t.Context(), persistentPlan(t, d))
	if err != nil {
		t.Fatal(err)
	}
	removePersistent(t, d, first)
	greet(t, first, persistentConfig()).Close()
	handle := first.Handle()
	bare := handle
	bare.State = nil
	first.(driver.Leaver).Leave()
	for name, how := range map[string]string{"copy": "-a", "linked": "-al"} {
		if out, err := exec.Command("cp", how, at("original"), at(name)).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		other := persistentDriver(t, at(name))
		if ids, err := other.Persistent(t.Context()); err != nil || len(ids) != 0 {
			t.Errorf("%s: it has %v, %v", name, ids, err)
		}
		for _, h := range []driver.Handle{handle, bare} {
			i, err := other.Recover(t.Context(), h)
			if err == nil {
				i.(driver.Leaver).Leave()
			}
			if !errors.Is(err, sandpit.ErrState) || !strings.Contains(err.Error(), "belongs to "+at("original")) || !strings.Contains(sandpit.Hint(err), "copy") {
				t.Errorf("%s: taking it over: %v (%s)", name, err, sandpit.Hint(err))
			}
		}
	}

	if err := os.Rename(at("original"), at("moved")); err != nil {
		t.Fatal(err)
	}
	var initial struct{ PID int }
	if err := json.Unmarshal(handle.State, &initial); err != nil || initial.PID <= 1 {
		t.Fatalf("the handle is %s: %v", handle.State, err)
	}
	// The copies don't know where the original is now, and own no more than before; not
	// even one in its place.
	for name, how := range map[string]string{"copy": "", "linked": "", "original": "-a"} {
		if how != "" {
			if out, err := exec.Command("cp", how, at("copy"), at(name)).CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
		}
		other := persistentDriver(t, at(name))
		for _, h := range []driver.Handle{handle, bare} {
			i, err := other.Recover(t.Context(), h)
			if err == nil {
				i.(driver.Leaver).Leave()
			}
			if process := strconv.Itoa(initial.PID); !errors.Is(err, sandpit.ErrState) || !strings.Contains(err.Error(), "is running as process "+process) || !strings.Contains(sandpit.Hint(err), "kill -9 "+process) {
				t.Errorf("%s of what was renamed: taking it over: %v (%s)", name, err, sandpit.Hint(err))
			}
		}
	}
	if err := os.RemoveAll(at("original")); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(at("original"), 0o700); err != nil { // of another server
		t.Fatal(err)
	}
	moved := persistentDriver(t, at("moved"))
	if ids, err := moved.Persistent(t.Context()); err != nil || !slices.Equal(ids, []string{handle.ID}) {
		t.Errorf("when it was moved it has %v, %v", ids, err)
	}
	if _, err := persistentDriver(t, at("copy")).Recover(t.Context(), handle); !errors.Is(err, sandpit.ErrState) {
		t.Errorf("a copy of what was moved: %v", err)
	}
	second, err := moved.Recover(t.Context(), handle)
	if err != nil {
		t.Fatal(err)
	}
	if list, err := greet(t, second, nil).Processes(t.Context()); err != nil || len(list) != 0 {
		t.Errorf("processes: %v, %v", list, err)
	}
	if err := second.Destroy(t.Context()); err != nil {
		t.Fatal(err)
	}
	if left, _ := os.ReadDir(at("moved")); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
	if _, err := persistentDriver(t, at("copy")).Recover(t.Context(), handle); !errors.Is(err, sandpit.ErrNotFound) {
		t.Errorf("a copy of what is gone: %v", err)
	}
	if left, _ := os.ReadDir(at("copy")); len(left) > 0 {
		t.Errorf("left of the copy: %v", left)
	}
}

// removePersistent removes a sandbox that outlives its maker, also when the test fails.
func removePersistent(t *testing.T, d *recorder, i driver.Instance) {
	t.Helper()
	handle := i.Handle()
	t.Cleanup(func() {
		i.(driver.Leaver).Leave()
		if again, err := d.Recover(context.Background(), handle); err == nil {
			_ = again.Destroy(context.Background())
		}
	})
}

// left makes a sandbox and gives it up.
func left(t *testing.T, d *recorder, plan driver.Plan) driver.Instance {
	t.Helper()
	i, err := d.Create(t.Context(), plan)
	if err != nil {
		t.Fatal(err)
	}
	removePersistent(t, d, i)
	i.(driver.Leaver).Leave()
	return i
}

// TestRecoverForWantOfDescriptors fails at each point at which a descriptor is
// wanted: what can't be taken over now is left as it is.
func TestRecoverForWantOfDescriptors(t *testing.T) {
	d := persistentDriver(t, t.TempDir())
	first := left(t, d, persistentPlan(t, d))

	var was unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
		t.Fatal(err)
	}
	defer unix.Setrlimit(unix.RLIMIT_NOFILE, &was)
	handle := first.Handle()
	for n := uint64(3); ; n++ {
		handle.State = nil // so that the note is read, too
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: n, Max: was.Max}); err != nil {
			t.Fatal(err)
		}
		second, err := d.Recover(t.Context(), handle)
		if err == nil {
			if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
				t.Fatal(err)
			}
			removePersistent(t, d, second)
			greet(t, second, persistentConfig())
			if err := second.Destroy(t.Context()); err != nil {
				t.Error(err)
			}
			return
		}
		if !errors.Is(err, unix.EMFILE) {
			t.Fatalf("with %d descriptors: %v", n, err)
		}
	}
}

// pidfds counts the pidfds that this process has open.
func pidfds(t *testing.T) int {
	t.Helper()
	n := 0
	for _, d := range descriptors(t) {
		if d == "anon_inode:[pidfd]" || strings.HasPrefix(d, "pidfd:") { // since Linux 6.9
			n++
		}
	}
	return n
}

// TestHandles refuses states of which no sandbox of this driver could be.
func TestHandles(t *testing.T) {
	d := persistentDriver(t, t.TempDir())
	for state, want := range map[string]error{
		`{"pid":1,"boot":"b","socket":"/x/a.sock"}`:                           sandpit.ErrInvalid,
		`{"pid":2,"boot":"b","socket":"/etc/passwd"}`:                         sandpit.ErrInvalid,
		`{"pid":2,"start":1,"boot":"another","socket":"/nonexistent/a.sock"}`: driver.ErrRestarted,
	} {
		h := driver.Handle{Version: driver.HandleVersion, Driver: linux.Name, ID: "a", State: json.RawMessage(state)}
		if _, err := d.Recover(t.Context(), h); !errors.Is(err, want) {
			t.Errorf("%s: got %v, want %v", state, err, want)
		}
	}
}
