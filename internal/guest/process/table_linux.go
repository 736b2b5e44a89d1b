// Package process starts the sandbox's processes, carries their streams, and kills
// and reaps them with everything that they have started.
package process

import (
	"cmp"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/sandpit-dev/sandpit/internal/guest/conn"
	"github.com/sandpit-dev/sandpit/internal/guest/settings"
	"github.com/sandpit-dev/sandpit/internal/guest/wire"
)

// Table has the processes that the guest has started, and for a while those that have
// ended.
type Table struct {
	settings *settings.Settings
	touch    func()
	reaper   reaper
	sudos    atomic.Int64 // commands of sudo that are started or run

	mu    sync.Mutex
	maker maker               // or nil
	took  int                 // how often something was taken on
	sudo  bool                // ServeSudo was called
	procs map[uint64]*process // by ref
	ended [2]ended            // foreground, detached
	ref   uint64
}

// NewTable returns an empty table, and reaps the children of this process from now on.
// touch is called when a process writes.
func NewTable(s *settings.Settings, touch func()) *Table {
	t := &Table{settings: s, touch: touch, procs: make(map[uint64]*process)}
	t.reaper.start()
	return t
}

// Len returns the number of processes in the table.
func (t *Table) Len() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.procs)
}

// Open carries out an OPEN frame that concerns processes.
func (t *Table) Open(s *conn.Stream, op wire.Op, msg []byte) (known bool, err error) {
	switch op {
	case wire.OpStart:
		return true, t.openStart(s, msg)
	case wire.OpAttach:
		return true, t.openAttach(s, msg)
	case wire.OpList:
		var m wire.After
		if err := m.Decode(msg); err != nil {
			return true, wire.Invalid("list: " + err.Error())
		}
		s.Answer(t.list(m.Ref), nil)
	case wire.OpSignal:
		var m wire.Signal
		if err := m.Decode(msg); err != nil {
			return true, wire.Invalid("signal: " + err.Error())
		}
		s.Answer(conn.Nothing{}, t.signal(&m))
	case wire.OpResize:
		var m wire.Resize
		if err := m.Decode(msg); err != nil {
			return true, wire.Invalid("resize: " + err.Error())
		}
		s.Answer(conn.Nothing{}, t.resize(&m))
	case wire.OpKill:
		var m wire.Target
		if err := m.Decode(msg); err != nil {
			return true, wire.Invalid("kill: " + err.Error())
		}
		p := t.find(m)
		if p == nil {
			// A process that has ended with everything that it started is forgotten.
			s.Answer(conn.Nothing{}, nil)
			return true, nil
		}
		go func() { s.Answer(conn.Nothing{}, p.kill()) }()
	case wire.OpKillAll:
		go func() {
			var err error
			if !t.KillAll() {
				err = wire.Fail(wire.CodeState, "a process is blocked in the kernel and will die when it leaves the kernel")
			}
			s.Answer(conn.Nothing{}, err)
		}()
	case wire.OpAnnounced:
		var m wire.Refs
		if err := m.Decode(msg); err != nil {
			return true, wire.Invalid("announced: " + err.Error())
		}
		t.announced(m.List)
		s.Answer(conn.Nothing{}, nil)
	default:
		return false, nil
	}
	return true, nil
}

func (t *Table) openStart(s *conn.Stream, msg []byte) error {
	m := new(wire.Start)
	if err := m.Decode(msg); err != nil {
		return wire.Invalid("start: " + err.Error())
	}
	if m.Flags&(wire.StartStdin|wire.StartTerminal) != 0 {
		s.In = wire.NewQueue(wire.GuestWindow)
	}
	if m.Flags&wire.StartWindows != 0 {
		s.Rooms = [2]*wire.Window{wire.NewWindow(wire.PassWindow), wire.NewWindow(wire.PassWindow)}
	}
	go t.start(s, m)
	return nil
}

func (t *Table) openAttach(s *conn.Stream, msg []byte) error {
	var m wire.Attach
	if err := m.Decode(msg); err != nil {
		return wire.Invalid("attach: " + err.Error())
	}
	p := t.find(m.Target)
	if p == nil {
		return wire.Fail(wire.CodeNotFound, "no such process")
	}
	if m.From < -1 {
		return wire.Invalid("a negative position")
	}
	if m.Flags&wire.AttachPassive == 0 {
		s.Activate()
	}
	if m.Stdin {
		s.In = wire.NewQueue(wire.GuestWindow)
	}
	go p.attach(s, &m)
	return nil
}

// find returns the process that target names, or nil.
func (t *Table) find(target wire.Target) *process {
	t.mu.Lock()
	defer t.mu.Unlock()
	if target.Ref != 0 {
		return t.procs[target.Ref]
	}
	var best *process
	for _, p := range t.procs {
		if uint64(p.pid) != target.PID {
			continue
		}
		if best == nil || !p.hasExited() && best.hasExited() || p.hasExited() == best.hasExited() && p.ref > best.ref {
			best = p
		}
	}
	return best
}

// running returns the process that target names, if it has not exited.
func (t *Table) running(target wire.Target) (*process, error) {
	p := t.find(target)
	if p == nil || p.hasExited() {
		return nil, wire.Fail(wire.CodeNotFound, "the process has exited")
	}
	return p, nil
}

const (
	listPage      = 200 // processes in one answer
	maxListedUser = 256 // bytes of a user's name in it
)

// announced notes that the host has told everybody how processes ended. A later
// host finds it in the list.
func (t *Table) announced(refs []uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, ref := range refs {
		if p := t.procs[ref]; p != nil {
			p.announced.Store(true)
		}
	}
}

// list returns the processes with a greater ref than after.
func (t *Table) list(after uint64) *wire.Processes {
	t.mu.Lock()
	var ps []*process
	for ref, p := range t.procs {
		if ref > after {
			ps = append(ps, p)
		}
	}
	t.mu.Unlock()
	slices.SortFunc(ps, func(a, b *process) int { return cmp.Compare(a.ref, b.ref) })
	out := new(wire.Processes)
	if len(ps) > listPage {
		ps, out.More = ps[:listPage], true
	}
	for _, p := range ps {
		w := wire.Process{
			Started: wire.Started{Ref: p.ref, PID: uint64(p.pid)}, User: p.user, Command: p.argv,
			StartAt: p.startAt.UnixNano(), Detached: p.detached, Flags: p.flags, Dir: p.dir, Tag: p.tag,
		}
		if p.log != nil {
			w.Position = uint64(p.log.position())
		}
		if p.announced.Load() {
			w.Flags |= wire.ProcessAnnounced
		}
		p.mu.Lock()
		w.Exited, w.Exit = p.exited, p.exit
		p.mu.Unlock()
		out.List = append(out.List, w)
	}
	return out
}
