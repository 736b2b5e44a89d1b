package engine

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/driver"
	"github.com/sandpit-dev/sandpit/internal/fault"
	"github.com/sandpit-dev/sandpit/internal/feature"
	"github.com/sandpit-dev/sandpit/internal/ledger"
	"github.com/sandpit-dev/sandpit/internal/policy"
)

// Update changes the sandbox, as Options.Policy allows. See sandpit.Lifecycle.
func (s *Sandbox) Update(ctx context.Context, c sandpit.Change) error {
	return s.update(ctx, c, s.engine.opts.Policy)
}

// update changes the name, labels and limits of the sandbox: all of them, or none. Like a
// change of the lifetime it is in force once it is written. Limits are set before, so that
// the record never says what is not enforced.
func (s *Sandbox) update(ctx context.Context, c sandpit.Change, p policy.Policy) error {
	failed := func(err error) error {
		return fmt.Errorf("changing sandbox %q: %w", s.Name(), err)
	}
	if err := policy.CheckChange(c); err != nil {
		return failed(err)
	}
	state, err := s.begins(ctx)
	if err != nil {
		return err
	}
	defer s.ends()
	if state == sandpit.StateCreating || state == sandpit.StateFailed || state == sandpit.StateCreated && c.Limits != (sandpit.Limits{}) {
		return s.stateError(state)
	}
	s.touch()
	was := s.settings()
	next := was
	if next.labels, next.limits, err = p.Change(c, was.labels, was.limits); err != nil {
		return failed(err)
	}
	if limits := feature.Required(sandpit.Spec{Limits: c.Limits}); len(limits) > 0 {
		info, _ := s.describe()
		if err := s.engine.opts.Driver.Probe(ctx).NegotiateChange(limits, info.NotEnforced); err != nil {
			return failed(err)
		}
	}
	if c.Name != "" {
		next.name = c.Name
	}
	if c.Limits != (sandpit.Limits{}) {
		next.changing = false
	}
	if err := s.changeTo(ctx, was, next); err != nil {
		return failed(err)
	}
	s.event(sandpit.EventUpdated, "")
	return nil
}

// changeTo puts other settings in force. After an error the former ones are. Precondition:
// s.change is held.
func (s *Sandbox) changeTo(ctx context.Context, was, next settings) (err error) {
	var undo []func()
	defer func() {
		for i := range undo {
			if err != nil {
				undo[len(undo)-1-i]()
			}
		}
	}()
	more := ledger.Labels(next.labels) - ledger.Labels(was.labels)
	if more > 0 {
		if err := s.pay(more); err != nil {
			return err
		}
		undo = append(undo, func() { s.refund(more) })
	}
	release := s.nameLock
	if next.name != was.name {
		if err := s.engine.rename(s, next.name); err != nil {
			return err
		}
		undo = append(undo, func() { s.engine.unname(s, next.name) })
		if !s.persistent {
			lock, err := lockName(s.engine.opts.Images.Dir(), s.called(next.name).String())
			if errors.Is(err, sandpit.ErrExists) {
				return nameTaken()
			}
			if err != nil {
				return err
			}
			s.nameLock = lock
			undo = append(undo, func() { lock(); s.nameLock = release })
		}
	}
	limits := next.limits != was.limits || next.changing != was.changing
	if limits {
		gate := &s.engine.gate
		if err := gate.hold(s.namespace, &s.demand, next.limits.Memory, next.limits.CPUs); err != nil {
			return err
		}
		undone := true
		undo = append(undo, func() {
			if undone { // otherwise either limits may be in force
				gate.settle(&s.demand, was.limits.Memory, was.limits.CPUs)
			}
		})
		began := was
		began.changing = true // if this engine is killed, the next one sets the limits of the record
		if err := s.saveSettings(ctx, &began); err != nil {
			return err
		}
		changed := policy.Differing(was.limits, next.limits)
		if was.changing {
			changed = s.changeable(ctx)
		}
		undo = append(undo, func() {
			later := context.WithoutCancel(ctx)
			undone = s.setLimits(later, policy.Only(was.limits, changed)) == nil
			if !undone || s.saveSettings(later, &was) != nil {
				s.saveLater()
			}
		})
		if err := s.setLimits(ctx, policy.Only(next.limits, changed)); err != nil {
			return err
		}
	}
	if err := s.saveSettings(ctx, &next); err != nil {
		if errors.Is(err, sandpit.ErrUnavailable) {
			s.saveLater() // what a disk that hangs has taken all the same is replaced
		}
		return err
	}
	if limits {
		s.engine.gate.settle(&s.demand, next.limits.Memory, next.limits.CPUs)
	}
	if more < 0 {
		s.refund(-more)
	}
	if next.name != was.name {
		s.engine.unname(s, was.name)
		s.engine.unname(s, next.name) // if it was removed meanwhile
		if !s.persistent && release != nil {
			release()
		}
	}
	return nil
}

// setLimits has the driver enforce the limits that are not 0.
func (s *Sandbox) setLimits(ctx context.Context, limits sandpit.Limits) error {
	limiter, ok := s.instance.(driver.Limiter)
	if !ok {
		return fault.Errorf(sandpit.ErrUnsupported, "the driver %s can't change the limits of a sandbox", s.info.Driver)
	}
	return limiter.SetLimits(ctx, limits)
}

// changeable returns which limits of the sandbox can be changed.
func (s *Sandbox) changeable(ctx context.Context) feature.Set {
	info, _ := s.describe()
	set := maps.Clone(s.engine.opts.Driver.Probe(ctx).Changeable)
	for _, g := range info.NotEnforced {
		delete(set, feature.Feature(g.What))
	}
	return set
}

// restoreLimits sets the limits of the record again, after an engine that was killed while it
// changed them. They are those before the change.
func (s *Sandbox) restoreLimits(ctx context.Context) {
	now := s.settings()
	if !now.changing {
		return
	}
	err := s.setLimits(ctx, policy.Only(now.limits, s.changeable(ctx)))
	if err != nil {
		s.mu.Lock()
		s.info.NotEnforced = append(slices.Clone(s.info.NotEnforced), sandpit.Gap{
			What: string(feature.Memory), Why: "a change of the limits was interrupted, and could not be undone: " + err.Error(), Fix: "create a new sandbox",
		})
		s.mu.Unlock()
	}
	now.changing = false
	if s.saveSettings(ctx, &now) != nil {
		s.saveLater()
	}
}
