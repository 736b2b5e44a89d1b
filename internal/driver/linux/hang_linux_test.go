package linux_test

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/engine"
	"github.com/sandpit-dev/sandpit/internal/feature"
	"github.com/sandpit-dev/sandpit/internal/policy"
	"github.com/sandpit-dev/sandpit/internal/testkit"
)

// hang is a step of a driver that does not end until it is released, once: what
// a system call does that the kernel holds up.
type hang struct {
	step     string
	armed    atomic.Bool
	reached  chan struct{}
	released chan struct{}
}

// hangingAt returns a driver of which one step hangs once it is armed.
func hangingAt(t *testing.T, step string) (*recorder, *hang) {
	h := &hang{step: step, reached: make(chan struct{}), released: make(chan struct{})}
	opt := options()
	opt.Fault = func(s string) error {
		if s == step && h.armed.CompareAndSwap(true, false) {
			close(h.reached)
			<-h.released
		}
		return nil
	}
	t.Cleanup(h.release)
	return driverWith(opt), h
}

// release lets the step go on.
func (h *hang) release() {
	select {
	case <-h.released:
	default:
		close(h.released)
	}
}

// impatient is an engine that waits for nothing that was called off.
func impatient(t *testing.T, d *recorder, p engine.Patience) *engine.Engine {
	t.Helper()
	e := engine.New(engine.Options{Driver: d, Images: images(), Policy: policy.Default(), Patience: p})
	t.Cleanup(func() { _ = e.Close() })
	return e
}

// wantStuck checks that an error says that a step is stuck.
func wantStuck(t *testing.T, err error, step string) {
	t.Helper()
	if !errors.Is(err, sandpit.ErrUnavailable) || !strings.Contains(err.Error(), "stuck") || !strings.Contains(err.Error(), `"`+step+`"`) {
		t.Errorf("the error is %v; want it to say that step %q is stuck", err, step)
	}
}

// A step of Create that never ends keeps nobody waiting: not its caller, not who
// removes the sandbox, not Close, not the other sandboxes. When it ends after
// all, nothing is left. (The catalogue's L13a and L20.)
func TestStuckCreate(t *testing.T) {
	testkit.NeedWorkingHost(t)
	afterClone := []string{"ids", "trees", "answer", "instance"}
	for _, step := range createSteps {
		for _, by := range []string{"the caller leaves", "a removal", "the end"} {
			t.Run(step+" "+by, func(t *testing.T) {
				check := unchanged(t)
				d, h := hangingAt(t, step)
				e := impatient(t, d, engine.Patience{Undo: time.Millisecond})
				ctx, leave := context.WithCancel(t.Context())
				defer leave()
				h.armed.Store(true)
				created := make(chan error, 1)
				go func() {
					_, err := e.Create(ctx, sandpit.Spec{Name: "stuck-create"})
					created <- err
				}()
				<-h.reached

				other, err := e.Create(t.Context(), sandpit.Spec{})
				if err != nil {
					t.Fatalf("another sandbox: %v", err)
				}
				if err := other.Remove(t.Context()); err != nil {
					t.Errorf("removing another sandbox: %v", err)
				}
				switch by {
				case "the caller leaves":
					leave()
				case "a removal":
					wantStuck(t, e.Remove(t.Context(), "stuck-create"), step)
				case "the end":
					wantStuck(t, e.Close(), step)
				}
				err = <-created
				wantStuck(t, err, step)
				if slices.Contains(afterClone, step) && !strings.Contains(err.Error(), "process ") {
					t.Errorf("%v: which process is there is not said", err)
				}
				if is := e.Stuck(); len(is) == 0 || is[0].Sandbox == "" || !strings.Contains(is[0].Doing, step) {
					t.Errorf("stuck are %+v", is)
				}
				page, err := e.List(t.Context(), sandpit.ListQuery{})
				if err != nil || len(page.Sandboxes) != 1 || page.Sandboxes[0].State != sandpit.StateFailed || !strings.Contains(page.Sandboxes[0].Reason, step) {
					t.Errorf("the sandboxes are %+v, %v", page.Sandboxes, err)
				}
				wantStuck(t, e.Remove(t.Context(), "stuck-create"), step)

				h.release()
				eventually(t, "nothing is stuck", func() bool { return len(e.Stuck()) == 0 })
				if _, err := e.Get(t.Context(), "stuck-create"); !errors.Is(err, sandpit.ErrNotFound) {
					t.Errorf("it is found: %v", err)
				}
				if err := e.Close(); err != nil {
					t.Error(err)
				}
				check()
			})
		}
	}
}

// A Create that takes too long is called off, and says at which step that was.
func TestCreateTakesTooLong(t *testing.T) {
	testkit.NeedWorkingHost(t)
	t.Cleanup(unchanged(t))
	stopped := make(chan error, 1)
	opt := options()
	before := descendants(os.Getpid())
	opt.Fault = func(step string) error {
		if step != "instance" {
			return nil
		}
		// Its guest will not answer.
		err := errors.New("there is no guest")
		for _, pid := range descendants(os.Getpid()) {
			if !slices.Contains(before, pid) && isGuest(pid) {
				err = unix.Kill(pid, unix.SIGSTOP)
				for err == nil && !slices.Contains(statusField(pid, "State"), "T") {
					time.Sleep(time.Millisecond)
				}
			}
		}
		stopped <- err
		return nil
	}
	for limit := time.Second; ; limit *= 2 { // until the machine is quick enough to get there
		e := impatient(t, driverWith(opt), engine.Patience{Create: limit})
		_, err := e.Create(t.Context(), sandpit.Spec{})
		if !errors.Is(err, sandpit.ErrUnavailable) || !strings.Contains(err.Error(), "took longer than") {
			t.Fatalf("the error is %v", err)
		}
		if cerr := e.Close(); cerr != nil {
			t.Error(cerr)
		}
		select {
		case serr := <-stopped:
			if serr != nil || !strings.Contains(err.Error(), `"greeting the guest"`) {
				t.Errorf("stopping its guest: %v; the error is %v", serr, err)
			}
			return
		default:
		}
	}
}

// A step of Destroy that never ends keeps nobody waiting either. (The catalogue's
// L13a.)
func TestStuckRemove(t *testing.T) {
	testkit.NeedWorkingHost(t)
	for _, step := range destroySteps {
		t.Run(step, func(t *testing.T) {
			check := unchanged(t)
			d, h := hangingAt(t, step)
			e := impatient(t, d, engine.Patience{Remove: time.Millisecond, Close: time.Millisecond})
			sb, err := e.Create(t.Context(), sandpit.Spec{Name: "stuck-remove"})
			if err != nil {
				t.Fatal(err)
			}
			if step == "remove-cgroup" && !d.Probe(t.Context()).Features[feature.Pids] {
				testkit.Lacks(t, "a limit of processes")
			}
			h.armed.Store(true)
			removed := make(chan error, 1)
			go func() { removed <- sb.Remove(t.Context()) }()
			<-h.reached
			eventually(t, "it is stuck", func() bool { return len(e.Stuck()) == 1 })
			if err := <-removed; !errors.Is(err, sandpit.ErrUnavailable) { // perhaps since an earlier step
				t.Errorf("removing it: %v", err)
			}
			wantStuck(t, e.Remove(t.Context(), "stuck-remove"), step)
			if info, err := sb.Info(t.Context()); err != nil || info.State != sandpit.StateFailed || !strings.Contains(info.Reason, step) {
				t.Errorf("it is %+v, %v", info, err)
			}
			if _, err := e.Create(t.Context(), sandpit.Spec{}); err != nil {
				t.Errorf("another sandbox: %v", err)
			}
			wantStuck(t, e.Close(), step)
			h.release()
			eventually(t, "nothing is stuck", func() bool { return len(e.Stuck()) == 0 })
			if left := e.Sandboxes(); len(left) != 0 {
				t.Errorf("%d sandboxes are left", len(left))
			}
			check()
		})
	}
}

// Who changes the state of a sandbox, and waits for a guest that does not answer,
// does not keep others from removing it.
func TestRemoveWhileAGuestDoesNotAnswer(t *testing.T) {
	testkit.NeedWorkingHost(t)
	t.Cleanup(unchanged(t))
	e := impatient(t, newDriver(), engine.Patience{})
	before := descendants(os.Getpid())
	sb, err := e.Create(t.Context(), sandpit.Spec{})
	if err != nil {
		t.Fatal(err)
	}
	for _, pid := range descendants(os.Getpid()) {
		if !slices.Contains(before, pid) && isGuest(pid) {
			if err := unix.Kill(pid, unix.SIGSTOP); err != nil {
				t.Fatal(err)
			}
			eventually(t, "its guest stands still", func() bool { return slices.Contains(statusField(pid, "State"), "T") })
		}
	}
	stopped := make(chan error, 1)
	go func() { stopped <- sb.(sandpit.Lifecycle).Stop(context.WithoutCancel(t.Context()), 0) }()
	eventually(t, "it is being stopped", func() bool {
		info, err := sb.Info(t.Context())
		return err == nil && info.State == sandpit.StateStopped
	})
	if err := sb.Remove(t.Context()); err != nil {
		t.Error(err)
	}
	if err := <-stopped; !errors.Is(err, sandpit.ErrClosed) {
		t.Errorf("stopping it: %v", err)
	}
	if err := e.Close(); err != nil {
		t.Error(err)
	}
}

// Blanks that never get ready keep no sandbox from being made, and Close from
// ending.
func TestStuckBlank(t *testing.T) {
	testkit.NeedWorkingHost(t)
	check := unchanged(t)
	d, h := hangingAt(t, "cgroup")
	h.armed.Store(true)
	e := engine.New(engine.Options{
		Driver: d, Images: images(), Policy: policy.Default(), Pool: engine.Pool{Size: 1},
		Patience: engine.Patience{Undo: time.Millisecond, Close: time.Millisecond},
	})
	e.Warm()
	<-h.reached
	sb, err := e.Create(t.Context(), sandpit.Spec{})
	if err != nil {
		t.Fatal(err)
	}
	if err := sb.Remove(t.Context()); err != nil {
		t.Error(err)
	}
	_ = e.Close() // which may be in time
	eventually(t, "it is stuck", func() bool { return len(e.Stuck()) == 1 })
	h.release()
	eventually(t, "nothing is stuck", func() bool { return len(e.Stuck()) == 0 })
	if err := e.Close(); err != nil {
		t.Error(err)
	}
	check()
}

// Past a number of stuck sandboxes none is made: each holds a thread.
func TestTooManyAreStuck(t *testing.T) {
	testkit.NeedWorkingHost(t)
	check := unchanged(t)
	reached, released := make(chan struct{}), make(chan struct{})
	opt := options()
	opt.Fault = func(step string) error {
		if step != "host" {
			return nil
		}
		select {
		case reached <- struct{}{}:
			<-released
		case <-released:
		}
		return nil
	}
	e := impatient(t, driverWith(opt), engine.Patience{Undo: time.Millisecond})
	refused := error(nil)
	for tries := 0; refused == nil; tries++ {
		ctx, leave := context.WithCancel(t.Context())
		created := make(chan error, 1)
		go func() {
			_, err := e.Create(ctx, sandpit.Spec{})
			created <- err
		}()
		select {
		case <-reached:
			leave()
			wantStuck(t, <-created, "host")
		case refused = <-created:
		}
		leave()
		if tries > 100 {
			t.Fatal("none is refused")
		}
	}
	if !errors.Is(refused, sandpit.ErrExhausted) || sandpit.RetryAfter(refused) == 0 {
		t.Errorf("the error is %v, and it says to try again after %s", refused, sandpit.RetryAfter(refused))
	}
	if n := len(e.Stuck()); n == 0 || n > 64 {
		t.Errorf("%d are stuck", n)
	}
	close(released)
	eventually(t, "nothing is stuck", func() bool { return len(e.Stuck()) == 0 })
	sb, err := e.Create(t.Context(), sandpit.Spec{})
	if err != nil {
		t.Fatal(err)
	}
	if err := sb.Remove(t.Context()); err != nil {
		t.Error(err)
	}
	if err := e.Close(); err != nil {
		t.Error(err)
	}
	check()
}

// Callers that wait for a process are told when its guest does not end it at its
// timeout, and when its sandbox is removed, also if the removal is stuck.
func TestWaitingForAStuckProcess(t *testing.T) {
	testkit.NeedWorkingHost(t)
	for _, by := range []string{"the timeout", "a removal"} {
		t.Run(by, func(t *testing.T) {
			check := unchanged(t)
			d, h := hangingAt(t, "kill")
			patience := engine.Patience{Guest: time.Millisecond}
			if by == "a removal" {
				patience.Remove = time.Millisecond
			}
			e := impatient(t, d, patience)
			before := descendants(os.Getpid())
			sb, err := e.Create(t.Context(), sandpit.Spec{Name: "stuck-process"})
			if err != nil {
				t.Fatal(err)
			}
			cmd := sandpit.Command{Argv: []string{"sleep", "1000"}}
			if by == "the timeout" {
				cmd.Timeout = time.Second
			}
			p, err := sb.Start(t.Context(), cmd)
			if err != nil {
				t.Fatal(err)
			}
			for _, pid := range descendants(os.Getpid()) {
				if !slices.Contains(before, pid) && isGuest(pid) {
					if err := unix.Kill(pid, unix.SIGSTOP); err != nil {
						t.Fatal(err)
					}
				}
			}
			h.armed.Store(true)
			want := "did not end process"
			if by == "a removal" {
				wantStuck(t, sb.Remove(t.Context()), "kill")
				want = "was removed"
			}
			if res, err := p.Wait(t.Context()); !errors.Is(err, sandpit.ErrClosed) || !strings.Contains(err.Error(), want) {
				t.Errorf("it ended with %+v, %v; want an error with %q", res, err, want)
			}
			<-h.reached
			h.release()
			if by == "the timeout" {
				if err := sb.Remove(t.Context()); err != nil {
					t.Error(err)
				}
			}
			eventually(t, "nothing is stuck", func() bool { return len(e.Stuck()) == 0 })
			if err := e.Close(); err != nil {
				t.Error(err)
			}
			check()
		})
	}
}
