package engine_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/driver/linux"
	"github.com/sandpit-dev/sandpit/internal/engine"
	"github.com/sandpit-dev/sandpit/internal/guest/embedded"
	"github.com/sandpit-dev/sandpit/internal/image"
	"github.com/sandpit-dev/sandpit/internal/policy"
	"github.com/sandpit-dev/sandpit/internal/testkit"
)

// What Update has changed is what the next engine adopts. One that was killed while it
// changed limits leaves those of the record to be set again.
func TestUpdateSurvivesTheEngine(t *testing.T) {
	needGuest(t)
	testkit.NeedRoot(t, "to have limits of a sandbox in any case")
	dir := t.TempDir()
	first := openKept(dir)
	sb, err := first.Create(t.Context(), sandpit.Spec{Name: "box", Labels: map[string]string{"a": "1", "b": "2"}, Limits: sandpit.Limits{Memory: 64 << 20, Pids: 40}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		e := openKept(dir)
		_, _ = e.Adopt(context.Background())
		for _, s := range e.Sandboxes() {
			if err := s.Remove(context.Background()); err != nil {
				t.Error(err)
			}
		}
		_ = e.Close()
	})
	change := sandpit.Change{Name: "other", Labels: map[string]string{"c": "3"}, RemoveLabels: []string{"a"}, Limits: sandpit.Limits{Memory: 96 << 20, CPUs: 0.5, Pids: 100}}
	if err := sb.Update(t.Context(), change); err != nil {
		t.Fatal(err)
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	adopted := func(pids int64) (*engine.Engine, sandpit.Sandbox) {
		t.Helper()
		e := openKept(dir)
		if report, err := e.Adopt(t.Context()); err != nil || report.Adopted != 1 {
			t.Fatalf("%+v, %v", report, err)
		}
		if _, err := e.Get(t.Context(), "box"); !errors.Is(err, sandpit.ErrNotFound) {
			t.Errorf("by its old name: %v", err)
		}
		sb, err := e.Get(t.Context(), "other")
		if err != nil {
			t.Fatal(err)
		}
		info, err := sb.Info(t.Context())
		if err != nil || info.Name != "other" || !maps.Equal(info.Labels, map[string]string{"b": "2", "c": "3"}) || info.Limits.Memory != 96<<20 || info.Limits.CPUs != 0.5 || info.Limits.Pids != pids || len(info.NotEnforced) > 0 {
			t.Errorf("got %+v, %v", info, err)
		}
		return e, sb
	}
	second, _ := adopted(100)
	if err := second.Close(); err != nil {
		t.Fatal(err)
	}
	// As if a change from 50 processes to 100 had been interrupted.
	name := filepath.Join(dir, "records", sb.ID())
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	before := strings.Replace(string(text), `"Pids":100`, `"Pids":50`, 1)
	before = strings.Replace(before, `"not_enforced"`, `"changing":true,"not_enforced"`, 1)
	if !strings.Contains(before, "changing") {
		before = strings.Replace(before, `"deadline"`, `"changing":true,"deadline"`, 1)
	}
	if !strings.Contains(before, `"Pids":50`) || !strings.Contains(before, "changing") {
		t.Fatalf("the record is %s", text)
	}
	if err := os.WriteFile(name, []byte(before), 0o600); err != nil {
		t.Fatal(err)
	}
	third, sb := adopted(50)
	out, err := sandpit.Shell(t.Context(), sb, "while sleep 1000 & do :; done 2>/dev/null; true")
	if err != nil {
		t.Fatal(err)
	}
	if m, err := sb.Metrics(t.Context()); err != nil || m.Pids < 40 || m.Pids > 50 {
		t.Errorf("of 50 processes there are %+v, %v, after %+v", m, err, out)
	}
	if text, err := os.ReadFile(name); err != nil || strings.Contains(string(text), "changing") {
		t.Errorf("the record is %s, %v", text, err)
	}
	if err := third.Close(); err != nil {
		t.Fatal(err)
	}
}

// A change that can't be recorded is not in force, and leaves the new name free.
func TestUpdateOnAFullDisk(t *testing.T) {
	srv := newSurvivor(t)
	e := srv.open(t)
	sb := made(t, e, sandpit.Spec{Name: "box", Labels: map[string]string{"a": "1"}})
	change := sandpit.Change{Name: "other", Labels: map[string]string{"a": "2", "b": "3"}}
	srv.store.setFail(fmt.Errorf("writing: %w", sandpit.ErrDiskFull))
	if err := sb.Update(t.Context(), change); !errors.Is(err, sandpit.ErrDiskFull) {
		t.Errorf("got %v", err)
	}
	srv.store.setFail(nil)
	info, err := sb.Info(t.Context())
	if err != nil || sb.Name() != "box" || info.Name != "box" || !maps.Equal(info.Labels, map[string]string{"a": "1"}) {
		t.Errorf("got %+v, %v", info, err)
	}
	if _, err := e.Get(t.Context(), "box"); err != nil {
		t.Error(err)
	}
	// The driver of this test has no limits that can be changed.
	if err := sb.Update(t.Context(), sandpit.Change{Name: "other", Limits: sandpit.Limits{Memory: 1 << 30}}); !errors.Is(err, sandpit.ErrUnsupported) || sb.Name() != "box" {
		t.Errorf("%s: %v", sb.Name(), err)
	}
	made(t, e, sandpit.Spec{Name: "other"})
	if err := sb.Update(t.Context(), change); !errors.Is(err, sandpit.ErrExists) {
		t.Errorf("got %v", err)
	}
}

// withCapacity returns an engine with a capacity, whose sandboxes end with it.
func withCapacity(t *testing.T, c engine.Capacity) *engine.Engine {
	t.Helper()
	images, guests := engine.Home(t.TempDir())
	e := engine.New(engine.Options{
		Driver: linux.New(linux.Options{Dir: guests, Guest: embedded.Guest()}), Images: image.Open(images, image.Options{NoSync: true}),
		Policy: policy.Default(), Capacity: c,
	})
	t.Cleanup(func() { _ = e.Close() })
	return e
}

// A change of limits is charged to the capacity, and what it no longer needs is free.
func TestUpdateIsCharged(t *testing.T) {
	needGuest(t)
	testkit.NeedRoot(t, "to have limits of a sandbox in any case")
	e := withCapacity(t, engine.Capacity{Memory: 256 << 20, Wait: time.Millisecond})
	create := func() error {
		_, err := e.Create(t.Context(), sandpit.Spec{Limits: sandpit.Limits{Memory: 128 << 20}})
		return err
	}
	sb, err := e.Create(t.Context(), sandpit.Spec{Limits: sandpit.Limits{Memory: 128 << 20}})
	if err != nil {
		t.Fatal(err)
	}
	memory := func(mib int64) error {
		return sb.Update(t.Context(), sandpit.Change{Limits: sandpit.Limits{Memory: mib << 20}})
	}
	if err := memory(300); !errors.Is(err, sandpit.ErrQuota) || err.Error() != fmt.Sprintf("changing sandbox %q: it needs 300 MiB of memory, and this server has 256 MiB of memory in total", sb.Name()) {
		t.Errorf("got %v", err)
	}
	if err := memory(192); err != nil {
		t.Fatal(err)
	}
	if err := create(); !errors.Is(err, sandpit.ErrExhausted) {
		t.Errorf("the memory is not charged: %v", err)
	}
	if err := memory(64); err != nil {
		t.Fatal(err)
	}
	if err := create(); err != nil {
		t.Errorf("the memory is not returned: %v", err)
	}
	if err := memory(200); !errors.Is(err, sandpit.ErrExhausted) || errors.Is(err, sandpit.ErrQuota) || !strings.HasSuffix(err.Error(), ": this server has no room for 200 MiB of memory") ||
		!strings.HasPrefix(sandpit.Hint(err), "request at most 128 MiB of memory, ") {
		t.Errorf("got %v (hint: %s)", err, sandpit.Hint(err))
	}
	if err := sb.Remove(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := create(); err != nil {
		t.Errorf("what it had is not returned: %v", err)
	}
}

// A change that fails lets no create in, and one that succeeds does.
func TestFailedUpdateFreesNothing(t *testing.T) {
	needGuest(t)
	testkit.NeedRoot(t, "to have limits of a sandbox in any case")
	e := withCapacity(t, engine.Capacity{Memory: 256 << 20, Wait: time.Hour})
	sb, err := e.Create(t.Context(), sandpit.Spec{Limits: sandpit.Limits{Memory: 192 << 20}})
	if err != nil {
		t.Fatal(err)
	}
	if out, err := sandpit.Shell(t.Context(), sb, "head -c 64M /dev/zero >/dev/shm/f && echo filled"); err != nil || string(out.Stdout) != "filled\n" {
		t.Fatalf("%+v, %v", out, err)
	}
	created := make(chan error, 1)
	go func() {
		_, err := e.Create(t.Context(), sandpit.Spec{Limits: sandpit.Limits{Memory: 128 << 20}})
		created <- err
	}()
	testkit.Until(t, "a create waits", func() bool { return e.Waiting() == 1 })
	memory := func(mib int64) error {
		return sb.Update(t.Context(), sandpit.Change{Limits: sandpit.Limits{Memory: mib << 20}})
	}
	if err := memory(200); !errors.Is(err, sandpit.ErrExhausted) || !strings.Contains(err.Error(), "wait for capacity come first") {
		t.Errorf("growing before a create: %v", err)
	}
	if err := memory(32); !errors.Is(err, sandpit.ErrState) || !regexp.MustCompile(`^changing sandbox "[a-z0-9]+": [0-9.]+ MiB of memory is in use, which is more than 32 MiB$`).MatchString(err.Error()) {
		t.Errorf("less memory than is in use: %v", err)
	}
	if n := e.Waiting(); n != 1 {
		t.Errorf("%d creates wait after a change that failed", n)
	}
	if err := memory(128); err != nil {
		t.Fatal(err)
	}
	if err := <-created; err != nil {
		t.Error(err)
	}
}

// A sandbox that a query has selected is removed only if it still does.
func TestRemoveSelected(t *testing.T) {
	e := newSurvivor(t).open(t, func(*engine.Options) {})
	sb := made(t, e, sandpit.Spec{Labels: map[string]string{"team": "a"}})
	own := e.As("", policy.Default())
	q := sandpit.ListQuery{Labels: map[string]string{"team": "a"}, States: []sandpit.State{sandpit.StateRunning}, Limit: 1}
	if err := sb.(sandpit.Lifecycle).Update(t.Context(), sandpit.Change{Labels: map[string]string{"team": "b"}}); err != nil {
		t.Fatal(err)
	}
	if selected, err := own.RemoveSelected(t.Context(), sb.ID(), q); selected || err != nil {
		t.Errorf("with another label: %t, %v", selected, err)
	}
	if out, err := sandpit.Shell(t.Context(), sb, "echo alive"); err != nil || string(out.Stdout) != "alive\n" {
		t.Errorf("it says %q, %v", out.Stdout, err)
	}
	q.Labels["team"] = "b"
	if selected, err := own.RemoveSelected(t.Context(), sb.ID(), q); !selected || err != nil {
		t.Errorf("with the label: %t, %v", selected, err)
	}
	if _, err := own.RemoveSelected(t.Context(), sb.ID(), q); !errors.Is(err, sandpit.ErrNotFound) {
		t.Errorf("once more: %v", err)
	}
}
