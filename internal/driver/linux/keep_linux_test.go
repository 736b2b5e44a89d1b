package linux_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/driver"
	"github.com/sandpit-dev/sandpit/internal/driver/drivertest"
	"github.com/sandpit-dev/sandpit/internal/driver/linux"
	"github.com/sandpit-dev/sandpit/internal/feature"
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
	return &guest.Config{User: "1000", Output: 1 << 20, NoFile: 1024, Life: time.Hour}
}

// TestLeaveAndRecover gives a sandbox up and takes it over, with its processes.
func TestLeaveAndRecover(t *testing.T) {
	keep := filepath.Join(t.TempDir(), "a directory with a name that is long enough for no socket's address to hold the whole of its path to be found", "kept")
	d := persistentDriver(t, keep)
	before := pidfds(t)
	first, err := d.Create(t.Context(), persistentPlan(t, d))
	if err != nil {
		t.Fatal(err)
	}
	handle := first.Handle()
	removePersistent(t, d, first)
	c := greet(t, first, persistentConfig())
	p, err := c.StartDetached(t.Context(), sandpit.Command{Script: "echo before; sleep 1000"}, guest.Detach{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.Recover(t.Context(), handle); !errors.Is(err, sandpit.ErrExists) && d.Probe(t.Context()).Features[feature.Memory] {
		t.Errorf("taking over what has an owner: %v", err)
	}
	c.Close()
	first.(driver.Leaver).Leave()
	kept := func(want ...string) {
		t.Helper()
		if ids, err := d.Persistent(t.Context()); err != nil || !slices.Equal(ids, want) {
			t.Errorf("of %v that run it finds %v, %v", want, ids, err)
		}
	}
	kept(handle.ID)
	for _, name := range []string{"dead.sock", "dead.json", "other"} {
		if err := os.WriteFile(filepath.Join(keep, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	kept(handle.ID)
	for _, name := range []string{"dead.sock", "dead.json", "other"} {
		if err := os.Remove(filepath.Join(keep, name)); err != nil {
			t.Fatal(err)
		}
	}

	data, err := json.Marshal(handle)
	if err != nil {
		t.Fatal(err)
	}
	var read driver.Handle
	if err := json.Unmarshal(data, &read); err != nil {
		t.Fatal(err)
	}
	read.State = nil // as if its maker had been killed before it wrote that down
	second, err := driverWith(linux.Options{Dir: options().Dir, Guest: options().Guest, KeepDir: keep}).Recover(t.Context(), read)
	if err != nil {
		t.Fatal(err)
	}
	removePersistent(t, d, second)
	if got := second.Handle(); !bytes.Equal(got.State, handle.State) {
		t.Errorf("the handle is now %s, was %s", got.State, handle.State)
	}
	c = greet(t, second, nil)
	list, err := c.Processes(t.Context())
	if err != nil || len(list) != 1 || list[0].Ref != p.Ref() {
		t.Errorf("processes: %v, %v", list, err)
	}
	m, err := second.Stats(t.Context())
	if err != nil || d.Probe(t.Context()).Features[feature.Pids] && m.Pids < 2 {
		t.Errorf("stats: %+v, %v", m, err)
	}
	if f := second.(driver.Freezer); f.Freeze(t.Context()) == nil {
		if is, err := f.Frozen(t.Context()); err != nil || !is {
			t.Errorf("frozen: %v, %v", is, err)
		}
		if err := f.Thaw(t.Context()); err != nil {
			t.Error(err)
		}
	}
	if err := second.Destroy(t.Context()); err != nil {
		t.Fatal(err)
	}
	select {
	case <-first.Done(): // reaps it
	case <-t.Context().Done():
	}
	eventually(t, "no more pidfds are open than were", func() bool { return pidfds(t) <= before })
	if _, err := d.Recover(t.Context(), handle); !errors.Is(err, sandpit.ErrNotFound) {
		t.Errorf("taking over what is gone: %v", err)
	}
	kept()
	if left, _ := os.ReadDir(keep); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// L18: whoever has a copy of the directory, or of a handle, neither counts nor takes
// over what lives in the original; with the directory moved it stays whole.
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

// L18: a sandbox whose data directory was moved to another disk, where its socket is
// another one, can't be reached any more. It is named, and can be destroyed.
func TestStranded(t *testing.T) {
	home := t.TempDir()
	original, moved := filepath.Join(home, "original"), filepath.Join(home, "moved")
	d := persistentDriver(t, original)
	first, err := d.Create(t.Context(), persistentPlan(t, d))
	if err != nil {
		t.Fatal(err)
	}
	removePersistent(t, d, first)
	greet(t, first, persistentConfig()).Close()
	handle := first.Handle()
	first.(driver.Leaver).Leave()
	if out, err := exec.Command("cp", "-a", original, moved).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	other := persistentDriver(t, moved)
	stranded := func(want ...string) {
		t.Helper()
		for what, f := range map[string]func(context.Context) ([]string, error){"that run": other.Persistent, "that are stranded": other.Stranded} {
			if ids, err := f(t.Context()); err != nil || !slices.Equal(ids, want) {
				t.Errorf("of %v %s it finds %v, %v", want, what, ids, err)
			}
		}
	}
	stranded() // a copy
	if err := os.RemoveAll(original); err != nil {
		t.Fatal(err)
	}
	stranded(handle.ID)
	i, err := other.Recover(t.Context(), handle)
	if err == nil {
		i.(driver.Leaver).Leave()
	}
	var st struct {
		PID int `json:"pid"`
	}
	if err := json.Unmarshal(handle.State, &st); err != nil {
		t.Fatal(err)
	}
	if !errors.Is(err, driver.ErrStranded) || !strings.Contains(err.Error(), fmt.Sprintf("process %d", st.PID)) || !strings.Contains(sandpit.Hint(err), "--remove-orphans") {
		t.Errorf("taking it over: %v (%s)", err, sandpit.Hint(err))
	}
	bare := handle
	bare.State = nil
	second, err := other.Recover(t.Context(), bare)
	if err != nil {
		t.Fatal(err)
	}
	if err := second.Destroy(t.Context()); err != nil {
		t.Fatal(err)
	}
	stranded()
	if left, _ := os.ReadDir(moved); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
	if _, err := other.Recover(t.Context(), handle); !errors.Is(err, sandpit.ErrNotFound) {
		t.Errorf("taking over what is gone: %v", err)
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

// TestKeptSurvivesKill has a maker killed with -9, and takes over what it made;
// a frozen one can be destroyed.
func TestKeptSurvivesKill(t *testing.T) {
	keep := t.TempDir()
	d := persistentDriver(t, keep)
	cmd := exec.Command("/proc/self/exe", "-test.run=^TestKeptMaker$")
	cmd.Env = append(os.Environ(), "SANDPIT_TEST_KEEP="+keep)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var handle driver.Handle
	err = json.NewDecoder(out).Decode(&handle)
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	if err != nil {
		t.Fatal(err)
	}
	i, err := d.Recover(t.Context(), handle)
	if err != nil {
		t.Fatal(err)
	}
	defer i.Destroy(context.Background())
	c := greet(t, i, nil)
	p, err := c.Start(t.Context(), sandpit.Command{Script: "exit 7"})
	if err != nil {
		t.Fatal(err)
	}
	if res, err := p.Wait(t.Context()); err != nil || res.ExitCode != 7 {
		t.Errorf("got %+v, %v", res, err)
	}
	if err := i.(driver.Freezer).Freeze(t.Context()); err != nil && !errors.Is(err, sandpit.ErrUnsupported) {
		t.Error(err)
	}
	if err := i.Destroy(t.Context()); err != nil {
		t.Error(err)
	}
	if left, _ := os.ReadDir(keep); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// TestKeptMaker is the program that TestKeptSurvivesKill kills.
func TestKeptMaker(t *testing.T) {
	keep := os.Getenv("SANDPIT_TEST_KEEP")
	if keep == "" {
		testkit.Lacks(t, "TestKeptSurvivesKill, of which it is a part")
	}
	d := persistentDriver(t, keep)
	i, err := d.Create(t.Context(), persistentPlan(t, d))
	if err != nil {
		t.Fatal(err)
	}
	defer i.Destroy(context.Background()) // unless it is killed, as it should be
	greet(t, i, persistentConfig())
	if err := json.NewEncoder(os.Stdout).Encode(i.Handle()); err != nil {
		t.Fatal(err)
	}
	_ = unix.Pause()
}

// TestHandles refuses handles that are not its own.
func TestHandles(t *testing.T) {
	d := persistentDriver(t, t.TempDir())
	for _, tt := range []struct {
		handle driver.Handle
		want   error
	}{
		{driver.Handle{Version: driver.HandleVersion + 1, Driver: linux.Name, ID: "a"}, sandpit.ErrUnsupported},
		{driver.Handle{Version: driver.HandleVersion, Driver: "other", ID: "a", State: json.RawMessage(`{"pid":2,"boot":"b"}`)}, sandpit.ErrInvalid},
		{driver.Handle{Version: driver.HandleVersion, Driver: linux.Name, ID: "a", State: json.RawMessage(`[]`)}, sandpit.ErrInvalid},
		{driver.Handle{Version: driver.HandleVersion, Driver: linux.Name, ID: "a", State: json.RawMessage(`{"pid":1,"boot":"b","socket":"/x/a.sock"}`)}, sandpit.ErrInvalid},
		{driver.Handle{Version: driver.HandleVersion, Driver: linux.Name, ID: "a", State: json.RawMessage(`{"pid":2,"boot":"b","socket":"/etc/passwd"}`)}, sandpit.ErrInvalid},
		{driver.Handle{Version: driver.HandleVersion, Driver: linux.Name, ID: "a", State: json.RawMessage(`{"pid":2,"start":1,"boot":"another","socket":"/nonexistent/a.sock"}`)}, sandpit.ErrNotFound},
		{driver.Handle{Version: driver.HandleVersion, Driver: linux.Name, ID: "a", State: json.RawMessage(`{"pid":2,"start":1,"boot":"another","socket":"/nonexistent/a.sock"}`)}, driver.ErrRestarted},
	} {
		if _, err := d.Recover(t.Context(), tt.handle); !errors.Is(err, tt.want) {
			t.Errorf("%s: got %v, want %v", tt.handle.State, err, tt.want)
		}
	}
}
