package sandpittest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/feature"
)

var lifeProperties = []property{
	{"Stop ends the processes and keeps the files, Restart goes on with them", testStopRestart},
	{"Stop gives processes the time to end by themselves", testStopGrace},
	{"Pause freezes and Resume thaws", testPauseResume},
	{"a request to a paused sandbox makes it go on", testPausedRequest},
	{"a state that can't be reached is ErrState, the present one no error", testStates},
	{"a sandbox that is not started has a name and no life, and Restart starts it", testNoStart},
	{"a lifetime may stop a sandbox", testLifeStops},
	{"a lifetime may pause a sandbox", testLifePauses},
	{"SetLifetime makes a life longer, and shorter", testSetLifetime},
	{"a lifetime that makes no sense is ErrInvalid", testBadLifetimes},
	{"a sandbox that is idle expires, one in which somebody waits does not", testIdle},
}

// state waits until a sandbox is in a state, and describes it.
func state(t *testing.T, sb sandpit.Sandbox, want sandpit.State) sandpit.Info {
	t.Helper()
	var info sandpit.Info
	eventually(t, "the sandbox is "+string(want), func() bool {
		var err error
		if info, err = sb.Info(t.Context()); err != nil {
			t.Fatal(err)
		}
		return info.State == want
	})
	return info
}

// must fails a test on an error.
func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("%v (hint: %s)", err, sandpit.Hint(err))
	}
}

// pause pauses a sandbox, or checks that this is refused and skips the test.
func (e *env) pause(t *testing.T, sb sandpit.Sandbox) {
	t.Helper()
	err := sb.Pause(guarded(t))
	if !e.opt.Features[feature.Pause] {
		wantKind(t, err, sandpit.ErrUnsupported)
	}
	e.need(t, feature.Pause)
	must(t, err)
}

func testStopRestart(t *testing.T, e *env) {
	sb := e.sandbox(t, sandpit.Spec{Labels: map[string]string{"k": "v"}, Env: []string{"FROM=spec"}})
	put(t, sb, "/tmp/kept", "content")
	before, err := sb.Info(t.Context())
	must(t, err)
	p := start(t, sb, sandpit.Command{Argv: []string{"sleep", "86601"}})
	must(t, sb.Stop(guarded(t), time.Minute)) // that it does not need
	if res, err := p.Wait(guarded(t)); err == nil && res.Signal != int(syscall.SIGTERM) {
		t.Errorf("the process ended with %+v", res)
	} else if err != nil && !errors.Is(err, sandpit.ErrState) && !errors.Is(err, sandpit.ErrClosed) {
		t.Errorf("waiting for it: %v", err)
	}
	info := state(t, sb, sandpit.StateStopped)
	if info.Reason == "" || !info.ExpiresAt.IsZero() || info.ID != before.ID || info.Name != before.Name || info.Labels["k"] != "v" {
		t.Errorf("stopped, it is %+v", info)
	}
	_, err = sb.Start(t.Context(), sandpit.Command{Argv: []string{"true"}})
	wantKind(t, err, sandpit.ErrState)
	_, err = sb.Files().Stat(t.Context(), "/tmp/kept")
	wantKind(t, err, sandpit.ErrState)
	_, err = e.client.Get(t.Context(), sb.ID())
	must(t, err)
	must(t, sb.Stop(guarded(t), 0))
	must(t, sb.Restart(guarded(t)))
	if got := get(t, sb, "/tmp/kept"); got != "content" {
		t.Errorf("the file holds %q", got)
	}
	info = state(t, sb, sandpit.StateRunning)
	if info.Reason != "" || info.Limits != before.Limits || !info.CreatedAt.Equal(before.CreatedAt) {
		t.Errorf("running again, it is %+v, and was %+v", info, before)
	}
	if got := running(t, sb, "86601"); len(got) > 0 {
		t.Errorf("still running: %q", got)
	}
	if got := shell(t, sb, "echo $FROM; echo new >/tmp/kept; cat /tmp/kept"); got != "spec\nnew" {
		t.Errorf("got %q", got)
	}
	must(t, sb.Restart(guarded(t)))
	must(t, sb.Stop(guarded(t), 0))
	must(t, sb.Remove(guarded(t)))
	wantKind(t, sb.Stop(t.Context(), 0), sandpit.ErrClosed)
	wantKind(t, sb.Restart(t.Context()), sandpit.ErrClosed)
}

func testStopGrace(t *testing.T, e *env) {
	sb := e.sandbox(t, sandpit.Spec{})
	grace := 500 * time.Millisecond
	got := patiently(t, &grace, func() (string, bool) {
		var polite, deaf written
		start(t, sb, sandpit.Command{Script: `trap 'echo bye >/tmp/bye; exit 3' TERM; echo ready; while :; do sleep 0.05; done`, Stdout: &polite})
		start(t, sb, sandpit.Command{Script: `trap '' TERM; echo ready; while :; do sleep 0.05; done`, Stdout: &deaf})
		polite.until(t, "ready")
		deaf.until(t, "ready")
		must(t, sb.Stop(guarded(t), grace))
		must(t, sb.Restart(guarded(t)))
		got := shell(t, sb, "cat /tmp/bye; :")
		return got, got != ""
	})
	if got != "bye" {
		t.Errorf("with %v to end in got %q", grace, got)
	}
}

// ticking starts a process that writes all the time.
func ticking(t *testing.T, sb sandpit.Sandbox) *written {
	t.Helper()
	var out written
	p := start(t, sb, sandpit.Command{Script: "while :; do echo tick; sleep 0.01; done", Stdout: &out})
	t.Cleanup(func() { _ = p.Kill(context.Background()) })
	out.until(t, "tick")
	return &out
}

// still reports whether nothing is written for a while, after what is on its
// way has arrived, however long that takes.
func (w *written) still() bool {
	for end := time.Now().Add(guard); time.Now().Before(end); {
		before := w.String()
		time.Sleep(300 * time.Millisecond)
		if w.String() == before {
			return true
		}
	}
	return false
}

// goesOn waits until more is written.
func (w *written) goesOn(t *testing.T) {
	t.Helper()
	before := len(w.String())
	eventually(t, "the process goes on", func() bool { return len(w.String()) > before })
}

func testPauseResume(t *testing.T, e *env) {
	sb := e.sandbox(t, sandpit.Spec{})
	out := ticking(t, sb)
	e.pause(t, sb)
	state(t, sb, sandpit.StatePaused)
	if !out.still() {
		t.Error("a paused sandbox writes")
	}
	must(t, sb.Pause(guarded(t)))
	must(t, sb.Resume(guarded(t)))
	state(t, sb, sandpit.StateRunning)
	out.goesOn(t)
	must(t, sb.Resume(guarded(t)))
	// One that is paused can be removed.
	e.pause(t, sb)
	must(t, sb.Remove(guarded(t)))
}

func testPausedRequest(t *testing.T, e *env) {
	for name, request := range map[string]func(sb sandpit.Sandbox) error{
		"a process": func(sb sandpit.Sandbox) error {
			_, err := sandpit.Exec(guarded(t), sb, "true")
			return err
		},
		"a file": func(sb sandpit.Sandbox) error {
			_, err := sb.Files().Stat(guarded(t), "/tmp")
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			sb := e.sandbox(t, sandpit.Spec{})
			out := ticking(t, sb)
			e.pause(t, sb)
			must(t, request(sb))
			state(t, sb, sandpit.StateRunning)
			out.goesOn(t)
		})
	}
	// Looking at it does not.
	sb := e.sandbox(t, sandpit.Spec{})
	e.pause(t, sb)
	_, err := sb.Info(t.Context())
	must(t, err)
	_, err = sb.Metrics(t.Context())
	must(t, err)
	e.list(t)
	if info, err := sb.Info(t.Context()); err != nil || info.State != sandpit.StatePaused {
		t.Errorf("looked at, it is %+v, %v", info, err)
	}
}

func testStates(t *testing.T, e *env) {
	sb := e.sandbox(t, sandpit.Spec{})
	must(t, sb.Restart(guarded(t)))
	must(t, sb.Resume(guarded(t)))
	must(t, sb.Stop(guarded(t), 0))
	err := sb.Pause(guarded(t))
	if !errors.Is(err, sandpit.ErrUnsupported) {
		wantKind(t, err, sandpit.ErrState)
	}
	wantKind(t, sb.Resume(guarded(t)), sandpit.ErrState)
	state(t, sb, sandpit.StateStopped)
	must(t, sb.Restart(guarded(t)))
	e.pause(t, sb)
	must(t, sb.Stop(guarded(t), 0)) // what is frozen can be stopped
	state(t, sb, sandpit.StateStopped)
}

func testLifeStops(t *testing.T, e *env) {
	life := 2 * time.Second
	sb := patiently(t, &life, func() (sandpit.Sandbox, bool) {
		sb := e.sandbox(t, sandpit.Spec{Limits: sandpit.Limits{Life: life}, OnExpiry: sandpit.ExpiryStop})
		info, err := sb.Info(t.Context())
		must(t, err)
		if info.OnExpiry != sandpit.ExpiryStop || info.ExpiresAt.IsZero() == (info.State == sandpit.StateRunning) {
			t.Errorf("got %+v", info)
		}
		_, err = sb.Files().Write(guarded(t), "/tmp/kept", strings.NewReader("content"), sandpit.WriteOptions{})
		if err != nil && !errors.Is(err, sandpit.ErrState) {
			t.Error(err)
		}
		return sb, err == nil
	})
	if info := state(t, sb, sandpit.StateStopped); !strings.Contains(info.Reason, "life") {
		t.Errorf("the reason is %q", info.Reason)
	}
	eventually(t, "it lives again, for longer", func() bool {
		must(t, sb.Restart(guarded(t)))
		err := sb.SetLifetime(t.Context(), sandpit.Lifetime{Life: time.Hour})
		if err != nil && !errors.Is(err, sandpit.ErrState) {
			t.Fatal(err)
		}
		return err == nil
	})
	if got := get(t, sb, "/tmp/kept"); got != "content" {
		t.Errorf("the file holds %q", got)
	}
}

func testLifePauses(t *testing.T, e *env) {
	probe := e.sandbox(t, sandpit.Spec{})
	e.pause(t, probe)
	sb := e.sandbox(t, sandpit.Spec{Limits: sandpit.Limits{Life: time.Second}, OnExpiry: sandpit.ExpiryPause})
	sleeper := start(t, sb, sandpit.Command{Argv: []string{"sleep", "1000"}, Background: true})
	state(t, sb, sandpit.StatePaused)
	put(t, sb, "/tmp/f", "x") // the next request makes it go on
	lives(t, sb, sleeper)
}

// lives checks that a process runs.
func lives(t *testing.T, sb sandpit.Sandbox, p sandpit.Process) {
	t.Helper()
	all, err := sb.Processes(guarded(t))
	must(t, err)
	i := slices.IndexFunc(all, func(info sandpit.ProcessInfo) bool { return info.ID == p.ID() })
	if i < 0 || all[i].Result != nil {
		t.Errorf("the process has ended: %+v", all)
	}
}

func testSetLifetime(t *testing.T, e *env) {
	life := 2 * time.Second
	var sleeper sandpit.Process
	sb := patiently(t, &life, func() (sandpit.Sandbox, bool) {
		sb := e.sandbox(t, sandpit.Spec{Limits: sandpit.Limits{Life: life}})
		var err error
		if sleeper, err = sb.Start(guarded(t), sandpit.Command{Argv: []string{"sleep", "1000"}, Background: true}); err != nil {
			return sb, false
		}
		err = sb.SetLifetime(t.Context(), sandpit.Lifetime{Life: time.Hour, Idle: 30 * time.Minute, OnExpiry: sandpit.ExpiryStop})
		if err != nil && !errors.Is(err, sandpit.ErrClosed) && !errors.Is(err, sandpit.ErrState) {
			t.Error(err)
		}
		return sb, err == nil
	})
	end := time.Now().Add(life + time.Second)
	info, err := sb.Info(t.Context())
	must(t, err)
	if left := time.Until(info.ExpiresAt); left < 50*time.Minute || left > time.Hour || info.Idle != 30*time.Minute || info.OnExpiry != sandpit.ExpiryStop {
		t.Errorf("got %+v", info)
	}
	must(t, sb.SetLifetime(t.Context(), sandpit.Lifetime{Idle: sandpit.NoIdle}))
	if info, err = sb.Info(t.Context()); err != nil || info.Idle > 0 || info.OnExpiry != sandpit.ExpiryStop || time.Until(info.ExpiresAt) < 50*time.Minute {
		t.Errorf("got %+v, %v", info, err)
	}
	time.Sleep(time.Until(end))
	if got := shell(t, sb, "echo alive"); got != "alive" {
		t.Errorf("got %q", got)
	}
	lives(t, sb, sleeper) // what was started before, too
	must(t, sb.SetLifetime(t.Context(), sandpit.Lifetime{Life: 100 * time.Millisecond, OnExpiry: sandpit.ExpiryRemove}))
	eventually(t, "the sandbox is gone", func() bool {
		_, err := sb.Info(t.Context())
		return errors.Is(err, sandpit.ErrClosed)
	})
}

func testBadLifetimes(t *testing.T, e *env) {
	sb := e.sandbox(t, sandpit.Spec{})
	for name, life := range map[string]sandpit.Lifetime{
		"a negative life":      {Life: -1},
		"a negative idle time": {Idle: -2 * time.Second},
		"an unknown expiry":    {OnExpiry: "explode"},
	} {
		t.Run(name, func(t *testing.T) {
			wantKind(t, sb.SetLifetime(t.Context(), life), sandpit.ErrInvalid)
		})
	}
	e.refused(t, sandpit.Spec{OnExpiry: "explode"}, sandpit.ErrInvalid)
	e.refused(t, sandpit.Spec{Idle: -2 * time.Second}, sandpit.ErrInvalid)
}

func testIdle(t *testing.T, e *env) {
	idle := time.Second
	sb := patiently(t, &idle, func() (sandpit.Sandbox, bool) {
		sb := e.sandbox(t, sandpit.Spec{Idle: idle, OnExpiry: sandpit.ExpiryStop})
		var out written
		p, err := sb.Start(guarded(t), sandpit.Command{Script: fmt.Sprintf("sleep %d; echo end", 3*idle/time.Second), Stdout: &out})
		if err != nil {
			if !errors.Is(err, sandpit.ErrState) {
				t.Error(err)
			}
			return sb, false
		}
		// Longer than the idle time, but somebody waits for it.
		if res := wait(t, p); !res.Success() || out.String() != "end\n" {
			t.Errorf("got %+v, %q", res, out.String())
		}
		return sb, true
	})
	if info := state(t, sb, sandpit.StateStopped); !strings.Contains(info.Reason, "idle") || info.Idle != idle {
		t.Errorf("got %+v", info)
	}
}

func testNoStart(t *testing.T, e *env) {
	name := uniqueName(t)
	sb := e.sandbox(t, sandpit.Spec{
		NoStart: true, Name: name, Env: []string{"FROM=spec"}, Hostname: "own", Labels: map[string]string{"k": "v"},
		Limits: sandpit.Limits{Output: 5 << 20, Life: time.Hour}, Idle: time.Hour,
	})
	before := state(t, sb, sandpit.StateCreated)
	if before.ID != sb.ID() || before.Name != name || before.Labels["k"] != "v" || before.Limits.Output != 5<<20 || before.Image == "" || !before.ExpiresAt.IsZero() || before.Idle != time.Hour {
		t.Errorf("it is %+v", before)
	}
	e.refused(t, sandpit.Spec{Name: name}, sandpit.ErrExists)
	page, err := e.client.List(t.Context(), sandpit.ListQuery{States: []sandpit.State{sandpit.StateCreated}, Since: before.CreatedAt})
	must(t, err)
	if !slices.ContainsFunc(page.Sandboxes, func(i sandpit.Info) bool { return i.ID == sb.ID() }) {
		t.Errorf("it is not in %+v", page.Sandboxes)
	}

	// Nothing but its name and labels can be used.
	_, err = sb.Start(t.Context(), sandpit.Command{Argv: []string{"true"}})
	wantKind(t, err, sandpit.ErrState)
	_, err = sb.Files().Stat(t.Context(), "/tmp")
	wantKind(t, err, sandpit.ErrState)
	_, err = sb.Metrics(t.Context())
	wantKind(t, err, sandpit.ErrState)
	for _, err := range sb.Logs(t.Context(), sandpit.LogQuery{}) {
		wantKind(t, err, sandpit.ErrState)
	}
	_, err = sb.Dial(t.Context(), 80)
	wantKind(t, err, sandpit.ErrState)
	for _, err := range []error{
		sb.Stop(t.Context(), 0), sb.Resume(t.Context()), sb.SetLifetime(t.Context(), sandpit.Lifetime{Life: time.Hour}),
		sb.Update(t.Context(), sandpit.Change{Limits: sandpit.Limits{Pids: 100}}), sb.SetEgress(t.Context(), sandpit.Egress{}),
	} {
		wantKind(t, err, sandpit.ErrState)
	}
	must(t, sb.Update(t.Context(), sandpit.Change{Name: name + "-2", Labels: map[string]string{"more": "x"}}))
	if processes, err := sb.Processes(t.Context()); err != nil || len(processes) > 0 {
		t.Errorf("it has %+v, %v", processes, err)
	}

	// One of many starts starts it, and its life begins.
	begun := time.Now()
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			if err := sb.Restart(guarded(t)); err != nil {
				t.Errorf("starting it: %v", err)
			}
		})
	}
	wg.Wait()
	info := state(t, sb, sandpit.StateRunning)
	if info.Name != name+"-2" || info.Labels["more"] != "x" || info.Limits.Output != 5<<20 || !info.CreatedAt.Equal(before.CreatedAt) || info.ExpiresAt.Before(begun.Add(time.Hour-time.Second)) {
		t.Errorf("started, it is %+v", info)
	}
	if got := shell(t, sb, "echo $FROM; hostname"); got != "spec\nown" {
		t.Errorf("got %q", got)
	}
	must(t, sb.Stop(guarded(t), 0))
	must(t, sb.Restart(guarded(t)))
	must(t, sb.Remove(guarded(t)))

	// It is removed as any other, also while it is being started.
	for _, starting := range []bool{false, true} {
		sb := e.sandbox(t, sandpit.Spec{NoStart: true, Name: name})
		if starting {
			wg.Go(func() { _ = sb.Restart(guarded(t)) })
		}
		must(t, sb.Remove(guarded(t)))
		wg.Wait()
		_, err := sb.Info(t.Context())
		wantKind(t, err, sandpit.ErrClosed)
	}
	e.refused(t, sandpit.Spec{NoStart: true, Name: name, Limits: sandpit.Limits{Memory: 1}}, sandpit.ErrInvalid)
	e.refused(t, sandpit.Spec{NoStart: true, Name: name, Secrets: []sandpit.Secret{{Name: "s"}}}, sandpit.ErrUnsupported)
}
