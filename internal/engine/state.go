package engine

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/driver"
	"github.com/sandpit-dev/sandpit/internal/fault"
	"github.com/sandpit-dev/sandpit/internal/notation"
)

// begins waits until no other call changes the state, and returns the present state. The
// change ends with s.ends.
func (s *Sandbox) begins(ctx context.Context) (sandpit.State, error) {
	select {
	case s.change <- struct{}{}:
	case <-ctx.Done():
		return "", ctx.Err()
	case <-s.gone:
		return "", s.closedError()
	}
	state := s.present()
	if state == "" {
		s.ends()
		return "", s.closedError()
	}
	if state == sandpit.StateCreating {
		s.mu.Lock()
		t := s.stuck
		s.mu.Unlock()
		if t != nil { // which says more
			s.ends()
			return "", t.stuckError()
		}
	}
	return state, nil
}

func (s *Sandbox) ends() { <-s.change }

// become enters a new state, unless the sandbox has failed or is gone.
func (s *Sandbox) become(state sandpit.State, reason string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.removing:
		return s.closedError()
	case s.state == sandpit.StateFailed:
		return s.stateError(s.state)
	}
	s.state, s.reason = state, reason
	return nil
}

// Stop ends every process. See sandpit.Lifecycle.
func (s *Sandbox) Stop(ctx context.Context, grace time.Duration) error {
	return s.stop(ctx, grace, "asked")
}

func (s *Sandbox) stop(ctx context.Context, grace time.Duration, reason string) error {
	if grace < 0 {
		return fault.Errorf(sandpit.ErrInvalid, "stopping sandbox %s: the grace period is negative", s.Name())
	}
	state, err := s.begins(ctx)
	if err != nil {
		return err
	}
	defer s.ends()
	s.mu.Lock()
	extended := !s.over(reason)
	if extended {
		s.arm()
	}
	s.mu.Unlock()
	switch {
	case state == sandpit.StateStopped || extended: // meanwhile
		return nil
	case state == sandpit.StatePaused:
		if err := s.thaw(ctx); err != nil {
			return err
		}
	case state == sandpit.StateRunning:
	default:
		return s.stateError(state)
	}
	// From now on nothing new is started. Starts in progress are found by repeating until there is
	// nothing.
	if err := s.become(sandpit.StateStopped, reason); err != nil {
		return err
	}
	s.mu.Lock()
	s.expired = reason != "asked"
	s.arm()
	contexts := s.contexts
	s.mu.Unlock()
	if contexts != nil {
		contexts.Ends("the sandbox was stopped")
	}
	if err := s.endAll(ctx, grace); err != nil {
		// Some may live: the sandbox is not stopped.
		_ = s.become(sandpit.StateRunning, "")
		s.mu.Lock()
		s.expired = false
		if reason == "asked" { // an expiry is retried after a while
			s.arm()
		}
		s.mu.Unlock()
		return fmt.Errorf("stopping sandbox %s: %w", s.Name(), s.explain(err))
	}
	s.tellGuest(ctx)
	s.event(sandpit.EventStopped, reason)
	return s.saveChange(ctx)
}

// endPatience is the time in which the guest must have killed everything.
const endPatience = 30 * time.Second

// killPatience is the time for killing the processes of a sandbox one by one, so that each result says how it ended.
const killPatience = 3 * time.Second

// killEach kills processes, and all others with them if those do not die soon: a program whose processes wake each other
// while they are being stopped dies only with everything at once.
func (s *Sandbox) killEach(ctx context.Context, refs []uint64) error {
	each, cancel := context.WithTimeout(ctx, killPatience)
	defer cancel()
	var failed error
	for _, ref := range refs {
		if err := s.guest.Kill(each, ref); err != nil && !errors.Is(err, sandpit.ErrNotFound) {
			failed = err
			break
		}
	}
	if failed == nil || ctx.Err() != nil {
		return failed
	}
	if err := s.guest.KillAll(ctx); !errors.Is(err, sandpit.ErrUnsupported) {
		return err
	}
	if each.Err() != nil {
		return nil // a guest of an earlier version goes on killing
	}
	return failed
}

// endAll ends all processes: with SIGTERM, and after grace with SIGKILL.
func (s *Sandbox) endAll(ctx context.Context, grace time.Duration) error {
	deadline := time.Now().Add(grace)
	asked := map[uint64]bool{}
	for wait := time.Millisecond; ; wait = min(2*wait, 100*time.Millisecond) {
		s.mu.Lock()
		starting := s.starting
		s.mu.Unlock()
		list, err := s.guest.Processes(ctx)
		if err != nil {
			return err
		}
		var late []uint64
		running := 0
		timedOut := !time.Now().Before(deadline)
		for _, p := range list {
			switch {
			case p.Exited:
				continue
			case timedOut:
				late = append(late, p.Ref)
			case !asked[p.Ref]:
				asked[p.Ref] = true
				_ = s.guest.SignalGroup(ctx, p.Ref, syscall.SIGTERM) // it may have ended meanwhile
			}
			running++
		}
		if err := s.killEach(ctx, late); err != nil {
			return err
		}
		if running+starting == 0 {
			// And all that they have left behind, wherever it is.
			if err := s.guest.KillAll(ctx); !errors.Is(err, sandpit.ErrUnsupported) {
				return err
			}
			for _, p := range list { // the guest is of an earlier version
				if err := s.guest.Kill(ctx, p.Ref); err != nil && !errors.Is(err, sandpit.ErrNotFound) {
					return err
				}
			}
			return nil
		}
		if time.Since(deadline) > endPatience {
			return fault.Errorf(sandpit.ErrUnavailable, "%d processes did not exit", running)
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return ctx.Err()
		case <-s.gone:
			return s.closedError()
		}
	}
}

// Restart makes a stopped sandbox run again, or starts one that never ran as Options.Policy allows.
// See sandpit.Lifecycle.
func (s *Sandbox) Restart(ctx context.Context) error {
	return s.restart(ctx, s.engine.As(s.namespace, s.engine.opts.Policy))
}

// restart is Restart for a tenant.
func (s *Sandbox) restart(ctx context.Context, t *Tenant) error {
	if s.present() == sandpit.StateCreated {
		return s.startFirst(ctx, t)
	}
	return s.runAgain(ctx, sandpit.StateStopped, s.reviewPing, sandpit.EventStarted)
}

// Resume thaws the sandbox. See sandpit.Lifecycle.
func (s *Sandbox) Resume(ctx context.Context) error {
	return s.runAgain(ctx, sandpit.StatePaused, s.thaw, sandpit.EventResumed)
}

// runAgain makes a sandbox run again with wake, if its state allows it.
func (s *Sandbox) runAgain(ctx context.Context, from sandpit.State, wake func(context.Context) error, told sandpit.EventKind) error {
	state, err := s.begins(ctx)
	if err != nil {
		return err
	}
	defer s.ends()
	switch state {
	case sandpit.StateRunning:
		return nil
	case from:
	default:
		return s.stateError(state)
	}
	if err := s.mayRevive(); err != nil {
		return err
	}
	if err := wake(ctx); err != nil {
		return err
	}
	if err := s.become(sandpit.StateRunning, ""); err != nil {
		return err
	}
	s.revive()
	s.tellGuest(ctx)
	s.note(ctx)
	s.event(told, "")
	return s.saveChange(ctx)
}

// mayRevive refuses to revive a sandbox that has reached the lifetime that the policy
// allowed when it was made.
func (s *Sandbox) mayRevive() error {
	begun := s.begun()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.maxLife == 0 || time.Now().Before(begun.Add(s.maxLife)) {
		return nil
	}
	return sandpit.WithHint(fault.Errorf(sandpit.ErrForbidden, "sandbox %s has reached its total lifetime of %s", s.Name(), notation.FormatDuration(s.maxLife)), "create a new sandbox")
}

// revive restarts the idle time, and the lifetime if it was over, as far as the policy
// allows.
func (s *Sandbox) revive() {
	s.touch()
	begun := s.begun()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.expired || !time.Now().Before(s.deadline) {
		s.deadline = time.Now().Add(s.info.Limits.Life)
		if last := begun.Add(s.maxLife); s.maxLife > 0 && s.deadline.After(last) {
			s.deadline = last
		}
	}
	s.expired = false
	s.arm()
}

// Pause freezes all processes. See sandpit.Lifecycle.
func (s *Sandbox) Pause(ctx context.Context) error { return s.pause(ctx, "asked") }

func (s *Sandbox) pause(ctx context.Context, reason string) error {
	state, err := s.begins(ctx)
	if err != nil {
		return err
	}
	defer s.ends()
	expires := reason != "asked"
	s.mu.Lock()
	extended := !s.over(reason)
	if expired := state == sandpit.StatePaused && expires; expired || extended {
		s.expired = s.expired || expired && !extended
		s.arm()
	}
	s.mu.Unlock()
	switch {
	case state == sandpit.StatePaused || extended: // meanwhile
		return nil
	case state == sandpit.StateRunning:
	default:
		return s.stateError(state)
	}
	f, ok := s.instance.(driver.Freezer)
	if !ok {
		return fault.Errorf(sandpit.ErrUnsupported, "pausing sandbox %s: the driver %s does not support it", s.Name(), s.info.Driver)
	}
	// While it stands still its guest's clock goes on. One that has expired does not
	// escape that by the silence of its guest.
	if err := s.guestForever(ctx); err != nil && (!expires || ctx.Err() == nil) {
		return fmt.Errorf("pausing sandbox %s: %w", s.Name(), s.explain(err))
	}
	if err := s.become(sandpit.StatePaused, reason); err != nil {
		return err
	}
	s.mu.Lock()
	s.expired = expires
	s.arm()
	s.mu.Unlock()
	s.note(ctx) // it can't hear while it stands still
	if err := f.Freeze(context.WithoutCancel(ctx)); err != nil {
		_ = s.become(sandpit.StateRunning, "")
		s.mu.Lock()
		s.expired = false
		if !expires {
			s.arm()
		}
		s.mu.Unlock()
		s.tellGuest(context.WithoutCancel(ctx))
		return fmt.Errorf("pausing sandbox %s: %w", s.Name(), err)
	}
	s.event(sandpit.EventPaused, reason)
	return s.saveChange(ctx)
}

// thaw resumes a paused sandbox, and connects to its guest if necessary. Precondition:
// s.change is held.
func (s *Sandbox) thaw(ctx context.Context) error {
	f, ok := s.instance.(driver.Freezer)
	if !ok {
		return fmt.Errorf("resuming sandbox %s: %w", s.Name(), sandpit.ErrUnsupported)
	}
	if err := f.Thaw(ctx); err != nil {
		return fmt.Errorf("resuming sandbox %s: %w", s.Name(), err)
	}
	if s.guest != nil {
		return nil
	}
	// Its guest was silent when it was adopted.
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-s.gone:
			cancel()
		case <-ctx.Done():
		}
	}()
	if _, err := s.connect(ctx, false); err != nil {
		s.letGo()
		return errors.Join(fmt.Errorf("resuming sandbox %s: its guest does not respond: %w", s.Name(), err), f.Freeze(context.WithoutCancel(ctx)))
	}
	go s.watch()
	return nil
}
