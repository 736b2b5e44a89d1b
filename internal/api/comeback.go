package api

import (
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/api/stream"
	v1 "github.com/sandpit-dev/sandpit/internal/api/v1"
	"github.com/sandpit-dev/sandpit/internal/errcode"
	"github.com/sandpit-dev/sandpit/internal/fault"
	"github.com/sandpit-dev/sandpit/internal/gate"
)

// A foreground command is killed when its caller leaves. One that was started with an
// Idempotency-Key waits for its caller to come back with the same request, for a while
// after the last one has left. It gets output that is still kept, and is told how much is not. Its
// standard input goes on where it has stopped, as soon as the connection that fed it has ended or
// has stalled. How much input an earlier server has passed on is not known: after a restart a repeated
// request with input is refused, and the process goes on.

// comeBackTime is the default of Options.ComeBack.
const comeBackTime = time.Minute

// awaited are the foreground processes with an Idempotency-Key. Their number is bounded by that of
// processes, which the ledger counts.
type awaited struct {
	mu  sync.Mutex
	all map[processKey]*foreground // guarded by mu
}

// processKey identifies a process by the IDs of its sandbox and its own.
type processKey struct{ sandbox, process string }

// foreground is a process that its callers wait for.
type foreground struct {
	sandbox sandpit.Sandbox
	process sandpit.Process
	counted bool        // this server has started it, and passes on all its input
	callers int         // guarded by awaited.mu
	timer   *time.Timer // kills it; nil while there are callers; guarded by awaited.mu

	feeding chan struct{} // has room while nobody passes standard input to it
	fed     int64         // bytes that it was given; guarded by feeding
	closed  bool          // and that is all; guarded by feeding
}

func newForeground(sb sandpit.Sandbox, p sandpit.Process) *foreground {
	return &foreground{sandbox: sb, process: p, feeding: make(chan struct{}, 1)}
}

// knows reports whether the server has counted the input of a process.
func (a *awaited) knows(sandbox, process string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	f := a.all[processKey{sandbox, process}]
	return f != nil && f.counted
}

// join adds a caller of a process. One that an earlier server has started gets no input.
func (a *awaited) join(sb sandpit.Sandbox, p sandpit.Process, started bool) *foreground {
	id := processKey{sb.ID(), p.ID()}
	a.mu.Lock()
	defer a.mu.Unlock()
	f := a.all[id]
	if f == nil {
		f = newForeground(sb, p)
		f.counted, f.closed = started, !started
		if a.all == nil {
			a.all = map[processKey]*foreground{}
		}
		a.all[id] = f
	}
	if f.timer != nil {
		f.timer.Stop()
		f.timer = nil
	}
	f.callers++
	return f
}

// leave removes a caller, and reports whether it was the last. After the last one, a process that
// goes on is killed unless somebody joins within a time. A time of 0 leaves it alone.
func (a *awaited) leave(f *foreground, within time.Duration) (last bool) {
	id := processKey{f.sandbox.ID(), f.process.ID()}
	a.mu.Lock()
	defer a.mu.Unlock()
	if f.callers--; f.callers > 0 {
		return false
	}
	if within == 0 {
		delete(a.all, id)
		return true
	}
	f.timer = time.AfterFunc(within, func() {
		a.mu.Lock()
		alone := f.callers == 0 && a.all[id] == f
		if alone {
			delete(a.all, id)
		}
		a.mu.Unlock()
		if alone && !inBackground(f.sandbox, f.process) {
			kill(f.process)
		}
	})
	return true
}

// begin starts a process. With an Idempotency-Key the start goes on for a while when the client
// leaves: the process may run already, and the repeated request must find it.
func (c *call) begin(sb sandpit.Sandbox, cmd sandpit.Command) (sandpit.Process, error) {
	if c.repeat == nil {
		p, err := sb.Start(c.Ctx, cmd)
		c.begun = err != nil && c.Ctx.Err() != nil // the command may have run until it was killed
		return p, err
	}
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(c.Ctx))
	defer cancel(nil)
	defer context.AfterFunc(c.Ctx, func() {
		if why := c.BrokenOff(); why != nil {
			cancel(why)
			return
		}
		time.AfterFunc(killTime, func() { cancel(context.Cause(c.Ctx)) })
	})()
	p, err := sb.Start(ctx, cmd)
	if err != nil && ctx.Err() != nil {
		c.begun = true
	}
	return p, err
}

// started notes the process that the call has started, and binds its Idempotency-Key to that, if it has one.
// Nobody can find a process without an ID again: its answer is kept as that of any other request.
func (c *call) started(sb sandpit.Sandbox, p sandpit.Process) {
	c.runs = p.ID()
	r := c.repeat
	if r == nil || p.ID() == "" {
		return
	}
	r.settled = true
	c.join(sb, p, true) // before a repeated request can find it
	if err := c.api.opts.Idempotency.Finish(context.WithoutCancel(c.Ctx), c.Caller.Namespace, r.key, sb.ID()+"/"+p.ID(), c.route.Status, nil); err != nil {
		c.api.gate.Log().Error("storing the process of an Idempotency-Key failed", "request", c.ID, "error", err)
	}
}

// join makes the call one of the callers of a process.
func (c *call) join(sb sandpit.Sandbox, p sandpit.Process, started bool) {
	c.fore = c.api.awaited.join(sb, p, started)
}

// giveUp gives up a process whose result is not known, because the call has ended for a cause. The
// process is killed with all that it started, unless it was moved to the background, its client may
// come back, another one waits for it, or it is the server that ends: that does not say that nobody
// wants it. A client whose connection or body fails may come back.
func (c *call) giveUp(sb sandpit.Sandbox, p sandpit.Process, cause error) {
	switch {
	case errors.Is(cause, gate.ErrDraining), inBackground(sb, p):
		c.leave(0)
	case c.fore == nil, errors.Is(cause, gate.ErrKeyEnded), errors.Is(cause, errOutput), errors.Is(cause, errUnread):
		if c.leave(0) {
			kill(p)
			return
		}
	default:
		c.leave(c.api.opts.ComeBack)
	}
	leaver(p)()
}

// leave ends what join has begun. It reports whether nobody else waits for the process.
func (c *call) leave(within time.Duration) (last bool) {
	return c.fore == nil || c.api.awaited.leave(c.fore, within)
}

// reattach answers a repeated exec: it attaches to the process of the first, even if the name of its
// sandbox has become that of another.
func (c *call) reattach(in execInput) error {
	sandbox, id, _ := strings.Cut(c.repeated, "/")
	c.Target = sandbox
	sb, err := c.sandbox()
	if errors.Is(err, sandpit.ErrNotFound) || err == nil && sb.ID() != sandbox {
		return c.Untouched(sandpit.WithHint(fault.Errorf(sandpit.ErrNotFound, "the sandbox of the first request with this Idempotency-Key is gone"), "use a new key for each request"))
	}
	if err != nil {
		return err
	}
	info, err := findProcess(c.Ctx, sb, id)
	if err != nil {
		return sandpit.WithHint(err, "the server has forgotten the process of the first request with this Idempotency-Key; its output may be in the logs")
	}
	if in.given() && info.Result == nil && !c.api.awaited.knows(sandbox, id) {
		return &gate.Refusal{
			Code: errcode.OutcomeUnknown, Message: "process " + id + " of the first request with this Idempotency-Key runs, but how much of its standard input it was given is not known, because the server was restarted or the process was moved to the background",
			Hint: "attach to it, or kill it and use a new key",
		}
	}
	if kind := c.prefers(jsonType, v1.StreamType, stream.Events); kind != jsonType {
		return c.reattachStream(sb, info, in, kind)
	}
	out := &capture{c: c}
	p, err := sb.Attach(c.Ctx, id, sandpit.AttachOptions{Stdout: bounded{out, &out.stdout}, Stderr: bounded{out, &out.stderr}, Lost: out.lose, Stdin: in.given()})
	if err != nil {
		return err
	}
	c.join(sb, p, false)
	defer leaver(p)()
	rest := c.feed(p, in)
	res, err := c.await(sb, p)
	rest()
	if err != nil {
		return err
	}
	return c.executed(v1.Executed{Process: v1.FromProcess(info), Result: v1.FromResult(res), Lost: out.lost}, out.stdout.Bytes(), out.stderr.Bytes())
}

func (c *call) reattachStream(sb sandpit.Sandbox, info sandpit.ProcessInfo, in execInput, kind string) error {
	c.duplex(in)
	s := stream.NewResponse(c.Call, kind)
	defer s.Close()
	p, err := c.attachStream(s, sb, info, stream.Attachment(s, true, in.given()))
	if p != nil {
		c.join(sb, p, false)
		defer leaver(p)()
	}
	if err != nil {
		if p != nil {
			c.giveUp(sb, p, err)
		}
		return err
	}
	rest := c.feed(p, in)
	s.Finish(c.await(sb, p))
	rest()
	return nil
}

// bounded is captured for a repeated exec: what is too much is lost, and the process goes on.
type bounded captured

// Write keeps a part.
func (w bounded) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := w.stdout.Len() + w.stderr.Len() + len(b)
	if n > sandpit.DefaultCapture || n > gate.FreeBody && w.c.Hold(gate.InMemory, gate.HeldByte*int64(n)) != nil {
		w.lost += int64(len(b))
		return len(b), nil
	}
	return w.to.Write(b)
}

// lose notes that output was not kept for this caller.
func (o *capture) lose(n int64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.lost += n
}
