package process

import (
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit/internal/guest/procfs"
	"github.com/sandpit-dev/sandpit/internal/guest/spawn"
)

// killPatience is the time that a kill waits for the killed processes to be gone.
// Only a process that hangs inside the kernel takes long.
const killPatience = 5 * time.Second

// killTree kills everything below a helper, with the commands of sudo that it has asked for, and reports whether all
// was gone within killPatience. It goes on trying in either case.
//
// The helper is the subreaper of all that its program has started, so nothing
// can leave its tree, and the tree gets no more commands. First everything is stopped, until nothing new is seen:
// what is stopped can't fork. Then it is killed. The helper ends when nothing is
// left below it, and is killed if it can't reap what is. All trees that end at the same time are killed together.
func (t *Table) killTree(p *spawn.Proc) bool {
	r := &t.reaper
	r.mu.Lock()
	dying := r.trees[p.Helper()]
	if dying == nil || r.helpers[p.Helper()] != p { // its number may be another's now
		r.mu.Unlock()
		return true
	}
	dying.dying = true
	if !r.killing {
		r.killing = true
		go r.killDying()
	}
	r.mu.Unlock()
	select {
	case r.kick <- struct{}{}:
	default:
	}
	patience := time.After(killPatience)
	for left := r.someOf(dying); left != nil; left = r.someOf(dying) {
		select {
		case <-left.gone:
		case <-patience:
			return false
		}
	}
	return true
}

// someOf returns a tree of owner, itself or one of its commands, or nil if there is none.
func (r *reaper) someOf(owner *tree) *tree {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, t := range r.trees {
		if t.within(owner) {
			return t
		}
	}
	return nil
}

// killDying kills dying trees until there are none.
func (r *reaper) killDying() {
	for pause := time.Millisecond; r.killOnce(); pause = min(2*pause, 100*time.Millisecond) {
		select {
		case <-time.After(pause):
		case <-r.kick: // for one that has just begun to
			pause = time.Millisecond
		}
	}
}

// killOnce kills what is below the helpers of all dying trees now, and reports false if there are none.
func (r *reaper) killOnce() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	var helpers []int
	for pid, t := range r.trees {
		if t.ends() {
			helpers = append(helpers, pid)
		}
	}
	if len(helpers) == 0 {
		r.killing = false
		return false
	}
	_, left := stopAndKill(helpers, nil)
	for _, pid := range helpers {
		signal := unix.SIGCONT // it may have been stopped, by a program of its own uid
		if unreapable(pid, left) {
			signal = unix.SIGKILL
		}
		_ = unix.Kill(pid, signal)
	}
	return true
}

// unreapable reports whether all that is below a helper is dead, but some of it is traced: only its tracer, which may be of
// another command, can reap that. What is dead has no children, so all of it are the helper's.
func unreapable(helper int, below []procfs.Process) bool {
	held := false
	for _, p := range below {
		if p.Parent != helper {
			continue
		}
		if p.Lives() {
			return false
		}
		_, traced := procfs.Threads(p.PID)
		held = held || traced
	}
	return held
}

// treeOf returns the tree that a process is in, or nil if it is in none that gets commands of sudo.
func (r *reaper) treeOf(pid int) *tree {
	r.mu.Lock()
	defer r.mu.Unlock()
	// A parent may end while its child is looked at, which then has another one.
	for range 3 {
		for at := pid; at > 1; {
			if t := r.trees[at]; t != nil {
				if t.ends() {
					return nil
				}
				return t
			}
			at = procfs.Parent(at)
		}
	}
	return nil
}

// killOrphans kills all orphans: the children of the guest that are not helpers, which exist only if a helper was
// killed, with all below them. It returns when they are gone, or after killPatience. It goes on trying in either case.
func (t *Table) killOrphans() {
	r := &t.reaper
	r.mu.Lock()
	r.orphaned = true
	if r.hunt == nil {
		r.hunt = make(chan struct{})
		go r.huntOrphans()
	}
	done := r.hunt
	r.mu.Unlock()
	select {
	case <-done:
	case <-time.After(killPatience):
	}
}

// killOrphansLeft is killOrphans if there may be orphans.
func (t *Table) killOrphansLeft() {
	t.reaper.mu.Lock()
	orphaned := t.reaper.orphaned
	t.reaper.mu.Unlock()
	if orphaned {
		t.killOrphans()
	}
}

// huntOrphans kills orphans until there are none.
func (r *reaper) huntOrphans() {
	for pause := time.Millisecond; ; pause = min(2*pause, 100*time.Millisecond) {
		if r.noOrphans() {
			return
		}
		time.Sleep(pause)
	}
}

// noOrphans kills orphans, and ends the hunt if there was none. It spares helpers alone. So the helper that a zygote
// has just forked is killed if the guest does not know it yet: that program is started without the zygote.
func (r *reaper) noOrphans() bool {
	r.making.Lock() // no helper is made that is not known yet
	defer r.making.Unlock()
	r.mu.Lock()
	defer r.mu.Unlock()
	if lived, _ := stopAndKill([]int{os.Getpid()}, func(pid int) bool { return r.helpers[pid] != nil || r.young[pid] }); lived > 0 {
		return false
	}
	r.orphaned = false
	close(r.hunt)
	r.hunt = nil
	return true
}

// KillAll kills everything below the guest, and reports whether nothing lives and nothing is being started, within
// killPatience.
func (t *Table) KillAll() bool {
	for deadline := time.Now().Add(killPatience); ; time.Sleep(time.Millisecond) {
		// A command of sudo is counted before it is looked whether the process that asks lives. So if nothing lives in
		// between, no other begins.
		if idle := t.idle(); t.reaper.killAll() && idle && t.idle() {
			return true
		}
		if !time.Now().Before(deadline) {
			return false
		}
	}
}

// idle reports whether nothing is being started. It does not wait for the reaper, which others may keep busy.
func (t *Table) idle() bool { return t.reaper.starting.Load() == 0 && t.sudos.Load() == 0 }

// killAll sends SIGKILL to everything below the guest, and reports whether there was nothing.
func (r *reaper) killAll() bool {
	if os.Getpid() == 1 {
		return unix.Kill(-1, unix.SIGKILL) == unix.ESRCH // from the kernel, which misses none that forks meanwhile
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	lived, _ := stopAndKill([]int{os.Getpid()}, nil)
	return lived == 0
}

// stopAndKill stops and then kills all descendants of roots, but not those for
// which spare is true nor what is below them. It returns how many of them lived when it saw them, and what
// it saw last. The dead do not count: whoever traces one can keep it from being reaped.
//
// A process outside may wake what was stopped, which then forks on. After stopRounds, what is seen
// is killed at once. After killRounds, there may be some left: the caller tries again.
func stopAndKill(roots []int, spare func(pid int) bool) (lived int, last []procfs.Process) {
	const stopRounds, killRounds = 8, 64
	seen := make(map[int]bool)
	kill := func() {
		for pid := range seen {
			_ = unix.Kill(pid, unix.SIGKILL)
		}
	}
	var scan procfs.Scanner
	signal := unix.SIGSTOP
	for round := range killRounds {
		if round == stopRounds {
			kill()
			signal = unix.SIGKILL
		}
		fresh := 0
		last = scan.Below(roots, spare)
		for _, p := range last {
			if !seen[p.PID] && p.Lives() {
				seen[p.PID] = true
				fresh++
				_ = unix.Kill(p.PID, signal)
			}
		}
		if fresh == 0 {
			break
		}
	}
	if signal == unix.SIGSTOP {
		kill()
	}
	return len(seen), last
}
