// Package drivertest tests every promise of package driver, for any driver, and runs
// the suite of package sandpittest on clients over it.
//
// The form of a root file system differs from driver to driver, so what [driver.Root]
// says of its layers and binds is left to the tests of each driver.
package drivertest

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/driver"
	"github.com/sandpit-dev/sandpit/internal/feature"
	"github.com/sandpit-dev/sandpit/internal/guest/client"
	"github.com/sandpit-dev/sandpit/sandpittest"
)

// Factory makes what the suite needs to test a driver. Each function that is nil must
// be in Without.
type Factory struct {
	// New returns a driver with some data directories, see driver.Exposer. All drivers
	// that it returns see the same instances, like those of two processes on one
	// machine.
	New func(t *testing.T, private ...string) driver.Driver

	// Root returns a root for a sandbox, which can be used until the test ends. It has
	// a POSIX shell, coreutils, awk, the file /etc/group and the symbolic link /etc/mtab.
	Root func(t *testing.T) driver.Root

	// Client returns a client over a new driver.
	Client func(t *testing.T) sandpit.Client

	// ClientOptions are the options of Client's suite, except for Features.
	ClientOptions sandpittest.Options

	// BadRoots are roots from which no sandbox can be made, made from good ones.
	BadRoots map[string]func(*driver.Root)

	// Without holds the optional interfaces that the driver does not implement and the
	// functions that the factory lacks, each with the reason, and "Owners" if the driver
	// can't tell here whether the owner of an instance is alive. Their tests are skipped.
	// A Freezer is not among them: feature.Pause decides.
	Without map[string]string

	// Unchanged is called before a sandbox is made, and the function that it returns
	// when everything was removed. That reports what was left on the machine.
	Unchanged func(t *testing.T) func()

	// Traces returns what is on the machine of a sandbox with this ID, at this moment:
	// other programs may remove later what is left of dead ones.
	Traces func(t *testing.T, id string) []string

	// KillGuest kills the guest of an instance from outside, and with it all other
	// processes of the sandbox.
	KillGuest func(t *testing.T, inst driver.Instance)

	// KillBlank does the same for a blank.
	KillBlank func(t *testing.T, b driver.Blank)

	// Process returns a command that calls Owner in another process, with a driver as
	// New returns and with what.
	Process func(t *testing.T, what Owned) *exec.Cmd

	// Lives reports whether the guest is alive that Owner's mark identifies.
	Lives func(t *testing.T, mark string) bool

	// Litter leaves what a process leaves that is killed while it makes a sandbox. The
	// function that it returns reports whether that is still there.
	Litter func(t *testing.T) (there func() bool)

	// Restarted returns the handle as if the machine had been restarted since.
	Restarted func(t *testing.T, h driver.Handle) driver.Handle

	// Older returns the handle as if an older version had made the instance, which
	// therefore lacks something.
	Older func(t *testing.T, h driver.Handle) driver.Handle
}

// Suite runs everything.
func Suite(t *testing.T, f Factory) {
	t.Run("Driver", func(t *testing.T) { Contract(t, f) })
	t.Run("Client", func(t *testing.T) { Client(t, f) })
}

// Client runs the suite of package sandpittest on clients over the driver.
func Client(t *testing.T, f Factory) {
	opt := f.ClientOptions
	opt.Features = f.New(t).Probe(t.Context()).Features
	opt.Except = sandpittest.Languages()
	sandpittest.Suite(t, func(t *testing.T) sandpit.Client {
		f.watch(t)
		return f.Client(t)
	}, opt)
}

// A property is a promise of package driver.
type property struct {
	name string
	test func(*testing.T, *env)
}

// run runs each property as a subtest that must leave nothing behind.
func run(t *testing.T, f Factory, warm bool, properties []property) {
	for _, p := range properties {
		t.Run(p.name, func(t *testing.T) {
			f.watch(t)
			p.test(t, &env{Factory: f, driver: f.New(t), warm: warm})
		})
	}
}

// Contract runs every property of the driver.
func Contract(t *testing.T, f Factory) {
	run(t, f, false, []property{
		{"Probe says what is enforced and why the rest is not", testProbe},
		{"Create returns when the guest can be dialled", testCreate},
		{"Dial may be called many times, by many", testDial},
		{"a connection outlives others, and its own death hurts none", testConnections},
		{"after Destroy Dial is ErrClosed", testDialAfterDestroy},
		{"Destroy is idempotent, may race, and works when its context has ended", testDestroy},
		{"Destroy may race with every other call", testDestroyRaces},
		{"Done is closed when the guest dies", testDone},
		{"Stats read what is used", testStats},
		{"Stats tell exactly when nothing more fits", testFull},
		{"a Handle survives JSON", testHandle},
		{"what can't be enforced is ErrUnsupported", testUnknownLimits},
		{"Create that fails leaves nothing", testCreateFails},
		{"Create whose context ends leaves nothing, at every step", testCreateCancelled},
		{"16 Creates at once", testCreateMany},
		{"every part of the plan is seen inside", testPlan},
		{"each way to restrict writing holds", testWriting},
		{"mounts are read-only or writable as the plan says", testMounts},
		{"each limit that the driver enforces is in force", testLimits},
		{"a process may have MaxNoFile open files", testMaxNoFile},
		{"an ephemeral sandbox ends with the process that made it", testEphemeral},
		{"Progress tells of each call", testProgress},
	})
	t.Run("Optional", func(t *testing.T) { run(t, f, false, optionalProperties) })
	t.Run("Link", func(t *testing.T) { run(t, f, false, linkProperties) })
	t.Run("Recover", func(t *testing.T) { run(t, f, false, recoverProperties) })
	t.Run("Blank", func(t *testing.T) {
		optional[driver.Preparer](t, &env{Factory: f}, f.New(t))
		run(t, f, true, blankProperties)
	})
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

// newID returns an ID for a plan.
func newID() string { return strings.ToLower(rand.Text()[:16]) }

// Plan returns the plan of an ordinary sandbox with a root.
func Plan(d driver.Driver, root driver.Root) driver.Plan {
	plan := driver.Plan{
		ID: newID(), Name: "test", Hostname: "test",
		Root:    root,
		Limits:  sandpit.DefaultLimits(),
		Enforce: feature.Set{},
		UID:     1000, GID: 1000,
		Ephemeral: true,
	}
	have := d.Probe(context.Background()).Features
	for _, limit := range feature.Limits() {
		plan.Enforce[limit] = have[limit]
	}
	return plan
}

func (e *env) plan(t *testing.T) driver.Plan {
	t.Helper()
	return Plan(e.driver, e.Root(t))
}

// has reports whether the driver has a feature.
func (e *env) has(t *testing.T, f feature.Feature) bool {
	return e.driver.Probe(t.Context()).Features[f]
}

// watch reports at the end of the test what it has left on the machine.
func (f *Factory) watch(t *testing.T) {
	t.Helper()
	if f.Unchanged != nil {
		t.Cleanup(f.Unchanged(t))
	} else if f.Without["Unchanged"] == "" {
		t.Fatal("the factory has no Unchanged, and Without does not say why")
	}
}

// need skips the test if the factory lacks a function and says why.
func (e *env) need(t *testing.T, name string) {
	t.Helper()
	if reflect.ValueOf(e.Factory).FieldByName(name).IsNil() {
		e.without(t, name)
	}
}

// without skips the test with the reason why something is missing.
func (e *env) without(t *testing.T, name string) {
	t.Helper()
	why := e.Without[name]
	if why == "" {
		t.Fatalf("there is no %s, and Without does not say why", name)
	}
	t.Skipf("needs %s: %s", name, why)
}

// optional returns a driver, blank or instance as an optional interface.
func optional[T any](t *testing.T, e *env, v any) T {
	t.Helper()
	name := reflect.TypeFor[T]().Name()
	is, ok := v.(T)
	if !ok {
		e.without(t, name)
	}
	if e.Without[name] != "" {
		t.Fatalf("it is a %s, which Without denies", name)
	}
	return is
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
	for f := range caps.Changeable {
		if !caps.Features[f] || !slices.Contains(feature.Changeable(), f) {
			t.Errorf("%s is changeable, but is not enforced or not one of feature.Changeable", f)
		}
	}
	gaps := caps.Gaps
	if x, ok := e.driver.(driver.Examiner); ok {
		gaps = slices.Concat(gaps, x.Examine(t.Context()).Gaps)
	}
	for _, g := range gaps {
		if !slices.Contains(feature.All(), feature.Feature(g.What)) && !slices.Contains(feature.OtherGaps(), g.What) {
			t.Errorf("the gap %q is neither a feature nor one of feature.OtherGaps", g.What)
		}
	}
	if e.driver.Name() == "" {
		t.Error("the driver has no name")
	}
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			if diff := cmp.Diff(caps, e.driver.Probe(t.Context())); diff != "" {
				t.Errorf("another Probe differs:\n%s", diff)
			}
		})
	}
	wg.Wait()
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
						if f, ok := inst.(driver.Freezer); ok {
							_ = f.Freeze(t.Context())
							_, _ = f.Frozen(t.Context())
							_ = f.Thaw(t.Context())
						}
						if c, ok := inst.(driver.OOMCounter); ok {
							_, _ = c.OOMKills()
							_, _ = c.PidsRefused()
						}
						if l, ok := inst.(driver.Limiter); ok {
							_ = l.SetLimits(t.Context(), sandpit.Limits{Pids: 100})
						}
						if x, ok := inst.(driver.Lacking); ok {
							_ = x.Lacks()
						}
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
	e.need(t, "KillGuest")
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
	if _, err := c.Start(guarded(t), sandpit.Command{Argv: []string{"sleep", "1000"}, Background: true}); err != nil {
		t.Fatal(err)
	}
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
	// A value that is 0 where it can't be would pass for one that is known.
	if m.Memory == 0 || m.MemoryPeak == 0 || m.Pids == 0 || m.CPU == 0 || m.Files == 0 {
		t.Errorf("unknown values are not -1: %+v", m)
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

func testFull(t *testing.T, e *env) {
	plan := e.plan(t)
	plan.Limits.Disk, plan.Limits.Files = 4<<20+1, 100 // the disk is not a whole number of blocks
	inst := e.create(t, plan)
	c := configured(t, inst)
	check := func(when string, disk, files bool) {
		t.Helper()
		m, err := inst.Stats(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if e.has(t, feature.Disk) && (m.Disk >= plan.Limits.Disk) != disk || e.has(t, feature.Files) && (m.Files >= plan.Limits.Files) != files {
			t.Errorf("%s: %d bytes of %d and %d files of %d are in use", when, m.Disk, plan.Limits.Disk, m.Files, plan.Limits.Files)
		}
	}
	check("at first", false, false)
	if e.has(t, feature.Disk) {
		shell(t, c, "head -c 16M /dev/zero >/tmp/f 2>/dev/null; :")
		check("on a full disk", true, false)
		shell(t, c, "truncate -s 4190208 /tmp/f") // a page and a byte less than the limit
		check("with one block left", false, false)
		shell(t, c, "rm /tmp/f")
	}
	if e.has(t, feature.Files) {
		shell(t, c, "mkdir /tmp/d; i=0; while (: >/tmp/d/$i) 2>/dev/null; do i=$((i+1)); done; :")
		check("with all files", false, true)
		shell(t, c, "rm /tmp/d/1")
		check("with one file less", false, false)
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
	for _, name := range feature.All() {
		plan := e.plan(t)
		if e.has(t, name) {
			continue
		}
		plan.Enforce[name] = true
		if inst, err := e.make(t.Context(), plan); !errors.Is(err, sandpit.ErrUnsupported) {
			t.Errorf("%s, which the driver can't do, gives %v", name, err)
			if err == nil {
				e.destroy(t, inst)
			}
		}
	}
}

func testCreateFails(t *testing.T, e *env) {
	dir := t.TempDir()
	bad := map[string]func(*driver.Plan){
		"a mount that is missing": func(p *driver.Plan) { p.Mounts = []sandpit.Mount{{Source: dir + "/no/such", Target: "/x"}} },
		"a mount of a device":     func(p *driver.Plan) { p.Mounts = []sandpit.Mount{{Source: "/dev/null", Target: "/x"}} },
		"a mount below a file":    func(p *driver.Plan) { p.Mounts = []sandpit.Mount{{Source: dir, Target: "/etc/passwd/x"}} },
		"files that do not fit": func(p *driver.Plan) {
			p.Limits.Disk = 1 << 20
			p.Root.Files = []driver.File{{Path: "/big", Data: make([]byte, 8<<20)}}
		},
		"too few inodes":              func(p *driver.Plan) { p.Limits.Files = 8 },
		"a tmpfs with a path in proc": func(p *driver.Plan) { p.Tmpfs = []sandpit.Tmpfs{{Target: "/proc/nothing/x", Size: 1}} },
		"a hostname that is too long": func(p *driver.Plan) { p.Hostname = string(make([]byte, 100)) },
		"a write path below a file":   func(p *driver.Plan) { p.Write = []string{"/etc/passwd/x"} },
	}
	for name, change := range e.BadRoots {
		bad["a root with "+name] = func(p *driver.Plan) { change(&p.Root) }
	}
	for name, change := range bad {
		t.Run(name, func(t *testing.T) {
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
	begin, end := []byte("begins\n"), []byte("ends\n") // of several files
	plan.Root.Files = []driver.File{
		{Path: "/etc/hostname", Mode: 0o644, Data: []byte("some-host\n")},
		{Path: "/etc/group", Mode: 0o644, Data: []byte("existed\n")},
		{Path: "/etc/mtab", Mode: 0o644, Data: []byte("was a link\n")},
		{Path: "/made/file", Mode: 0o600, Data: []byte("x")},
		{Path: "/made/empty", Mode: 0o444},
		{Path: "/made/both", Mode: 0o644, Data: begin, Rest: end},
		{Path: "/etc/same", Mode: 0o644, Data: begin, Rest: end},
		{Path: "/made/other", Mode: 0o644, Data: begin},
		{Path: "/made/mode", Mode: 0o640, Data: begin, Rest: end},
		{Path: "/made/rest", Mode: 0o644, Rest: end},
	}
	plan.Tmpfs = []sandpit.Tmpfs{{Target: "/scratch", Size: 1 << 20}}
	plan.MultiUser = true
	c := configured(t, e.create(t, plan))
	const script = `uname -n; cat /etc/hostname /etc/group /etc/mtab; stat -c '%n %a %F' /made/dir /made/file /made/empty /etc/mtab
cd /made; cat both /etc/same other rest; stat -c '%n %a %s' mode /etc/same
stat -c %s /made/file; df -Pk /scratch | awk 'NR>1 { print $2 }'; id -u; id -g`
	const want = `some-host
some-host
existed
was a link
/made/dir 755 directory
/made/file 600 regular file
/made/empty 444 regular empty file
/etc/mtab 644 regular file
begins
ends
begins
ends
begins
ends
mode 640 12
/etc/same 644 12
1
1024
1000
1000
`
	if diff := cmp.Diff(want, shell(t, c, script)); diff != "" {
		t.Errorf("inside it is otherwise:\n%s", diff)
	}
	if !e.has(t, feature.Users) {
		return // what is owned by root can't be told
	}
	if got := shell(t, c, "stat -c %u:%g /made /made/dir /made/file /etc/mtab | uniq"); got != "0:0\n" {
		t.Errorf("what was made belongs to %q", got)
	}
	plan.ID, plan.UID, plan.GID = newID(), 0, 0
	all := guest(t, e.create(t, plan))
	if err := all.Configure(guarded(t), client.Config{User: "0:0", RootCaps: 1}); err != nil { // CAP_CHOWN
		t.Fatal(err)
	}
	if got := shell(t, all, "touch /f; for id in 1 1000 65534; do chown $id:$id /f; stat -c %u:%g /f; done"); got != "1:1\n1000:1000\n65534:65534\n" {
		t.Errorf("root gives a file to %q", got)
	}
}

// writable returns which of some directories can be written to.
func writable(t *testing.T, c *client.Client, dirs ...string) string {
	t.Helper()
	return strings.TrimSpace(shell(t, c, "for d in "+strings.Join(dirs, " ")+"; do (echo >$d/new) 2>/dev/null && echo $d; done; :"))
}

func testWriting(t *testing.T, e *env) {
	for name, c := range map[string]struct {
		change func(*driver.Plan)
		want   string
	}{
		"everything":       {func(*driver.Plan) {}, "/open\n/open/a\n/open/b\n/scratch"},
		"a read-only root": {func(p *driver.Plan) { p.ReadOnly = true }, "/scratch"},
		"one path":         {func(p *driver.Plan) { p.Write = []string{"/open/a"} }, "/open/a"},
		"no path":          {func(p *driver.Plan) { p.Write = []string{} }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			plan := e.plan(t)
			plan.Tmpfs = []sandpit.Tmpfs{{Target: "/scratch", Size: 1 << 20}}
			plan.Root.Dirs = []string{"/open/a", "/open/b"}
			plan.UID, plan.GID, plan.MultiUser = 0, 0, true // who could write everywhere
			c.change(&plan)
			if plan.Write != nil && !e.has(t, feature.WritePaths) {
				if inst, err := e.make(t.Context(), plan); !errors.Is(err, sandpit.ErrUnsupported) {
					t.Errorf("restricting writes gives %v", err)
					if err == nil {
						e.destroy(t, inst)
					}
				}
				return
			}
			root := guest(t, e.create(t, plan))
			if err := root.Configure(guarded(t), client.Config{User: "0:0"}); err != nil {
				t.Fatal(err)
			}
			if got := writable(t, root, "/open", "/open/a", "/open/b", "/scratch"); got != c.want {
				t.Errorf("it can write to %q, want %q", got, c.want)
			}
		})
	}
}

func testMounts(t *testing.T, e *env) {
	plan := e.plan(t)
	ro, rw := t.TempDir(), t.TempDir()
	for _, dir := range []string{ro, rw} {
		if err := errors.Join(os.Chmod(dir, 0o777), os.WriteFile(dir+"/file", []byte(filepath.Base(dir)+"\n"), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(rw+"/in", 0o777); err != nil {
		t.Fatal(err)
	}
	listenIn(t, ro)
	plan.Mounts = []sandpit.Mount{{Source: rw, Target: "/deep/down/rw"}, {Source: ro, Target: "/no-sockets", ReadOnly: true, NoSockets: true}, {Source: ro, Target: "/ro", ReadOnly: true}}
	if e.has(t, feature.NestedMounts) {
		plan.Mounts = slices.Insert(plan.Mounts, 1, sandpit.Mount{Source: ro, Target: "/deep/down/rw/in", ReadOnly: true})
	}
	plan.UID, plan.GID, plan.MultiUser = 0, 0, true
	if !e.has(t, feature.Mounts) {
		if inst, err := e.make(t.Context(), plan); !errors.Is(err, sandpit.ErrUnsupported) {
			t.Errorf("mounts give %v", err)
			if err == nil {
				e.destroy(t, inst)
			}
		}
		return
	}
	c := guest(t, e.create(t, plan))
	if err := c.Configure(guarded(t), client.Config{User: "0:0"}); err != nil {
		t.Fatal(err)
	}
	if got, want := shell(t, c, "cat /ro/file /deep/down/rw/file"), filepath.Base(ro)+"\n"+filepath.Base(rw)+"\n"; got != want {
		t.Errorf("the mounts hold %q, want %q", got, want)
	}
	if got := writable(t, c, "/ro", "/no-sockets", "/deep/down/rw"); got != "/deep/down/rw" {
		t.Errorf("it can write to %q", got)
	}
	if got := shell(t, c, "cat /no-sockets/file"); got != filepath.Base(ro)+"\n" {
		t.Errorf("the mount without sockets holds %q", got)
	}
	if conn, err := c.DialUnix(guarded(t), "/no-sockets/socket"); err == nil {
		conn.Close()
		t.Error("it can connect to a socket in a mount without sockets")
	}
	if e.has(t, feature.NestedMounts) {
		if got := writable(t, c, "/deep/down/rw/in"); got != "" {
			t.Errorf("it can write to %q", got)
		}
	}
	if _, err := os.Stat(rw + "/new"); err != nil {
		t.Errorf("what it wrote is not there: %v", err)
	}
}

// testLimits holds the limits of the plan that are the driver's: the guest holds those
// of nofile, output and life. Of a blank they are smaller than those it was made with,
// and larger.
func testLimits(t *testing.T, e *env) {
	if e.has(t, feature.CPUs) {
		plan := e.plan(t)
		plan.Limits.CPUs = 0.5
		inst := e.create(t, plan)
		checkCPUs(t, inst, configured(t, inst), plan.Limits.CPUs)
		e.destroy(t, inst)
	}
	for _, factor := range []int64{1, 4} {
		plan := e.plan(t)
		plan.Limits.Disk, plan.Limits.Files = 8<<20*factor*factor*factor, 1000*factor*factor*factor*factor
		plan.Limits.Memory, plan.Limits.Pids, plan.Limits.CPUs = 32<<20*factor*factor, 50*factor*factor, 2
		inst := e.create(t, plan)
		c := configured(t, inst)
		if got, want := shell(t, c, "df -Pk / | awk 'NR>1 { print $2 }'"), fmt.Sprintf("%d\n", plan.Limits.Disk>>10); e.has(t, feature.Disk) && got != want {
			t.Errorf("the disk has %q KiB, want %q", got, want)
		}
		if got, want := shell(t, c, "df -Pi / | awk 'NR>1 { print $2 }'"), fmt.Sprintf("%d\n", plan.Limits.Files); e.has(t, feature.Files) && got != want {
			t.Errorf("the disk has %q files, want %q", got, want)
		}
		for _, try := range [...]struct {
			limit  feature.Feature
			script string
		}{
			{feature.Memory, "head -c 50000000 /dev/zero | tail -n 1 >/dev/null"},
			{feature.Pids, "i=0; while [ $i -lt 60 ]; do sleep 100 & i=$((i+1)); all=\"$all $!\"; done; kill $all"},
		} {
			if !e.has(t, try.limit) {
				continue
			}
			p, err := c.Start(guarded(t), sandpit.Command{Script: try.script})
			if err != nil {
				t.Fatal(err)
			}
			if res, err := p.Wait(guarded(t)); err != nil || res.Success() != (factor > 1) {
				t.Errorf("%s, with %+v: %+v, %v", try.limit, plan.Limits, res, err)
			}
		}
		e.destroy(t, inst)
	}
}

func testMaxNoFile(t *testing.T, e *env) {
	most := e.driver.Probe(t.Context()).MaxNoFile
	if most == 0 {
		return // any number, so the suite can't name the largest
	}
	plan := e.plan(t)
	plan.Limits.NoFile = most
	c := guest(t, e.create(t, plan))
	if err := c.Configure(guarded(t), client.Config{User: "1000:1000", NoFile: most}); err != nil {
		t.Fatal(err)
	}
	if got, want := shell(t, c, "ulimit -n"), fmt.Sprintf("%d\n", most); got != want {
		t.Errorf("a process may have %q open files, want %q", got, want)
	}
}

// Owned is what another process makes, see Factory.Process.
type Owned struct {
	ID   string
	Kind string // "ephemeral", "persistent", "kept later" or "blank"
	Stop int    // of the steps of Create, at which it stops; 0: it does not
}

// owned is what Owner reports.
type owned struct {
	Handle driver.Handle
	Mark   string
}

// Owner makes what with a driver, reports that, and stays until its input ends. mark
// returns what identifies the guest of an instance or blank for Factory.Lives.
func Owner(d driver.Driver, root driver.Root, what Owned, mark func(any) string) error {
	report := func(o owned) error {
		if err := json.NewEncoder(os.Stdout).Encode(o); err != nil {
			return err
		}
		_, err := io.Copy(io.Discard, os.Stdin)
		return err
	}
	ctx := context.Background()
	plan := Plan(d, root)
	plan.ID, plan.KeepLater = what.ID, what.Kind == "kept later"
	plan.Ephemeral = what.Kind != "persistent" && !plan.KeepLater
	if what.Kind == "blank" {
		b, err := d.(driver.Preparer).Prepare(ctx, plan.ID, blankFor(plan))
		if err != nil {
			return err
		}
		defer b.Destroy(ctx)
		return report(owned{Mark: mark(b)})
	}
	steps := 0
	plan.Trace = func(string, time.Duration) {
		if steps++; steps == what.Stop {
			_ = report(owned{})
		}
	}
	inst, err := d.Create(ctx, plan)
	if err != nil {
		return err
	}
	defer inst.Destroy(ctx)
	return report(owned{inst.Handle(), mark(inst)})
}

// another has another process make something. kill kills that process.
func (e *env) another(t *testing.T, what Owned) (made owned, kill func()) {
	t.Helper()
	e.need(t, "Process")
	cmd := e.Process(t, what)
	cmd.Stderr = t.Output()
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	kill = sync.OnceFunc(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		_ = in.Close()
	})
	t.Cleanup(kill)
	if err := json.NewDecoder(out).Decode(&made); err != nil {
		t.Fatalf("another process makes nothing: %v", err)
	}
	return made, kill
}

// ends waits until a guest has ended.
func (e *env) ends(t *testing.T, mark string) {
	t.Helper()
	e.eventually(t, "the guest has ended", func() bool { return !e.Lives(t, mark) })
}

// eventually waits until a condition holds.
func (e *env) eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(guard); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("still not so: %s", what)
		}
	}
}

func testEphemeral(t *testing.T, e *env) {
	e.need(t, "Lives")
	kind := "ephemeral"
	if e.warm {
		kind = "blank"
	}
	made, kill := e.another(t, Owned{ID: newID(), Kind: kind})
	if !e.Lives(t, made.Mark) {
		t.Error("its guest does not live")
	}
	if r, ok := e.driver.(driver.Recoverer); ok {
		if ids, err := r.Persistent(t.Context()); err != nil || slices.Contains(ids, made.Handle.ID) {
			t.Errorf("of those that outlive their owner there are %v, %v", ids, err)
		}
	}
	kill()
	e.ends(t, made.Mark)
}

func testProgress(t *testing.T, e *env) {
	told := func(call string, do func(ctx context.Context)) {
		t.Helper()
		p := new(driver.Progress)
		do(driver.WithProgress(t.Context(), p))
		if p.Now().Step == "" {
			t.Errorf("%s tells of no step", call)
		}
	}
	var inst driver.Instance
	var err error
	plan := e.plan(t)
	if !e.warm {
		told("Create", func(ctx context.Context) { inst, err = e.driver.Create(ctx, plan) })
	} else {
		var b driver.Blank
		told("Prepare", func(ctx context.Context) { b, err = e.driver.(driver.Preparer).Prepare(ctx, plan.ID, blankFor(plan)) })
		if err != nil {
			t.Fatal(err)
		}
		told("Bind", func(ctx context.Context) { inst, err = b.Bind(ctx, plan) })
	}
	if err != nil {
		t.Fatal(err)
	}
	told("Destroy", func(ctx context.Context) { err = inst.Destroy(ctx) })
	if err != nil {
		t.Error(err)
	}
}

// listenIn listens on a socket in a directory, until the end of the test. The name of the
// directory may be longer than that of a socket (unix(7)).
func listenIn(t *testing.T, dir string) {
	t.Helper()
	d, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: fmt.Sprintf("/proc/self/fd/%d/socket", d.Fd())})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false) // the descriptor is gone by then
	t.Cleanup(func() { _ = l.Close() })
}
