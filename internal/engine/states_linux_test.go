package engine_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/driver/linux"
	"github.com/sandpit-dev/sandpit/internal/engine"
	"github.com/sandpit-dev/sandpit/internal/feature"
	"github.com/sandpit-dev/sandpit/internal/policy"
	"github.com/sandpit-dev/sandpit/internal/testkit"
)

func wantState(t *testing.T, sb sandpit.Sandbox, want sandpit.State) sandpit.Info {
	t.Helper()
	info, err := sb.Info(t.Context())
	if err != nil || info.State != want {
		t.Fatalf("got %+v, %v; want it %s", info, err, want)
	}
	return info
}

// eventually waits for something that is not told.
func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	testkit.Until(t, what, is)
}

// logs waits until the log of a process is a text.
func logs(t *testing.T, sb sandpit.Sandbox, p sandpit.Process, want string) {
	t.Helper()
	text := ""
	testkit.Until(t, fmt.Sprintf("the log is %q", want), func() bool {
		text = ""
		for e, err := range sb.Logs(t.Context(), sandpit.LogQuery{Process: p.ID()}) {
			if err != nil {
				t.Fatal(err)
			}
			text += string(e.Data)
		}
		return text == want
	}, func() string { return text })
}

// When Stop returns, nothing of the sandbox lives, also what its processes have started by sudo, whose helpers are not
// theirs. It takes a while until the kernel has freed the memory of the process.
func TestStopLeavesNothing(t *testing.T) {
	needGuest(t)
	testkit.NeedProgram(t, "python3")
	if !linux.New(linux.Options{}).Probe(t.Context()).Features[feature.Users] {
		testkit.Need(t, "several users in a sandbox", errors.ErrUnsupported)
	}
	e := newEngine(t)
	sb := create(t, e, sandpit.Spec{RootInside: true, Limits: sandpit.Limits{Memory: 1 << 30}})
	word := fmt.Sprintf("word-%d-%d", os.Getpid(), time.Now().UnixNano())
	background(t, sb, `exec sudo python3 -c 'import sys, time; memory = bytearray(b"x") * (400 << 20); open("/tmp/ready", "w"); time.sleep(10000)' `+word)
	eventually(t, "it runs", func() bool { _, err := sb.Files().Stat(t.Context(), "/tmp/ready"); return err == nil })
	var process string // as the host sees it
	paths, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range paths {
		if b, err := os.ReadFile(p); err == nil && strings.HasPrefix(string(b), "python3\x00") && strings.HasSuffix(string(b), "\x00"+word+"\x00") {
			process = filepath.Dir(p)
		}
	}
	if process == "" {
		t.Fatal("it is not found")
	}
	if err := sb.Stop(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	if stat, err := os.ReadFile(process + "/stat"); err == nil {
		t.Errorf("it lives in a stopped sandbox: %s", stat)
	}
	if err := sb.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	if out, _ := shell(t, sb, "sudo id -u"); out != "0\n" {
		t.Errorf("afterwards sudo says %q", out)
	}
}

// Stop ends everything, whatever it does about SIGTERM, and what is started at
// the same moment; a restart begins without a process. The record says the same.
func TestStopAndRestart(t *testing.T) {
	srv := newSurvivor(t)
	e := srv.open(t)
	sb := made(t, e, sandpit.Spec{})
	// One who ends by himself needs no more of the time that there is for it.
	polite := background(t, sb, "trap 'exit 5' TERM; echo ready; while :; do sleep 0.05; done")
	logs(t, sb, polite, "ready\n")
	if err := sb.Stop(t.Context(), time.Hour); err != nil {
		t.Fatal(err)
	}
	politely, err := polite.Wait(t.Context())
	if err != nil || politely.ExitCode != 5 {
		t.Errorf("got %+v, %v; want exit code 5", politely, err)
	}
	if err := sb.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	rude := background(t, sb, "trap '' TERM; echo ready; while :; do sleep 0.05; done")
	logs(t, sb, rude, "ready\n")
	var wg sync.WaitGroup
	var started atomic.Int64
	for range 4 {
		wg.Go(func() {
			for {
				_, err := sb.Start(t.Context(), sandpit.Command{Argv: []string{"sleep", "1000"}, Background: true})
				if errors.Is(err, sandpit.ErrState) {
					return
				}
				if err != nil {
					t.Error(err)
					return
				}
				started.Add(1)
				time.Sleep(time.Millisecond)
			}
		})
	}
	eventually(t, "some have started", func() bool { return started.Load() >= 10 })
	if err := sb.Stop(t.Context(), 500*time.Millisecond); err != nil {
		t.Fatal(err)
	}
	wg.Wait()
	if res, err := rude.Wait(t.Context()); err != nil || res.ExitCode != 137 {
		t.Errorf("got %+v, %v; want exit code 137", res, err)
	}
	list, err := sb.Processes(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range list {
		if p.Result == nil {
			t.Errorf("%+v runs in a stopped sandbox", p)
		}
	}
	if info := wantState(t, sb, sandpit.StateStopped); !info.ExpiresAt.IsZero() || info.Reason != "asked" {
		t.Errorf("got %+v", info)
	}
	if _, err := sb.Files().Stat(t.Context(), "/"); !errors.Is(err, sandpit.ErrState) {
		t.Errorf("a file of a stopped sandbox: %v", err)
	}
	if r, _ := srv.store.get(sb.ID()); r.State != sandpit.StateStopped {
		t.Errorf("the record says %s", r.State)
	}
	if err := sb.Pause(t.Context()); !errors.Is(err, sandpit.ErrState) {
		t.Errorf("pausing a stopped sandbox: %v", err)
	}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}

	e = srv.open(t)
	if report, err := e.Adopt(t.Context()); err != nil || report.Adopted != 1 {
		t.Fatal(report, err)
	}
	if sb, err = e.Get(t.Context(), sb.ID()); err != nil {
		t.Fatal(err)
	}
	wantState(t, sb, sandpit.StateStopped)
	for range 2 {
		if err := sb.Restart(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	wantState(t, sb, sandpit.StateRunning)
	if out, err := sandpit.Shell(t.Context(), sb, "echo again"); err != nil || string(out.Stdout) != "again\n" {
		t.Errorf("got %q, %v", out.Stdout, err)
	}
}

// A paused sandbox goes on with the next request, and is paused still when
// another engine takes it over.
func TestPauseAndResume(t *testing.T) {
	srv := newSurvivor(t)
	e := srv.open(t)
	sb := made(t, e, sandpit.Spec{})
	for range 2 {
		if err := sb.Pause(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	wantState(t, sb, sandpit.StatePaused)
	if _, err := sb.Processes(t.Context()); err != nil {
		t.Fatal(err)
	}
	wantState(t, sb, sandpit.StatePaused)
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	e = srv.open(t)
	if report, err := e.Adopt(t.Context()); err != nil || report.Adopted != 1 {
		t.Fatal(report, err)
	}
	sb, err := e.Get(t.Context(), sb.ID())
	if err != nil {
		t.Fatal(err)
	}
	wantState(t, sb, sandpit.StatePaused)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			if out, err := sandpit.Shell(t.Context(), sb, "echo on"); err != nil || string(out.Stdout) != "on\n" {
				t.Errorf("got %q, %v", out.Stdout, err)
			}
		})
	}
	wg.Wait()
	wantState(t, sb, sandpit.StateRunning)
	if err := sb.Pause(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := sb.Remove(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// What is to happen when the time is over happens, with its reason.
func TestExpiry(t *testing.T) {
	testkit.NeedFull(t, "it waits for six seconds")
	srv := newSurvivor(t)
	e := srv.open(t)
	var mu sync.Mutex
	reasons := map[string]string{}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() {
		for ev := range e.Events(ctx, sandpit.EventQuery{After: 1}) {
			mu.Lock()
			if ev.Reason != "" {
				reasons[ev.Name] = string(ev.Kind) + " " + ev.Reason
			}
			mu.Unlock()
		}
	}()
	idle := 300 * time.Millisecond
	for what, expiry := range map[string]sandpit.Expiry{"removed": sandpit.ExpiryRemove, "stopped": sandpit.ExpiryStop, "paused": sandpit.ExpiryPause} {
		sb := made(t, e, sandpit.Spec{Name: what, Idle: time.Hour, OnExpiry: expiry})
		p, err := sb.Start(t.Context(), sandpit.Command{Script: "read x; sleep 0.8; echo end", Stdin: true, Stdout: io.Discard})
		if err != nil {
			t.Fatal(err)
		}
		if err := sb.SetLifetime(t.Context(), sandpit.Lifetime{Idle: idle}); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(p.Stdin(), "\n"); err != nil {
			t.Fatal(err)
		}
		// Somebody waits, so it is not idle.
		if res, err := p.Wait(t.Context()); err != nil || !res.Success() {
			t.Fatal(res, err)
		}
		want := "sandbox." + what + " idle"
		eventually(t, want, func() bool {
			mu.Lock()
			defer mu.Unlock()
			return reasons[what] == want
		})
		if expiry == sandpit.ExpiryPause {
			if _, err := sandpit.Shell(t.Context(), sb, "true"); err != nil {
				t.Errorf("after a pause: %v", err)
			}
		}
	}
	sb := made(t, e, sandpit.Spec{Name: "life", Limits: sandpit.Limits{Life: time.Hour}})
	if err := sb.SetLifetime(t.Context(), sandpit.Lifetime{Life: time.Millisecond, OnExpiry: sandpit.ExpiryStop}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the end of the life", func() bool {
		info, err := sb.Info(t.Context())
		return err == nil && info.State == sandpit.StateStopped && info.Reason == "life"
	})
	if err := sb.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	if info := wantState(t, sb, sandpit.StateRunning); time.Until(info.ExpiresAt) < 50*time.Minute {
		t.Errorf("after a restart it expires at %v", info.ExpiresAt)
	}
}

// One tenant sees nothing of another.
func TestTenants(t *testing.T) {
	srv := newSurvivor(t)
	e := srv.open(t)
	strict := policy.Default()
	strict.Max.Life = time.Hour
	strict.Default.Life = time.Hour
	a, b := e.As("a", policy.Default()), e.As("b", strict)
	mine := made(t, a, sandpit.Spec{Name: "same"})
	other := made(t, b, sandpit.Spec{Name: "same"})
	if _, err := b.Create(t.Context(), sandpit.Spec{Name: "same"}); !errors.Is(err, sandpit.ErrExists) {
		t.Errorf("a name that is taken: %v", err)
	}
	_, unknown := b.Get(t.Context(), strings.Repeat("a", 16))
	_, err := b.Get(t.Context(), mine.ID())
	if !errors.Is(err, sandpit.ErrNotFound) || strings.ReplaceAll(err.Error(), mine.ID(), strings.Repeat("a", 16)) != unknown.Error() {
		t.Errorf("got %v and %v", err, unknown)
	}
	if err := b.Remove(t.Context(), mine.ID()); !errors.Is(err, sandpit.ErrNotFound) {
		t.Errorf("removing another's: %v", err)
	}
	if page, err := b.List(t.Context(), sandpit.ListQuery{}); err != nil || len(page.Sandboxes) != 1 || page.Sandboxes[0].ID != other.ID() {
		t.Errorf("got %+v, %v", page, err)
	}
	if err := mine.SetLifetime(t.Context(), sandpit.Lifetime{Life: 2 * time.Hour}); err != nil {
		t.Error(err)
	}
	if err := other.SetLifetime(t.Context(), sandpit.Lifetime{Life: 2 * time.Hour}); !errors.Is(err, sandpit.ErrForbidden) {
		t.Errorf("a lifetime over the maximum: %v", err)
	}
	for ev, err := range b.Events(t.Context(), sandpit.EventQuery{After: 1}) {
		if err != nil {
			t.Fatal(err)
		}
		if ev.Kind == sandpit.EventLost {
			continue
		}
		if ev.Sandbox != other.ID() {
			t.Errorf("an event of another: %+v", ev)
		}
		break
	}
	few := policy.Default()
	few.Rules = policy.ServerDefault().Rules
	few.Rules.Sandboxes, few.Rules.CreateRate = 2, 0.01
	c := e.As("c", few)
	made(t, c, sandpit.Spec{})
	if _, err := c.Create(t.Context(), sandpit.Spec{}); !errors.Is(err, sandpit.ErrRateLimited) || sandpit.RetryAfter(err) < time.Minute {
		t.Errorf("too many per second: %v, again after %v", err, sandpit.RetryAfter(err))
	}
}

// Many callers make and remove one name: one has it at a time, and nothing is left.
func TestOneNameFromMany(t *testing.T) {
	srv := newSurvivor(t)
	e := srv.open(t)
	var wg sync.WaitGroup
	var mu sync.Mutex
	wins := 0
	for range 64 {
		wg.Go(func() {
			for range 3 {
				sb, err := e.Create(t.Context(), sandpit.Spec{Name: "one", User: "root", WorkDir: "/"})
				switch {
				case err == nil:
					mu.Lock()
					wins++
					mu.Unlock()
					if err := sb.Remove(t.Context()); err != nil {
						t.Error(err)
					}
				case !errors.Is(err, sandpit.ErrExists) && !errors.Is(err, sandpit.ErrClosed):
					t.Error(err)
				}
				if err := e.Remove(t.Context(), "one"); err != nil && !errors.Is(err, sandpit.ErrNotFound) {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if wins == 0 {
		t.Error("nobody has made it")
	}
	eventually(t, "no record", func() bool { all, _ := srv.store.Sandboxes(t.Context()); return len(all) == 0 })
	if n := len(e.Sandboxes()); n != 0 {
		t.Errorf("%d are left", n)
	}
}

// Removing, stopping and running at once ends in order, whoever comes first.
func TestRemoveAmongOthers(t *testing.T) {
	srv := newSurvivor(t)
	e := srv.open(t)
	for i := range 10 {
		sb := made(t, e, sandpit.Spec{})
		var wg sync.WaitGroup
		var ran atomic.Int64
		for range 4 {
			wg.Go(func() {
				for ; ; ran.Add(1) {
					if _, err := sandpit.Shell(t.Context(), sb, "echo x"); err != nil {
						if !errors.Is(err, sandpit.ErrClosed) && !errors.Is(err, sandpit.ErrState) {
							t.Error(err)
						}
						if errors.Is(err, sandpit.ErrClosed) {
							return
						}
						time.Sleep(time.Millisecond)
					}
				}
			})
		}
		wg.Go(func() {
			if err := sb.Stop(t.Context(), 0); err != nil && !errors.Is(err, sandpit.ErrClosed) {
				t.Error(err)
			}
		})
		eventually(t, "others have done something", func() bool { return ran.Load() >= int64(i) })
		for range 3 {
			wg.Go(func() {
				if err := sb.Remove(t.Context()); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
	}
	if len(srv.store.records) != 0 {
		t.Errorf("records are left: %v", srv.store.records)
	}
}

// A change of the lifetime that can't be written is refused, and nothing of it is in
// force, not even after a restart; what a store has taken that did not say so is
// replaced. (The catalogue's L14d.)
func TestLifetimeOnAFullDisk(t *testing.T) {
	testkit.NeedFull(t, "it waits for three seconds")
	srv := newSurvivor(t)
	e := srv.open(t)
	sb := made(t, e, sandpit.Spec{})
	before, err := sb.Info(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	as := func(want sandpit.Info) {
		t.Helper()
		is, err := sb.Info(t.Context())
		if err != nil || !is.ExpiresAt.Equal(want.ExpiresAt) || is.Idle != want.Idle || is.OnExpiry != want.OnExpiry {
			t.Errorf("it expires at %s, idle for %s, to be %s; not at %s, %s, %s: %v", is.ExpiresAt, is.Idle, is.OnExpiry, want.ExpiresAt, want.Idle, want.OnExpiry, err)
		}
	}
	life := sandpit.Lifetime{Life: 100 * time.Hour, Idle: 50 * time.Hour, OnExpiry: sandpit.ExpiryStop}
	recorded, _ := srv.store.get(sb.ID())
	late := recorded
	late.Data = []byte(strings.Replace(string(recorded.Data), `"on_expiry":"remove"`, `"on_expiry":"stop"`, 1))
	if bytes.Equal(late.Data, recorded.Data) {
		t.Fatalf("the record is %s", recorded.Data)
	}
	for _, kind := range []error{sandpit.ErrDiskFull, sandpit.ErrUnavailable} {
		srv.store.setFail(fmt.Errorf("writing: %w", kind))
		if err := sb.SetLifetime(t.Context(), life); !errors.Is(err, kind) || !strings.Contains(err.Error(), "it is unchanged") {
			t.Errorf("got %v", err)
		}
		as(before)
	}
	srv.store.mu.Lock()
	srv.store.records[sb.ID()] = late // the second time the store had it, and said that it did not
	srv.store.mu.Unlock()
	srv.store.setFail(nil)
	eventually(t, "it is replaced", func() bool {
		r, _ := srv.store.get(sb.ID())
		return bytes.Equal(r.Data, recorded.Data)
	})
	if err := sb.SetLifetime(t.Context(), life); err != nil {
		t.Error(err)
	}
	after, err := sb.Info(t.Context())
	if err != nil || after.Idle != life.Idle || after.OnExpiry != life.OnExpiry || !after.ExpiresAt.After(before.ExpiresAt) {
		t.Errorf("got %+v, %v", after, err)
	}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	e = srv.open(t)
	if _, err := e.Adopt(t.Context()); err != nil {
		t.Fatal(err)
	}
	if sb, err = e.Get(t.Context(), sb.ID()); err != nil {
		t.Fatal(err)
	}
	as(after)
}

// A store that can't be written stops what would not be known after a restart,
// and nothing else; when it can be written again, all is as it should be.
func TestStoreFails(t *testing.T) {
	srv := newSurvivor(t)
	e := srv.open(t)
	sb := made(t, e, sandpit.Spec{})
	full := fmt.Errorf("writing: %w", sandpit.ErrExhausted)
	srv.store.setFail(full)
	if _, err := e.Create(t.Context(), sandpit.Spec{}); !errors.Is(err, sandpit.ErrExhausted) {
		t.Errorf("making a sandbox: %v", err)
	}
	if out, err := sandpit.Shell(t.Context(), sb, "echo on"); err != nil || string(out.Stdout) != "on\n" {
		t.Errorf("got %q, %v", out.Stdout, err)
	}
	if err := sb.Remove(t.Context()); err != nil {
		t.Errorf("removing: %v", err)
	}
	srv.store.setFail(nil)
	eventually(t, "the record is gone", func() bool { _, ok := srv.store.get(sb.ID()); return !ok })
}

// Half-made sandboxes leave nothing, and what a newer program has made is left
// alone.
func TestAdoptWhatIsNotThere(t *testing.T) {
	srv := newSurvivor(t)
	e := srv.open(t)
	incomplete := made(t, e, sandpit.Spec{Name: "half"})
	newer := made(t, e, sandpit.Spec{Name: "newer"})
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	r, _ := srv.store.get(incomplete.ID())
	r.State = sandpit.StateCreating
	if err := srv.store.PutSandbox(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	r, _ = srv.store.get(newer.ID())
	kept := r
	r.Data = []byte(strings.Replace(string(r.Data), `"version":1`, `"version":2`, 1))
	if err := srv.store.PutSandbox(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	e = srv.open(t)
	report, err := e.Adopt(t.Context())
	if err != nil || report.Gone != 0 || report.Incomplete != 1 || len(report.Refused) != 1 || !errors.Is(report.Refused[0], sandpit.ErrUnsupported) {
		t.Errorf("got %+v, %v", report, err)
	}
	if all, _ := srv.store.Sandboxes(t.Context()); len(all) != 1 {
		t.Errorf("got %v", all)
	}
	if err := srv.store.PutSandbox(t.Context(), kept); err != nil {
		t.Fatal(err)
	}
}

// A guest that dies makes its sandbox a failed one, which can be removed.
func TestFailed(t *testing.T) {
	srv := newSurvivor(t)
	e := srv.open(t)
	sb := made(t, e, sandpit.Spec{})
	p := background(t, sb, "sleep 1000")
	kill(t, srv, sb.ID())
	if _, err := p.Wait(t.Context()); !errors.Is(err, sandpit.ErrClosed) {
		t.Errorf("got %v", err)
	}
	eventually(t, "it has failed", func() bool { info, err := sb.Info(t.Context()); return err == nil && info.State == sandpit.StateFailed })
	eventually(t, "the record says so", func() bool { r, _ := srv.store.get(sb.ID()); return r.State == sandpit.StateFailed })
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	e = srv.open(t)
	if report, err := e.Adopt(t.Context()); err != nil || report.Failed != 1 {
		t.Fatal(report, err)
	}
	sb, err := e.Get(t.Context(), sb.ID())
	if err != nil {
		t.Fatal(err)
	}
	if info := wantState(t, sb, sandpit.StateFailed); info.Reason == "" {
		t.Errorf("got %+v", info)
	}
	if _, err := sandpit.Shell(t.Context(), sb, "true"); !errors.Is(err, sandpit.ErrClosed) {
		t.Errorf("got %v", err)
	}
	if err := sb.Remove(t.Context()); err != nil {
		t.Error(err)
	}
}

// 10,000 sandboxes cost a page what 10 do.
func TestPages(t *testing.T) {
	srv := newSurvivor(t)
	e := srv.open(t)
	for i := range 7 {
		made(t, e, sandpit.Spec{Name: "n" + strconv.Itoa(i), Labels: map[string]string{"odd": strconv.FormatBool(i%2 == 1)}})
	}
	for _, tc := range []struct {
		q    sandpit.ListQuery
		want string
	}{
		{sandpit.ListQuery{}, "n0 n1 n2 n3 n4 n5 n6"},
		{sandpit.ListQuery{Limit: 3}, "n0 n1 n2|n3 n4 n5|n6"},
		{sandpit.ListQuery{Limit: 7}, "n0 n1 n2 n3 n4 n5 n6"},
		{sandpit.ListQuery{Limit: 2, Labels: map[string]string{"odd": "false"}}, "n0 n2|n4 n6"},
		{sandpit.ListQuery{States: []sandpit.State{sandpit.StateStopped}}, ""},
		{sandpit.ListQuery{NewestFirst: true}, "n6 n5 n4 n3 n2 n1 n0"},
		{sandpit.ListQuery{NewestFirst: true, Limit: 3}, "n6 n5 n4|n3 n2 n1|n0"},
		{sandpit.ListQuery{NewestFirst: true, Limit: 7}, "n6 n5 n4 n3 n2 n1 n0"},
		{sandpit.ListQuery{NewestFirst: true, Limit: 2, Labels: map[string]string{"odd": "false"}}, "n6 n4|n2 n0"},
	} {
		var pages []string
		for {
			page, err := e.List(t.Context(), tc.q)
			if err != nil {
				t.Fatal(err)
			}
			var names []string
			for _, i := range page.Sandboxes {
				names = append(names, i.Name)
			}
			pages = append(pages, strings.Join(names, " "))
			if tc.q.After = page.Next; page.Next == "" {
				break
			}
		}
		if got := strings.Join(pages, "|"); got != tc.want {
			t.Errorf("%+v gives %q, want %q", tc.q, got, tc.want)
		}
	}
	// Pages that follow the removal of the last entry of the page before, and a new sandbox.
	for _, newest := range []bool{false, true} {
		page, err := e.List(t.Context(), sandpit.ListQuery{Limit: 3, NewestFirst: newest})
		if err != nil {
			t.Fatal(err)
		}
		if err := e.Remove(t.Context(), page.Sandboxes[2].ID); err != nil {
			t.Fatal(err)
		}
		added := made(t, e, sandpit.Spec{})
		next, err := e.List(t.Context(), sandpit.ListQuery{After: page.Next, NewestFirst: newest})
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, i := range next.Sandboxes {
			names = append(names, i.Name)
		}
		want := "n3 n4 n5 n6 " + added.Name()
		if newest {
			want = "n3 n1 n0"
		}
		if got := strings.Join(names, " "); got != want {
			t.Errorf("newest first %v: after the first page comes %q, want %q", newest, got, want)
		}
		if err := e.Remove(t.Context(), added.ID()); err != nil {
			t.Fatal(err)
		}
		if _, err := e.List(t.Context(), sandpit.ListQuery{After: page.Next, NewestFirst: !newest}); !errors.Is(err, sandpit.ErrInvalid) {
			t.Errorf("the position of a list in another order gives %v", err)
		}
	}
	for _, q := range []sandpit.ListQuery{{Limit: -1}, {After: "!"}, {After: "-"}, {After: "-", NewestFirst: true}, {After: "--000000000001", NewestFirst: true}} {
		if _, err := e.List(t.Context(), q); !errors.Is(err, sandpit.ErrInvalid) {
			t.Errorf("%+v gives %v", q, err)
		}
	}
}

// Past capacity a create waits its turn, and in the end is told to come again.
func TestCapacity(t *testing.T) {
	srv := newSurvivor(t)
	e := srv.open(t, func(o *engine.Options) {
		o.Capacity = engine.Capacity{Memory: 1 << 30, Sandboxes: 2, Wait: 50 * time.Millisecond}
	})
	incomplete := sandpit.Spec{Limits: sandpit.Limits{Memory: 512 << 20}}
	first := made(t, e, incomplete)
	made(t, e, incomplete)
	_, err := e.Create(t.Context(), incomplete)
	if !errors.Is(err, sandpit.ErrExhausted) || errors.Is(err, sandpit.ErrQuota) || sandpit.RetryAfter(err) <= 0 {
		t.Errorf("got %v, again after %v", err, sandpit.RetryAfter(err))
	}
	if _, err := e.Create(t.Context(), sandpit.Spec{Limits: sandpit.Limits{Memory: 2 << 30}}); !errors.Is(err, sandpit.ErrQuota) || sandpit.RetryAfter(err) != 0 {
		t.Errorf("more than there can be: %v", err)
	}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	e, _ = adopt(t, srv, func(o *engine.Options) {
		o.Capacity = engine.Capacity{Memory: 1 << 30, Sandboxes: 2, Wait: time.Hour}
	})
	if _, err := e.As("", policy.Default()).Waiting(time.Millisecond).Create(t.Context(), incomplete); !errors.Is(err, sandpit.ErrExhausted) {
		t.Errorf("a create that waits for a moment: %v", err)
	}
	removed := make(chan error, 1)
	time.AfterFunc(50*time.Millisecond, func() { removed <- e.Remove(context.Background(), first.ID()) })
	made(t, e, incomplete)
	if err := <-removed; err != nil {
		t.Fatal(err)
	}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	e = srv.open(t, func(o *engine.Options) { o.Capacity = engine.Capacity{Sandboxes: 2, Wait: time.Millisecond} })
	if _, err := e.Adopt(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := e.Create(t.Context(), incomplete); !errors.Is(err, sandpit.ErrExhausted) {
		t.Errorf("those that were adopted do not count: %v", err)
	}
}

// L14: what has been done in a sandbox does not fail because its record can't be
// written: killing in one that is paused, resuming, pausing and stopping it on a
// full disk. The record is written when there is room.
func TestChangesOnAFullDisk(t *testing.T) {
	testkit.NeedFull(t, "it waits for eight seconds")
	srv := newSurvivor(t)
	e := srv.open(t)
	sb := made(t, e, sandpit.Spec{})
	p := background(t, sb, "sleep 1000")
	if err := sb.Pause(t.Context()); err != nil {
		t.Fatal(err)
	}
	recorded := func(want sandpit.State) {
		t.Helper()
		eventually(t, "the record says that it is "+string(want), func() bool {
			r, ok := srv.store.get(sb.ID())
			return ok && r.State == want
		})
	}
	full := fmt.Errorf("writing: %w", sandpit.ErrDiskFull)
	srv.store.setFail(full)
	attached, err := sb.Attach(t.Context(), p.ID(), sandpit.AttachOptions{})
	if err != nil {
		t.Fatalf("attaching in a paused sandbox: %v", err)
	}
	if err := attached.Kill(t.Context()); err != nil {
		t.Fatalf("killing in a paused sandbox: %v", err)
	}
	if res, err := p.Wait(t.Context()); err != nil || res.Signal != 9 {
		t.Errorf("it ended with %+v, %v", res, err)
	}
	wantState(t, sb, sandpit.StateRunning)
	recorded(sandpit.StatePaused)
	srv.store.setFail(nil)
	recorded(sandpit.StateRunning)

	srv.store.setFail(full)
	if err := sb.Pause(t.Context()); err != nil {
		t.Errorf("pausing: %v", err)
	}
	wantState(t, sb, sandpit.StatePaused)
	srv.store.setFail(nil)
	recorded(sandpit.StatePaused)

	srv.store.setFail(full)
	if err := sb.Stop(t.Context(), 0); err != nil {
		t.Errorf("stopping: %v", err)
	}
	wantState(t, sb, sandpit.StateStopped)
	srv.store.setFail(nil)
	recorded(sandpit.StateStopped)

	srv.store.setFail(full)
	if err := sb.Restart(t.Context()); err != nil {
		t.Errorf("starting again: %v", err)
	}
	srv.store.setFail(nil)
	recorded(sandpit.StateRunning)
	if err := sb.Remove(t.Context()); err != nil {
		t.Error(err)
	}
}

// A sandbox that was stopped on a full disk, so that its record still says that it
// runs, is stopped for the next engine, too; one that was started again since runs.
// (The catalogue's L14e.)
func TestStoppedOnAFullDisk(t *testing.T) {
	srv := newSurvivor(t)
	logs := filepath.Join(srv.dir, "logs")
	if err := errors.Join(os.Mkdir(logs, 0o700), unix.Mount("tmpfs", logs, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "size=1m,mode=0700")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(logs, unix.MNT_DETACH) })
	e := srv.open(t)
	for _, name := range []string{"stopped", "started", "removed"} {
		made(t, e, sandpit.Spec{Name: name})
	}
	filler, err := os.Create(filepath.Join(logs, "filler"))
	if err != nil {
		t.Fatal(err)
	}
	for err == nil {
		_, err = filler.Write(make([]byte, 4096))
	}
	if _ = filler.Close(); !errors.Is(err, unix.ENOSPC) {
		t.Fatal(err)
	}
	srv.store.setFail(fmt.Errorf("writing: %w", sandpit.ErrDiskFull))
	for _, sb := range e.Sandboxes() {
		err := sb.Stop(t.Context(), 0)
		switch sb.Name() {
		case "started":
			err = errors.Join(err, sb.Restart(t.Context()))
		case "removed":
			err = errors.Join(err, sb.Remove(t.Context()))
		}
		if err != nil {
			t.Errorf("%s: %v", sb.Name(), err)
		}
	}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	srv.store.setFail(nil)
	for range 2 { // by the mark, and by the record
		e = srv.open(t)
		if report, err := e.Adopt(t.Context()); err != nil || report.Adopted != 2 || report.Refused != nil {
			t.Fatalf("got %+v, %v", report, err)
		}
		for name, want := range map[string]sandpit.State{"stopped": sandpit.StateStopped, "started": sandpit.StateRunning} {
			sb, err := e.Get(t.Context(), name)
			if err != nil {
				t.Fatal(err)
			}
			wantState(t, sb, want)
			if r, _ := srv.store.get(sb.ID()); r.State != want {
				t.Errorf("the record of %s says %s", name, r.State)
			}
		}
		if marks, err := filepath.Glob(filepath.Join(logs, "*.*")); err != nil || marks != nil {
			t.Errorf("there are %v, %v", marks, err)
		}
		if err := e.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// What could not be written before is written when the engine ends, if there is room.
func TestUnwrittenRecordIsTriedLast(t *testing.T) {
	srv := newSurvivor(t)
	e := srv.open(t)
	sb := made(t, e, sandpit.Spec{})
	srv.store.setFail(fmt.Errorf("writing: %w", sandpit.ErrDiskFull))
	if err := sb.(sandpit.Lifecycle).Stop(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	srv.store.setFail(nil)
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	if r, _ := srv.store.get(sb.ID()); r.State != sandpit.StateStopped {
		t.Errorf("its record says %s", r.State)
	}
}
