package engine

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/guest/client"
	"github.com/sandpit-dev/sandpit/internal/policy"
)

const (
	// lifeGrace is the time between the end of the lifetime, when the processes are killed, and
	// the removal: their results must arrive.
	lifeGrace = 2 * time.Second

	// guestGrace is how much longer the guest lets a sandbox live than the engine does. It
	// matters only if the engine is dead.
	guestGrace = 30 * time.Second

	// keptFor is the time that a guest waits for an engine to come back if its sandbox
	// must not be removed on expiry.
	keptFor = 7 * 24 * time.Hour

	// extendPatience is the time by which the end of the lifetime waits for an extension that is being written.
	extendPatience = 10 * time.Second

	// renewal is the interval at which such a guest is told that there is an engine.
	renewal = 24 * time.Hour

	// stopGrace is the time that processes have to end when a sandbox expires.
	stopGrace = 10 * time.Second
)

// due returns when the lifetime ends. Precondition: s.mu is held.
func (s *Sandbox) due() time.Time {
	if s.extending.After(s.deadline) {
		return s.extending
	}
	return s.deadline
}

// arm sets the timer to the next moment at which the sandbox may expire.
// Precondition: s.mu is held.
func (s *Sandbox) arm() {
	if s.timer != nil {
		s.timer.Stop()
	}
	if s.removing || s.left || s.state == sandpit.StateStopped || s.deadline.IsZero() || s.expired {
		return
	}
	next := time.Until(s.due())
	if s.timeUp = s.timeUp && next <= 0; s.timeUp {
		next += lifeGrace
	}
	if s.idles() {
		left := s.idleLeft()
		if s.network != nil { // whose traffic is looked at in time
			left = min(left, s.idle/trafficShare)
		}
		next = min(next, max(left, time.Millisecond))
	}
	s.timer = time.AfterFunc(next, s.expire)
}

// idles reports whether the sandbox expires when it is idle. One that is being adopted may
// run. Precondition: s.mu is held.
func (s *Sandbox) idles() bool {
	return s.idle > 0 && (s.state == sandpit.StateRunning || s.state == sandpit.StateCreating)
}

// idleLeft returns the time until the sandbox has been idle for too long. Precondition:
// s.mu is held.
func (s *Sandbox) idleLeft() time.Duration {
	if s.active > 0 {
		return s.idle
	}
	return s.idle - time.Since(time.Unix(0, s.lastUse.Load()))
}

// trafficShare is how often traffic is looked at in an idle time: it ends an idle time at most
// this part of it too late.
const trafficShare = 8

// expire checks whether the time is over, and carries out the expiry.
func (s *Sandbox) expire() {
	s.noticeTraffic()
	s.mu.Lock()
	reason := ""
	switch {
	case s.removing || s.left || s.expired || s.state == sandpit.StateStopped:
	case time.Until(s.due()) <= 0 && !s.timeUp && s.onExpiry == sandpit.ExpiryRemove && s.state == sandpit.StateRunning:
		s.timeUp = true
		s.arm()
		go s.killAll()
	case time.Until(s.due()) <= 0 && !s.timeUp, time.Until(s.due())+lifeGrace <= 0:
		reason = "life"
	case s.idles() && s.idleLeft() <= 0:
		reason = "idle"
	default:
		s.arm()
	}
	what, state := s.onExpiry, s.state
	s.mu.Unlock()
	if reason == "" {
		return
	}
	var err error
	if what == sandpit.ExpiryRemove || state == sandpit.StateFailed {
		err = s.destroy(context.Background(), reason)
	} else {
		err = s.halt(what, state, reason)
	}
	if err != nil {
		// What could not be done now may be possible soon.
		s.mu.Lock()
		if !s.removing && !s.left {
			s.timer = time.AfterFunc(expireRetry, s.expire)
		} else if what == sandpit.ExpiryRemove && !s.removed {
			s.timer = time.AfterFunc(expireRetry, func() { _ = s.destroy(context.Background(), reason) })
		}
		s.mu.Unlock()
	}
}

// killAll kills all processes of a sandbox that is about to be removed, unless its life was made longer meanwhile.
func (s *Sandbox) killAll() {
	ctx, cancel := context.WithTimeout(context.Background(), lifeGrace)
	defer cancel()
	if _, err := s.begins(ctx); err != nil {
		return
	}
	defer s.ends()
	if s.outlived() {
		_ = s.endAll(ctx, 0) // what can't be killed is removed with the sandbox
	}
}

// Settled waits until the sandbox is neither being made nor being removed. See Box.
func (s *Sandbox) Settled(ctx context.Context) error {
	s.mu.Lock()
	removing, making := s.removing, s.making
	s.mu.Unlock()
	var done, stuck <-chan struct{} = s.made, nil
	switch {
	case removing:
		return s.Remove(ctx) // which waits for the removal that has begun
	case making != nil:
		done, stuck = making.done, making.stuck
	}
	select {
	case <-done:
	case <-stuck: // then it has failed
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	return nil
}

// outlived reports whether the lifetime is over, so that a process that was killed has died of it.
func (s *Sandbox) outlived() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.timeUp
}

// halt stops or pauses a sandbox that has expired. If its guest is silent, it is frozen,
// which needs no guest, or removed if it can't be frozen.
func (s *Sandbox) halt(what sandpit.Expiry, state sandpit.State, reason string) error {
	if state == sandpit.StateCreating { // it is being adopted
		s.cancel(errExpired)
		<-s.made
		if s.present() == sandpit.StateCreating {
			return s.destroy(context.Background(), reason)
		}
		return nil // as its state is, it has a timer
	}
	stop := func() (silent bool, err error) {
		ctx, cancel := context.WithTimeout(context.Background(), s.engine.opts.Patience.Expire)
		defer cancel()
		err = s.stop(ctx, stopGrace, reason)
		return err != nil && ctx.Err() != nil, err
	}
	silent := false
	if what == sandpit.ExpiryStop {
		var err error
		if silent, err = stop(); !silent {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), s.engine.opts.Patience.Expire)
	defer cancel()
	err := s.pause(ctx, reason)
	if errors.Is(err, sandpit.ErrUnsupported) {
		// What can't be paused here is stopped: its time is over all the same.
		if !silent {
			silent, err = stop()
		}
		if silent {
			err = s.destroy(context.Background(), reason)
		}
	}
	return err
}

// over reports whether the reason for which the sandbox ends still holds: meanwhile its life may have been
// made longer, or somebody may have used it. Precondition: s.mu is held.
func (s *Sandbox) over(reason string) bool {
	switch reason {
	case "life":
		return !time.Now().Before(s.due())
	case "idle":
		return s.idles() && s.idleLeft() <= 0
	}
	return true
}

// expireRetry is the time to wait after an expiry has failed.
const expireRetry = 5 * time.Second

// setLifetime changes when the sandbox expires, as far as the policy allows. Unlike a
// change of the state, which the sandbox itself shows, this is known only from the record:
// it is in force once it is written, and not at all if it can't be written.
func (s *Sandbox) setLifetime(ctx context.Context, life sandpit.Lifetime, p policy.Policy) error {
	if err := p.AllowLifetime(life, s.begun(), time.Now()); err != nil {
		return err
	}
	state, err := s.begins(ctx)
	if err != nil {
		return s.tooLate(err)
	}
	defer s.ends()
	if s.outlived() { // its processes are gone
		return s.tooLate(s.closedError())
	}
	if state == sandpit.StateCreated || state == sandpit.StateCreating || state == sandpit.StateFailed {
		return s.stateError(state)
	}
	s.touch()
	next := s.settings()
	if life.Life > 0 {
		next.deadline, next.expired = time.Now().Add(life.Life), false
		defer s.extends()()
	}
	switch {
	case life.Idle > 0:
		next.idle = life.Idle
	case life.Idle == sandpit.NoIdle:
		next.idle = 0
	}
	if life.OnExpiry != "" {
		next.onExpiry = life.OnExpiry
	}
	if err := s.saveSettings(ctx, &next); err != nil {
		if errors.Is(err, sandpit.ErrUnavailable) {
			s.saveLater() // what a disk that hangs has taken all the same is replaced
		}
		return s.tooLate(fmt.Errorf("changing the lifetime of sandbox %s: it is unchanged: %w", s.Name(), err))
	}
	if state == sandpit.StateRunning || state == sandpit.StateStopped {
		s.tellGuest(ctx)
	}
	s.event(sandpit.EventExtended, "")
	return nil
}

// extends keeps the sandbox from expiring while an extension that was asked for before the end is being written, which
// ends with a call of over.
func (s *Sandbox) extends() (over func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if now := time.Now(); now.Before(s.deadline) {
		s.extending = now.Add(extendPatience)
	}
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.extending = time.Time{}
		s.arm()
	}
}

// tooLate returns the error of a change of the lifetime, which says so if the sandbox is gone because its time was over.
func (s *Sandbox) tooLate(err error) error {
	s.mu.Lock()
	late := errors.Is(err, sandpit.ErrClosed) && !s.deadline.IsZero() && !time.Now().Before(s.due())
	s.mu.Unlock()
	if !late {
		return err
	}
	return sandpit.WithHint(fmt.Errorf("changing the lifetime of sandbox %s, whose time was over: %w", s.Name(), sandpit.ErrClosed), "create a new sandbox")
}

// SetLifetime changes when the sandbox expires, as Options.Policy allows.
func (s *Sandbox) SetLifetime(ctx context.Context, life sandpit.Lifetime) error {
	return s.setLifetime(ctx, life, s.engine.opts.Policy)
}

// tellGuest tells the guest how long it may live without an engine. A sandbox that ends
// with the engine does not need this.
func (s *Sandbox) tellGuest(ctx context.Context) {
	if !s.persistent {
		return
	}
	s.mu.Lock()
	l := client.Lifetime{Life: keptFor}
	if s.state != sandpit.StateStopped && !s.expired {
		l.Life = max(time.Until(s.deadline), 0) + lifeGrace + guestGrace
		if s.idle > 0 {
			l.Idle = s.idle + guestGrace
		}
		if s.onExpiry != sandpit.ExpiryRemove {
			l.Life, l.Idle = l.Life+keptFor, 0
		}
	}
	s.renewed = time.Now()
	s.mu.Unlock()
	if _, err := s.guest.SetLifetime(ctx, l); err != nil {
		_ = s.explain(err) // it has failed, if anything
	}
}

// guestForever removes the lifetime that the guest was told.
func (s *Sandbox) guestForever(ctx context.Context) error {
	if !s.persistent {
		return nil
	}
	_, err := s.guest.SetLifetime(ctx, client.Lifetime{})
	return err
}

// renew tells a guest that waits for an engine that there is one.
func (s *Sandbox) renew(now time.Time) {
	s.mu.Lock()
	due := (s.state == sandpit.StateStopped || s.state == sandpit.StateRunning && s.onExpiry != sandpit.ExpiryRemove) &&
		now.Sub(s.renewed) > renewal && !s.removing && !s.left
	s.mu.Unlock()
	if due {
		go func() {
			ctx, cancel := context.WithTimeout(context.Background(), guestGrace)
			defer cancel()
			s.tellGuest(ctx)
		}()
	}
}
