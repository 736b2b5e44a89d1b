// Package workers runs file work on threads that have the rights of the sandbox's
// user, or of another one.
package workers

import (
	"errors"
	"runtime"
	"strconv"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit/internal/guest/rights"
	"github.com/sandpit-dev/sandpit/internal/guest/settings"
	"github.com/sandpit-dev/sandpit/internal/guest/wire"
)

// Pool is a pool of such threads. Each has given up the guest's rights permanently, and
// ends with its goroutine.
//
// Only the file system ids are the user's. The other ids stay the guest's, so that the
// user's processes may not signal the thread, limit its resources or trace it.
type Pool struct {
	settings *settings.Settings

	mu    sync.Mutex
	jobs  chan func()
	count int
	long  int           // threads of Alone
	stale chan struct{} // closed when rights have changed

	others chan struct{} // a token for each thread of Do with another user
}

const (
	maxWorkers = 4                // at once
	maxOthers  = 2                // at once, with another user than the sandbox's
	maxLong    = 14               // at once, beside them
	workerIdle = 10 * time.Second // an idle thread's memory is given back after this

	workerRetry = 100 * time.Millisecond
)

// MaxThreads is the maximum of threads of a Pool.
const MaxThreads = maxWorkers + maxOthers + maxLong

// New returns a pool without threads. They are started when there is work.
func New(s *settings.Settings) *Pool {
	return &Pool{settings: s, jobs: make(chan func()), stale: make(chan struct{}), others: make(chan struct{}, maxOthers)}
}

// Renew makes later work use the present user and rulesets.
func (w *Pool) Renew() {
	w.mu.Lock()
	close(w.stale)
	w.stale = make(chan struct{})
	w.jobs = make(chan func())
	w.count = 0 // the old ones end by themselves
	w.mu.Unlock()
}

// Do runs f on a worker and returns when it has run, or returns why it could not. f has the
// rights of u, or of the sandbox's user if u is nil. Threads of other users are not kept.
func (w *Pool) Do(u *settings.User, f func() error) error {
	if u != nil {
		w.others <- struct{}{}
		defer func() { <-w.others }()
		return w.Apart(u, f)
	}
	result := make(chan error, 1)
	job := func() { result <- f() }
	for {
		w.mu.Lock()
		jobs, stale := w.jobs, w.stale
		select {
		case jobs <- job: // an idle one
			w.mu.Unlock()
			return <-result
		default:
		}
		if w.count < maxWorkers {
			w.count++
			w.mu.Unlock()
			go w.run(jobs, stale, w.rights(nil), job, result)
			return <-result
		}
		w.mu.Unlock()
		select {
		case jobs <- job:
			return <-result
		case <-stale:
		case <-time.After(workerRetry): // those who were busy may have ended since
		}
	}
}

// Alone runs f like Do, on its own thread: f may take as long as the host takes to read its
// answer, and must not keep others from their files.
func (w *Pool) Alone(u *settings.User, f func() error) error {
	w.mu.Lock()
	full := w.long == maxLong
	if !full {
		w.long++
	}
	w.mu.Unlock()
	if full {
		return wire.Fail(wire.CodeExhausted, "too many long file operations in progress")
	}
	defer func() {
		w.mu.Lock()
		w.long--
		w.mu.Unlock()
	}()
	return w.Apart(u, f)
}

// Apart is Alone for work that is counted elsewhere.
func (w *Pool) Apart(u *settings.User, f func() error) error {
	take := w.rights(u)
	result := make(chan error, 1)
	go func() {
		err := take()
		if err == nil {
			err = f()
		}
		result <- err
	}()
	return <-result
}

// rights returns what gives the calling goroutine a thread of its own, which
// ends with it, and that the rights of u, or of the present user of the sandbox.
func (w *Pool) rights(u *settings.User) (take func() error) {
	conf, landlock := w.settings.Config(), w.settings.Landlock()
	if u == nil {
		u = &conf.User
	}
	return func() error {
		runtime.LockOSThread() // and never unlock
		err := giveUpRights(u, conf.RootCaps, landlock)
		if _, told := errors.AsType[*wire.ErrorMessage](err); err != nil && !told {
			return wire.Fail(wire.CodeInternal, "giving up rights for file work: "+err.Error())
		}
		return err
	}
}

func (w *Pool) run(jobs chan func(), stale chan struct{}, take func() error, first func(), result chan error) {
	defer func() {
		w.mu.Lock()
		if w.stale == stale {
			w.count--
		}
		w.mu.Unlock()
	}()
	if err := take(); err != nil {
		result <- err
		return
	}
	first()
	timer := time.NewTimer(workerIdle)
	defer timer.Stop()
	for {
		select {
		case job := <-jobs:
			job()
			timer.Reset(workerIdle)
		case <-stale:
			return
		case <-timer.C:
			return
		}
	}
}

// giveUpRights makes the calling thread act as u from now on.
func giveUpRights(u *settings.User, rootCaps uint64, landlock []int) error {
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	for _, ruleset := range landlock {
		if err := rights.RestrictSelf(ruleset); err != nil {
			return err
		}
	}
	if u.Change {
		// Package syscall's setgroups would change every thread.
		groups := make([]uint32, max(1, len(u.Groups)))
		copy(groups, u.Groups)
		if _, _, errno := unix.RawSyscall(unix.SYS_SETGROUPS, uintptr(len(u.Groups)), uintptr(unsafe.Pointer(&groups[0])), 0); errno != 0 {
			return errno
		}
		// setfsgid and setfsuid report the id before, never an error: a second call tells.
		for _, id := range []struct {
			nr   uintptr
			want uint32
		}{{unix.SYS_SETFSGID, u.GID}, {unix.SYS_SETFSUID, u.UID}} {
			_, _, _ = unix.RawSyscall(id.nr, uintptr(id.want), 0, 0)
			if now, _, _ := unix.RawSyscall(id.nr, ^uintptr(0), 0, 0); uint32(now) != id.want {
				return wire.Invalid("the sandbox has no id " + strconv.FormatUint(uint64(id.want), 10))
			}
		}
	}
	caps := uint64(0)
	if u.UID == 0 || u.Root {
		caps = rootCaps
	}
	caps &= rights.Permitted()
	var data [2]unix.CapUserData
	for i := range data {
		data[i].Permitted = uint32(caps >> (32 * i))
		data[i].Effective = data[i].Permitted
	}
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	return unix.Capset(&hdr, &data[0])
}
