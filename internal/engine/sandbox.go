package engine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/driver"
	"github.com/sandpit-dev/sandpit/internal/fault"
	"github.com/sandpit-dev/sandpit/internal/guest/client"
	"github.com/sandpit-dev/sandpit/internal/image"
	"github.com/sandpit-dev/sandpit/internal/interpreter"
	"github.com/sandpit-dev/sandpit/internal/ledger"
	"github.com/sandpit-dev/sandpit/internal/logstore"
)

// Sandbox is a sandbox of an engine. It implements sandpit.Sandbox.
//
// Its locks are taken in this order: change, one of joining and saving, mu.
type Sandbox struct {
	engine     *Engine
	id         string
	named      atomic.Pointer[string]
	namespace  string
	nested     string    // the namespace nested in that, or ""
	persistent bool      // it outlives the engine
	created    time.Time // set by register, constant afterwards
	nameLock   func()    // changed only during a change of the state
	demand     demand    // its capacity
	memory     *ledger.Account
	lease      *image.Lease
	blank      *blank // the blank that it will be made of; nil: none, or made
	held       *held  // the held sandbox that it will be; nil: none, or it is

	// Set while it is made, constant once made is closed.
	instance driver.Instance
	guest    *client.Client
	logs     *logstore.Log
	cancel   context.CancelCauseFunc // calls the making off
	made     chan struct{}           // closed when it is made or adopted, or is not
	making   *task                   // that makes it; nil if it was adopted

	interpreters []client.ProcessInfo // that run in it before it is made, until they are known

	oomSeen     atomic.Int64 // out-of-memory kills that were counted
	refusedSeen atomic.Int64 // processes that were refused
	lastUse     atomic.Int64 // ns since 1970 of the latest activity

	change    chan struct{} // one place: held during a change of the state
	saving    sync.Mutex    // held while the record is written
	joining   sync.Mutex    // held while the terms of its network change
	refreshes refreshes     // of its secrets
	newSecret bool          // Record.NewSecret; guarded by saving
	noted     bool          // there may be a stopMark; guarded by saving
	erasing   bool          // its record is being removed, and must not be written; guarded by saving
	erased    bool          // and is removed; guarded by saving
	failing   sync.Once
	gone      chan struct{} // closed when it begins to be removed

	mu sync.Mutex // guards all below
	prepared
	labels       map[string]string // replaced, and never changed: events share it
	state        sandpit.State
	reason       string
	removing     bool
	removed      bool            // nothing is left to do
	left         bool            // the engine has given it up
	muted        bool            // the connection to the guest ends, which says nothing of the processes
	undone       error           // why the latest removal failed
	stuck        *task           // that was given up; nil: none
	measuring    *reading        // the latest
	counting     *reading        // of kills, the latest
	ending       *task           // the latest that removes it, or what is left of it
	marking      *task           // that makes and removes marks; nil: there is none
	unmarked     map[string]bool // the marks that it is to make (true) or remove
	admitted     time.Time       // when it was admitted, if it had to wait
	starting     int             // processes that are being started
	active       int             // calls, streams and waiters that keep it from being idle
	timer        *time.Timer     // of the lifetime and of idleness
	timeUp       bool            // the lifetime is over, the processes are killed, and the removal follows
	extending    time.Time       // until when an extension that was asked for in time may be written; zero: none is
	renewed      time.Time       // when the guest was told last how long it may live
	broadcasters []*broadcaster  // oldest first
	cleared      bool            // broadcasters are no longer kept
	expiry
	changing bool // see settings

	unstarted *sandpit.Spec // of a sandbox that was never started, which has no instance; nil: it was, or is to be at once
	began     time.Time     // when it was started, if it was created before

	dialects map[string]json.RawMessage // what dialects keep with it, by their names
	cost     int64                      // that memory is charged for the sandbox itself
	repaid   bool                       // and is not charged any more

	announced []uint64    // processes whose end was announced, which the guest has yet to be told
	noting    *time.Timer // to tell it; nil: not set
	samples   samples

	contexts *interpreter.Manager // of code; nil: not used yet

	network *member // nil: it has no interface, or none yet
	linked  bool    // its record says that it has an interface; set by recall
}

// prepared is what a sandbox is made of, as its Spec, the policy, the image and the machine decide. It is set as a whole: when
// the sandbox is created, when it is started for the first time, and when it is recalled from its record. Other changes are
// those of info, egress, secret and secretUses. All else may be read without a lock, except in a sandbox that was never started.
type prepared struct {
	image      image.Config
	rootInside bool             // Spec.RootInside
	rlimits    []sandpit.Rlimit // Spec.Rlimits
	user       string           // by name or id, of processes that name none
	origin     json.RawMessage  // as encodeMade returns it
	secret     json.RawMessage  // the same
	ca         []byte           // Terms.CA
	trusted    []string         // as in Made
	maxLife    time.Duration    // the policy's maximum lifetime; 0: no bound
	info       sandpit.Info
	egress     granted // what it may reach
	secretUses
}

// expiry is when a sandbox expires, and what happens then.
type expiry struct {
	deadline time.Time
	idle     time.Duration // 0: for ever
	onExpiry sandpit.Expiry
	expired  bool // its lifetime is over, and it was paused or stopped for that
}

// settings are what is changed in the life of a sandbox, and only known from its record.
type settings struct {
	name   string
	labels map[string]string
	limits sandpit.Limits
	egress granted
	expiry

	changing bool // the limits are being changed: others may be in force
}

// settings returns the present settings.
func (s *Sandbox) settings() settings {
	s.mu.Lock()
	defer s.mu.Unlock()
	return settings{s.Name(), s.labels, s.info.Limits, s.egress, s.expiry, s.changing}
}

var _ sandpit.Sandbox = (*Sandbox)(nil)

var errRemoved = errors.New("the sandbox is being removed")

// ID returns the identity.
func (s *Sandbox) ID() string { return s.id }

// Name returns the name.
func (s *Sandbox) Name() string {
	if name := s.named.Load(); name != nil {
		return *name
	}
	return ""
}

func (s *Sandbox) setName(name string) { s.named.Store(&name) }

// called returns a name as one of the sandbox's namespace.
func (s *Sandbox) called(name string) nestedName { return nestedName{s.nested, name} }

// Namespace returns the namespace that the sandbox belongs to; see Engine.As.
func (s *Sandbox) Namespace() string { return s.namespace }

// Info describes the sandbox.
func (s *Sandbox) Info(context.Context) (sandpit.Info, error) {
	info, ok := s.describe()
	if !ok {
		return sandpit.Info{}, s.closedError()
	}
	info.Secrets = s.usedSecrets()
	return info, nil
}

// present returns the state, which is empty once the sandbox is being removed.
func (s *Sandbox) present() sandpit.State {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.removing {
		return ""
	}
	return s.state
}

// callOff begins the removal: it refuses new work in the sandbox, and cancels its creation.
func (s *Sandbox) callOff() {
	s.mu.Lock()
	s.refuse()
	cancel := s.cancel // of its first start, or of its creation
	s.mu.Unlock()
	cancel(errRemoved)
}

// refuse refuses new work in the sandbox. Precondition: s.mu is held.
func (s *Sandbox) refuse() {
	if !s.removing {
		s.removing = true
		close(s.gone)
		if s.timer != nil {
			s.timer.Stop()
		}
	}
}

// removal returns the task that removes the sandbox. If there is none, it starts one and
// reports true. For a sandbox that is being made, it is the task that makes it.
func (s *Sandbox) removal(reason string) (t *task, started bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, t := range []*task{s.making, s.ending} {
		if t != nil && !t.ended() {
			return t, false
		}
	}
	s.ending = s.engine.work("removing", s, s.engine.opts.Patience.Remove, func(ctx context.Context) error {
		return s.takeDown(ctx, reason)
	})
	return s.ending, true
}

func (s *Sandbox) closedError() error {
	return fmt.Errorf("sandbox %s: %w", s.Name(), sandpit.ErrClosed)
}

// stateError returns the error that a call is not possible in a state.
func (s *Sandbox) stateError(state sandpit.State) error {
	err := fault.Errorf(sandpit.ErrState, "sandbox %q is %s", s.Name(), state)
	if state == sandpit.StateCreated {
		err = fault.Errorf(sandpit.ErrState, "sandbox %q was not started yet", s.Name())
	}
	if state == sandpit.StateStopped || state == sandpit.StateCreated {
		return sandpit.WithHint(err, "start it with 'sandpit start "+s.Name()+"'")
	}
	return err
}

// enter begins a use of the guest, which ends with leave. Meanwhile the sandbox is not
// idle. A paused sandbox is resumed first.
func (s *Sandbox) enter(ctx context.Context) error {
	for {
		s.mu.Lock()
		state := s.state
		switch {
		case s.removing:
			s.mu.Unlock()
			return s.closedError()
		case s.stuck != nil && state == sandpit.StateCreating:
			t := s.stuck
			s.mu.Unlock()
			return t.stuckError()
		case state == sandpit.StateFailed && s.guest == nil:
			reason := s.reason
			s.mu.Unlock()
			return fault.Errorf(sandpit.ErrClosed, "sandbox %s has failed: %s", s.Name(), reason)
		case state == sandpit.StateRunning, state == sandpit.StateFailed: // whose guest says why
			s.active++
			s.mu.Unlock()
			s.touch()
			return nil
		case state != sandpit.StatePaused:
			s.mu.Unlock()
			return s.stateError(state)
		}
		s.mu.Unlock()
		if err := s.Resume(ctx); err != nil {
			return err
		}
	}
}

// leave ends a use.
func (s *Sandbox) leave() {
	s.touch()
	s.mu.Lock()
	s.active--
	s.mu.Unlock()
}

// touch records activity in the sandbox.
func (s *Sandbox) touch() { s.lastUse.Store(time.Now().UnixNano()) }

// explain adds the driver's reason to an error of the guest's connection.
func (s *Sandbox) explain(err error) error {
	if !errors.Is(err, sandpit.ErrClosed) && !errors.Is(err, sandpit.ErrProtocol) {
		return err
	}
	s.mu.Lock()
	removing, left := s.removing, s.left || s.muted
	s.mu.Unlock()
	switch {
	case removing:
		return fault.Errorf(sandpit.ErrClosed, "sandbox %s was removed", s.Name())
	case left:
		return fault.Errorf(sandpit.ErrUnavailable, "sandbox %s: this server is shutting down", s.Name())
	}
	s.fail("")
	if p := (*fault.Panic)(nil); errors.As(err, &p) {
		return err // whose detail is for the log
	}
	if errors.Is(err, sandpit.ErrClosed) && s.oomSeen.Load() > 0 {
		return sandpit.WithHint(fmt.Errorf("sandbox %s is out of memory: %w", s.Name(), err), "raise the memory limit")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if errors.Is(err, sandpit.ErrClosed) && !errors.Is(err, client.ErrExpired) && s.state == sandpit.StateFailed {
		return fault.Errorf(sandpit.ErrClosed, "sandbox %s has failed: %s", s.Name(), s.reason)
	}
	return err
}

// oomKills returns the number of out-of-memory kills. While the kernel does not answer, it
// is the last known number.
func (s *Sandbox) oomKills() int64 {
	kills, _, _ := s.counts()
	return kills
}

// counts returns the numbers of out-of-memory kills and of refused processes, as oomKills does,
// and whether the kernel has answered.
func (s *Sandbox) counts() (kills, refused int64, answered bool) {
	if s.instance == nil || s.engine.mayTry(s.namespace) != nil {
		return s.oomSeen.Load(), s.refusedSeen.Load(), false
	}
	m, err := fresh(context.Background(), s.countKills)
	if err != nil {
		m = sandpit.UnknownMetrics()
	}
	return raise(&s.oomSeen, m.OOMKills), raise(&s.refusedSeen, m.PidsRefused), err == nil
}

// raise makes a number at least n, and returns it.
func raise(number *atomic.Int64, n int64) int64 {
	seen := number.Load()
	for n > seen && !number.CompareAndSwap(seen, n) {
		seen = number.Load()
	}
	return max(n, seen)
}

// full reports whether nothing more fits into the sandbox's own file system, and no more files.
// It is false while the kernel does not answer.
func (s *Sandbox) full() (disk, files bool) {
	if s.instance == nil || s.engine.mayTry(s.namespace) != nil {
		return false, false
	}
	m, err := fresh(context.Background(), s.measure)
	if err != nil {
		return false, false
	}
	s.mu.Lock()
	limits := s.info.Limits
	s.mu.Unlock()
	return limits.Disk > 0 && m.Disk >= limits.Disk, limits.Files > 0 && m.Files >= limits.Files
}

// watch fails the sandbox when the guest dies or breaks the protocol.
func (s *Sandbox) watch() {
	s.mu.Lock()
	guest := s.guest
	s.mu.Unlock()
	var ended <-chan struct{} // never, without a connection
	if guest != nil {
		ended = guest.Done()
	}
	select {
	case <-s.gone:
		return
	case <-s.instance.Done():
	case <-ended:
	}
	s.fail("")
}

// fail marks the sandbox as failed, unless it is being removed or was given up. It ends
// everything in it, because a guest that breaks the protocol can't be trusted. Without a
// reason the guest or its connection has ended.
func (s *Sandbox) fail(reason string) {
	s.failing.Do(func() {
		kills := s.oomKills()
		why := "its guest has died"
		s.mu.Lock()
		guest := s.guest
		s.mu.Unlock()
		var err error
		if guest != nil {
			err = guest.Err()
		}
		if reason != "" {
			why = reason
		} else if errors.Is(err, sandpit.ErrProtocol) || errors.Is(err, sandpit.ErrUnsupported) {
			why = err.Error()
		} else if kills > 0 {
			why = "it ran out of memory"
		} else if e, ok := s.instance.(driver.Explainer); ok {
			why = e.Explain(errors.New(why)).Error()
		}
		s.mu.Lock()
		if s.removing || s.left {
			s.mu.Unlock()
			return
		}
		s.state, s.reason = sandpit.StateFailed, why
		s.mu.Unlock()
		s.closeGuest()
		s.leaveNetwork()
		s.mu.Lock()
		defer s.mu.Unlock()
		s.ending = s.engine.work("removing the remains of", s, s.engine.opts.Patience.Remove, func(ctx context.Context) error {
			var old []*Sandbox
			err := s.instance.Destroy(ctx)
			if err == nil {
				old = s.engine.lose(s)
			}
			s.event(sandpit.EventFailed, "failed: "+why)
			_ = s.saveChange(context.Background())
			s.engine.discard(old)
			return err
		})
	})
}

// event emits an event about the sandbox.
func (s *Sandbox) event(kind sandpit.EventKind, reason string) {
	s.mu.Lock()
	state := s.state
	if s.stuck != nil {
		state = sandpit.StateFailed
	}
	labels := s.labels
	s.mu.Unlock()
	if kind == sandpit.EventRemoved {
		state = ""
	}
	s.engine.events.add(s.namespace, sandpit.Event{Kind: kind, Sandbox: s.id, Name: s.Name(), Namespace: s.nested, State: state, Reason: reason, Labels: labels})
}

// Remove destroys the sandbox.
func (s *Sandbox) Remove(ctx context.Context) error { return s.destroy(ctx, "asked") }

// destroy removes the sandbox from the machine, and then its data. A second call waits for
// the first, and retries what failed. The removal can't be canceled: if ctx ends, or the
// removal is stuck, it goes on. A sandbox that expires is left alone if its life was made longer before
// this call; from then on its life is not made longer.
func (s *Sandbox) destroy(ctx context.Context, reason string) error {
	s.mu.Lock()
	if !s.removing && !s.over(reason) {
		s.arm()
		s.mu.Unlock()
		return nil
	}
	s.refuse()
	s.mu.Unlock()
	s.callOff()
	for {
		t, started := s.removal(reason)
		err := t.wait(ctx)
		s.mu.Lock()
		done := s.removed || s.left
		s.mu.Unlock()
		switch {
		case done:
			return nil
		case started, !t.ended():
			return err
		}
	}
}

// takeDown does the work of destroy, once the creation or adoption has ended. Without a
// reason it emits no event.
func (s *Sandbox) takeDown(ctx context.Context, reason string) error {
	<-s.made
	progress := driver.ProgressOf(ctx)
	select {
	case s.change <- struct{}{}:
	default:
		enter(progress, "waiting for a change of the state")
		// Somebody changes the state, and perhaps waits for a guest that does not answer.
		s.closeGuest()
		s.change <- struct{}{}
	}
	defer func() { <-s.change }()
	s.mu.Lock()
	done, left := s.removed, s.left
	s.mu.Unlock()
	if done || left {
		return nil
	}
	if s.instance != nil {
		enter(progress, "mark")
		_ = s.mark(ctx, true, removalMark) // best effort: killing does not wait for a disk that hangs
		s.leaveNetwork()
		err := s.instance.Destroy(ctx)
		s.mu.Lock()
		s.undone = err
		s.mu.Unlock()
		if err != nil {
			return err
		}
	}
	s.closeGuest()
	s.release(progress)
	s.mu.Lock()
	s.removed = true
	s.mu.Unlock()
	if s.engine.forget(s) {
		s.engine.gate.leave(&s.demand)
	}
	if reason != "" {
		s.event(sandpit.EventRemoved, reason)
	}
	return nil
}

// closeGuest closes the connection to the guest, if there is one.
func (s *Sandbox) closeGuest() {
	s.mu.Lock()
	guest := s.guest
	s.mu.Unlock()
	if guest != nil {
		guest.Close()
	}
}

// release releases everything except the instance.
func (s *Sandbox) release(progress *driver.Progress) {
	progress.Enter(driver.Doing{Step: "processes"})
	for _, h := range s.processes() {
		if h.process == nil {
			continue
		}
		<-h.done // its stream has ended with the connection
	}
	enter(progress, "log")
	if s.logs != nil {
		_ = s.logs.Remove()
	}
	if dir := s.logDir(); dir != "" && s.persistent {
		_ = os.RemoveAll(dir) // which s.logs is not in if it could not be read
	}
	enter(progress, "image")
	s.lease.Release()
	if s.persistent {
		_ = s.engine.opts.Images.Unkeep(s.id) // else the next engine does
		enter(progress, "record")
		s.erase()
	}
	if s.nameLock != nil {
		s.nameLock()
	}
	s.clear()
	s.repay()
}

// abandon gives the sandbox up for another engine to adopt. It reports false if the sandbox
// is being removed, or was given up before.
func (s *Sandbox) abandon() bool {
	s.mu.Lock()
	if s.left || s.removing {
		s.mu.Unlock()
		return false
	}
	s.left = true
	if s.timer != nil {
		s.timer.Stop()
	}
	cancel, starting := s.cancel, s.making
	if s.unstarted == nil {
		starting = nil
	}
	s.mu.Unlock()
	cancel(errRemoved)
	<-s.made
	if starting != nil {
		<-starting.done
	}
	if s.present() != sandpit.StatePaused {
		ctx, cancel := context.WithTimeout(context.Background(), lastPatience)
		s.note(ctx)
		cancel()
	}
	s.closeGuest()
	s.leaveNetwork()
	for _, h := range s.processes() {
		<-h.done
	}
	if s.logs != nil {
		s.logs.Close()
	}
	if l, ok := s.instance.(driver.Leaver); ok {
		l.Leave()
	}
	s.lease.Release()
	s.mu.Lock()
	if !s.removing {
		s.removing = true
		close(s.gone)
	}
	s.mu.Unlock()
	s.engine.forget(s)
	s.clear()
	s.repay()
	return true
}

// processes returns the known processes, oldest first.
func (s *Sandbox) processes() []*broadcaster {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.broadcasters)
}
