package engine_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/engine"
	"github.com/sandpit-dev/sandpit/internal/ledger"
	"github.com/sandpit-dev/sandpit/internal/policy"
)

// What a sandbox was made with, and what dialects keep with it, is known to later
// engines, however often one follows another.
func TestMadeIsRestored(t *testing.T) {
	srv := newSurvivor(t)
	team := policy.Default()
	team.Name = "team"
	first := srv.open(t)
	spec := sandpit.Spec{
		Name: "box", User: "root", WorkDir: "/", Env: []string{"A=\xff"}, Limits: sandpit.Limits{Pids: 77},
		Labels: map[string]string{"a": "b"}, OnExpiry: sandpit.ExpiryStop,
	}
	sb := made(t, first.As("", team), spec).(engine.Box)
	if err := sb.SetDialect(t.Context(), "e2b", json.RawMessage(`{"template":"base"}`)); err != nil {
		t.Fatal(err)
	}
	was, err := sb.Made()
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(spec, was.Spec, cmpopts.IgnoreFields(sandpit.Spec{}, "Image", "Pull")); diff != "" {
		t.Errorf("it was made with:\n%s", diff)
	}
	if was.Policy != "team" || was.Guest.Dir != "/" || !strings.Contains(strings.Join(was.Guest.Env, " "), "A=\xff") {
		t.Errorf("it was made with %+v", was)
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		e := srv.open(t)
		if report, err := e.Adopt(t.Context()); err != nil || report.Adopted != 1 {
			t.Fatalf("%+v, %v", report, err)
		}
		got, err := e.Get(t.Context(), "box")
		if err != nil {
			t.Fatal(err)
		}
		again := got.(engine.Box)
		now, err := again.Made()
		if diff := cmp.Diff(was, now); diff != "" || err != nil {
			t.Errorf("after a restart: %v %s", err, diff)
		}
		if info, err := again.Info(t.Context()); err != nil || info.Policy != "team" || info.Driver != "bare" {
			t.Errorf("after a restart: %+v, %v", info, err)
		}
		if text := string(again.Dialect("e2b")); text != `{"template":"base"}` {
			t.Errorf("the dialect has %q", text)
		}
		if err := e.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// firstRecords is a store that remembers the first record of each sandbox.
type firstRecords struct {
	engine.Store
	first sync.Map // its data, by the sandbox's ID
}

func (f *firstRecords) PutSandbox(ctx context.Context, r engine.Record) error {
	f.first.LoadOrStore(r.ID, string(r.Data))
	return f.Store.PutSandbox(ctx, r)
}

// What a dialect keeps from the start is in the first record, and charged like the rest.
func TestCreateFor(t *testing.T) {
	srv := newSurvivor(t)
	book := ledger.New(ledger.Bounds{})
	store := &firstRecords{Store: srv.store}
	e := srv.open(t, func(o *engine.Options) { o.Memory, o.Store = book, store })
	const data = `{"template":"base"}`
	own := e.As("", policy.Default())
	if _, err := own.CreateFor(t.Context(), sandpit.Spec{}, "d", json.RawMessage(`{`)); !errors.Is(err, sandpit.ErrInvalid) || len(e.Sandboxes()) != 0 {
		t.Errorf("with data that is not JSON: %v", err)
	}
	sb, err := own.CreateFor(t.Context(), sandpit.Spec{User: "root", WorkDir: "/"}, "d", json.RawMessage(data))
	if err != nil {
		t.Fatal(err)
	}
	if got := string(sb.Dialect("d")); got != data {
		t.Errorf("the dialect has %q", got)
	}
	if found, err := own.FindFor("d", json.RawMessage(data)); err != nil || found.ID() != sb.ID() {
		t.Errorf("its tenant found %v, %v", found, err)
	}
	if found, err := e.As("other", policy.Default()).FindFor("d", json.RawMessage(data)); !errors.Is(err, sandpit.ErrNotFound) {
		t.Errorf("another tenant found %v, %v", found, err)
	}
	if first, _ := store.first.Load(sb.ID()); !strings.Contains(fmt.Sprint(first), "template") {
		t.Errorf("the first record is %v", first)
	}
	if err := sb.Remove(t.Context()); err != nil {
		t.Fatal(err)
	}
	e.ForgetEvents()
	if n := book.Used(); n != 0 {
		t.Errorf("%d bytes are charged for nothing", n)
	}
}

// What dialects keep is bounded, charged, and not changed by what fails.
func TestDialectData(t *testing.T) {
	srv := newSurvivor(t)
	book := ledger.New(ledger.Bounds{})
	e := srv.open(t, func(o *engine.Options) { o.Memory = book })
	sb := made(t, e, sandpit.Spec{}).(engine.Box)
	large := json.RawMessage(`"` + strings.Repeat("x", 64<<10-2) + `"`)
	for i := range 8 {
		if err := sb.SetDialect(t.Context(), fmt.Sprint("d", i), large); err != nil {
			t.Fatal(err)
		}
	}
	for what, err := range map[string]error{
		"one more dialect": sb.SetDialect(t.Context(), "more", json.RawMessage(`1`)),
		"more data":        sb.SetDialect(t.Context(), "d0", json.RawMessage(string(large)+" ")),
		"no JSON":          sb.SetDialect(t.Context(), "d0", json.RawMessage(`{`)),
		"no name":          sb.SetDialect(t.Context(), "", json.RawMessage(`1`)),
		"a long name":      sb.SetDialect(t.Context(), strings.Repeat("n", 33), json.RawMessage(`1`)),
	} {
		if !errors.Is(err, sandpit.ErrInvalid) && !errors.Is(err, sandpit.ErrExhausted) {
			t.Errorf("%s: %v", what, err)
		}
	}
	broken := errors.New("broken")
	srv.store.setFail(broken)
	if err := sb.SetDialect(t.Context(), "d1", json.RawMessage(`1`)); !errors.Is(err, broken) {
		t.Errorf("without a store: %v", err)
	}
	srv.store.setFail(nil)
	if text := sb.Dialect("d1"); string(text) != string(large) {
		t.Errorf("what could not be written is %.20q", text)
	}
	if err := sb.SetDialect(t.Context(), "d1", nil); err != nil || sb.Dialect("d1") != nil {
		t.Errorf("removing: %v, %q", err, sb.Dialect("d1"))
	}
	if err := sb.Remove(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := sb.SetDialect(t.Context(), "d1", json.RawMessage(`1`)); !errors.Is(err, sandpit.ErrClosed) {
		t.Errorf("after its end: %v", err)
	}
	e.ForgetEvents()
	if n := book.Used(); n != 0 {
		t.Errorf("%d bytes are charged for nothing", n)
	}
}
