package drivertest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/driver"
	"github.com/sandpit-dev/sandpit/internal/feature"
	"github.com/sandpit-dev/sandpit/internal/guest/client"
)

// recoverProperties are those of Recoverer, and of what is recovered.
var recoverProperties = []property{
	{"Recover takes over an instance whose owner left it, with all that runs in it", testRecoverLeft},
	{"Recover takes over an instance whose owner was killed", testRecoverOrphan},
	{"an instance with an owner is ErrExists", testRecoverOwned},
	{"after Leave every call is ErrClosed, and nothing else changes", testLeave},
	{"Recover removes what is left of an instance that has ended", testRecoverEnded},
	{"an instance from before a restart of the machine is ErrRestarted", testRecoverRestarted},
	{"a Create that is interrupted at any step can be recovered or has left nothing", testRecoverInterrupted},
	{"an instance that is kept later outlives its maker from then on, and not before", testKeepLater},
	{"handles of others are refused", testRecoverForeign},
	{"an instance of an older version tells what it lacks", testOlder},
	{"an instance that shows a data directory tells which", testExposed},
}

// recoverer returns the driver as a Recoverer.
func (e *env) recoverer(t *testing.T) driver.Recoverer {
	t.Helper()
	return optional[driver.Recoverer](t, e, e.driver)
}

// createPersistent makes an instance that outlives its owner, and removes it after the test.
func (e *env) createPersistent(t *testing.T, change ...func(*driver.Plan)) driver.Instance {
	t.Helper()
	plan := e.plan(t)
	plan.Ephemeral = false
	for _, c := range change {
		c(&plan)
	}
	inst, err := e.make(t.Context(), plan)
	if err != nil {
		t.Fatalf("creating: %v (hint: %s)", err, sandpit.Hint(err))
	}
	e.removePersistent(t, inst)
	return inst
}

// removePersistent removes an instance after the test, whoever owns it by then.
func (e *env) removePersistent(t *testing.T, inst driver.Instance) {
	t.Helper()
	l, ok := inst.(driver.Leaver)
	if !ok {
		e.destroy(t, inst)
		t.Fatal("an instance of a Recoverer is not a Leaver")
	}
	h := inst.Handle()
	t.Cleanup(func() {
		l.Leave()
		e.discard(t, e.driver.(driver.Recoverer), h)
	})
}

// discard removes an instance, if it exists.
func (e *env) discard(t *testing.T, r driver.Recoverer, h driver.Handle) {
	t.Helper()
	inst, err := r.Recover(context.Background(), h)
	switch {
	case err == nil:
		e.destroy(t, inst)
	case !errors.Is(err, sandpit.ErrNotFound):
		t.Errorf("recovering, to remove it: %v", err)
	}
}

// recover takes an instance over.
func (e *env) recover(t *testing.T, r driver.Recoverer, h driver.Handle) driver.Instance {
	t.Helper()
	inst, err := r.Recover(t.Context(), h)
	if err != nil {
		t.Fatalf("recovering: %v (hint: %s)", err, sandpit.Hint(err))
	}
	e.removePersistent(t, inst)
	return inst
}

// checkPersistent checks whether an instance is among those that outlive their owner.
func checkPersistent(t *testing.T, r driver.Recoverer, id string, want bool) {
	t.Helper()
	for range 2 { // it changes nothing
		if ids, err := r.Persistent(t.Context()); err != nil || slices.Contains(ids, id) != want {
			t.Errorf("%s is among the persistent instances is not %v: %v, %v", id, want, ids, err)
		}
	}
}

// bare returns a handle of which nothing but the ID is known.
func bare(h driver.Handle) driver.Handle {
	h.State = nil
	return h
}

func testKeepLater(t *testing.T, e *env) {
	e.need(t, "Lives")
	r := e.recoverer(t)
	made, kill := e.another(t, Owned{ID: newID(), Kind: "kept later"})
	checkPersistent(t, r, made.Handle.ID, false)
	kill()
	e.ends(t, made.Mark)
	e.eventually(t, "nothing of it is left", func() bool { // something else may be removing it
		inst, err := r.Recover(t.Context(), bare(made.Handle))
		if err == nil {
			e.destroy(t, inst)
			t.Fatal("it has outlived its maker")
		}
		return errors.Is(err, sandpit.ErrNotFound)
	})
	optional[driver.Sweeper](t, e, e.driver).Sweep(t.Context())
	checkPersistent(t, r, made.Handle.ID, false)

	plan := e.plan(t)
	plan.Ephemeral, plan.KeepLater = false, true
	first, err := e.make(t.Context(), plan)
	if err != nil {
		t.Fatal(err)
	}
	p, err := configured(t, first).StartDetached(guarded(t), sandpit.Command{Script: "sleep 1000"}, client.Detach{})
	if err != nil {
		t.Fatal(err)
	}
	checkPersistent(t, r, plan.ID, false)
	if err := optional[driver.Keeper](t, e, first).Keep(t.Context()); err != nil {
		t.Fatal(err)
	}
	e.removePersistent(t, first)
	checkPersistent(t, r, plan.ID, true)
	h := first.Handle()
	first.(driver.Leaver).Leave()
	second := e.recover(t, e.New(t).(driver.Recoverer), h)
	if list, err := guest(t, second).Processes(guarded(t)); err != nil || len(list) != 1 || list[0].Ref != p.Ref() || list[0].Exited {
		t.Errorf("its processes are %+v, %v", list, err)
	}
}

func testRecoverLeft(t *testing.T, e *env) {
	r := e.recoverer(t)
	for name, form := range map[string]func(driver.Handle) driver.Handle{
		"by its handle": func(h driver.Handle) driver.Handle { return h },
		"by its ID":     bare,
	} {
		t.Run(name, func(t *testing.T) {
			first := e.createPersistent(t)
			p, err := configured(t, first).StartDetached(guarded(t), sandpit.Command{Script: "echo before; sleep 1000"}, client.Detach{})
			if err != nil {
				t.Fatal(err)
			}
			data, err := json.Marshal(first.Handle())
			if err != nil {
				t.Fatal(err)
			}
			first.(driver.Leaver).Leave()
			var h driver.Handle
			if err := json.Unmarshal(data, &h); err != nil {
				t.Fatal(err)
			}
			checkPersistent(t, r, h.ID, true)

			second := e.recover(t, e.New(t).(driver.Recoverer), form(h))
			if diff := cmp.Diff(h, second.Handle()); diff != "" {
				t.Errorf("the handle has changed:\n%s", diff)
			}
			c := guest(t, second)
			if list, err := c.Processes(guarded(t)); err != nil || len(list) != 1 || list[0].Ref != p.Ref() {
				t.Errorf("of its processes it has %+v, %v", list, err)
			}
			if got := shell(t, c, "echo alive"); got != "alive\n" {
				t.Errorf("got %q", got)
			}
			if m, err := second.Stats(t.Context()); err != nil || e.has(t, feature.Pids) && m.Pids < 2 {
				t.Errorf("it uses %+v, %v", m, err)
			}
			if f, ok := second.(driver.Freezer); ok && e.has(t, feature.Pause) {
				if err := f.Freeze(t.Context()); err != nil {
					t.Errorf("freezing: %v", err)
				}
				frozen(t, f, true)
				// Whoever takes it over now finds it so.
				second.(driver.Leaver).Leave()
				second = e.recover(t, r, form(h))
				frozen(t, second.(driver.Freezer), true)
			}
			select {
			case <-second.Done():
				t.Error("Done is closed")
			default:
			}
			e.destroy(t, second)
			select {
			case <-second.Done():
			default:
				t.Error("Done is not closed")
			}
			checkPersistent(t, r, h.ID, false)
			if _, err := r.Recover(t.Context(), form(h)); !errors.Is(err, sandpit.ErrNotFound) || errors.Is(err, driver.ErrRestarted) {
				t.Errorf("recovering what is gone: %v", err)
			}
		})
	}
}

func testRecoverOrphan(t *testing.T, e *env) {
	r := e.recoverer(t)
	e.need(t, "Lives")
	made, kill := e.another(t, Owned{ID: newID(), Kind: "persistent"})
	t.Cleanup(func() { e.discard(t, r, made.Handle) })
	kill()
	if !e.Lives(t, made.Mark) {
		t.Error("its guest has ended with its owner")
	}
	checkPersistent(t, r, made.Handle.ID, true)
	inst := e.recover(t, r, made.Handle)
	if got := shell(t, configured(t, inst), "echo alive"); got != "alive\n" {
		t.Errorf("got %q", got)
	}
	e.destroy(t, inst)
	e.ends(t, made.Mark)
}

func testRecoverOwned(t *testing.T, e *env) {
	r := e.recoverer(t)
	if e.Without["Owners"] != "" {
		e.without(t, "Owners")
	}
	own := e.createPersistent(t)
	made, kill := e.another(t, Owned{ID: newID(), Kind: "persistent"})
	for name, h := range map[string]driver.Handle{"this process": own.Handle(), "another process": made.Handle} {
		for _, h := range []driver.Handle{h, bare(h)} {
			if inst, err := r.Recover(t.Context(), h); !errors.Is(err, sandpit.ErrExists) {
				t.Errorf("recovering an instance of %s: %v", name, err)
				if err == nil {
					inst.(driver.Leaver).Leave()
				}
			}
		}
	}
	if got := shell(t, configured(t, own), "echo alive"); got != "alive\n" {
		t.Errorf("got %q", got)
	}
	kill()
	e.discard(t, r, made.Handle)
}

func testLeave(t *testing.T, e *env) {
	r := e.recoverer(t)
	inst := e.createPersistent(t)
	inst.(driver.Leaver).Leave()
	inst.(driver.Leaver).Leave()
	calls := map[string]func() error{
		"Dial":    func() error { _, err := inst.Dial(t.Context()); return err },
		"Stats":   func() error { _, err := inst.Stats(t.Context()); return err },
		"Destroy": func() error { return inst.Destroy(t.Context()) },
	}
	if f, ok := inst.(driver.Freezer); ok {
		calls["Freeze"] = func() error { return f.Freeze(t.Context()) }
		calls["Thaw"] = func() error { return f.Thaw(t.Context()) }
		calls["Frozen"] = func() error { _, err := f.Frozen(t.Context()); return err }
	}
	if c, ok := inst.(driver.OOMCounter); ok {
		calls["OOMKills"] = func() error { _, err := c.OOMKills(); return err }
		calls["PidsRefused"] = func() error { _, err := c.PidsRefused(); return err }
	}
	if l, ok := inst.(driver.Limiter); ok {
		calls["SetLimits"] = func() error { return l.SetLimits(t.Context(), sandpit.Limits{Pids: 10}) }
	}
	if l, ok := inst.(driver.Linker); ok {
		calls["Link"] = func() error { _, err := l.Link(t.Context(), netLink()); return err }
	}
	for name, call := range calls {
		if err := call(); !errors.Is(err, sandpit.ErrClosed) {
			t.Errorf("%s: %v", name, err)
		}
	}
	again := e.recover(t, r, inst.Handle())
	if got := shell(t, configured(t, again), "echo alive"); got != "alive\n" {
		t.Errorf("got %q", got)
	}
	e.destroy(t, again)
	again.(driver.Leaver).Leave()
	if err := again.Destroy(t.Context()); err != nil {
		t.Errorf("after Destroy, Leave has made it %v", err)
	}
}

// gone recovers an instance that ends until it has ended, and returns the error.
func (e *env) gone(t *testing.T, r driver.Recoverer, h driver.Handle) (gone error) {
	t.Helper()
	e.eventually(t, "it is gone", func() bool {
		inst, err := r.Recover(t.Context(), h)
		if err == nil {
			inst.(driver.Leaver).Leave()
		} else if !errors.Is(err, sandpit.ErrNotFound) && !errors.Is(err, sandpit.ErrExists) {
			t.Fatalf("recovering: %v", err)
		}
		gone = err
		return errors.Is(err, sandpit.ErrNotFound)
	})
	return gone
}

func testRecoverEnded(t *testing.T, e *env) {
	r := e.recoverer(t)
	e.need(t, "KillGuest")
	for _, form := range []func(driver.Handle) driver.Handle{func(h driver.Handle) driver.Handle { return h }, bare} {
		inst := e.createPersistent(t)
		inst.(driver.Leaver).Leave()
		e.KillGuest(t, inst)
		if err := e.gone(t, r, form(inst.Handle())); errors.Is(err, driver.ErrRestarted) {
			t.Errorf("recovering: %v", err)
		}
		checkPersistent(t, r, inst.Handle().ID, false)
	}
}

func testRecoverRestarted(t *testing.T, e *env) {
	r := e.recoverer(t)
	e.need(t, "Restarted")
	inst := e.createPersistent(t)
	h := e.Restarted(t, inst.Handle())
	e.destroy(t, inst)
	if _, err := r.Recover(t.Context(), h); !errors.Is(err, driver.ErrRestarted) || !errors.Is(err, sandpit.ErrNotFound) {
		t.Errorf("recovering: %v", err)
	}
}

func testRecoverInterrupted(t *testing.T, e *env) {
	r := e.recoverer(t)
	e.need(t, "Process")
	e.need(t, "Traces")
	steps := 0
	e.destroy(t, e.createPersistent(t, func(p *driver.Plan) { p.Trace = func(string, time.Duration) { steps++ } }))
	if steps == 0 {
		t.Fatal("no step was traced")
	}
	for step := range steps {
		t.Run(fmt.Sprint(step+1), func(t *testing.T) {
			h := driver.Handle{Version: driver.HandleVersion, Driver: e.driver.Name(), ID: newID()}
			_, kill := e.another(t, Owned{ID: h.ID, Kind: "persistent", Stop: step + 1})
			kill()
			e.eventually(t, "it is taken over or gone", func() bool {
				inst, err := r.Recover(t.Context(), h)
				if err == nil {
					e.destroy(t, inst)
				} else if !errors.Is(err, sandpit.ErrNotFound) && !errors.Is(err, sandpit.ErrExists) {
					t.Fatalf("recovering: %v", err)
				}
				return !errors.Is(err, sandpit.ErrExists) // what makes it has yet to end
			})
			if traces := e.Traces(t, h.ID); len(traces) > 0 {
				t.Errorf("it is gone, and there are %v", traces)
			}
			checkPersistent(t, r, h.ID, false)
		})
	}
}

func testRecoverForeign(t *testing.T, e *env) {
	r := e.recoverer(t)
	left := e.createPersistent(t)
	left.(driver.Leaver).Leave()
	short := e.create(t, e.plan(t))
	for name, c := range map[string]struct {
		change func(*driver.Handle)
		want   error
	}{
		"a newer version":         {func(h *driver.Handle) { h.Version++ }, sandpit.ErrUnsupported},
		"another driver":          {func(h *driver.Handle) { h.Driver = "another" }, sandpit.ErrInvalid},
		"a state that is none":    {func(h *driver.Handle) { h.State = json.RawMessage(`[]`) }, sandpit.ErrInvalid},
		"an ephemeral one":        {func(h *driver.Handle) { *h = short.Handle() }, sandpit.ErrInvalid},
		"an ID that nobody has":   {func(h *driver.Handle) { *h = bare(*h); h.ID = newID() }, sandpit.ErrNotFound},
		"an ID that is not one":   {func(h *driver.Handle) { *h = bare(*h); h.ID = "../" + h.ID }, sandpit.ErrInvalid},
		"the state of another ID": {func(h *driver.Handle) { h.ID = newID() }, sandpit.ErrInvalid},
	} {
		h := left.Handle()
		c.change(&h)
		if inst, err := r.Recover(t.Context(), h); !errors.Is(err, c.want) {
			t.Errorf("%s: %v", name, err)
			if err == nil {
				inst.(driver.Leaver).Leave()
			}
		}
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := r.Recover(ended, left.Handle()); !errors.Is(err, context.Canceled) {
		t.Errorf("with a context that has ended: %v", err)
	}
	for _, inst := range []driver.Instance{short, e.recover(t, r, left.Handle())} {
		if got := shell(t, configured(t, inst), "echo alive"); got != "alive\n" {
			t.Errorf("got %q", got)
		}
	}
}

func testOlder(t *testing.T, e *env) {
	r := e.recoverer(t)
	inst := e.createPersistent(t)
	optional[driver.Lacking](t, e, inst)
	e.need(t, "Older")
	h := e.Older(t, inst.Handle())
	for range 2 { // what it lacks it goes on to lack
		inst.(driver.Leaver).Leave()
		inst = e.recover(t, r, h)
		lacks := inst.(driver.Lacking).Lacks()
		if len(lacks) == 0 {
			t.Error("it lacks nothing")
		}
		for _, g := range lacks {
			if g.What == "" || g.Why == "" || g.Fix == "" {
				t.Errorf("it lacks %+v", g)
			}
		}
		h = inst.Handle()
	}
}

func testExposed(t *testing.T, e *env) {
	e.recoverer(t)
	dir := t.TempDir()
	private := filepath.Join(dir, "a", "data")
	if err := errors.Join(os.Chmod(dir, 0o755), os.MkdirAll(private, 0o755), os.Mkdir(filepath.Join(dir, "b"), 0o755)); err != nil {
		t.Fatal(err)
	}
	if !e.has(t, feature.Mounts) {
		e.without(t, "Exposer")
	}
	for name, want := range map[string]string{"a": private, "b": ""} {
		inst := e.createPersistent(t, func(p *driver.Plan) {
			p.Mounts = []sandpit.Mount{{Source: filepath.Join(dir, name), Target: "/x", ReadOnly: true}}
		})
		inst.(driver.Leaver).Leave()
		again := e.recover(t, e.New(t, private).(driver.Recoverer), inst.Handle())
		if got := optional[driver.Exposer](t, e, again).Exposed(); got != want {
			t.Errorf("with a mount of %s it shows %q, want %q", name, got, want)
		}
	}
}
