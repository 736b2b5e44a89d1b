package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/driver"
	"github.com/sandpit-dev/sandpit/internal/fault"
	"github.com/sandpit-dev/sandpit/internal/notation"
)

// Patience bounds how long an engine waits for operations that nothing can cancel: a system
// call that the kernel or a file system blocks, or a guest that does not answer. When the
// time is over, the engine answers its caller, and the operation is stuck. It goes on, and
// cleans up if it ever ends. Until then it keeps its name, its ids and its capacity.
//
// The defaults are long, because a busy machine is slow without hanging. Zero values stand
// for the defaults.
type Patience struct {
	Create  time.Duration // to resolve a Spec, and again to create the sandbox once there is capacity; then it is canceled. Default 60 s
	Image   time.Duration // for progress in fetching or unpacking an image; then the task is canceled. Default 10 min
	Undo    time.Duration // to undo a canceled task. Default 10 s
	Remove  time.Duration // to remove a sandbox. Default 30 s
	Adopt   time.Duration // for a sandbox to wait for its turn to be adopted; adopting it may take half as long. Default 60 s
	Close   time.Duration // for Close to end one sandbox or blank. Default 10 s
	Orphans time.Duration // to find the sandboxes that run without a record. Default 15 s
	Expire  time.Duration // for the guest of a sandbox that expires to end its processes, or to prepare for a pause. Default 45 s
	Guest   time.Duration // for a guest to tell of the end of a process whose timeout has passed; its own limit for one that hangs in the kernel is shorter. Up to five times as long while the sandbox uses all of its share of the CPUs. Default 15 s
	Measure time.Duration // to measure the usage of a sandbox. Default 10 s
	Read    time.Duration // for Engine.Read to make progress. Default 10 s
	Sample  time.Duration // until the history of a namespace continues without a sandbox whose usage is unknown; default 1 s
}

func (p Patience) withDefaults() Patience {
	for _, d := range []struct {
		of  *time.Duration
		def time.Duration
	}{{&p.Create, time.Minute}, {&p.Image, 10 * time.Minute}, {&p.Undo, 10 * time.Second}, {&p.Remove, 30 * time.Second}, {&p.Adopt, time.Minute}, {&p.Close, 10 * time.Second}, {&p.Orphans, 15 * time.Second}, {&p.Expire, stopGrace + endPatience + 5*time.Second}, {&p.Guest, 15 * time.Second}, {&p.Measure, 10 * time.Second}, {&p.Read, 10 * time.Second}, {&p.Sample, time.Second}} {
		if *d.of <= 0 {
			*d.of = d.def
		}
	}
	return p
}

// Each stuck task holds a thread of this program, of which the Go runtime allows 10,000,
// and perhaps a sandbox. Beyond these numbers no sandboxes are created. At most
// maxStuckSpace of one namespace count towards maxStuck, so that three namespaces can't
// keep the others from creating sandboxes.
const (
	maxStuck      = 64 // in all
	maxStuckSpace = 16 // in one namespace; and how many are made at once there
	blankSpace    = "\x00blanks"
	readSpace     = "\x00read" // of Read
)

// stuckRetry is the time to wait after a create was refused because too much is stuck.
const stuckRetry = 10 * time.Second

// Stuck describes a task that the engine has given up waiting for.
type Stuck struct {
	What      string    // "creating sandbox web"
	Sandbox   string    // id; empty if the task concerns no sandbox
	Namespace string    // of the sandbox
	Doing     string    // the present step, and what still exists
	Since     time.Time // when the engine gave up
}

// String describes it for people.
func (s Stuck) String() string {
	text := s.What + " is stuck"
	if s.Doing != "" {
		text += " (" + s.Doing + ")"
	}
	return text
}

// task is work that a system call may block for ever. It has its own goroutine, and owns
// what it makes.
type task struct {
	engine   *Engine
	progress driver.Progress
	done     chan struct{} // closed when it has ended
	stuck    chan struct{} // closed when it is waited for no longer
	err      error         // its result, once done is closed

	mu        sync.Mutex // guards all below. Nothing else is locked while it is held
	what      string     // "creating", and what: "a sandbox"
	about     string
	namespace string
	sandbox   *Sandbox
	cancel    context.CancelCauseFunc // calls it off; nil: nothing can
	off       bool                    // it was called off
	timer     *time.Timer
	settled   bool      // it has ended, or is about to: it can't be given up
	since     time.Time // when it was given up
}

// start starts a task with a time limit; 0: none. If it has cancel, it is canceled when the
// limit has passed or ctx ends, before the engine gives it up.
func (e *Engine) start(ctx context.Context, t *task, limit time.Duration, f func(ctx context.Context) error) *task {
	t.engine, t.done, t.stuck = e, make(chan struct{}), make(chan struct{})
	var stop func() bool
	if t.cancel != nil {
		stop = context.AfterFunc(ctx, t.calledOff)
	}
	e.tasks.mu.Lock()
	if e.tasks.all == nil {
		e.tasks.all = map[*task]struct{}{}
	}
	e.tasks.all[t] = struct{}{}
	e.tasks.mu.Unlock()
	if limit > 0 {
		t.limit(limit)
	}
	go func() {
		err := t.carryOut(ctx, f)
		if stop != nil {
			stop()
			t.cancel(nil)
		}
		t.end(err)
	}()
	return t
}

// carryOut calls f. If it panics, the task fails.
func (t *task) carryOut(ctx context.Context, f func(ctx context.Context) error) (err error) {
	defer fault.Protect(t.what+" "+t.about, func(e error) { err = e })
	return f(driver.WithProgress(ctx, &t.progress))
}

// work starts a task that can't be canceled, with the time limit d.
func (e *Engine) work(what string, s *Sandbox, d time.Duration, f func(ctx context.Context) error) *task {
	t := &task{what: what, sandbox: s}
	if s != nil {
		t.about, t.namespace = "sandbox "+s.Name(), s.namespace
	}
	return e.start(context.Background(), t, d, f)
}

// tasks are the tasks in progress.
type tasks struct {
	mu    sync.Mutex
	all   map[*task]struct{} // guarded by mu
	stuck map[string]int     // how many in each namespace; guarded by mu
}

// count counts stuck tasks of a namespace.
func (ts *tasks) count(namespace string, n int) {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	if ts.stuck == nil {
		ts.stuck = map[string]int{}
	}
	if ts.stuck[namespace] += n; ts.stuck[namespace] == 0 {
		delete(ts.stuck, namespace)
	}
}

// counts returns the number of stuck tasks, the number that counts towards maxStuck, and
// the number of a namespace.
func (ts *tasks) counts(namespace string) (all, blocking, own int) {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	for _, n := range ts.stuck {
		all += n
		blocking += min(n, maxStuckSpace)
	}
	return all, blocking, ts.stuck[namespace]
}

// limit sets how long the task may take from now on; 0: unlimited.
func (t *task) limit(d time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.settled || t.off {
		return
	}
	if t.timer != nil {
		t.timer.Stop()
	}
	if t.timer = nil; d > 0 {
		t.timer = time.AfterFunc(d, func() { t.overdue(d) })
	}
}

// overdue cancels a task that has taken too long, or gives it up.
func (t *task) overdue(limit time.Duration) {
	if t.cancel == nil {
		t.giveUp()
		return
	}
	t.cancel(&timeoutError{limit, t.doing()})
}

// timeoutError is the cause of the cancellation of a task that has taken too long.
type timeoutError struct {
	limit time.Duration
	doing string
}

func (e *timeoutError) Error() string {
	return "it took longer than " + notation.FormatDuration(e.limit) + bracketed(e.doing)
}

func (e *timeoutError) Unwrap() error { return sandpit.ErrUnavailable }

// calledOff is called when the context of a cancelable task has ended.
func (t *task) calledOff() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.settled || t.off {
		return
	}
	t.off = true
	if t.timer != nil {
		t.timer.Stop()
	}
	t.timer = time.AfterFunc(t.engine.opts.Patience.Undo, t.giveUp)
}

// settle notes that the task ends now, and reports whether a caller still waits.
func (t *task) settle() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.settled = true
	if t.timer != nil {
		t.timer.Stop()
	}
	return t.since.IsZero()
}

// giveUp ends the wait for the task. It closes t.stuck last, because end waits for that to
// undo and report a complete state.
func (t *task) giveUp() {
	t.mu.Lock()
	if t.settled || !t.since.IsZero() {
		t.mu.Unlock()
		return
	}
	t.since = time.Now()
	s, namespace := t.sandbox, t.namespace
	t.mu.Unlock()
	t.engine.tasks.count(namespace, 1)
	if s != nil {
		s.mu.Lock()
		s.stuck = t
		removing := s.removing
		s.mu.Unlock()
		if removing {
			s.closeGuest() // callers that wait for its processes are told
		}
	}
	is := t.describe()
	t.engine.opts.Hangs(is, false)
	if s != nil {
		s.event(sandpit.EventFailed, is.String())
	}
	close(t.stuck)
}

// end notes that the task has ended.
func (t *task) end(err error) {
	waited := t.settle()
	if !waited {
		<-t.stuck
	}
	t.mu.Lock()
	s, namespace := t.sandbox, t.namespace
	t.mu.Unlock()
	if !waited {
		t.engine.tasks.count(namespace, -1)
	}
	if s != nil && !waited {
		s.mu.Lock()
		if s.stuck == t {
			s.stuck = nil
		}
		s.mu.Unlock()
	}
	t.err = err
	e := t.engine
	e.tasks.mu.Lock()
	delete(e.tasks.all, t)
	e.tasks.mu.Unlock()
	close(t.done)
	if !waited {
		e.opts.Hangs(t.describe(), true)
	}
}

// concerns sets the sandbox of the task.
func (t *task) concerns(s *Sandbox) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.sandbox, t.about, t.namespace = s, "sandbox "+s.Name(), s.namespace
}

// enter notes a step of the engine.
func (t *task) enter(step string) {
	enter(&t.progress, step)
}

func enter(p *driver.Progress, step string) {
	is := p.Now()
	is.Step = step
	p.Enter(is)
}

// wait returns the task's result, or an error when it is stuck or ctx ends.
func (t *task) wait(ctx context.Context) error {
	select {
	case <-t.done:
		return t.err
	default:
	}
	select {
	case <-t.done:
		return t.err
	case <-t.stuck:
		return t.stuckError()
	case <-ctx.Done():
		return ctx.Err()
	}
}

// ended reports whether the task has ended.
func (t *task) ended() bool {
	select {
	case <-t.done:
		return true
	default:
		return false
	}
}

// isStuck reports whether the task was given up.
func (t *task) isStuck() bool {
	select {
	case <-t.stuck:
		return true
	default:
		return false
	}
}

// errStuck matches the errors of stuck tasks.
var errStuck = fmt.Errorf("%w", sandpit.ErrUnavailable)

func (t *task) stuckError() error {
	return sandpit.WithHint(fmt.Errorf("%s: %w", t.describe(), errStuck),
		"check the kernel log for a hanging file system; cleanup continues when the kernel, the file system or the sandbox responds, or after a restart of the machine")
}

// doing describes what the task waits for. If it waits for another task of the same
// sandbox, it describes that one.
func (t *task) doing() string {
	if d := t.progress.Now(); d.Step != "" {
		return d.String()
	}
	t.mu.Lock()
	s := t.sandbox
	t.mu.Unlock()
	if s == nil {
		return ""
	}
	for _, other := range t.engine.tasks.list() {
		other.mu.Lock()
		same := other != t && other.sandbox == s
		other.mu.Unlock()
		if d := other.progress.Now(); same && d.Step != "" {
			return d.String()
		}
	}
	return ""
}

func bracketed(text string) string {
	if text == "" {
		return ""
	}
	return " (" + text + ")"
}

func (t *task) describe() Stuck {
	doing := t.doing()
	t.mu.Lock()
	defer t.mu.Unlock()
	s := Stuck{What: strings.TrimSpace(t.what + " " + t.about), Namespace: t.namespace, Doing: doing, Since: t.since}
	if t.sandbox != nil {
		s.Sandbox = t.sandbox.id
	}
	return s
}

func (ts *tasks) list() []*task {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	all := make([]*task, 0, len(ts.all))
	for t := range ts.all {
		all = append(all, t)
	}
	return all
}

// Stuck lists what the engine has given up waiting for, oldest first.
func (e *Engine) Stuck() []Stuck {
	var all []Stuck
	for _, t := range e.tasks.list() {
		if s := t.describe(); !s.Since.IsZero() {
			all = append(all, s)
		}
	}
	slices.SortFunc(all, func(a, b Stuck) int { return a.Since.Compare(b.Since) })
	return all
}

// StuckCount returns the number of stuck tasks, at little cost.
func (e *Engine) StuckCount() int {
	all, _, _ := e.tasks.counts("")
	return all
}

// Blocked reports whether so many tasks are stuck that no sandboxes are created.
func (e *Engine) Blocked() bool {
	_, blocking, _ := e.tasks.counts("")
	return blocking >= maxStuck
}

// mayTry refuses to begin an operation that could get stuck if too many are.
func (e *Engine) mayTry(namespace string) error {
	all, blocking, own := e.tasks.counts(namespace)
	if blocking < maxStuck && own < maxStuckSpace {
		return nil
	}
	return &sandpit.RetryError{
		Err: sandpit.WithHint(fault.Errorf(sandpit.ErrExhausted, "too many operations are stuck (%d)", all),
			"check the server's log and the kernel log (dmesg): the kernel or a file system hangs"),
		After: stuckRetry,
	}
}

// try is mayTry for making a sandbox, and for Read. It also waits while maxStuckSpace
// others of the namespace are under way, which bounds how many can hang before the first of them is
// given up. The caller calls giveBack after the operations that may hang.
func (e *Engine) try(ctx context.Context, t *task, namespace string) (giveBack func(), err error) {
	return e.place(ctx, t, namespace, false)
}

// waitingForOthers is the step of a task that waits for a place.
const waitingForOthers = "waiting for other operations"

// place does what try does; with pulls, for fetching images from registries.
func (e *Engine) place(ctx context.Context, t *task, namespace string, pulls bool) (giveBack func(), err error) {
	if err := e.mayTry(namespace); err != nil {
		return nil, fmt.Errorf("%s: %w", t.describe().What, err)
	}
	e.mu.Lock()
	places := e.space(namespace).tries
	if pulls {
		places = e.space(namespace).pulls
	}
	e.mu.Unlock()
	giveBack = sync.OnceFunc(func() { <-places })
	select {
	case places <- struct{}{}:
		return giveBack, nil
	default:
	}
	t.enter(waitingForOthers)
	select {
	case places <- struct{}{}:
		if ctx.Err() == nil {
			return giveBack, nil
		}
		giveBack()
	case <-ctx.Done():
	}
	return nil, fmt.Errorf("%s: %w", t.describe().What, context.Cause(ctx))
}

// Read runs f, which reads from a disk of the server that may hang, as a task. what
// describes it: "searching the audit". At most maxStuckSpace run at a time; others wait. f
// is canceled when ctx ends, or when it has neither ended nor called progress for
// Patience.Read. If it does not end then, it is stuck, and Read returns without it.
func (e *Engine) Read(ctx context.Context, what string, f func(ctx context.Context, progress func(step string)) error) error {
	inner, cancel := context.WithCancelCause(ctx)
	t := &task{what: what, namespace: readSpace, cancel: cancel}
	limit := e.opts.Patience.Read
	e.start(inner, t, limit, func(ctx context.Context) error {
		giveBack, err := e.try(ctx, t, readSpace)
		if err != nil {
			return err
		}
		defer giveBack()
		return f(ctx, func(step string) {
			t.enter(step)
			t.limit(limit)
		})
	})
	err := t.wait(ctx)
	var timeout *timeoutError
	if err != nil && t.ended() && errors.As(context.Cause(inner), &timeout) {
		return fmt.Errorf("%s: %w", what, timeout)
	}
	return err
}

// explainCancel adds the cause of a cancellation to an error.
func explainCancel(ctx context.Context, name string, err error) error {
	cause := context.Cause(ctx)
	var timeout *timeoutError
	switch {
	case err == nil || ctx.Err() == nil:
		return err
	case cause == errRemoved:
		return fault.Errorf(sandpit.ErrClosed, "sandbox %s was removed while it was being created", name)
	case errors.As(cause, &timeout):
		return fmt.Errorf("creating sandbox %s: %w", name, cause)
	}
	return err
}
