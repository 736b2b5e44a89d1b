package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/client"
	"github.com/sandpit-dev/sandpit/internal/server"
	"github.com/sandpit-dev/sandpit/internal/state"
	"github.com/sandpit-dev/sandpit/internal/testkit"
)

// TestServerIsKilled kills a server with -9 at random points under load. After
// each kill, what its successor says must be what callers were told, and what
// the machine has.
func TestServerIsKilled(t *testing.T) {
	needSandboxes(t)
	kills := 10
	if os.Getenv("SANDPIT_TEST_LONG") != "" {
		kills = 250
	}
	k := &killing{t: t, home: dataDir(t), limits: enforceable(t, sandpit.Limits{Memory: 64 << 20, CPUs: 0.5, Pids: 64}), made: map[string]box{}, unsure: map[string]bool{}, ids: map[string]bool{}}
	t.Cleanup(k.finish)
	for n := range kills {
		k.serve()
		k.check()
		k.load(rand.IntN(40), time.Duration(rand.Int64N(int64(10*time.Millisecond))))
		if t.Failed() {
			t.Fatalf("after %d kills", n+1)
		}
	}
	k.serve()
	k.check()
	t.Logf("%d kills, %d sandboxes; %d times one was adopted, and %d times nobody could know whether it should be there", kills, len(k.ids), k.adopted, k.doubts)
}

// box is what a caller was told of a sandbox.
type box struct {
	id      string
	process string // of a background process, or ""
	file    bool   // /tmp/file was written
}

// killing is a server under load that gets killed.
type killing struct {
	t      *testing.T
	home   string
	limits sandpit.Limits
	cmd    *exec.Cmd
	ended  chan struct{} // closed when the server has ended

	mu      sync.Mutex
	made    map[string]box  // by name: acknowledged, and not being removed; guarded by mu
	unsure  map[string]bool // by name: being made or removed at a kill; guarded by mu
	counter int             // guarded by mu

	countdown int           // of things to begin until due is closed; guarded by mu
	due       chan struct{} // guarded by mu

	ids             map[string]bool // of every sandbox that was ever begun
	adopted, doubts int
}

func (k *killing) client() *client.Client {
	c, err := client.New(client.Options{Address: server.SocketIn(k.home).String()})
	if err != nil {
		k.t.Fatal(err)
	}
	return c
}

// serve starts a server and waits until it answers.
func (k *killing) serve() {
	cmd := commandLine(k.t, "sandpit", "serve")
	cmd.Env = append(cmd.Env, "SANDPIT_HOME="+k.home)
	log, err := os.CreateTemp(k.t.TempDir(), "log")
	if err != nil {
		k.t.Fatal(err)
	}
	defer log.Close()
	cmd.Stderr = log
	if err := cmd.Start(); err != nil {
		k.t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		_ = cmd.Wait()
		close(ended)
	}()
	k.cmd, k.ended = cmd, ended
	for serverPID(k.t, k.home) != cmd.Process.Pid {
		select {
		case <-ended:
			text, _ := os.ReadFile(log.Name())
			k.t.Fatalf("the server has ended: %s\n%s", cmd.ProcessState, text)
		case <-time.After(2 * time.Millisecond):
		}
	}
}

// load has callers work, and kills the server in the midst of it: a while after
// so many things have been begun.
func (k *killing) load(begun int, while time.Duration) {
	var wg sync.WaitGroup
	due := make(chan struct{})
	k.mu.Lock()
	k.due, k.countdown = due, begun
	k.mu.Unlock()
	for range 4 {
		wg.Go(func() {
			c := k.client()
			defer c.Close()
			for k.work(k.t.Context(), c) {
			}
		})
	}
	stopped := make(chan struct{})
	go func() {
		wg.Wait()
		close(stopped)
	}()
	select {
	case <-due:
		time.Sleep(while)
	case <-stopped: // with an error
	}
	if err := k.cmd.Process.Kill(); err != nil {
		k.t.Error(err)
	}
	<-stopped // they hear that the server is gone
	<-k.ended
	k.recorded()
}

// work does one thing, and reports whether the server is still there.
func (k *killing) work(ctx context.Context, c *client.Client) bool {
	k.mu.Lock()
	var names []string
	for name := range k.made {
		names = append(names, name)
	}
	k.counter++
	if k.countdown--; k.countdown == -1 {
		close(k.due)
	}
	fresh := fmt.Sprintf("box-%d", k.counter)
	k.mu.Unlock()
	var err error
	switch what := rand.IntN(10); {
	case len(names) == 0 || what < 3 && len(names) < 12:
		err = k.create(ctx, c, fresh)
	case what < 5:
		err = k.remove(ctx, c, names[rand.IntN(len(names))])
	default:
		err = k.use(ctx, c, names[rand.IntN(len(names))])
	}
	switch {
	case err == nil, errors.Is(err, sandpit.ErrNotFound), errors.Is(err, sandpit.ErrClosed), errors.Is(err, sandpit.ErrState):
		return true // another caller has removed it
	case errors.Is(err, sandpit.ErrUnavailable):
		return false
	}
	k.t.Errorf("working: %v", err)
	return false
}

func (k *killing) create(ctx context.Context, c *client.Client, name string) error {
	k.mu.Lock()
	k.unsure[name] = true
	k.mu.Unlock()
	sb, err := c.Create(ctx, sandpit.Spec{Name: name, Limits: k.limits})
	if err != nil {
		return err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.unsure, name)
	k.made[name] = box{id: sb.ID()}
	return nil
}

func (k *killing) remove(ctx context.Context, c *client.Client, name string) error {
	k.mu.Lock()
	b, ok := k.made[name]
	delete(k.made, name)
	if ok {
		k.unsure[name] = true
	}
	k.mu.Unlock()
	if !ok {
		return nil
	}
	if err := c.Remove(ctx, b.id); err != nil {
		return err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.unsure, name)
	return nil
}

func (k *killing) use(ctx context.Context, c *client.Client, name string) error {
	sb, err := c.Get(ctx, name)
	if err != nil {
		return err
	}
	if rand.IntN(2) == 0 {
		out, err := sandpit.Shell(ctx, sb, "echo hello >/tmp/file; echo $((6*7))")
		if err != nil {
			return err
		}
		if out.Signal == 0 && string(out.Stdout) != "42\n" {
			return fmt.Errorf("got %q and %+v", out.Stdout, out.Result)
		}
		k.note(name, sb.ID(), func(b *box) { b.file = b.file || out.Success() })
		return nil
	}
	p, err := sb.Start(ctx, sandpit.Command{Script: "echo begun; sleep 1000", Background: true})
	if err != nil {
		return err
	}
	k.note(name, sb.ID(), func(b *box) { b.process = p.ID() })
	return nil
}

// note adds to what a caller was told of a sandbox that is still there.
func (k *killing) note(name, id string, change func(*box)) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if b, ok := k.made[name]; ok && b.id == id {
		change(&b)
		k.made[name] = b
	}
}

// check compares what was told, what the server says, and what the machine has.
func (k *killing) check() {
	t := k.t
	t.Helper()
	c := k.client()
	defer c.Close()
	page, err := c.List(t.Context(), sandpit.ListQuery{Limit: 1000})
	if err != nil {
		t.Fatal(err)
	}
	there := map[string]sandpit.Info{}
	for _, info := range page.Sandboxes {
		there[info.Name] = info
		if info.State != sandpit.StateRunning {
			t.Errorf("%s is %s: %s", info.Name, info.State, info.Reason)
		}
	}
	k.adopted += len(there)
	for name, b := range k.made {
		if info, ok := there[name]; !ok || info.ID != b.id {
			t.Errorf("%s (%s) was made, and is %+v", name, b.id, info)
			continue
		}
		k.look(c, name, b)
	}
	for name, info := range there {
		if _, ok := k.made[name]; ok {
			continue
		}
		if !k.unsure[name] {
			t.Errorf("%s (%s) is there, and was removed", name, info.ID)
		}
		k.doubts++
		k.made[name] = box{id: info.ID}
	}
	clear(k.unsure)
	k.compare(there)
}

// look looks into a sandbox.
func (k *killing) look(c *client.Client, name string, b box) {
	t := k.t
	t.Helper()
	sb, err := c.Get(t.Context(), b.id)
	if err != nil {
		t.Errorf("%s: %v", name, err)
		return
	}
	if b.file {
		out, err := sandpit.Exec(t.Context(), sb, "cat", "/tmp/file")
		if err != nil || string(out.Stdout) != "hello\n" {
			t.Errorf("%s: its file is %q, %v", name, out.Stdout, err)
		}
	}
	if b.process == "" {
		return
	}
	procs, err := sb.Processes(t.Context())
	i := slices.IndexFunc(procs, func(p sandpit.ProcessInfo) bool { return p.ID == b.process })
	if err != nil || i < 0 || procs[i].Result != nil {
		t.Errorf("%s: its process %s is not among %+v, %v", name, b.process, procs, err)
		return
	}
	// It may not have written yet: then what it writes comes.
	for entry, err := range sb.Logs(t.Context(), sandpit.LogQuery{Process: b.process, Follow: true}) {
		if err != nil {
			t.Errorf("%s: reading its log: %v", name, err)
			return
		}
		if strings.Contains(string(entry.Data), "begun") {
			return
		}
	}
}

// compare compares the server's records with the machine. What is of no sandbox
// may be on its way out.
func (k *killing) compare(there map[string]sandpit.Info) {
	k.t.Helper()
	live := map[string]bool{}
	for _, info := range there {
		live[info.ID] = true
		k.ids[info.ID] = true
	}
	var left []string
	testkit.Until(k.t, "nothing is there of no sandbox", func() bool {
		left = k.strange(live)
		return len(left) == 0
	}, func() string { return strings.Join(left, "\n") })
}

// strange returns what the machine has of sandboxes that are not live.
func (k *killing) strange(live map[string]bool) []string {
	var found []string
	for _, dir := range []string{"run", "sandboxes", "images/kept"} {
		entries, err := os.ReadDir(filepath.Join(k.home, dir))
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			k.t.Fatal(err)
		}
		for _, e := range entries {
			id, _, _ := strings.Cut(e.Name(), ".")
			if !live[id] {
				found = append(found, filepath.Join(dir, e.Name()))
			}
		}
	}
	for id, paths := range groupsOf(k.ids) {
		if !live[id] {
			found = append(found, paths...)
		}
	}
	return found
}

// recorded adds the ids of all records that a dead server has left: also of
// what it was making.
func (k *killing) recorded() {
	ctx := context.WithoutCancel(k.t.Context()) // which has ended when tests clean up
	store, err := state.Open(ctx, filepath.Join(k.home, "state"))
	if err != nil {
		k.t.Fatal(err)
	}
	defer store.Close()
	records, err := store.Sandboxes(ctx)
	if err != nil {
		k.t.Fatal(err)
	}
	for _, r := range records {
		k.ids[r.ID] = true
	}
}

// groupsOf returns the cgroups of sandboxes.
func groupsOf(ids map[string]bool) map[string][]string {
	found := map[string][]string{}
	_ = filepath.WalkDir("/sys/fs/cgroup", func(path string, d os.DirEntry, err error) error {
		if err != nil || !d.IsDir() {
			return nil // it has just gone
		}
		if id, ok := strings.CutPrefix(d.Name(), "sandpit-"); ok && ids[id] {
			found[id] = append(found[id], path)
			return filepath.SkipDir
		}
		return nil
	})
	return found
}

// hostMounts are the mounts of this machine that have to do with a data directory.
// Other tests have theirs, beside.
func hostMounts(t *testing.T, home string) []string {
	t.Helper()
	data, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for line := range strings.Lines(string(data)) {
		if strings.Contains(line, home) {
			found = append(found, line)
		}
	}
	return found
}

// finish removes everything, and looks whether anything is left.
func (k *killing) finish() {
	t := k.t
	if k.cmd == nil {
		return
	}
	_ = k.cmd.Process.Kill()
	<-k.ended
	k.recorded()
	k.serve()
	endServer(t, k.home)
	<-k.ended
	k.compare(nil)
	if left := hostMounts(t, k.home); len(left) > 0 {
		t.Errorf("mounts are left:\n%s", left)
	}
}
