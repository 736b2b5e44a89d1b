package engine_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/driver"
	"github.com/sandpit-dev/sandpit/internal/engine"
	"github.com/sandpit-dev/sandpit/internal/policy"
)

// restarted is a driver on a machine that was restarted since.
type restarted struct{ bare }

func (restarted) Recover(context.Context, driver.Handle) (driver.Instance, error) {
	return nil, fmt.Errorf("%w: %w", driver.ErrRestarted, sandpit.ErrNotFound)
}

// adopt opens an engine that takes over what there is.
func adopt(t *testing.T, srv *survivor, change ...func(*engine.Options)) (*engine.Engine, engine.AdoptReport) {
	t.Helper()
	e := srv.open(t, change...)
	report, err := e.Adopt(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return e, report
}

// What was gone when the engine came back is a failed sandbox that says why,
// with its log; its events and its record say the same, it takes nobody's room,
// and it can be removed.
func TestGoneWhileThereWasNoEngine(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(*engine.Options)
		reason string
	}{
		"its guest was killed":      {func(*engine.Options) {}, "it ended while no server was running"},
		"the machine was restarted": {func(o *engine.Options) { o.Driver = restarted{o.Driver.(bare)} }, "the machine was restarted: its processes and files were in memory"},
	} {
		t.Run(name, func(t *testing.T) {
			srv := newSurvivor(t)
			e := srv.open(t)
			sb := made(t, e, sandpit.Spec{Name: "box", Labels: map[string]string{"a": "b"}})
			p := background(t, sb, "echo hello; sleep 1000")
			eventually(t, "its log has a line", func() bool {
				for range sb.Logs(t.Context(), sandpit.LogQuery{}) {
					return true
				}
				return false
			})
			if err := e.Close(); err != nil {
				t.Fatal(err)
			}
			kill(t, srv, sb.ID())

			var heard []sandpit.Event
			e, report := adopt(t, srv, tt.change, func(o *engine.Options) {
				o.Capacity = engine.Capacity{Sandboxes: 1, Wait: time.Millisecond}
				o.Observe = func(_ string, ev sandpit.Event) { heard = append(heard, ev) }
			})
			if report.Gone != 1 || report.Failed != 0 || report.Adopted != 0 || report.Refused != nil {
				t.Errorf("the report is %+v", report)
			}
			if len(heard) != 1 || heard[0].Kind != sandpit.EventFailed || heard[0].Sandbox != sb.ID() || !strings.HasPrefix(heard[0].Reason, "failed: "+tt.reason) {
				t.Errorf("the events are %+v", heard)
			}
			sb, err := e.Get(t.Context(), "box")
			if err != nil {
				t.Fatal(err)
			}
			info := wantState(t, sb, sandpit.StateFailed)
			if !strings.HasPrefix(info.Reason, tt.reason) || info.Labels["a"] != "b" || time.Until(info.ExpiresAt) > 24*time.Hour || time.Until(info.ExpiresAt) < 23*time.Hour {
				t.Errorf("it is %+v", info)
			}
			if r, ok := srv.store.get(sb.ID()); !ok || r.State != sandpit.StateFailed {
				t.Errorf("its record is %+v", r)
			}
			text := ""
			for entry, err := range sb.Logs(t.Context(), sandpit.LogQuery{Process: p.ID()}) {
				if err != nil {
					t.Fatal(err)
				}
				text += string(entry.Data)
			}
			if text != "hello\n" {
				t.Errorf("its log is %q", text)
			}
			if out, err := sandpit.Shell(t.Context(), sb, "true"); !errors.Is(err, sandpit.ErrClosed) || !strings.Contains(err.Error(), tt.reason) {
				t.Errorf("used, it gives %+v, %v", out, err)
			}
			if n := e.Live(); n != 0 {
				t.Errorf("%d live", n)
			}
			_, err = e.Create(t.Context(), sandpit.Spec{Name: "box", User: "root", WorkDir: "/"})
			if !errors.Is(err, sandpit.ErrExists) || !strings.Contains(sandpit.Hint(err), "remove that sandbox first") {
				t.Errorf("its name taken again: %v (%s)", err, sandpit.Hint(err))
			}
			// It takes no room.
			made(t, e, sandpit.Spec{Name: "other"})
			if _, err := e.Create(t.Context(), sandpit.Spec{}); !errors.Is(err, sandpit.ErrExhausted) {
				t.Errorf("there is room for one, and the second is %v", err)
			}
			if err := e.Close(); err != nil {
				t.Fatal(err)
			}

			// It is there until it is removed.
			e, report = adopt(t, srv)
			if report.Failed != 1 || report.Gone != 0 {
				t.Errorf("the second report is %+v", report)
			}
			if sb, err = e.Get(t.Context(), "box"); err != nil {
				t.Fatal(err)
			}
			if again := wantState(t, sb, sandpit.StateFailed); again.Reason != info.Reason || !again.ExpiresAt.Equal(info.ExpiresAt) {
				t.Errorf("it was %+v, is %+v", info, again)
			}
			if err := sb.Remove(t.Context()); err != nil {
				t.Error(err)
			}
			if _, ok := srv.store.get(sb.ID()); ok {
				t.Error("its record is left")
			}
			if left, _ := filepath.Glob(filepath.Join(srv.dir, "logs", sb.ID()+"*")); left != nil {
				t.Errorf("%v are left", left)
			}
			made(t, e, sandpit.Spec{Name: "box"})
		})
	}
}

// What was to end, because its time was over or because it was being removed,
// is no loss: nothing of it is left.
func TestGoneAsItWasToBe(t *testing.T) {
	srv := newSurvivor(t)
	e := srv.open(t)
	expired := made(t, e, sandpit.Spec{Name: "over"})
	removed := made(t, e, sandpit.Spec{Name: "removed"})
	begun := made(t, e, sandpit.Spec{Name: "begun"})
	if err := expired.SetLifetime(t.Context(), sandpit.Lifetime{Life: time.Nanosecond}); err != nil {
		t.Fatal(err)
	}
	// As an engine leaves them that is killed before the end of a removal, and
	// at its beginning.
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	for _, sb := range []sandpit.Sandbox{expired, removed} {
		kill(t, srv, sb.ID())
	}
	for _, sb := range []sandpit.Sandbox{removed, begun} {
		if err := os.MkdirAll(filepath.Join(srv.dir, "logs"), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(srv.dir, "logs", sb.ID()+".removed"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	stale := filepath.Join(srv.dir, "logs", engine.NewID()+".removed")
	if err := os.WriteFile(stale, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	e, report := adopt(t, srv)
	if report.Expired != 3 || report.Gone+report.Failed+report.Adopted != 0 || len(e.Sandboxes()) != 0 {
		t.Errorf("the report is %+v", report)
	}
	if all, _ := srv.store.Sandboxes(t.Context()); len(all) != 0 {
		t.Errorf("records are left: %+v", all)
	}
	if left, _ := filepath.Glob(filepath.Join(srv.dir, "logs", "*")); left != nil {
		t.Errorf("%v are left", left)
	}
}

// An engine that is killed in the midst of a removal has said so before.
func TestRemovalIsMarked(t *testing.T) {
	srv := newSurvivor(t)
	e := srv.open(t)
	sb := made(t, e, sandpit.Spec{})
	srv.store.setFail(errors.New("no space"))
	if err := sb.Remove(t.Context()); err != nil {
		t.Fatal(err)
	}
	mark := filepath.Join(srv.dir, "logs", sb.ID()+".removed")
	if _, err := os.Stat(mark); err != nil {
		t.Errorf("while its record is there: %v", err)
	}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	srv.store.setFail(nil)
	if _, report := adopt(t, srv); report.Expired != 1 {
		t.Errorf("the report is %+v", report)
	}
	if _, err := os.Stat(mark); err == nil {
		t.Error("the mark is left")
	}
}

// Sandboxes that have failed do not pile up, and stand in nobody's way.
func TestFailedAreFew(t *testing.T) {
	const many = 53
	srv := newSurvivor(t)
	var ids []string
	e := srv.open(t)
	few := policy.Default()
	host, err := policy.ParseImage("host")
	if err != nil {
		t.Fatal(err)
	}
	few.Rules = &policy.Rules{Sandboxes: many, Images: []policy.Image{host}, OnExpiry: []sandpit.Expiry{sandpit.ExpiryRemove}}
	tenant := e.As("tenant", few)
	for range many {
		sb := made(t, tenant, sandpit.Spec{})
		ids = append(ids, sb.ID())
	}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	for _, id := range ids {
		kill(t, srv, id)
	}
	e, report := adopt(t, srv)
	if report.Gone != many {
		t.Errorf("the report is %+v", report)
	}
	page, err := e.As("tenant", few).List(t.Context(), sandpit.ListQuery{Limit: 1000})
	if err != nil || len(page.Sandboxes) != 50 || page.Sandboxes[0].ID != ids[many-50] {
		t.Errorf("there are %d, the first is not that of the %d that are kept: %v", len(page.Sandboxes), 50, err)
	}
	if all, _ := srv.store.Sandboxes(t.Context()); len(all) != 50 {
		t.Errorf("there are %d records", len(all))
	}
	few.Rules.Sandboxes = 1
	made(t, e.As("tenant", few), sandpit.Spec{})
}
