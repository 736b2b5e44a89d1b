package drivertest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/driver"
	"github.com/sandpit-dev/sandpit/internal/feature"
	"github.com/sandpit-dev/sandpit/internal/guest/client"
)

// blanks runs the promises of driver.Preparer and driver.Blank.
func blanks(t *testing.T, f Factory) {
	if _, ok := f.New(t).(driver.Preparer); !ok {
		t.Skip("this driver prepares nothing ahead: the one of internal/driver/linux does")
	}
	for _, p := range []struct {
		name string
		test func(*testing.T, *env)
	}{
		// What holds for a sandbox holds for one of a blank.
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

		{"a blank that is not used leaves nothing", testBlankDestroy},
		{"a blank is used once, by one", testBlankOnce},
		{"a blank says what it fits", testBlankFits},
		{"a connection from before Bind is good after it", testBlankDial},
		{"a blank whose guest has died is of no use, and leaves nothing", testBlankDeath},
		{"the limits of the plan hold, not those of the blank", testBlankLimits},
		{"a blank that has waited is as good as a new one", testBlankWaits},
	} {
		t.Run(p.name, func(t *testing.T) {
			if f.Unchanged != nil {
				t.Cleanup(f.Unchanged(t))
			}
			p.test(t, &env{Factory: f, driver: f.New(t), warm: true})
		})
	}
}

// blankFor returns what of a plan is known ahead.
func blankFor(plan driver.Plan) driver.BlankPlan {
	return driver.BlankPlan{Ephemeral: plan.Ephemeral, UID: plan.UID, GID: plan.GID, MultiUser: plan.MultiUser, Limits: plan.Limits, Enforce: plan.Enforce}
}

// blank prepares a blank that fits a plan.
func (e *env) blank(t *testing.T, plan driver.Plan) driver.Blank {
	t.Helper()
	b, err := e.driver.(driver.Preparer).Prepare(t.Context(), plan.ID, blankFor(plan))
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
	if b.Usable() {
		t.Error("it can be used again")
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

func testBlankFits(t *testing.T, e *env) {
	plan := e.plan(t)
	b := e.blank(t, plan)
	for name, change := range map[string]func(*driver.Plan){
		"kept":                  func(p *driver.Plan) { p.Ephemeral = !p.Ephemeral },
		"other limits enforced": func(p *driver.Plan) { p.Enforce = feature.Set{} },
	} {
		other := plan
		change(&other)
		if b.Fits(other) && (name == "kept" || plan.Enforce[feature.Memory] || plan.Enforce[feature.Pids] || plan.Enforce[feature.CPUs]) {
			t.Errorf("it fits a plan with %s", name)
		}
	}
	same := plan
	same.ID, same.Hostname, same.ReadOnly = "another", "other", true
	same.Limits.Memory, same.Limits.Disk, same.Limits.Pids = plan.Limits.Memory/2, plan.Limits.Disk/2, plan.Limits.Pids*2
	same.Root.Files = []driver.File{{Path: "/x", Mode: 0o644}}
	if !b.Fits(same) {
		t.Error("what is known only later is in its way")
	}
	if b.Fits(plan) {
		bound := plan
		bound.Ephemeral = !plan.Ephemeral
		if _, err := b.Bind(t.Context(), bound); !errors.Is(err, sandpit.ErrInvalid) {
			t.Errorf("binding what does not fit: %v", err)
		}
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

func testBlankDeath(t *testing.T, e *env) {
	if e.KillBlank == nil {
		t.Skip("this driver's test has no way to kill the guest of a blank: that of internal/driver/linux has")
	}
	plan := e.plan(t)
	b := e.blank(t, plan)
	e.KillBlank(t, b)
	for end := time.Now().Add(guard); b.Usable(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("it is still usable")
		}
	}
	if b.Fits(plan) {
		t.Error("it fits")
	}
	if inst, err := b.Bind(t.Context(), plan); err == nil {
		e.destroy(t, inst)
		t.Error("it can be bound")
	}
}

func testBlankLimits(t *testing.T, e *env) {
	for _, factor := range []int64{1, 4} { // smaller than those of the blank, and larger
		plan := e.plan(t)
		b := e.blank(t, plan)
		plan.Limits.Disk, plan.Limits.Files = 8<<20*factor*factor*factor, 1000*factor*factor*factor*factor
		plan.Limits.Memory, plan.Limits.Pids, plan.Limits.CPUs = 64<<20*factor*factor, 50*factor*factor, 0.5*float64(factor)
		inst, err := b.Bind(t.Context(), plan)
		if err != nil {
			t.Fatal(err)
		}
		c := configured(t, inst)
		want := fmt.Sprintf("%d\n%d\n", plan.Limits.Disk>>10, plan.Limits.Files)
		if got := shell(t, c, "df -Pk / | awk 'NR>1 { print $2 }'; df -Pi / | awk 'NR>1 { print $2 }'"); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
		e.destroy(t, inst)
	}
}

func testBlankWaits(t *testing.T, e *env) {
	plans := []driver.Plan{e.plan(t), e.plan(t), e.plan(t)}
	waiting := make([]driver.Blank, len(plans))
	for i, plan := range plans {
		waiting[i] = e.blank(t, plan)
	}
	time.Sleep(100 * time.Millisecond)
	for i, b := range waiting {
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
