package cgroup

import (
	"fmt"
	"path/filepath"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/fault"
)

// SameKinds reports whether l and m limit the same resources, whatever the values.
func (l Limits) SameKinds(m Limits) bool {
	return (l.Memory > 0) == (m.Memory > 0) && (l.CPUs > 0) == (m.CPUs > 0) && (l.Pids > 0) == (m.Pids > 0)
}

// SetLimits changes the values of a group's limits. This process must have made the group,
// with limits on the same resources: otherwise the error matches sandpit.ErrInvalid and
// nothing is changed. It ignores Limits.Devices. Setting less memory than is in use is an
// error or, with v2, makes the kernel kill a process of the group; the caller must avoid
// it.
func (g *Group) SetLimits(limits Limits) error {
	if err := limits.check(); err != nil {
		return err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.removed.Load() {
		return sandpit.ErrClosed
	}
	if g.adopted || !limits.SameKinds(g.limits) {
		return fault.Errorf(sandpit.ErrInvalid, "changing the limits of cgroup %s: the set of limits can't change", g.id)
	}
	if limits.Devices = g.limits.Devices; limits == g.limits {
		return nil
	}
	for _, d := range g.dirs {
		d.ctrls &^= devices
		if err := d.limit(g.l.placeOf(d.path), limits); err != nil {
			return fmt.Errorf("changing the limits of cgroup %s: %w", g.id, err)
		}
	}
	g.limits = limits
	return nil
}

// placeOf returns the place in which a group's directory was made.
func (l *Layout) placeOf(path string) *place {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range l.places {
		if p := &l.places[i]; p.dir == filepath.Dir(path) {
			return p
		}
	}
	return &place{}
}
