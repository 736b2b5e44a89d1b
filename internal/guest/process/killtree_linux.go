package process

import (
	"os"
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

// killOrphans kills children of the guest that are not helpers: they exist only if a helper was killed.
func (t *Table) killOrphans() {
	for range 100 {
		t.reaper.mu.Lock()
		n := 0
		if t.reaper.starting == 0 {
			n = stopAndKill([]int{os.Getpid()}, func(pid int) bool { return t.reaper.helpers[pid] != nil })
		} else {
			n = 1 // a helper may be about to be entered: look again
		}
		t.reaper.mu.Unlock()
		if n == 0 {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
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
