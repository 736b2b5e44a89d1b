package server

import (
	"os"
	"time"

	"github.com/sandpit-dev/sandpit/internal/guest/conn"
	"github.com/sandpit-dev/sandpit/internal/guest/wire"
)

// Open does what an OPEN frame asks for. It runs on the connection's reader:
// what may take time goes on in a goroutine. An error ends the stream.
func (g *guest) Open(s *conn.Stream, op wire.Op, msg []byte) error {
	switch op {
	case wire.OpConfigure, wire.OpInfo, wire.OpList, wire.OpLifetime, wire.OpExpiry, wire.OpPorts, wire.OpAttach, wire.OpAnnounced:
		// To look is not to use. An attach says itself what it is.
	default:
		s.Activate()
	}
	switch op {
	case wire.OpConfigure:
		var m wire.Config
		if err := m.Decode(msg); err != nil {
			return wire.Invalid("configuration: " + err.Error())
		}
		err := g.settings.Configure(&m)
		if err == nil {
			g.workers.Renew()
			if m.Sudo {
				err = g.processes.ServeSudo()
			}
		}
		s.Answer(conn.Nothing{}, err)
		return nil
	case wire.OpInfo:
		s.Answer(&wire.Info{
			Build: conn.Build(), Version: wire.Version, PID: uint64(os.Getpid()), UID: uint64(os.Geteuid()),
			Uptime: int64(time.Since(g.started)), Processes: uint64(g.processes.Len()), Streams: uint64(g.streams.Load()),
		}, nil)
		return nil
	case wire.OpLifetime:
		var m wire.Lifetime
		if err := m.Decode(msg); err != nil {
			return wire.Invalid("lifetime: " + err.Error())
		}
		if m.Life < 0 || m.Idle < 0 || m.Grace < 0 {
			return wire.Invalid("a negative time")
		}
		s.Answer(g.life.set(g, &m), nil)
		return nil
	case wire.OpPorts:
		// As long as the list is, which the sandbox decides.
		go func() {
			m, err := ports()
			s.Answer(m, err)
		}()
		return nil
	case wire.OpDial:
		var m wire.Dial
		if err := m.Decode(msg); err != nil {
			return wire.Invalid("dial: " + err.Error())
		}
		return g.dial(s, &m)
	case wire.OpExpiry:
		g.life.await(g, s)
		return nil
	}
	if known, err := g.processes.Open(s, op, msg); known {
		return err
	}
	return g.files.Open(s, op, msg)
}
