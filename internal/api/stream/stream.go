// Package stream carries content between a client and a sandbox while a request lasts:
//
//   - Response: frames, server-sent events or lines of JSON as the answer to a request
//   - Follow: events and log entries as they come, and where a client resumes (follow.go)
//   - Socket: the messages of a WebSocket, in both directions
//   - Relay: frames for the launcher, over the connection of a request (package fastrun)
//   - Tunnel: the bytes of a connection to a port of a sandbox
//
// Each stream but a tunnel ends with a v1.End, so that a client can tell its end from a cut
// connection. A stream ends with its gate.Call. A client that takes nothing for too long has left.
// What a client sends is hostile: frames are bounded, and the messages of a Socket are
// read piece by piece.
package stream

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/api/codec"
	v1 "github.com/sandpit-dev/sandpit/internal/api/v1"
	"github.com/sandpit-dev/sandpit/internal/gate"
)

// A Sink takes frames for a client.
type Sink interface {
	Frame(kind byte, payload []byte) error
}

// Output returns writers that send a process's standard output and error to a client. They are
// lanes.Joined unless the connection has windows.
func Output(s Sink) (stdout, stderr io.Writer) {
	out, errs := output{s, v1.FrameStdout}, output{s, v1.FrameStderr}
	if w, ok := s.(interface{ apart() bool }); ok && w.apart() {
		return out, errs
	}
	return joined{out}, joined{errs}
}

// joined is an output that waits for the other one, too.
type joined struct{ output }

// Joined is that of lanes.Joined.
func (joined) Joined() {}

// output is a process's standard output or error on its way to the client.
type output struct {
	s    Sink
	kind byte
}

// Write sends a piece of output.
func (o output) Write(b []byte) (int, error) {
	if err := o.s.Frame(o.kind, b); err != nil {
		return 0, err
	}
	return len(b), nil
}

// Attachment returns how a client attaches to a process.
func Attachment(s Sink, history, stdin bool) sandpit.AttachOptions {
	stdout, stderr := Output(s)
	lost := func(n int64) { _ = s.Frame(v1.FrameLost, binary.BigEndian.AppendUint64(nil, uint64(n))) }
	return sandpit.AttachOptions{Stdout: stdout, Stderr: stderr, Lost: lost, NoHistory: !history, Stdin: stdin}
}

// finish tells the client how a process or a run has ended, in the form of the API, and why the
// stream ends, and notes the outcome if that is a failure.
func finish(c *gate.Call, s Sink, res any, err error) (end v1.End, status int) {
	if err == nil && sendJSON(s, v1.FrameResult, res) != nil {
		err = gate.ErrClientGone
	}
	if end, status = endOf(c, err); end.Error != nil {
		c.NoteOutcome(status, end.Error.Code, err)
	}
	_ = sendJSON(s, v1.FrameEnd, end)
	return end, status
}

// ErrLost ends a stream that can't go on without a gap.
var ErrLost = errors.New("events were lost")

// endOf returns the last event of a stream that ends with err, or nil at its own end, and
// the status that the error would have as an answer.
func endOf(c *gate.Call, err error) (end v1.End, status int) {
	switch {
	case err == nil:
		return v1.End{Reason: v1.EndEnded}, 0
	case errors.Is(err, ErrLost):
		return v1.End{Reason: v1.EndLost}, 0
	}
	status, e := codec.Describe(c, err)
	end = v1.End{Reason: v1.EndError, Error: &e}
	if errors.Is(err, gate.ErrDraining) || errors.Is(c.BrokenOff(), gate.ErrDraining) {
		end.Reason = v1.EndDrained
	}
	return end, status
}

func sendJSON(s Sink, kind byte, v any) error {
	payload, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return s.Frame(kind, payload)
}
