package engine_test

import (
	"context"
	"encoding/json"
	"errors"
	"net"
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

// mute is bare with guests that do not answer, and instances that can't be
// destroyed, while it is told so.
type mute struct {
	bare
	silent, lasting atomic.Bool
}

type muteInstance struct {
	*bareInstance
	driver *mute
}

var errLasting = errors.New("it does not end")

func (d *mute) Create(ctx context.Context, plan driver.Plan) (driver.Instance, error) {
	i, err := d.bare.Create(ctx, plan)
	if err != nil {
		return nil, err
	}
	return &muteInstance{i.(*bareInstance), d}, nil
}

func (d *mute) Recover(ctx context.Context, h driver.Handle) (driver.Instance, error) {
	i, err := d.bare.Recover(ctx, h)
	if err != nil {
		return nil, err
	}
	return &muteInstance{i.(*bareInstance), d}, nil
}

func (i *muteInstance) Dial(ctx context.Context) (net.Conn, error) {
	if i.driver.silent.Load() {
		conn, _ := net.Pipe()
		return conn, nil
	}
	return i.bareInstance.Dial(ctx)
}

func (i *muteInstance) Destroy(ctx context.Context) error {
	if i.driver.lasting.Load() {
		return errLasting
	}
	return i.bareInstance.Destroy(ctx)
}

// leave makes a sandbox with a process, pauses it if so asked, and closes the engine. It
// returns the sandbox and the pid of its guest.
func (s *survivor) leave(t *testing.T, paused bool) (box sandpit.Sandbox, pid int) {
	t.Helper()
	e := s.open(t)
	box = made(t, e, sandpit.Spec{Name: "box"})
	background(t, box, "exec sleep 10000")
	if paused {
		if err := box.(sandpit.Lifecycle).Pause(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	pid = pidOf(t, s, box.ID())
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	return box, pid
}

// pidOf returns the process of the guest of a sandbox.
func pidOf(t *testing.T, srv *survivor, id string) int {
	t.Helper()
	r, _ := srv.store.get(id)
	var d struct{ Handle driver.Handle }
	var st bareState
	if err := errors.Join(json.Unmarshal(r.Data, &d), json.Unmarshal(d.Handle.State, &st)); err != nil {
		t.Fatal(err)
	}
	return st.PID
}

// expired makes the record of a sandbox say that its time is over.
func expired(t *testing.T, srv *survivor, id string) {
	t.Helper()
	srv.store.mu.Lock()
	defer srv.store.mu.Unlock()
	r := srv.store.records[id]
	var d map[string]any
	if err := json.Unmarshal(r.Data, &d); err != nil {
		t.Fatal(err)
	}
	d["deadline"] = time.Now().Add(-time.Hour)
	var err error
	if r.Data, err = json.Marshal(d); err != nil {
		t.Fatal(err)
	}
	srv.store.records[id] = r
}

// silently opens an engine whose driver is d, and adopts with little patience.
func silently(t *testing.T, srv *survivor, d driver.Driver, change ...func(*engine.Options)) (*engine.Engine, engine.AdoptReport) {
	t.Helper()
	return adopt(t, srv, append(change, func(o *engine.Options) {
		o.Driver, o.Patience = d, engine.Patience{Adopt: 200 * time.Millisecond, Expire: 100 * time.Millisecond}
	})...)
}

// A paused sandbox whose guest is silent when a server starts stands still again
// soon, stays so, and goes on with its processes once it is resumed and its guest
// answers. No end of a process is told. (The catalogue's L13u.)
func TestSilentGuestOfAPausedSandbox(t *testing.T) {
	srv := newSurvivor(t)
	_, pid := srv.leave(t, true)
	d := &mute{bare: bare{srv.dir}}
	d.silent.Store(true)
	var told ends
	second, report := silently(t, srv, d, func(o *engine.Options) { o.Observe = told.observe })
	if report.Adopted != 1 || report.Refused != nil || second.StuckCount() != 0 {
		t.Errorf("got %+v, and %d are stuck", report, second.StuckCount())
	}
	sb, err := second.Get(t.Context(), "box")
	if err != nil {
		t.Fatal(err)
	}
	asleep := func() {
		t.Helper()
		wantState(t, sb, sandpit.StatePaused)
		if is := status(pid); is != "T" {
			t.Errorf("its guest is %q", is)
		}
	}
	asleep()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := sb.(sandpit.Lifecycle).Resume(ctx); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "does not respond") {
		t.Errorf("resuming it: %v", err)
	}
	asleep()
	d.silent.Store(false)
	if err := sb.(sandpit.Lifecycle).Resume(t.Context()); err != nil {
		t.Fatal(err)
	}
	wantState(t, sb, sandpit.StateRunning)
	if all, err := sb.(sandpit.ProcessKeeper).Processes(t.Context()); err != nil || len(all) != 1 || all[0].Result != nil {
		t.Errorf("its processes are %+v, %v", all, err)
	}
	if all := told.told(); len(all) != 0 {
		t.Errorf("ends are told: %v", all)
	}
	if err := sb.Remove(t.Context()); err != nil || second.Live() != 0 {
		t.Errorf("removing it: %v; %d live", err, second.Live())
	}
}

// The time of a sandbox ends although its guest is silent: it is removed, or stands
// still if it was to be stopped or paused, and is removed where it can't be frozen.
// What it was promised is charged as long as it lives. (The catalogue's L13v.)
func TestSilentGuestExpires(t *testing.T) {
	testkit.NeedFull(t, "it waits for three seconds")
	for name, tt := range map[string]struct {
		policy sandpit.Expiry
		rigid  bool // it can't be frozen
		want   sandpit.State
	}{
		"removed":                        {sandpit.ExpiryRemove, false, ""},
		"stopped":                        {sandpit.ExpiryStop, false, sandpit.StatePaused},
		"paused":                         {sandpit.ExpiryPause, false, sandpit.StatePaused},
		"stopped, but can't stand still": {sandpit.ExpiryStop, true, ""},
	} {
		t.Run(name, func(t *testing.T) {
			srv := newSurvivor(t)
			first := srv.open(t)
			box := made(t, first, sandpit.Spec{Name: "box", OnExpiry: tt.policy})
			pid := pidOf(t, srv, box.ID())
			if err := first.Close(); err != nil {
				t.Fatal(err)
			}
			expired(t, srv, box.ID())
			d := &mute{bare: bare{srv.dir}}
			d.silent.Store(true)
			used := driver.Driver(d)
			if tt.rigid {
				signal(t, srv, box.ID(), syscall.SIGSTOP)
				used = thawless{d.bare}
			}
			one := func(o *engine.Options) { o.Capacity = engine.Capacity{Sandboxes: 1, Wait: time.Millisecond} }
			second, report := silently(t, srv, used, one)
			if report.Adopted != 0 || len(report.Refused) != 1 {
				t.Errorf("got %+v", report)
			}
			spec := sandpit.Spec{User: "root", WorkDir: "/"}
			if tt.want == "" {
				eventually(t, "it is gone", func() bool { return len(second.Sandboxes()) == 0 })
				if alive(pid) {
					t.Error("its guest lives")
				}
				if _, ok := srv.store.get(box.ID()); ok {
					t.Error("its record is there")
				}
				d.silent.Store(false)
				made(t, second, spec)
				if _, err := second.Create(t.Context(), spec); !errors.Is(err, sandpit.ErrExhausted) {
					t.Errorf("a second one: %v", err)
				}
				return
			}
			eventually(t, "it is paused", func() bool {
				sb, err := second.Get(t.Context(), "box")
				if err != nil {
					t.Fatal(err)
				}
				info, err := sb.Info(t.Context())
				return err == nil && info.State == tt.want && info.Reason == "life"
			})
			if is := status(pid); is != "T" || second.StuckCount() != 0 {
				t.Errorf("its guest is %q, and %d are stuck", is, second.StuckCount())
			}
			if _, err := second.Create(t.Context(), spec); !errors.Is(err, sandpit.ErrExhausted) {
				t.Errorf("another one: %v", err)
			}
			d.silent.Store(false)
			sb, err := second.Get(t.Context(), "box")
			if err == nil {
				err = sb.(sandpit.Lifecycle).Resume(t.Context())
			}
			if err != nil {
				t.Fatal(err)
			}
			wantState(t, sb, sandpit.StateRunning)
			if err := sb.Remove(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
}

// A running sandbox whose guest has fallen silent since stands still when its time
// is over and it was to be stopped or paused. (The catalogue's L13v.)
func TestGuestFallsSilentBeforeItExpires(t *testing.T) {
	testkit.NeedFull(t, "it waits for six seconds")
	for _, policy := range []sandpit.Expiry{sandpit.ExpiryStop, sandpit.ExpiryPause} {
		srv := newSurvivor(t)
		e := srv.open(t, func(o *engine.Options) { o.Patience = engine.Patience{Expire: 100 * time.Millisecond} })
		box := made(t, e, sandpit.Spec{OnExpiry: policy})
		if err := box.(sandpit.Lifecycle).SetLifetime(t.Context(), sandpit.Lifetime{Life: 2 * time.Second}); err != nil {
			t.Fatal(err)
		}
		signal(t, srv, box.ID(), syscall.SIGSTOP)
		eventually(t, "it is paused", func() bool {
			info, err := box.Info(t.Context())
			return err == nil && info.State == sandpit.StatePaused && info.Reason == "life"
		})
		if err := box.Remove(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

// A sandbox that could not be destroyed is listed as failed, stays charged, and can be
// removed again: one that runs, and one whose guest is silent after a restart. (The
// catalogue's L13w.)
func TestFailedRemovalIsSeen(t *testing.T) {
	for name, silent := range map[string]bool{"of one that runs": false, "of one whose guest is silent": true} {
		t.Run(name, func(t *testing.T) {
			srv := newSurvivor(t)
			first := srv.open(t)
			box := made(t, first, sandpit.Spec{Name: "box"})
			pid := pidOf(t, srv, box.ID())
			if err := first.Close(); err != nil {
				t.Fatal(err)
			}
			d := &mute{bare: bare{srv.dir}}
			d.silent.Store(silent)
			d.lasting.Store(true)
			one := func(o *engine.Options) { o.Capacity = engine.Capacity{Sandboxes: 1, Wait: time.Millisecond} }
			e, _ := silently(t, srv, d, one)
			for range 2 {
				if err := e.Remove(t.Context(), "box"); !errors.Is(err, errLasting) {
					t.Errorf("removing it: %v", err)
				}
				page, err := e.List(t.Context(), sandpit.ListQuery{})
				if err != nil || len(page.Sandboxes) != 1 || page.Sandboxes[0].State != sandpit.StateFailed || !strings.Contains(page.Sandboxes[0].Reason, errLasting.Error()) {
					t.Errorf("there are %+v, %v", page.Sandboxes, err)
				}
			}
			spec := sandpit.Spec{Name: "box", User: "root", WorkDir: "/"}
			if _, err := e.Create(t.Context(), sandpit.Spec{User: "root", WorkDir: "/"}); !errors.Is(err, sandpit.ErrExhausted) {
				t.Errorf("another one: %v", err)
			}
			d.lasting.Store(false)
			if err := e.Remove(t.Context(), "box"); err != nil || alive(pid) {
				t.Errorf("removing it at last: %v; its guest lives: %v", err, alive(pid))
			}
			d.silent.Store(false)
			made(t, e, spec)
			if _, err := e.Create(t.Context(), sandpit.Spec{User: "root", WorkDir: "/"}); !errors.Is(err, sandpit.ErrExhausted) {
				t.Errorf("what it was promised was given back more than once: %v", err)
			}
		})
	}
}

// Sandboxes of one namespace that can't be adopted, as many as are adopted at once,
// hold up no other namespace. (The catalogue's L13x.)
func TestStuckAdoptionsOfOneNamespace(t *testing.T) {
	srv := newSurvivor(t)
	first := srv.open(t)
	const together = 8
	for range together {
		made(t, first.As("attacker", policy.Default()), sandpit.Spec{})
	}
	made(t, first.As("other", policy.Default()), sandpit.Spec{})
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	// None goes on before all are there.
	d := meeting{bare{srv.dir}, new(sync.WaitGroup)}
	d.come.Add(together + 1)
	second := srv.open(t, func(o *engine.Options) {
		o.Driver, o.Patience = d, engine.Patience{Adopt: time.Hour, Close: time.Second}
	})
	var over atomic.Bool
	go func() {
		if report, err := second.Adopt(t.Context()); err != nil || report.Adopted != together+1 {
			t.Errorf("got %+v, %v", report, err)
		}
		over.Store(true)
	}()
	eventually(t, "all are adopted", over.Load)
}
