package engine_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/driver/linux"
	"github.com/sandpit-dev/sandpit/internal/engine"
	"github.com/sandpit-dev/sandpit/internal/feature"
	"github.com/sandpit-dev/sandpit/internal/image"
	"github.com/sandpit-dev/sandpit/internal/image/fetch"
	"github.com/sandpit-dev/sandpit/internal/policy"
	"github.com/sandpit-dev/sandpit/internal/testkit"
	"github.com/sandpit-dev/sandpit/sandpittest"
)

// warmPython is what tests hold: an interpreter with a module that it does not import by itself.
func warmPython(size int) engine.Held {
	return engine.Held{Image: "host", Policy: policy.Default(), Language: sandpit.Python, Modules: []string{"wave"}, Size: size}
}

// heldEngine returns an engine that holds sandboxes, with a store if that is not nil.
func heldEngine(t *testing.T, dir string, store engine.Store, change func(*engine.Options)) *engine.Engine {
	t.Helper()
	testkit.NeedProgram(t, "python3")
	return poolEngine(t, dir, func(o *engine.Options) {
		o.Store = store
		o.Pool = engine.Pool{Held: []engine.Held{warmPython(2)}}
		o.NotHeld = func(h engine.Held, err error) { t.Logf("holding %s: %v", h.Image, err) }
		if change != nil {
			change(o)
		}
	})
}

// holds waits until so many sandboxes are held.
func holds(t testing.TB, e *engine.Engine, n int) {
	t.Helper()
	testkit.NeedWorkingHost(t)
	for end := time.Now().Add(2 * time.Minute); e.PoolStats().Held != n; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%+v, not %d held", e.PoolStats(), n)
		}
	}
}

// evaluate runs code in the default context and returns the text of the main result.
func evaluate(t *testing.T, sb sandpit.Sandbox, source string) string {
	t.Helper()
	var texts []string
	res, err := sb.(sandpit.Coder).RunCode(t.Context(), sandpit.Code{Source: source, Output: func(o sandpit.CodeOutput) { texts = append(texts, o.Text) }})
	if err != nil || res.Error != nil || res.StateLost != "" {
		t.Fatalf("running %q: %+v, %v", source, res, err)
	}
	return strings.Join(texts, "\n")
}

// A create that asks for nothing else gets a held sandbox, whose interpreter has imported the modules, and
// which nobody has used. It is as any other otherwise.
func TestHeld(t *testing.T) {
	for name, store := range map[string]engine.Store{"ends with its engine": nil, "outlives its engine": &mapStore{}} {
		t.Run(name, func(t *testing.T) {
			e := heldEngine(t, t.TempDir(), store, nil)
			e.Warm()
			ids := map[string]bool{}
			for i, spec := range []sandpit.Spec{
				{Image: "host"},
				{Labels: map[string]string{"a": "b"}, Limits: sandpit.Limits{Life: time.Hour}, Idle: time.Hour, OnExpiry: sandpit.ExpiryPause},
			} {
				holds(t, e, 2)
				sb := create(t, e, spec)
				if st := e.PoolStats(); st.HeldClaimed != int64(i+1) || st.HeldMissed != 0 {
					t.Errorf("after %d: %+v", i+1, st)
				}
				info, err := sb.Info(t.Context())
				if err != nil || info.ID != sb.ID() || ids[sb.ID()] || info.Name != sb.ID() || info.State != sandpit.StateRunning || info.Labels["a"] != spec.Labels["a"] {
					t.Errorf("%+v, %v", info, err)
				}
				ids[sb.ID()] = true
				if out, _ := shell(t, sb, "uname -n; cat /etc/hostname; ls /tmp"); out != sb.ID()+"\n"+sb.ID()+"\n" {
					t.Errorf("the sandbox has %q", out)
				}
				if got := evaluate(t, sb, "import sys, os; first = ('wave' in sys.modules, __name__, os.uname().nodename); first"); got != "(True, '__main__', '"+sb.ID()+"')" {
					t.Errorf("the interpreter says %s", got)
				}
				if got := evaluate(t, sb, "first[0]"); got != "True" {
					t.Errorf("the state is lost: %s", got)
				}
				all, err := sb.(sandpit.Coder).Contexts(t.Context())
				if err != nil || len(all) != 1 || all[0].ID != "python" {
					t.Errorf("its contexts are %+v, %v", all, err)
				}
				if err := sb.Remove(t.Context()); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// A create that differs in anything that can't be changed later starts cold.
func TestHeldIsNotHalfWarm(t *testing.T) {
	e := heldEngine(t, t.TempDir(), nil, nil)
	e.Warm()
	holds(t, e, 2)
	for name, spec := range map[string]sandpit.Spec{
		"name": {Name: "web"}, "hostname": {Hostname: "web"}, "env": {Env: []string{"A=b"}}, "user": {User: "root"}, "dir": {WorkDir: "/tmp"},
		"memory": {Limits: sandpit.Limits{Memory: 64 << 20}}, "cpus": {Limits: sandpit.Limits{CPUs: 0.5}}, "output": {Limits: sandpit.Limits{Output: 1000}},
		"open files": {Limits: sandpit.Limits{NoFile: 100}}, "read-only": {ReadOnly: true}, "write paths": {Write: []string{"/tmp"}},
		"tmpfs": {Tmpfs: []sandpit.Tmpfs{{Target: "/work"}}}, "root inside": {RootInside: true}, "mount": {Mounts: []sandpit.Mount{{Source: t.TempDir(), Target: "/mnt", ReadOnly: true}}},
	} {
		sb := create(t, e, spec)
		if st := e.PoolStats(); st.HeldClaimed != 0 || st.Held != 2 {
			t.Fatalf("with another %s: %+v", name, st)
		}
		if err := sb.Remove(t.Context()); err != nil {
			t.Error(err)
		}
	}
	// Nor does one of another policy, but one whose policy gives the same.
	other := policy.Default()
	other.Name = "other"
	if err := other.SetDefaults(sandpit.Limits{Memory: 128 << 20}); err != nil {
		t.Fatal(err)
	}
	same := policy.Default()
	same.Name = "same"
	for i, p := range []policy.Policy{other, same} {
		sb, err := e.As("tenant", p).Create(t.Context(), sandpit.Spec{})
		testkit.Made(t, err)
		if st := e.PoolStats(); st.HeldClaimed != int64(i) {
			t.Errorf("of the policy %s: %+v", p.Name, st)
		}
		if info, err := sb.Info(t.Context()); err != nil || info.Policy != p.Name {
			t.Errorf("%+v, %v", info, err)
		}
		_ = sb.Remove(t.Context())
	}
}

// A warm interpreter of another language is the default context of that from its first run on.
func TestHeldJavaScript(t *testing.T) {
	testkit.NeedProgram(t, "node")
	for language, source := range map[string]string{sandpit.JavaScript: "globalThis.x = 6*7", sandpit.TypeScript: "let x: number = 6*7"} {
		e := heldEngine(t, t.TempDir(), nil, func(o *engine.Options) {
			o.Pool.Held = []engine.Held{{Image: "host", Policy: policy.Default(), Language: language, Size: 1}}
		})
		e.Warm()
		holds(t, e, 1)
		sb := create(t, e, sandpit.Spec{})
		before := living(t, sb)
		if all, err := sb.(sandpit.Coder).Contexts(t.Context()); err != nil || len(all) != 0 || len(before) != 1 {
			t.Fatalf("at first it has the contexts %+v and the processes %v, %v", all, before, err)
		}
		res, err := sb.(sandpit.Coder).RunCode(t.Context(), sandpit.Code{Source: source, Language: language})
		without := language == sandpit.TypeScript && err != nil && strings.Contains(err.Error(), "its node can't run it") // an old one
		if err != nil && !without || res.Error != nil || res.StateLost != "" {
			t.Fatalf("%+v, %+v, %v", res, res.Error, err)
		}
		if got := evaluate(t, sb, "'wave' in __import__('sys').modules"); got != "False" {
			t.Errorf("a Python context of it is warm: %s", got)
		}
		if all := living(t, sb); len(all) != 2 || all[0] != before[0] {
			t.Errorf("its processes are %v, and were %v", all, before)
		}
		if err := sb.Remove(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

// living returns the processes that the guest has started and that run.
func living(t *testing.T, sb sandpit.Sandbox) (ids []string) {
	t.Helper()
	all, err := sb.Processes(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range all {
		if p.Result == nil {
			ids = append(ids, p.ID)
		}
	}
	return ids
}

// contextsOf returns the processes of the contexts by the IDs of these.
func contextsOf(t *testing.T, sb sandpit.Sandbox) map[string]string {
	t.Helper()
	all, err := sb.(sandpit.Coder).Contexts(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	processes := map[string]string{}
	for _, c := range all {
		processes[c.ID] = c.Process
	}
	return processes
}

// The first run of a held sandbox finds the default context forked already: it starts no process. Before that nobody
// sees a context. Each has random numbers of its own, and each sandbox a hash seed of its own.
func TestHeldDefaultIsReady(t *testing.T) {
	e := heldEngine(t, t.TempDir(), nil, func(o *engine.Options) { o.Pool.Held[0].Modules = []string{"wave", "random"} })
	e.Warm()
	holds(t, e, 2)
	seen := map[string]bool{}
	for range 2 {
		sb := create(t, e, sandpit.Spec{})
		before := living(t, sb)
		if all := contextsOf(t, sb); len(all) != 0 || len(before) != 2 {
			t.Errorf("at first it has the contexts %v and the processes %v", all, before)
		}
		got := evaluate(t, sb, "import sys, os, random; ('wave' in sys.modules, os.getcwd() == os.environ['HOME'], random.random(), hash('a text'))")
		if !strings.HasPrefix(got, "(True, True, ") {
			t.Errorf("the default context has %s", got)
		}
		for _, value := range strings.Split(got, ", ")[2:] {
			if seen[value] {
				t.Errorf("another sandbox has %s, too: %s", value, got)
			}
			seen[value] = true
		}
		if all, after := contextsOf(t, sb), living(t, sb); len(all) != 1 || all["python"] != before[1] || !slices.Equal(after, before) {
			t.Errorf("after the first run it has the contexts %v and the processes %v, and had %v", all, after, before)
		}
		// One that is removed, or was made by the caller, is not that one.
		if err := sb.RemoveContext(t.Context(), "python"); err != nil {
			t.Fatal(err)
		}
		if c, err := sb.CreateContext(t.Context(), sandpit.NewContext{ID: "python", Dir: "/"}); err != nil || slices.Contains(before, c.Process) {
			t.Errorf("made %+v, %v, with the processes %v before", c, err, before)
		}
		if got := evaluate(t, sb, "import os; os.getcwd()"); got != "'/'" {
			t.Errorf("the context that was made works in %s", got)
		}
	}
}

// A context of the caller's with the ID of the default one is that, and not what is ready.
func TestHeldDefaultOfTheCaller(t *testing.T) {
	e := heldEngine(t, t.TempDir(), nil, nil)
	e.Warm()
	holds(t, e, 2)
	sb := create(t, e, sandpit.Spec{})
	c, err := sb.CreateContext(t.Context(), sandpit.NewContext{ID: "python", Env: []string{"A=b"}})
	if err != nil || slices.Contains(living(t, sb)[:2], c.Process) {
		t.Fatalf("%+v, %v", c, err)
	}
	if got := evaluate(t, sb, "import os; os.environ['A']"); got != "'b'" {
		t.Errorf("it has A=%s", got)
	}
}

// A default context that dies before its first run is forked again, and no run hears of it.
func TestHeldDefaultDies(t *testing.T) {
	e := heldEngine(t, t.TempDir(), nil, nil)
	e.Warm()
	holds(t, e, 2)
	sb := create(t, e, sandpit.Spec{})
	ready := living(t, sb)[1]
	p, err := sb.(sandpit.ProcessKeeper).Attach(t.Context(), ready, sandpit.AttachOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Kill(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := evaluate(t, sb, "import sys; 'wave' in sys.modules"); got != "True" {
		t.Errorf("it is not forked again: %s", got)
	}
	if all := contextsOf(t, sb); len(all) != 1 || all["python"] == ready || all["python"] == "" {
		t.Errorf("its contexts are %v, and %s was killed", all, ready)
	}
}

// The next engine finds a default context that was not used yet, and still nobody sees it before its first
// run. The engine after that finds it with its state.
func TestHeldDefaultOutlivesTheEngine(t *testing.T) {
	dir, store := t.TempDir(), &mapStore{}
	e := heldEngine(t, dir, store, nil)
	e.Warm()
	holds(t, e, 2)
	sb := create(t, e, sandpit.Spec{})
	before := living(t, sb)
	next := func() {
		t.Helper()
		if err := e.Close(); err != nil {
			t.Fatal(err)
		}
		e = heldEngine(t, dir, store, func(o *engine.Options) { o.Pool = engine.Pool{} })
		if _, err := e.Adopt(t.Context()); err != nil {
			t.Fatal(err)
		}
		found, err := e.Get(t.Context(), sb.ID())
		if err != nil {
			t.Fatal(err)
		}
		sb = found
	}
	next()
	if all := contextsOf(t, sb); len(all) != 0 {
		t.Errorf("before the first run the next engine lists %v", all)
	}
	if got := evaluate(t, sb, "import sys; x = 'wave' in sys.modules; x"); got != "True" {
		t.Errorf("it is not warm: %s", got)
	}
	if after := living(t, sb); !slices.Equal(after, before) {
		t.Errorf("its processes are %v, and were %v", after, before)
	}
	next()
	if all := contextsOf(t, sb); len(all) != 1 || all["python"] != before[1] {
		t.Errorf("after the first run the next engine lists %v, not the process %s", all, before[1])
	}
	if got := evaluate(t, sb, "x"); got != "True" {
		t.Errorf("the state is %s", got)
	}
	if err := sb.Remove(t.Context()); err != nil {
		t.Error(err)
	}
}

// What is held gives way when its memory is promised to sandboxes, and no sandbox waits for that.
func TestHeldGivesWay(t *testing.T) {
	e := heldEngine(t, t.TempDir(), nil, func(o *engine.Options) { o.Capacity.Memory = 1 << 30 })
	e.Warm()
	holds(t, e, 2)
	sb := create(t, e, sandpit.Spec{Limits: sandpit.Limits{Memory: 1 << 30}})
	e.SetPool(engine.Pool{Held: []engine.Held{warmPython(2)}}) // rather than wait for the next look
	holds(t, e, 0)
	if err := sb.Remove(t.Context()); err != nil {
		t.Fatal(err)
	}
	e.SetPool(engine.Pool{Held: []engine.Held{warmPython(2)}})
	holds(t, e, 2)
}

// Many who claim at once get one each, or a sandbox that is made for them.
func TestHeldRace(t *testing.T) {
	e := heldEngine(t, t.TempDir(), nil, nil)
	e.Warm()
	holds(t, e, 2)
	var wg sync.WaitGroup
	var mu sync.Mutex
	ids := map[string]bool{}
	for range 6 {
		wg.Go(func() {
			sb, err := e.Create(t.Context(), sandpit.Spec{})
			if err != nil {
				t.Error(err)
				return
			}
			res, err := sb.(sandpit.Coder).RunCode(t.Context(), sandpit.Code{Source: "assert 'used' not in globals(); used = 1"})
			if err != nil || res.Error != nil {
				t.Errorf("%+v, %v", res, err)
			}
			mu.Lock()
			defer mu.Unlock()
			if ids[sb.ID()] {
				t.Errorf("%s was handed out twice", sb.ID())
			}
			ids[sb.ID()] = true
		})
	}
	wg.Wait()
	if st := e.PoolStats(); st.HeldClaimed < 2 || st.HeldClaimed+st.HeldMissed != 6 {
		t.Errorf("%+v", st)
	}
}

// A held sandbox whose interpreters or guest have died is replaced, also if that is just one of them.
func TestHeldDeath(t *testing.T) {
	e := heldEngine(t, t.TempDir(), nil, nil)
	e.Warm()
	warm := func() bool {
		sb, err := e.Create(t.Context(), sandpit.Spec{})
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := sb.Remove(t.Context()); err != nil {
				t.Error(err)
			}
		}()
		var out strings.Builder
		before := len(living(t, sb))
		res, err := sb.(sandpit.Coder).RunCode(t.Context(), sandpit.Code{Source: "import sys; print('wave' in sys.modules)", Stdout: &out})
		return err == nil && res.Error == nil && out.String() == "True\n" && before == 2 && len(living(t, sb)) == 2
	}
	for _, victim := range []string{"zygotes", "contexts", "guests"} {
		holds(t, e, 2)
		zygotes, contexts, guests := heldProcesses()
		victims := map[string][]int{"zygotes": zygotes, "contexts": contexts, "guests": guests}[victim]
		if len(victims) < 2 {
			t.Fatalf("the %s are %v", victim, victims)
		}
		for _, pid := range victims {
			_ = unix.Kill(pid, unix.SIGKILL)
		}
		for end := time.Now().Add(time.Minute); !warm(); time.Sleep(settled) {
			if time.Now().After(end) {
				t.Fatalf("without their %s they were not replaced: %+v", victim, e.PoolStats())
			}
		}
	}
}

// A held sandbox is replaced when just its default context has died, and before anybody claims it.
func TestHeldDefaultDiesUnclaimed(t *testing.T) {
	e := heldEngine(t, t.TempDir(), nil, nil)
	e.Warm()
	holds(t, e, 2)
	_, contexts, guests := heldProcesses()
	if len(contexts) < 2 {
		t.Fatalf("the contexts are %v", contexts)
	}
	for _, pid := range contexts {
		_ = unix.Kill(pid, unix.SIGKILL)
	}
	old := func(pid int) bool { return slices.Contains(guests, pid) }
	for end := time.Now().Add(time.Minute); ; time.Sleep(settled) {
		e.SetPool(engine.Pool{Held: []engine.Held{warmPython(2)}}) // rather than wait for the next look
		_, contexts, now := heldProcesses()
		if len(contexts) >= 2 && !slices.ContainsFunc(now, old) {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("of the guests %v there are still some of %v", now, guests)
		}
	}
}

// What is too old is not handed out.
func TestHeldAge(t *testing.T) {
	old := warmPython(1)
	old.MaxAge = time.Nanosecond
	e := heldEngine(t, t.TempDir(), nil, func(o *engine.Options) { o.Pool.Held = []engine.Held{old} })
	e.Warm()
	for range 3 {
		holds(t, e, 1)
		_ = create(t, e, sandpit.Spec{}).Remove(t.Context())
	}
	if st := e.PoolStats(); st.HeldClaimed != 0 || st.HeldMissed != 3 {
		t.Errorf("%+v", st)
	}
}

// settled is longer than the engine waits after a create before it replaces what was held.
const settled = 30 * time.Millisecond

// heldProcesses returns the zygotes below this process, the contexts that are forked from them, and the guests that
// they belong to. The helper of a context is an interpreter, too.
func heldProcesses() (zygotes, contexts, guests []int) {
	python := func(pid int) bool {
		comm, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
		return strings.HasPrefix(string(comm), "python3")
	}
	for _, guest := range childrenOf(os.Getpid()) {
		below := []int{guest}
		for i := 0; i < len(below); i++ {
			children := childrenOf(below[i])
			below = append(below, children...)
			switch {
			case !python(below[i]):
				for _, pid := range children {
					if python(pid) && len(childrenOf(pid)) == 0 {
						zygotes, guests = append(zygotes, pid), append(guests, guest)
					}
				}
			case len(children) > 0:
				contexts = append(contexts, children...)
			}
		}
	}
	return zygotes, contexts, guests
}

func childrenOf(pid int) (children []int) {
	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	for _, task := range tasks {
		data, _ := os.ReadFile(task)
		for _, child := range strings.Fields(string(data)) {
			n, _ := strconv.Atoi(child)
			children = append(children, n)
		}
	}
	return children
}

// Nothing is held that the policy would not make any more, and nothing that is dead.
func TestHeldIsReplaced(t *testing.T) {
	told := make(chan string, 100)
	e := heldEngine(t, t.TempDir(), nil, func(o *engine.Options) {
		o.NotHeld = func(h engine.Held, err error) {
			told <- err.Error() + ", " + sandpit.Hint(err)
		}
	})
	e.Warm()
	holds(t, e, 2)
	smaller := warmPython(1)
	if err := smaller.Policy.SetDefaults(sandpit.Limits{Memory: 128 << 20}); err != nil {
		t.Fatal(err)
	}
	e.SetPool(engine.Pool{Held: []engine.Held{smaller}})
	for end := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
		sb, err := e.As("", smaller.Policy).Create(t.Context(), sandpit.Spec{})
		testkit.Made(t, err)
		info, err := sb.Info(t.Context())
		if err != nil || info.Limits.Memory != 128<<20 {
			t.Fatalf("%+v, %v", info, err)
		}
		_ = sb.Remove(t.Context())
		if e.PoolStats().HeldClaimed > 0 {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("%+v", e.PoolStats())
		}
	}
	missing := warmPython(1)
	missing.Modules = []string{"no_such_module"}
	e.SetPool(engine.Pool{Held: []engine.Held{missing}})
	holds(t, e, 0)
	if why := <-told; !strings.Contains(why, "No module named 'no_such_module'") {
		t.Errorf("told %q", why)
	}
	absent := warmPython(1) // nothing is pulled for it
	absent.Image = "localhost:1/no/such"
	e.SetPool(engine.Pool{Held: []engine.Held{absent}})
	const want = `using image "localhost:1/no/such:latest": it is not in the store, run 'sandpit images pull localhost:1/no/such:latest' first`
	for why := ""; why != want; {
		if why = <-told; !strings.Contains(why, "no_such_module") && why != want {
			t.Fatalf("told %q", why)
		}
	}
}

// The contexts of a held sandbox are forked from its interpreter, which runs no code itself. Each is a process
// of its own, with random numbers of its own, that is killed with all that it has started, and no other.
func TestHeldForks(t *testing.T) {
	e := heldEngine(t, t.TempDir(), nil, func(o *engine.Options) {
		o.Pool.Held[0].Modules = []string{"wave", "random", "uuid"}
	})
	e.Warm()
	holds(t, e, 2)
	sb := create(t, e, sandpit.Spec{Image: "host"})
	if all, err := sb.Contexts(t.Context()); err != nil || len(all) != 0 {
		t.Errorf("before the first run it has the contexts %+v, %v", all, err)
	}
	run := func(context, source string) string {
		t.Helper()
		var texts []string
		res, err := sb.RunCode(t.Context(), sandpit.Code{Source: source, Context: context, Output: func(o sandpit.CodeOutput) { texts = append(texts, o.Text) }})
		if err != nil || !res.Success() {
			t.Fatalf("running %q in %q: %+v, %v", source, context, res, err)
		}
		return strings.Join(texts, "\n")
	}
	for _, c := range []sandpit.NewContext{{ID: "one"}, {ID: "two", Dir: "/usr"}, {ID: "cold", Env: []string{"A=b"}}} {
		if _, err := sb.CreateContext(t.Context(), c); err != nil {
			t.Fatal(err)
		}
	}
	const warm = "import sys; 'wave' in sys.modules, hash('a text')"
	hash := run("", warm)
	randoms := map[string]bool{}
	for context, dir := range map[string]string{"": "", "one": "", "two": "/usr"} {
		if got := run(context, warm); got != hash || !strings.HasPrefix(got, "(True") {
			t.Errorf("context %q is not forked from the same interpreter as another: %s, %s", context, got, hash)
		}
		randoms[run(context, "import random; random.random()")] = true
		if got := run(context, "import os; os.getcwd(), os.environ.get('A')"); dir != "" && got != "('"+dir+"', None)" {
			t.Errorf("context %q has %s", context, got)
		}
		if got := run(context, "os.getpid() == os.getsid(0) == os.getpgid(0), sorted(int(fd) for fd in os.listdir('/proc/self/fd') if os.path.exists('/proc/self/fd/' + fd))[:3], input.__name__"); got != "(True, [0, 1, 2], 'input')" {
			t.Errorf("context %q has %s", context, got)
		}
	}
	if len(randoms) != 3 {
		t.Errorf("of three contexts some have the same random numbers: %v", randoms)
	}
	if got := run("cold", "import sys, os; 'wave' in sys.modules, os.environ['A']"); got != "(False, 'b')" {
		t.Errorf("the context with variables of its own has %s", got)
	}
	// A kill reaches what has left the session of a context, and no other context.
	run("one", "import subprocess; kept = 1; subprocess.Popen(['sh', '-c', '(setsid sleep 1000000 &) ; exit 0']).wait()")
	run("two", "kept = 2")
	if out, _ := shell(t, sb, "pgrep -fc '^sleep 1000000'"); out != "1\n" {
		t.Errorf("%q processes were started", out)
	}
	if err := sb.RestartContext(t.Context(), "one"); err != nil {
		t.Fatal(err)
	}
	if out, _ := shell(t, sb, "pgrep -fc '^sleep 1000000'"); out != "0\n" {
		t.Errorf("%q processes are left of a context that was restarted", out)
	}
	if got := run("two", "kept"); got != "2" {
		t.Errorf("another context has %s", got)
	}
	res, err := sb.RunCode(t.Context(), sandpit.Code{Source: "import sys; warm = 'wave' in sys.modules; warm", Context: "one"})
	if err != nil || res.Run != 1 || run("one", "warm") != "True" {
		t.Errorf("it starts afresh as %+v, %v", res, err)
	}
}

// patient is a client that creates a sandbox when one is held.
type patient struct {
	sandpit.Client
	await func()
}

// Create creates a sandbox.
func (p patient) Create(ctx context.Context, spec sandpit.Spec) (sandpit.Sandbox, error) {
	p.await()
	return p.Client.Create(ctx, spec)
}

// Every promise of code with state holds for contexts that are forked, too.
func TestHeldKeepsEveryPromiseOfCode(t *testing.T) {
	e := heldEngine(t, t.TempDir(), &mapStore{}, nil)
	e.Warm()
	d := linux.New(linux.Options{})
	sandpittest.Suite(t, func(t *testing.T) sandpit.Client {
		return patient{e.As("tenant", policy.Default()), func() { holds(t, e, 2) }}
	}, sandpittest.Options{Groups: []string{"Code"}, Features: d.Probe(t.Context()).Features, Local: true, Shared: true})
	if st := e.PoolStats(); st.HeldClaimed < 10 {
		t.Errorf("few of the sandboxes were held: %+v", st)
	}
}

// A fork that ends in a way that no program should says so, and the next run begins afresh. Whatever a program
// does to the zygote, contexts start.
func TestHeldForksEnd(t *testing.T) {
	e := heldEngine(t, t.TempDir(), nil, nil)
	e.Warm()
	holds(t, e, 2)
	sb := create(t, e, sandpit.Spec{Image: "host"})
	run := func(source string) (sandpit.CodeResult, string) {
		t.Helper()
		text := ""
		res, err := sb.RunCode(t.Context(), sandpit.Code{Source: source, Output: func(o sandpit.CodeOutput) { text = o.Text }})
		if err != nil {
			t.Fatalf("running %q: %v", source, err)
		}
		return res, text
	}
	const warm = "import sys; 'wave' in sys.modules"
	if _, text := run(warm); text != "True" {
		t.Errorf("it is not forked: %s", text)
	}
	if res, _ := run("import os, signal; os.kill(os.getppid(), signal.SIGKILL)\nwhile True: pass"); !strings.Contains(res.InterpreterEnd, "signal 9") {
		t.Errorf("a context whose helper is killed: %+v", res)
	}
	if res, text := run(warm); text != "True" || res.StateLost == "" {
		t.Errorf("after that: %s, %+v", text, res)
	}
	if out, _ := shell(t, sb, "pgrep -fc '[s]andpit-zygote'"); out != "3\n" { // with the context and its helper
		t.Errorf("%q processes have the command line of the zygote", out)
	}
	if _, err := sb.CreateContext(t.Context(), sandpit.NewContext{Dir: "/nowhere"}); err == nil || !strings.Contains(err.Error(), "entering /nowhere") {
		t.Errorf("in a directory that is missing: %v", err)
	}
	zygote := ""
	all, err := sb.Processes(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range all {
		if strings.HasSuffix(strings.Join(p.Argv, " "), "- sandpit-zygote") && p.Result == nil {
			zygote = strconv.Itoa(p.PID)
		}
	}
	if zygote == "" {
		t.Fatalf("no zygote is in %+v", all)
	}
	// Nobody but the guest is served.
	res, text := run("import socket\ns = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)\ns.connect('\\0sandpit-zygote-" + zygote + "')\ns.settimeout(60)\ntry: got = s.recv(1)\nexcept ConnectionError: got = b''\ngot")
	if text != "b''" {
		t.Errorf("another one gets %s, %+v", text, res)
	}
	// Code can look into its own processes, and not into the zygote and helpers: what those do counts for all contexts.
	_, text = run(`import ctypes, os, subprocess
def open_to_code(pid):
    try:
        with open("/proc/%s/environ" % pid, "rb") as f:
            f.read(1)
    except PermissionError:
        return False
    return True
child = subprocess.Popen(["sleep", "1000"])
seen = [open_to_code(pid) for pid in ("self", child.pid, os.getppid(), ` + zygote + `)]
child.kill()
seen, ctypes.CDLL(None).prctl(3, 0, 0, 0, 0)`)
	if text != "([True, True, False, False], 1)" {
		t.Errorf("own process, child, helper and zygote can be looked into, and the own one is dumpable: %s", text)
	}
	for _, step := range []struct{ do, warm string }{{"kill -STOP " + zygote, "False"}, {"kill -CONT " + zygote, "True"}, {"kill -KILL " + zygote, "False"}} {
		shell(t, sb, step.do)
		if err := sb.RestartContext(t.Context(), sandpit.Python); err != nil {
			t.Fatal(err)
		}
		if _, text := run(warm); text != step.warm {
			t.Errorf("after %q the modules are imported: %s", step.do, text)
		}
	}
	// What has taken the name of the zygote gets nothing.
	run("import socket\ns = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)\ns.bind('\\0sandpit-zygote-" + zygote + "')\ns.listen(8)\ns.settimeout(0)")
	if _, err := sb.CreateContext(t.Context(), sandpit.NewContext{ID: "other"}); err != nil {
		t.Error(err)
	}
	if res, err := sb.RunCode(t.Context(), sandpit.Code{Source: "6 * 7", Context: "other"}); err != nil || !res.Success() {
		t.Errorf("%+v, %v", res, err)
	}
}

// The next engine finds forked contexts with their state, and forks more.
func TestHeldForksOutliveTheEngine(t *testing.T) {
	dir, store := t.TempDir(), &mapStore{}
	first := heldEngine(t, dir, store, nil)
	first.Warm()
	holds(t, first, 2)
	sb := create(t, first, sandpit.Spec{Image: "host", Labels: map[string]string{"a": "b"}})
	hash := evaluate(t, sb, "import sys; x = 41; hash('a text')")
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	second := heldEngine(t, dir, store, func(o *engine.Options) { o.Pool = engine.Pool{} })
	if _, err := second.Adopt(t.Context()); err != nil {
		t.Fatal(err)
	}
	sb, err := second.Get(t.Context(), sb.ID())
	if err != nil {
		t.Fatal(err)
	}
	if got := evaluate(t, sb, "x + 1"); got != "42" {
		t.Errorf("the state is %s", got)
	}
	if _, err := sb.CreateContext(t.Context(), sandpit.NewContext{ID: "more"}); err != nil {
		t.Fatal(err)
	}
	text := ""
	res, err := sb.RunCode(t.Context(), sandpit.Code{Source: "import sys; hash('a text')", Context: "more", Output: func(o sandpit.CodeOutput) { text = o.Text }})
	if err != nil || !res.Success() || text != hash {
		t.Errorf("the new context is not a fork: %s, %s, %+v, %v", text, hash, res, err)
	}
	if err := sb.Remove(t.Context()); err != nil {
		t.Error(err)
	}
}

// The variables of an image do not keep contexts from being forked, whatever they are.
func TestHeldForksOfImagesWithVariables(t *testing.T) {
	testkit.NeedFull(t, "it needs Debian's packages")
	archive := "docker-archive:" + withEnv(t, "LANG=C", "PATH=/opt/bin:/usr/bin:/bin", "HOME=/tmp", "EMPTY=", "A=1", "TEXT=a = b", "A=2")
	rootInside := linux.New(linux.Options{}).Probe(t.Context()).Features[feature.Users]
	e := heldEngine(t, t.TempDir(), nil, func(o *engine.Options) {
		o.Images = image.Open(o.Images.Dir(), image.Options{NoSync: true, Fetcher: fetch.New(fetch.Options{})})
		o.Pool.Held[0].Image, o.Pool.Held[0].RootInside = archive, rootInside
	})
	first := create(t, e, sandpit.Spec{Image: archive}) // puts it into the store
	if err := first.Remove(t.Context()); err != nil {
		t.Fatal(err)
	}
	e.Warm()
	holds(t, e, 2)
	sb := create(t, e, sandpit.Spec{Image: archive, RootInside: rootInside})
	if st := e.PoolStats(); st.HeldClaimed != 1 {
		t.Fatalf("%+v", st)
	}
	if _, err := sb.CreateContext(t.Context(), sandpit.NewContext{ID: "other", Dir: "/usr"}); err != nil {
		t.Fatal(err)
	}
	for _, context := range []string{"", "other"} {
		var out strings.Builder
		res, err := sb.RunCode(t.Context(), sandpit.Code{
			Source:  "import os, sys; print('wave' in sys.modules, *(os.environ[name] for name in ('A', 'EMPTY', 'HOME', 'TEXT')), sep=',')",
			Context: context, Stdout: &out,
		})
		if err != nil || !res.Success() || out.String() != "True,2,,/tmp,a = b\n" {
			t.Errorf("context %q: %q, %+v, %v", context, out.String(), res, err)
		}
	}
}
