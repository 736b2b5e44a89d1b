package cli_test

import (
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"

	"github.com/creack/pty"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/policy"
)

// hostClient runs processes on this machine, without any sandbox: enough to
// test input, output, signals, terminals and exit codes where no sandbox can be
// made. It lies about nothing: everything it runs is real.
type hostClient struct{}

func (hostClient) Create(_ context.Context, spec sandpit.Spec) (sandpit.Sandbox, error) {
	limits, _, err := policy.Resolve(spec, policy.Default())
	if err != nil {
		return nil, err
	}
	return &hostSandbox{spec: spec, limits: limits}, nil
}

func (hostClient) Get(context.Context, string) (sandpit.Sandbox, error) {
	return nil, sandpit.ErrNotFound
}
func (hostClient) List(context.Context) ([]sandpit.Info, error) { return nil, nil }
func (hostClient) Remove(context.Context, string) error         { return sandpit.ErrNotFound }
func (hostClient) Close() error                                 { return nil }

type hostSandbox struct {
	spec   sandpit.Spec
	limits sandpit.Limits

	mu      sync.Mutex
	started []*hostProcess
}

func (s *hostSandbox) ID() string           { return "id" }
func (s *hostSandbox) Name() string         { return "id" }
func (s *hostSandbox) Files() sandpit.Files { return nil }

func (s *hostSandbox) Info(context.Context) (sandpit.Info, error) {
	return sandpit.Info{ID: "id", Name: "id", Image: "host", Driver: "none", Labels: s.spec.Labels, Limits: s.limits}, nil
}

func (s *hostSandbox) Metrics(context.Context) (sandpit.Metrics, error) {
	return sandpit.Metrics{MemoryPeak: -1}, nil
}

func (s *hostSandbox) Remove(context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.started {
		_ = p.Kill(context.Background())
	}
	return nil
}

func (s *hostSandbox) Start(_ context.Context, c sandpit.Command) (sandpit.Process, error) {
	argv := c.Argv
	if c.Script != "" {
		argv = []string{"/bin/sh", "-c", c.Script}
	}
	p := &hostProcess{done: make(chan struct{}), start: time.Now()}
	p.cmd = exec.Command(argv[0], argv[1:]...)
	p.cmd.Env = append(append(os.Environ(), s.spec.Env...), c.Env...)
	p.cmd.Dir = s.spec.WorkDir
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	limit := &limited{left: s.limits.Output}
	if c.OutputLimit > 0 {
		limit.left = min(limit.left, c.OutputLimit)
	}
	p.limited = limit
	var copied sync.WaitGroup
	if c.Terminal != nil {
		master, err := pty.StartWithSize(p.cmd, &pty.Winsize{Rows: c.Terminal.Rows, Cols: c.Terminal.Cols})
		if err != nil {
			return p.failed(err), nil
		}
		p.tty, p.stdin = master, master
		copied.Go(func() { _, _ = io.Copy(c.Stdout, master) })
	} else {
		if c.Stdin {
			in, err := p.cmd.StdinPipe()
			if err != nil {
				return nil, err
			}
			p.stdin = in
		}
		for _, out := range []struct {
			pipe func() (io.ReadCloser, error)
			to   io.Writer
		}{{p.cmd.StdoutPipe, c.Stdout}, {p.cmd.StderrPipe, c.Stderr}} {
			r, err := out.pipe()
			if err != nil {
				return nil, err
			}
			copied.Go(func() {
				if _, err := io.Copy(limit.to(out.to), r); err != nil {
					_, _ = io.Copy(io.Discard, r)
				}
			})
		}
		if err := p.cmd.Start(); err != nil {
			return p.failed(err), nil
		}
	}
	s.mu.Lock()
	s.started = append(s.started, p)
	s.mu.Unlock()
	var timer *time.Timer
	if c.Timeout > 0 {
		timer = time.AfterFunc(c.Timeout, func() {
			p.mu.Lock()
			p.result.TimedOut = true
			p.mu.Unlock()
			_ = p.Kill(context.Background())
		})
	}
	go func() {
		copied.Wait()
		_ = p.cmd.Wait()
		if timer != nil {
			timer.Stop()
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		status := p.cmd.ProcessState.Sys().(syscall.WaitStatus)
		p.result.ExitCode = status.ExitStatus()
		if status.Signaled() {
			p.result.Signal, p.result.ExitCode = int(status.Signal()), 128+int(status.Signal())
		}
		limit.mu.Lock()
		p.result.DroppedBytes, p.result.Truncated = limit.dropped, limit.dropped > 0
		limit.mu.Unlock()
		p.result.Wall = time.Since(p.start)
		close(p.done)
	}()
	return p, nil
}

// limited drops what goes over a limit.
type limited struct {
	mu            sync.Mutex
	left, dropped int64
}

func (l *limited) to(w io.Writer) io.Writer {
	return writerFunc(func(p []byte) (int, error) {
		l.mu.Lock()
		keep := min(int64(len(p)), l.left)
		l.left -= keep
		l.dropped += int64(len(p)) - keep
		l.mu.Unlock()
		if _, err := w.Write(p[:keep]); err != nil {
			return 0, err
		}
		return len(p), nil
	})
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

type hostProcess struct {
	cmd     *exec.Cmd
	stdin   io.WriteCloser
	tty     *os.File
	limited *limited
	start   time.Time
	done    chan struct{}

	mu     sync.Mutex
	result sandpit.Result
}

func (p *hostProcess) failed(err error) sandpit.Process {
	p.result.ExitCode, p.result.StartError = 127, "not found"
	if errors.Is(err, os.ErrPermission) {
		p.result.ExitCode, p.result.StartError = 126, "permission denied"
	}
	p.stdin = nopCloser{io.Discard}
	close(p.done)
	return p
}

type nopCloser struct{ io.Writer }

func (nopCloser) Close() error { return nil }

func (p *hostProcess) PID() int              { return p.cmd.Process.Pid }
func (p *hostProcess) Stdin() io.WriteCloser { return p.stdin }

func (p *hostProcess) Signal(_ context.Context, sig syscall.Signal) error {
	return p.cmd.Process.Signal(sig)
}

func (p *hostProcess) SignalGroup(_ context.Context, sig syscall.Signal) error {
	return syscall.Kill(-p.cmd.Process.Pid, sig)
}

func (p *hostProcess) Resize(_ context.Context, size sandpit.TerminalSize) error {
	if p.tty == nil {
		return sandpit.ErrInvalid
	}
	return pty.Setsize(p.tty, &pty.Winsize{Rows: size.Rows, Cols: size.Cols})
}

func (p *hostProcess) Kill(context.Context) error {
	if p.cmd.Process == nil {
		return nil
	}
	err := syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL)
	if errors.Is(err, syscall.ESRCH) {
		return nil
	}
	return err
}

func (p *hostProcess) Wait(ctx context.Context) (sandpit.Result, error) {
	select {
	case <-p.done:
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.result, nil
	case <-ctx.Done():
		return sandpit.Result{}, ctx.Err()
	}
}
