package engine

import (
	"context"
	"io"
	"sync"
	"syscall"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/fault"
)

// process is a process as seen by one client: the one that started it, or an attached one.
type process struct {
	h          *broadcaster
	reader     *reader // of its output; nil: none, or directly
	stdin      io.WriteCloser
	foreground bool

	attached bool
	once     sync.Once
	left     chan struct{} // closed by Detach; nil if not attached
}

var (
	_ sandpit.Process       = (*process)(nil)
	_ sandpit.GroupSignaler = (*process)(nil)
	_ sandpit.Detacher      = (*process)(nil)
	_ sandpit.Backgrounder  = (*process)(nil)
)

// ID identifies the process.
func (p *process) ID() string { return p.h.info.ID }

// PID returns the process id inside the sandbox.
func (p *process) PID() int { return p.h.info.PID }

// StartedAt returns when the process was started, as Processes does.
func (p *process) StartedAt() time.Time { return p.h.info.StartedAt }

// User returns the user whose process it is, as lists name it.
func (p *process) User() string { return p.h.info.User }

// Stdin writes to standard input, or is nil.
func (p *process) Stdin() io.WriteCloser { return p.stdin }

// use calls f for a process that has not ended, while its sandbox is kept from
// being idle.
func (p *process) use(ctx context.Context, f func(sandpit.Process) error) error {
	if err := p.h.sandbox.enter(ctx); err != nil {
		return err
	}
	defer p.h.sandbox.leave()
	if err := f(p.h.process); err != nil {
		return p.h.sandbox.explain(err)
	}
	return nil
}

func (p *process) ended() bool {
	select {
	case <-p.h.done:
		return true
	default:
		return p.h.process == nil
	}
}

// Signal sends a signal.
func (p *process) Signal(ctx context.Context, sig syscall.Signal) error {
	if p.ended() {
		return fault.NotFoundf("sending signal %d: the process has exited", int(sig))
	}
	return p.use(ctx, func(g sandpit.Process) error { return g.Signal(ctx, sig) })
}

// SignalGroup signals the process group of the program. See sandpit.GroupSignaler.
func (p *process) SignalGroup(ctx context.Context, sig syscall.Signal) error {
	if p.ended() {
		return fault.NotFoundf("sending signal %d: the process has exited", int(sig))
	}
	return p.use(ctx, func(g sandpit.Process) error {
		if g, ok := g.(sandpit.GroupSignaler); ok {
			return g.SignalGroup(ctx, sig)
		}
		return g.Signal(ctx, sig)
	})
}

// Resize changes the terminal's size.
func (p *process) Resize(ctx context.Context, size sandpit.TerminalSize) error {
	if p.ended() {
		return fault.NotFoundf("resizing the terminal: the process has exited")
	}
	return p.use(ctx, func(g sandpit.Process) error { return g.Resize(ctx, size) })
}

// Kill kills the process and everything that it started.
func (p *process) Kill(ctx context.Context) error {
	if p.h.process == nil || p.h.sandbox.present() == "" {
		return nil // it has ended, with its sandbox if not before
	}
	return p.use(ctx, func(g sandpit.Process) error { return g.Kill(ctx) })
}

// Wait waits for the end, and until the output has been delivered.
func (p *process) Wait(ctx context.Context) (sandpit.Result, error) {
	h := p.h
	if h.process != nil {
		res, err := h.process.Wait(ctx)
		if err != nil && ctx.Err() != nil {
			return res, err
		}
		h.end(res, err) // the first caller does it
	}
	if p.reader != nil {
		select {
		case <-p.reader.done:
		case <-ctx.Done():
			return sandpit.Result{}, ctx.Err()
		}
		if broke := p.reader.broke.Load(); broke != nil {
			return sandpit.Result{}, *broke
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.result, h.err
}

// Background moves the process to the background. See sandpit.Backgrounder.
func (p *process) Background(context.Context) error {
	h := p.h
	if !h.sandbox.persistent && !h.info.Background {
		return fault.Errorf(sandpit.ErrUnsupported, "moving process %d to the background: its sandbox ends with its client", h.info.PID)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.moved = true
	return nil
}

// Detach gives the process up. See sandpit.Detacher.
func (p *process) Detach() {
	p.once.Do(func() {
		if p.reader != nil {
			p.h.leave(p.reader)
		}
		if w, ok := p.stdin.(*stdinWriter); ok {
			w.leave()
		}
		if p.foreground {
			p.h.unwaited()
		}
		if p.left != nil {
			close(p.left)
		}
	})
}
