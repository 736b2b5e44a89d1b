package server

import (
	"cmp"
	"os"
	"slices"
	"time"

	"github.com/sandpit-dev/sandpit/internal/guest/wire"
)

// open does what an OPEN frame asks for. It runs on the connection's reader:
// what may take time goes on in a goroutine. An error ends the stream.
func (s *stream) open(op wire.Op, msg []byte) error {
	g := s.c.g
	switch op {
	case wire.OpConfigure, wire.OpInfo, wire.OpList, wire.OpLifetime, wire.OpExpiry, wire.OpPorts, wire.OpAttach, wire.OpAnnounced:
		// To look is not to use. An attach says itself what it is.
	default:
		s.activate()
	}
	switch op {
	case wire.OpConfigure:
		var m wire.Config
		if err := m.Decode(msg); err != nil {
			return invalid("configuration: " + err.Error())
		}
		s.answer(nothing{}, g.configure(&m))
		return nil
	case wire.OpInfo:
		g.mu.Lock()
		n := len(g.procs)
		g.mu.Unlock()
		s.answer(&wire.Info{
			Build: build(), Version: wire.Version, PID: uint64(os.Getpid()), UID: uint64(os.Geteuid()),
			Uptime: int64(time.Since(g.started)), Processes: uint64(n), Streams: uint64(g.streams.Load()),
		}, nil)
		return nil
	case wire.OpStart:
		m := new(wire.Start)
		if err := m.Decode(msg); err != nil {
			return invalid("start: " + err.Error())
		}
		if m.Flags&(wire.StartStdin|wire.StartTerminal) != 0 {
			s.in = wire.NewQueue(wire.GuestWindow)
		}
		go g.start(s, m)
		return nil
	case wire.OpAttach:
		var m wire.Attach
		if err := m.Decode(msg); err != nil {
			return invalid("attach: " + err.Error())
		}
		p := g.find(m.Target)
		if p == nil {
			return fail(wire.CodeNotFound, "no such process")
		}
		if m.From < -1 {
			return invalid("a negative position")
		}
		if m.Flags&wire.AttachPassive == 0 {
			s.activate()
		}
		if m.Stdin {
			s.in = wire.NewQueue(wire.GuestWindow)
		}
		go p.attach(s, &m)
		return nil
	case wire.OpList:
		var m wire.After
		if err := m.Decode(msg); err != nil {
			return invalid("list: " + err.Error())
		}
		s.answer(g.list(m.Ref), nil)
		return nil
	case wire.OpSignal:
		var m wire.Signal
		if err := m.Decode(msg); err != nil {
			return invalid("signal: " + err.Error())
		}
		s.answer(nothing{}, g.signal(&m))
		return nil
	case wire.OpResize:
		var m wire.Resize
		if err := m.Decode(msg); err != nil {
			return invalid("resize: " + err.Error())
		}
		s.answer(nothing{}, g.resize(&m))
		return nil
	case wire.OpKill:
		var m wire.Target
		if err := m.Decode(msg); err != nil {
			return invalid("kill: " + err.Error())
		}
		p := g.find(m)
		if p == nil {
			// A process that has ended with all that it started is forgotten.
			s.answer(nothing{}, nil)
			return nil
		}
		go func() { s.answer(nothing{}, p.kill()) }()
		return nil
	case wire.OpLifetime:
		var m wire.Lifetime
		if err := m.Decode(msg); err != nil {
			return invalid("lifetime: " + err.Error())
		}
		if m.Life < 0 || m.Idle < 0 || m.Grace < 0 {
			return invalid("a negative time")
		}
		s.answer(g.life.set(g, &m), nil)
		return nil
	case wire.OpPorts:
		// As long as the list is, which the sandbox decides.
		go func() {
			m, err := ports()
			s.answer(m, err)
		}()
		return nil
	case wire.OpDial:
		var m wire.Dial
		if err := m.Decode(msg); err != nil {
			return invalid("dial: " + err.Error())
		}
		return s.dial(&m)
	case wire.OpExpiry:
		g.life.await(g, s)
		return nil
	case wire.OpAnnounced:
		var m wire.Refs
		if err := m.Decode(msg); err != nil {
			return invalid("announced: " + err.Error())
		}
		g.announced(m.List)
		s.answer(nothing{}, nil)
		return nil
	}
	return s.openFile(op, msg)
}

// find returns the process that t names, or nil.
func (g *guest) find(t wire.Target) *process {
	g.mu.Lock()
	defer g.mu.Unlock()
	if t.Ref != 0 {
		return g.procs[t.Ref]
	}
	var best *process
	for _, p := range g.procs {
		if uint64(p.pid) != t.PID {
			continue
		}
		if best == nil || !p.hasExited() && best.hasExited() || p.hasExited() == best.hasExited() && p.ref > best.ref {
			best = p
		}
	}
	return best
}

// running returns the process that t names, if it has not exited.
func (g *guest) running(t wire.Target) (*process, error) {
	p := g.find(t)
	if p == nil || p.hasExited() {
		return nil, fail(wire.CodeNotFound, "the process has exited")
	}
	return p, nil
}

const (
	listPage      = 200 // processes in one answer
	maxListedUser = 256 // bytes of a user's name in it
)

// announced notes that the host has told everybody how processes ended. A later
// host finds it in the list.
func (g *guest) announced(refs []uint64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, ref := range refs {
		if p := g.procs[ref]; p != nil {
			p.announced.Store(true)
		}
	}
}

// list returns the processes with a greater ref than after.
func (g *guest) list(after uint64) *wire.Processes {
	g.mu.Lock()
	var ps []*process
	for ref, p := range g.procs {
		if ref > after {
			ps = append(ps, p)
		}
	}
	g.mu.Unlock()
	slices.SortFunc(ps, func(a, b *process) int { return cmp.Compare(a.ref, b.ref) })
	out := new(wire.Processes)
	if len(ps) > listPage {
		ps, out.More = ps[:listPage], true
	}
	for _, p := range ps {
		w := wire.Process{
			Started: wire.Started{Ref: p.ref, PID: uint64(p.pid)}, User: p.user, Command: p.argv,
			StartAt: p.startAt.UnixNano(), Detached: p.detached, Flags: p.flags,
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
