package engine_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/driver"
	"github.com/sandpit-dev/sandpit/internal/driver/linux"
	"github.com/sandpit-dev/sandpit/internal/engine"
	"github.com/sandpit-dev/sandpit/internal/feature"
	"github.com/sandpit-dev/sandpit/internal/network"
	"github.com/sandpit-dev/sandpit/internal/policy"
	"github.com/sandpit-dev/sandpit/internal/testkit"
)

// origin is a server that sandboxes reach as good.test, and as bad.test if a rule says so.
func origin(t *testing.T) (port string) {
	t.Helper()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprintln(w, "hello") }))
	t.Cleanup(srv.Close)
	_, port, err := net.SplitHostPort(srv.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return port
}

// egress allows names of the origin.
func egress(port string, names ...string) sandpit.Egress {
	e := sandpit.Egress{Resolve: []string{"good.test:127.0.0.1", "bad.test:127.0.0.1"}}
	for _, name := range names {
		e.Allow = append(e.Allow, name+":"+port)
	}
	return e
}

// reaches reports whether the sandbox reaches a name of the origin.
func reaches(t *testing.T, sb sandpit.Sandbox, name, port string) bool {
	t.Helper()
	out, err := sandpit.Shell(t.Context(), sb, "curl -sS --max-time 60 http://"+name+":"+port+"/ 2>&1")
	if err != nil {
		t.Fatal(err)
	}
	return string(out.Stdout) == "hello\n"
}

// needEgress skips where sandboxes can't have a network.
func needEgress(t *testing.T) {
	t.Helper()
	needGuest(t)
	testkit.NeedProgram(t, "curl")
	caps := linux.New(linux.Options{}).Probe(t.Context())
	if !caps.Features[feature.Egress] {
		i := slices.IndexFunc(caps.Gaps, func(g sandpit.Gap) bool { return g.What == string(feature.Egress) })
		testkit.Lacks(t, "egress: "+caps.Gaps[i].Why)
	}
}

func egresser(t *testing.T, sb sandpit.Sandbox) sandpit.Egresser {
	t.Helper()
	e, ok := sb.(sandpit.Egresser)
	if !ok {
		t.Fatalf("%T is not an Egresser", sb)
	}
	return e
}

// removeKept removes the sandboxes of openKept after the test.
func removeKept(t *testing.T, dir string) {
	t.Cleanup(func() {
		e := openKept(dir)
		_, _ = e.Adopt(context.Background())
		for _, s := range e.Sandboxes() {
			if err := s.Remove(context.Background()); err != nil {
				t.Error(err)
			}
		}
		_ = e.Close()
	})
}

// A sandbox reaches after a restart of the server what it reached before, whatever its state
// was. One whose egress was taken away is refused at once, and does not hang.
func TestEgressSurvivesTheEngine(t *testing.T) {
	needEgress(t)
	testkit.NeedRoot(t, "to pause sandboxes in any case")
	port, dir := origin(t), t.TempDir()
	removeKept(t, dir)
	first := openKept(dir)
	after := map[string]func(sandpit.Sandbox) error{
		"running": func(sandpit.Sandbox) error { return nil },
		"stopped": func(sb sandpit.Sandbox) error { return sb.(sandpit.Lifecycle).Stop(t.Context(), 0) },
		"paused":  func(sb sandpit.Sandbox) error { return sb.(sandpit.Lifecycle).Pause(t.Context()) },
		"none":    func(sb sandpit.Sandbox) error { return egresser(t, sb).SetEgress(t.Context(), sandpit.Egress{}) },
	}
	want := egress(port, "good.test")
	for name, f := range after {
		sb, err := first.Create(t.Context(), sandpit.Spec{Name: name, Egress: want})
		testkit.Made(t, err)
		if !reaches(t, sb, "good.test", port) || reaches(t, sb, "bad.test", port) {
			t.Fatalf("%s: it does not reach what is allowed, or what is not", name)
		}
		if err := f(sb); err != nil {
			t.Fatal(err)
		}
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	second := openKept(dir)
	defer second.Close()
	report, err := second.Adopt(t.Context())
	if err != nil || report.Adopted != len(after) || report.Refused != nil || report.Lacking != nil {
		t.Fatalf("%+v, %v", report, err)
	}
	for name := range after {
		sb, err := second.Get(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		want := want
		if name == "none" {
			want = sandpit.Egress{}
		}
		if is, err := egresser(t, sb).Egress(t.Context()); err != nil || !gocmp.Equal(is, want) {
			t.Errorf("%s: the egress is %+v, %v", name, is, err)
		}
		if name == "stopped" {
			if err := sb.(sandpit.Lifecycle).Restart(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if reaches(t, sb, "good.test", port) != (name != "none") || reaches(t, sb, "bad.test", port) {
			t.Errorf("%s: it does not reach what is allowed, or what is not", name)
		}
	}
}

// A sandbox can be given egress while it runs, and it can be changed and taken away.
func TestSetEgress(t *testing.T) {
	needEgress(t)
	port, dir := origin(t), t.TempDir()
	removeKept(t, dir)
	e := openKept(dir)
	defer e.Close()
	sb := create(t, e, sandpit.Spec{Name: "box"})
	for _, names := range [][]string{nil, {"good.test"}, {"bad.test"}, {"good.test", "bad.test"}, nil, {"good.test"}} {
		if err := egresser(t, sb).SetEgress(t.Context(), egress(port, names...)); err != nil {
			t.Fatalf("allowing %q: %v (%s)", names, err, sandpit.Hint(err))
		}
		for _, name := range []string{"good.test", "bad.test"} {
			if got := reaches(t, sb, name, port); got != slices.Contains(names, name) {
				t.Errorf("with %q allowed, %s is reached: %v", names, name, got)
			}
		}
	}
	if err := egresser(t, sb).SetEgress(t.Context(), sandpit.Egress{Allow: []string{"no such host"}}); !errors.Is(err, sandpit.ErrInvalid) {
		t.Errorf("a rule that is none: %v", err)
	}
	if !reaches(t, sb, "good.test", port) {
		t.Error("a refused change has changed something")
	}
	// Two at once: one after the other, and the record and what is in force agree.
	var wg sync.WaitGroup
	for i := range 20 {
		wg.Go(func() {
			if err := egresser(t, sb).SetEgress(t.Context(), egress(port, []string{"good.test", "bad.test"}[i%2])); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	is, err := egresser(t, sb).Egress(t.Context())
	if err != nil || len(is.Allow) != 1 {
		t.Fatalf("%+v, %v", is, err)
	}
	for _, name := range []string{"good.test", "bad.test"} {
		if got := reaches(t, sb, name, port); got != strings.HasPrefix(is.Allow[0], name) {
			t.Errorf("with %q allowed, %s is reached: %v", is.Allow, name, got)
		}
	}
	if recorded := recordedEgress(t, dir, sb.ID()); !gocmp.Equal(recorded, is) {
		t.Errorf("the record has %+v, and in force is %+v", recorded, is)
	}
}

// recordedEgress returns what the record of openKept has.
func recordedEgress(t *testing.T, dir, id string) sandpit.Egress {
	t.Helper()
	records, err := fileStore(filepath.Join(dir, "records")).Sandboxes(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(records, func(r engine.Record) bool { return r.ID == id })
	e, err := engine.RecordedEgress(records[i])
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// faulty is a network whose joins and changes fail or hang on request.
type faulty struct {
	network.InProcess
	joins, sets atomic.Pointer[error]
	busy        atomic.Bool // there is traffic whenever it is looked at
	moved       atomic.Int64
	open        atomic.Int64 // that were joined and not closed
}

var errFaulty = errors.New("the network is faulty")

func (f *faulty) fail(joins, sets error) { f.joins.Store(&joins); f.sets.Store(&sets) }

func (f *faulty) Join(ctx context.Context, file *os.File, t engine.Terms) (engine.Joined, error) {
	if err := f.joins.Load(); err != nil && *err != nil {
		file.Close()
		return nil, *err
	}
	j, err := f.InProcess.Join(ctx, file, t)
	if err == nil {
		f.open.Add(1)
	}
	return faultyJoined{j, f}, err
}

type faultyJoined struct {
	engine.Joined
	network *faulty
}

func (j faultyJoined) Set(ctx context.Context, t engine.Terms) error {
	if err := j.network.sets.Load(); err != nil && *err != nil {
		return *err
	}
	return j.Joined.Set(ctx, t)
}

func (j faultyJoined) Close() error {
	j.network.open.Add(-1)
	return j.Joined.Close()
}

func (j faultyJoined) Traffic() engine.Traffic {
	if j.network.busy.Load() {
		return engine.Traffic{Sent: j.network.moved.Add(1)}
	}
	return engine.Traffic{Sent: j.network.moved.Load()}
}

// linking is bare with a network: the other end of its interfaces is a socket.
type linking struct {
	bare
	enter func(ctx context.Context) // before each Link
	ping  *pinging                  // nil: it can't
}

// pinging is what a machine and its one sandbox do about ICMP sockets.
type pinging struct{ able, allowed atomic.Bool }

type linkingInstance struct {
	driver.Instance
	of linking
}

func (d linking) Probe(ctx context.Context) driver.Capabilities {
	caps := d.bare.Probe(ctx)
	caps.Features[feature.Egress] = true
	caps.Features[feature.Ping] = d.ping != nil && d.ping.able.Load()
	return caps
}

func (d linking) Create(ctx context.Context, plan driver.Plan) (driver.Instance, error) {
	i, err := d.bare.Create(ctx, plan)
	if err != nil {
		return nil, err
	}
	return linkingInstance{i, d}, nil
}

func (d linking) Recover(ctx context.Context, h driver.Handle) (driver.Instance, error) {
	i, err := d.bare.Recover(ctx, h)
	if err != nil {
		return nil, err
	}
	return linkingInstance{i, d}, nil
}

func (i linkingInstance) Leave() {}

func (i linkingInstance) AllowPing(_ context.Context, allow bool) error {
	if i.of.ping != nil {
		i.of.ping.allowed.Store(allow)
	}
	return nil
}

func (i linkingInstance) Link(ctx context.Context, _ driver.Link) (*os.File, error) {
	i.of.enter(ctx)
	ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	go func() { // nobody sends anything
		_, _ = unix.Poll([]unix.PollFd{{Fd: int32(ends[1])}}, -1)
		unix.Close(ends[1])
	}()
	return os.NewFile(uintptr(ends[0]), "link"), nil
}

// A change that fails in any place leaves the former rules in the record and in force, and one
// that is not written is not in force.
func TestSetEgressThatFails(t *testing.T) {
	srv := newSurvivor(t)
	net := &faulty{}
	with := func(o *engine.Options) {
		o.Driver, o.Network = linking{bare: bare{srv.dir}, enter: func(context.Context) {}}, net
	}
	e := srv.open(t, with)
	sb := made(t, e, sandpit.Spec{Name: "box"})
	set := func(rules ...string) error {
		return egresser(t, sb).SetEgress(t.Context(), sandpit.Egress{Allow: rules})
	}
	without := false // a network: then all rules of the record allow nothing
	want := func(when string, rules ...string) {
		t.Helper()
		is, err := egresser(t, sb).Egress(t.Context())
		if err != nil || !slices.Equal(is.Allow, rules) {
			t.Errorf("%s, the egress is %+v, %v", when, is, err)
		}
		r, _ := srv.store.get(sb.ID())
		if recorded, err := engine.RecordedEgress(r); err != nil || !slices.Equal(recorded.Allow, rules) {
			t.Errorf("%s, the record has %+v, %v", when, recorded, err)
		}
		for _, rule := range []string{"a.test", "b.test"} {
			d, err := egresser(t, sb).CheckEgress(t.Context(), rule)
			allowed, lost := slices.Contains(rules, rule), strings.Contains(d.Why, "it reaches nothing: "+errFaulty.Error())
			if err != nil || d.Allowed != (allowed && !without) || lost != (allowed && without) {
				t.Errorf("%s, %s: %+v, %v", when, rule, d, err)
			}
		}
	}
	net.fail(errFaulty, nil)
	if err := set("a.test"); !errors.Is(err, errFaulty) {
		t.Errorf("joining that fails: %v", err)
	}
	want("after a join that failed")
	net.fail(nil, nil)
	srv.store.setFail(sandpit.ErrExhausted)
	if err := set("a.test"); !errors.Is(err, sandpit.ErrExhausted) {
		t.Errorf("a full disk: %v", err)
	}
	srv.store.setFail(nil)
	want("after a write that failed")
	if err := set("a.test"); err != nil {
		t.Fatal(err)
	}
	want("after a change", "a.test")
	net.fail(nil, errFaulty)
	if err := set("b.test"); !errors.Is(err, errFaulty) {
		t.Errorf("changing that fails: %v", err)
	}
	want("after a change that failed", "a.test")
	if _, err := e.Create(t.Context(), sandpit.Spec{User: "root", WorkDir: "/", Egress: sandpit.Egress{Allow: []string{"HOST/"}}}); !errors.Is(err, sandpit.ErrInvalid) {
		t.Errorf("creating with an invalid rule: %v", err)
	}
	net.fail(errFaulty, nil)
	if _, err := e.Create(t.Context(), sandpit.Spec{User: "root", WorkDir: "/", Egress: sandpit.Egress{Allow: []string{"a.test"}}}); !errors.Is(err, errFaulty) {
		t.Errorf("creating without a network: %v", err)
	}
	if n := len(e.Sandboxes()); n != 1 {
		t.Errorf("there are %d sandboxes", n)
	}

	// A sandbox whose interface can't be had when it is adopted is adopted all the same, and
	// says what it lacks until its egress is set again.
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	e, report := adopt(t, srv, with)
	if report.Adopted != 1 || len(report.Lacking) != 1 {
		t.Fatalf("%+v", report)
	}
	var err error
	if sb, err = e.Get(t.Context(), "box"); err != nil {
		t.Fatal(err)
	}
	lacks := func() bool {
		info := wantState(t, sb, sandpit.StateRunning)
		return slices.ContainsFunc(info.NotEnforced, func(g sandpit.Gap) bool {
			return g.What == string(feature.Egress) && strings.Contains(g.Why, errFaulty.Error()) && g.Fix != ""
		})
	}
	if !lacks() {
		t.Error("it does not say what it lacks")
	}
	without = true
	want("after an adoption without a network", "a.test")
	without = false
	net.fail(nil, nil)
	if err := set("b.test"); err != nil || lacks() {
		t.Errorf("setting it again: %v", err)
	}
	want("after it was set again", "b.test")
	if err := sb.Remove(t.Context()); err != nil {
		t.Error(err)
	}
}

// An engine that can't send echo requests on, as the one before could, takes the sandbox over without them and says
// so. It refuses further rules of that kind, and keeps them again once it can.
func TestPingThatIsLost(t *testing.T) {
	srv := newSurvivor(t)
	ping := new(pinging)
	with := func(o *engine.Options) {
		o.Driver, o.Network = linking{bare: bare{srv.dir}, enter: func(context.Context) {}, ping: ping}, network.InProcess{}
	}
	e := srv.open(t, with)
	ping.able.Store(true)
	sb := made(t, e, sandpit.Spec{Name: "box", Egress: sandpit.Egress{Allow: []string{"ping:a.test", "b.test"}}})
	change := func(add, remove []string) error {
		return egresser(t, sb).ChangeEgress(t.Context(), sandpit.EgressChange{Add: sandpit.EgressRules{Allow: add}, Remove: sandpit.EgressRules{Allow: remove}})
	}
	want := func(when string, pings, lacks bool) {
		t.Helper()
		info := wantState(t, sb, sandpit.StateRunning)
		i := slices.IndexFunc(info.NotEnforced, func(g sandpit.Gap) bool { return g.What == string(feature.Ping) && g.Fix != "" })
		d, err := egresser(t, sb).CheckEgress(t.Context(), "ping:a.test")
		if err != nil || d.Allowed != pings || ping.allowed.Load() != pings || (i >= 0) != lacks || lacks && d.Why != info.NotEnforced[i].Why {
			t.Errorf("%s: %+v, %v; %v; sockets: %t", when, d, err, info.NotEnforced, ping.allowed.Load())
		}
		if d, err := egresser(t, sb).CheckEgress(t.Context(), "b.test"); err != nil || !d.Allowed {
			t.Errorf("%s: %+v, %v", when, d, err)
		}
	}
	want("at first", true, false)
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	ping.able.Store(false)
	e, report := adopt(t, srv, with)
	if report.Adopted != 1 || len(report.Lacking) != 1 {
		t.Fatalf("%+v", report)
	}
	var err error
	if sb, err = e.Get(t.Context(), "box"); err != nil {
		t.Fatal(err)
	}
	want("adopted", false, true)
	if err := change([]string{"ping:c.test"}, nil); !errors.Is(err, sandpit.ErrUnsupported) {
		t.Errorf("a further rule: %v", err)
	}
	if err := change([]string{"c.test"}, nil); err != nil {
		t.Error(err)
	}
	want("after another change", false, true)
	ping.able.Store(true)
	if err := change(nil, nil); err != nil {
		t.Error(err)
	}
	want("able again", true, false)
	ping.able.Store(false)
	if err := change([]string{"ping:c.test"}, nil); !errors.Is(err, sandpit.ErrUnsupported) {
		t.Errorf("a further rule, beside one that is kept: %v", err)
	}
	want("after it was refused", true, false)
	again := func() {
		t.Helper()
		life := sb.(sandpit.Lifecycle)
		if err := errors.Join(life.Stop(t.Context(), 0), life.Restart(t.Context())); err != nil {
			t.Fatal(err)
		}
	}
	again()
	want("started where it is lost", false, true)
	ping.able.Store(true)
	again()
	want("started where it is able again", true, false)
	ping.able.Store(false)
	if err := egresser(t, sb).ChangeEgress(t.Context(), sandpit.EgressChange{Add: sandpit.EgressRules{Deny: []string{"evil.test"}}}); err != nil {
		t.Error(err)
	}
	want("after a denial where it is lost", false, true)
	if err := change(nil, []string{"ping:a.test"}); err != nil {
		t.Error(err)
	}
	want("without its rule", false, false)
	if err := sb.Remove(t.Context()); err != nil {
		t.Error(err)
	}
}

// A sandbox of a blank gets its network ahead of the rest. If any part fails, nothing of it is left,
// and no other sandbox gets the blank.
func TestEgressOfBlanks(t *testing.T) {
	needEgress(t)
	port, net, store := origin(t), &faulty{}, &mapStore{}
	e := poolEngine(t, t.TempDir(), func(o *engine.Options) {
		o.Network, o.Store, o.Pool = net, store, engine.Pool{Size: 1}
	})
	some := egress(port, "good.test")
	e.Warm()
	ready(t, e, 1)
	sb := create(t, e, sandpit.Spec{Egress: some})
	if st := e.PoolStats(); st.Claimed != 1 {
		t.Errorf("it was not made of a blank: %+v", st)
	}
	if !reaches(t, sb, "good.test", port) || reaches(t, sb, "bad.test", port) {
		t.Error("it does not reach what it should, or more")
	}
	fails := func(what string, want error, spec sandpit.Spec) {
		t.Helper()
		ready(t, e, 1)
		spec.Egress = some
		if _, err := e.Create(t.Context(), spec); !errors.Is(err, want) {
			t.Errorf("%s: %v", what, err)
		}
		net.fail(nil, nil)
		store.setFail(nil)
		if sandboxes, open := len(e.Sandboxes()), net.open.Load(); sandboxes != 1 || open != 1 {
			t.Errorf("%s: there are %d sandboxes and %d networks, not one of each", what, sandboxes, open)
		}
		ready(t, e, 1)
		other := create(t, e, sandpit.Spec{})
		if got, _ := shell(t, other, "cat /proc/net/dev | wc -l"); got != "3\n" {
			t.Errorf("%s: the next sandbox has %s lines about interfaces", what, got)
		}
		if err := other.Remove(t.Context()); err != nil {
			t.Error(err)
		}
	}
	net.fail(errFaulty, nil)
	fails("a network that can't be joined", errFaulty, sandpit.Spec{})
	store.setFail(sandpit.ErrExhausted)
	fails("a full disk", sandpit.ErrExhausted, sandpit.Spec{})
	fails("a blank that can't be bound", sandpit.ErrInvalid, sandpit.Spec{Mounts: []sandpit.Mount{{Source: "/no/such", Target: "/m"}}})
	fails("a guest that can't be configured", sandpit.ErrInvalid, sandpit.Spec{User: "nobody-knows-them"})
	if err := sb.Remove(t.Context()); err != nil {
		t.Error(err)
	}
	if open := net.open.Load(); open != 0 {
		t.Errorf("%d networks are left", open)
	}
}

// Making an interface that hangs in the kernel holds up its sandbox only, and is told of.
func TestStuckLink(t *testing.T) {
	srv := newSurvivor(t)
	released, reached := make(chan struct{}), make(chan struct{}, 2)
	var stuck atomic.Bool
	stuck.Store(true)
	e := srv.open(t, func(o *engine.Options) {
		o.Driver = linking{bare: bare{srv.dir}, enter: func(ctx context.Context) {
			driver.ProgressOf(ctx).Enter(driver.Doing{Step: "link"})
			if stuck.Load() {
				reached <- struct{}{}
				<-released
			}
		}}
		o.Network, o.Patience = network.InProcess{}, engine.Patience{Create: 2 * time.Second, Undo: time.Millisecond, Close: time.Millisecond}
	})
	sb := made(t, e, sandpit.Spec{Name: "box"})
	some := sandpit.Egress{Allow: []string{"a.test"}}
	err := egresser(t, sb).SetEgress(t.Context(), some)
	if !errors.Is(err, sandpit.ErrUnavailable) || !strings.Contains(err.Error(), `step "link"`) {
		t.Errorf("changing: %v", err)
	}
	_, err = e.Create(t.Context(), sandpit.Spec{Name: "other", User: "root", WorkDir: "/", Egress: some})
	if !errors.Is(err, sandpit.ErrUnavailable) || !strings.Contains(err.Error(), `step "link"`) {
		t.Errorf("creating: %v", err)
	}
	if n := len(e.Stuck()); n != 2 {
		t.Errorf("%d are stuck", n)
	}
	stuck.Store(false)
	third := made(t, e, sandpit.Spec{Name: "third", Egress: some})
	if err := egresser(t, third).SetEgress(t.Context(), sandpit.Egress{}); err != nil {
		t.Errorf("changing another: %v", err)
	}
	close(released)
	eventually(t, "nothing is stuck", func() bool { return len(e.Stuck()) == 0 })
	if err := egresser(t, sb).SetEgress(t.Context(), some); err != nil {
		t.Errorf("changing it again: %v", err)
	}
	for _, s := range e.Sandboxes() {
		if err := s.Remove(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

// Traffic keeps a sandbox from being idle, and its end does not.
func TestTrafficIsActivity(t *testing.T) {
	srv := newSurvivor(t)
	net := &faulty{}
	net.busy.Store(true)
	e := srv.open(t, func(o *engine.Options) {
		o.Driver, o.Network = linking{bare: bare{srv.dir}, enter: func(context.Context) {}}, net
	})
	const idle = 200 * time.Millisecond
	sb := made(t, e, sandpit.Spec{Name: "box", Idle: idle, Egress: sandpit.Egress{Allow: []string{"a.test"}}})
	quiet := made(t, e, sandpit.Spec{Name: "quiet", Idle: idle})
	gone := func(sb sandpit.Sandbox) bool {
		_, err := e.Get(t.Context(), sb.ID())
		return errors.Is(err, sandpit.ErrNotFound)
	}
	eventually(t, "the one without traffic has gone", func() bool { return gone(quiet) })
	looks := net.moved.Load()
	eventually(t, "its traffic is looked at for another idle time", func() bool { return gone(sb) || net.moved.Load() > looks+8 })
	if gone(sb) {
		t.Error("the one with traffic has gone, too")
	}
	net.busy.Store(false)
	eventually(t, "without traffic it goes", func() bool { return gone(sb) })
}

// Traffic is counted once, whoever asks for it while a sandbox leaves its network.
func TestTrafficIsCountedOnce(t *testing.T) {
	srv := newSurvivor(t)
	net := &faulty{}
	net.busy.Store(true)
	e := srv.open(t, func(o *engine.Options) {
		o.Driver, o.Network = linking{bare: bare{srv.dir}, enter: func(context.Context) {}}, net
	})
	sb := made(t, e, sandpit.Spec{Name: "box", Egress: sandpit.Egress{Allow: []string{"a.test"}}})
	asked, removed := make(chan struct{}), make(chan struct{})
	var asking sync.WaitGroup
	for range 2 {
		asking.Go(func() {
			for last, n := int64(0), 0; ; n++ {
				if n == 10 {
					asked <- struct{}{}
				}
				select {
				case <-removed:
					return
				default:
				}
				now := e.Traffic()[""].Sent
				if now < last {
					t.Errorf("%d bytes after %d", now, last)
				}
				last = now
			}
		})
	}
	<-asked
	<-asked
	if err := sb.Remove(t.Context()); err != nil {
		t.Error(err)
	}
	close(removed)
	asking.Wait()
	if sent, counted := net.moved.Load(), e.Traffic()[""].Sent; counted != sent {
		t.Errorf("%d bytes were sent, %d are counted", sent, counted)
	}
}

// Whatever a policy has become, a change that allows nothing more is made, and made again, and adds what
// the policy denies and its maxima.
func TestNarrowingUnderATightenedPolicy(t *testing.T) {
	srv := newSurvivor(t)
	e := srv.open(t, func(o *engine.Options) {
		o.Driver, o.Network = linking{bare: bare{srv.dir}, enter: func(context.Context) {}}, network.InProcess{}
	})
	p, before := policy.ServerDefault(), policy.ServerDefault()
	p.Rules.Egress, p.Rules.Deny = []string{"*.good.test"}, []string{"c.test"}
	p.Rules.Traffic = sandpit.EgressBounds{Connections: 100, Sent: 1000}
	before.Rules.Egress, before.Rules.Deny = []string{"public"}, []string{"b.test"}
	was := sandpit.Egress{Preset: sandpit.EgressPublic, Allow: []string{"a.test"}, Bounds: sandpit.EgressBounds{Connections: 400, Received: 4000}}
	change := func(c sandpit.EgressChange) func(sandpit.Egresser) error {
		return func(sb sandpit.Egresser) error { return sb.ChangeEgress(t.Context(), c) }
	}
	set := func(edit func(*sandpit.Egress)) func(sandpit.Egresser) error {
		return func(sb sandpit.Egresser) error {
			is, err := sb.Egress(t.Context())
			edit(&is)
			return cmp.Or(err, sb.SetEgress(t.Context(), is))
		}
	}
	denying := sandpit.EgressRules{Deny: []string{"evil.test"}}
	for name, tt := range map[string]struct {
		do      func(sandpit.Egresser) error
		refused string
	}{
		"nothing":             {change(sandpit.EgressChange{}), ""},
		"no preset":           {change(sandpit.EgressChange{Preset: sandpit.EgressNone}), ""},
		"no preset, denial":   {change(sandpit.EgressChange{Preset: sandpit.EgressNone, Add: denying}), ""},
		"no preset, allowing": {change(sandpit.EgressChange{Preset: sandpit.EgressNone, Add: sandpit.EgressRules{Allow: []string{"d.test"}}}), "is not allowed"},
		"denial":              {change(sandpit.EgressChange{Add: denying}), ""},
		"another preset":      {change(sandpit.EgressChange{Preset: sandpit.EgressAll}), "is not allowed"},
		"preset left out":     {set(func(e *sandpit.Egress) { e.Preset = "" }), ""},
		"denied twice":        {set(func(e *sandpit.Egress) { e.Deny = append(e.Deny, "b.test", "b.test") }), ""},
		"denial left out":     {set(func(e *sandpit.Egress) { e.Deny = nil }), "is not allowed"},
		"lower bound":         {set(func(e *sandpit.Egress) { e.Bounds.Received = 10 }), ""},
		"higher bound":        {set(func(e *sandpit.Egress) { e.Bounds.Connections = 401 }), "more than the maximum of 100"},
		"not low enough":      {set(func(e *sandpit.Egress) { e.Bounds.Connections = 200 }), "more than the maximum of 100"},
		"bound for none":      {set(func(e *sandpit.Egress) { e.Bounds.Sent = 1 << 40 }), "more than the maximum of 1000 B"},
		"another name server": {set(func(e *sandpit.Egress) { e.DNS = []string{"9.9.9.9"} }), "is not allowed"},
	} {
		t.Run(name, func(t *testing.T) {
			sb, err := e.As("tenant", before).Create(t.Context(), sandpit.Spec{User: "root", WorkDir: "/", Egress: was})
			if err != nil {
				t.Fatal(err)
			}
			tight, err := e.As("tenant", p).Get(t.Context(), sb.ID())
			if err != nil {
				t.Fatal(err)
			}
			for range 2 {
				err := tt.do(egresser(t, tight))
				if (err == nil) != (tt.refused == "") || err != nil && !(errors.Is(err, sandpit.ErrForbidden) && strings.Contains(err.Error(), tt.refused)) {
					t.Fatal(err)
				}
			}
			is, err := egresser(t, tight).Egress(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			adds := slices.Contains(is.Deny, "c.test") && is.Bounds.Connections == 100 && is.Bounds.Sent == 1000
			if adds != (tt.refused == "") || !slices.Contains(is.Deny, "b.test") {
				t.Errorf("%+v", is)
			}
			if err := sb.Remove(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
}

// Bounds above the policy's maxima are refused, as they are for a new sandbox, also if it had none before.
func TestBoundsAboveTheMaxima(t *testing.T) {
	srv := newSurvivor(t)
	e := srv.open(t, func(o *engine.Options) {
		o.Driver, o.Network = linking{bare: bare{srv.dir}, enter: func(context.Context) {}}, network.InProcess{}
	})
	p := policy.ServerDefault()
	p.Rules.Traffic = sandpit.EgressBounds{Connections: 100, Sent: 1000}
	sb := made(t, e.As("tenant", p), sandpit.Spec{})
	for bounds, refused := range map[sandpit.EgressBounds]string{
		{Connections: 200}: "more than the maximum of 100",
		{Sent: 1 << 40}:    "more than the maximum of 1000 B",
		{Sent: 1000}:       "",
	} {
		err := egresser(t, sb).SetEgress(t.Context(), sandpit.Egress{Allow: []string{"a.test"}, Bounds: bounds})
		if (err == nil) != (refused == "") || err != nil && !(errors.Is(err, sandpit.ErrForbidden) && strings.Contains(err.Error(), refused)) {
			t.Errorf("%+v: %v", bounds, err)
		}
	}
	if err := sb.Remove(t.Context()); err != nil {
		t.Error(err)
	}
}

// A rule about requests can't be removed under a policy that does not allow what its host then gets.
func TestRequestRulesAreNotRemovedToWiden(t *testing.T) {
	srv := newSurvivor(t)
	e := srv.open(t, func(o *engine.Options) {
		o.Driver, o.Network = linking{bare: bare{srv.dir}, enter: func(context.Context) {}}, network.InProcess{}
	})
	p, before := policy.ServerDefault(), policy.ServerDefault()
	p.Rules.Egress = []string{"*.good.test"}
	const rule = "GET:https://a.test/x*"
	sb := made(t, e.As("tenant", before), sandpit.Spec{Egress: sandpit.Egress{Allow: []string{"a.test", rule}}})
	tight, err := e.As("tenant", p).Get(t.Context(), sb.ID())
	if err != nil {
		t.Fatal(err)
	}
	remove := func(rules ...string) error {
		return egresser(t, tight).ChangeEgress(t.Context(), sandpit.EgressChange{Remove: sandpit.EgressRules{Allow: rules}})
	}
	if err := remove(rule); !errors.Is(err, sandpit.ErrForbidden) {
		t.Errorf("the rule alone: %v", err)
	}
	if err := remove("a.test", rule); err != nil {
		t.Errorf("with its host: %v", err)
	}
	if err := sb.Remove(t.Context()); err != nil {
		t.Error(err)
	}
}

// The hosts of secrets are reached also where nothing else is: a change that frees or uncovers one is checked anew, and one
// that leaves it as it is goes on.
func TestNarrowingBesideSecrets(t *testing.T) {
	const rule = "GET:https://a.test/x*"
	p, before := policy.ServerDefault(), policy.ServerDefault()
	p.Rules.Secrets, before.Rules.Secrets = []string{"*"}, []string{"*"}
	p.Rules.Egress = []string{"*.good.test"}
	for name, c := range map[string]struct {
		was     sandpit.Egress
		refused func(context.Context, sandpit.Egresser) error
		allowed func(context.Context, sandpit.Egresser) error // after that
	}{
		"a rule about requests to its host": {
			was: sandpit.Egress{Allow: []string{rule, "b.test"}},
			refused: func(ctx context.Context, sb sandpit.Egresser) error {
				return sb.ChangeEgress(ctx, sandpit.EgressChange{Remove: sandpit.EgressRules{Allow: []string{rule}}})
			},
			allowed: func(ctx context.Context, sb sandpit.Egresser) error {
				return sb.ChangeEgress(ctx, sandpit.EgressChange{Remove: sandpit.EgressRules{Allow: []string{"b.test"}}})
			},
		},
		"denials": {
			was: sandpit.Egress{Preset: sandpit.EgressPublic, Deny: []string{"evil.test"}},
			refused: func(ctx context.Context, sb sandpit.Egresser) error {
				return sb.SetEgress(ctx, sandpit.Egress{})
			},
			allowed: func(ctx context.Context, sb sandpit.Egresser) error {
				return sb.ChangeEgress(ctx, sandpit.EgressChange{Preset: sandpit.EgressNone})
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			srv := newSurvivor(t)
			e := srv.open(t, func(o *engine.Options) {
				withSecrets(srv, &told{}, nil)(o)
				o.Secrets = &boundTo{hosts: func(string) []string { return []string{"a.test:443"} }}
				o.Driver, o.Network = linking{bare: bare{srv.dir}, enter: func(context.Context) {}}, network.InProcess{}
			})
			sb := made(t, e.As("", before), sandpit.Spec{Egress: c.was, Secrets: []sandpit.Secret{{Name: "token"}}})
			tight, err := e.As("", p).Get(t.Context(), sb.ID())
			if err != nil {
				t.Fatal(err)
			}
			if err := c.refused(t.Context(), egresser(t, tight)); !errors.Is(err, sandpit.ErrForbidden) {
				t.Errorf("what uncovers the host: %v", err)
			}
			if err := c.allowed(t.Context(), egresser(t, tight)); err != nil {
				t.Errorf("what leaves it: %v", err)
			}
			if err := sb.Remove(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
}

// Whatever a policy denies since, a sandbox can be made to reach nothing, and gets the denials with the next rule.
// Where there is no room for them, the error says how many rules are too many.
func TestNothingIsAllowedWithoutRoom(t *testing.T) {
	srv := newSurvivor(t)
	e := srv.open(t, func(o *engine.Options) {
		o.Driver, o.Network = linking{bare: bare{srv.dir}, enter: func(context.Context) {}}, network.InProcess{}
	})
	p, before := policy.ServerDefault(), policy.ServerDefault()
	p.Rules.Egress, p.Rules.Deny = []string{"*.good.test"}, numbered("denied%d.test", 400)
	own := sandpit.EgressRules{Allow: numbered("a%d.test", 24), Deny: numbered("own%d.test", 1000)}
	sb := made(t, e.As("tenant", before), sandpit.Spec{Egress: sandpit.Egress{Preset: sandpit.EgressPublic, Allow: own.Allow, Deny: own.Deny}})
	tight, err := e.As("tenant", p).Get(t.Context(), sb.ID())
	if err != nil {
		t.Fatal(err)
	}
	box := egresser(t, tight)
	change := func(c sandpit.EgressChange) (sandpit.Egress, error) {
		t.Helper()
		err := box.ChangeEgress(t.Context(), c)
		is, failed := box.Egress(t.Context())
		if failed != nil {
			t.Fatal(failed)
		}
		return is, err
	}
	none := sandpit.EgressChange{Preset: sandpit.EgressNone}
	is, err := change(none)
	if !errors.Is(err, sandpit.ErrInvalid) || !strings.Contains(err.Error(), "1424 egress rules") || !strings.Contains(sandpit.Hint(err), "remove 400 ") || is.Preset != sandpit.EgressPublic {
		t.Errorf("without its preset: %s, %v (%s)", is.Preset, err, sandpit.Hint(err))
	}
	none.Remove.Allow = own.Allow
	if is, err = change(none); err != nil || is.Asked() || !slices.Equal(is.Deny, own.Deny) {
		t.Errorf("allowed nothing: %+v, %v", is, err)
	}
	some := sandpit.EgressChange{Add: sandpit.EgressRules{Allow: []string{"a.good.test"}}, Remove: sandpit.EgressRules{Deny: own.Deny[1:]}}
	if is, err = change(some); err != nil || !slices.Equal(is.Deny, slices.Concat(p.Rules.Deny, own.Deny[:1])) {
		t.Errorf("allowed something again: %+v, %v", is, err)
	}
	if err := sb.Remove(t.Context()); err != nil {
		t.Error(err)
	}
}

// later is a network of a machine that may get addresses. It notes those with which it decides.
type later struct {
	told
	own, granted []netip.Addr
}

func (n *later) Own(sandpit.Egress) ([]netip.Addr, error) { return n.own, nil }

func (n *later) Decide(t engine.Terms, destination string) (sandpit.EgressDecision, error) {
	n.granted = t.Own
	return n.told.Decide(t, destination)
}

// What narrows under a tightened policy stays as it was granted: it names no address that has become the machine's own
// since, and reaches later hosts of its secrets that the former policy allowed.
func TestNarrowedGrantsStay(t *testing.T) {
	srv, n := newSurvivor(t), &later{}
	secrets := &boundTo{hosts: func(name string) []string { return []string{name + ".test:443"} }}
	e := srv.open(t, func(o *engine.Options) {
		withSecrets(srv, &n.told, nil)(o)
		o.Network, o.Secrets = n, secrets
	})
	p, before := policy.ServerDefault(), policy.ServerDefault()
	p.Rules.Secrets, before.Rules.Secrets = []string{"*"}, []string{"*"}
	p.Rules.Egress = []string{"*.good.test"}
	sb := made(t, e.As("", before), sandpit.Spec{Egress: sandpit.Egress{Allow: []string{"1.2.3.0/24"}}, Secrets: []sandpit.Secret{{Name: "token"}}})
	tight, err := e.As("", p).Get(t.Context(), sb.ID())
	if err != nil {
		t.Fatal(err)
	}
	n.own = []netip.Addr{netip.MustParseAddr("1.2.3.4")}
	if err := egresser(t, tight).ChangeEgress(t.Context(), sandpit.EgressChange{Add: sandpit.EgressRules{Deny: []string{"evil.test"}}}); err != nil {
		t.Fatal(err)
	}
	secrets.hosts = func(string) []string { return []string{"later.test:443"} }
	if err := e.SecretChanged(t.Context(), "", "token"); err != nil {
		t.Fatal(err)
	}
	if d, err := egresser(t, sb).CheckEgress(t.Context(), "later.test:443"); err != nil || !d.Allowed || len(n.granted) > 0 {
		t.Errorf("%+v, %v; granted: %v", d, err, n.granted)
	}
	if err := sb.Remove(t.Context()); err != nil {
		t.Error(err)
	}
}

// To learn under a policy that allows ping needs no driver that can allow it, unless the caller asks for ping.
func TestLearningWithoutPing(t *testing.T) {
	srv := newSurvivor(t)
	e := srv.open(t, func(o *engine.Options) {
		o.Driver, o.Network = linking{bare: bare{srv.dir}, enter: func(context.Context) {}}, network.InProcess{}
	})
	p := policy.ServerDefault()
	p.Rules.Egress = []string{"a.test", "ping:a.test", "ping:b.test"}
	tenant := e.As("tenant", p)
	learn := sandpit.Egress{Preset: sandpit.EgressLearn}
	spec := sandpit.Spec{Name: "box", User: "root", WorkDir: "/", Egress: learn}
	sb, err := tenant.Create(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	check := func() {
		t.Helper()
		if is, err := egresser(t, sb).Egress(t.Context()); err != nil || !slices.Equal(is.Allow, []string{"a.test"}) {
			t.Errorf("%+v, %v", is, err)
		}
	}
	check()
	for _, egress := range []sandpit.Egress{{}, learn} {
		if err := egresser(t, sb).SetEgress(t.Context(), egress); err != nil {
			t.Fatal(err)
		}
	}
	check()
	learn.Allow = []string{"ping:a.test"}
	if err := egresser(t, sb).SetEgress(t.Context(), learn); !errors.Is(err, sandpit.ErrUnsupported) {
		t.Errorf("ping was asked for: %v", err)
	}
	spec.Name, spec.Egress = "other", learn
	if _, err := tenant.Create(t.Context(), spec); !errors.Is(err, sandpit.ErrUnsupported) {
		t.Errorf("ping was asked for: %v", err)
	}
	check()
}

// A tenant changes the egress of its sandboxes within its policy, whose floor is added once.
func TestEgressWithinThePolicy(t *testing.T) {
	srv := newSurvivor(t)
	e := srv.open(t, func(o *engine.Options) {
		o.Driver, o.Network = linking{bare: bare{srv.dir}, enter: func(context.Context) {}}, network.InProcess{}
	})
	p := policy.ServerDefault()
	p.Rules.Egress, p.Rules.Deny = []string{"a.test", "b.test"}, []string{"c.test"}
	tenant := e.As("tenant", p)
	spec := sandpit.Spec{Name: "box", User: "root", WorkDir: "/", Egress: sandpit.Egress{Allow: []string{"a.test"}, Deny: []string{"d.test"}}}
	sb, err := tenant.Create(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		is, err := egresser(t, sb).Egress(t.Context())
		if err != nil || !slices.Equal(is.Deny, []string{"c.test", "d.test"}) {
			t.Fatalf("%+v, %v", is, err)
		}
		is.Allow = append(is.Allow, "b.test")
		if err := egresser(t, sb).SetEgress(t.Context(), is); err != nil {
			t.Fatal(err)
		}
	}
	if err := egresser(t, sb).SetEgress(t.Context(), sandpit.Egress{Allow: []string{"e.test"}}); !errors.Is(err, sandpit.ErrForbidden) {
		t.Errorf("what the policy does not allow: %v", err)
	}
	// A policy that was tightened hinders nobody who narrows, and adds its floor. What is widened is checked.
	p.Rules.Egress, p.Rules.Deny = []string{"f.test", "g.test", "h.test"}, []string{"a.test", "c.test", "h.test"}
	tight, err := e.As("tenant", p).Get(t.Context(), "box")
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		change  sandpit.EgressChange
		refused string
	}{
		{sandpit.EgressChange{Add: sandpit.EgressRules{Deny: []string{"x.b.test"}}}, ""},
		{sandpit.EgressChange{Add: sandpit.EgressRules{Deny: []string{"x.b.test"}}}, ""}, // again, after a lost response
		{sandpit.EgressChange{}, ""},
		{sandpit.EgressChange{Remove: sandpit.EgressRules{Deny: []string{"x.b.test"}}}, `egress to "a.test" is not allowed`},
		{sandpit.EgressChange{Remove: sandpit.EgressRules{Allow: []string{"b.test"}, Deny: []string{"x.b.test"}}}, `egress to "a.test" is not allowed`},
		{sandpit.EgressChange{Add: sandpit.EgressRules{Allow: []string{"h.test"}}}, `egress to "h.test" is denied`},
		{sandpit.EgressChange{Add: sandpit.EgressRules{Allow: []string{"f.test"}}}, `egress to "a.test" is not allowed`},
		{sandpit.EgressChange{Preset: sandpit.EgressPublic, Remove: sandpit.EgressRules{Allow: []string{"a.test"}}}, "egress to"},
		{sandpit.EgressChange{Add: sandpit.EgressRules{Resolve: []string{"b.test:1.1.1.1"}, Deny: []string{"y.test"}}}, "egress to"},
		{sandpit.EgressChange{Add: sandpit.EgressRules{Deny: []string{"no such host"}}}, "no such host"},
		{sandpit.EgressChange{Remove: sandpit.EgressRules{Allow: []string{"b.test"}}}, ""},
	} {
		err := egresser(t, tight).ChangeEgress(t.Context(), tt.change)
		if (err == nil) != (tt.refused == "") || err != nil && !strings.Contains(err.Error(), tt.refused) {
			t.Errorf("%+v: %v", tt.change, err)
		}
	}
	is, err := egresser(t, tight).Egress(t.Context())
	if err != nil || !slices.Equal(is.Allow, []string{"a.test"}) || !slices.Contains(is.Deny, "a.test") || !slices.Contains(is.Deny, "x.b.test") {
		t.Errorf("%+v, %v", is, err)
	}
	if err := egresser(t, tight).SetEgress(t.Context(), sandpit.Egress{Allow: []string{"f.test"}}); err != nil {
		t.Error(err)
	}
	own, err := tenant.WithoutPolicy(errors.New("it is gone")).Get(t.Context(), "box")
	if err != nil {
		t.Fatal(err)
	}
	if err := egresser(t, own).SetEgress(t.Context(), sandpit.Egress{}); !errors.Is(err, sandpit.ErrForbidden) {
		t.Errorf("without a policy: %v", err)
	}
	if err := sb.Remove(t.Context()); err != nil {
		t.Error(err)
	}
}
