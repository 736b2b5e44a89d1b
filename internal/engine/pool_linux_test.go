package engine_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/driver/linux"
	"github.com/sandpit-dev/sandpit/internal/engine"
	"github.com/sandpit-dev/sandpit/internal/guest/embedded"
	"github.com/sandpit-dev/sandpit/internal/image"
	"github.com/sandpit-dev/sandpit/internal/policy"
	"github.com/sandpit-dev/sandpit/internal/testkit"
)

// poolEngine returns an engine with a pool, over dir.
func poolEngine(t testing.TB, dir string, change func(*engine.Options)) *engine.Engine {
	t.Helper()
	images, guests := engine.Home(dir)
	opt := engine.Options{
		Driver: linux.New(linux.Options{Dir: guests, Guest: embedded.Guest(), KeepDir: filepath.Join(dir, "kept")}),
		Images: image.Open(images, image.Options{NoSync: true}),
		Policy: policy.Default(),
		Pool:   engine.Pool{Size: 3},
	}
	if change != nil {
		change(&opt)
	}
	e := engine.New(opt)
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
	return e
}

// ready waits until as many blanks wait.
func ready(t testing.TB, e *engine.Engine, n int) {
	t.Helper()
	testkit.NeedWorkingHost(t)
	for end := time.Now().Add(2 * time.Minute); e.PoolStats().Ready != n; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("there are %+v blanks, not %d", e.PoolStats(), n)
		}
	}
}

// A sandbox of a blank is as any other, and the blank is replaced.
func TestPool(t *testing.T) {
	e := poolEngine(t, t.TempDir(), nil)
	e.Warm()
	ready(t, e, 3)
	ids := map[string]bool{}
	for i, spec := range []sandpit.Spec{
		{},
		{Name: "named", Hostname: "host", Labels: map[string]string{"a": "b"}, Env: []string{"X=y"}},
		{User: "root", ReadOnly: true, Limits: sandpit.Limits{Memory: 64 << 20, Disk: 8 << 20, CPUs: 0.5}},
	} {
		ready(t, e, 3)
		sb := create(t, e, spec)
		if st := e.PoolStats(); st.Claimed != int64(i+1) || st.Missed != 0 {
			t.Errorf("after %d: %+v", i+1, st)
		}
		info, err := sb.Info(t.Context())
		if err != nil || info.ID != sb.ID() || ids[sb.ID()] || info.Name != sb.Name() || info.State != sandpit.StateRunning {
			t.Errorf("got %+v, %v", info, err)
		}
		ids[sb.ID()] = true
		name, host := spec.Name, spec.Hostname
		if name == "" {
			name = sb.ID()
		}
		if host == "" {
			host = name
		}
		if sb.Name() != name {
			t.Errorf("it is named %s, not %s", sb.Name(), name)
		}
		out, _ := shell(t, sb, "uname -n; cat /etc/hostname; echo $X; df -Pk / | awk 'NR>1 { print $2 }'")
		x := ""
		if spec.Env != nil {
			x = "y"
		}
		if want := fmt.Sprintf("%s\n%s\n%s\n%d\n", host, host, x, info.Limits.Disk>>10); out != want {
			t.Errorf("got %q, want %q", out, want)
		}
		if got, err := e.Get(t.Context(), name); err != nil || got.ID() != sb.ID() {
			t.Errorf("it is not found: %v", err)
		}
	}
	// What is refused uses none up.
	ready(t, e, 3)
	before := e.PoolStats()
	if _, err := e.Create(t.Context(), sandpit.Spec{Name: "named"}); !errors.Is(err, sandpit.ErrExists) {
		t.Errorf("got %v", err)
	}
	if after := e.PoolStats(); after.Ready != before.Ready || after.Claimed != before.Claimed {
		t.Errorf("got %+v after %+v", after, before)
	}
}

// Many who claim at once get one each, or a sandbox that is made for them.
func TestPoolRace(t *testing.T) {
	e := poolEngine(t, t.TempDir(), nil)
	e.Warm()
	ready(t, e, 3)
	const n = 24
	sandboxes := make([]sandpit.Sandbox, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			ctx, cancel := context.WithCancel(t.Context())
			if i%6 == 5 { // and some who go away meanwhile
				time.AfterFunc(time.Duration(i)*time.Millisecond/2, cancel)
			}
			sb, err := e.Create(ctx, sandpit.Spec{})
			cancel()
			if err != nil {
				if i%6 != 5 || !errors.Is(err, context.Canceled) {
					t.Errorf("%d: %v", i, err)
				}
				return
			}
			out, err := sandpit.Shell(t.Context(), sb, "uname -n; ls -d /proc /dev/null /sys/fs /tmp; [ ! -e /tmp/x ] && touch /tmp/x")
			if err != nil || !strings.HasPrefix(string(out.Stdout), sb.ID()+"\n") || !out.Success() {
				t.Errorf("%d: %+v, %v, %q", i, out.Result, err, out.Stdout)
			}
			sandboxes[i] = sb
		})
	}
	wg.Wait()
	seen := map[string]bool{}
	for _, sb := range sandboxes {
		if sb == nil {
			continue
		}
		if seen[sb.ID()] {
			t.Errorf("two have the id %s", sb.ID())
		}
		seen[sb.ID()] = true
		wg.Go(func() {
			if err := sb.Remove(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if st := e.PoolStats(); st.Claimed < 3 || st.Claimed+st.Missed < n-4 {
		t.Errorf("got %+v", st)
	}
	ready(t, e, 3)
}

// The pool shrinks when nobody asks for a sandbox, grows again, is sized anew,
// and never hands out what is too old.
func TestPoolSize(t *testing.T) {
	e := poolEngine(t, t.TempDir(), func(o *engine.Options) { o.Pool = engine.Pool{Size: 3, Idle: time.Hour} })
	e.Warm()
	ready(t, e, 3)
	e.SetPool(engine.Pool{Size: 3, Idle: time.Nanosecond})
	ready(t, e, 1)
	e.SetPool(engine.Pool{Size: 3, Idle: time.Nanosecond, Floor: -1})
	ready(t, e, 0)
	e.SetPool(engine.Pool{Size: 2, Idle: time.Hour})
	create(t, e, sandpit.Spec{})
	ready(t, e, 2)
	e.SetPool(engine.Pool{})
	ready(t, e, 0)
	before := e.PoolStats()
	create(t, e, sandpit.Spec{})
	if after := e.PoolStats(); after != before {
		t.Errorf("without a pool: %+v", after)
	}

	e.SetPool(engine.Pool{Size: 1})
	ready(t, e, 1)
	before = e.PoolStats()
	e.SetPool(engine.Pool{Size: 1, MaxAge: time.Nanosecond})
	create(t, e, sandpit.Spec{})
	if after := e.PoolStats(); after.Claimed != before.Claimed {
		t.Errorf("one that is too old was claimed: %+v", after)
	}
}

// A blank that has died is not handed out, and is replaced.
func TestPoolDeath(t *testing.T) {
	testkit.NeedRoot(t, "to find the guest of a blank")
	e := poolEngine(t, t.TempDir(), nil)
	others := guests()
	e.Warm()
	ready(t, e, 3)
	killed := 0
	for _, pid := range guests() {
		if !slices.Contains(others, pid) {
			if err := unix.Kill(pid, unix.SIGKILL); err == nil {
				killed++
			}
		}
	}
	if killed < 3 {
		t.Fatalf("%d guests are found", killed)
	}
	for range 4 {
		if out, _ := shell(t, create(t, e, sandpit.Spec{}), "echo alive"); out != "alive\n" {
			t.Errorf("got %q", out)
		}
	}
	ready(t, e, 3)
}

// guests returns the children of this process that are the first of a pid
// namespace.
func guests() []int {
	var found []int
	names, _ := filepath.Glob("/proc/[0-9]*/status")
	for _, name := range names {
		data, err := os.ReadFile(name)
		if err != nil {
			continue
		}
		var pid, parent int
		inner := ""
		for line := range strings.Lines(string(data)) {
			_, _ = fmt.Sscanf(line, "Pid:\t%d", &pid)
			_, _ = fmt.Sscanf(line, "PPid:\t%d", &parent)
			if f := strings.Fields(line); len(f) > 2 && f[0] == "NSpid:" {
				inner = f[len(f)-1]
			}
		}
		if parent == os.Getpid() && inner == "1" {
			found = append(found, pid)
		}
	}
	return found
}

// A server that is killed with blanks and held sandboxes leaves nothing of them, and what it made
// of them is adopted as any other sandbox is.
func TestPoolKilled(t *testing.T) {
	dir := t.TempDir()
	testkit.NeedProgram(t, "python3") // in what is held
	cmd := exec.Command("/proc/self/exe", "-test.run=^TestPoolOwner$")
	cmd.Env = append(os.Environ(), "SANDPIT_TEST_POOL="+dir)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	var records []engine.Record
	for lines.Scan() && json.Unmarshal(lines.Bytes(), &records) != nil {
	}
	groups := groupsOf(t, cmd.Process.Pid)
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	if len(records) == 0 {
		testkit.NeedWorkingHost(t)
		t.Fatal("the engine to be killed has made no sandbox")
	}
	store := &mapStore{records: map[string]engine.Record{}}
	for _, r := range records {
		store.records[r.ID] = r
	}

	e := poolEngine(t, dir, func(o *engine.Options) { o.Store, o.Pool = store, engine.Pool{} })
	report, err := e.Adopt(t.Context()) // of the held sandbox the zygote and its fork are processes
	if err != nil || report.Adopted != 2 || report.Processes != 3 || report.Incomplete != 1 || report.Refused != nil {
		t.Errorf("got %+v, %v", report, err)
	}
	sb, err := e.Get(t.Context(), "box")
	if err != nil {
		t.Fatal(err)
	}
	if out, _ := shell(t, sb, "uname -n"); out != "box\n" {
		t.Errorf("got %q", out)
	}
	held, err := e.Get(t.Context(), records[1].ID)
	if err != nil {
		t.Fatal(err)
	}
	if got := evaluate(t, held, "x, 'wave' in __import__('sys').modules"); got != "(42, True)" {
		t.Errorf("the interpreter says %s", got)
	}
	for _, sb := range []sandpit.Sandbox{sb, held} {
		if err := sb.Remove(t.Context()); err != nil {
			t.Error(err)
		}
	}
	// The guests of blanks end by themselves, and then their groups can go.
	var left []string
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		linux.New(linux.Options{Dir: dir}).Sweep(t.Context())
		left = slices.DeleteFunc(slices.Clone(groups), func(dir string) bool {
			_, err := os.Stat(dir)
			return err != nil
		})
		if len(left) == 0 {
			break
		}
	}
	if len(left) > 0 {
		t.Errorf("these cgroups are left: %q", left)
	}
	if files, _ := os.ReadDir(filepath.Join(dir, "kept")); len(files) > 0 {
		t.Errorf("these files are left: %v", files)
	}
}

// groupsOf returns the cgroups of the processes below one.
func groupsOf(t *testing.T, pid int) []string {
	t.Helper()
	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	ids := map[string]bool{}
	for _, name := range tasks {
		data, _ := os.ReadFile(name)
		for _, child := range strings.Fields(string(data)) {
			groups, _ := os.ReadFile("/proc/" + child + "/cgroup")
			for line := range strings.Lines(string(groups)) {
				if base := filepath.Base(strings.TrimSpace(line)); strings.HasPrefix(base, "sandpit-") && !strings.HasPrefix(base, "sandpit-self-") {
					ids[base] = true
				}
			}
		}
	}
	var found []string
	_ = filepath.WalkDir("/sys/fs/cgroup", func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && ids[d.Name()] {
			found = append(found, path)
		}
		return nil
	})
	return found
}

// TestPoolOwner is the program that TestPoolKilled kills.
func TestPoolOwner(t *testing.T) {
	dir := os.Getenv("SANDPIT_TEST_POOL")
	if dir == "" {
		testkit.Lacks(t, "TestPoolKilled, of which it is a part")
	}
	store := &mapStore{}
	e := poolEngine(t, dir, func(o *engine.Options) { o.Store, o.Pool.Held = store, []engine.Held{warmPython(2)} })
	e.Warm()
	ready(t, e, 3)
	holds(t, e, 2)
	held := create(t, e, sandpit.Spec{})
	if evaluate(t, held, "x = 6*7; x") != "42" || e.PoolStats().HeldClaimed != 1 {
		t.Fatalf("got %+v", e.PoolStats())
	}
	sb := create(t, e, sandpit.Spec{Name: "box"})
	if e.PoolStats().Claimed != 1 {
		t.Fatalf("got %+v", e.PoolStats())
	}
	if _, err := sb.Start(t.Context(), sandpit.Command{Argv: []string{"sleep", "1000"}, Background: true}); err != nil {
		t.Fatal(err)
	}
	ready(t, e, 3)
	holds(t, e, 2)
	r, _ := store.get(sb.ID())
	warm, _ := store.get(held.ID())
	incomplete := engine.Record{ID: engine.NewID(), Name: "half", State: sandpit.StateCreating, CreatedAt: time.Now(), Data: json.RawMessage(`{"version":1}`)}
	if err := json.NewEncoder(os.Stdout).Encode([]engine.Record{r, warm, incomplete}); err != nil {
		t.Fatal(err)
	}
	_ = unix.Pause()
}

// Of sandboxes that an engine has made which knew nothing of a data directory, as
// older versions do, the report names those that see it.
func TestAdoptNamesTheExposed(t *testing.T) {
	dir, home := t.TempDir(), t.TempDir()
	store := &mapStore{records: map[string]engine.Record{}}
	open := func(private ...string) *engine.Engine {
		return poolEngine(t, dir, func(o *engine.Options) {
			o.Driver = linux.New(linux.Options{Dir: filepath.Join(dir, "guest"), Guest: embedded.Guest(), KeepDir: filepath.Join(dir, "kept"), Private: private})
			o.Store, o.Pool = store, engine.Pool{}
		})
	}
	e := open()
	for name, mounts := range map[string][]sandpit.Mount{"old": {{Source: home, Target: "/h", ReadOnly: true}}, "without": nil} {
		made(t, e, sandpit.Spec{Name: name, Mounts: mounts})
	}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(home, "data"), 0o700); err != nil {
		t.Fatal(err)
	}
	e = open(filepath.Join(home, "data"))
	report, err := e.Adopt(t.Context())
	if err != nil || report.Adopted != 2 || len(report.Exposed) != 1 || report.Exposed["old"] != filepath.Join(home, "data") {
		t.Errorf("got %+v, %v", report, err)
	}
	for _, name := range []string{"old", "without"} {
		if sb, err := e.Get(t.Context(), name); err != nil {
			t.Error(err)
		} else if err := sb.Remove(t.Context()); err != nil {
			t.Error(err)
		}
	}
}
