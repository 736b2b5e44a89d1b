package process

import (
	"os"
	"os/signal"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit/internal/guest/spawn"
)

// reaper waits for the children of the guest: the helpers of processes, and,
// when a helper was killed, what was below it.
type reaper struct {
	mu      sync.Mutex
	helpers map[int]*spawn.Proc       // running helpers, by pid
	gone    map[int]func(killed bool) // what to do when a helper has been reaped

	// A helper may be reaped before its start has returned and it could be
	// entered above: then its pid is found here, with how it ended.
	starting atomic.Int64 // changes with mu held
	early    map[int]unix.WaitStatus

	// Helpers whose programs are being executed, by pid.
	young map[int]bool

	trees   map[int]*tree // what is below each helper, young ones included, by pid
	killing bool          // killDying runs
	kick    chan struct{} // has one if a tree has begun to die since killDying looked

	// making is held for reading while a helper is made that is not in young yet, and before mu.
	making sync.RWMutex

	orphaned bool          // a helper was killed, and what was below it may live
	hunt     chan struct{} // closed when the present hunt for orphans ends; nil: there is none
}

// tree is a helper with all that it and its program have started, and with the commands of sudo that those asked
// for: they are below helpers of their own. reaper.mu guards it.
type tree struct {
	owner *tree         // of a command of sudo: that of the process that asked for it
	dying bool          // it is being killed, or its helper has ended: it gets no more commands
	gone  chan struct{} // closed when its helper has been reaped
}

// within reports whether a tree is that of owner or one of its commands.
func (t *tree) within(owner *tree) bool {
	for ; t != nil; t = t.owner {
		if t == owner {
			return true
		}
	}
	return false
}

// ends reports whether a tree, or one that it belongs to, is dying. Since those get no more commands, there are at most
// maxSudo of them.
func (t *tree) ends() bool {
	for ; t != nil; t = t.owner {
		if t.dying {
			return true
		}
	}
	return false
}

// dying reports whether a tree ends.
func (r *reaper) dying(t *tree) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return t.ends()
}

// clear makes it one without helpers.
func (r *reaper) clear() {
	r.helpers = make(map[int]*spawn.Proc)
	r.gone = make(map[int]func(bool))
	r.early = make(map[int]unix.WaitStatus)
	r.young = make(map[int]bool)
	r.trees = make(map[int]*tree)
	r.kick = make(chan struct{}, 1)
}

func (r *reaper) start() {
	r.clear()
	c := make(chan os.Signal, 1)
	signal.Notify(c, syscall.SIGCHLD)
	go func() {
		for r.reap(); ; r.reap() { // at first what has ended before: who has made the guest leaves it a child
			<-c
		}
	}()
}

func (r *reaper) reap() {
	for {
		var ws unix.WaitStatus
		r.mu.Lock()
		pid, err := unix.Wait4(-1, &ws, unix.WNOHANG, nil)
		if err == unix.EINTR {
			r.mu.Unlock()
			continue
		}
		if err != nil || pid <= 0 {
			r.mu.Unlock()
			return
		}
		p, gone := r.helpers[pid], r.gone[pid]
		delete(r.helpers, pid)
		delete(r.gone, pid)
		r.orphaned = r.orphaned || ws.Signaled() && (p != nil || r.young[pid])
		delete(r.young, pid)
		if t := r.trees[pid]; t != nil {
			t.dying = true
			close(t.gone)
			delete(r.trees, pid)
		}
		if p == nil && r.starting.Load() > 0 {
			r.early[pid] = ws
		}
		r.mu.Unlock()
		if p != nil {
			p.Reaped()
			gone(ws.Signaled())
		}
	}
}

// spawn starts a program. See begin.
func (r *reaper) spawn(a *spawn.Attr, owner *tree, gone func(killed bool), calledOff func() bool) (*spawn.Proc, error) {
	return r.begin(owner, func(made func(pid int) bool) (*spawn.Proc, error) {
		r.making.RLock()
		known := sync.OnceFunc(r.making.RUnlock)
		defer known()
		a.Made = func(pid int) {
			made(pid)
			known()
		}
		return spawn.Start(a)
	}, gone, calledOff)
}

// begin starts a process; gone is called when its helper has ended, which is
// when the process and everything that it has started have, unless the helper was
// killed. While the start takes long, calledOff is asked whether to give it up.
// start calls made when there is the helper; it is false if that is not a child of the guest. A command of sudo has an owner,
// and is killed with it.
func (r *reaper) begin(owner *tree, start func(made func(pid int) bool) (*spawn.Proc, error), gone func(killed bool), calledOff func() bool) (*spawn.Proc, error) {
	var helper int // once made, guarded by mu; -1: the start is over
	made := func(pid int) bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		// It may have been reaped already.
		child := unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil) == nil && r.helpers[pid] == nil
		if child {
			helper, r.young[pid] = pid, true
			r.trees[pid] = &tree{owner: owner, gone: make(chan struct{})}
			if owner.ends() { // since it was looked at: the helper has executed nothing yet
				_ = unix.Kill(pid, unix.SIGKILL)
			}
		}
		return child
	}
	r.mu.Lock()
	r.starting.Add(1)
	r.mu.Unlock()
	watchdog := time.AfterFunc(startPatience, func() { r.hurry(&helper, calledOff) })
	p, err := start(made)
	watchdog.Stop()
	r.mu.Lock()
	r.starting.Add(-1)
	delete(r.young, helper)
	helper = -1
	reaped, killed := false, false
	if err == nil {
		pid := p.Helper()
		// A pid in early may be of an orphan that had the same one before: a
		// child that is still there can only be the helper.
		ws, early := r.early[pid]
		reaped = early && unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil) == unix.ECHILD
		killed = reaped && ws.Signaled()
		r.orphaned = r.orphaned || killed
		if !reaped {
			r.helpers[pid], r.gone[pid] = p, gone
		}
	}
	if r.starting.Load() == 0 {
		clear(r.early)
	}
	r.mu.Unlock()
	if reaped {
		p.Reaped()
		gone(killed)
	}
	return p, err
}

// startPatience is the time after which a start is suspected to hang.
const startPatience = 250 * time.Millisecond

// hurry helps a start that takes long: its program may have stopped the helper
// before that could report. It kills both when the start is called off.
func (r *reaper) hurry(helper *int, calledOff func() bool) {
	for {
		off := calledOff()
		r.mu.Lock()
		pid := *helper
		if pid != 0 && !r.young[pid] {
			r.mu.Unlock()
			return
		}
		if !off && pid != 0 {
			_ = unix.Kill(pid, unix.SIGCONT)
		}
		r.mu.Unlock()
		if off && pid != 0 {
			r.abandon(pid)
		}
		time.Sleep(startPatience / 10)
	}
}

// abandon kills a helper that is being started, with all below it.
func (r *reaper) abandon(helper int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.young[helper] {
		stopAndKill([]int{helper}, nil)
		_ = unix.Kill(helper, unix.SIGKILL)
	}
}

// running reports whether the helper of a process has not been reaped, and calls f before it can be.
func (r *reaper) running(p *spawn.Proc, f func()) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.helpers[p.Helper()] != p { // its number may be another's now
		return false
	}
	f()
	return true
}
