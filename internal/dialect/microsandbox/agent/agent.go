// Package agent serves the agent channel of microsandbox: a WebSocket for one sandbox, on which a client runs
// programs, works with files and connects to ports.
//
// Binary messages of the WebSocket are one stream of bytes in each direction; their boundaries mean nothing. The
// server sends the range of IDs that the client may use, and then both send frames (frame.go). An operation
// begins with a request that has a new ID, and ends with a frame that is marked as its last. Many are in progress
// at once. Each is admitted, recorded and counted as a request of its own (gate.Call.Part).
//
// Frames to the client are never queued: an operation waits until the client has taken its frame. Frames from the
// client wait in bounded queues. If they are full, the channel reads no further.
//
// Facts about the protocol are from the public sources (superradcompany/microsandbox: crates/protocol and
// crates/agentd) and from what clients send.
package agent

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/coder/websocket"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/api/stream"
	"github.com/sandpit-dev/sandpit/internal/dialect"
	"github.com/sandpit-dev/sandpit/internal/engine"
	"github.com/sandpit-dev/sandpit/internal/errcode"
	"github.com/sandpit-dev/sandpit/internal/gate"
)

// IDs of the operations on a channel, without the name of the dialect.
const (
	opExec     = "exec"
	opRead     = "readFiles"
	opChange   = "changeFiles"
	opConnect  = "connectPort"
	opShutdown = "shutdown"
)

// Routes returns the route of the channel and the operations on it. Their IDs lack the name of the dialect.
func Routes(s dialect.Server, name string) []gate.Route {
	open := func(c *gate.Call) error { return open(c, s, name+".") }
	return []gate.Route{
		{Method: http.MethodGet, Path: "/v1/sandboxes/{sandbox}/agent", ID: "agent", Target: func(r *http.Request) string { return r.PathValue("sandbox") }, Handle: open},
		{ID: opExec, Guarded: true},
		{ID: opRead, Method: http.MethodGet},
		{ID: opChange, Guarded: true},
		{ID: opConnect, Guarded: true},
		{ID: opShutdown, Guarded: true, Vital: true},
	}
}

// open serves a channel. Opening it changes nothing, so only the operations on it are recorded before they are
// carried out.
func open(c *gate.Call, s dialect.Server, name string) error {
	if err := c.OpenStream(); err != nil {
		return err
	}
	box, err := running(c, s)
	if err != nil {
		return err
	}
	limits, err := rlimitsOf(box.Dialect(s.Name))
	if err != nil {
		return err
	}
	conn, err := stream.Upgrade(c, "")
	if err != nil {
		return err
	}
	defer func() { _ = conn.CloseNow() }()
	c.Conn().Prompt() // clients send small frames behind large ones, and do not set TCP_NODELAY
	ch := newChannel(c, s, box, conn, name)
	ch.rlimits = limits
	ch.serve()
	return nil
}

// running finds the sandbox that the request names by its ID.
func running(c *gate.Call, s dialect.Server) (engine.Box, error) {
	sb, err := s.Tenant(c.Caller).BoxByID(c.Target)
	if err != nil {
		return nil, err
	}
	info, err := sb.Info(c.Ctx)
	if err != nil {
		return nil, err
	}
	if info.State != sandpit.StateRunning && info.State != sandpit.StatePaused {
		return nil, &gate.Refusal{Code: errcode.State, Message: "the sandbox is " + string(info.State), Hint: "start it"}
	}
	return sb, nil
}

// closeTimeout is how long a client may take for its part of the close handshake.
const closeTimeout = 5 * time.Second

// closeWithReason closes the connection with a reason, unless the client has gone.
func (ch *channel) closeWithReason(why error) {
	code, reason := websocket.StatusNormalClosure, ""
	if ended := ch.call.BrokenOff(); ended != nil {
		why, code = ended, websocket.StatusPolicyViolation
		if ended == gate.ErrDraining { //nolint:errorlint // it is that value
			code = websocket.StatusGoingAway
		}
	} else if errors.Is(why, errFull) {
		code = websocket.StatusTryAgainLater
	} else if why != nil {
		code = websocket.StatusProtocolError
	}
	if why != nil {
		reason = ch.call.Describe(why).Code
	}
	if reason == errcode.Internal {
		code = websocket.StatusInternalError
	}
	ch.call.W.CloseIn(closeTimeout)
	_ = ch.conn.Close(code, reason)
}

// errGone is the cause of the end of a channel whose client has gone.
var errGone = gate.ErrClientGone

// begin is channel.begin, and notes what op has to end.
func (op *operation) begin(id, detail string) (part *gate.Call, err error) {
	part, err = op.ch.begin(id, detail)
	op.part = part
	return part, err
}

// begin begins an operation. One that comes too soon after others waits.
func (ch *channel) begin(id, detail string) (part *gate.Call, err error) {
	err = ch.await(func() error {
		part, err = ch.call.Part(ch.name+id, detail)
		return err
	})
	return part, err
}

// await tries to have an operation admitted. One that comes too soon after others waits.
func (ch *channel) await(try func() error) error {
	for tries := 0; ; tries++ {
		err := try()
		if err == nil || tries == maxTries || errcode.Of(err) != errcode.RateLimited {
			return err
		}
		select {
		case <-ch.ctx.Done():
			return context.Cause(ch.ctx)
		case <-time.After(tryEvery):
		}
	}
}

// How long an operation beyond the rate of its key waits.
const (
	tryEvery = 100 * time.Millisecond
	maxTries = 50
)
