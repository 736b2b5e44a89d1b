package process

import (
	"maps"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit/internal/guest/procfs"
)

// killPatience is the time that a kill waits for the killed processes to be gone.
// Only a process that hangs inside the kernel takes long.
const killPatience = 5 * time.Second

// killTree kills everything below a helper, and reports whether all was gone
// within killPatience. It goes on trying in either case.
//
// The helper is the subreaper of all that its program has started, so nothing
// can leave its tree. First everything is stopped, until nothing new is seen:
// what is stopped can't fork. Then it is killed. The helper ends when nothing is
// left below it.
func (t *Table) killTree(helper int) bool {
	done := make(chan struct{})
	go func() {
		defer close(done)
		for pause := time.Millisecond; ; pause = min(2*pause, 100*time.Millisecond) {
			if !t.reaper.running(helper, func() { stopAndKill([]int{helper}, nil) }) {
				return
			}
			// The helper itself may have been stopped, by a program of its own uid.
			_ = unix.Kill(helper, unix.SIGCONT)
			time.Sleep(pause)
		}
	}()
	select {
	case <-done:
		return true
	case <-time.After(killPatience):
		return false
	}
}

// startBound is more than a start or a fork takes until its helper is registered.
const startBound = 2 * forkPatience

// orphans are children of the guest that are not helpers: they exist only if a helper was killed.
type orphans struct {
	mu    sync.Mutex
	again bool          // a helper was killed since the present hunt began to look
	done  chan struct{} // closed when the present hunt ends; nil: there is none
}

// killOrphans kills all orphans, and returns when they are gone, or after killPatience. It goes on trying in either case.
func (t *Table) killOrphans() {
	o := &t.orphans
	o.mu.Lock()
	o.again = true
	done := o.done
	if done == nil {
		done = make(chan struct{})
		o.done = done
		go t.huntOrphans(done)
	}
	o.mu.Unlock()
	select {
	case <-done:
	case <-time.After(killPatience):
	}
}

// huntOrphans kills orphans until there are none.
func (t *Table) huntOrphans(done chan struct{}) {
	o := &t.orphans
	seen := map[int]time.Time{}
	for pause := time.Millisecond; ; pause = min(2*pause, 100*time.Millisecond) {
		o.mu.Lock()
		o.again = false
		o.mu.Unlock()
		none := t.noOrphans(seen)
		o.mu.Lock()
		if none && !o.again {
			o.done = nil
			o.mu.Unlock()
			close(done)
			return
		}
		o.mu.Unlock()
		time.Sleep(pause)
	}
}

// noOrphans kills orphans, and reports whether there was none. While something is being started, a child that is not
// registered may be its helper. So it is spared for startBound after it was first seen, and there may be orphans.
func (t *Table) noOrphans(seen map[int]time.Time) bool {
	t.reaper.mu.Lock()
	defer t.reaper.mu.Unlock()
	starting, now, still := t.reaper.starting > 0, time.Now(), map[int]bool{}
	n := stopAndKill([]int{os.Getpid()}, func(pid int) bool {
		if t.reaper.helpers[pid] != nil {
			return true
		}
		still[pid] = true
		if seen[pid].IsZero() {
			seen[pid] = now
		}
		return starting && now.Sub(seen[pid]) < startBound
	})
	maps.DeleteFunc(seen, func(pid int, _ time.Time) bool { return !still[pid] })
	return n == 0 && !starting
}

// KillAll kills everything below the guest.
func (t *Table) KillAll() {
	for deadline := time.Now().Add(killPatience); time.Now().Before(deadline); {
		t.reaper.mu.Lock()
		n := stopAndKill([]int{os.Getpid()}, nil)
		t.reaper.mu.Unlock()
		if n == 0 {
			return
		}
		time.Sleep(time.Millisecond)
	}
}

// stopAndKill stops and then kills all descendants of roots, but not those for
// which spare is true nor what is below them. It returns how many it has seen.
func stopAndKill(roots []int, spare func(pid int) bool) int {
	stopped := make(map[int]bool)
	var scan procfs.Scanner
	for {
		fresh := 0
		for _, p := range scan.Below(roots, spare) {
			if stopped[p.PID] {
				continue
			}
			stopped[p.PID] = true
			if p.State != 'Z' && p.State != 'X' {
				fresh++
				_ = unix.Kill(p.PID, unix.SIGSTOP)
			}
		}
		if fresh == 0 {
			break
		}
	}
	for pid := range stopped {
		_ = unix.Kill(pid, unix.SIGKILL)
	}
	return len(stopped)
}
