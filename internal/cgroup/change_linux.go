package cgroup

import (
	"cmp"
	"errors"
	"fmt"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/fault"
	"github.com/sandpit-dev/sandpit/internal/notation"
)

// SameKinds reports whether l and m limit the same resources, whatever the values.
func (l Limits) SameKinds(m Limits) bool {
	return (l.Memory > 0) == (m.Memory > 0) && (l.CPUs > 0) == (m.CPUs > 0) && (l.Pids > 0) == (m.Pids > 0)
}

// SetLimits is Change of a group that this process has made, to limits on the same resources:
// otherwise the error matches sandpit.ErrInvalid and nothing is changed.
func (g *Group) SetLimits(limits Limits) error {
	g.mu.Lock()
	mine, was := !g.adopted, g.limits
	g.mu.Unlock()
	switch limits.Devices = was.Devices; {
	case !mine || !limits.SameKinds(was):
		return fault.Errorf(sandpit.ErrInvalid, "changing the limits of cgroup %s: the set of limits can't change", g.id)
	case limits == was && !g.removed.Load():
		return nil
	}
	return g.Change(limits)
}

// Change changes the limits of a group that are not 0, also of one that another process has
// made. It ignores Limits.Devices. The error matches sandpit.ErrUnsupported if the group has
// no such limit, and sandpit.ErrState if more memory is in use than the new limit allows, of
// which the kernel can free none. Both change nothing, and no process is killed.
func (g *Group) Change(limits Limits) error {
	if err := limits.check(); err != nil {
		return err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.removed.Load() {
		return sandpit.ErrClosed
	}
	asked := map[ctrls]bool{memory: limits.Memory > 0, cpu: limits.CPUs > 0, pids: limits.Pids > 0}
	var has ctrls
	for _, d := range g.dirs {
		has |= d.ctrls
		if d.ctrls&memory != 0 && asked[memory] && !d.v2 && g.l.placeOf(d.path).dir == "" {
			// Whether swap counts as well is known of that place alone.
			return fault.Errorf(sandpit.ErrUnsupported, "changing the limits of cgroup %s: it is where this process makes none", g.id)
		}
	}
	for i, c := range [len(limited)]ctrls{memory, cpu, pids} {
		if asked[c] && has&c == 0 {
			return fault.Errorf(sandpit.ErrUnsupported, "changing the limits of cgroup %s: it has no limit of %s", g.id, limited[i].limit)
		}
	}
	// Memory comes first: the others never fail for what is in use.
	for _, some := range [...]ctrls{memory, cpu | pids} {
		for _, d := range g.dirs {
			if d.ctrls &= some; d.ctrls&memory != 0 && asked[memory] {
				err := d.makeRoom(limits.Memory)
				if errors.Is(err, sandpit.ErrState) {
					return err // the caller says of what
				}
				if err != nil {
					return fmt.Errorf("changing the limits of cgroup %s: %w", g.id, err)
				}
			}
			for c, is := range asked {
				if !is {
					d.ctrls &^= c
				}
			}
			if err := d.limit(g.l.placeOf(d.path), limits); err != nil {
				return fmt.Errorf("changing the limits of cgroup %s: %w", g.id, err)
			}
		}
	}
	if limits.Memory > 0 {
		g.limits.Memory = limits.Memory
	}
	if limits.CPUs > 0 {
		g.limits.CPUs = limits.CPUs
	}
	if limits.Pids > 0 {
		g.limits.Pids = limits.Pids
	}
	return nil
}

// makeRoom frees memory until no more than a limit is in use. On v1 the kernel refuses a
// limit that is too low by itself; on v2 it would kill processes. There, memory.high frees
// what can be freed, and kills nothing.
func (d *groupDir) makeRoom(limit int64) error {
	inUse := func(file string) (int64, error) {
		var buf [32]byte
		data, err := readSmall(d.path+file, buf[:])
		if err != nil {
			return 0, err
		}
		return number(data), nil
	}
	refuse := func(n int64) error {
		return sandpit.WithHint(fault.Errorf(sandpit.ErrState, "%s of memory is in use, which is more than %s", notation.FormatSize(n), notation.FormatSize(limit)),
			"end processes or delete files first, or use a higher limit")
	}
	if !d.v2 {
		err := writeFile(d.path+"/memory.limit_in_bytes", strconv.FormatInt(limit, 10))
		if errors.Is(err, unix.EBUSY) {
			n, err := inUse("/memory.usage_in_bytes")
			return cmp.Or(err, refuse(n))
		}
		if errors.Is(err, unix.EINVAL) {
			err = nil // it is more than that with swap, which limit raises first
		}
		return err
	}
	n, err := inUse("/memory.current")
	// A signal to this thread ends the kernel's work early: it is repeated while it frees something.
	for last := n + 1; err == nil && n > limit && n < last; {
		last = n
		if err = writeFile(d.path+"/memory.high", strconv.FormatInt(limit, 10)); err == nil {
			n, err = inUse("/memory.current")
		}
	}
	if err == nil && n > limit {
		err = refuse(n)
	}
	// Also if there was nothing to free: a process that was killed here has left it low.
	return cmp.Or(writeFile(d.path+"/memory.high", "max"), err)
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
