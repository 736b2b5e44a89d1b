package engine

import (
	"context"
	"io"
	"net"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/fault"
	"github.com/sandpit-dev/sandpit/internal/interpreter"
	"github.com/sandpit-dev/sandpit/internal/policy"
)

// coder returns the contexts of the sandbox.
func (s *Sandbox) coder() *interpreter.Manager {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.contexts == nil {
		s.contexts = interpreter.New(codePlace{s})
	}
	return s.contexts
}

// use calls f while the sandbox is not idle.
func (s *Sandbox) use(ctx context.Context, f func() error) error {
	if err := s.enter(ctx); err != nil {
		return err
	}
	defer s.leave()
	return f()
}

// RunCode runs code, as Options.Policy allows. See sandpit.Coder.
func (s *Sandbox) RunCode(ctx context.Context, code sandpit.Code) (sandpit.CodeResult, error) {
	return s.runCode(ctx, code, s.engine.opts.Policy, nil)
}

// RunCounted runs code, as Options.Policy allows. See Box.
func (s *Sandbox) RunCounted(ctx context.Context, code sandpit.Code, begins func(run int)) (sandpit.CodeResult, error) {
	return s.runCode(ctx, code, s.engine.opts.Policy, begins)
}

// RunCode runs code. See sandpit.Coder.
func (v view) RunCode(ctx context.Context, code sandpit.Code) (sandpit.CodeResult, error) {
	return v.runCode(ctx, code, v.tenant.policy, nil)
}

// RunCounted runs code. See Box.
func (v view) RunCounted(ctx context.Context, code sandpit.Code, begins func(run int)) (sandpit.CodeResult, error) {
	return v.runCode(ctx, code, v.tenant.policy, begins)
}

func (s *Sandbox) runCode(ctx context.Context, code sandpit.Code, p policy.Policy, begins func(run int)) (res sandpit.CodeResult, err error) {
	err = s.use(ctx, func() error {
		res, err = s.coder().Run(ctx, code, p.AllowContexts, begins)
		return err
	})
	return res, err
}

// CreateContext starts an interpreter, as Options.Policy allows. See sandpit.Coder.
func (s *Sandbox) CreateContext(ctx context.Context, spec sandpit.NewContext) (sandpit.CodeContext, error) {
	return s.createContext(ctx, spec, s.engine.opts.Policy)
}

// CreateContext starts an interpreter. See sandpit.Coder.
func (v view) CreateContext(ctx context.Context, spec sandpit.NewContext) (sandpit.CodeContext, error) {
	return v.createContext(ctx, spec, v.tenant.policy)
}

func (s *Sandbox) createContext(ctx context.Context, spec sandpit.NewContext, p policy.Policy) (made sandpit.CodeContext, err error) {
	err = s.use(ctx, func() error {
		made, err = s.coder().Create(ctx, spec, p.AllowContexts)
		return err
	})
	return made, err
}

// Contexts lists the contexts. See sandpit.Coder.
func (s *Sandbox) Contexts(ctx context.Context) ([]sandpit.CodeContext, error) {
	return s.coder().Contexts(ctx)
}

// RestartContext kills the interpreter of a context. See sandpit.Coder.
func (s *Sandbox) RestartContext(ctx context.Context, id string) error {
	return s.use(ctx, func() error { return s.coder().Restart(ctx, id) })
}

// InterruptContext interrupts a run. See sandpit.Coder.
func (s *Sandbox) InterruptContext(ctx context.Context, id string) error {
	return s.use(ctx, func() error { return s.coder().Interrupt(ctx, id) })
}

// RemoveContext removes a context. See sandpit.Coder.
func (s *Sandbox) RemoveContext(ctx context.Context, id string) error {
	return s.use(ctx, func() error { return s.coder().Remove(ctx, id) })
}

// codePlace is a sandbox as its contexts need it.
type codePlace struct{ s *Sandbox }

var _ interpreter.Place = codePlace{}

// Start starts a process in the background.
func (p codePlace) Start(ctx context.Context, cmd sandpit.Command, o interpreter.Origin) (sandpit.Process, error) {
	return p.s.startAs(ctx, cmd, o)
}

// Processes lists the processes.
func (p codePlace) Processes(ctx context.Context) ([]sandpit.ProcessInfo, error) {
	return p.s.Processes(ctx)
}

// Process returns a process.
func (q codePlace) Process(id string) (sandpit.Process, error) {
	h, err := q.s.lookup(id)
	if err != nil {
		return nil, err
	}
	p := &process{h: h}
	if h.stdin != nil {
		p.stdin = &stdinWriter{p: h.stdin, s: q.s}
	}
	return p, nil
}

// Follow passes output on to writers that the process waits for.
func (p codePlace) Follow(id string, stdout, stderr io.Writer) (done <-chan struct{}, leave func(), err error) {
	h, err := p.s.lookup(id)
	if err != nil {
		return nil, nil, err
	}
	r := &reader{stdout: stdout, stderr: stderr, waitFor: true}
	h.read(r, false)
	return r.done, func() { h.leave(r) }, nil
}

// Written returns how much output of a process is known to exist.
func (p codePlace) Written(id string) int64 {
	h, err := p.s.lookup(id)
	if err != nil {
		return 0
	}
	h.recording.Lock()
	defer h.recording.Unlock()
	return max(h.at, h.before)
}

// Full reports whether the output of a process has reached its limit, and has been passed on up to that.
func (p codePlace) Full(id string) bool {
	h, err := p.s.lookup(id)
	if err != nil {
		return false
	}
	limit := p.s.settings().limits.Output
	h.recording.Lock()
	at := h.at
	h.recording.Unlock()
	if limit == 0 || at < limit {
		return false
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for r := range h.readers {
		if r.waitFor && r.at < at {
			return false
		}
	}
	return true
}

// DialUnix connects to a unix socket.
func (p codePlace) DialUnix(ctx context.Context, path string) (net.Conn, error) {
	c, err := p.s.guest.DialUnix(ctx, path)
	if err != nil {
		return nil, p.s.explain(err)
	}
	return c, nil
}

// ReadFile returns the content of a file.
func (p codePlace) ReadFile(ctx context.Context, path string, most int64) ([]byte, error) {
	f, err := p.s.Files().Open(ctx, path, 0, most+1)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(f)
	if err == nil && int64(len(b)) > most {
		err = fault.Errorf(sandpit.ErrInvalid, "%.80q is longer than %d bytes", path, most)
	}
	return b, err
}

// Charge charges memory to the sandbox.
func (p codePlace) Charge(n int64) error {
	if n < 0 {
		p.s.memory.Return(-n)
		return nil
	}
	return p.s.memory.Grow(n)
}

// Pay charges memory for as long as the sandbox exists.
func (p codePlace) Pay(n int64) error { return p.s.pay(n) }

// Add is Pay for memory that is already in use: it is never refused. A negative number returns it.
func (p codePlace) Add(n int64) {
	if n < 0 {
		p.s.refund(-n)
		return
	}
	p.s.owe(n)
}
