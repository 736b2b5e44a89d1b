package engine

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/cmdline"
	"github.com/sandpit-dev/sandpit/internal/fault"
	"github.com/sandpit-dev/sandpit/internal/guest/client"
	"github.com/sandpit-dev/sandpit/internal/interpreter"
	"github.com/sandpit-dev/sandpit/internal/lanes"
	"github.com/sandpit-dev/sandpit/internal/notation"
)

const (
	// guestKeeps is the output that the guest keeps for each process, in bytes, for an
	// engine that comes back.
	guestKeeps = 256 << 10

	// endedProcesses is the minimum number of ended processes that are kept, unless the
	// ledger is full, and endedOutput bounds their output in all, in bytes.
	endedProcesses = 256
	endedOutput    = 4 << 20

	// The memory of a process besides its command line and output, in bytes: runningCost
	// while it runs (goroutines, buffers, the line that the log waits for), processCost
	// while it is listed.
	runningCost = 32 << 10
	processCost = 2 << 10

	// maxUser bounds Command.User, in bytes.
	maxUser = 256
)

// Start starts a program. See sandpit.Sandbox.
func (s *Sandbox) Start(ctx context.Context, cmd sandpit.Command) (sandpit.Process, error) {
	return s.startAs(ctx, cmd, interpreter.Cold)
}

// startAs is Start for a process of an origin.
func (s *Sandbox) startAs(ctx context.Context, cmd sandpit.Command, o interpreter.Origin) (sandpit.Process, error) {
	cmd, err := s.completed(cmd)
	if err != nil {
		return nil, err
	}
	if len(cmd.User) > maxUser {
		return nil, fault.Errorf(sandpit.ErrInvalid, "starting a process: the user is longer than %d bytes", maxUser)
	}
	if err := s.enterStart(ctx); err != nil {
		return nil, err
	}
	h, p, err := s.start(ctx, cmd, o)
	s.mu.Lock()
	s.starting--
	most := s.info.Limits.NoFile
	s.mu.Unlock()
	if err != nil {
		s.leave()
		if sandpit.StageOf(err) == sandpit.StageLimits {
			if refused := fileLimit(cmd.Rlimits, most); refused != nil { // the same, and what to do
				err = fmt.Errorf("starting a process: %w", refused)
			}
		}
		return nil, s.explain(err)
	}
	if !p.foreground {
		s.leave()
	}
	if h.info.ID != "" {
		s.engine.events.add(s.namespace, s.processEvent(h, sandpit.EventProcess))
	}
	go h.watch()
	return p, nil
}

// enterStart does what enter does, and counts a process that is being started.
func (s *Sandbox) enterStart(ctx context.Context) error {
	for {
		if err := s.enter(ctx); err != nil {
			return err
		}
		s.mu.Lock()
		if s.state == sandpit.StateRunning || s.state == sandpit.StateFailed {
			s.starting++
			s.mu.Unlock()
			return nil
		}
		s.active-- // its state has just changed
		s.mu.Unlock()
	}
}

// referenced is a process with a number that is unique in its sandbox, or 0 if it was killed while
// it was being started.
type referenced interface{ Ref() uint64 }

// start starts a program and makes its broadcaster. A foreground process of a sandbox that
// ends with the engine writes directly to its owner.
func (s *Sandbox) start(ctx context.Context, cmd sandpit.Command, o interpreter.Origin) (*broadcaster, *process, error) {
	before, refused := s.oomSeen.Load(), s.refusedSeen.Load()
	direct := !s.persistent && !cmd.Background
	keep := keptOutput
	if direct {
		keep = directOutput
	}
	h := s.newBroadcaster(keep)
	argv, cut := cmdline.Clip(argvOf(cmd))
	dir := strings.Clone(cmd.Dir[:min(len(cmd.Dir), maxDir)])
	if err := h.charge(argv, len(dir)+len(cmd.Tag), cmd.Stdin || cmd.Terminal != nil); err != nil {
		return nil, nil, err
	}
	stdout, stderr := &source{h: h, stream: stdoutStream}, &source{h: h, stream: stderrStream}
	owner := &reader{stdout: cmd.Stdout, stderr: cmd.Stderr, waitFor: !cmd.Background}
	var guest sandpit.Process
	var windows *client.Process // the owner's outputs wait for different readers
	var err error
	if direct {
		stdout.direct, stderr.direct = lanes.Exclusive(cmd.Stdout, cmd.Stderr)
		cmd.Stdout, cmd.Stderr = stdout, stderr
		guest, err = s.guest.Start(ctx, cmd)
	} else {
		cmd.Stdout, cmd.Stderr = stdout, stderr
		d := client.Detach{Keep: guestKeeps, Hold: true, Windows: owner.waitFor && lanes.Apart(owner.stdout, owner.stderr), Fork: o == interpreter.Fork}
		var detached *client.Process
		if detached, err = s.guest.StartDetached(ctx, cmd, d); err == nil {
			guest = detached
			if d.Windows {
				windows = detached
			}
		}
	}
	if err != nil {
		h.forget()
		return nil, nil, err
	}
	h.process, h.oomKills, h.refused = guest, before, refused
	if i := slices.IndexFunc(cmd.Rlimits, func(l sandpit.Rlimit) bool { return l.Resource == "cpu" }); i >= 0 {
		h.cpu = cmd.Rlimits[i]
	}
	h.info = sandpit.ProcessInfo{
		PID: guest.PID(), Argv: argv, ArgvCut: cut, User: cmp.Or(strings.Clone(cmd.User), s.user), Dir: dir, Tag: strings.Clone(cmd.Tag), Background: cmd.Background,
		StartedAt: time.Now(), Terminal: cmd.Terminal != nil, Timeout: max(cmd.Timeout, 0),
	}
	if r, ok := guest.(referenced); ok && r.Ref() != 0 {
		h.ref = r.Ref()
		h.info.ID = processID(h.ref)
		h.log, h.marks = s.logs.Process(h.info.ID, h.info.PID), interpreter.NewUnmarked(argv)
	}
	h.waited.Store(!cmd.Background)
	h.patience = s.patience(h, cmd.Timeout)
	p := &process{h: h, foreground: !cmd.Background}
	switch in := guest.Stdin(); {
	case in == nil:
	case direct:
		p.stdin = in
		h.stdin = newStdinPump(in)
	default:
		h.stdin = newStdinPump(in)
		p.stdin = &stdinWriter{p: h.stdin, s: s}
	}
	switch {
	case windows != nil:
		p.reader = owner
		h.readApart(owner, windows)
	case !direct && (owner.stdout != nil || owner.stderr != nil):
		p.reader = owner
		h.read(owner, true)
	}
	close(h.ready)
	if h.info.ID != "" {
		s.enlist(h)
	}
	return h, p, nil
}

// processID returns the ID of a process from its ref in the guest. It is not a number,
// because that would be a pid.
func processID(ref uint64) string { return "p" + strconv.FormatUint(ref, 10) }

func argvOf(cmd sandpit.Command) []string {
	if cmd.Script != "" {
		return []string{"/bin/sh", "-c", cmd.Script}
	}
	return cmd.Argv
}

// maxDir bounds the directory of a process as it is listed, in bytes. A longer one can't be entered.
const maxDir = 4096

// cost returns the memory of a running process without its output, in bytes. texts is the length of its
// directory and tag.
func (h *broadcaster) cost(argv []string, texts int, stdin bool) int64 {
	n := h.running + processCost + cmdline.Size(argv) + int64(texts) + ringCost(h.ring.max)
	if stdin {
		h.running += maxStdin
		n += maxStdin
	}
	return n
}

// charge charges the sandbox for a process that is about to be started.
func (h *broadcaster) charge(argv []string, texts int, stdin bool) error {
	h.charged = h.cost(argv, texts, stdin)
	if err := h.sandbox.charge(h.charged); err != nil {
		h.charged = 0
		return fmt.Errorf("starting a process: %w", err)
	}
	return nil
}

// patienceParts is the number of parts of Patience.Guest. A server that stood still finds
// one of them over when it goes on, so that it takes what the guest has sent meanwhile
// before all are.
//
// throttledParts is the number of parts that may pass without counting because the sandbox uses all of its share of the
// CPUs: its guest, which has no other share, takes longer then. A sandbox can bring that about itself, so they are bounded.
const (
	patienceParts  = 15
	throttledParts = 4 * patienceParts
)

// throttling tells whether a sandbox uses its share of the CPUs.
type throttling struct {
	at   time.Time // of the latest reading; zero: there was none
	used time.Duration
}

// since reports whether it used at least half of cpus, which leaves room for how the kernel accounts, since the last call, at
// which used was another time.
func (t *throttling) since(now time.Time, used time.Duration, cpus float64) bool {
	before := *t
	t.at, t.used = now, used
	return !before.at.IsZero() && cpus > 0 && float64(used-before.used) >= cpus/2*float64(now.Sub(before.at))
}

// patience marks the sandbox as failed if a process outlives its timeout by Patience.Guest:
// then its guest does not do what it was told, and it is not trusted with the host's time.
// That time begins anew while the guest can't tell of the end: the sandbox is paused, or
// output that comes before waits for its reader. It stands still for at most throttledParts while the sandbox is throttled. Stop the timer when the process has ended.
func (s *Sandbox) patience(h *broadcaster, timeout time.Duration) *time.Timer {
	if timeout <= 0 {
		return nil // the lifetime holds
	}
	part := s.engine.opts.Patience.Guest / patienceParts
	left, throttled := patienceParts, throttledParts
	var usage throttling
	return time.AfterFunc(timeout+part, func() {
		<-h.ready
		select {
		case <-h.done:
			return
		default:
		}
		s.mu.Lock()
		paused, cpus := s.state == sandpit.StatePaused, s.info.Limits.CPUs
		s.mu.Unlock()
		ctx, cancel := context.WithTimeout(context.Background(), part)
		m, err := fresh(ctx, s.measure)
		cancel()
		switch slow := err == nil && m.CPU >= 0 && usage.since(time.Now(), m.CPU, cpus); {
		case paused || h.taking.Load() > 0:
			left = patienceParts
		case slow && throttled > 0:
			throttled--
		default:
			left--
		}
		if left > 0 {
			h.patience.Reset(part)
			return
		}
		s.fail(fmt.Sprintf("its guest did not end process %d at its timeout of %s", h.info.PID, notation.FormatDuration(timeout)))
	})
}

// enlist adds a process to the table.
func (s *Sandbox) enlist(h *broadcaster) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.cleared {
		s.broadcasters = append(s.broadcasters, h)
	}
}

// unwaited notes that the client that started the process no longer waits for it.
func (h *broadcaster) unwaited() {
	if h.waited.CompareAndSwap(true, false) {
		h.sandbox.leave()
	}
}

// processEnded does what must be done once when a process has ended.
func (s *Sandbox) processEnded(h *broadcaster) {
	h.unwaited()
	s.mu.Lock()
	// Once it counts as ended it may be forgotten to make room, before this is done.
	findable := h.info.ID != "" && slices.Contains(s.broadcasters, h)
	if findable {
		s.engine.ended.add(h)
	}
	// Of a sandbox that is left to the next engine it is the connection that has
	// ended, not the process.
	announce := h.info.ID != "" && !h.told && !s.left && !s.muted
	if announce && s.persistent {
		s.announced = append(s.announced, h.ref)
		s.noteSoon()
	}
	s.mu.Unlock()
	if !findable {
		h.forget()
	}
	if h.info.ID == "" {
		return
	}
	s.trim()
	if announce {
		s.engine.events.add(s.namespace, s.processEvent(h, sandpit.EventExit))
	}
}

// noteDelay is the time before the engine tells the guest that an end was announced, so
// that it reports many at once, and not while a caller waits. If the engine is killed
// within that time, the end is announced again.
const noteDelay = 100 * time.Millisecond

// noteSoon tells the guest after noteDelay. Precondition: s.mu is held.
func (s *Sandbox) noteSoon() {
	if s.noting == nil && !s.cleared {
		s.noting = time.AfterFunc(noteDelay, func() {
			s.mu.Lock()
			s.noting = nil
			asleep := s.state == sandpit.StatePaused // it is told when it is resumed
			s.mu.Unlock()
			if !asleep {
				ctx, cancel := context.WithTimeout(context.Background(), notePatience)
				defer cancel()
				s.note(ctx)
			}
		})
	}
}

// The time in which a guest must note something, also while the engine ends.
const (
	notePatience = 5 * time.Second
	lastPatience = time.Second
)

// note tells the guest which ends of processes were announced. If that fails, the next call
// repeats it.
func (s *Sandbox) note(ctx context.Context) {
	s.mu.Lock()
	refs, guest := s.announced, s.guest
	s.announced = nil
	s.mu.Unlock()
	if len(refs) == 0 || guest == nil {
		return
	}
	err := guest.Announced(ctx, refs)
	if err != nil && ctx.Err() != nil {
		s.mu.Lock()
		s.announced = append(refs, s.announced...)
		s.announced = s.announced[max(0, len(s.announced)-4*endedProcesses):] // more the guest does not know
		s.mu.Unlock()
	}
}

func (s *Sandbox) processEvent(h *broadcaster, kind sandpit.EventKind) sandpit.Event {
	s.mu.Lock()
	ev := sandpit.Event{Kind: kind, Sandbox: s.id, Name: s.Name(), Namespace: s.nested, Process: h.info.ID, PID: h.info.PID, Labels: s.labels}
	s.mu.Unlock()
	if kind == sandpit.EventExit {
		code := h.describe().Result.ExitCode
		ev.Exit = &code
	}
	return ev
}

// trim forgets the oldest ended processes, and before that the output of the oldest.
func (s *Sandbox) trim() {
	s.mu.Lock()
	defer s.mu.Unlock()
	ended, output := 0, 0
	for _, h := range slices.Backward(s.broadcasters) {
		h.mu.Lock()
		if h.ended {
			ended++
			h.shrink(output+int(h.ring.end-h.ring.start) > endedOutput)
			output += h.ring.max
		}
		h.mu.Unlock()
	}
	if ended < 2*endedProcesses {
		return
	}
	s.broadcasters = slices.DeleteFunc(s.broadcasters, func(h *broadcaster) bool {
		if ended <= endedProcesses || !h.isEnded() {
			return false
		}
		ended--
		s.engine.ended.remove(h)
		h.forget()
		return true
	})
}

// unlist removes a process from the table.
func (s *Sandbox) unlist(h *broadcaster) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.broadcasters = slices.DeleteFunc(s.broadcasters, func(other *broadcaster) bool { return other == h })
}

func (h *broadcaster) isEnded() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.ended
}

// clear forgets all processes, when the sandbox is gone or left to another engine.
func (s *Sandbox) clear() {
	s.mu.Lock()
	all := s.broadcasters
	s.broadcasters, s.cleared = nil, true
	if s.noting != nil {
		s.noting.Stop()
	}
	s.mu.Unlock()
	for _, h := range all {
		s.engine.ended.remove(h)
		h.forget()
	}
}

// completed returns the command, completed by the image's configuration.
func (s *Sandbox) completed(cmd sandpit.Command) (sandpit.Command, error) {
	for _, l := range s.rlimits {
		own := func(o sandpit.Rlimit) bool { return o.Resource == l.Resource }
		if !slices.ContainsFunc(cmd.Rlimits, own) && !(l.Resource == "nofile" && cmd.NoFile > 0) {
			cmd.Rlimits = append(slices.Clip(cmd.Rlimits), l)
		}
	}
	if !cmd.FromImage && cmd.Entrypoint == nil {
		return cmd, nil
	}
	if cmd.Script != "" {
		return cmd, fault.Errorf(sandpit.ErrInvalid, "starting a process: a script has no entrypoint")
	}
	entry, rest := s.image.Entrypoint, cmd.Argv
	if cmd.Entrypoint != nil {
		entry = cmd.Entrypoint
	} else if len(rest) == 0 {
		rest = s.image.Cmd
	}
	cmd.Argv, cmd.FromImage, cmd.Entrypoint = slices.Concat(entry, rest), false, nil
	if len(cmd.Argv) == 0 {
		return cmd, sandpit.WithHint(fault.Errorf(sandpit.ErrInvalid, "starting a process: no command was given, and image %s has none", s.info.Image), "add a command")
	}
	return cmd, nil
}

// Processes lists the processes. See sandpit.ProcessKeeper.
func (s *Sandbox) Processes(context.Context) ([]sandpit.ProcessInfo, error) {
	if s.present() == "" {
		return nil, s.closedError()
	}
	out := []sandpit.ProcessInfo{}
	for _, h := range s.processes() {
		out = append(out, h.describe())
	}
	return out, nil
}

// lookup finds a process by its ID or pid.
func (s *Sandbox) lookup(name string) (*broadcaster, error) {
	for _, h := range slices.Backward(s.processes()) {
		if h.info.ID == name || strconv.Itoa(h.info.PID) == name {
			return h, nil
		}
	}
	return nil, fault.Errorf(sandpit.ErrNotFound, "sandbox %s has no process %.40q", s.Name(), name)
}

// Attach attaches to a process. The result is a sandpit.Detacher. See
// sandpit.ProcessKeeper.
func (s *Sandbox) Attach(ctx context.Context, name string, opt sandpit.AttachOptions) (sandpit.Process, error) {
	if s.present() == "" {
		return nil, s.closedError()
	}
	h, err := s.lookup(name)
	if err != nil {
		return nil, err
	}
	p := &process{h: h}
	select {
	case <-h.done:
	default:
		if err := s.enter(ctx); err != nil {
			return nil, err
		}
		p.attached = true
		if opt.Stdin && h.stdin != nil {
			p.stdin = &stdinWriter{p: h.stdin, s: s}
		}
	}
	if opt.Stdout != nil || opt.Stderr != nil {
		p.reader = &reader{stdout: opt.Stdout, stderr: opt.Stderr, marks: interpreter.NewUnmarked(h.info.Argv), lost: opt.Lost}
		h.read(p.reader, !opt.NoHistory)
	}
	if p.attached {
		p.left = make(chan struct{})
		go func() {
			select {
			case <-h.done:
			case <-p.left:
			}
			s.leave()
		}()
	}
	return p, nil
}

// Logs returns the output of processes. See sandpit.ProcessKeeper.
func (s *Sandbox) Logs(ctx context.Context, q sandpit.LogQuery) iter.Seq2[sandpit.LogEntry, error] {
	switch state := s.present(); {
	case state == "":
		return failedLogs(s.closedError())
	case state == sandpit.StateCreated, state == sandpit.StateCreating:
		return failedLogs(s.stateError(state))
	case q.Process != "" && !strings.HasPrefix(q.Process, "p"):
		h, err := s.lookup(q.Process)
		if err != nil {
			return failedLogs(err)
		}
		q.Process = h.info.ID
	}
	return s.logs.Query(ctx, q)
}

func failedLogs(err error) iter.Seq2[sandpit.LogEntry, error] {
	return func(yield func(sandpit.LogEntry, error) bool) { yield(sandpit.LogEntry{}, err) }
}
