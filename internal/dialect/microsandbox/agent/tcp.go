package agent

import (
	"context"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/sandpit-dev/sandpit/internal/errcode"
	"github.com/sandpit-dev/sandpit/internal/gate"
	"github.com/sandpit-dev/sandpit/internal/guest/wire"
)

// itself are the hosts that are the sandbox itself.
var itself = [...]string{"localhost", "127.0.0.1", "::1", "[::1]", "0.0.0.0", "::", ""}

// heldConnection is the memory of a connection: the buffers of its two directions, and what waits of what comes from the
// port, beside what a bulk transfer takes.
const heldConnection = 64<<10 + wire.HostWindow

// connect connects to a port of the sandbox. The connection counts as a stream of the key, and its memory is charged.
func (op *operation) connect(m message) {
	ch := op.ch
	var req connectRequest
	err := decoder().Unmarshal(m.payload, &req)
	ch.budget.give(frames, m.size)
	if err != nil {
		op.end()
		_ = ch.sendError(op.id, errPayload, err.Error(), m.kind)
		return
	}
	to := net.JoinHostPort(gate.Bounded(req.Host), strconv.Itoa(int(req.Port)))
	part, err := op.begin(opConnect, to)
	if err != nil {
		op.unconnected(to, err)
		return
	}
	var inside net.Conn
	if err = part.OpenStream(); err == nil {
		held := int64(heldConnection)
		if req.Bulk != nil {
			held += 2 * tcpWindow // what waits, and the buffer that it grows in
		}
		if err = ch.budget.take(ch.ctx, windows, held); err == nil {
			defer ch.budget.give(windows, held)
		}
	}
	if err == nil {
		inside, err = op.dial(part.Ctx, req)
	}
	if err != nil {
		part.End(err)
		op.unconnected(to, err)
		return
	}
	for _, ctx := range []context.Context{part.Ctx, ch.ctx} { // the second ends when the client leaves
		stop := context.AfterFunc(ctx, func() { _ = inside.Close() })
		defer stop()
	}
	_ = ch.say(op.id, 0, kindConnected, nothing{})
	b, err := op.accept(req.Bulk, bulkTCP, bulkIn|bulkOut, tcpWindow)
	if err != nil {
		_ = inside.Close()
		part.End(err)
		op.unconnected(to, err)
		return
	}
	var fed sync.WaitGroup
	fed.Go(ch.protected(func() { op.pour(inside) }))
	if b != nil {
		fed.Go(ch.protected(func() { b.pour(inside) }))
		_, err = io.Copy(b, inside)
	} else {
		_, err = io.Copy(bytesWriter{op}, inside)
	}
	if err == nil && b != nil {
		_ = b.finish()
	}
	op.end() // and so of what the client sends
	_ = inside.Close()
	fed.Wait()
	part.End(context.Cause(ch.ctx))
	if err == nil && b == nil {
		_ = ch.say(op.id, 0, kindEOF, nothing{})
	}
	_ = ch.say(op.id, flagTerminal, kindClosed, nothing{})
}

// dial connects to a port.
func (op *operation) dial(ctx context.Context, req connectRequest) (net.Conn, error) {
	if !slices.Contains(itself[:], strings.ToLower(req.Host)) {
		return nil, &gate.Refusal{Code: errcode.Unsupported, Message: "only ports of the sandbox itself can be connected to", Hint: "use localhost, or a program in the sandbox"}
	}
	if req.Port == 0 {
		return nil, gate.Invalid("0 is not a port", "")
	}
	return op.ch.box.Dial(ctx, req.Port)
}

// unconnected says why there is no connection.
func (op *operation) unconnected(to string, err error) {
	op.end()
	_ = op.ch.say(op.id, flagTerminal, kindUnconnected, unconnectedMessage{"connect " + to + ": " + op.ch.call.Describe(err).Message})
}

// bytesWriter sends what comes from a port.
type bytesWriter struct{ op *operation }

// Write sends data.
func (w bytesWriter) Write(b []byte) (int, error) { return w.op.ch.output(w.op.id, kindBytes, b) }

// pour writes what the client sends to a port.
func (op *operation) pour(inside net.Conn) {
	for {
		m, ok := op.in.next()
		if !ok {
			return
		}
		var err error
		switch m.kind {
		case kindBytes:
			var data dataMessage
			if err = decoder().Unmarshal(m.payload, &data); err == nil {
				_, err = inside.Write(data.Data)
			}
		case kindEOF:
			err = closeWrite(inside)
		case kindClose:
			err = net.ErrClosed
		}
		op.ch.budget.give(frames, m.size)
		if err != nil {
			_ = inside.Close() // which ends the other direction
			return
		}
	}
}

// pour writes what the client sends to a port.
func (b *bulk) pour(inside net.Conn) {
	_, err := io.Copy(inside, struct{ io.Reader }{b})
	if err == nil {
		err = closeWrite(inside)
	}
	if err != nil {
		_ = inside.Close() // which ends the other direction
	}
}

// closeWrite ends what a port gets.
func closeWrite(inside net.Conn) error {
	if half, ok := inside.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return nil
}
