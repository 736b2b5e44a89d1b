package engine

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/driver"
	"github.com/sandpit-dev/sandpit/internal/image"
)

// TestRecordsOfEachVersion reads a record of each version that there was, which
// testdata has and which is never changed, and writes the newest as it was: what
// a field is called, those of sandpit.Limits and image.Config included, is part of
// the version.
func TestRecordsOfEachVersion(t *testing.T) {
	for v := 1; v <= dataVersion; v++ {
		text, err := os.ReadFile(filepath.Join("testdata", fmt.Sprintf("record-%d.json", v)))
		if err != nil {
			t.Errorf("a record of version %d is not known: %v", v, err)
			continue
		}
		in := json.NewDecoder(bytes.NewReader(text))
		in.DisallowUnknownFields()
		var got data
		if err := in.Decode(&got); err != nil {
			t.Errorf("of version %d: %v", v, err)
			continue
		}
		want := data{
			Version: v,
			Handle:  &driver.Handle{Version: 1, Driver: "linux", ID: "fd5nj5t4lnmhqbbo", State: json.RawMessage(`{"pid": 18338}`)},
			Labels:  map[string]string{"made": "long ago"},
			Image:   "docker.io/library/debian@sha256:0123",
			Config: image.Config{
				Entrypoint: []string{"/entry"}, Cmd: []string{"serve"}, Env: []string{"PATH=/usr/bin:/bin"}, WorkingDir: "/srv",
				User: "www", Volumes: []string{"/data"}, StopSignal: "SIGQUIT", Labels: map[string]string{"of": "the image"},
			},
			Limits:      sandpit.Limits{Memory: 64 << 20, CPUs: 0.5, Pids: 64, Disk: 52 << 20, Files: 1 << 18, NoFile: 4096, Output: 1 << 30, Life: 24 * time.Hour},
			NotEnforced: []sandpit.Gap{{What: "cpus", Why: "no controller", Fix: "delegate it"}},
			Deadline:    time.Date(2026, 11, 22, 5, 57, 40, 679264881, time.UTC),
			Idle:        10 * time.Minute,
			OnExpiry:    sandpit.ExpiryPause,
			Over:        true,
			Most:        time.Hour,
			Reason:      "idle",
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("of version %d: %s", v, diff)
		}
		if v < dataVersion {
			continue
		}
		now, err := json.Marshal(got)
		if err != nil {
			t.Fatal(err)
		}
		var was, is any
		if err := json.Unmarshal(text, &was); err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(now, &is); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(was, is); diff != "" {
			t.Errorf("a record of version %d was written otherwise: %s", v, diff)
		}
	}
}
