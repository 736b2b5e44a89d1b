package engine_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/driver"
	"github.com/sandpit-dev/sandpit/internal/engine"
	"github.com/sandpit-dev/sandpit/internal/policy"
	"github.com/sandpit-dev/sandpit/internal/testkit"
)

// stalling is a driver of which Recover hangs for some sandboxes.
type stalling struct {
	bare
	ids      map[string]bool
	released chan struct{}
}

func (d stalling) Recover(ctx context.Context, h driver.Handle) (driver.Instance, error) {
	if d.ids[h.ID] {
		<-d.released
	}
	return d.bare.Recover(ctx, h)
}

// Sandboxes that can't be adopted because something hangs keep neither the others
// nor the start of the server waiting, and keep their names. When it hangs no
// longer, they are adopted after all. (The catalogue's L13c.)
func TestStuckAdoption(t *testing.T) {
	testkit.NeedFull(t, "it waits for three seconds")
	srv := newSurvivor(t)
	first := srv.open(t)
	stall := stalling{bare: bare{srv.dir}, ids: map[string]bool{}, released: make(chan struct{})}
	const hanging, all = 10, 13 // more than are adopted at once
	for i := range all {
		sb := made(t, first, sandpit.Spec{Name: fmt.Sprint("box", i)})
		stall.ids[sb.ID()] = i < hanging
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	second := srv.open(t, func(o *engine.Options) {
		o.Driver, o.Patience = stall, engine.Patience{Adopt: 100 * time.Millisecond, Close: time.Millisecond, Remove: 2 * time.Second}
	})
	report, err := second.Adopt(t.Context())
	if err != nil || len(report.Refused) < hanging {
		t.Fatalf("got %+v, %v", report, err)
	}
	for _, err := range report.Refused {
		if !errors.Is(err, sandpit.ErrUnavailable) || !strings.Contains(err.Error(), "adopting sandbox box") {
			t.Errorf("one is refused for %v", err)
		}
	}
	state := func(i int) sandpit.State {
		sb, err := second.Get(t.Context(), fmt.Sprint("box", i))
		if err != nil {
			return ""
		}
		info, err := sb.Info(t.Context())
		if err != nil {
			return ""
		}
		if info.State == sandpit.StateFailed && !strings.Contains(info.Reason, "stuck") {
			t.Errorf("it has failed for %q", info.Reason)
		}
		return info.State
	}
	for i := range hanging {
		if is := state(i); is != sandpit.StateFailed {
			t.Errorf("box%d is %q", i, is)
		}
	}
	for i := hanging; i < all; i++ {
		eventually(t, "the others run", func() bool { return state(i) == sandpit.StateRunning })
	}
	if _, err := second.Create(t.Context(), sandpit.Spec{Name: "box0", User: "root", WorkDir: "/"}); !errors.Is(err, sandpit.ErrExists) {
		t.Errorf("making one of the same name: %v", err)
	}
	if err := second.Remove(t.Context(), "box0"); !errors.Is(err, sandpit.ErrUnavailable) {
		t.Errorf("removing one: %v", err)
	}
	made(t, second, sandpit.Spec{Name: "another"})
	if n := len(second.Stuck()); n != hanging+1 { // and the removal
		t.Errorf("%d are stuck", n)
	}
	close(stall.released)
	for i := 1; i < all; i++ {
		eventually(t, "all but the one that was removed run", func() bool { return state(i) == sandpit.StateRunning })
	}
	eventually(t, "nothing is stuck", func() bool { return len(second.Stuck()) == 0 })
	if n := len(second.Sandboxes()); n != all {
		t.Errorf("there are %d sandboxes", n)
	}
	if err := second.Remove(t.Context(), "box1"); err != nil {
		t.Error(err)
	}
}

// signal sends a signal to the guest of a sandbox, and waits until SIGSTOP has stopped it.
func signal(t *testing.T, srv *survivor, id string, sig syscall.Signal) {
	t.Helper()
	r, _ := srv.store.get(id)
	var d struct{ Handle driver.Handle }
	var st bareState
	if err := errors.Join(json.Unmarshal(r.Data, &d), json.Unmarshal(d.Handle.State, &st), syscall.Kill(st.PID, sig)); err != nil {
		t.Fatal(err)
	}
	if sig == syscall.SIGSTOP {
		eventually(t, "it has stopped", func() bool { return status(st.PID) == "T" })
	}
}

// thawless is bare without a freezer: a guest that is stopped stays so.
type thawless struct{ bare }

type thawlessInstance struct{ driver.Instance }

func (i thawlessInstance) Leave() {}

func (d thawless) Recover(ctx context.Context, h driver.Handle) (driver.Instance, error) {
	i, err := d.bare.Recover(ctx, h)
	if err != nil {
		return nil, err
	}
	return thawlessInstance{i}, nil
}

// A sandbox whose guest is silent when a server starts is not destroyed: it is
// shown as stuck, can be removed, and is adopted once its guest answers, by this
// server or the next. (The catalogue's L13i.)
func TestSilentGuestSurvivesARestart(t *testing.T) {
	srv := newSurvivor(t)
	first := srv.open(t)
	box, unwanted := made(t, first, sandpit.Spec{Name: "box"}), made(t, first, sandpit.Spec{Name: "unwanted"})
	background(t, box, "exec sleep 10000")
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	signal(t, srv, box.ID(), syscall.SIGSTOP)
	signal(t, srv, unwanted.ID(), syscall.SIGSTOP)
	restart := func() *engine.Engine {
		t.Helper()
		e := srv.open(t, func(o *engine.Options) {
			o.Driver, o.Patience = thawless{bare{srv.dir}}, engine.Patience{Adopt: 100 * time.Millisecond}
		})
		if report, err := e.Adopt(t.Context()); err != nil || report.Adopted+report.Failed != 0 || len(report.Refused) == 0 {
			t.Errorf("got %+v, %v", report, err)
		}
		return e
	}
	second := restart()
	if n := second.StuckCount(); n != 2 {
		t.Errorf("%d are stuck", n)
	}
	sb, err := second.Get(t.Context(), "box")
	if err != nil {
		t.Fatal(err)
	}
	if info := wantState(t, sb, sandpit.StateFailed); !strings.Contains(info.Reason, "stuck") {
		t.Errorf("it has failed for %q", info.Reason)
	}
	if err := second.Remove(t.Context(), "unwanted"); err != nil {
		t.Error(err)
	}
	if n := len(second.Sandboxes()); n != 1 {
		t.Errorf("there are %d sandboxes", n)
	}
	if err := second.Close(); err != nil {
		t.Error(err)
	}
	third := restart()
	signal(t, srv, box.ID(), syscall.SIGCONT)
	eventually(t, "it is adopted", func() bool { return third.StuckCount() == 0 })
	if sb, err = third.Get(t.Context(), "box"); err != nil {
		t.Fatal(err)
	}
	wantState(t, sb, sandpit.StateRunning)
	if all, err := sb.Processes(t.Context()); err != nil || len(all) != 1 || all[0].Result != nil {
		t.Errorf("its processes are %+v, %v", all, err)
	}
	if err := sb.Remove(t.Context()); err != nil {
		t.Error(err)
	}
}

// stallingStore is a store of which one write hangs once it is armed: that of a sandbox,
// or the next.
type stallingStore struct {
	*mapStore
	id                string // of the sandbox; empty: any
	armed             atomic.Bool
	reached, released chan struct{}
}

func (s *stallingStore) PutSandbox(ctx context.Context, r engine.Record) error {
	if (s.id == "" || r.ID == s.id) && s.armed.CompareAndSwap(true, false) {
		close(s.reached)
		<-s.released
	}
	return s.mapStore.PutSandbox(ctx, r)
}

// A record that can't be written holds up its sandbox only.
func TestStuckRecord(t *testing.T) {
	srv := newSurvivor(t)
	store := &stallingStore{mapStore: srv.store, reached: make(chan struct{}), released: make(chan struct{})}
	e := srv.open(t, func(o *engine.Options) {
		o.Store, o.Patience = store, engine.Patience{Undo: time.Millisecond}
	})
	store.armed.Store(true)
	ctx, leave := context.WithCancel(t.Context())
	created := make(chan error, 1)
	go func() {
		_, err := e.Create(ctx, sandpit.Spec{Name: "box", User: "root", WorkDir: "/"})
		created <- err
	}()
	<-store.reached
	made(t, e, sandpit.Spec{})
	leave()
	if err := <-created; !errors.Is(err, sandpit.ErrUnavailable) || !strings.Contains(err.Error(), `"record"`) {
		t.Errorf("the error is %v", err)
	}
	close(store.released)
	eventually(t, "it is gone", func() bool { return len(e.Sandboxes()) == 1 })
	if len(e.Stuck()) != 0 {
		t.Errorf("stuck are %v", e.Stuck())
	}
}

// Who waits for room is seen, and can be removed; the removal ends the wait, and
// so does the caller. (The catalogue's L20.)
func TestWaitingIsSeen(t *testing.T) {
	needGuest(t)
	e := poolEngine(t, t.TempDir(), func(o *engine.Options) {
		o.Pool, o.Capacity = engine.Pool{}, engine.Capacity{Sandboxes: 1, Wait: time.Hour}
	})
	first := create(t, e, sandpit.Spec{})
	wait := func(ctx context.Context) <-chan error {
		t.Helper()
		created := make(chan error, 1)
		go func() {
			_, err := e.Create(ctx, sandpit.Spec{Name: "waiter", Limits: sandpit.Limits{Life: time.Hour}})
			created <- err
		}()
		eventually(t, "it waits", func() bool { return e.Waiting() == 1 })
		page, err := e.List(t.Context(), sandpit.ListQuery{States: []sandpit.State{sandpit.StateCreating}})
		if err != nil || len(page.Sandboxes) != 1 || page.Sandboxes[0].Name != "waiter" || !strings.Contains(page.Sandboxes[0].Reason, "waiting for capacity") {
			t.Errorf("those being made are %+v, %v", page.Sandboxes, err)
		}
		return created
	}
	created := wait(t.Context())
	if err := e.Remove(t.Context(), "waiter"); err != nil {
		t.Errorf("removing it: %v", err)
	}
	if err := <-created; !errors.Is(err, sandpit.ErrClosed) || !strings.Contains(err.Error(), "was removed while it was being created") {
		t.Errorf("the error is %v", err)
	}
	ctx, leave := context.WithCancel(t.Context())
	created = wait(ctx)
	leave()
	if err := <-created; !errors.Is(err, context.Canceled) {
		t.Errorf("the error is %v", err)
	}
	if n := len(e.Sandboxes()); n != 1 || e.Waiting() != 0 {
		t.Errorf("there are %d sandboxes, and %d wait", n, e.Waiting())
	}
	created = wait(t.Context())
	if err := first.Remove(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-created; err != nil {
		t.Fatal(err)
	}
	sb, err := e.Get(t.Context(), "waiter")
	if err != nil {
		t.Fatal(err)
	}
	if info := wantState(t, sb, sandpit.StateRunning); info.Reason != "" || info.ExpiresAt.Before(info.CreatedAt.Add(time.Hour)) {
		t.Errorf("got %+v", info)
	}
}

// stallingProbe is a driver of which Probe hangs.
type stallingProbe struct {
	bare
	released chan struct{}
}

func (d stallingProbe) Probe(ctx context.Context) driver.Capabilities {
	<-d.released
	return d.bare.Probe(ctx)
}

// What hangs before it is known what to make, such as the file system of a mount's
// source, is waited for no longer either. (The catalogue's L13a.)
func TestStuckBeforeThereIsRoom(t *testing.T) {
	srv := newSurvivor(t)
	d := stallingProbe{bare{srv.dir}, make(chan struct{})}
	e := srv.open(t, func(o *engine.Options) {
		o.Driver, o.Patience = d, engine.Patience{Create: time.Millisecond, Undo: time.Millisecond}
	})
	_, err := e.Create(t.Context(), sandpit.Spec{Name: "box"})
	if !errors.Is(err, sandpit.ErrUnavailable) || !strings.Contains(err.Error(), `creating sandbox box is stuck (step "probe")`) {
		t.Errorf("the error is %v", err)
	}
	close(d.released)
	eventually(t, "nothing is stuck", func() bool { return len(e.Stuck()) == 0 })
	if n := len(e.Sandboxes()); n != 0 {
		t.Errorf("there are %d sandboxes", n)
	}
}

// crowded is a driver of which Probe or Create hangs while it is armed.
type crowded struct {
	bare
	step     string
	armed    atomic.Bool
	asked    atomic.Int64
	released chan struct{}
}

func (d *crowded) hang(step string) {
	if step == d.step && d.armed.Load() {
		d.asked.Add(1)
		<-d.released
	}
}

func (d *crowded) Probe(ctx context.Context) driver.Capabilities {
	d.hang("probe")
	return d.bare.Probe(ctx)
}

func (d *crowded) Create(ctx context.Context, plan driver.Plan) (driver.Instance, error) {
	d.hang("create")
	return d.bare.Create(ctx, plan)
}

// Of creates that come at once, before any of them is given up, no more get stuck
// than of those that come one after the other; and they hold up no other namespace.
func TestManyStuckAtOnce(t *testing.T) {
	for _, step := range []string{"probe", "create"} {
		t.Run(step, func(t *testing.T) {
			srv := newSurvivor(t)
			d := &crowded{bare: bare{srv.dir}, step: step, released: make(chan struct{})}
			e := srv.open(t, func(o *engine.Options) {
				o.Driver, o.Patience = d, engine.Patience{Undo: time.Millisecond}
			})
			const limit, all = 16, 50
			attacker, other := e.As("attacker", policy.Default()), e.As("other", policy.Default())
			spec := sandpit.Spec{User: "root", WorkDir: "/"}
			d.armed.Store(true)
			ctx, leave := context.WithCancel(t.Context())
			var wg sync.WaitGroup
			for range all {
				wg.Go(func() {
					if _, err := attacker.Create(ctx, spec); !errors.Is(err, sandpit.ErrUnavailable) && !errors.Is(err, sandpit.ErrExhausted) && !errors.Is(err, context.Canceled) {
						t.Errorf("the error is %v", err)
					}
				})
			}
			eventually(t, "they hang", func() bool { return d.asked.Load() >= limit })
			leave()
			wg.Wait()
			d.armed.Store(false)
			if n := d.asked.Load(); n != limit {
				t.Errorf("%d hang", n)
			}
			// Others may take longer than Undo to end on a busy machine.
			eventually(t, "only those are stuck", func() bool { return e.StuckCount() == limit })
			if _, err := attacker.Create(t.Context(), spec); !errors.Is(err, sandpit.ErrExhausted) || sandpit.RetryAfter(err) == 0 {
				t.Errorf("one more: %v", err)
			}
			made(t, other, spec)
			close(d.released)
			eventually(t, "nothing is stuck", func() bool { return e.StuckCount() == 0 })
			made(t, attacker, spec)
		})
	}
}

// stallingFigures is a driver of which Stats hangs for some sandboxes, and Persistent.
type stallingFigures struct {
	bare
	kept     bool
	hangs    atomic.Bool
	asked    atomic.Int64 // how often Stats was called while it hangs
	released chan struct{}
}

type stallingInstance struct {
	*bareInstance
	driver *stallingFigures
	hangs  bool
}

func (d *stallingFigures) Create(ctx context.Context, plan driver.Plan) (driver.Instance, error) {
	i, err := d.bare.Create(ctx, plan)
	if err != nil {
		return nil, err
	}
	return &stallingInstance{i.(*bareInstance), d, d.hangs.Load()}, nil
}

func (d *stallingFigures) Persistent(ctx context.Context) ([]string, error) {
	if d.kept {
		<-d.released
	}
	return d.bare.Persistent(ctx)
}

func (i *stallingInstance) Stats(ctx context.Context) (sandpit.Metrics, error) {
	if i.hangs {
		i.driver.asked.Add(1)
		<-i.driver.released
	}
	return i.bareInstance.Stats(ctx)
}

// A sandbox whose figures can't be read holds up neither who asks for them nor the
// history of the others, can be used and removed, and holds one thread however
// often it is asked. (The catalogue's L13f.)
func TestStuckMetrics(t *testing.T) {
	srv := newSurvivor(t)
	d := &stallingFigures{bare: bare{srv.dir}, released: make(chan struct{})}
	e := srv.open(t, func(o *engine.Options) {
		o.Driver, o.Patience = d, engine.Patience{Measure: time.Millisecond}
	})
	history := func(sb sandpit.Sandbox) int {
		t.Helper()
		all, err := sb.(sandpit.Meter).History(t.Context(), time.Time{})
		if err != nil {
			t.Fatal(err)
		}
		return len(all)
	}
	d.hangs.Store(true)
	hung := []sandpit.Sandbox{made(t, e, sandpit.Spec{Name: "hung"}), made(t, e, sandpit.Spec{})}
	d.hangs.Store(false)
	well := made(t, e, sandpit.Spec{})
	const samples = 3
	for range samples {
		e.Sample()
	}
	for range samples {
		_, err := hung[0].Metrics(t.Context())
		if !errors.Is(err, sandpit.ErrUnavailable) || !strings.Contains(err.Error(), `measuring sandbox hung is stuck (step "stats")`) {
			t.Errorf("the figures of one that hangs: %v", err)
		}
	}
	if _, err := well.Metrics(t.Context()); err != nil {
		t.Error(err)
	}
	if n, none := history(well), history(hung[0]); n < samples || none != 0 {
		t.Errorf("of the others there are %d samples, of one that hangs %d", n, none)
	}
	if n := d.asked.Load(); n != int64(len(hung)) || e.StuckCount() != len(hung) {
		t.Errorf("%d readings hang, and %d are stuck", n, e.StuckCount())
	}
	if info, err := hung[0].Info(t.Context()); err != nil || info.State != sandpit.StateRunning {
		t.Errorf("it is %+v, %v", info, err)
	}
	if err := hung[1].Remove(t.Context()); err != nil {
		t.Error(err)
	}
	close(d.released)
	eventually(t, "nothing is stuck", func() bool { return e.StuckCount() == 0 })
	if _, err := hung[0].Metrics(t.Context()); err != nil {
		t.Error(err)
	}
	if e.Sample(); history(hung[0]) != 1 {
		t.Errorf("it has %d samples", history(hung[0]))
	}
}

// A command ends although the kernel does not tell how many processes it has killed in
// the sandbox, which then holds one thread however many commands end. (The catalogue's
// L13m.)
func TestStuckKills(t *testing.T) {
	srv := newSurvivor(t)
	d := &stallingFigures{bare: bare{srv.dir}, released: make(chan struct{})}
	e := srv.open(t, func(o *engine.Options) {
		o.Driver, o.Patience = d, engine.Patience{Measure: time.Millisecond}
	})
	d.hangs.Store(true)
	sb := made(t, e, sandpit.Spec{Name: "hung"})
	const commands = 20
	var wg sync.WaitGroup
	for range commands {
		wg.Go(func() {
			if out, err := sandpit.Shell(t.Context(), sb, "exit 3"); err != nil || out.ExitCode != 3 || out.OOMKilled {
				t.Errorf("got %+v, %v", out, err)
			}
		})
	}
	wg.Wait()
	if n := d.asked.Load(); n != 1 {
		t.Errorf("%d readings hang", n)
	}
	if all := e.Stuck(); len(all) != 1 || all[0].String() != `counting kills in sandbox hung is stuck (step "oom kills")` {
		t.Errorf("stuck are %v", all)
	}
	wantState(t, sb, sandpit.StateRunning)
	close(d.released)
	eventually(t, "nothing is stuck", func() bool { return e.StuckCount() == 0 })
	if out, err := sandpit.Shell(t.Context(), sb, "exit 3"); err != nil || out.ExitCode != 3 || d.asked.Load() == 1 {
		t.Errorf("later: %+v, %v; %d readings", out, err, d.asked.Load())
	}
}

// Sandboxes of one namespace whose metrics can't be read stop the samples of that
// namespace, and neither delay nor stop those of the others. (The catalogue's L13n.)
func TestStuckMetricsOfOneNamespace(t *testing.T) {
	srv := newSurvivor(t)
	d := &stallingFigures{bare: bare{srv.dir}, released: make(chan struct{})}
	open := func(p engine.Patience) (hung []sandpit.Sandbox, own, other func() int, e *engine.Engine) {
		t.Helper()
		e = srv.open(t, func(o *engine.Options) { o.Driver, o.Patience = d, p })
		attacker := e.As("attacker", policy.Default())
		count := func(sb sandpit.Sandbox) func() int {
			return func() int {
				t.Helper()
				all, err := sb.(sandpit.Meter).History(t.Context(), time.Time{})
				if err != nil {
					t.Fatal(err)
				}
				return len(all)
			}
		}
		d.hangs.Store(true)
		for range 16 {
			hung = append(hung, made(t, attacker, sandpit.Spec{}))
		}
		d.hangs.Store(false)
		return hung, count(made(t, attacker, sandpit.Spec{})), count(made(t, e.As("other", policy.Default()), sandpit.Spec{})), e
	}
	const samples = 3

	// While none of them is given up.
	hung, own, other, first := open(engine.Patience{Measure: time.Hour, Sample: time.Hour})
	eventually(t, "the others have samples", func() bool {
		first.BeginSamples()
		return other() >= samples
	})
	if n := own(); n != 0 || d.asked.Load() != 1 {
		t.Errorf("of the namespace itself there are %d samples, and %d readings hang", n, d.asked.Load())
	}
	close(d.released)
	eventually(t, "the namespace has samples", func() bool { return own() > 0 })
	for _, sb := range hung {
		if err := sb.Remove(t.Context()); err != nil {
			t.Error(err)
		}
	}

	// When all of them are.
	d.released = make(chan struct{})
	_, own, other, second := open(engine.Patience{Measure: time.Millisecond})
	for second.StuckCount() < 16 {
		second.Sample()
	}
	before, others := own(), other()
	for range samples {
		second.Sample()
	}
	if own() != before || other() != others+samples {
		t.Errorf("of the namespace itself there are %d samples more, of the other %d", own()-before, other()-others)
	}
	close(d.released)
	eventually(t, "nothing is stuck", func() bool { return second.StuckCount() == 0 })
	if second.Sample(); own() != before+1 {
		t.Errorf("of the namespace itself there are %d samples more", own()-before)
	}
}

// A directory of running sandboxes that can't be read does not keep the server from
// starting with those that it knows; orphans are not removed then. (The catalogue's
// L13c.)
func TestStuckOrphans(t *testing.T) {
	srv := newSurvivor(t)
	first := srv.open(t)
	made(t, first, sandpit.Spec{Name: "box"})
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	d := &stallingFigures{bare: bare{srv.dir}, kept: true, released: make(chan struct{})}
	second := srv.open(t, func(o *engine.Options) {
		o.Driver, o.Patience = d, engine.Patience{Orphans: time.Millisecond, Close: time.Millisecond}
	})
	const what = "looking for sandboxes without a record is stuck"
	if ids, err := second.RemoveOrphans(t.Context()); !errors.Is(err, sandpit.ErrUnavailable) || !strings.Contains(err.Error(), what) || len(ids) != 0 {
		t.Errorf("removing orphans: %v, %v", ids, err)
	}
	report, err := second.Adopt(t.Context())
	if err != nil || report.Adopted != 1 || len(report.Refused) != 1 || !strings.Contains(report.Refused[0].Error(), what) {
		t.Errorf("got %+v, %v", report, err)
	}
	sb, err := second.Get(t.Context(), "box")
	if err != nil {
		t.Fatal(err)
	}
	wantState(t, sb, sandpit.StateRunning)
	close(d.released)
	eventually(t, "nothing is stuck", func() bool { return len(second.Stuck()) == 0 })
}

// withOrphans returns a survivor with sandboxes that an engine with another store has
// no record of, and their IDs.
func withOrphans(t *testing.T, n int) (*survivor, []string) {
	t.Helper()
	srv := newSurvivor(t)
	first := srv.open(t)
	var ids []string
	for range n {
		ids = append(ids, made(t, first, sandpit.Spec{}).ID())
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	slices.Sort(ids)
	return srv, ids
}

// An orphan that can't be removed is named, and is not waited for. (The catalogue's
// L13c.)
func TestStuckOrphan(t *testing.T) {
	srv, ids := withOrphans(t, 2)
	stall := stalling{bare: bare{srv.dir}, ids: map[string]bool{ids[0]: true}, released: make(chan struct{})}
	second := srv.open(t, func(o *engine.Options) {
		o.Store, o.Driver, o.Patience = &mapStore{}, stall, engine.Patience{Remove: 100 * time.Millisecond, Close: time.Millisecond}
	})
	removed, err := second.RemoveOrphans(t.Context())
	if !errors.Is(err, sandpit.ErrUnavailable) || !strings.Contains(err.Error(), "removing orphan "+ids[0]+" is stuck") || slices.Contains(removed, ids[0]) {
		t.Errorf("removed are %v of %v: %v", removed, ids, err)
	}
	close(stall.released)
	eventually(t, "nothing is stuck", func() bool { return len(second.Stuck()) == 0 })
}

// meeting is a driver of which Recover returns when so many calls of it wait.
type meeting struct {
	bare
	come *sync.WaitGroup
}

func (d meeting) Recover(ctx context.Context, h driver.Handle) (driver.Instance, error) {
	d.come.Done()
	d.come.Wait()
	return d.bare.Recover(ctx, h)
}

// Orphans are removed together, not one after the other.
func TestOrphansAreRemovedInParallel(t *testing.T) {
	srv, ids := withOrphans(t, 3)
	d := meeting{bare{srv.dir}, new(sync.WaitGroup)}
	d.come.Add(len(ids))
	second := srv.open(t, func(o *engine.Options) { o.Store, o.Driver = &mapStore{}, d })
	if removed, err := second.RemoveOrphans(t.Context()); err != nil || !slices.Equal(removed, ids) {
		t.Errorf("removed are %v of %v: %v", removed, ids, err)
	}
}

// A start that its caller leaves while the guest is silent is undone once the guest
// goes on, however late.
func TestLateStartIsUndone(t *testing.T) {
	srv := newSurvivor(t)
	e := srv.open(t)
	sb := made(t, e, sandpit.Spec{})
	signal(t, srv, sb.ID(), syscall.SIGSTOP)
	ctx, leave := context.WithTimeout(t.Context(), time.Millisecond)
	defer leave()
	argv := []string{"sleep", "10000", "0." + fmt.Sprint(time.Now().UnixNano())}
	if _, err := sb.Start(ctx, sandpit.Command{Argv: argv, Background: true}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the error is %v", err)
	}
	signal(t, srv, sb.ID(), syscall.SIGCONT)
	if _, err := sandpit.Exec(t.Context(), sb, "true"); err != nil { // after it
		t.Fatal(err)
	}
	eventually(t, "it is killed", func() bool {
		all, err := filepath.Glob("/proc/[0-9]*/cmdline")
		if err != nil {
			t.Fatal(err)
		}
		return !slices.ContainsFunc(all, func(path string) bool {
			line, _ := os.ReadFile(path)
			return strings.Contains(string(line), argv[2])
		})
	})
}

// cutting is bare whose guest's connections call f at every read.
type cutting struct {
	bare
	f func()
}

type cuttingInstance struct {
	driver.Instance
	f func()
}

type cuttingConn struct {
	net.Conn
	f func()
}

func (d cutting) Recover(ctx context.Context, h driver.Handle) (driver.Instance, error) {
	i, err := d.bare.Recover(ctx, h)
	if err != nil {
		return nil, err
	}
	return cuttingInstance{i, d.f}, nil
}

func (i cuttingInstance) Leave() {}

func (i cuttingInstance) Dial(ctx context.Context) (net.Conn, error) {
	conn, err := i.Instance.Dial(ctx)
	return cuttingConn{conn, i.f}, err
}

func (c cuttingConn) Read(p []byte) (int, error) {
	c.f()
	return c.Conn.Read(p)
}

// A start that is called off destroys no sandbox, however many of its processes
// have been taken over by then. (The catalogue's L13k.)
func TestCalledOffStartDestroysNothing(t *testing.T) {
	srv := newSurvivor(t)
	first := srv.open(t)
	box := made(t, first, sandpit.Spec{Name: "box"})
	const processes = 20
	for range processes {
		background(t, box, "exec sleep 10000")
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	for reads := int64(1); reads < 40; reads++ {
		ctx, cancel := context.WithCancel(t.Context())
		var n atomic.Int64
		e := srv.open(t, func(o *engine.Options) {
			o.Driver = cutting{bare{srv.dir}, func() {
				if n.Add(1) == reads {
					cancel()
				}
			}}
		})
		report, err := e.Adopt(ctx)
		cancel()
		if report.Failed != 0 {
			t.Fatalf("called off after %d reads: %+v, %v", reads, report, err)
		}
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	}
	last := srv.open(t)
	if report, err := last.Adopt(t.Context()); err != nil || report.Adopted != 1 || report.Processes != processes {
		t.Fatalf("got %+v, %v", report, err)
	}
	sb, err := last.Get(t.Context(), "box")
	if err != nil {
		t.Fatal(err)
	}
	wantState(t, sb, sandpit.StateRunning)
}
