package linux

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sandpit-dev/sandpit/internal/cgroup"
	"github.com/sandpit-dev/sandpit/internal/driver"
)

// TestHandlesOfEachVersion reads a handle of each version that there was, which
// testdata has and which is never changed, and writes the newest as it was: what
// a field is called, and what is in it, is part of the version.
func TestHandlesOfEachVersion(t *testing.T) {
	for v := 1; v <= driver.HandleVersion; v++ {
		data, err := os.ReadFile(filepath.Join("testdata", fmt.Sprintf("handle-%d.json", v)))
		if err != nil {
			t.Errorf("a handle of version %d is not known: %v", v, err)
			continue
		}
		var h driver.Handle
		if err := json.Unmarshal(data, &h); err != nil || h.Version != v {
			t.Fatal(h, err)
		}
		d := New(Options{Dir: t.TempDir(), KeepDir: t.TempDir()})
		c, err := d.recall(t.Context(), h)
		if err != nil {
			t.Errorf("of version %d: %v", v, err)
			continue
		}
		const id = "fd5nj5t4lnmhqbbo"
		if diff := cmp.Diff(identity{PID: 18338, Start: 1921488, Boot: "899ebe14-7720-4de3-a119-50ceb188df93"}, c.first); diff != "" || c.id != id {
			t.Errorf("of version %d: the process of %s: %s", v, c.id, diff)
		}
		if c.socket != "/srv/sandpit/run/"+id+".sock" || c.ids.base != 2067595264 {
			t.Errorf("of version %d: socket %s, ids from %d", v, c.socket, c.ids.base)
		}
		dir := func(hierarchy string, controllers uint8) cgroup.SavedDir {
			return cgroup.SavedDir{Path: "/sys/fs/cgroup/" + hierarchy + "/sandpit-" + id, Controllers: controllers, V2: hierarchy == "unified"}
		}
		group := &cgroup.Saved{ID: id, Shared: "/sys/fs/cgroup/sandpit", Dirs: []cgroup.SavedDir{
			dir("unified", 0), dir("pids", 8), dir("devices", 16), dir("memory", 1), dir("cpu", 6), dir("freezer", 32),
		}}
		if diff := cmp.Diff(group, c.saved); diff != "" {
			t.Errorf("of version %d: the cgroups: %s", v, diff)
		}
		if v < driver.HandleVersion {
			continue
		}
		now, err := json.Marshal(driver.Handle{Version: driver.HandleVersion, Driver: Name, ID: c.id, State: c.state()})
		if err != nil {
			t.Fatal(err)
		}
		var was, is any
		if err := json.Unmarshal(data, &was); err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(now, &is); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(was, is); diff != "" {
			t.Errorf("a handle of version %d was written otherwise: %s", v, diff)
		}
	}
}
