package process

import (
	"errors"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit/internal/guest/conn"
	"github.com/sandpit-dev/sandpit/internal/guest/spawn"
	"github.com/sandpit-dev/sandpit/internal/guest/wire"
)

// process is one program that the guest has started.
type process struct {
	table    *Table
	ref      uint64
	pid      int
	argv     []string // as far as it is listed
	user     string   // as far as it is listed
	dir      string   // as its start names it
	tag      string
	flags    uint64 // StartStdin, StartTerminal, ProcessCut
	detached bool
	startAt  time.Time
	proc     *spawn.Proc
	log      *outputLog // output of a detached process
	zygote   *zygote    // nil: nothing can be forked from it

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

// exitOf returns how a program has ended, of which spawn.Proc.Wait has returned st and err.
func (t *Table) exitOf(st spawn.Status, err error) wire.Exit {
	if err != nil {
		// The helper was killed, so its children are now the guest's.
		t.killOrphans()
		return killed()
	}
	e := wire.Exit{
		Code: uint64(st.Wait.ExitStatus()) & 0xff,
		User: uint64(st.Usage.Utime.Nano()), System: uint64(st.Usage.Stime.Nano()),
		PeakMemory: uint64(st.Usage.Maxrss) << 10, // from KiB (getrusage(2))
	}
	if st.Wait.Signaled() {
		e.Signal = uint64(st.Wait.Signal())
		e.Code = min(128+e.Signal, 255)
	}
	return e
}

// killed returns the end of a program that was killed.
func killed() wire.Exit {
	return wire.Exit{Code: 128 + uint64(syscall.SIGKILL), Signal: uint64(syscall.SIGKILL)}
}

// notStarted returns the end of a program that could not be started: as in a shell, it is one that fails.
func notStarted(m *wire.Start, err *spawn.StartError) wire.Exit {
	e := wire.Exit{Code: 126, StartError: startErrorText(m, err), Errno: uint64(err.Errno)}
	if err.NotFound() {
		e.Code = 127
	}
	switch {
	case err.Dir:
		e.Stage = wire.StageDirectory
	case err.Exec:
		e.Stage = wire.StageProgram
	}
	return e
}

// run carries the output until the process has exited and what it had written
// by then has been passed on.
func (p *process) run(m *wire.Start, s *conn.Stream, to sink) {
	go p.pump(p.stdout, wire.Data, s.Room(wire.Data), to)
	if p.stderr != nil {
		go p.pump(p.stderr, wire.Data2, s.Room(wire.Data2), to)
	}
	if timeout := time.Duration(m.Timeout); timeout > 0 {
		timer := time.AfterFunc(timeout-time.Since(p.startAt), p.timeout)
		defer timer.Stop()
	}

	st, err := p.proc.Wait()
	wall := time.Since(p.startAt)
	e := p.table.exitOf(st, err)
	e.Wall = uint64(wall)

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
	if p.table.killTree(p.proc) {
		p.table.killOrphansLeft() // a program can kill its helper
		return nil
	}
	// The helper itself does not answer: it goes too.
	if p.table.reaper.running(p.proc, func() { _ = unix.Kill(p.proc.Helper(), unix.SIGKILL) }) {
		time.Sleep(helperPatience)
		p.table.killOrphans()
		if p.table.reaper.running(p.proc, func() {}) {
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
	if !p.hasExited() || p.table.reaper.running(p.proc, func() {}) {
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
