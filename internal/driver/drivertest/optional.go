package drivertest

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/driver"
	"github.com/sandpit-dev/sandpit/internal/feature"
	"github.com/sandpit-dev/sandpit/internal/guest/client"
)

// optionalProperties are those of optional interfaces but Recoverer and Preparer.
var optionalProperties = []property{
	{"Examine finds what Probe finds, and facts", testExamine},
	{"Freeze stops all processes until Thaw", testFreeze},
	{"a frozen instance can be destroyed", testDestroyFrozen},
	{"OOMKills and PidsRefused are what Stats has", testCounters},
	{"SetLimits changes limits while programs run, also after Recover", testSetLimits},
	{"SetLimits changes nothing if one of the limits was not enforced before", testSetMissingLimits},
	{"Explain returns what it is given for a guest that answered", testExplain},
	{"Lacks and Exposed tell nothing of a sandbox without a gap", testWhole},
	{"Sweep removes what killed processes left, and nothing else", testSweep},
}

func testExamine(t *testing.T, e *env) {
	x := optional[driver.Examiner](t, e, e.driver)
	probed, got := e.driver.Probe(t.Context()), x.Examine(t.Context())
	if !got.Available || got.MaxNoFile != probed.MaxNoFile {
		t.Errorf("it finds %+v", got)
	}
	if diff := cmp.Diff(probed.Features, got.Features); diff != "" {
		t.Errorf("Probe finds other features:\n%s", diff)
	}
	gaps := map[string]sandpit.Gap{}
	for _, g := range got.Gaps {
		if gaps[g.What] = g; g.Why == "" || g.Fix == "" {
			t.Errorf("a gap is %+v", g)
		}
	}
	for _, g := range probed.Gaps {
		if gaps[g.What] != g {
			t.Errorf("Probe finds the gap %+v, and this %+v", g, gaps[g.What])
		}
	}
	if len(got.Facts) == 0 {
		t.Error("it finds no facts")
	}
	for _, f := range got.Facts {
		if f.Name == "" || f.Value == "" {
			t.Errorf("a fact is %+v", f)
		}
	}
}

// freezer makes an instance that can be frozen, or skips the test.
func (e *env) freezer(t *testing.T) (driver.Instance, driver.Freezer) {
	t.Helper()
	inst := e.create(t, e.plan(t))
	f, ok := inst.(driver.Freezer)
	switch {
	case e.has(t, feature.Pause) && !ok:
		t.Fatal("the driver has feature.Pause, and its instance is not a Freezer")
	case e.has(t, feature.Pause):
		return inst, f
	}
	if ok {
		if err := f.Freeze(t.Context()); !errors.Is(err, sandpit.ErrUnsupported) {
			t.Errorf("freezing: %v", err)
		}
		frozen(t, f, false)
	}
	t.Skip("needs the feature pause: the driver lacks it here")
	return nil, nil
}

// frozen checks what Frozen reports.
func frozen(t *testing.T, f driver.Freezer, want bool) {
	t.Helper()
	if is, err := f.Frozen(t.Context()); err != nil || is != want {
		t.Errorf("frozen: %v, %v, want %v", is, err, want)
	}
}

// answers reports whether the guest answers a new connection within a time.
func answers(t *testing.T, inst driver.Instance, within time.Duration) bool {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	conn, err := inst.Dial(ctx)
	if err == nil {
		var c *client.Client
		if c, err = client.New(ctx, conn, client.Options{}); err == nil {
			return c.Close() == nil
		}
	}
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("dialling and greeting: %v", err)
	}
	return false
}

// limiter returns an instance as a Limiter, or skips the test.
func (e *env) limiter(t *testing.T, inst driver.Instance) driver.Limiter {
	t.Helper()
	l, ok := inst.(driver.Limiter)
	caps := e.driver.Probe(t.Context())
	if len(caps.Changeable) > 0 && !ok {
		t.Fatal("the driver has changeable limits, and its instance is not a Limiter")
	}
	for _, f := range feature.Changeable() {
		if !caps.Changeable[f] {
			t.Skipf("needs the feature %s, and to change it: the driver lacks it here", f)
		}
	}
	return l
}

func testSetLimits(t *testing.T, e *env) {
	limits := func(p *driver.Plan) { p.Limits.Memory, p.Limits.CPUs, p.Limits.Pids = 128<<20, 2, 32 }
	plan := e.plan(t)
	limits(&plan)
	e.changed(t, e.limiter(t, e.create(t, plan)))
	if e.Without["Recoverer"] != "" {
		return
	}
	r := e.recoverer(t)
	made := e.createPersistent(t, limits)
	made.(driver.Leaver).Leave()
	again := e.recover(t, r, made.Handle())
	e.changed(t, e.limiter(t, again))
	e.destroy(t, again)
}

// fork starts processes until no more are allowed, and returns their number. They are gone
// when it returns, and no longer counted.
func (e *env) fork(t *testing.T, c *client.Client) int {
	t.Helper()
	all := func() int { return len(shell(t, c, "for p in /proc/[0-9]*; do echo; done")) }
	before := all()
	out := &buffer{}
	p, err := c.Start(guarded(t), sandpit.Command{Script: "(while sleep 1000 & do echo; done) 2>/dev/null; kill -9 -1", Stdout: out})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Wait(guarded(t)); err != nil {
		t.Fatal(err)
	}
	e.eventually(t, "the killed processes are gone", func() bool { return all() <= before })
	return len(out.b)
}

// settled is fork, until it counts the same twice: at the first count a process that has just ended
// may still hold a place.
func (e *env) settled(t *testing.T, c *client.Client) int {
	t.Helper()
	n := e.fork(t, c)
	e.eventually(t, "two counts are equal", func() bool {
		last := n
		n = e.fork(t, c)
		return n == last
	})
	return n
}

// changed changes the limits of an instance with 128 MiB of memory, 2 CPUs and 32 processes.
func (e *env) changed(t *testing.T, l driver.Limiter) {
	t.Helper()
	inst := l.(driver.Instance)
	c := configured(t, inst)
	few := e.settled(t, c)
	set := func(limits sandpit.Limits) {
		t.Helper()
		if err := l.SetLimits(t.Context(), limits); err != nil {
			t.Fatalf("setting %+v: %v", limits, err)
		}
	}
	// more checks that there can be 32 more processes. Where the guest counts, its threads do.
	more := func() {
		t.Helper()
		if many := e.settled(t, c); many > few+32 || many <= 32 || !e.countsGuest(t) && many != few+32 {
			t.Errorf("with 32 more processes there are %d, before %d", many, few)
		}
	}
	set(sandpit.Limits{})
	set(sandpit.Limits{Pids: 64, CPUs: 1})
	more()
	for name, other := range map[string]sandpit.Limits{"disk": {Pids: 1000, Disk: 1 << 30}, "files": {Pids: 1000, Files: 1000}, "nofile": {Pids: 1000, NoFile: 1000}, "output": {Pids: 1000, Output: 1 << 20}, "life": {Pids: 1000, Life: time.Hour}} {
		if err := l.SetLimits(t.Context(), other); !errors.Is(err, sandpit.ErrUnsupported) {
			t.Errorf("changing %s, which can't be changed: %v", name, err)
		}
	}
	set(sandpit.Limits{CPUs: 0.5})
	checkCPUs(t, inst, c, 0.5)
	set(sandpit.Limits{CPUs: 2})
	shell(t, c, "head -c 40M /dev/zero >/dev/shm/f")
	if err := l.SetLimits(t.Context(), sandpit.Limits{Memory: 32 << 20, Pids: 1000}); !errors.Is(err, sandpit.ErrState) {
		t.Errorf("less memory than is in use: %v", err)
	}
	more() // since nothing has changed
	shell(t, c, "head -c 30M /dev/zero >/dev/shm/g; rm /dev/shm/f /dev/shm/g")
	set(sandpit.Limits{Memory: 32 << 20})
	if f, ok := l.(driver.Freezer); ok && f.Freeze(t.Context()) == nil {
		set(sandpit.Limits{Memory: 96 << 20})
		if err := f.Thaw(t.Context()); err != nil {
			t.Error(err)
		}
	}
	set(sandpit.Limits{Memory: 96 << 20})
	before, err := inst.Stats(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	shell(t, c, "head -c 40M /dev/zero >/dev/shm/f; rm /dev/shm/f")
	if after, err := inst.Stats(t.Context()); err != nil || after.OOMKills != before.OOMKills {
		t.Errorf("with more memory: %+v, %v, before %+v", after, err, before)
	}
}

// checkCPUs checks that a program gets no more than a number of CPUs.
func checkCPUs(t *testing.T, inst driver.Instance, c *client.Client, cpus float64) {
	t.Helper()
	began := time.Now()
	before, err := inst.Stats(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	p, err := c.Start(guarded(t), sandpit.Command{Script: "ulimit -t 1; while :; do :; done"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Wait(guarded(t)); err != nil {
		t.Fatal(err)
	}
	after, err := inst.Stats(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	// What is left of one period of the scheduler, and the start of another, come on top.
	took := time.Since(began)
	if used := after.CPU - before.CPU; used.Seconds() > cpus*(took.Seconds()+0.3) {
		t.Errorf("within %v, %v of %g CPUs are used", took, used, cpus)
	}
}

// countsGuest reports whether a limit of processes counts the guest, too.
func (e *env) countsGuest(t *testing.T) bool {
	return slices.ContainsFunc(e.driver.Probe(t.Context()).Gaps, func(g sandpit.Gap) bool { return g.What == feature.GapGuestPids })
}

func testSetMissingLimits(t *testing.T, e *env) {
	for _, missing := range []feature.Feature{feature.Memory, feature.CPUs, feature.Pids} {
		plan := e.plan(t)
		plan.Limits.Memory, plan.Limits.Pids = 128<<20, 32
		plan.Enforce[missing] = false
		inst := e.create(t, plan)
		l := e.limiter(t, inst)
		if err := l.SetLimits(t.Context(), sandpit.Limits{Memory: 96 << 20, CPUs: 1, Pids: 8}); !errors.Is(err, sandpit.ErrUnsupported) {
			t.Errorf("made without %s, which is to be changed: %v", missing, err)
		}
		if !plan.Enforce[feature.Pids] {
			continue
		}
		if n := e.fork(t, configured(t, inst)); n <= 8 || n > 32 {
			t.Errorf("made without %s, after a change that was refused there are %d processes of 32", missing, n)
		}
	}
}

func testFreeze(t *testing.T, e *env) {
	inst, f := e.freezer(t)
	frozen(t, f, false)
	if err := f.Thaw(t.Context()); err != nil {
		t.Errorf("thawing a running instance: %v", err)
	}
	busy := configured(t, inst)
	p, err := busy.Start(t.Context(), sandpit.Command{Script: "while [ ! -e /tmp/enough ]; do :; done; exit 7"})
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := f.Freeze(t.Context()); err != nil {
			t.Fatalf("freezing: %v", err)
		}
		frozen(t, f, true)
	}
	// The kernel may count the last moment of a process late: it is waited for.
	before, err := inst.Stats(t.Context())
	for end := time.Now().Add(guard); err == nil && time.Now().Before(end); {
		time.Sleep(20 * time.Millisecond)
		last := before.CPU
		if before, err = inst.Stats(t.Context()); before.CPU == last {
			break
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	if answers(t, inst, 50*time.Millisecond) {
		t.Error("a frozen guest answers")
	}
	// A clock that ticks slower than this would count nothing either way.
	if after, err := inst.Stats(t.Context()); err != nil || after.CPU != before.CPU {
		t.Errorf("frozen, it has used %v and then %v, %v", before.CPU, after.CPU, err)
	}
	for range 2 {
		if err := f.Thaw(t.Context()); err != nil {
			t.Fatalf("thawing: %v", err)
		}
		frozen(t, f, false)
	}
	if !answers(t, inst, guard) {
		t.Error("a thawed guest does not answer")
	}
	shell(t, busy, ">/tmp/enough")
	if res, err := p.Wait(guarded(t)); err != nil || res.ExitCode != 7 {
		t.Errorf("the process ends with %+v, %v", res, err)
	}
}

func testDestroyFrozen(t *testing.T, e *env) {
	inst, f := e.freezer(t)
	if err := f.Freeze(t.Context()); err != nil {
		t.Fatal(err)
	}
	e.destroy(t, inst)
	select {
	case <-inst.Done():
	default:
		t.Error("Done is not closed")
	}
	if err := f.Freeze(t.Context()); err == nil {
		t.Error("it can be frozen after Destroy")
	}
}

func testCounters(t *testing.T, e *env) {
	plan := e.plan(t)
	plan.Limits.Memory, plan.Limits.Pids = 64<<20, 32
	inst := e.create(t, plan)
	counter := optional[driver.OOMCounter](t, e, inst)
	c := configured(t, inst)
	// check compares the counters with Stats, and with whether there is something to count.
	check := func(when string, killed, refused bool) {
		t.Helper()
		kills, err := counter.OOMKills()
		if err != nil {
			t.Fatal(err)
		}
		refusals, err := counter.PidsRefused()
		if err != nil {
			t.Fatal(err)
		}
		m, err := inst.Stats(t.Context())
		switch {
		case err != nil:
			t.Fatal(err)
		case kills != m.OOMKills || refusals != m.PidsRefused:
			t.Errorf("%s: %d out-of-memory kills and %d refused processes, and Stats has %+v", when, kills, refusals, m)
		case e.has(t, feature.Memory) && (kills > 0) != killed, e.has(t, feature.Pids) && refusals >= 0 && (refusals > 0) != refused:
			t.Errorf("%s: %d out-of-memory kills and %d refused processes", when, kills, refusals)
		}
	}
	check("at first", false, false)
	if e.has(t, feature.Pids) {
		e.fork(t, c)
	}
	check("after too many processes", false, true)
	if e.has(t, feature.Memory) {
		p, err := c.Start(guarded(t), sandpit.Command{Script: "tail /dev/zero"})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := p.Wait(guarded(t)); err != nil {
			t.Fatal(err)
		}
	}
	check("after too much memory", true, true)
}

func testExplain(t *testing.T, e *env) {
	inst := e.create(t, e.plan(t))
	x := optional[driver.Explainer](t, e, inst)
	gone := errors.New("gone")
	if err := x.Explain(gone); err != gone {
		t.Errorf("it explains %v", err)
	}
	configured(t, inst)
	if err := x.Explain(gone); err != gone {
		t.Errorf("of a guest that answered it explains %v", err)
	}
	e.destroy(t, inst)
	if err := x.Explain(gone); err != gone {
		t.Errorf("after Destroy it explains %v", err)
	}
	e.need(t, "KillGuest")
	inst = e.create(t, e.plan(t))
	e.KillGuest(t, inst)
	if err := inst.(driver.Explainer).Explain(gone); err == nil || err.Error() == "" {
		t.Errorf("of a guest that was killed it explains %v", err)
	}
}

func testWhole(t *testing.T, e *env) {
	inst := e.create(t, e.plan(t))
	for _, g := range optional[driver.Lacking](t, e, inst).Lacks() {
		// That this machine can't do it is what a closer look finds, too.
		found := false
		if x, ok := e.driver.(driver.Examiner); ok {
			for _, other := range x.Examine(t.Context()).Gaps {
				found = found || other.What == g.What
			}
		}
		if !found || g.Why == "" || g.Fix == "" {
			t.Errorf("it lacks %+v", g)
		}
	}
	if dir := optional[driver.Exposer](t, e, inst).Exposed(); dir != "" {
		t.Errorf("it shows %s", dir)
	}
}

func testSweep(t *testing.T, e *env) {
	s := optional[driver.Sweeper](t, e, e.driver)
	e.need(t, "Litter")
	var alive []func() *client.Client
	inst := e.create(t, e.plan(t))
	alive = append(alive, func() *client.Client { return configured(t, inst) })
	if _, ok := e.driver.(driver.Preparer); ok {
		plan := e.plan(t)
		b := e.blank(t, plan)
		alive = append(alive, func() *client.Client {
			inst, err := b.Bind(t.Context(), plan)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { e.destroy(t, inst) })
			return configured(t, inst)
		})
	}
	if r, ok := e.driver.(driver.Recoverer); ok {
		left := e.createPersistent(t)
		left.(driver.Leaver).Leave()
		alive = append(alive, func() *client.Client { return configured(t, e.recover(t, r, left.Handle())) })
	}
	// Other programs on this machine may sweep at the same moment.
	n := 0
	for tries := 0; n == 0 && tries < 100; tries++ {
		there := e.Litter(t)
		n = s.Sweep(t.Context())
		e.eventually(t, "what was left is removed", func() bool { return !there() })
	}
	if n == 0 {
		t.Error("it tells of nothing that it has removed")
	}
	for _, lives := range alive {
		if got := shell(t, lives(), "echo alive"); got != "alive\n" {
			t.Errorf("got %q", got)
		}
	}
}
