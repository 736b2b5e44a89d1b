package engine_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/driver"
	"github.com/sandpit-dev/sandpit/internal/engine"
	"github.com/sandpit-dev/sandpit/internal/testkit"
)

// slowStore is a store of which DeleteSandbox tells when it has removed a record, and
// then hangs.
type slowStore struct {
	*mapStore
	once              sync.Once
	reached, released chan struct{}
}

func (s *slowStore) DeleteSandbox(ctx context.Context, id string) error {
	err := s.mapStore.DeleteSandbox(ctx, id)
	s.once.Do(func() { close(s.reached) })
	<-s.released
	return err
}

// A record that is tried again while it is being removed is not written any more, so
// that the sandbox does not come back with the next engine. (The catalogue's L14f.)
func TestRemovedRecordIsNotWrittenAgain(t *testing.T) {
	srv := newSurvivor(t)
	store := &slowStore{mapStore: srv.store, reached: make(chan struct{}), released: make(chan struct{})}
	e := srv.open(t, func(o *engine.Options) { o.Store = store })
	sb := made(t, e, sandpit.Spec{Name: "box"})
	srv.store.setFail(fmt.Errorf("writing: %w", sandpit.ErrDiskFull))
	if err := sb.(sandpit.Lifecycle).Pause(t.Context()); err != nil {
		t.Fatal(err)
	}
	srv.store.setFail(nil)
	removed, tried := make(chan error, 1), make(chan struct{})
	go func() { removed <- sb.Remove(t.Context()) }()
	<-store.reached
	go func() {
		defer close(tried)
		e.FlushRecords()
	}()
	select {
	case <-tried:
	case <-time.After(100 * time.Millisecond): // it waits for the removal
	}
	close(store.released)
	if err := <-removed; err != nil {
		t.Error(err)
	}
	<-tried
	e.FlushRecords()
	if r, ok := srv.store.get(sb.ID()); ok {
		t.Errorf("its record is back, and says that it is %s", r.State)
	}
}

// A record that takes long to be written again keeps changes of other sandboxes waiting
// neither for it nor for their own. (The catalogue's L14f.)
func TestSlowRecordHoldsUpNoOther(t *testing.T) {
	testkit.NeedFull(t, "it waits for four seconds")
	srv := newSurvivor(t)
	store := &stallingStore{mapStore: srv.store, reached: make(chan struct{}), released: make(chan struct{})}
	e := srv.open(t, func(o *engine.Options) { o.Store = store })
	slow, other := made(t, e, sandpit.Spec{}), made(t, e, sandpit.Spec{})
	srv.store.setFail(fmt.Errorf("writing: %w", sandpit.ErrDiskFull))
	if err := slow.(sandpit.Lifecycle).Pause(t.Context()); err != nil {
		t.Fatal(err)
	}
	store.id = slow.ID()
	store.armed.Store(true)
	<-store.reached
	paused := make(chan error, 1)
	go func() { paused <- other.(sandpit.Lifecycle).Pause(t.Context()) }()
	select {
	case err := <-paused:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(10 * time.Second):
		t.Error("pausing another sandbox waits")
	}
	srv.store.setFail(nil)
	close(store.released)
	eventually(t, "both are recorded", func() bool {
		a, _ := srv.store.get(slow.ID())
		b, _ := srv.store.get(other.ID())
		return a.State == sandpit.StatePaused && b.State == sandpit.StatePaused
	})
}

// fragile is bare whose guests' connections end after so many writes.
type fragile struct {
	bare
	left *atomic.Int64
}

type fragileInstance struct {
	*bareInstance
	left *atomic.Int64
}

type fragileConn struct {
	net.Conn
	left *atomic.Int64
}

func (d fragile) Recover(ctx context.Context, h driver.Handle) (driver.Instance, error) {
	i, err := d.bare.Recover(ctx, h)
	if err != nil {
		return nil, err
	}
	return &fragileInstance{i.(*bareInstance), d.left}, nil
}

func (i *fragileInstance) Dial(ctx context.Context) (net.Conn, error) {
	conn, err := i.bareInstance.Dial(ctx)
	return fragileConn{conn, i.left}, err
}

func (c fragileConn) Write(p []byte) (int, error) {
	if c.left.Add(-1) < 0 {
		_ = c.Conn.Close()
		return 0, io.ErrClosedPipe
	}
	return c.Conn.Write(p)
}

// A sandbox whose guest dies while it is adopted, at whatever moment, is a failed one:
// that is said once, it takes no room, and its record says so. (The catalogue's L13z.)
func TestGuestDiesDuringAdoption(t *testing.T) {
	testkit.NeedFull(t, "it waits for three seconds")
	cut := 0
	for writes := int64(0); ; writes++ {
		srv := newSurvivor(t)
		box, pid := srv.leave(t, false)
		left := new(atomic.Int64)
		left.Store(writes)
		var failed atomic.Int64
		second, report := adopt(t, srv, func(o *engine.Options) {
			o.Driver = fragile{bare{srv.dir}, left}
			o.Observe = func(_ string, ev sandpit.Event) {
				if ev.Kind == sandpit.EventFailed {
					failed.Add(1)
				}
			}
		})
		sb, err := second.Get(t.Context(), "box")
		if err != nil {
			t.Fatal(err)
		}
		if left.Load() >= 0 { // it did not die
			wantState(t, sb, sandpit.StateRunning)
			if err := errors.Join(sb.Remove(t.Context()), second.Close()); err != nil {
				t.Error(err)
			}
			break
		}
		cut++
		eventually(t, fmt.Sprintf("it has failed after %d writes", writes), func() bool {
			info, err := sb.Info(t.Context())
			r, _ := srv.store.get(box.ID())
			return err == nil && info.State == sandpit.StateFailed && info.Reason != "" && r.State == sandpit.StateFailed && !alive(pid) && second.Live() == 0
		})
		if err := sb.Remove(t.Context()); err != nil || failed.Load() != 1 || report.Refused != nil {
			t.Errorf("after %d writes: it has failed %d times; %+v; removing it: %v", writes, failed.Load(), report, err)
		}
	}
	if cut < 3 { // greeting, processes, lifetime
		t.Errorf("its connection was cut at %d moments", cut)
	}
}

// hindered is bare of which something fails that says nothing about the guest.
type hindered struct {
	bare
	dial, freeze error
}

type hinderedInstance struct {
	*bareInstance
	hindered
}

func (d hindered) Recover(ctx context.Context, h driver.Handle) (driver.Instance, error) {
	i, err := d.bare.Recover(ctx, h)
	if err != nil {
		return nil, err
	}
	return &hinderedInstance{i.(*bareInstance), d}, nil
}

func (i *hinderedInstance) Dial(ctx context.Context) (net.Conn, error) {
	if i.dial != nil {
		return nil, i.dial
	}
	return i.bareInstance.Dial(ctx)
}

func (i *hinderedInstance) Freeze(ctx context.Context) error {
	if i.freeze != nil {
		return i.freeze
	}
	return i.bareInstance.Freeze(ctx)
}

// A sandbox whose guest can't be reached because there are no descriptors left, or whose socket has no
// room, is not destroyed: the next engine takes it over.
func TestAdoptionWithoutDescriptors(t *testing.T) {
	for _, fault := range []error{syscall.EMFILE, syscall.EAGAIN} {
		srv := newSurvivor(t)
		_, pid := srv.leave(t, false)
		second, report := adopt(t, srv, func(o *engine.Options) {
			o.Driver = hindered{bare: bare{srv.dir}, dial: fmt.Errorf("dialling: %w (%w)", sandpit.ErrClosed, fault)}
		})
		if len(report.Refused) != 1 || report.Failed != 0 || !alive(pid) {
			t.Errorf("%v: the report is %+v; its guest lives: %v", fault, report, alive(pid))
		}
		if err := second.Close(); err != nil {
			t.Error(err)
		}
		third, report := adopt(t, srv)
		if report.Adopted != 1 || report.Processes != 1 {
			t.Errorf("%v: then the report is %+v", fault, report)
		}
		if err := third.Remove(t.Context(), "box"); err != nil {
			t.Error(err)
		}
	}
}

// A paused sandbox that an engine has thawed to ask its guest, and that can't be frozen
// again, runs on.
func TestAdoptionOfWhatCantBeFrozenAgain(t *testing.T) {
	srv := newSurvivor(t)
	box, pid := srv.leave(t, true)
	second, report := adopt(t, srv, func(o *engine.Options) {
		o.Driver = hindered{bare: bare{srv.dir}, freeze: os.ErrDeadlineExceeded}
	})
	if report.Adopted != 1 || report.Processes != 1 || report.Refused != nil || !alive(pid) {
		t.Errorf("the report is %+v; its guest lives: %v", report, alive(pid))
	}
	sb, err := second.Get(t.Context(), "box")
	if err != nil {
		t.Fatal(err)
	}
	wantState(t, sb, sandpit.StateRunning)
	if r, _ := srv.store.get(box.ID()); r.State != sandpit.StateRunning {
		t.Errorf("its record says %s", r.State)
	}
	if _, err := os.Stat(filepath.Join(srv.dir, "logs", box.ID()+".paused")); err == nil {
		t.Error("it is marked as paused")
	}
	if err := sb.Remove(t.Context()); err != nil {
		t.Error(err)
	}
}
