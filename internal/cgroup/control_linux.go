package cgroup

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/sandpit-dev/sandpit"
	"golang.org/x/sys/unix"
)

// Kill sends SIGKILL to every process of the group, forking ones included.
// They may take a moment to be gone; Remove waits for that. On kernels before
// 5.14 and without v2 it freezes the group, signals what is in it, and repeats
// that until it is empty.
func (g *Group) Kill() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.removed.Load() {
		return nil
	}
	if err := g.kill(time.Now().Add(removeTime)); err != nil {
		return fmt.Errorf("killing cgroup %s: %w", g.id, err)
	}
	return nil
}

func (g *Group) kill(deadline time.Time) error {
	if len(g.dirs) == 0 {
		return nil
	}
	if file := g.KillFile(); file != "" {
		err := writeFile(file, "1")
		if err == nil || gone(err) {
			return nil
		}
		if !errors.Is(err, unix.EOPNOTSUPP) {
			return err
		}
	}
	return g.killEach(deadline)
}

// killEach kills without cgroup.kill. A fork that runs ahead of the signals is
// stopped by the freezer where there is one, and by pids.max where there is one.
func (g *Group) killEach(deadline time.Time) error {
	procs := g.dirs[0].path + "/cgroup.procs"
	for _, d := range g.dirs {
		if d.ctrls&pids != 0 {
			_ = writeFile(d.path+"/pids.max", "0")
		}
	}
	wait := 100 * time.Microsecond
	for {
		frozen := g.setFrozen(true) == nil
		data, err := readFile(procs)
		if err != nil {
			_ = g.setFrozen(false)
			if gone(err) {
				return nil
			}
			return err
		}
		list := pidLines(data)
		for _, pid := range list {
			// 0 is a process that our pid namespace can't see, or our own
			// process group to kill(2).
			if pid > 1 && pid < 1<<31 {
				_ = unix.Kill(int(pid), unix.SIGKILL)
			}
		}
		if frozen {
			// v1: what is frozen does not die of a signal.
			if err := g.setFrozen(false); err != nil && !gone(err) {
				return err
			}
		}
		if len(list) == 0 {
			return nil
		}
		if !time.Now().Before(deadline) {
			return fmt.Errorf("%d processes do not die: %w", len(list), unix.EBUSY)
		}
		time.Sleep(wait)
		wait = min(2*wait, 4*time.Millisecond)
	}
}

// freezeTime bounds how long Freeze waits.
const freezeTime = 2 * time.Second

// Freeze stops every process of the group and returns when they stand still.
// When one does not within two seconds, because it waits in the kernel, the
// group is thawed again and the error matches os.ErrDeadlineExceeded.
func (g *Group) Freeze() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.removed.Load() {
		return sandpit.ErrClosed
	}
	if err := g.setFrozen(true); err != nil {
		return fmt.Errorf("freezing cgroup %s: %w", g.id, err)
	}
	deadline := time.Now().Add(freezeTime)
	wait := 50 * time.Microsecond
	for {
		is, err := g.frozen()
		if err != nil || !is && !time.Now().Before(deadline) {
			_ = g.setFrozen(false)
			if err == nil {
				err = os.ErrDeadlineExceeded
			}
			return fmt.Errorf("freezing cgroup %s: %w", g.id, err)
		}
		if is {
			return nil
		}
		time.Sleep(wait)
		wait = min(2*wait, 4*time.Millisecond)
	}
}

// Thaw lets a frozen group run on.
func (g *Group) Thaw() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.removed.Load() {
		return sandpit.ErrClosed
	}
	if err := g.setFrozen(false); err != nil {
		return fmt.Errorf("thawing cgroup %s: %w", g.id, err)
	}
	return nil
}

// freezeDir returns the directory that freezes.
func (g *Group) freezeDir() (*groupDir, error) {
	for i := range g.dirs {
		d := &g.dirs[i]
		if d.v2 && g.l.kernel >= hasFreeze || d.ctrls&freezer != 0 {
			return d, nil
		}
	}
	return nil, errors.ErrUnsupported
}

func (g *Group) setFrozen(on bool) error {
	d, err := g.freezeDir()
	switch {
	case err != nil:
		return err
	case d.v2 && on:
		return writeFile(d.path+"/cgroup.freeze", "1")
	case d.v2:
		return writeFile(d.path+"/cgroup.freeze", "0")
	case on:
		return writeFile(d.path+"/freezer.state", "FROZEN")
	default:
		return writeFile(d.path+"/freezer.state", "THAWED")
	}
}

func (g *Group) frozen() (bool, error) {
	d, err := g.freezeDir()
	if err != nil {
		return false, err
	}
	var buf [256]byte
	if d.v2 {
		data, err := readSmall(d.path+"/cgroup.events", buf[:])
		return field(data, "frozen") == 1, err
	}
	data, err := readSmall(d.path+"/freezer.state", buf[:])
	if err == nil && bytes.HasPrefix(data, []byte("FREEZING")) {
		// v1 may miss a process that was being forked: it is asked again.
		err = g.setFrozen(true)
	}
	return bytes.HasPrefix(data, []byte("FROZEN")), err
}
