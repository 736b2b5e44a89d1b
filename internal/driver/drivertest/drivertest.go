// Package drivertest holds every promise of the driver contract as a test, to
// be run against any driver, and runs the suite of package sandpittest on an
// engine over it.
package drivertest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/driver"
	"github.com/sandpit-dev/sandpit/internal/engine"
	"github.com/sandpit-dev/sandpit/internal/feature"
	"github.com/sandpit-dev/sandpit/internal/guest/client"
	"github.com/sandpit-dev/sandpit/internal/image"
	"github.com/sandpit-dev/sandpit/internal/policy"
	"github.com/sandpit-dev/sandpit/sandpittest"
)

// Factory makes what the suite needs of a driver.
type Factory struct {
	// New returns a driver. It is called once per group of tests.
	New func(t *testing.T) driver.Driver

	// Images is the store from which images come.
	Images *image.Store

	// KillGuest kills the guest of an instance from outside, with all that is
	// in the sandbox. Nil: this can't be done, and what it shows is skipped.
	KillGuest func(t *testing.T, inst driver.Instance)

	// KillBlank is KillGuest for a blank. Nil: it can't be done.
	KillBlank func(t *testing.T, b driver.Blank)

	// Unchanged is called before a sandbox is made, and what it returns after
	// everything has been removed: it reports what has been left on the
	// machine. Nil: nothing is looked at.
	Unchanged func(t *testing.T) func()

	// Client has what is special about a client over this driver.
	Client sandpittest.Options
}

// Suite runs everything.
func Suite(t *testing.T, f Factory) {
	t.Run("Driver", func(t *testing.T) { Contract(t, f) })
	t.Run("Client", func(t *testing.T) { Client(t, f) })
}

// Client runs the suite of package sandpittest on an engine over the driver.
func Client(t *testing.T, f Factory) {
	opt := f.Client
	opt.MultiUser = f.New(t).Probe(t.Context()).Features[feature.Users]
	sandpittest.Suite(t, func(t *testing.T) sandpit.Client {
		if f.Unchanged != nil {
			t.Cleanup(f.Unchanged(t))
		}
		return engine.New(engine.Options{Driver: f.New(t), Images: f.Images, Policy: policy.Default()})
	}, opt)
}

// Contract runs the promises of driver.Driver and driver.Instance.
func Contract(t *testing.T, f Factory) {
	for _, p := range []struct {
		name string
		test func(*testing.T, *env)
	}{
		{"Probe says what is enforced and why the rest is not", testProbe},
		{"Create returns when the guest can be dialled", testCreate},
		{"Dial may be called many times, by many", testDial},
		{"a connection outlives others, and its own death hurts none", testConnections},
		{"after Destroy Dial is ErrClosed", testDialAfterDestroy},
		{"Destroy is idempotent, may race, and works when its context has ended", testDestroy},
		{"Destroy may race with every other call", testDestroyRaces},
		{"Done is closed when the guest dies", testDone},
		{"Stats read what is used", testStats},
		{"a Handle survives JSON", testHandle},
		{"what can't be enforced is ErrUnsupported", testUnknownLimits},
		{"Create that fails leaves nothing", testCreateFails},
		{"Create whose context ends leaves nothing, at every step", testCreateCancelled},
		{"16 Creates at once", testCreateMany},
		{"every part of the plan is seen inside", testPlan},
	} {
		t.Run(p.name, func(t *testing.T) {
			if f.Unchanged != nil {
				t.Cleanup(f.Unchanged(t))
			}
			p.test(t, &env{Factory: f, driver: f.New(t)})
		})
	}
	t.Run("Blank", func(t *testing.T) { blanks(t, f) })
}

type env struct {
	Factory
	driver driver.Driver
	warm   bool // sandboxes are made of blanks
}

// make makes a sandbox, by Create or by Prepare and Bind.
func (e *env) make(ctx context.Context, plan driver.Plan) (driver.Instance, error) {
	if !e.warm {
		return e.driver.Create(ctx, plan)
	}
	// The figures of the limits, and the user, are known only when it is bound.
	bp := driver.BlankPlan{Ephemeral: plan.Ephemeral, UID: plan.UID, GID: plan.GID, MultiUser: plan.MultiUser, Limits: sandpit.DefaultLimits(), Enforce: plan.Enforce}
	b, err := e.driver.(driver.Preparer).Prepare(ctx, plan.ID, bp)
	if err != nil {
		return nil, err
	}
	return b.Bind(ctx, plan)
}

// guard bounds what should take no time; see package sandpittest.
const guard = 2 * time.Minute

func guarded(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), guard)
	t.Cleanup(cancel)
	return ctx
}

// Plan returns the plan of an ordinary sandbox of the host image.
func Plan(t *testing.T, d driver.Driver, images *image.Store) driver.Plan {
	t.Helper()
	lease, err := images.Acquire(t.Context(), "host", image.AcquireOptions{})
	if err != nil {
		t.Fatalf("leasing the host image: %v", err)
	}
	t.Cleanup(lease.Release)
	id := engine.NewID()
	plan := driver.Plan{
		ID: id, Name: "test", Hostname: "test",
		Root:    driver.Root{Layers: lease.Rootfs().Layers},
		Limits:  sandpit.DefaultLimits(),
		Enforce: feature.Set{},
		UID:     1000, GID: 1000,
		Ephemeral: true,
	}
	for _, b := range lease.Rootfs().Binds {
		plan.Root.Binds = append(plan.Root.Binds, driver.Bind(b))
	}
	for _, limit := range feature.Limits() {
		plan.Enforce[limit] = d.Probe(t.Context()).Features[limit]
	}
	return plan
}

func (e *env) plan(t *testing.T) driver.Plan {
	t.Helper()
	return Plan(t, e.driver, e.Images)
}

func (e *env) create(t *testing.T, plan driver.Plan) driver.Instance {
	t.Helper()
	inst, err := e.make(t.Context(), plan)
	if err != nil {
		t.Fatalf("creating: %v (hint: %s)", err, sandpit.Hint(err))
	}
	t.Cleanup(func() { e.destroy(t, inst) })
	return inst
}

func (e *env) destroy(t *testing.T, inst driver.Instance) {
	t.Helper()
	if err := inst.Destroy(context.Background()); err != nil {
		t.Errorf("destroying: %v", err)
	}
}

// guest connects to the guest of an instance.
func guest(t *testing.T, inst driver.Instance) *client.Client {
	t.Helper()
	conn, err := inst.Dial(t.Context())
	if err != nil {
		t.Fatalf("dialling: %v", err)
	}
	c, err := client.New(guarded(t), conn, client.Options{})
	if err != nil {
		t.Fatalf("greeting: %v", err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func configured(t *testing.T, inst driver.Instance) *client.Client {
	t.Helper()
	c := guest(t, inst)
	if err := c.Configure(guarded(t), client.Config{User: "1000:1000"}); err != nil {
		t.Fatalf("configuring: %v", err)
	}
	return c
}

// shell runs a script and returns its output.
func shell(t *testing.T, c *client.Client, script string) string {
	t.Helper()
	out := &buffer{}
	p, err := c.Start(guarded(t), sandpit.Command{Script: script, Stdout: out, Stderr: out})
	if err != nil {
		t.Fatalf("starting: %v", err)
	}
	if res, err := p.Wait(guarded(t)); err != nil || !res.Success() {
		t.Fatalf("%s: %+v, %v, %s", script, res, err, out.b)
	}
	return string(out.b)
}

type buffer struct{ b []byte }

func (b *buffer) Write(p []byte) (int, error) {
	b.b = append(b.b, p...)
	return len(p), nil
}

func testProbe(t *testing.T, e *env) {
	caps := e.driver.Probe(t.Context())
	if !caps.Available {
		t.Fatalf("the driver is not available: %+v", caps.Gaps)
	}
	for _, name := range feature.All() {
		if caps.Features[name] {
			continue
		}
		i := slices.IndexFunc(caps.Gaps, func(g sandpit.Gap) bool { return g.What == string(name) })
		if i < 0 {
			t.Errorf("%s is not enforced, and no gap says why", name)
		} else if caps.Gaps[i].Why == "" || caps.Gaps[i].Fix == "" {
			t.Errorf("the gap is %+v", caps.Gaps[i])
		}
	}
	if diff := cmp.Diff(caps, e.driver.Probe(t.Context())); diff != "" {
		t.Errorf("a second Probe differs:\n%s", diff)
	}
}

func testCreate(t *testing.T, e *env) {
	plan := e.plan(t)
	var steps []string
	plan.Trace = func(step string, _ time.Duration) { steps = append(steps, step) }
	inst := e.create(t, plan)
	if got := shell(t, configured(t, inst), "echo $((6*7))"); got != "42\n" {
		t.Errorf("got %q", got)
	}
	if len(steps) == 0 {
		t.Error("no step was traced")
	}
	select {
	case <-inst.Done():
		t.Error("Done is closed")
	default:
	}
}

func testDial(t *testing.T, e *env) {
	inst := e.create(t, e.plan(t))
	first := configured(t, inst)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 8 {
				conn, err := inst.Dial(t.Context())
				if err != nil {
					t.Error(err)
					return
				}
				c, err := client.New(guarded(t), conn, client.Options{})
				if err != nil {
					t.Error(err)
					return
				}
				if _, err := c.Files().Stat(guarded(t), "/"); err != nil {
					t.Error(err)
				}
				if err := c.Close(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if got := shell(t, first, "echo alive"); got != "alive\n" {
		t.Errorf("got %q", got)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if conn, err := inst.Dial(ended); !errors.Is(err, context.Canceled) {
		t.Errorf("with a context that has ended: %v", err)
		if err == nil {
			conn.Close()
		}
	}
}

func testConnections(t *testing.T, e *env) {
	inst := e.create(t, e.plan(t))
	good := configured(t, inst)
	for _, rubbish := range []string{"", "x", "GET / HTTP/1.1\r\n\r\n", "SPG\x01\xff\xff\xff\xff\xff\xff\xff\xff", string(make([]byte, 100000))} {
		conn, err := inst.Dial(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.WriteString(conn, rubbish)
		conn.Close()
	}
	if got := shell(t, good, "echo alive"); got != "alive\n" {
		t.Errorf("got %q", got)
	}
	if got := shell(t, guest(t, inst), "echo alive"); got != "alive\n" {
		t.Errorf("got %q", got)
	}
}

func testDialAfterDestroy(t *testing.T, e *env) {
	inst := e.create(t, e.plan(t))
	e.destroy(t, inst)
	if _, err := inst.Dial(t.Context()); !errors.Is(err, sandpit.ErrClosed) {
		t.Errorf("got %v", err)
	}
	select {
	case <-inst.Done():
	default:
		t.Error("Done is not closed")
	}
}

func testDestroy(t *testing.T, e *env) {
	inst := e.create(t, e.plan(t))
	c := configured(t, inst)
	if _, err := c.Start(t.Context(), sandpit.Command{Script: "(setsid sh -c 'trap \"\" TERM; while :; do sleep 1; done' &); sleep 1000"}); err != nil {
		t.Fatal(err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			if err := inst.Destroy(ended); err != nil {
				t.Errorf("destroying: %v", err)
			}
			// Whoever has returned may rely on it.
			select {
			case <-inst.Done():
			default:
				t.Error("Done is not closed")
			}
		})
	}
	wg.Wait()
	e.destroy(t, inst)
}

func testDestroyRaces(t *testing.T, e *env) {
	for range 5 {
		inst := e.create(t, e.plan(t))
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				for {
					conn, err := inst.Dial(t.Context())
					if err != nil {
						if !errors.Is(err, sandpit.ErrClosed) {
							t.Errorf("dialling: %v", err)
						}
						return
					}
					c, err := client.New(guarded(t), conn, client.Options{})
					if err == nil {
						_, _ = c.Files().Stat(guarded(t), "/")
						_ = c.Close()
					} else if !errors.Is(err, sandpit.ErrClosed) {
						t.Errorf("greeting: %v", err)
					}
				}
			})
			wg.Go(func() {
				for {
					select {
					case <-inst.Done():
						return
					default:
						_, _ = inst.Stats(t.Context())
						_ = inst.Handle()
					}
				}
			})
		}
		time.Sleep(5 * time.Millisecond)
		e.destroy(t, inst)
		wg.Wait()
	}
}

func testDone(t *testing.T, e *env) {
	if e.KillGuest == nil {
		t.Skip("this driver's test has no way to kill a guest: that of internal/driver/linux has")
	}
	inst := e.create(t, e.plan(t))
	c := configured(t, inst)
	p, err := c.Start(t.Context(), sandpit.Command{Argv: []string{"sleep", "1000"}})
	if err != nil {
		t.Fatal(err)
	}
	e.KillGuest(t, inst)
	select {
	case <-inst.Done():
	case <-time.After(guard):
		t.Fatal("Done is not closed")
	}
	if _, err := p.Wait(guarded(t)); !errors.Is(err, sandpit.ErrClosed) {
		t.Errorf("waiting: %v", err)
	}
	if _, err := inst.Dial(t.Context()); !errors.Is(err, sandpit.ErrClosed) {
		t.Errorf("dialling: %v", err)
	}
	if _, err := inst.Stats(t.Context()); err != nil {
		t.Errorf("reading what is used: %v", err)
	}
	e.destroy(t, inst)
}

func testStats(t *testing.T, e *env) {
	inst := e.create(t, e.plan(t))
	c := configured(t, inst)
	shell(t, c, "i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done")
	m, err := inst.Stats(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	enforced := e.driver.Probe(t.Context()).Features
	for name, ok := range map[feature.Feature]bool{
		feature.Memory: m.Memory > 0 && m.MemoryPeak >= m.Memory/2 && m.OOMKills == 0,
		feature.Pids:   m.Pids > 0,
		feature.CPUs:   m.CPU > 0,
	} {
		if enforced[name] && !ok {
			t.Errorf("%s is limited, and told to be %+v", name, m)
		}
	}
	e.destroy(t, inst)
	if m, err := inst.Stats(t.Context()); err == nil {
		if m.Memory > 0 || m.Pids > 0 {
			t.Errorf("what is gone uses %+v", m)
		}
	} else if !errors.Is(err, sandpit.ErrClosed) {
		t.Errorf("after Destroy: %v", err)
	}
}

func testHandle(t *testing.T, e *env) {
	plan := e.plan(t)
	inst := e.create(t, plan)
	h := inst.Handle()
	if h.Version != driver.HandleVersion || h.Driver != e.driver.Name() || h.ID != plan.ID {
		t.Errorf("the handle is %+v", h)
	}
	data, err := json.Marshal(h)
	if err != nil {
		t.Fatal(err)
	}
	var back driver.Handle
	if err := json.Unmarshal(data, &back); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(h, back); diff != "" {
		t.Errorf("it changes:\n%s", diff)
	}
	r, ok := e.driver.(driver.Recoverer)
	if !ok {
		return
	}
	e.destroy(t, inst)
	// A driver may know of it that it was made to end with its maker.
	if _, err := r.Recover(t.Context(), back); !errors.Is(err, sandpit.ErrNotFound) && !errors.Is(err, sandpit.ErrInvalid) {
		t.Errorf("recovering what is gone: %v", err)
	}
	back.Version++
	if _, err := r.Recover(t.Context(), back); err == nil {
		t.Error("a newer handle is read")
	}
}

func testUnknownLimits(t *testing.T, e *env) {
	plan := e.plan(t)
	plan.Enforce["no-such-limit"] = true
	if inst, err := e.make(t.Context(), plan); !errors.Is(err, sandpit.ErrUnsupported) {
		t.Errorf("an unknown limit gives %v", err)
		if err == nil {
			e.destroy(t, inst)
		}
	}
	for _, name := range feature.Limits() {
		plan := e.plan(t)
		if plan.Enforce[name] {
			continue
		}
		plan.Enforce[name] = true
		if inst, err := e.make(t.Context(), plan); !errors.Is(err, sandpit.ErrUnsupported) {
			t.Errorf("%s, which can't be enforced, gives %v", name, err)
			if err == nil {
				e.destroy(t, inst)
			}
		}
	}
}

func testCreateFails(t *testing.T, e *env) {
	for name, change := range map[string]func(*driver.Plan){
		"a layer that is missing":  func(p *driver.Plan) { p.Root.Layers = []string{"/no/such/layer"} },
		"a bind that is missing":   func(p *driver.Plan) { p.Root.Binds = []driver.Bind{{Source: "/no/such", Target: "/usr"}} },
		"a target that is missing": func(p *driver.Plan) { p.Root.Binds = []driver.Bind{{Source: "/usr", Target: "/no/such/target"}} },
		"a mount that is missing":  func(p *driver.Plan) { p.Mounts = []sandpit.Mount{{Source: "/no/such", Target: "/x"}} },
		"a mount of a device":      func(p *driver.Plan) { p.Mounts = []sandpit.Mount{{Source: "/dev/null", Target: "/x"}} },
		"a mount below a file":     func(p *driver.Plan) { p.Mounts = []sandpit.Mount{{Source: "/usr", Target: "/etc/passwd/x"}} },
		"files that do not fit": func(p *driver.Plan) {
			p.Limits.Disk = 1 << 20
			p.Root.Files = []driver.File{{Path: "/big", Data: make([]byte, 8<<20)}}
		},
		"too few inodes":              func(p *driver.Plan) { p.Limits.Files = 8 },
		"a tmpfs with a path in proc": func(p *driver.Plan) { p.Tmpfs = []sandpit.Tmpfs{{Target: "/proc/nothing/x", Size: 1}} },
		"a hostname that is too long": func(p *driver.Plan) { p.Hostname = string(make([]byte, 100)) },
		"a write path below a file":   func(p *driver.Plan) { p.Write = []string{"/etc/passwd/x"} },
	} {
		t.Run(name, func(t *testing.T) {
			if e.Unchanged != nil {
				t.Cleanup(e.Unchanged(t))
			}
			plan := e.plan(t)
			change(&plan)
			inst, err := e.make(t.Context(), plan)
			if err == nil {
				e.destroy(t, inst)
				t.Fatal("it succeeds")
			}
			t.Logf("the error is %q", err)
		})
	}
}

// testCreateCancelled ends the context when each traced step is over, one
// after the other.
func testCreateCancelled(t *testing.T, e *env) {
	var steps []string
	plan := e.plan(t)
	plan.Trace = func(step string, _ time.Duration) { steps = append(steps, step) }
	e.destroy(t, e.create(t, plan))
	for i, step := range steps {
		t.Run(fmt.Sprintf("%d after %s", i, step), func(t *testing.T) {
			if e.Unchanged != nil {
				t.Cleanup(e.Unchanged(t))
			}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			plan, n := e.plan(t), 0
			plan.Trace = func(string, time.Duration) {
				if n++; n == i+1 {
					cancel()
				}
			}
			inst, err := e.make(ctx, plan)
			switch {
			case err == nil && i < len(steps)-1:
				e.destroy(t, inst)
				t.Error("it succeeds")
			case err == nil: // it was made before the end
				e.destroy(t, inst)
			case !errors.Is(err, context.Canceled):
				t.Errorf("the error is %v", err)
			}
		})
	}
	// And at any moment between.
	t.Run("at any moment", func(t *testing.T) {
		if e.Unchanged != nil {
			t.Cleanup(e.Unchanged(t))
		}
		for i := range 20 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i)*500*time.Microsecond)
			inst, err := e.make(ctx, e.plan(t))
			cancel()
			if err == nil {
				e.destroy(t, inst)
			} else if !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("the error is %v", err)
			}
		}
	})
}

func testCreateMany(t *testing.T, e *env) {
	const n = 16
	plans := make([]driver.Plan, n)
	for i := range plans {
		plans[i] = e.plan(t)
	}
	instances := make([]driver.Instance, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			inst, err := e.make(t.Context(), plans[i])
			if err != nil {
				t.Error(err)
				return
			}
			instances[i] = inst
		})
	}
	wg.Wait()
	for _, inst := range instances {
		if inst == nil {
			continue
		}
		wg.Go(func() {
			conn, err := inst.Dial(t.Context())
			if err != nil {
				t.Error(err)
			} else if c, err := client.New(guarded(t), conn, client.Options{}); err != nil {
				t.Error(err)
			} else {
				_ = c.Close()
			}
			e.destroy(t, inst)
		})
	}
	wg.Wait()
	// The same id can be used again once it is gone, and not before.
	plan := e.plan(t)
	first := e.create(t, plan)
	if second, err := e.make(t.Context(), plan); err == nil {
		t.Log("this driver does not notice an id that is in use")
		e.destroy(t, second)
	}
	if got := shell(t, configured(t, first), "echo alive"); got != "alive\n" {
		t.Errorf("got %q", got)
	}
	e.destroy(t, first)
	e.create(t, plan)
}

func testPlan(t *testing.T, e *env) {
	plan := e.plan(t)
	plan.Hostname = "some-host"
	plan.Root.Dirs = []string{"/made/dir", "/etc"}
	plan.Root.Files = []driver.File{
		{Path: "/etc/hostname", Mode: 0o644, Data: []byte("some-host\n")},
		{Path: "/made/file", Mode: 0o600, Data: []byte("x")},
		{Path: "/made/empty", Mode: 0o444},
	}
	plan.Tmpfs = []sandpit.Tmpfs{{Target: "/scratch", Size: 1 << 20}}
	plan.Limits.Disk, plan.Limits.Files = 16<<20, 2000
	c := configured(t, e.create(t, plan))
	const script = `uname -n; cat /etc/hostname; stat -c '%n %a %F' /made/dir /made/file /made/empty; stat -c %s /made/file
df -Pk / /scratch | awk 'NR>1 { print $2 }'; df -Pi / | awk 'NR>1 { print $2 }'; id -u; id -g`
	const want = `some-host
some-host
/made/dir 755 directory
/made/file 600 regular file
/made/empty 444 regular empty file
1
16384
1024
2000
1000
1000
`
	if diff := cmp.Diff(want, shell(t, c, script)); diff != "" {
		t.Errorf("inside it is otherwise:\n%s", diff)
	}
}
