package stream

import (
	"context"
	"syscall"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/api/codec"
	v1 "github.com/sandpit-dev/sandpit/internal/api/v1"
	"github.com/sandpit-dev/sandpit/internal/gate"
)

// control carries out a resize or a signal. That the process has exited in the
// meantime is not an error.
func control(ctx context.Context, p sandpit.Process, kind byte, payload []byte) error {
	if kind == v1.FrameResize {
		var size v1.Size
		if err := codec.Parse(payload, &size); err != nil {
			return err
		}
		_ = p.Resize(ctx, sandpit.TerminalSize{Rows: size.Rows, Cols: size.Cols})
		return nil
	}
	var sig v1.Signal
	if err := codec.Parse(payload, &sig); err != nil {
		return err
	}
	_ = Signal(ctx, p, sig)
	return nil
}

// hintSignal says how to name a signal: numbers are what signal(7) gives the system calls.
const hintSignal = "send a number from 1 to 64, such as 15 for SIGTERM"

// Signal sends the signal that a client asks for.
func Signal(ctx context.Context, p sandpit.Process, sig v1.Signal) error {
	if sig.Signal == 0 {
		return gate.Invalid(`the field "signal" is missing or 0`, hintSignal)
	}
	if sig.Signal < 1 || sig.Signal > 64 {
		return gate.Invalid(`the field "signal" must be a number from 1 to 64`, hintSignal)
	}
	if sig.Group {
		if g, ok := p.(sandpit.GroupSignaler); ok {
			return g.SignalGroup(ctx, syscall.Signal(sig.Signal))
		}
	}
	return p.Signal(ctx, syscall.Signal(sig.Signal))
}
