package engine_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/engine"
	"github.com/sandpit-dev/sandpit/internal/testkit"
)

// hangingMark puts a FIFO in the place of a mark: who opens it for writing waits. The
// function that is returned lets them go on.
func hangingMark(t *testing.T, srv *survivor, id, mark string) (goOn func()) {
	t.Helper()
	path := filepath.Join(srv.dir, "logs", id+mark)
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), unix.Mkfifo(path, 0o600)); err != nil {
		t.Fatal(err)
	}
	return func() {
		t.Helper()
		fd, err := unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = unix.Close(fd) })
	}
}

// A data directory that hangs keeps no removal, asked for or on expiry, from killing.
// (The catalogue's L13y.)
func TestRemovalWhileTheDataDirectoryHangs(t *testing.T) {
	testkit.NeedFull(t, "it waits for five seconds")
	for name, remove := range map[string]func(t *testing.T, sb sandpit.Sandbox) error{
		"asked": func(t *testing.T, sb sandpit.Sandbox) error { return sb.Remove(t.Context()) },
		"expired": func(t *testing.T, sb sandpit.Sandbox) error {
			return sb.(sandpit.Lifecycle).SetLifetime(t.Context(), sandpit.Lifetime{Life: time.Nanosecond})
		},
	} {
		t.Run(name, func(t *testing.T) {
			srv := newSurvivor(t)
			e := srv.open(t)
			sb := made(t, e, sandpit.Spec{Name: "box"})
			pid := pidOf(t, srv, sb.ID())
			goOn := hangingMark(t, srv, sb.ID(), ".removed")
			if err := remove(t, sb); err != nil {
				t.Error(err)
			}
			eventually(t, "it is gone", func() bool {
				_, recorded := srv.store.get(sb.ID())
				return !alive(pid) && !recorded && len(e.Sandboxes()) == 0
			})
			if all := e.Stuck(); len(all) != 1 || all[0].String() != `marking sandbox box is stuck (step "mark")` {
				t.Errorf("stuck are %v", all)
			}
			goOn()
			eventually(t, "nothing is left", func() bool {
				left, err := filepath.Glob(filepath.Join(srv.dir, "logs", "*"))
				return err == nil && left == nil && e.StuckCount() == 0
			})
		})
	}
}

// A stop that can't be recorded does not wait for its mark on a disk that hangs, and
// keeps no removal waiting. (The catalogue's L13y.)
func TestStopWhileTheDataDirectoryHangs(t *testing.T) {
	testkit.NeedFull(t, "it waits for four seconds")
	srv := newSurvivor(t)
	e := srv.open(t)
	sb := made(t, e, sandpit.Spec{Name: "box"})
	pid := pidOf(t, srv, sb.ID())
	goOn := hangingMark(t, srv, sb.ID(), ".stopped")
	srv.store.setFail(fmt.Errorf("writing: %w", sandpit.ErrDiskFull))
	if err := sb.(sandpit.Lifecycle).Stop(t.Context(), 0); err != nil {
		t.Error(err)
	}
	wantState(t, sb, sandpit.StateStopped)
	if err := sb.Remove(t.Context()); err != nil || alive(pid) {
		t.Errorf("removing it: %v; its guest lives: %v", err, alive(pid))
	}
	srv.store.setFail(nil)
	goOn()
	eventually(t, "nothing is left", func() bool {
		left, err := filepath.Glob(filepath.Join(srv.dir, "logs", "*"))
		_, recorded := srv.store.get(sb.ID())
		return err == nil && left == nil && !recorded && e.StuckCount() == 0
	})
}

// The answer to a removal that hangs after the sandbox was killed says where.
func TestStuckRemovalNamesTheStep(t *testing.T) {
	srv := newSurvivor(t)
	store := &slowStore{mapStore: srv.store, reached: make(chan struct{}), released: make(chan struct{})}
	e := srv.open(t, func(o *engine.Options) {
		o.Store, o.Patience = store, engine.Patience{Remove: 100 * time.Millisecond}
	})
	sb := made(t, e, sandpit.Spec{Name: "box"})
	pid := pidOf(t, srv, sb.ID())
	err := sb.Remove(t.Context())
	if !errors.Is(err, sandpit.ErrUnavailable) || !strings.Contains(err.Error(), `removing sandbox box is stuck (step "record")`) {
		t.Errorf("the error is %v", err)
	}
	<-store.reached
	if alive(pid) {
		t.Error("its guest lives")
	}
	close(store.released)
	eventually(t, "it is removed", func() bool { return len(e.Sandboxes()) == 0 && e.StuckCount() == 0 })
}

// A paused sandbox runs for a moment when an engine asks its guest. It stays paused also if that
// engine is killed meanwhile, whatever the guest does. One that was resumed, although
// that could not be recorded, runs. (The catalogue's L13u.)
func TestPausedSandboxIsPausedAfterTwoKills(t *testing.T) {
	srv := newSurvivor(t)
	box, pid := srv.leave(t, true)
	d := &mute{bare: bare{srv.dir}}
	d.silent.Store(true)

	// The second does nothing from then on, as if it was killed.
	ctx, cancel := context.WithCancel(t.Context())
	second := srv.open(t, func(o *engine.Options) {
		o.Driver, o.Patience = d, engine.Patience{Adopt: time.Hour}
	})
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = second.Adopt(ctx)
	}()
	defer func() {
		cancel()
		<-done
	}()
	eventually(t, "its guest is asked", func() bool { return status(pid) != "T" })

	third, report := silently(t, srv, d)
	if report.Adopted != 1 || report.Refused != nil {
		t.Errorf("got %+v", report)
	}
	sb, err := third.Get(t.Context(), "box")
	if err != nil {
		t.Fatal(err)
	}
	wantState(t, sb, sandpit.StatePaused)
	if is := status(pid); is != "T" {
		t.Errorf("its guest is %q", is)
	}

	d.silent.Store(false)
	srv.store.setFail(fmt.Errorf("writing: %w", sandpit.ErrDiskFull))
	if err := errors.Join(sb.(sandpit.Lifecycle).Resume(t.Context()), third.Close()); err != nil {
		t.Fatal(err)
	}
	srv.store.setFail(nil)
	if r, _ := srv.store.get(box.ID()); r.State != sandpit.StatePaused {
		t.Fatalf("its record says %s", r.State)
	}
	fourth, _ := silently(t, srv, d)
	if sb, err = fourth.Get(t.Context(), "box"); err != nil {
		t.Fatal(err)
	}
	wantState(t, sb, sandpit.StateRunning)
	if err := sb.Remove(t.Context()); err != nil {
		t.Error(err)
	}
}

// The guest of a paused sandbox is not asked if nothing would tell the next engine that
// the sandbox is to be paused again.
func TestPausedSandboxThatCantBeMarked(t *testing.T) {
	srv := newSurvivor(t)
	first := srv.open(t)
	box := made(t, first, sandpit.Spec{Name: "box"})
	pid := pidOf(t, srv, box.ID())
	if err := errors.Join(box.(sandpit.Lifecycle).Pause(t.Context()), first.Close()); err != nil {
		t.Fatal(err)
	}
	goOn := hangingMark(t, srv, box.ID(), ".paused")
	second, report := adopt(t, srv)
	if report.Adopted != 1 || report.Refused != nil {
		t.Errorf("got %+v", report)
	}
	sb, err := second.Get(t.Context(), "box")
	if err != nil {
		t.Fatal(err)
	}
	wantState(t, sb, sandpit.StatePaused)
	if is := status(pid); is != "T" {
		t.Errorf("its guest is %q", is)
	}
	goOn()
	if err := sb.(sandpit.Lifecycle).Resume(t.Context()); err != nil {
		t.Error(err)
	}
	wantState(t, sb, sandpit.StateRunning)
	if err := sb.Remove(t.Context()); err != nil {
		t.Error(err)
	}
}

// A removal that could not be recorded holds also for a sandbox that an engine before has
// found gone, of which the record has no handle.
func TestRemovalOfAFailedOneIsMarked(t *testing.T) {
	srv := newSurvivor(t)
	first := srv.open(t)
	id := made(t, first, sandpit.Spec{Name: "box"}).ID()
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	kill(t, srv, id)
	for range 2 { // it is kept as a failed one
		e, _ := adopt(t, srv)
		sb, err := e.Get(t.Context(), "box")
		if err != nil {
			t.Fatal(err)
		}
		wantState(t, sb, sandpit.StateFailed)
		if err := e.Close(); err != nil {
			t.Fatal(err)
		}
	}
	e, _ := adopt(t, srv)
	srv.store.setFail(fmt.Errorf("writing: %w", sandpit.ErrDiskFull))
	if err := errors.Join(e.Remove(t.Context(), "box"), e.Close()); err != nil {
		t.Fatal(err)
	}
	srv.store.setFail(nil)
	last, report := adopt(t, srv)
	if report.Expired != 1 || len(last.Sandboxes()) != 0 {
		t.Errorf("the report is %+v, and %d are there", report, len(last.Sandboxes()))
	}
	if _, ok := srv.store.get(id); ok {
		t.Error("its record is left")
	}
}
