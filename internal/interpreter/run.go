package interpreter

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/fault"
)

func checkEnv(env []string) error {
	for _, v := range env {
		if i := strings.IndexByte(v, '='); i <= 0 || strings.Contains(v, "\x00") {
			return fault.Errorf(sandpit.ErrInvalid, "%.80q is not a variable of the form NAME=VALUE", v)
		}
	}
	return nil
}

// Run runs code. See sandpit.Coder. begins, unless nil, is called before anything that comes of the run with the number that the
// result will have, unless that is not known then: there is no context, or its interpreter is of an earlier version.
func (m *Manager) Run(ctx context.Context, code sandpit.Code, allow Allow, begins func(run int)) (sandpit.CodeResult, error) {
	switch {
	case len(code.Source) > sandpit.MaxCode:
		return sandpit.CodeResult{}, sandpit.WithHint(fault.Errorf(sandpit.ErrInvalid, "the code is longer than %d MiB", sandpit.MaxCode>>20), "put data into files of the sandbox")
	case !utf8.ValidString(code.Source):
		return sandpit.CodeResult{}, fault.Errorf(sandpit.ErrInvalid, "the code is not UTF-8")
	case code.Timeout < 0:
		return sandpit.CodeResult{}, fault.Errorf(sandpit.ErrInvalid, "the timeout is negative")
	}
	if err := checkEnv(code.Env); err != nil {
		return sandpit.CodeResult{}, err
	}
	if o, ok := onceOf(code.Language); ok && code.Context == "" {
		return o.run(ctx, m.place, code)
	}
	c, err := m.forRun(ctx, code.Context, code.Language, allow)
	if err == nil && c.language.lines != nil {
		err = c.language.lines.check(code)
	}
	if err != nil {
		return sandpit.CodeResult{}, err
	}
	if err := c.enter(ctx, code.Waits); err != nil {
		return sandpit.CodeResult{}, err
	}
	defer c.leave()
	is, err := c.running(ctx)
	if err != nil {
		return sandpit.CodeResult{}, err
	}
	r := &run{c: c, is: is, code: code, begins: begins, nonce: random(), moved: make(chan struct{}, 1), order: newOrder()}
	return r.do(ctx)
}

// run is a run of code in an interpreter.
type run struct {
	c     *state
	is    *instance
	code  sandpit.Code
	nonce string

	begins func(run int) // or nil

	moved    chan struct{} // output came
	order    *order        // of the values among that
	sent     atomic.Bool   // the request was sent
	stopping atomic.Bool   // it was interrupted: if it has not begun yet, it does not begin
	silenced atomic.Bool   // the caller wants nothing more

	mu    sync.Mutex
	conn  net.Conn // nil: not dialled yet
	lanes []*lane
	all   <-chan struct{} // closed when all output has been passed on
	leave func()

	// Of what came on the channel. Set when talk has returned.
	truncated bool
	done      *message
	err       error

	main    *output // the value of the last expression, which comes after everything that was printed
	release func()  // gives its memory back
}

// errNotBegun is the error of a channel whose run was called off before it began.
var errNotBegun = errors.New("the run was called off before it began")

// do carries the run out. The caller has the turn.
func (r *run) do(ctx context.Context) (res sandpit.CodeResult, err error) {
	began := time.Now()
	res.Context = r.c.id
	r.c.mu.Lock()
	if r.c.lost != "" {
		res.StateLost = "the interpreter was started again without its state: " + r.c.lost
		r.c.lost = ""
	}
	r.c.mu.Unlock()
	r.c.activate(r)
	defer r.c.activate(nil)

	// Neither the code nor the caller must hold the end of the run up: the channel has a goroutine.
	inner, cancel := context.WithCancel(context.WithoutCancel(ctx))
	over := make(chan struct{})
	go func() {
		defer close(over)
		defer fault.Protect("handling what the code sends", func(err error) { r.err = err })
		if r.c.language.lines != nil {
			r.err = r.talkLines(inner)
		} else {
			r.err = r.talk(inner)
		}
	}()
	defer func() {
		if err != nil {
			go func() {
				<-over
				r.show(nil, nil) // gives the memory back
			}()
		}
	}()
	defer r.end(cancel)
	ended, timedOut, err := r.await(ctx, over)
	res.TimedOut, res.Wall = timedOut, time.Since(began)
	if err != nil {
		return res, err
	}
	if ended {
		if err := r.drain(ctx, over); err != nil {
			return res, err
		}
		if r.is.err != nil {
			return res, r.is.err
		}
		if broke, ok := r.err.(*fault.Panic); ok {
			return res, broke
		}
		res.InterpreterEnd, res.ExitCode = r.is.why(), r.is.result.ExitCode
	}
	res.Truncated = r.truncated || r.c.m.place.Full(r.is.process.ID())
	r.show(nil, nil)
	if d := r.done; d != nil {
		if d.Unable && r.c.language.tooOld != "" {
			return res, r.c.language.unable()
		}
		res.Run = max(0, d.Count)
		res.Error = (*sandpit.CodeError)(d.Error)
		if !ended {
			res.ExitCode = d.exitCode
		}
	}
	return res, nil
}

// await waits until the run is over or its interpreter has ended. At the timeout, and if ctx ends, it
// interrupts the run, and later kills the interpreter. The error is that of ctx or the sandbox.
func (r *run) await(ctx context.Context, over <-chan struct{}) (ended, timedOut bool, err error) {
	var limit, again, last <-chan time.Time
	if r.code.Timeout > 0 {
		limit = time.After(r.code.Timeout)
	}
	called, complete := ctx.Done(), make(chan struct{})
	why := ""
	interrupt := func() error {
		undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), killPatience)
		defer cancel()
		return r.c.interrupt(undo)
	}
	stop := func() error {
		r.stopping.Store(true)
		again, last = time.After(grace/2), time.After(grace)
		why = "the interpreter was killed because it went on after it had been interrupted"
		return interrupt()
	}
	for {
		select {
		case <-over:
			over = nil
			switch {
			case r.done != nil:
				go r.marked(complete)
			case r.err == errNotBegun:
				return false, timedOut, ctx.Err()
			case last == nil:
				wait := grace // it is about to end
				if r.err != io.EOF && r.err != io.ErrUnexpectedEOF {
					wait = 0
				}
				last = time.After(wait)
				why = "the interpreter was killed because " + r.err.Error()
				if r.err != errForged {
					why = "the interpreter was killed because its channel broke: " + r.err.Error()
				}
			}
		case <-complete:
			return false, timedOut, ctx.Err()
		case <-r.is.exited:
			return true, timedOut, ctx.Err()
		case <-limit:
			limit, timedOut = nil, true
			err = stop()
		case <-called:
			called = nil
			err = stop()
		case <-again: // a program that was about to wait misses the first one
			again = nil
			err = interrupt()
		case <-last:
			last = nil
			undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), killPatience)
			err = r.is.kill(undo, why)
			cancel()
		}
		if err != nil {
			return false, timedOut, err
		}
	}
}

// fullLook is the interval at which a run that waits for its marks looks whether they were dropped.
const fullLook = 10 * time.Millisecond

// marked closes complete when the outputs have passed their marks on, or never will because their
// limit is reached.
func (r *run) marked(complete chan<- struct{}) {
	defer close(complete)
	for i, l := range r.lanes {
		if r.done.Marked&(i+1) == 0 {
			continue
		}
		for wait := true; wait && !r.silenced.Load(); {
			select {
			case <-l.marked:
				wait = false
			default:
				if r.c.m.place.Full(r.is.process.ID()) {
					r.passLines()
					return
				}
				select {
				case <-l.marked:
				case <-r.moved:
				case <-time.After(fullLook):
				case <-r.all: // it has left, or the process has ended
					r.passLines()
					return
				}
			}
		}
	}
}

// passLines passes on the lines whose rest does not come.
func (r *run) passLines() {
	for _, l := range r.lanes {
		l.mu.Lock()
		l.passLine()
		l.mu.Unlock()
	}
}

// drain waits for the rest of what an interpreter that has ended has sent.
func (r *run) drain(ctx context.Context, over <-chan struct{}) error {
	undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), killPatience)
	defer cancel()
	_ = r.is.process.Kill(undo) // children may hold its channel open
	r.mu.Lock()
	conn, all := r.conn, r.all
	r.mu.Unlock()
	if conn != nil {
		_ = conn.SetReadDeadline(time.Now().Add(grace))
	}
	for _, wait := range []<-chan struct{}{all, over} {
		if wait == nil {
			continue
		}
		select {
		case <-wait:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	for _, l := range r.lanes {
		l.flush()
	}
	return nil
}

// show passes an output on, or keeps it if it is the main one. Then next may be nil.
func (r *run) show(next *output, release func()) {
	if r.main != nil {
		if r.code.Output != nil && !r.silenced.Load() {
			r.code.Output(r.main.sandpit())
		}
		r.release()
		r.main = nil
	}
	if next != nil {
		r.main, r.release = next, release
	}
	if next != nil && !next.Main {
		r.show(nil, nil)
	}
}

// end ends everything that the run has begun.
func (r *run) end(cancel func()) {
	cancel()
	r.silenced.Store(true)
	r.order.end()
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, l := range r.lanes {
		l.closed.Store(true)
	}
	if r.leave != nil {
		r.leave()
	}
	if r.conn != nil {
		_ = r.conn.Close()
	}
}

// greeted takes a greeting.
func (r *run) greeted(hello *message) {
	r.c.learn(hello)
	if r.begins != nil && hello.Runs != nil && !r.silenced.Load() {
		r.begins(max(0, *hello.Runs) + 1)
	}
}

// talk has the code run, over a channel of its own, until that is done or breaks.
func (r *run) talk(ctx context.Context) error {
	conn, err := r.c.m.place.DialUnix(ctx, r.is.socket)
	if err != nil {
		return err
	}
	r.mu.Lock()
	r.conn = conn
	r.mu.Unlock()
	if ctx.Err() != nil {
		_ = conn.Close()
		return ctx.Err()
	}
	in := newReader(&bounded{conn, maxRun}, r.c.m.place.Charge)
	hello, release, err := in.next()
	if err != nil {
		return err
	}
	r.greeted(&hello)
	release()
	begin := random()
	if err := r.open(begin, false); err != nil {
		return err
	}
	line, err := json.Marshal(request{Begin: begin, Run: r.nonce, Code: r.code.Source, Env: r.code.Env})
	if err != nil {
		return err
	}
	if r.stopping.Load() {
		return errNotBegun
	}
	if _, err := conn.Write(append(line, '\n')); err != nil {
		return err
	}
	r.sent.Store(true)
	defer r.order.end()
	for n := 1; ; n++ {
		m, release, err := in.next()
		if err != nil {
			return err
		}
		r.truncated = r.truncated || m.Truncated
		if m.Truncated && m.After == 0 || r.c.m.place.Full(r.is.process.ID()) { // a place that does not come
			r.order.end()
		}
		if m.Output != nil && n <= sandpit.MaxCodeOutputs {
			r.order.await(m.After)
			r.show(m.Output, release)
			r.order.pass(m.After)
			continue
		}
		release()
		switch {
		case m.Done == r.nonce:
			r.done = &m
			return nil
		case len(in.only) > 0:
			return errForged
		case n > sandpit.MaxCodeOutputs: // decoding more, without end, would take the server's time
			r.truncated, in.only = true, []byte(r.nonce)
			r.order.end()
		}
	}
}

// open passes the output between the mark of begin and that of the run on.
func (r *run) open(begin string, texts bool) (err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lanes = []*lane{newLane(r.code.Stdout, begin, r.nonce, texts, r.moved), newLane(r.code.Stderr, begin, r.nonce, texts, r.moved)}
	if !texts {
		r.lanes[0].inOrder(r.order, r.nonce)
	}
	r.all, r.leave, err = r.c.m.place.Follow(r.is.process.ID(), r.lanes[0], r.lanes[1])
	return err
}

// tellInterrupt asks the program on the channel to interrupt the run. If the program does not read, it is
// killed later.
func (r *run) tellInterrupt() {
	r.mu.Lock()
	conn := r.conn
	r.mu.Unlock()
	if conn == nil || !r.sent.Load() {
		return
	}
	_ = conn.SetWriteDeadline(time.Now().Add(grace))
	_, _ = conn.Write([]byte("{\"interrupt\":true}\n"))
}
