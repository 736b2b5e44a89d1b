package server

import (
	"iter"
	"runtime"
	"slices"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit/internal/guest/fault"
	"github.com/sandpit-dev/sandpit/internal/guest/wire"
)

// workers are threads that do file work with the rights of the sandbox's user.
// Such a thread has given up the guest's rights for good.
//
// Only the file system ids are the user's. The other ids stay the guest's, so
// that the user's processes may not signal the thread, limit its resources or
// look into it.
type workers struct {
	g       *guest
	mu      sync.Mutex
	threads []*worker     // with the present rights; they are made when needed, and kept
	jobs    chan job      // for any of them
	stale   chan struct{} // closed when rights have changed
	long    int           // long operations
}

// worker is one thread.
type worker struct {
	own   chan job // long operations, of which each stays on one thread
	tasks int      // long operations that have not ended; guarded by workers.mu
}

// job is called on a worker with the error of giving up its rights.
type job func(rights error)

const (
	maxWorkers     = 3
	maxLongWorkers = 2  // of them: the others are always there for short work
	maxLong        = 16 // long operations at once
)

func (w *workers) init(g *guest) {
	w.g = g
	w.jobs = make(chan job)
	w.stale = make(chan struct{})
}

// renew makes later work use the present user and ruleset. Threads with the
// rights before end with what they are doing; others are reserved in their place.
func (w *workers) renew() {
	w.mu.Lock()
	close(w.stale)
	w.stale = make(chan struct{})
	w.jobs = make(chan job)
	old := len(w.threads)
	w.threads = nil
	w.mu.Unlock()
	reserveThreads(old)
}

// do runs f on a worker and returns when it has run, or why it could not.
func (w *workers) do(f func() error) error {
	result := make(chan error, 1)
	run := func(err error) {
		if err == nil {
			err = f()
		}
		result <- err
	}
	for {
		w.mu.Lock()
		jobs, stale := w.jobs, w.stale
		select {
		case jobs <- run: // an idle one
			w.mu.Unlock()
			return <-result
		default:
		}
		if len(w.threads) < maxWorkers {
			w.add()
		}
		w.mu.Unlock()
		select {
		case jobs <- run:
			return <-result
		case <-stale:
		}
	}
}

// alone runs f for a stream like do, but f may take long, and as long as the host
// takes to send or read what belongs to the stream: while s.await waits, the
// thread does something else.
func (w *workers) alone(s *stream, f func() error) error {
	w.mu.Lock()
	full := w.long == maxLong
	if !full {
		w.long++
	}
	w.mu.Unlock()
	if full {
		return fault.New(wire.CodeExhausted, "too many long file operations in progress")
	}
	defer func() {
		w.mu.Lock()
		w.long--
		w.mu.Unlock()
	}()
	return w.apart(s, f)
}

// apart is alone for what is counted elsewhere.
func (w *workers) apart(s *stream, f func() error) error {
	w.mu.Lock()
	if len(w.threads) < maxLongWorkers {
		w.add()
	}
	t := slices.MinFunc(w.threads[:min(len(w.threads), maxLongWorkers)], func(a, b *worker) int { return a.tasks - b.tasks })
	t.tasks++
	w.mu.Unlock()

	result := make(chan error, 1)
	t.own <- func(err error) {
		// A coroutine, which gives the thread away where it waits.
		next, _ := iter.Pull(func(yield func(wait func()) bool) {
			s.leave = func(wait func()) { yield(wait) }
			if err == nil {
				err = f()
			}
		})
		var step job
		step = func(error) {
			wait, waits := next()
			if !waits {
				w.mu.Lock()
				t.tasks--
				w.mu.Unlock()
				result <- err
				return
			}
			go func() {
				wait()
				t.own <- step
			}()
		}
		step(nil)
	}
	err := <-result
	s.leave = nil
	return err
}

// add starts a worker. The caller holds mu.
func (w *workers) add() {
	t := &worker{own: make(chan job)}
	w.threads = append(w.threads, t)
	go w.run(t, w.jobs, w.stale)
}

func (w *workers) run(t *worker, jobs chan job, stale chan struct{}) {
	conf := w.g.config()
	w.g.mu.Lock()
	landlock := w.g.landlock
	w.g.mu.Unlock()
	runtime.LockOSThread() // and never unlock
	err := giveUpRights(&conf.user, conf.rootCaps, landlock)
	if err != nil {
		err = fault.New(wire.CodeInternal, "dropping privileges for file operations: "+err.Error())
	}
	for {
		select {
		case job := <-jobs:
			job(err)
		case job := <-t.own:
			job(err)
		case <-stale:
			jobs, stale = nil, nil
		}
		if stale == nil {
			w.mu.Lock()
			left := t.tasks
			w.mu.Unlock()
			if left == 0 {
				return
			}
		}
	}
}

// giveUpRights makes the calling thread act as u from now on.
func giveUpRights(u *user, rootCaps uint64, landlock int) error {
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	if landlock >= 0 {
		if _, _, errno := unix.RawSyscall(unix.SYS_LANDLOCK_RESTRICT_SELF, uintptr(landlock), 0, 0); errno != 0 {
			return errno
		}
	}
	if u.change {
		// Package syscall's setgroups would change every thread.
		groups := make([]uint32, max(1, len(u.groups)))
		copy(groups, u.groups)
		if _, _, errno := unix.RawSyscall(unix.SYS_SETGROUPS, uintptr(len(u.groups)), uintptr(unsafe.Pointer(&groups[0])), 0); errno != 0 {
			return errno
		}
		// setfsgid and setfsuid report the id before, never an error: a second call tells.
		for _, id := range []struct {
			nr   uintptr
			want uint32
		}{{unix.SYS_SETFSGID, u.gid}, {unix.SYS_SETFSUID, u.uid}} {
			_, _, _ = unix.RawSyscall(id.nr, uintptr(id.want), 0, 0)
			if now, _, _ := unix.RawSyscall(id.nr, ^uintptr(0), 0, 0); uint32(now) != id.want {
				return unix.EPERM
			}
		}
	}
	caps := uint64(0)
	if u.uid == 0 {
		caps = rootCaps
	}
	caps &= permitted()
	var data [2]unix.CapUserData
	for i := range data {
		data[i].Permitted = uint32(caps >> (32 * i))
		data[i].Effective = data[i].Permitted
	}
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	return unix.Capset(&hdr, &data[0])
}
