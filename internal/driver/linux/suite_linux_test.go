package linux_test

import (
	"bytes"
	"context"
	"debug/elf"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/cgroup"
	"github.com/sandpit-dev/sandpit/internal/driver"
	"github.com/sandpit-dev/sandpit/internal/driver/drivertest"
	"github.com/sandpit-dev/sandpit/internal/driver/linux"
	"github.com/sandpit-dev/sandpit/internal/engine"
	"github.com/sandpit-dev/sandpit/internal/feature"
	"github.com/sandpit-dev/sandpit/internal/guest/embedded"
	"github.com/sandpit-dev/sandpit/internal/image"
	"github.com/sandpit-dev/sandpit/internal/network"
	"github.com/sandpit-dev/sandpit/internal/policy"
	"github.com/sandpit-dev/sandpit/internal/testkit"
	"github.com/sandpit-dev/sandpit/sandpittest"
)

// TestDriver runs every promise of drivers and clients.
func TestDriver(t *testing.T) {
	testkit.NeedWorkingHost(t)
	drivertest.Suite(t, factory(t))
}

// factory makes what the suite needs. The sandboxes that outlive their owners are in
// the same directory for all.
func factory(t *testing.T) drivertest.Factory {
	t.Helper()
	dirs := []string{keepDir()} // or the first sandbox would leave them, or the first image that is saved
	for _, d := range []string{"blobs", "images", "layers", "locks", "refs", "tmp"} {
		dirs = append(dirs, filepath.Join(images().Dir(), d))
	}
	for _, dir := range dirs {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	f := drivertest.Factory{
		New:  func(_ *testing.T, private ...string) driver.Driver { return suiteDriver(private...) },
		Root: hostRoot,
		Client: func(t *testing.T) sandpit.Client {
			t.Cleanup(func() { removeSaved(t) })
			return engine.New(engine.Options{Driver: newDriver(), Images: images(), Policy: policy.Default(), Network: network.InProcess{}})
		},
		ClientOptions: sandpittest.Options{Local: true, Skip: skipped()},
		BadRoots: map[string]func(*driver.Root){
			"a layer that is missing":  func(r *driver.Root) { r.Layers = []string{"/no/such/layer"} },
			"a bind that is missing":   func(r *driver.Root) { r.Binds = []driver.Bind{{Source: "/no/such", Target: "/usr"}} },
			"a target that is missing": func(r *driver.Root) { r.Binds = []driver.Bind{{Source: "/usr", Target: "/no/such/target"}} },
		},
		Unchanged: unchanged,
		Traces:    traces,
		KillGuest: killGuest,
		KillBlank: killBlank,
		Process:   ownerProcess,
		Lives:     func(_ *testing.T, mark string) bool { return mark == markOf(strings.Fields(mark)[0]) },
		Litter:    litter,
		Restarted: func(t *testing.T, h driver.Handle) driver.Handle { return withState(t, h, "boot", "another") },
		Older:     func(t *testing.T, h driver.Handle) driver.Handle { return withState(t, h, "no_set_id", false) },
	}
	if groupLimits() == (cgroup.Limits{}) {
		f.Litter = nil
		f.Without = map[string]string{"Litter": "nothing is left of sandboxes without cgroups", "Owners": "sandboxes have no cgroups here"}
	}
	return f
}

// removeSaved removes the images that clients have saved.
func removeSaved(t *testing.T) {
	t.Helper()
	list, err := images().List(context.Background())
	for _, s := range list {
		if s.Saved && err == nil {
			_, err = images().Remove(context.Background(), s.Digest)
		}
	}
	if err != nil {
		t.Error(err)
	}
}

// keepDir is the KeepDir of the suite. The paths of its sockets are too long for an address
// (unix(7): 108 bytes).
func keepDir() string { return filepath.Join(home, strings.Repeat("long", 30), "kept") }

func suiteDriver(private ...string) *recorder {
	opt := options()
	opt.KeepDir, opt.Private = keepDir(), private
	return driverWith(opt)
}

// hostRoot is the root of the host image.
func hostRoot(t *testing.T) driver.Root {
	t.Helper()
	lease, err := images().Acquire(t.Context(), "host", imageOptions())
	if err != nil {
		t.Fatalf("leasing the host image: %v", err)
	}
	t.Cleanup(lease.Release)
	return rootOf(lease)
}

func rootOf(lease *image.Lease) driver.Root {
	root := driver.Root{Layers: lease.Rootfs().Layers}
	for _, b := range lease.Rootfs().Binds {
		root.Binds = append(root.Binds, driver.Bind(b))
	}
	return root
}

// ownedEnv tells the process of ownerProcess what to make.
const ownedEnv = "SANDPIT_TEST_OWNED"

func ownerProcess(t *testing.T, what drivertest.Owned) *exec.Cmd {
	t.Helper()
	made.add(what.ID)
	data, err := json.Marshal(what)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), ownedEnv+"="+string(data), ownerEnv+"="+home)
	return cmd
}

// suiteOwner is the process of ownerProcess.
func suiteOwner(data string) error {
	var what drivertest.Owned
	if err := json.Unmarshal([]byte(data), &what); err != nil {
		return err
	}
	lease, err := images().Acquire(context.Background(), "host", imageOptions())
	if err != nil {
		return err
	}
	return drivertest.Owner(suiteDriver(), rootOf(lease), what, func(made any) string {
		pid := 0
		switch made := made.(type) {
		case driver.Blank:
			pid = linux.BlankPID(made)
		case driver.Instance:
			var st handleState
			_ = json.Unmarshal(made.Handle().State, &st)
			pid = st.PID
		}
		return markOf(strconv.Itoa(pid))
	})
}

// markOf returns the pid of a process and the time at which it was started, which no
// other has. It is empty if there is no such process.
func markOf(pid string) string {
	data, err := os.ReadFile("/proc/" + pid + "/stat")
	if err != nil {
		return ""
	}
	fields := strings.Fields(string(data[bytes.LastIndexByte(data, ')')+1:]))
	if fields[0] == "Z" || fields[0] == "X" {
		return ""
	}
	return pid + " " + fields[19]
}

// litter leaves the cgroup of a sandbox whose maker and watcher were both killed.
func litter(t *testing.T) (there func() bool) {
	t.Helper()
	layout, err := cgroup.Detect()
	if err != nil {
		t.Fatal(err)
	}
	id := engine.NewID()
	made.add(id)
	group, err := layout.Create(id, groupLimits())
	if err != nil {
		t.Fatal(err)
	}
	group.Leave()
	return func() bool { return len(traces(t, id)) > 0 }
}

// traces returns the cgroups and files of a sandbox.
func traces(t *testing.T, id string) []string {
	t.Helper()
	return slices.DeleteFunc(append(cgroups(), tree(t, home)...), func(name string) bool { return !strings.Contains(name, id) })
}

// groupLimits returns limits of those kinds that a cgroup can enforce here.
func groupLimits() (lim cgroup.Limits) {
	have := newDriver().Probe(context.Background()).Features
	if have[feature.Memory] {
		lim.Memory = 1 << 30
	}
	if have[feature.CPUs] {
		lim.CPUs = 1
	}
	if have[feature.Pids] {
		lim.Pids = 100
	}
	return lim
}

// withState returns a handle with another value in its state.
func withState(t *testing.T, h driver.Handle, name string, value any) driver.Handle {
	t.Helper()
	var st map[string]any
	d := json.NewDecoder(bytes.NewReader(h.State))
	d.UseNumber()
	if err := d.Decode(&st); err != nil {
		t.Fatal(err)
	}
	st[name] = value
	data, err := json.Marshal(st)
	if err != nil {
		t.Fatal(err)
	}
	h.State = data
	return h
}

// skipped are properties that this build of the test binary can't have.
func skipped() map[string]string {
	if embedded.Guest() != nil {
		return nil
	}
	f, err := elf.Open("/proc/self/exe")
	if err != nil {
		return nil
	}
	defer f.Close()
	if slices.ContainsFunc(f.Progs, func(p *elf.Prog) bool { return p.Type == elf.PT_INTERP }) {
		return map[string]string{
			"Mounts/a directory is an image": "the guest is this test binary, which needs a C library: build with -tags guestembed, or with CGO_ENABLED=0",
		}
	}
	return nil
}
