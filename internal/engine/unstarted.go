package engine

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/fault"
)

// shelve makes a prepared sandbox one that was never started: it has a name, a record and an image,
// and no capacity. entered is set once its charge is returned by its removal.
func (s *Sandbox) shelve(ctx context.Context, making *task, t *Tenant, spec sandpit.Spec, entered *bool) error {
	s.state, s.unstarted, s.demand = sandpit.StateCreated, &spec, demand{}
	making.concerns(s)
	s.change <- struct{}{} // nobody starts it before it has a record
	if err := s.engine.admit(s, t, spec.Name != ""); err != nil {
		s.lease.Release()
		return err
	}
	*entered = true
	making.enter("record")
	err := s.save(ctx)
	if err == nil && s.persistent {
		err = s.engine.opts.Images.Keep(s.id, s.lease)
	}
	close(s.made)
	s.ends()
	if err == nil && !making.settle() {
		err = making.stuckError()
	}
	if err == nil && s.present() == "" {
		err = s.closedError()
	}
	if err = explainCancel(ctx, s.Name(), err); err != nil {
		s.callOff()
		_ = s.takeDown(context.WithoutCancel(ctx), "not created: "+err.Error())
		return err
	}
	s.event(sandpit.EventCreated, "")
	return nil
}

// startFirst starts a sandbox that was never started, as the policy of a tenant allows now. It ends
// as create does when ctx ends or it takes too long. After an error it is as before.
func (s *Sandbox) startFirst(ctx context.Context, t *Tenant) error {
	if t.locked != nil {
		return fault.Errorf(sandpit.ErrForbidden, "starting sandbox %q: %w", s.Name(), t.locked)
	}
	state, err := s.begins(ctx)
	if err != nil {
		return err
	}
	if state != sandpit.StateCreated { // somebody else has started it
		s.ends()
		return s.restart(ctx, t)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	making := &task{what: "starting", about: "sandbox " + s.Name(), namespace: s.namespace, sandbox: s, cancel: cancel}
	s.mu.Lock()
	spec := s.unstarted
	s.engine.start(ctx, making, s.engine.opts.Patience.Create, func(ctx context.Context) error {
		defer s.ends()
		err := s.makeFirst(ctx, making, t)
		if err != nil {
			err = s.unmake(explainCancel(ctx, s.Name(), err), spec)
		}
		return err
	})
	s.making, s.cancel, s.state = making, cancel, sandpit.StateCreating
	removing := s.removing
	s.mu.Unlock()
	if removing { // which has called off something else
		cancel(errRemoved)
	}
	if err := making.wait(context.Background()); err != nil {
		return explainShortage(err)
	}
	return nil
}

// makeFirst does the work of startFirst. Precondition: s.change is held.
func (s *Sandbox) makeFirst(ctx context.Context, making *task, t *Tenant) error {
	e := s.engine
	giveBack, err := e.try(ctx, making, s.namespace)
	if err != nil {
		return err
	}
	defer giveBack()
	s.mu.Lock()
	spec, lease := *s.unstarted, s.lease
	s.mu.Unlock()
	r, err := e.resolve(ctx, making, t, spec, false)
	if err != nil {
		return err
	}
	if len(lease.Rootfs().Layers) == 0 { // an earlier engine had it
		if lease, err = e.opts.Images.Kept(s.id); errors.Is(err, sandpit.ErrUnsupported) {
			lease, err = e.leaseFor(ctx, making, t, r.spec, giveBack)
		}
		if err != nil {
			return err
		}
		s.mu.Lock()
		s.lease = lease
		s.mu.Unlock()
	}
	s.saving.Lock() // so that nothing else changes the charge
	s.mu.Lock()
	was := s.cost
	s.mu.Unlock()
	p, plan, config, err := s.prepare(t, r, lease)
	if err == nil {
		s.mu.Lock()
		p.info.Image = s.info.Image // as it was resolved
		s.prepared, s.newSecret = p, true
		s.mu.Unlock()
		s.refund(was)
	}
	s.saving.Unlock()
	if err != nil {
		return err
	}
	giveBack()
	making.limit(0) // there may be no room for long
	making.enter("waiting for capacity")
	needs := demandOf(plan.Limits)
	if err := e.gate.enter(ctx, s.namespace, needs, 0); err != nil {
		return err
	}
	s.demand = needs
	making.limit(e.opts.Patience.Create)
	if giveBack, err = e.try(ctx, making, s.namespace); err != nil {
		return err
	}
	defer giveBack()
	e.pool.enter()
	defer e.pool.leave()
	if err := s.make(ctx, plan, config, func(string) {}); err != nil {
		return err
	}
	return s.begin(ctx)
}

// unmake undoes what makeFirst has done before it failed, and returns its error. If something can't
// be undone, the sandbox has failed.
func (s *Sandbox) unmake(err error, spec *sandpit.Spec) error {
	s.leaveNetwork()
	s.closeGuest()
	if s.instance != nil {
		if left := s.instance.Destroy(context.Background()); left != nil {
			s.failing.Do(func() {})
			s.mu.Lock()
			s.state, s.reason, s.unstarted = sandpit.StateFailed, "starting it failed, and can't be undone: "+left.Error(), nil
			s.deadline = time.Now().Add(lostGrace)
			s.arm()
			s.mu.Unlock()
			_ = s.saveChange(context.Background())
			return errors.Join(err, left)
		}
	}
	if s.logs != nil {
		_ = s.logs.Remove()
	}
	s.engine.gate.leave(&s.demand)
	s.mu.Lock()
	s.instance, s.guest, s.logs = nil, nil, nil
	s.state, s.reason = sandpit.StateCreated, ""
	begun := s.unstarted == nil // its record may say that
	s.unstarted, s.began, s.deadline = spec, time.Time{}, time.Time{}
	s.arm()
	s.mu.Unlock()
	if begun {
		_ = s.saveChange(context.Background())
	}
	return err
}

// adoptUnstarted adopts a sandbox that was never started. What a killed engine has left of an attempt
// is removed.
func (s *Sandbox) adoptUnstarted(ctx context.Context, patience time.Time) (adopted, error) {
	err := s.instance.Destroy(ctx)
	for errors.Is(err, sandpit.ErrExists) && time.Now().Before(patience) && ctx.Err() == nil {
		time.Sleep(ownerRetry) // until what that engine was making is dead
		err = s.instance.Destroy(ctx)
	}
	if err != nil {
		return adopted{}, fmt.Errorf("removing what is left of an attempt to start it: %w", err)
	}
	s.mu.Lock()
	s.instance, s.state = nil, sandpit.StateCreated
	s.mu.Unlock()
	s.ready()
	return adopted{found: foundLiving}, nil
}

// begun returns when the sandbox was started for the first time.
func (s *Sandbox) begun() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.began.IsZero() {
		return s.began
	}
	return s.created
}
