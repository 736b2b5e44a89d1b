package cgroup

import (
	"bytes"
	"fmt"
	"os"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/fault"
)

// freezeTime bounds how long Freeze waits. Each process needs a processor for a
// moment to stand still, which a busy machine may not give it for seconds.
const freezeTime = 10 * time.Second

// Freeze stops every process of the group and returns when they have stopped. If a process
// does not stop within ten seconds, because it waits in the kernel, Freeze thaws the group
// and returns an error that matches os.ErrDeadlineExceeded. If nothing can freeze here, the
// error matches sandpit.ErrUnsupported.
func (g *Group) Freeze() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.removed.Load() {
		return sandpit.ErrClosed
	}
	if _, err := g.freezeDir(); err != nil {
		return fault.Errorf(sandpit.ErrUnsupported, "freezing: this user has no cgroup freezer on this machine")
	}
	if err := g.setFrozen(true); err != nil {
		return fmt.Errorf("freezing cgroup %s: %w", g.id, err)
	}
	is, err := g.awaitFrozen()
	if err == nil && !is {
		err = os.ErrDeadlineExceeded
	}
	if err != nil {
		_ = g.setFrozen(false)
		return fmt.Errorf("freezing cgroup %s: %w", g.id, err)
	}
	return nil
}

// awaitFrozen reports whether every process of the group is stopped. While some are being
// stopped, it waits, for at most freezeTime.
func (g *Group) awaitFrozen() (bool, error) {
	deadline := time.Now().Add(freezeTime)
	for pause := firstPause; ; pause = min(2*pause, longPause) {
		is, begun, err := g.frozen()
		if err != nil || is || !begun || !time.Now().Before(deadline) {
			return is, err
		}
		time.Sleep(pause)
	}
}

// Thaw resumes a frozen group. Thawing a running group is a no-op.
func (g *Group) Thaw() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.removed.Load() {
		return sandpit.ErrClosed
	}
	if _, err := g.freezeDir(); err != nil {
		return nil // it can't have been frozen
	}
	if err := g.setFrozen(false); err != nil {
		return fmt.Errorf("thawing cgroup %s: %w", g.id, err)
	}
	return nil
}

// Frozen reports whether every process of the group is stopped. If the group is being frozen,
// it waits for the kernel, for at most ten seconds: on a busy machine a frozen group may
// look for a moment as if a process ran.
func (g *Group) Frozen() (bool, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.removed.Load() {
		return false, sandpit.ErrClosed
	}
	if _, err := g.freezeDir(); err != nil {
		return false, nil
	}
	return g.awaitFrozen()
}

// frozen reports whether every process of the group is stopped, and whether the kernel was
// told to stop them.
func (g *Group) frozen() (is, begun bool, err error) {
	d, err := g.freezeDir()
	if err != nil {
		return false, false, err
	}
	var buf [256]byte
	if d.v2 {
		data, err := readSmall(d.path+"/cgroup.events", buf[:])
		if is = field(data, "frozen") == 1; is || err != nil {
			return is, is, err
		}
		data, err = readSmall(d.path+"/cgroup.freeze", buf[:])
		return false, bytes.HasPrefix(data, []byte("1")), err
	}
	data, err := readSmall(d.path+"/freezer.state", buf[:])
	if err == nil && bytes.HasPrefix(data, []byte("FREEZING")) {
		// v1 may miss a process that was being forked: it is asked again.
		return false, true, g.setFrozen(true)
	}
	is = bytes.HasPrefix(data, []byte("FROZEN"))
	return is, is, err
}
