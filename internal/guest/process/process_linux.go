package process

import (
	"errors"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit/internal/cmdline"
	"github.com/sandpit-dev/sandpit/internal/guest/conn"
	"github.com/sandpit-dev/sandpit/internal/guest/fdio"
	"github.com/sandpit-dev/sandpit/internal/guest/settings"
	"github.com/sandpit-dev/sandpit/internal/guest/spawn"
	"github.com/sandpit-dev/sandpit/internal/guest/wire"
)

// process is one program that the guest has started.
type process struct {
	table    *Table
	ref      uint64
	pid      int
	helper   int
	argv     []string // as far as it is listed
	user     string   // as far as it is listed
	flags    uint64   // StartStdin, StartTerminal, ProcessCut
	detached bool
	startAt  time.Time
	proc     *spawn.Proc
	log      *outputLog // output of a detached process

	stdout, stderr *source // with a terminal, stdout is it and stderr is nil
	stdin          *os.File
	terminal       bool

	announced atomic.Bool // the host has told everybody how it ended

	limit   int64 // bytes of output; 0: none
	passed  atomic.Int64
	written [2]atomic.Int64 // bytes read from stdout and stderr
	dropped atomic.Int64
	drained chan *source // those of which what was written before the exit has been passed on

	forgotten bool // guarded by table.mu

	mu       sync.Mutex
	timedOut bool
	exited   bool
	exit     wire.Exit // once exited
}

func (p *process) hasExited() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.exited
}

// start starts a process for a stream, and sees it through to its end.
func (t *Table) start(s *conn.Stream, m *wire.Start) {
	p, err := t.startProcess(s, m)
	if err != nil {
		if err == errStartTimeout || errors.Is(err, spawn.ErrHelper) {
			// It ran, if briefly, and was killed: that is a result.
			e := wire.Exit{Code: 137, Signal: 9}
			if err == errStartTimeout {
				e.Flags, e.Wall = wire.ExitTimedOut, uint64(m.Timeout)
			}
			s.Reply(&wire.Started{})
			s.End(wire.Event, &e)
			return
		}
		if errors.Is(err, spawn.ErrProcessLimit) {
			err = wire.Fail(wire.CodeExhausted, "the sandbox is at its process limit")
		}
		var se *spawn.StartError
		if !errors.As(err, &se) {
			s.Fail(err)
			return
		}
		// As in a shell, a program that can't be started is one that fails.
		e := wire.Exit{Code: 126, StartError: startErrorText(m, se)}
		if se.NotFound() {
			e.Code = 127
		}
		s.Reply(&wire.Started{})
		s.End(wire.Event, &e)
		return
	}

	if s.In != nil {
		go p.feed(s)
		defer s.In.Abort(conn.ErrGone)
	}
	var sink sink = streamSink{s}
	if p.detached {
		sink = p.log
		r := p.log.attach(0, m.Flags&wire.StartHold != 0)
		s.WhenGone(func() { p.log.leave(r) })
		s.Reply(&wire.Started{Ref: p.ref, PID: uint64(p.pid)})
		go p.follow(s, r, 0)
	} else {
		s.WhenGone(func() { go func() { _ = p.kill() }() })
		s.Reply(&wire.Started{Ref: p.ref, PID: uint64(p.pid)})
	}
	p.run(m, sink)
	if !p.detached {
		s.WhenGone(nil)
		s.End(wire.Event, &p.exit)
	}
	p.forget()
}

// errStartTimeout says that a process was killed by its timeout before its helper
// could tell that it had been started.
var errStartTimeout = errors.New("the start took longer than the timeout")

// startErrorText says why a program could not be started.
func startErrorText(m *wire.Start, e *spawn.StartError) string {
	name := "/bin/sh"
	if len(m.Argv) > 0 {
		name = m.Argv[0]
	}
	switch {
	case e.Exec && e.NotFound() && !strings.Contains(name, "/"):
		return wire.Quote(name) + " was not found in PATH"
	case e.Exec && e.Errno == unix.E2BIG:
		return wire.Quote(name) + ": the arguments and the environment are too long (one may have 128 KiB, all together a quarter of the stack limit)"
	case e.Exec:
		return wire.Quote(name) + ": " + e.Errno.Error()
	}
	return e.Error()
}

// startProcess starts the program and enters the process.
func (t *Table) startProcess(s *conn.Stream, m *wire.Start) (*process, error) {
	conf := t.settings.Config()
	argv := m.Argv
	switch {
	case len(argv) == 0 && m.Script == "":
		return nil, wire.Invalid("either a program or a script is needed")
	case len(argv) > 0 && m.Script != "":
		return nil, wire.Invalid("a program and a script can't be combined")
	case len(argv) == 0:
		argv = []string{"/bin/sh", "-c", m.Script}
	case argv[0] == "":
		return nil, wire.Invalid("the program's name is empty")
	}
	for _, a := range argv {
		if strings.IndexByte(a, 0) >= 0 {
			return nil, wire.Invalid("argument " + wire.Quote(a) + " has a NUL in it")
		}
	}
	if strings.IndexByte(m.Dir, 0) >= 0 {
		return nil, wire.Invalid("the working directory has a NUL in it")
	}
	if err := settings.CheckEnv(m.Env); err != nil {
		return nil, err
	}
	if m.Timeout < 0 || m.Output < 0 {
		return nil, wire.Invalid("a limit is negative")
	}
	u := conf.User
	if m.User != "" {
		var err error
		if u, err = t.settings.LookUser(m.User); err != nil {
			return nil, err
		}
	}
	terminal := m.Flags&wire.StartTerminal != 0
	shown, cut := cmdline.Clip(argv) // the strings of m are parts of the whole request
	p := &process{
		table: t, argv: shown, user: u.Name[:min(len(u.Name), maxListedUser)],
		flags: m.Flags & (wire.StartStdin | wire.StartTerminal), terminal: terminal, detached: m.Flags&wire.StartDetached != 0,
		limit: conf.Output, drained: make(chan *source, 2),
	}
	if cut {
		p.flags |= wire.ProcessCut
	}
	if m.Output > 0 && (p.limit == 0 || m.Output < p.limit) {
		p.limit = m.Output
	}
	if p.detached {
		p.log = newOutputLog(m.Keep)
	}
	noFile := conf.NoFile
	if m.NoFile > 0 && (noFile == 0 || m.NoFile < noFile) {
		noFile = m.NoFile
	}
	dir := conf.WorkDir(&u)
	switch {
	case strings.HasPrefix(m.Dir, "/"):
		dir = m.Dir
	case m.Dir != "":
		dir = settings.JoinPath(dir, m.Dir)
	}
	env := settings.Environ(&u, terminal, conf.Env, m.Env)
	a := &spawn.Attr{
		Argv: argv, Candidates: candidates(argv[0], env), Env: env, Dir: dir,
		SetUser: u.Change, UID: u.UID, GID: u.GID, Groups: u.Groups,
		NoFile: noFile, OOMScoreAdj: conf.OOMScoreAdj, Terminal: terminal,
	}
	if u.UID == 0 {
		a.Caps = conf.RootCaps
	}
	a.On = t.settings.Maker()

	closeChild, err := p.streams(a, &u, m)
	if err != nil {
		return nil, err
	}
	p.startAt = time.Now()
	var timedOut atomic.Bool
	p.proc, err = t.reaper.spawn(a, func(killed bool) {
		if killed {
			go t.killOrphans() // whose zombies the caller reaps
		}
		p.forget()
	}, func() bool {
		if m.Timeout > 0 && time.Since(p.startAt) > time.Duration(m.Timeout)+startPatience {
			timedOut.Store(true)
		}
		return timedOut.Load() || s.Gone()
	})
	closeChild()
	if err != nil {
		if errors.Is(err, spawn.ErrHelper) {
			t.killOrphans()
			if timedOut.Load() {
				err = errStartTimeout
			}
		}
		go p.closeStreams() // it may have run, and hold a lock
		return nil, err
	}
	p.pid, p.helper = p.proc.PID(), p.proc.Helper()
	t.mu.Lock()
	t.ref++
	p.ref = t.ref
	t.procs[p.ref] = p
	t.mu.Unlock()
	return p, nil
}

// streams makes the standard streams. closeChild closes those of the child.
func (p *process) streams(a *spawn.Attr, u *settings.User, m *wire.Start) (closeChild func(), err error) {
	var child []int
	closeChild = func() {
		for _, fd := range child {
			unix.Close(fd)
		}
	}
	defer func() {
		if err != nil {
			closeChild()
			p.closeStreams()
			err = wire.Fail(wire.CodeInternal, "making standard streams: "+err.Error())
		}
	}()
	if p.terminal {
		master, slave, err := openTerminal(u, m.Rows, m.Cols)
		if err != nil {
			return nil, err
		}
		child = append(child, slave)
		a.Stdin, a.Stdout, a.Stderr = slave, slave, slave
		if p.stdout, err = newSource(master, true); err != nil {
			return nil, err
		}
		p.stdin = p.stdout.f
		return closeChild, nil
	}
	pipe := func(ours int) (int, error) {
		var fds [2]int
		if err := unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
			return -1, err
		}
		child = append(child, fds[1-ours])
		if err := unix.SetNonblock(fds[ours], true); err != nil {
			unix.Close(fds[ours])
			return -1, err
		}
		return fds[ours], nil
	}
	if m.Flags&wire.StartStdin != 0 {
		w, err := pipe(1)
		if err != nil {
			return nil, err
		}
		if p.stdin = os.NewFile(uintptr(w), "stdin"); !fdio.Watched(p.stdin) {
			return nil, errUnwatched
		}
	} else {
		fd, err := unix.Open("/dev/null", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return nil, err
		}
		child = append(child, fd)
	}
	for _, s := range []**source{&p.stdout, &p.stderr} {
		r, err := pipe(0)
		if err != nil {
			return nil, err
		}
		if *s, err = newSource(r, false); err != nil {
			return nil, err
		}
	}
	a.Stdin, a.Stdout, a.Stderr = child[0], child[1], child[2]
	return closeChild, nil
}

func (p *process) closeStreams() {
	if p.stdin != nil {
		p.stdin.Close()
	}
	for _, s := range []*source{p.stdout, p.stderr} {
		if s != nil {
			s.close()
		}
	}
}

// run carries the output until the process has exited and what it had written
// by then has been passed on.
func (p *process) run(m *wire.Start, to sink) {
	go p.pump(p.stdout, wire.Data, to)
	if p.stderr != nil {
		go p.pump(p.stderr, wire.Data2, to)
	}
	timeout := time.Duration(m.Timeout)
	if life := p.table.settings.Config().Life; life > 0 && (timeout == 0 || life < timeout) {
		timeout = life
	}
	if timeout > 0 {
		timer := time.AfterFunc(timeout-time.Since(p.startAt), p.timeout)
		defer timer.Stop()
	}

	e := wire.Exit{}
	st, err := p.proc.Wait()
	e.Wall = uint64(time.Since(p.startAt))
	if err != nil {
		// The helper was killed, so its children are now the guest's.
		p.table.killOrphans()
		st = spawn.Status{Wait: syscall.WaitStatus(syscall.SIGKILL)}
	}
	switch {
	case st.Wait.Signaled():
		e.Signal = uint64(st.Wait.Signal())
		e.Code = min(128+e.Signal, 255)
	default:
		e.Code = uint64(st.Wait.ExitStatus()) & 0xff
	}
	e.User = uint64(st.Usage.Utime.Nano())
	e.System = uint64(st.Usage.Stime.Nano())
	e.PeakMemory = uint64(st.Usage.Maxrss) << 10 // from KiB (getrusage(2))

	p.stdout.wake()
	if p.stderr != nil {
		p.stderr.wake()
	}
	if !p.drain() {
		e.Flags |= wire.ExitTruncated
	}
	e.Stdout, e.Stderr = uint64(p.written[0].Load()), uint64(p.written[1].Load())
	if e.Dropped = uint64(p.dropped.Load()); e.Dropped > 0 {
		e.Flags |= wire.ExitTruncated
	}
	p.mu.Lock()
	if p.timedOut {
		e.Flags |= wire.ExitTimedOut
	}
	p.exited, p.exit = true, e
	p.mu.Unlock()
	if p.stdin != nil && !p.terminal {
		go p.stdin.Close() // ends a write that nobody will read; a program may hold the pipe's lock
	}
	if p.log != nil {
		p.log.finish()
	}
}

// timeout ends the process when its time is over.
func (p *process) timeout() {
	p.mu.Lock()
	exited := p.exited
	p.timedOut = !exited
	p.mu.Unlock()
	if !exited {
		_ = p.kill()
	}
}

// helperPatience is the time in which a helper must report after everything
// below it is dead. One that takes longer was stopped or worse by its program.
const helperPatience = time.Second

// kill kills the process with everything that it has started.
func (p *process) kill() error {
	if p.table.killTree(p.helper) {
		return nil
	}
	// The helper itself does not answer: it goes too.
	if p.table.reaper.running(p.helper, func() { _ = unix.Kill(p.helper, unix.SIGKILL) }) {
		time.Sleep(helperPatience)
		p.table.killOrphans()
		if p.table.reaper.running(p.helper, func() {}) {
			return wire.Fail(wire.CodeState, "the process is blocked in the kernel and will die when it leaves the kernel")
		}
	}
	return nil
}

// maxEnded is how many processes that have ended can still be found: so many
// detached ones, and as many others, whose host may have died with their results.
const maxEnded = 256

// ended are processes that have ended, oldest first.
type ended struct {
	procs  []*process
	output int // what the logs of all take
}

// forget lets the process go when it has exited and nothing that it has started
// is left: it can still be found for a while.
func (p *process) forget() {
	if !p.hasExited() || p.table.reaper.running(p.helper, func() {}) {
		return
	}
	t := p.table
	t.mu.Lock()
	defer t.mu.Unlock()
	if p.forgotten {
		return
	}
	p.forgotten = true
	kind := &t.ended[0]
	if p.log != nil {
		kind = &t.ended[1]
		kind.output += p.log.takes()
	}
	kind.procs = append(kind.procs, p)
	if len(kind.procs) > maxEnded {
		if l := kind.procs[0].log; l != nil {
			kind.output -= l.drop()
		}
		delete(t.procs, kind.procs[0].ref)
		kind.procs = kind.procs[1:]
	}
	for i := 0; kind.output > endedOutput; i++ {
		kind.output -= kind.procs[i].log.drop()
	}
}

// signal sends a signal.
func (t *Table) signal(m *wire.Signal) error {
	if m.Signal < 1 || m.Signal > 64 {
		return wire.Invalid("there is no signal " + strconv.FormatUint(m.Signal, 10))
	}
	p, err := t.running(m.Target)
	if err != nil {
		return err
	}
	pid := p.pid
	switch {
	case m.Group:
		pid = -p.pid // it leads a session, and so a group of the same number
	case p.terminal:
		if pgrp, err := p.foreground(); err == nil && pgrp > 0 {
			pid = -pgrp
		}
	}
	err = unix.Kill(pid, unix.Signal(m.Signal))
	if err == unix.ESRCH {
		return wire.Fail(wire.CodeNotFound, "the process has exited")
	}
	return err
}

// foreground returns the foreground process group of the terminal.
func (p *process) foreground() (pgrp int, err error) {
	cerr := p.stdout.raw.Control(func(fd uintptr) {
		pgrp, err = unix.IoctlGetInt(int(fd), unix.TIOCGPGRP)
	})
	return pgrp, errors.Join(cerr, err)
}

// resize changes the size of a terminal.
func (t *Table) resize(m *wire.Resize) error {
	p, err := t.running(m.Target)
	if err != nil {
		return err
	}
	if !p.terminal {
		return wire.Invalid("the process has no terminal")
	}
	cerr := p.stdout.raw.Control(func(fd uintptr) { err = setSize(int(fd), m.Rows, m.Cols) })
	return errors.Join(cerr, err)
}

// candidates returns the paths at which a program is looked for.
func candidates(name string, env []string) []string {
	if strings.Contains(name, "/") {
		return []string{name}
	}
	path := settings.DefaultPath
	for _, e := range env {
		if v, ok := strings.CutPrefix(e, "PATH="); ok {
			path = v
		}
	}
	var out []string
	for dir := range strings.SplitSeq(path, ":") {
		if dir == "" { // an empty element is the working directory (environ(7))
			dir = "."
		}
		if len(out) < maxCandidates {
			out = append(out, settings.JoinPath(dir, name))
		}
	}
	return out
}

// maxCandidates bounds the directories in which a program is looked for.
const maxCandidates = 256
