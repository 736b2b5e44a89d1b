package engine_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/engine"
	"github.com/sandpit-dev/sandpit/internal/policy"
	"github.com/sandpit-dev/sandpit/internal/testkit"
)

// stateOf returns the state of a sandbox.
func stateOf(t *testing.T, sb sandpit.Sandbox) sandpit.State {
	t.Helper()
	info, err := sb.Info(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return info.State
}

// A sandbox that was not started counts as one of its policy, takes no capacity until it is started,
// and can be started again after a failure.
func TestUnstartedTakesNothing(t *testing.T) {
	srv := newSurvivor(t)
	e := srv.open(t, func(o *engine.Options) {
		o.Capacity = engine.Capacity{Sandboxes: 1, Wait: 50 * time.Millisecond}
	})
	host, err := policy.ParseImage("host")
	if err != nil {
		t.Fatal(err)
	}
	three := policy.Default()
	three.Rules = &policy.Rules{Sandboxes: 3, Images: []policy.Image{host}, OnExpiry: []sandpit.Expiry{sandpit.ExpiryRemove}}
	tenant := e.As("t", three)
	first := made(t, tenant, sandpit.Spec{Name: "first", NoStart: true})
	second := made(t, tenant, sandpit.Spec{Name: "second", NoStart: true})
	running := made(t, tenant, sandpit.Spec{Name: "running"}) // which takes all there is
	if _, err := tenant.Create(t.Context(), sandpit.Spec{NoStart: true}); !errors.Is(err, sandpit.ErrQuota) {
		t.Errorf("a fourth sandbox: %v", err)
	}
	if err := first.Restart(t.Context()); !errors.Is(err, sandpit.ErrExhausted) {
		t.Errorf("starting one on a full server: %v", err)
	}
	if got := stateOf(t, first); got != sandpit.StateCreated {
		t.Errorf("then it is %s", got)
	}
	if err := running.Remove(t.Context()); err != nil {
		t.Fatal(err)
	}

	// The present policy decides, also none.
	if sb, err := tenant.WithoutPolicy(errors.New("gone")).Get(t.Context(), "first"); err != nil {
		t.Error(err)
	} else if err := sb.Restart(t.Context()); !errors.Is(err, sandpit.ErrForbidden) {
		t.Errorf("without a policy: %v", err)
	}
	three.Rules = &policy.Rules{OnExpiry: three.Rules.OnExpiry}
	if sb, err := e.As("t", three).Get(t.Context(), "first"); err != nil {
		t.Error(err)
	} else if err := sb.Restart(t.Context()); !errors.Is(err, sandpit.ErrForbidden) {
		t.Errorf("with a policy that allows no images: %v", err)
	}

	// A store that fails.
	srv.store.setFail(errors.New("broken"))
	if err := first.Restart(t.Context()); err == nil || stateOf(t, first) != sandpit.StateCreated {
		t.Errorf("with a broken store: %v", err)
	}
	srv.store.setFail(nil)
	if err := first.Restart(t.Context()); err != nil || stateOf(t, first) != sandpit.StateRunning {
		t.Fatalf("starting it: %v (%s)", err, sandpit.Hint(err))
	}
	if _, err := sandpit.Exec(t.Context(), first, "true"); err != nil {
		t.Error(err)
	}
	for _, sb := range []sandpit.Sandbox{first, second} {
		if err := sb.Remove(t.Context()); err != nil {
			t.Error(err)
		}
	}
	made(t, e, sandpit.Spec{}) // all capacity is free again
}

// The next engine has a sandbox that was not started, also if the last one was killed while starting
// it.
func TestUnstartedIsAdopted(t *testing.T) {
	srv := newSurvivor(t)
	e := srv.open(t)
	kept := made(t, e, sandpit.Spec{Name: "kept", NoStart: true, Labels: map[string]string{"k": "v"}, Env: []string{"FROM=spec"}})
	killed := made(t, e, sandpit.Spec{Name: "killed", NoStart: true})
	if err := killed.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	r := srv.store.records[killed.ID()]
	r.State = sandpit.StateCreated // as it is until all is done
	srv.store.records[killed.ID()] = r

	e = srv.open(t)
	if report, err := e.Adopt(t.Context()); err != nil || report.Adopted != 2 || len(report.Refused) > 0 {
		t.Fatalf("%+v, %v", report, err)
	}
	for _, id := range []string{kept.ID(), killed.ID()} {
		sb, err := e.Get(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		if got := stateOf(t, sb); got != sandpit.StateCreated {
			t.Errorf("%s is %s", sb.Name(), got)
		}
		if err := sb.Restart(t.Context()); err != nil {
			t.Fatalf("starting %s: %v (%s)", sb.Name(), err, sandpit.Hint(err))
		}
		if res, err := sandpit.Shell(t.Context(), sb, "test -x /usr/bin/env && echo -n $FROM"); err != nil || !res.Success() || id == kept.ID() && string(res.Stdout) != "spec" {
			t.Errorf("%s: %+v, %v", sb.Name(), res, err)
		}
	}

	// And it is then one as any other.
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	e = srv.open(t)
	if report, err := e.Adopt(t.Context()); err != nil || report.Adopted != 2 {
		t.Fatalf("%+v, %v", report, err)
	}
	for _, name := range []string{"kept", "killed"} {
		sb, err := e.Get(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		if got := stateOf(t, sb); got != sandpit.StateRunning {
			t.Errorf("%s is %s", name, got)
		}
		if err := sb.Remove(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

// Settled waits for the making of a sandbox and for its removal.
func TestSettled(t *testing.T) {
	srv := newSurvivor(t)
	e := srv.open(t, func(o *engine.Options) { o.Capacity = engine.Capacity{Sandboxes: 1, Wait: time.Hour} })
	tenant := e.As("t", policy.Default())
	first := made(t, tenant, sandpit.Spec{Name: "first"})
	created := make(chan error, 1)
	go func() {
		_, err := tenant.Create(t.Context(), sandpit.Spec{Name: "second", User: "root", WorkDir: "/"})
		created <- err
	}()
	testkit.Until(t, "the second waits for capacity", func() bool { return e.Waiting() == 1 })
	found, err := tenant.Get(t.Context(), "second")
	if err != nil {
		t.Fatal(err)
	}
	second := found.(engine.Box)
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.ErrUnsupported)
	if err := second.Settled(ctx); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("while it is made: %v", err)
	}
	settled := make(chan error, 1)
	go func() {
		err := second.Settled(t.Context())
		if info, _ := second.Info(t.Context()); err == nil && info.State != sandpit.StateRunning {
			err = fmt.Errorf("it is %q", info.State)
		}
		settled <- err
	}()
	if err := first.Remove(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(<-settled, <-created); err != nil {
		t.Fatal(err)
	}
	go func() { settled <- second.Remove(t.Context()) }()
	testkit.Until(t, "its removal begins", func() bool { _, err := second.Info(t.Context()); return err != nil })
	if err := second.Settled(t.Context()); err != nil {
		t.Error(err)
	}
	if _, err := tenant.Get(t.Context(), "second"); !errors.Is(err, sandpit.ErrNotFound) {
		t.Errorf("after its removal: %v", err)
	}
	if err := <-settled; err != nil {
		t.Error(err)
	}
}
