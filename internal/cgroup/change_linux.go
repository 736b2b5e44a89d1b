package cgroup

import (
	"fmt"
	"path/filepath"

	"github.com/sandpit-dev/sandpit"
)

// SameKinds reports whether l and m limit the same things, whatever the figures.
func (l Limits) SameKinds(m Limits) bool {
	return (l.Memory > 0) == (m.Memory > 0) && (l.CPUs > 0) == (m.CPUs > 0) && (l.Pids > 0) == (m.Pids > 0)
}

// SetLimits changes the figures of a group's limits. It must be one that this
// process has made, and limits of the same kinds as then: otherwise the error
// matches sandpit.ErrInvalid and nothing is changed. Limits.Devices means
// nothing here. Less memory than is in use is an error, or, with v2, makes the
// kernel kill something in the group; the caller sees to that.
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
		return fmt.Errorf("changing the limits of cgroup %s: the set of limits can't change: %w", g.id, sandpit.ErrInvalid)
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
