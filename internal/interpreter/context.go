package interpreter

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"syscall"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/fault"
)

// state is a context.
type state struct {
	m        *Manager
	id       string
	language language
	found    bool          // it was found, and not used since; guarded by m.mu
	turn     chan struct{} // has room for one: held by a run, and while an interpreter starts
	gone     chan struct{} // closed when the context is removed

	signals chan struct{} // has room for one: held while a signal is sent, so that none comes after its run

	mu      sync.Mutex // guards all below
	cost    int64      // that the sandbox is charged for it, in bytes
	dir     string
	env     []string
	known   bool // dir and env are; of one that an earlier server has left they are not
	created time.Time
	waiting int       // runs that wait for their turn, or have it
	is      *instance // the present interpreter; nil: none
	stale   []string  // sockets of earlier ones
	lost    string    // why the state of the earlier one is lost, which the next run tells
	active  *run      // that is carried out now; nil: none
}

// instance is an interpreter.
type instance struct {
	process sandpit.Process
	socket  string
	exited  chan struct{} // closed when it has ended, and the fields below are set
	result  sandpit.Result
	err     error

	mu     sync.Mutex
	killed string // why it was killed by us
}

func newInstance(p sandpit.Process, socket string) *instance {
	i := &instance{process: p, socket: socket, exited: make(chan struct{})}
	go func() {
		i.result, i.err = p.Wait(context.Background())
		close(i.exited)
	}()
	return i
}

func (i *instance) ended() bool {
	select {
	case <-i.exited:
		return true
	default:
		return false
	}
}

// Bounds of times.
const (
	startPatience = time.Minute     // for an interpreter to start
	grace         = 2 * time.Second // for an interrupted run to end, and for an interpreter that has closed its channel
	killPatience  = 30 * time.Second
)

// restarted is why an interpreter was killed that was to be.
const restarted = "the context was restarted"

// ends notes why the interpreter is about to end, unless that is known.
func (i *instance) ends(why string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.killed == "" && !i.ended() {
		i.killed = why
	}
}

// kill kills the interpreter and all that it has started. why is the reason that the run is told.
func (i *instance) kill(ctx context.Context, why string) error {
	i.ends(why)
	if err := i.process.Kill(ctx); err != nil {
		return err
	}
	select { // so that the next run does not take it
	case <-i.exited:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// why says why an interpreter has ended.
func (i *instance) why() string {
	i.mu.Lock()
	defer i.mu.Unlock()
	r := i.result
	switch {
	case i.killed != "":
		return i.killed
	case i.err != nil:
		return i.err.Error()
	case r.TimedOut:
		return "the interpreter was killed at the end of its time"
	case r.OOMKilled:
		return "the interpreter was killed because the sandbox is out of memory"
	case r.Signal != 0:
		return fmt.Sprintf("the interpreter was killed by signal %d (%s)", r.Signal, syscall.Signal(r.Signal))
	}
	return fmt.Sprintf("the interpreter exited with code %d", r.ExitCode)
}

// enter waits for the turn. It calls waits, unless nil, with the number of those before it, if there are some.
func (c *state) enter(ctx context.Context, waits func(int)) error {
	c.mu.Lock()
	before := c.waiting
	if before > sandpit.MaxCodeRuns {
		c.mu.Unlock()
		return sandpit.WithHint(fault.Errorf(sandpit.ErrExhausted, "%d runs wait for the context %q", sandpit.MaxCodeRuns, c.id), "wait for them, or use another context")
	}
	c.waiting++
	c.mu.Unlock()
	if before > 0 && waits != nil {
		waits(before)
	}
	err := func() error {
		select {
		case c.turn <- struct{}{}:
		case <-c.gone:
		case <-ctx.Done():
			return ctx.Err()
		}
		select {
		case <-c.gone: // whoever waits for the turn sees that, too
			return fault.Errorf(sandpit.ErrNotFound, "the context %q was removed", c.id)
		default:
			return nil
		}
	}()
	if err != nil {
		c.mu.Lock()
		c.waiting--
		c.mu.Unlock()
	}
	return err
}

// leave gives the turn to the next run.
func (c *state) leave() {
	c.mu.Lock()
	c.waiting--
	c.mu.Unlock()
	<-c.turn
}

func (c *state) describe() sandpit.CodeContext {
	c.mu.Lock()
	defer c.mu.Unlock()
	d := sandpit.CodeContext{ID: c.id, Language: c.language.name, Dir: c.dir, CreatedAt: c.created, Busy: c.active != nil}
	if c.is != nil && !c.is.ended() {
		d.Process = c.is.process.ID()
	}
	return d
}

// interrupt interrupts the present run.
func (c *state) interrupt(ctx context.Context) error {
	select { // the guest may take long for the signal of another caller
	case c.signals <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-c.signals }()
	c.mu.Lock()
	r, is, known := c.active, c.is, c.known
	c.mu.Unlock()
	if r == nil && !known && is != nil && !is.ended() {
		return is.interrupt(ctx) // perhaps a run of an earlier server is in progress
	}
	if r == nil || r.is.ended() {
		return nil
	}
	if err := r.is.interrupt(ctx); err != nil {
		return err
	}
	if c.language.interruptByMessage {
		r.tellInterrupt()
	}
	return nil
}

// interrupt sends the signal of ^C.
func (i *instance) interrupt(ctx context.Context) error {
	signal := i.process.Signal
	if g, ok := i.process.(sandpit.GroupSignaler); ok { // with the children that it waits for
		signal = g.SignalGroup
	}
	if err := signal(ctx, syscall.SIGINT); err != nil && !errors.Is(err, sandpit.ErrNotFound) {
		return err
	}
	return nil
}

// discover asks an interpreter that an earlier server has started how that was, before it is killed. It
// must answer soon: a run that the earlier server has begun is interrupted.
func (c *state) discover(ctx context.Context) {
	c.mu.Lock()
	is, known := c.is, c.known
	c.mu.Unlock()
	if known || is == nil || is.ended() {
		return
	}
	select {
	case c.turn <- struct{}{}:
		defer func() { <-c.turn }()
	default:
		return // a run asks
	}
	ctx, cancel := context.WithTimeout(ctx, grace)
	defer cancel()
	_ = is.interrupt(ctx) // if that fails, it is perhaps idle
	conn, err := c.m.place.DialUnix(ctx, is.socket)
	if err != nil {
		return
	}
	defer conn.Close()
	_ = conn.SetReadDeadline(time.Now().Add(grace))
	if m, release, err := newReader(conn, c.m.place.Charge).next(); err == nil {
		if m.Hello == 1 {
			c.learn(&m)
		}
		release()
	}
}

// kill kills the interpreter, if there is one.
func (c *state) kill(ctx context.Context, why string) error {
	c.mu.Lock()
	is := c.is
	c.mu.Unlock()
	if is == nil {
		return nil
	}
	return is.kill(ctx, why)
}

// activate notes which run is carried out, or none.
func (c *state) activate(r *run) {
	c.signals <- struct{}{}
	defer func() { <-c.signals }()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.active = r
}

// running returns the interpreter, and starts one if there is none. The caller has the turn.
func (c *state) running(ctx context.Context) (*instance, error) {
	c.mu.Lock()
	is := c.is
	if is != nil && !is.ended() {
		c.mu.Unlock()
		return is, nil
	}
	if is != nil {
		c.is, c.lost = nil, is.why()
		switch {
		case !c.known:
			c.known, c.lost = true, c.lost+"; its working directory and variables are those of the sandbox now"
		case c.lost == restarted: // who asked for it knows
			c.lost = ""
		}
		c.stale = append(c.stale, is.socket)
	}
	s := setup{Language: c.language.name, Socket: Sockets + random(), Nonce: random(), Stale: c.stale, MaxLine: maxLine, Dir: c.dir, Env: c.env}
	c.mu.Unlock()
	if is != nil {
		_ = is.process.Kill(ctx) // what it has left behind
	}
	is, err := c.language.start(ctx, c.m.place, identity{tag, c.id, c.language, s.Socket}.command(), Fork, s)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.is, c.stale = is, nil
	return is, nil
}

// start starts an interpreter and waits until it listens.
func (l language) start(ctx context.Context, place Starter, argv []string, o Origin, s setup) (*instance, error) {
	if s.Stale == nil {
		s.Stale = []string{}
	}
	if s.Env == nil {
		s.Env = []string{}
	}
	source, err := l.source(s)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, startPatience, fault.Errorf(sandpit.ErrUnavailable, "starting the %s interpreter: it was not ready after %s", l.name, startPatience))
	defer cancel()
	p, err := place.Start(ctx, sandpit.Command{Argv: argv, Dir: s.Dir, Env: s.Env, Stdin: true, Background: true}, o)
	if err != nil {
		return nil, missing(err, l.absent())
	}
	is := newInstance(p, s.Socket)
	if err := l.ready(ctx, place, is, source, s.Nonce); err != nil {
		undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), killPatience)
		defer cancel()
		_ = is.kill(undo, "it did not start")
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return nil, err
	}
	return is, nil
}

// ready gives an interpreter its program and waits until it listens.
func (l language) ready(ctx context.Context, place Starter, is *instance, source, nonce string) error {
	said := new(tail)
	moved := make(chan struct{}, 1)
	stdout, stderr := newLane(said, "", nonce, false, moved), newLane(said, "", nonce, false, moved)
	done, leave, err := place.Follow(is.process.ID(), stdout, stderr)
	if err != nil {
		return err
	}
	defer leave()
	if _, err = io.WriteString(is.process.Stdin(), source); err == nil && l.lines == nil {
		err = is.process.Stdin().Close()
	}
	for _, out := range []*lane{stdout, stderr} {
		if err != nil {
			break
		}
		select {
		case <-out.marked:
		case <-is.exited:
			<-done
			if l.wrappedProgram != "" && is.result.ExitCode == 127 {
				return l.absent()
			}
			return fault.Errorf(sandpit.ErrUnavailable, "starting the %s interpreter: %s: %.500q", l.name, is.why(), said.last())
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return err
}

// learn takes from a greeting what only the interpreter knows, after a restart of the server.
func (c *state) learn(m *message) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.known {
		return
	}
	c.known = true
	if len(m.Dir) <= maxDir {
		c.dir = m.Dir
	}
	if env := m.env(); checkEnv(env) == nil {
		c.env = env
	}
	more := sizeOf(c.dir, c.env)
	c.cost += more
	c.m.place.Add(more)
}
