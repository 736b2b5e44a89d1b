package client

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"math"
	"net/http"
	"net/url"
	"strconv"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/sandpit-dev/sandpit"
	v1 "github.com/sandpit-dev/sandpit/internal/api/v1"
	"github.com/sandpit-dev/sandpit/internal/fault"
	"github.com/sandpit-dev/sandpit/internal/lanes"
	"github.com/sandpit-dev/sandpit/internal/notation"
)

// process is a process in a sandbox of a server.
type process struct {
	sb  *sandbox
	id  string
	pid int
	in  *stdin
	l   *link // of its stream, or nil

	// done is closed at the end. When no stream tells it, Wait asks for it: one caller
	// at a time, which has put something into turn, which is else nil.
	done chan struct{}
	turn chan struct{}

	detached context.Context // ends with Detach
	detach   context.CancelFunc

	// Set before done is closed.
	res sandpit.Result
	err error
}

var (
	_ sandpit.Process       = (*process)(nil)
	_ sandpit.GroupSignaler = (*process)(nil)
	_ sandpit.Detacher      = (*process)(nil)
	_ sandpit.Backgrounder  = (*process)(nil)
)

// process makes a process from the server's description. Its end is told by a
// stream, or has to be asked for.
func (s *sandbox) process(v v1.Process, asks bool) (*process, error) {
	if v.PID < 0 || v.PID > math.MaxInt32 || v.ID != "" && !isName(v.ID) || asks && v.ID == "" && v.Result == nil {
		return nil, badAnswer("an impossible process")
	}
	p := &process{sb: s, id: v.ID, pid: v.PID, done: make(chan struct{})}
	if asks {
		p.turn = make(chan struct{}, 1)
		p.detached, p.detach = context.WithCancel(context.Background())
	}
	if asks && v.Result != nil {
		p.end(v.Result.Sandpit(), nil)
	}
	return p, nil
}

// end sets how the process ended, once.
func (p *process) end(res sandpit.Result, err error) {
	p.res, p.err = res, err
	close(p.done)
}

// output is where the output of a process goes.
type output struct {
	stdout, stderr io.Writer
	lost           func(int64)
}

// deliver hands the output on until the end of the stream.
func (p *process) deliver(l *link, f frames, out output) {
	r := &reading{p: p, f: f, out: out, ended: make(chan struct{})}
	res, err := r.all(l)
	switch {
	case err == nil:
		// The rest of the answer is only its end: with it, the connection can
		// be used again by whoever waits for this process.
		timer := time.AfterFunc(endGrace, func() { l.cancel(nil) })
		f.finish()
		timer.Stop()
		l.end()
	case isClosed(r.ended):
		err = p.sb.broken(l, err)
		l.end()
		f.finish()
	default:
		err = p.sb.broken(l, err)
		l.end()
		go func() {
			<-r.ended
			f.finish()
		}()
	}
	p.end(res, err)
}

// endGrace is how long the end of an answer may come after the last frame.
const endGrace = 50 * time.Millisecond

// reading is a stream that is being read.
type reading struct {
	p       *process
	f       frames
	out     output
	lanes   *lanes.Lanes // with windows: the outputs, of which one may be stuck
	silence *time.Timer
	handing atomic.Bool // without windows: the caller's code may be called

	ended chan struct{} // closed when err is set
	res   *v1.Result
	err   error
}

// all reads a stream to its last frame. If the link ends while a writer of the caller is stuck,
// all does not wait for that: another goroutine still reads, and calls no writer any more.
func (r *reading) all(l *link) (sandpit.Result, error) {
	// While the output is not read, the server is not silent.
	r.silence = time.AfterFunc(patience, func() { l.cancel(errSilent) })
	if s, ok := r.f.(*socketFrames); ok && s.windows {
		r.lanes = lanes.New(r.out.stdout, r.out.stderr, v1.Window, s.passed, func() {
			s.renew()
			r.follow()
		})
		go r.follow()
		<-r.ended
		if r.lanes.Wait(l.ctx); l.ctx.Err() != nil {
			r.lanes.Drop()
			s.renew() // a write may still go on
			if r.err == nil {
				r.err = l.ctx.Err()
			}
		}
	} else {
		go r.follow()
		select {
		case <-r.ended:
		case <-l.ctx.Done():
			if r.handing.Load() {
				return sandpit.Result{}, l.ctx.Err()
			}
			<-r.ended
		}
	}
	if r.err != nil {
		return sandpit.Result{}, r.err
	}
	return r.res.Sandpit(), nil
}

// follow reads frames until the last, or until another goroutine does.
func (r *reading) follow() {
	for {
		r.silence.Reset(patience)
		kind, b, err := r.f.next()
		r.silence.Stop()
		more := err == nil
		switch {
		case err != nil && r.res != nil: // the result is enough
		case err != nil:
			r.err = err
		case r.lanes != nil && isOutput(kind):
			lane := int(kind - v1.FrameStdout)
			if r.lanes.Waiting(lane)+len(b) > v1.Window {
				more, r.err = false, badAnswer("more output than was asked for")
			} else if !r.lanes.Put(lane, b) {
				return
			}
		default:
			r.handing.Store(true)
			if r.err = r.p.l.ctx.Err(); r.err == nil {
				more, r.err = r.frame(kind, b)
			} else {
				more = false
			}
			r.handing.Store(false)
		}
		if !more {
			close(r.ended)
			return
		}
	}
}

// frame takes a frame, and reports whether more may come.
func (r *reading) frame(kind byte, b []byte) (more bool, err error) {
	in := r.p.in
	switch kind {
	case v1.FrameStdout:
		put(&r.out.stdout, b)
	case v1.FrameStderr:
		put(&r.out.stderr, b)
	case v1.FrameStdinClosed:
		if in != nil {
			in.end()
		}
	case v1.FrameTaken:
		if len(b) == 4 && in != nil && in.room != nil {
			in.room.Give(binary.BigEndian.Uint32(b))
		}
	case v1.FrameLost:
		if len(b) == 8 && r.out.lost != nil {
			r.out.lost(int64(min(binary.BigEndian.Uint64(b), math.MaxInt64)))
		}
	case v1.FrameResult:
		r.res = new(v1.Result)
		if err := json.Unmarshal(b, r.res); err != nil {
			return false, badAnswer("unreadable JSON: " + err.Error())
		}
	case v1.FrameEnd:
		err := endError(b)
		if err == nil && r.res == nil {
			err = badAnswer("a stream that ends without a result")
		}
		return false, err
	}
	return true, nil
}

// put writes to a writer that gets nothing more once it has failed.
func put(w *io.Writer, b []byte) {
	if *w == nil {
		return
	}
	if _, err := (*w).Write(b); err != nil {
		*w = nil
	}
}

// lookPatience is how long it may take to find out why a stream has ended.
const lookPatience = 5 * time.Second

// broken makes the error of a stream without a last frame.
func (s *sandbox) broken(l *link, err error) error {
	var told *remoteError
	ctx, cancel := context.WithTimeout(context.WithoutCancel(l.ctx), lookPatience)
	defer cancel()
	if errors.As(err, &told) {
		return s.explain(ctx, err)
	}
	err = s.c.failed(l.ctx, err)
	if s.removed.Load() {
		return s.gone()
	}
	if errors.Is(err, sandpit.ErrUnavailable) {
		if _, e := s.Info(ctx); errors.Is(e, sandpit.ErrClosed) {
			return e
		}
		err = &InterruptedError{Err: err}
	}
	return err
}

// ID returns the ID of the process. See sandpit.Process.
func (p *process) ID() string { return p.id }

// PID returns the process id inside the sandbox.
func (p *process) PID() int { return p.pid }

// Stdin returns a writer to standard input, or nil.
func (p *process) Stdin() io.WriteCloser {
	if p.in == nil {
		return nil
	}
	return p.in
}

// isClosed reports whether a channel is closed on which nothing is sent.
func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// exited reports whether the process is known to have exited.
func (p *process) exited() bool {
	return isClosed(p.done) && p.err == nil || p.id == ""
}

// request makes a request about the process.
func (p *process) request(ctx context.Context, method, what string, v any) error {
	r := request{method: method, path: p.sb.path + "/processes/" + p.id + what}
	if v != nil {
		var err error
		if r.body, err = encode(v); err != nil {
			return err
		}
	}
	if err := p.sb.open(); err != nil {
		return err
	}
	return p.sb.explain(ctx, p.sb.c.quick(ctx, r, nil))
}

// Signal sends a signal.
func (p *process) Signal(ctx context.Context, sig syscall.Signal) error {
	return p.signal(ctx, sig, false)
}

// SignalGroup sends a signal to the process group that the program leads.
func (p *process) SignalGroup(ctx context.Context, sig syscall.Signal) error {
	return p.signal(ctx, sig, true)
}

func (p *process) signal(ctx context.Context, sig syscall.Signal, group bool) error {
	n, err := notation.SignalNumber(sig)
	if err != nil {
		return err
	}
	if p.exited() {
		return fault.NotFoundf("sending signal %d: the process has exited", int(sig))
	}
	return p.request(ctx, http.MethodPost, "/signal", v1.Signal{Signal: n, Group: group})
}

// Resize changes the size of the terminal.
func (p *process) Resize(ctx context.Context, size sandpit.TerminalSize) error {
	if p.id == "" {
		return fault.NotFoundf("resizing the terminal: the process has exited")
	}
	return p.request(ctx, http.MethodPost, "/resize", v1.Size{Rows: size.Rows, Cols: size.Cols})
}

// Kill kills the process and all its descendants.
func (p *process) Kill(ctx context.Context) error {
	if p.id == "" {
		return nil
	}
	err := p.request(ctx, http.MethodDelete, "", nil)
	if errors.Is(err, sandpit.ErrNotFound) {
		return nil // it ended so long ago that the server has forgotten it
	}
	return err
}

// Background moves the process to the background. See sandpit.Backgrounder.
func (p *process) Background(ctx context.Context) error {
	if p.exited() {
		return nil
	}
	return p.request(ctx, http.MethodPost, "/background", nil)
}

// Detach detaches from the process. A background process continues; another one is
// killed. See sandpit.Detacher.
func (p *process) Detach() {
	if p.l != nil {
		p.l.cancel(errDetached)
	} else {
		p.detach()
	}
}

// Wait waits until the process exits. See sandpit.Process.
func (p *process) Wait(ctx context.Context) (sandpit.Result, error) {
	if !isClosed(p.done) {
		select {
		case <-p.done:
		case <-ctx.Done():
			return sandpit.Result{}, ctx.Err()
		case p.turn <- struct{}{}:
			defer func() { <-p.turn }()
		}
	}
	if isClosed(p.done) {
		return p.res, p.err
	}
	res, err := p.ask(ctx)
	if err != nil && ctx.Err() != nil {
		err = ctx.Err()
	}
	if err == nil {
		p.end(res, nil)
	}
	return res, err
}

// Waiting for a process in the background: how long the server may keep one
// request, and for how long it may be away, as when it is replaced by a newer
// one.
const (
	longPoll = 30 * time.Second
	away     = 30 * time.Second
)

// ask asks for the end of the process until it comes. The server counts whoever asks as
// somebody who waits, so nobody asks for longer than a caller waits.
func (p *process) ask(ctx context.Context) (sandpit.Result, error) {
	c := p.sb.c
	ctx, stop := c.under(ctx)
	defer stop()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(p.detached, func() { cancel(errDetached) })()
	r := request{
		method: http.MethodGet, path: p.sb.path + "/processes/" + p.id + "/wait",
		query: url.Values{"timeout": {strconv.Itoa(int(longPoll / time.Second))}},
	}
	back := newBackoff(away)
	for {
		var v v1.Process
		err := c.within(ctx, longPoll+patience, r, &v)
		switch {
		case err == nil && v.Result != nil:
			return v.Result.Sandpit(), nil
		case err == nil:
			back = newBackoff(away)
		case !passing(err) || !back.wait(ctx, err):
			if ctx.Err() != nil {
				return sandpit.Result{}, c.failed(ctx, ctx.Err())
			}
			ctx, cancel := context.WithTimeout(ctx, lookPatience)
			defer cancel()
			return sandpit.Result{}, p.sb.explain(ctx, err)
		}
	}
}
