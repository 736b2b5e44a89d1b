package stream

import (
	"context"
	"time"

	"github.com/sandpit-dev/sandpit"
	v1 "github.com/sandpit-dev/sandpit/internal/api/v1"
	"github.com/sandpit-dev/sandpit/internal/fastrun"
	"github.com/sandpit-dev/sandpit/internal/gate"
)

// killPatience is the time in which a guest must kill a command.
const killPatience = time.Second

// read takes what the client sends, for the process once that is started,
// until the client leaves.
func (s *Relay) read(started <-chan sandpit.Process) error {
	var p sandpit.Process
	var stdin *inlet
	defer func() {
		if stdin != nil {
			stdin.close()
		}
	}()
	var buf []byte
	for {
		kind, payload, err := v1.ReadFrame(s.in, buf, v1.Window)
		if err != nil {
			return gate.ErrClientGone
		}
		buf = payload
		if p == nil {
			select {
			case p = <-started:
			case <-s.c.Ctx.Done():
				return context.Cause(s.c.Ctx)
			}
		}
		switch kind {
		case v1.FrameStdin, v1.FrameEOF:
			if stdin == nil {
				stdin = newInlet(s.c, p, v1.Window, s.answer)
			}
			if err := stdin.put(payload, kind == v1.FrameEOF); err != nil {
				return err
			}
		case v1.FrameResize, v1.FrameSignal:
			if err := control(s.c.Ctx, p, kind, payload); err != nil {
				return err
			}
		case v1.FramePassed:
			if err := s.rooms.passed(payload); err != nil {
				return err
			}
		case fastrun.FrameKill:
			ctx, cancel := context.WithTimeout(s.c.Ctx, killPatience)
			err := p.Kill(ctx)
			cancel()
			if err != nil {
				return err // its sandbox goes, and it with that
			}
		case fastrun.FrameBackground:
			b, ok := p.(sandpit.Backgrounder)
			if !ok {
				return errMessage("the command can't be moved to the background")
			}
			if err := b.Background(s.c.Ctx); err != nil {
				return err
			}
			s.answer(fastrun.FrameBackground, nil)
		default:
			return errMessage("its type is unknown")
		}
	}
}
