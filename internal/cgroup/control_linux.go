package cgroup

import (
	"bytes"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// patience is how long processes that were killed are waited for: they may
// take long to be gone on a slow or a busy machine, so what is bounded is the
// time in which not one of them ends.
type patience struct {
	left  int // the fewest seen
	until time.Time
}

// removeTime is how long Remove waits without any process ending. One that was
// killed needs a processor to end on, which a busy machine may not give it for
// seconds.
const removeTime = 30 * time.Second

// over reports whether the wait is over, with so many processes left.
func (p *patience) over(left int) bool {
	now := time.Now()
	if p.until.IsZero() || left < p.left {
		p.left, p.until = left, now.Add(removeTime)
	}
	return now.After(p.until)
}

// The pauses between looking again, each twice as long as the one before.
const (
	firstPause = 50 * time.Microsecond
	longPause  = 4 * time.Millisecond
)

// killAgain is when a group that is not empty yet is killed once more: should
// something have joined it.
const killAgain = 100 * time.Millisecond

// empty kills what is in the group until dir, one of its directories, can be
// removed, and removes it. The kernel refuses that until the last process has
// left, and a process leaves a while after it was killed.
func (g *Group) empty(dir groupDir) error {
	var wait patience
	var killed time.Time
	for pause := firstPause; ; pause = min(2*pause, longPause) {
		if time.Since(killed) >= killAgain {
			if err := g.kill(); err != nil {
				return err
			}
			killed = time.Now()
		}
		removeBelow(dir.path, maxDepth)
		err := rmdir(dir.path)
		if !errors.Is(err, unix.EBUSY) {
			return err
		}
		procs, rerr := dir.procs()
		if rerr != nil && !gone(rerr) {
			return rerr
		}
		if n := bytes.Count(procs, []byte{'\n'}); wait.over(n) {
			return fmt.Errorf("%d processes did not exit after SIGKILL: %w", n, err)
		}
		time.Sleep(pause)
	}
}

// Kill sends SIGKILL to every process of the group, also while it is frozen. They may
// take a moment to be gone. Killing a removed group is a no-op.
func (g *Group) Kill() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.removed.Load() {
		return nil
	}
	if err := g.kill(); err != nil {
		return fmt.Errorf("killing cgroup %s: %w", g.id, err)
	}
	return nil
}

// kill sends SIGKILL to every process of the group, forking ones included.
// They may take a moment to be gone. On kernels before 5.14 and without v2 it
// freezes the group, signals what is in it, and repeats that until it is empty.
func (g *Group) kill() error {
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
	return g.killEach()
}

// killEach kills without cgroup.kill. A fork that runs ahead of the signals is
// stopped by the freezer where there is one, and by pids.max where there is one.
func (g *Group) killEach() error {
	for _, d := range g.dirs {
		if d.ctrls&pids != 0 {
			_ = writeFile(d.path+"/pids.max", "0")
		}
	}
	var wait patience
	for pause := firstPause; ; pause = min(2*pause, longPause) {
		frozen := g.setFrozen(true) == nil
		data, err := g.dirs[0].procs()
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
		if wait.over(len(list)) {
			return fmt.Errorf("%d processes did not exit after SIGKILL: %w", len(list), unix.EBUSY)
		}
		time.Sleep(pause)
	}
}

// procs reads the processes of the group, one a line, from one of its directories. On v1
// those of the child are not in the list of the directory itself.
func (d *groupDir) procs() ([]byte, error) {
	list, err := readFile(d.path + "/cgroup.procs")
	if err != nil || d.v2 || !d.work {
		return list, err
	}
	more, err := readFile(d.path + work + "/cgroup.procs")
	if gone(err) {
		err = nil
	}
	return append(list, more...), err
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
