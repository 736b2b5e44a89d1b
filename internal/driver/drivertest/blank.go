package drivertest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"testing"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/driver"
	"github.com/sandpit-dev/sandpit/internal/feature"
	"github.com/sandpit-dev/sandpit/internal/guest/client"
)

// blankProperties are those of Preparer and Blank. What holds for a sandbox also holds
// for one of a blank.
var blankProperties = []property{
	{"of a blank: Create returns when the guest can be dialled", testCreate},
	{"of a blank: Dial may be called many times, by many", testDial},
	{"of a blank: after Destroy Dial is ErrClosed", testDialAfterDestroy},
	{"of a blank: Destroy is idempotent, may race, and works when its context has ended", testDestroy},
	{"of a blank: Done is closed when the guest dies", testDone},
	{"of a blank: Stats read what is used", testStats},
	{"of a blank: a Handle survives JSON", testHandle},
	{"of a blank: what can't be enforced is ErrUnsupported", testUnknownLimits},
	{"of a blank: Bind that fails leaves nothing", testCreateFails},
	{"of a blank: Prepare or Bind whose context ends leaves nothing, at every step", testCreateCancelled},
	{"of a blank: 16 at once", testCreateMany},
	{"of a blank: every part of the plan is seen inside", testPlan},
	{"of a blank: each way to restrict writing holds", testWriting},
	{"of a blank: mounts are read-only or writable as the plan says", testMounts},
	{"of a blank: Recover takes over an instance whose owner left it, with all that runs in it", testRecoverLeft},
	{"of a blank: Link makes an interface to which every destination leads", testLink},
	{"the interface of a blank's plan can be made ahead", testBlankLink},
	{"of a blank: Progress tells of each call", testProgress},

	{"a blank that is not used leaves nothing", testBlankDestroy},
	{"a blank ends with the process that made it", testEphemeral},
	{"a blank is used once, by one", testBlankOnce},
	{"Bind and Destroy may race", testBlankRaces},
	{"a blank says what it fits", testBlankFits},
	{"a connection from before Bind is good after it", testBlankDial},
	{"a blank whose guest has died is of no use, and leaves nothing", testBlankDeath},
	{"the limits of the plan hold, not those of the blank", testLimits},
	{"a blank that has waited is as good as a new one", testBlankWaits},
}

// blankFor returns what of a plan is known ahead.
func blankFor(plan driver.Plan) driver.BlankPlan {
	return driver.BlankPlan{Ephemeral: plan.Ephemeral, UID: plan.UID, GID: plan.GID, MultiUser: plan.MultiUser, Limits: plan.Limits, Enforce: plan.Enforce}
}

// blank prepares a blank that fits a plan.
func (e *env) blank(t *testing.T, plan driver.Plan) driver.Blank {
	t.Helper()
	b, err := optional[driver.Preparer](t, e, e.driver).Prepare(t.Context(), plan.ID, blankFor(plan))
	if err != nil {
		t.Fatalf("preparing: %v (hint: %s)", err, sandpit.Hint(err))
	}
	t.Cleanup(func() {
		if err := b.Destroy(context.Background()); err != nil {
			t.Errorf("destroying a blank: %v", err)
		}
	})
	return b
}

func testBlankDestroy(t *testing.T, e *env) {
	for i := range 3 {
		plan := e.plan(t)
		b := e.blank(t, plan)
		if b.ID() != plan.ID || !b.Usable() || !b.Fits(plan) {
			t.Errorf("the blank is %s, usable %v", b.ID(), b.Usable())
		}
		if i == 1 {
			if conn, err := b.Dial(t.Context()); err == nil {
				defer conn.Close()
			}
		}
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				if err := b.Destroy(ended); err != nil {
					t.Errorf("destroying: %v", err)
				}
			})
		}
		wg.Wait()
		if b.Usable() || b.Fits(plan) {
			t.Error("it can be used after Destroy")
		}
		if _, err := b.Bind(t.Context(), plan); !errors.Is(err, sandpit.ErrState) {
			t.Errorf("binding what is destroyed: %v", err)
		}
		if _, err := b.Dial(t.Context()); !errors.Is(err, sandpit.ErrState) {
			t.Errorf("dialling what is destroyed: %v", err)
		}
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	plan := e.plan(t)
	if _, err := e.driver.(driver.Preparer).Prepare(ended, plan.ID, blankFor(plan)); !errors.Is(err, context.Canceled) {
		t.Errorf("preparing with a context that has ended: %v", err)
	}
	plan.Enforce["no-such-limit"] = true
	if _, err := e.driver.(driver.Preparer).Prepare(t.Context(), plan.ID, blankFor(plan)); !errors.Is(err, sandpit.ErrUnsupported) {
		t.Errorf("an unknown limit gives %v", err)
	}
}

func testBlankOnce(t *testing.T, e *env) {
	plan := e.plan(t)
	b := e.blank(t, plan)
	var mu sync.Mutex
	var made []driver.Instance
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			inst, err := b.Bind(t.Context(), plan)
			if err != nil {
				if !errors.Is(err, sandpit.ErrState) {
					t.Errorf("binding what is used: %v", err)
				}
				return
			}
			mu.Lock()
			made = append(made, inst)
			mu.Unlock()
		})
	}
	wg.Wait()
	if len(made) != 1 {
		t.Fatalf("it was used %d times", len(made))
	}
	defer e.destroy(t, made[0])
	// Nothing that is done with the blank touches what has become of it.
	if err := b.Destroy(t.Context()); err != nil {
		t.Error(err)
	}
	if b.Usable() || b.Fits(plan) {
		t.Error("it can be used again")
	}
	if _, err := b.Dial(t.Context()); !errors.Is(err, sandpit.ErrState) {
		t.Errorf("dialling what is used: %v", err)
	}
	if got := shell(t, configured(t, made[0]), "echo alive"); got != "alive\n" {
		t.Errorf("got %q", got)
	}

	// It is used up by a Bind that fails.
	other := e.plan(t)
	b = e.blank(t, other)
	bad := other
	bad.Mounts = []sandpit.Mount{{Source: "/no/such", Target: "/x"}}
	if _, err := b.Bind(t.Context(), bad); !errors.Is(err, sandpit.ErrInvalid) {
		t.Errorf("got %v", err)
	}
	if _, err := b.Bind(t.Context(), other); !errors.Is(err, sandpit.ErrState) {
		t.Errorf("after it has failed: %v", err)
	}
	// And by one that was meant for another.
	b = e.blank(t, e.plan(t))
	if _, err := b.Bind(t.Context(), e.plan(t)); !errors.Is(err, sandpit.ErrInvalid) {
		t.Errorf("with another id: %v", err)
	}
}

func testBlankRaces(t *testing.T, e *env) {
	for range 5 {
		plan := e.plan(t)
		b := e.blank(t, plan)
		var wg sync.WaitGroup
		for range 2 {
			wg.Go(func() {
				if err := b.Destroy(t.Context()); err != nil {
					t.Errorf("destroying: %v", err)
				}
			})
			wg.Go(func() {
				if b.Usable() {
					b.Fits(plan)
				}
			})
		}
		inst, err := b.Bind(t.Context(), plan)
		wg.Wait()
		if err == nil {
			if got := shell(t, configured(t, inst), "echo alive"); got != "alive\n" {
				t.Errorf("got %q", got)
			}
			e.destroy(t, inst)
		} else if !errors.Is(err, sandpit.ErrState) {
			t.Errorf("binding: %v", err)
		}
	}
}

// testBlankFits binds what fits, and what does not: that Fits says so is not enough.
func testBlankFits(t *testing.T, e *env) {
	for name, c := range map[string]struct {
		change func(*driver.Plan)
		must   bool // it must fit
	}{
		"the same": {func(*driver.Plan) {}, true},
		"what is known only later": {func(p *driver.Plan) {
			p.Hostname, p.ReadOnly = "other", true
			p.Limits.Memory, p.Limits.Disk, p.Limits.Pids = p.Limits.Memory/2, p.Limits.Disk/2, p.Limits.Pids*2
			p.Root.Files = []driver.File{{Path: "/x", Mode: 0o644}}
		}, true},
		"another way to end":    {func(p *driver.Plan) { p.Ephemeral = !p.Ephemeral }, false},
		"other limits enforced": {func(p *driver.Plan) { p.Enforce = feature.Set{} }, false},
		"another user":          {func(p *driver.Plan) { p.UID, p.GID = 0, 0 }, false},
		"other users beside it": {func(p *driver.Plan) { p.MultiUser = !p.MultiUser }, false},
	} {
		t.Run(name, func(t *testing.T) {
			plan := e.plan(t)
			b := e.blank(t, plan)
			c.change(&plan)
			other := plan
			other.ID = newID()
			fits := b.Fits(plan)
			if c.must && !fits {
				t.Error("it does not fit")
			}
			if fits && !plan.Ephemeral {
				t.Error("that it is ephemeral is not final")
			}
			if b.Fits(other) != fits {
				t.Error("its ID makes a difference")
			}
			inst, err := b.Bind(t.Context(), plan)
			switch {
			case err != nil && (fits || !errors.Is(err, sandpit.ErrInvalid)):
				t.Errorf("that it fits is %v, and binding gives %v", fits, err)
			case err == nil && !fits:
				e.destroy(t, inst)
				t.Error("what does not fit is bound")
			case err == nil:
				defer e.destroy(t, inst)
				c := guest(t, inst)
				if err := c.Configure(guarded(t), client.Config{User: fmt.Sprintf("%d:%d", plan.UID, plan.GID)}); err != nil {
					t.Fatal(err)
				}
				if got, want := shell(t, c, "id -u; uname -n"), fmt.Sprintf("%d\n%s\n", plan.UID, plan.Hostname); got != want {
					t.Errorf("got %q, want %q", got, want)
				}
			}
		})
	}
}

func testBlankDial(t *testing.T, e *env) {
	plan := e.plan(t)
	b := e.blank(t, plan)
	conn, err := b.Dial(t.Context())
	if errors.Is(err, sandpit.ErrUnsupported) {
		t.Skipf("its guest starts only when it is bound (%v): it starts before that where sandboxes have ids of their own", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	c, err := client.New(guarded(t), conn, client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	inst, err := b.Bind(t.Context(), plan)
	if err != nil {
		t.Fatal(err)
	}
	defer e.destroy(t, inst)
	if err := c.Configure(guarded(t), client.Config{User: "1000:1000"}); err != nil {
		t.Fatal(err)
	}
	if got := shell(t, c, "hostname; cd /; id -u"); got != plan.Hostname+"\n1000\n" {
		t.Errorf("got %q", got)
	}
	if got := shell(t, guest(t, inst), "echo other"); got != "other\n" {
		t.Errorf("got %q", got)
	}
}

func testBlankLink(t *testing.T, e *env) {
	l := netLink()
	bare := e.plan(t)
	plan := bare
	if plan.Link = &l; !e.has(t, feature.Egress) {
		t.Skip("needs the feature egress: the driver lacks it here")
	}
	try := func(ctx context.Context, b driver.Blank) (*os.File, error) {
		wait, err := optional[driver.BlankLinker](t, e, b).Link(ctx, l)
		if err != nil {
			return nil, err
		}
		return wait()
	}
	link := func(b driver.Blank) *os.File {
		t.Helper()
		f, err := try(t.Context(), b)
		if err != nil {
			t.Fatalf("linking: %v (hint: %s)", err, sandpit.Hint(err))
		}
		t.Cleanup(func() { _ = f.Close() })
		return f
	}
	b := e.blank(t, plan)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if f, err := try(ended, b); !errors.Is(err, context.Canceled) || !b.Usable() {
		t.Errorf("linking with a context that has ended: %v, %v", f, err)
	}
	f := link(b)
	if f, err := try(t.Context(), b); !errors.Is(err, sandpit.ErrState) {
		t.Errorf("linking twice: %v, %v", f, err)
	}
	if !b.Fits(plan) || b.Fits(bare) {
		t.Errorf("linked, it fits a plan with the interface: %v, and one without: %v", b.Fits(plan), b.Fits(bare))
	}
	inst, err := b.Bind(t.Context(), plan)
	if err != nil {
		t.Fatal(err)
	}
	c := configured(t, inst)
	carries(t, f)
	if f, err := try(t.Context(), b); !errors.Is(err, sandpit.ErrState) {
		t.Errorf("linking what is bound: %v, %v", f, err)
	}
	if f, err := e.linker(t, inst).Link(t.Context(), l); !errors.Is(err, sandpit.ErrExists) {
		t.Errorf("linking the instance, too: %v, %v", f, err)
	}
	_ = f.Close()
	carries(t, e.link(t, inst))
	if got := shell(t, c, "cat /proc/net/dev | wc -l"); got != "4\n" {
		t.Errorf("there are %s lines about interfaces", got)
	}
	e.destroy(t, inst)

	destroyed := e.plan(t)
	b = e.blank(t, destroyed)
	_ = link(b).Close()
	if err := b.Destroy(t.Context()); err != nil {
		t.Error(err)
	}
	if f, err := try(t.Context(), b); !errors.Is(err, sandpit.ErrState) {
		t.Errorf("linking what is destroyed: %v, %v", f, err)
	}

	for range 5 { // beside Bind: one of them comes first
		beside := e.plan(t)
		beside.Link = &l
		b := e.blank(t, beside)
		var f *os.File
		var failed error
		var wg sync.WaitGroup
		wg.Go(func() { f, failed = try(t.Context(), b) })
		inst, err := b.Bind(t.Context(), beside)
		wg.Wait()
		if err != nil {
			t.Fatal(err)
		}
		configured(t, inst)
		if failed != nil && !errors.Is(failed, sandpit.ErrState) {
			t.Errorf("linking: %v", failed)
		}
		if failed != nil {
			f = e.link(t, inst)
		}
		carries(t, f)
		_ = f.Close()
		e.destroy(t, inst)
	}
}

func testBlankDeath(t *testing.T, e *env) {
	e.need(t, "KillBlank")
	plan := e.plan(t)
	b := e.blank(t, plan)
	e.KillBlank(t, b)
	e.eventually(t, "it is not usable", func() bool { return !b.Usable() })
	if b.Fits(plan) {
		t.Error("it fits")
	}
	if inst, err := b.Bind(t.Context(), plan); err == nil {
		e.destroy(t, inst)
		t.Error("it can be bound")
	}
}

func testBlankWaits(t *testing.T, e *env) {
	plans := []driver.Plan{e.plan(t), e.plan(t), e.plan(t)}
	waiting := make([]driver.Blank, len(plans))
	for i, plan := range plans {
		waiting[i] = e.blank(t, plan)
	}
	for i, b := range waiting { // they wait for as long as those before them live
		inst, err := b.Bind(t.Context(), plans[i])
		if err != nil {
			t.Fatal(err)
		}
		if got := shell(t, configured(t, inst), "echo $((6*7)); ls / | grep -c -x -e dev -e proc -e sys -e tmp"); got != "42\n4\n" {
			t.Errorf("got %q", got)
		}
		e.destroy(t, inst)
	}
}
