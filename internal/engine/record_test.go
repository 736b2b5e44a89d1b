package engine

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/driver"
	"github.com/sandpit-dev/sandpit/internal/guest/client"
	"github.com/sandpit-dev/sandpit/internal/image"
)

// TestRecordsOfEachVersion reads a record of each version that there was, which
// testdata has and which is never changed, and writes the newest as it was: what
// a field is called, those of sandpit.Spec and image.Config included, is part of
// the version.
func TestRecordsOfEachVersion(t *testing.T) {
	base := data{
		Version: dataVersion,
		Driver:  "linux",
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
		Expired:     true,
		MaxLife:     time.Hour,
		Reason:      "idle",
	}
	guest := client.Config{
		User: "www", Dir: "/srv", Env: []string{"PATH=/usr/bin:/bin"}, Output: 1 << 30, NoFile: 4096,
		RootCaps: 251, OOMScoreAdj: 500,
	}
	for v, want := range map[int]struct {
		dialects map[string]json.RawMessage
		secret   json.RawMessage
		made     Made
	}{
		1: {nil, nil, Made{
			Spec:  sandpit.Spec{Name: "box", Image: base.Image, Limits: base.Limits, Labels: base.Labels, Idle: base.Idle, OnExpiry: base.OnExpiry},
			Guest: guest,
		}},
		2: {map[string]json.RawMessage{"e2b": json.RawMessage(`{"template": "base"}`)}, json.RawMessage(`["A=1",{"base64":"Qj3/"}]`), Made{
			Spec: sandpit.Spec{
				Name: "box", Image: "debian:13", Pull: sandpit.PullMissing, Hostname: "host", Env: []string{"A=1", "B=\xff"}, WorkDir: "/srv", User: "www",
				Limits: sandpit.Limits{Memory: 64 << 20}, Mounts: []sandpit.Mount{{Source: "/src", Target: "/work", ReadOnly: true, NoSockets: true}},
				Tmpfs: []sandpit.Tmpfs{{Target: "/scratch", Size: 1 << 20}}, ReadOnly: true, Write: []string{"/work"}, Labels: map[string]string{"made": "long ago"},
				Idle: 10 * time.Minute, OnExpiry: sandpit.ExpiryPause,
			},
			Policy: "team", Parent: "aaaaaaaaaaaaaaaa",
			Guest: client.Config{
				User: "www", Dir: "/srv", Env: []string{"PATH=/usr/bin:/bin", "A=1", "B=\xff"}, Output: 1 << 30, NoFile: 4096,
				RootCaps: 251, OOMScoreAdj: 500,
			},
		}},
	} {
		text, err := os.ReadFile(filepath.Join("testdata", fmt.Sprintf("record-%d.json", v)))
		if err != nil {
			t.Errorf("a record of version %d is not known: %v", v, err)
			continue
		}
		in := json.NewDecoder(bytes.NewReader(text))
		in.DisallowUnknownFields()
		if err := in.Decode(new(data)); err != nil {
			t.Errorf("of version %d: %v", v, err)
		}
		got, err := readData(Record{Name: "box", Data: text})
		if err != nil {
			t.Errorf("of version %d: %v", v, err)
			continue
		}
		made, err := decodeMade(got.Made, want.secret, got.Config)
		if diff := cmp.Diff(want.made, made); diff != "" || err != nil {
			t.Errorf("of version %d: it was made with %v %s", v, err, diff)
		}
		now, err := json.Marshal(got)
		if err != nil {
			t.Fatal(err)
		}
		got.Made = nil
		base.Dialects = want.dialects
		if diff := cmp.Diff(base, got); diff != "" {
			t.Errorf("of version %d: %s", v, diff)
		}
		if v < dataVersion {
			continue
		}
		again, secret, err := encodeMade(made)
		if diff := cmp.Diff(string(want.secret), string(secret)); diff != "" {
			t.Errorf("the environment was written otherwise: %s", diff)
		}
		was := asJSON(t, text)["made"]
		delete(was.(map[string]any)["guest"].(map[string]any), "Life") // which guests do not have any more
		if diff := cmp.Diff(was, asJSON(t, []byte(`{"made":`+string(again)+`}`))["made"]); diff != "" || err != nil {
			t.Errorf("what a sandbox is made with was written otherwise: %v %s", err, diff)
		}
		if diff := cmp.Diff(asJSON(t, text), asJSON(t, now)); diff != "" {
			t.Errorf("a record of version %d was written otherwise: %s", v, diff)
		}
	}
}

func asJSON(t *testing.T, text []byte) (v map[string]any) {
	t.Helper()
	if err := json.Unmarshal(text, &v); err != nil {
		t.Fatal(err)
	}
	return v
}

// What is not UTF-8 is kept in the environment, and refused elsewhere.
func TestMadeOfAnyBytes(t *testing.T) {
	odd := sandpit.Spec{Env: []string{"A=\xff\x00", `B={"base64":"AA=="}`, "", "C=\ufffd"}}
	text, secret, err := encodeMade(Made{Spec: odd})
	if err != nil {
		t.Fatal(err)
	}
	made, err := decodeMade(text, secret, image.Config{})
	if diff := cmp.Diff(odd, made.Spec); diff != "" || err != nil {
		t.Error(err, diff)
	}
	for _, spec := range []sandpit.Spec{
		{WorkDir: "/\xff"},
		{Write: []string{"/tmp", "/\xff"}},
		{Mounts: []sandpit.Mount{{Source: "/\xff", Target: "/a"}}},
		{Tmpfs: []sandpit.Tmpfs{{Target: "/\xff"}}},
	} {
		if _, _, err := encodeMade(Made{Spec: spec}); !errors.Is(err, sandpit.ErrInvalid) || sandpit.Hint(err) == "" {
			t.Errorf("%+v: %v", spec, err)
		}
	}
	for _, secret := range []string{`[{"base64":"?"}]`, `[1]`, `{}`} {
		if made, err := decodeMade(text, json.RawMessage(secret), image.Config{}); err == nil {
			t.Errorf("%s is read as %+v", secret, made)
		}
	}
	if _, err := decodeMade(text, nil, image.Config{}); !errors.Is(err, sandpit.ErrIntegrity) {
		t.Errorf("without its environment: %v", err)
	}
}

// The authority of a sandbox is sealed with its environment, and not in the rest of the record.
func TestMadeWithAnAuthority(t *testing.T) {
	for _, env := range [][]string{nil, {"A=1", "B=\xff"}} {
		want := Made{Spec: sandpit.Spec{Env: env}, Guest: client.Config{Env: env}, CA: []byte("a private key")}
		text, secret, err := encodeMade(want)
		if err != nil || bytes.Contains(text, []byte("private")) || bytes.Contains(text, []byte("cHJpdmF0Z")) {
			t.Fatalf("%s, %v", text, err)
		}
		made, err := decodeMade(text, secret, image.Config{})
		if diff := cmp.Diff(want, made); diff != "" || err != nil {
			t.Error(err, diff)
		}
		if _, err := decodeMade(text, nil, image.Config{}); !errors.Is(err, sandpit.ErrIntegrity) {
			t.Errorf("without what was sealed: %v", err)
		}
	}
}

// Earlier versions wrote a handle without a driver when a sandbox was gone.
func TestRecordWithoutAHandle(t *testing.T) {
	d, err := readData(Record{Name: "box", Data: json.RawMessage(`{"version": 1, "handle": {"version": 1}}`)})
	if err != nil || d.Driver != "linux" {
		t.Errorf("its driver is %q, %v", d.Driver, err)
	}
}
