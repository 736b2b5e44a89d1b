package process

import (
	"errors"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit/internal/cmdline"
	"github.com/sandpit-dev/sandpit/internal/guest/conn"
	"github.com/sandpit-dev/sandpit/internal/guest/fdio"
	"github.com/sandpit-dev/sandpit/internal/guest/settings"
	"github.com/sandpit-dev/sandpit/internal/guest/spawn"
	"github.com/sandpit-dev/sandpit/internal/guest/wire"
)

// start starts a process for a stream, and sees it through to its end.
func (t *Table) start(s *conn.Stream, m *wire.Start) {
	p, err := t.startProcess(s, m)
	if err != nil {
		if err == errStartTimeout || errors.Is(err, spawn.ErrHelper) {
			// It ran, if briefly, and was killed: that is a result.
			e := killed()
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
		e := notStarted(m, se)
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
	p.run(m, s, sink)
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
	case e.Exec && name == "":
		return "the program's name is empty"
	case e.Exec && e.NotFound() && e.Tried == maxCandidates:
		return wire.Quote(name) + " was not found in the first " + strconv.Itoa(maxCandidates) + " directories of PATH, and others are not searched"
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
	if len(m.Tag) > wire.MaxTag {
		return nil, wire.Invalid("the tag is too long")
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
		dir: strings.Clone(m.Dir[:min(len(m.Dir), wire.MaxDir)]), tag: strings.Clone(m.Tag),
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
	limits, err := rlimits(&conf, m.NoFile, m.Rlimits)
	if err != nil {
		return nil, wire.At(wire.StageLimits, err)
	}
	dir := conf.WorkDir(&u)
	switch {
	case strings.HasPrefix(m.Dir, "/"):
		dir = m.Dir
	case m.Dir != "":
		dir = settings.JoinPath(dir, m.Dir)
	}
	env := environ(&u, terminal, conf.Env, m.Env)
	a := &spawn.Attr{
		Argv: argv, Candidates: candidates(argv[0], env), Env: env, Dir: dir,
		SetUser: u.Change, UID: u.UID, GID: u.GID, Groups: u.Groups,
		Rlimits: limits, OOMScoreAdj: conf.OOMScoreAdj, Terminal: terminal,
	}
	if u.UID == 0 {
		a.Caps = conf.RootCaps
	}
	a.On = t.on()
	if p.detached && m.Flags&wire.StartZygote != 0 {
		t.mu.Lock()
		p.zygote = &zygote{*a, t.took}
		t.mu.Unlock()
		a.Zygote = true
	}

	closeChild, err := p.streams(a, &u, m)
	if err != nil {
		return nil, err
	}
	p.startAt = time.Now()
	var timedOut atomic.Bool
	gone := func(killed bool) {
		if killed {
			go t.killOrphans() // whose zombies the caller reaps
		}
		p.forget()
	}
	calledOff := func() bool {
		if m.Timeout > 0 && time.Since(p.startAt) > time.Duration(m.Timeout)+startPatience {
			timedOut.Store(true)
		}
		return timedOut.Load() || s.Gone()
	}
	err = errFork
	if p.detached && m.Flags&wire.StartFork != 0 {
		p.proc, err = t.fork(a, gone, calledOff)
	}
	if err == errFork {
		p.proc, err = t.reaper.spawn(a, nil, gone, calledOff)
	}
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
	p.pid = p.proc.PID()
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
		if u.Change {
			// So that the program may open it again by name, as /dev/stdin or /proc/self/fd/0.
			_ = unix.Fchown(fds[ours], int(u.UID), int(u.GID))
		}
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
