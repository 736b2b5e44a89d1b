package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/fault"
	"github.com/sandpit-dev/sandpit/internal/guest/wire"
	"github.com/sandpit-dev/sandpit/internal/notation"
)

// Process is a process in a sandbox, seen over one stream.
type Process struct {
	c   *Client
	s   *stream
	ref uint64
	pid int
	in  *stdin
	opt AttachOptions // of one that was attached to

	windows bool // the guest is told what was passed on of each output

	// Set before done is closed.
	res  sandpit.Result
	err  error
	done chan struct{}
}

var (
	_ sandpit.Process       = (*Process)(nil)
	_ sandpit.GroupSignaler = (*Process)(nil)
)

// Detach makes a process survive the connection that started it.
type Detach struct {
	Keep int64 // bytes of its latest output kept for those who attach; 0: 64 KiB; at most 1 MiB
	Hold bool  // the process waits for its Stdout and Stderr, which lose nothing, while this connection lives

	// Windows, with Hold, makes each output wait for Passed and PassedAll as well, unless the process has
	// a terminal: the guest sends at most MaxUnpassed bytes more of it than were passed on.
	Windows bool

	Zygote bool // others can be forked from it
	Fork   bool // it is forked from a zygote that fits, if there is one; otherwise it is started like any other
}

// Bounds of an output with a window, in bytes: see Detach.Windows. Passed should be called at least
// for each quarter of a PassWindow.
const (
	PassWindow  = wire.PassWindow
	MaxUnpassed = wire.PassWindow + wire.PassExcess
)

// Passed tells the guest that n bytes of an output were passed on.
func (p *Process) Passed(stderr bool, n int) {
	output := wire.Data
	if stderr {
		output = wire.Data2
	}
	if p.windows {
		p.s.passed(output, n)
	}
}

// PassedAll tells the guest that the outputs no longer wait for Passed.
func (p *Process) PassedAll() {
	p.Passed(false, wire.PassAll)
	p.Passed(true, wire.PassAll)
}

// Start starts a process, as sandpit.Sandbox says. Unless it is a background process, it
// dies with the connection. Command.FromImage and Entrypoint are handled by the engine.
func (c *Client) Start(ctx context.Context, cmd sandpit.Command) (sandpit.Process, error) {
	var d *Detach
	if cmd.Background {
		d = new(Detach)
	}
	p, err := c.start(ctx, cmd, d)
	if err != nil {
		return nil, err
	}
	return p, nil
}

// StartDetached starts a process that survives the connection. Its latest output is kept. A
// slow Stdout or Stderr does not hold it up: missed output is counted in
// Result.DroppedBytes.
func (c *Client) StartDetached(ctx context.Context, cmd sandpit.Command, d Detach) (*Process, error) {
	return c.start(ctx, cmd, &d)
}

func (c *Client) start(ctx context.Context, cmd sandpit.Command, d *Detach) (*Process, error) {
	switch {
	case len(cmd.Argv) > 0 && cmd.Script != "":
		return nil, sandpit.WithHint(fault.Invalidf("starting a process: argv and a script exclude each other"), "give one of them")
	case len(cmd.Argv) == 0 && cmd.Script == "":
		return nil, sandpit.WithHint(fault.Invalidf("starting a process: no program is given"), "give argv or a script")
	}
	for _, limit := range [...]struct {
		name  string
		value int64
	}{{"timeout", int64(cmd.Timeout)}, {"output_limit", cmd.OutputLimit}, {"nofile", cmd.NoFile}} {
		if limit.value < 0 {
			return nil, sandpit.WithHint(fault.Invalidf("starting a process: %q must not be negative", limit.name), "leave it out for no limit of its own")
		}
	}
	if err := notation.CheckRlimits(cmd.Rlimits); err != nil {
		return nil, fmt.Errorf("starting a process: %w", &sandpit.StageError{Stage: sandpit.StageLimits, Err: err})
	}
	if err := checkTag(cmd.Tag); err != nil {
		return nil, err
	}
	m := &wire.Start{
		Argv: cmd.Argv, Script: cmd.Script, Env: cmd.Env, Dir: cmd.Dir, User: cmd.User,
		Timeout: int64(cmd.Timeout), Output: cmd.OutputLimit, NoFile: uint64(cmd.NoFile), Tag: cmd.Tag,
	}
	for _, l := range cmd.Rlimits {
		m.Rlimits = append(m.Rlimits, wire.Rlimit(l))
	}
	if cmd.Stdin {
		m.Flags |= wire.StartStdin
	}
	if t := cmd.Terminal; t != nil {
		m.Flags |= wire.StartTerminal
		m.Rows, m.Cols = uint64(t.Rows), uint64(t.Cols)
	}
	if d != nil {
		m.Flags |= wire.StartDetached
		if d.Hold {
			m.Flags |= wire.StartHold
		}
		if d.Zygote {
			m.Flags |= wire.StartZygote
		}
		if d.Fork {
			m.Flags |= wire.StartFork
		}
		m.Keep = uint64(max(0, d.Keep))
	}
	c.mu.Lock()
	limit := c.output
	needs := uint64(wire.FeatureWindows)
	if d != nil {
		needs |= wire.FeaturePassAll
	}
	if cmd.Terminal == nil && c.features&needs == needs && (d == nil || d.Hold && d.Windows) {
		m.Flags |= wire.StartWindows
	}
	c.mu.Unlock()
	if len(m.Rlimits) > 0 && c.features&wire.FeatureRlimits == 0 {
		return nil, sandpit.WithHint(fault.Errorf(sandpit.ErrUnsupported, "starting a process: this sandbox is older than rlimits"), "stop and start the sandbox")
	}
	if cmd.OutputLimit > 0 && (limit == 0 || cmd.OutputLimit < limit) {
		limit = cmd.OutputLimit
	}
	s, err := c.open(ctx, wire.OpStart, m, true, limit)
	if err == errTooLong {
		// The kernel would not take them either: see execve(2).
		return nil, &sandpit.StartError{ExitCode: 126, Reason: "the arguments and the environment are too long", Stage: sandpit.StageProgram, Errno: e2big}
	}
	if err != nil {
		return nil, fmt.Errorf("starting a process: %w", err)
	}
	started, err := s.started(ctx)
	if err != nil {
		return nil, fmt.Errorf("starting a process: %w", err)
	}
	p := c.newProcess(s, started, m.Flags&(wire.StartStdin|wire.StartTerminal) != 0)
	p.windows = m.Flags&wire.StartWindows != 0
	if p.windows && d == nil {
		newOutputs(p, cmd.Stdout, cmd.Stderr).start()
	} else {
		go p.deliver(cmd.Stdout, cmd.Stderr)
	}
	if p.ref != 0 {
		return p, nil
	}
	// It has ended: the start failed, or it was killed meanwhile.
	res, err := p.Wait(ctx)
	if err != nil {
		return nil, fmt.Errorf("starting a process: %w", err)
	}
	if why := printable(p.s.exit.StartError); why != "" {
		return nil, &sandpit.StartError{ExitCode: res.ExitCode, Reason: why, Stage: stageOf(p.s.exit.Stage), Errno: errnoOf(p.s.exit.Errno)}
	}
	return p, nil
}

// killPatience is how long a start that was called off waits for the guest to
// have undone it.
const killPatience = 2 * time.Second

// started waits for the answer to a start. When ctx ends first, the process is
// killed.
func (s *stream) started(ctx context.Context) (m wire.Started, err error) {
	var a answer
	select {
	case a = <-s.answer:
	case <-ctx.Done():
		undone := make(chan struct{})
		go func() {
			defer close(undone)
			s.undo(<-s.answer)
		}()
		select {
		case <-undone:
		case <-time.After(killPatience): // the guest is silent: it is undone when it answers
		}
		return m, ctx.Err()
	}
	if a.err != nil {
		return m, a.err
	}
	if err := m.Decode(a.msg); err != nil {
		err = violation("%s", err)
		s.c.fail(err)
		return m, err
	}
	if m.PID > math.MaxInt32 {
		err = violation("process id %d", m.PID)
		s.c.fail(err)
	}
	return m, err
}

// undo takes the answer to a start that was called off, and kills what was
// started. An answer comes when the connection ends, at the latest.
func (s *stream) undo(a answer) {
	defer s.close()
	var m wire.Started
	if a.err == nil && m.Decode(a.msg) == nil && m.Ref != 0 && s.op == wire.OpStart {
		ctx, cancel := context.WithTimeout(context.Background(), killPatience)
		defer cancel()
		_ = s.c.call(ctx, wire.OpKill, &wire.Target{Ref: m.Ref}, nil)
	}
}

func (c *Client) newProcess(s *stream, m wire.Started, hasStdin bool) *Process {
	p := &Process{c: c, s: s, ref: m.Ref, pid: int(m.PID), done: make(chan struct{})}
	if hasStdin {
		p.in = &stdin{s: s}
	}
	return p
}

// deliver hands the output on until the process has exited.
func (p *Process) deliver(stdout, stderr io.Writer) {
	for {
		channel, b, err := p.s.in.Next()
		if err != nil {
			p.finish(err)
			return
		}
		w := &stdout
		if channel == wire.Data2 {
			w = &stderr
		}
		if *w != nil {
			if _, err := (*w).Write(b); err != nil {
				*w = nil
			}
		}
		p.s.credit(p.s.in.Done())
	}
}

// finish ends the process as this end sees it: err is io.EOF after its exit.
func (p *Process) finish(err error) {
	if err == io.EOF {
		p.res = result(&p.s.exit)
		if p.c.onExit != nil {
			p.c.onExit(&p.res)
		}
	} else {
		p.err = err
	}
	close(p.done)
}

// result makes a Result of what the guest says.
func result(e *wire.Exit) sandpit.Result {
	r := sandpit.Result{
		ExitCode: int(e.Code), Signal: int(e.Signal),
		TimedOut: e.Flags&wire.ExitTimedOut != 0, Truncated: e.Flags&wire.ExitTruncated != 0,
		StdoutBytes: clamp(e.Stdout), StderrBytes: clamp(e.Stderr), DroppedBytes: clamp(e.Dropped),
		Wall: time.Duration(clamp(e.Wall)), UserCPU: time.Duration(clamp(e.User)), SystemCPU: time.Duration(clamp(e.System)),
		PeakMemory: clamp(e.PeakMemory),
	}
	if r.TimedOut {
		r.ExitCode = 124 // as timeout(1) has it
	}
	if e.Lost > 0 {
		r.Truncated, r.DroppedBytes = true, clamp(min(e.Dropped, math.MaxInt64)+min(e.Lost, math.MaxInt64))
	}
	return r
}

func clamp(n uint64) int64 { return int64(min(n, math.MaxInt64)) }

// Ref identifies the process in its sandbox permanently, even if its pid is reused. It is 0
// if the process was killed while it was being started.
func (p *Process) Ref() uint64 { return p.ref }

// ID is Ref in decimal, or empty.
func (p *Process) ID() string {
	if p.ref == 0 {
		return ""
	}
	return strconv.FormatUint(p.ref, 10)
}

// PID returns the process id inside the sandbox.
func (p *Process) PID() int { return p.pid }

// Stdin writes to standard input, or is nil.
func (p *Process) Stdin() io.WriteCloser {
	if p.in == nil {
		return nil
	}
	return p.in
}

// exited reports whether the process is known to have exited.
func (p *Process) exited() bool {
	select {
	case <-p.done:
		return p.err == nil
	default:
		return p.ref == 0
	}
}

// Signal sends a signal.
func (p *Process) Signal(ctx context.Context, sig syscall.Signal) error {
	return p.signal(ctx, sig, false)
}

// SignalGroup sends a signal to the process group that the program leads.
func (p *Process) SignalGroup(ctx context.Context, sig syscall.Signal) error {
	return p.signal(ctx, sig, true)
}

func (p *Process) signal(ctx context.Context, sig syscall.Signal, group bool) error {
	n, err := notation.SignalNumber(sig)
	if err != nil {
		return err
	}
	if p.exited() {
		return fault.NotFoundf("sending signal %d: the process has exited", int(sig))
	}
	err = p.c.call(ctx, wire.OpSignal, &wire.Signal{Target: wire.Target{Ref: p.ref}, Signal: uint64(n), Group: group}, nil)
	if err != nil {
		return fmt.Errorf("sending signal %d: %w", int(sig), err)
	}
	return nil
}

// Resize changes the terminal's size.
func (p *Process) Resize(ctx context.Context, size sandpit.TerminalSize) error {
	err := p.c.call(ctx, wire.OpResize, &wire.Resize{Target: wire.Target{Ref: p.ref}, Rows: uint64(size.Rows), Cols: uint64(size.Cols)}, nil)
	if err != nil {
		return fmt.Errorf("resizing the terminal: %w", err)
	}
	return nil
}

// Kill kills the process and everything that it started.
func (p *Process) Kill(ctx context.Context) error {
	if p.ref == 0 {
		return nil
	}
	if err := p.c.call(ctx, wire.OpKill, &wire.Target{Ref: p.ref}, nil); err != nil {
		return fmt.Errorf("killing a process: %w", err)
	}
	return nil
}

// Wait waits for the end.
func (p *Process) Wait(ctx context.Context) (sandpit.Result, error) {
	select {
	case <-p.done:
	default:
		select {
		case <-p.done:
		case <-ctx.Done():
			return sandpit.Result{}, ctx.Err()
		}
	}
	if p.err != nil {
		return sandpit.Result{}, p.err
	}
	return p.res, nil
}

// Detach gives the stream up without waiting for the process: a background process goes on,
// a foreground one is killed. Wait then fails.
func (p *Process) Detach() {
	if p.s != nil {
		p.s.close()
	}
}

// stdin is the standard input of a process.
type stdin struct {
	s      *stream
	mu     sync.Mutex
	closed bool
}

// Write blocks while the process does not read. The error is
// syscall.EPIPE when the process has closed its input or has exited.
func (w *stdin) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return 0, os.ErrClosed
	}
	n, err := w.s.send(context.Background(), b)
	if errors.Is(err, errPeerClosed) {
		err = syscall.EPIPE
	}
	return n, err
}

// Close ends the input, after what was written before. A Write that waits for
// the process fails.
func (w *stdin) Close() error {
	w.s.out.Fail(os.ErrClosed)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return nil
	}
	w.closed = true
	w.s.endContent()
	return nil
}

// checkTag checks a Command.Tag.
func checkTag(tag string) error {
	if len(tag) > sandpit.MaxTag || notation.Printable(tag, sandpit.MaxTag) != tag {
		return sandpit.WithHint(fault.Invalidf("starting a process: its tag is too long, or not printable"), fmt.Sprintf("use at most %d bytes of printable characters", sandpit.MaxTag))
	}
	return nil
}

// ProcessInfo describes a process that the guest has started.
type ProcessInfo struct {
	Ref        uint64
	PID        int
	Command    []string
	Cut        bool // Command is clipped
	User       string
	Dir, Tag   string // of its command
	Started    time.Time
	Background bool
	Stdin      bool // it was started with a standard input
	Terminal   bool
	Position   int64 // of a background process: bytes of output so far
	Exited     bool
	Announced  bool           // see Client.Announced
	Result     sandpit.Result // when Exited
}

// What Processes collects from a guest is bounded: how many, and how many bytes
// of command lines, of which a good guest gives at most 8 KiB each.
const (
	maxProcesses    = 100_000
	maxProcessBytes = 64 << 20
)

// Processes lists running processes and those that ended last: 256 background processes,
// and 256 others. Oldest first.
func (c *Client) Processes(ctx context.Context) ([]ProcessInfo, error) {
	var out []ProcessInfo
	size := 0
	for after := uint64(0); ; {
		var m wire.Processes
		if err := c.call(ctx, wire.OpList, &wire.After{Ref: after}, &m); err != nil {
			return nil, fmt.Errorf("listing processes: %w", err)
		}
		for i := range m.List {
			p := &m.List[i]
			if p.Ref <= after {
				err := violation("a list that is out of order")
				c.fail(err)
				return nil, err
			}
			after = p.Ref
			info := ProcessInfo{
				Ref: p.Ref, PID: int(min(p.PID, math.MaxInt32)), User: printable(p.User), Started: time.Unix(0, p.StartAt),
				Background: p.Detached, Exited: p.Exited, Position: clamp(p.Position), Command: p.Command,
				Stdin: p.Flags&(wire.StartStdin|wire.StartTerminal) != 0, Terminal: p.Flags&wire.StartTerminal != 0,
				Dir: p.Dir[:min(len(p.Dir), wire.MaxDir)], Tag: notation.Printable(p.Tag, wire.MaxTag),
				Cut: p.Flags&wire.ProcessCut != 0, Announced: p.Flags&wire.ProcessAnnounced != 0,
			}
			size += len(p.Dir)
			for _, a := range p.Command {
				size += len(a)
			}
			if p.Exited {
				info.Result = result(&p.Exit)
			}
			out = append(out, info)
		}
		if !m.More || len(m.List) == 0 || len(out) > maxProcesses || size > maxProcessBytes {
			return out, nil
		}
	}
}

// KillAll kills every process of the sandbox, also those that the guest does not list. It returns when none is left. It
// returns sandpit.ErrUnsupported for a guest of an earlier version.
func (c *Client) KillAll(ctx context.Context) error {
	if err := c.call(ctx, wire.OpKillAll, nil, nil); err != nil {
		return fmt.Errorf("killing all processes: %w", err)
	}
	return nil
}

// Announced makes the guest note that the ends of processes were announced, so that the
// next host does not announce them again. It returns sandpit.ErrUnsupported for a guest of
// an earlier version.
func (c *Client) Announced(ctx context.Context, refs []uint64) error {
	for part := range slices.Chunk(refs, wire.MaxRefs) {
		if err := c.call(ctx, wire.OpAnnounced, &wire.Refs{List: part}, nil); err != nil {
			return fmt.Errorf("storing an announcement: %w", err)
		}
	}
	return nil
}

// GuestInfo describes a guest.
type GuestInfo struct {
	Build     string
	Protocol  uint64
	PID, UID  int
	Uptime    time.Duration
	Processes int // running, or kept
}

// Info returns a description of the guest.
func (c *Client) Info(ctx context.Context) (GuestInfo, error) {
	var m wire.Info
	if err := c.call(ctx, wire.OpInfo, nil, &m); err != nil {
		return GuestInfo{}, fmt.Errorf("calling the guest: %w", err)
	}
	n := func(v uint64) int { return int(min(v, math.MaxInt32)) }
	return GuestInfo{printable(m.Build), m.Version, n(m.PID), n(m.UID), time.Duration(m.Uptime), n(m.Processes)}, nil
}
