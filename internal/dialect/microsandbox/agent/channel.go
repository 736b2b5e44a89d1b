package agent

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/coder/websocket"
	"github.com/fxamacker/cbor/v2"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/api/codec"
	"github.com/sandpit-dev/sandpit/internal/dialect"
	"github.com/sandpit-dev/sandpit/internal/engine"
	"github.com/sandpit-dev/sandpit/internal/errcode"
	"github.com/sandpit-dev/sandpit/internal/gate"
)

// Bounds of a channel.
const (
	maxOperations = 256      // in progress
	maxInput      = 12 << 20 // bytes that wait for the standard input of a program, unless it is one frame
	maxPiece      = 64 << 10 // bytes of output in a frame
	copies        = 3        // of a frame while it is decoded
)

// The IDs that a client may use. It counts from the first on, and takes a server whose last is no more than the
// largest frame for one before 0.5.
const (
	firstID = 1
	endID   = 1<<25 - 1
)

// channel is a connection of a client to the agent of a sandbox.
type channel struct {
	call    *gate.Call
	server  dialect.Server
	box     engine.Box
	rlimits []rlimit // of each program
	conn    *websocket.Conn
	name    string // that operations of the audit begin with

	// The library breaks the connection when the context of a Read or Write ends. io outlives
	// the call's, so that the client can be told why the call ends; ctx ends with the channel.
	io     context.Context
	ctx    context.Context
	cancel context.CancelCauseFunc

	write sync.Mutex
	buf   []byte // of the frame that is sent; guarded by write

	budget  *budget
	files   handles
	touches uint64 // of the reader alone

	mu         sync.Mutex
	operations map[uint32]*operation
	all        sync.WaitGroup
}

func newChannel(c *gate.Call, s dialect.Server, box engine.Box, conn *websocket.Conn, name string) *channel {
	ch := &channel{
		call: c, server: s, box: box, conn: conn, name: name, io: context.WithoutCancel(c.Ctx),
		operations: map[uint32]*operation{},
	}
	ch.budget = newBudget(func(n int64) error { return c.Hold(gate.InMemory, n) }, c.Gate().Limits().Tunnel, ch.paused)
	ch.ctx, ch.cancel = context.WithCancelCause(c.Ctx)
	return ch
}

// operation is a request in progress.
type operation struct {
	ch   *channel
	id   uint32
	kind string     // of the request
	in   *inbox     // what follows the request, in order: the data of its input, or messages with content
	ctrl *inbox     // of a program: signals and resizes, which overtake its input
	bulk *bulk      // the transfer of its content, or nil; guarded by channel.mu
	part *gate.Call // what was begun for it, or nil; of the goroutine that carries it out
	held int64      // of windows, until its answer is sent; the same

	mu    sync.Mutex // held while an error of the input is sent
	ended bool       // guarded by mu
}

// serve serves the channel until the client leaves or the call ends.
func (ch *channel) serve() {
	stop := context.AfterFunc(ch.ctx, func() {
		ch.mu.Lock()
		all := slices.Collect(maps.Values(ch.operations))
		ch.mu.Unlock()
		for _, op := range all {
			op.close()
		}
	})
	defer stop()
	ended := context.AfterFunc(ch.call.Ctx, func() { ch.closeWithReason(nil) }) // which ends the reader
	err := ch.greet()
	if err == nil {
		err = ch.read(bufio.NewReaderSize(&socketReader{ch: ch}, 4<<10))
	}
	if !errors.Is(err, errFrame) && !errors.Is(err, errFull) {
		err = nil
	}
	ch.cancel(errGone)
	ch.all.Wait()
	if ended() {
		ch.closeWithReason(err)
	}
}

// greet sends what the client waits for. All is one message, because each takes a system call.
func (ch *channel) greet() error {
	b := binary.BigEndian.AppendUint32(nil, firstID)
	b = binary.BigEndian.AppendUint32(b, endID)
	payload, err := cbor.Marshal(readyMessage{Version: "sandpit " + ch.server.Version})
	if err != nil {
		return err
	}
	return ch.put(appendFrame(b, 0, 0, kindReady, payload))
}

// put sends bytes. A client that does not take them in time has left.
func (ch *channel) put(b []byte) error {
	ctx, cancel := context.WithTimeout(ch.io, ch.call.Gate().Limits().Stall)
	defer cancel()
	err := ch.conn.Write(ctx, websocket.MessageBinary, b)
	ch.call.W.Sent += int64(len(b))
	if err != nil {
		ch.cancel(errGone)
		return errGone
	}
	return nil
}

// send sends a frame.
func (ch *channel) send(id uint32, flags byte, kind string, parts ...[]byte) error {
	ch.write.Lock()
	defer ch.write.Unlock()
	if ch.ctx.Err() != nil {
		return context.Cause(ch.ctx)
	}
	ch.buf = appendFrame(ch.buf[:0], id, flags, kind, parts...)
	return ch.put(ch.buf)
}

// say sends a frame with a value.
func (ch *channel) say(id uint32, flags byte, kind string, v any) error {
	payload, err := cbor.Marshal(v)
	if err != nil {
		return err
	}
	return ch.send(id, flags, kind, payload)
}

// output sends data in frames of a kind.
func (ch *channel) output(id uint32, kind string, b []byte) (n int, err error) {
	var head [16]byte
	for n < len(b) {
		piece := b[n:min(n+maxPiece, len(b))]
		if err := ch.send(id, 0, kind, dataHead(head[:0], len(piece)), piece); err != nil {
			return n, err
		}
		n += len(piece)
	}
	return n, nil
}

// sendError tells the client that it has sent something that can't be understood.
func (ch *channel) sendError(id uint32, kind, text, offending string) error {
	return ch.say(id, flagTerminal, kindError, errorMessage{Kind: kind, Message: text, Type: gate.Bounded(offending)})
}

// socketReader reads the bytes of binary messages. Text is skipped.
type socketReader struct {
	ch   *channel
	rest io.Reader // of the present message, or nil
}

// Read reads what there is.
func (r *socketReader) Read(b []byte) (int, error) {
	for {
		if r.rest == nil {
			kind, msg, err := r.ch.conn.Reader(r.ch.io)
			if err != nil {
				return 0, err
			}
			r.rest = msg
			if kind != websocket.MessageBinary {
				if _, err := io.Copy(io.Discard, msg); err != nil {
					return 0, err
				}
				r.rest = nil
				continue
			}
		}
		n, err := r.rest.Read(b)
		if err == io.EOF {
			r.rest, err = nil, nil
		}
		if n > 0 || err != nil {
			return n, err
		}
	}
}

// read takes frames until the connection or the channel ends.
func (ch *channel) read(from io.Reader) error {
	for ch.ctx.Err() == nil {
		id, flags, n, err := readHead(from)
		if err != nil {
			return err
		}
		body, err := ch.readBody(from, n)
		if err != nil {
			return err
		}
		size := int64(n) * copies
		queued := false
		switch {
		case flags == flagBulk:
			r, bad := parseRecord(body)
			if bad != nil {
				err = ch.sendError(id, errMalformed, bad.Error(), "")
				break
			}
			ch.transfer(id, func(b *bulk) error { return b.take(r) })
		case flags&flagBulk != 0:
			err = ch.sendError(id, "invalid_flags", "a record has no other flag", "")
		default:
			e, bad := parseBody(body)
			if bad != nil {
				err = ch.sendError(id, errMalformed, bad.Error(), "")
				break
			}
			queued, err = ch.take(message{id: id, kind: e.T, payload: e.P, size: size})
		}
		if !queued {
			ch.budget.give(frames, size)
		}
		if err != nil {
			return err
		}
	}
	return context.Cause(ch.ctx)
}

// readBody reads the n bytes of a frame after its head. Who announces a frame and sends next to nothing of it counts for little.
// When the first bytes of a long one have come, it waits for room for the rest, for as long as others take it, and holds little
// meanwhile, so that frames that come at the same time don't keep each other from what they wait for. Then the rest
// must come within codec.BodyTime.
func (ch *channel) readBody(from io.Reader, n int) (body []byte, err error) {
	for taken := 0; taken < n; {
		more := n - taken
		if taken == 0 {
			more = min(more, gate.FreeBody)
		}
		if err := ch.budget.grow(ch.ctx, frames, int64(taken)*copies, int64(more)*copies); err != nil {
			return nil, err
		}
		taken += more
		body = slices.Grow(body, more)[:taken]
		slow := time.AfterFunc(codec.BodyTime, func() { ch.closeWithReason(errSlow) })
		_, err = io.ReadFull(from, body[taken-more:])
		if slow.Stop(); err != nil {
			return nil, err
		}
	}
	return body, nil
}

// errSlow is the error of a frame that does not come in time.
var errSlow error = &gate.Refusal{Code: errcode.BodyTimeout, Message: "the frame did not arrive in time", Hint: "send a frame without long pauses"}

// take carries out a message, or passes it on to its operation, which then releases it.
func (ch *channel) take(m message) (queued bool, err error) {
	switch m.kind {
	case kindExec, kindFiles, kindConnect:
		return ch.start(m)
	case kindStdin, kindContent, kindBytes, kindEOF, kindClose, kindResize, kindSignal:
		return ch.pass(m)
	case kindBulkCredit, kindBulkFinish, kindBulkCancel:
		ch.transfer(m.id, func(b *bulk) error { return b.tell(m) })
		return false, nil
	case kindPing:
		return false, ch.say(m.id, flagTerminal, kindPong, nothing{})
	case kindTouch:
		err := ch.await(ch.call.Count) // behind which the reader waits
		if err == nil {
			_, err = ch.box.Files().Lstat(ch.ctx, "/") // any operation keeps the sandbox from being idle
		}
		if err != nil {
			return false, ch.sendError(m.id, "capability_unavailable", ch.call.Describe(err).Message, m.kind)
		}
		ch.touches++
		return false, ch.say(m.id, flagTerminal, kindTouched, touchedMessage{ch.touches})
	case kindShutdown:
		return false, ch.shutdown()
	}
	return false, ch.sendError(m.id, errUnsupported, fmt.Sprintf("messages of type %.60q are not supported", m.kind), m.kind)
}

// shutdown stops the sandbox.
func (ch *channel) shutdown() error {
	part, err := ch.begin(opShutdown, "")
	if err == nil {
		err = ch.box.Stop(part.Ctx, -1)
		part.End(err)
	}
	if err != nil {
		return ch.sendError(0, "capability_unavailable", ch.call.Describe(err).Message, kindShutdown)
	}
	return nil
}

// start begins an operation.
func (ch *channel) start(m message) (queued bool, err error) {
	tunnel := ch.call.Gate().Limits().Tunnel
	op := &operation{ch: ch, id: m.id, kind: m.kind, in: newInbox(maxWaiting, 0, tunnel, ch.paused), ctrl: newInbox(maxWaiting, 0, tunnel, ch.paused)}
	if m.kind == kindExec {
		op.in = newInbox(0, maxInput, tunnel, ch.paused)
	}
	ch.mu.Lock()
	_, used := ch.operations[m.id]
	used = used || m.id == 0 // 0 is reserved for the channel itself
	many := len(ch.operations) >= maxOperations
	if !used && !many && ch.ctx.Err() == nil {
		ch.operations[m.id] = op
		ch.all.Go(ch.protected(func() { op.run(m) }))
	}
	ch.mu.Unlock()
	switch {
	case used:
		return false, ch.sendError(m.id, errSession, "the ID is in use", m.kind)
	case many:
		return false, ch.sendError(m.id, errSession, fmt.Sprintf("more than %d operations are in progress on this connection", maxOperations), m.kind)
	case ch.ctx.Err() != nil:
		return false, context.Cause(ch.ctx)
	}
	return true, nil
}

// protected returns a function for a goroutine of the channel, which calls f. If f panics, the channel ends.
func (ch *channel) protected(f func()) func() {
	return func() {
		defer ch.server.Protect("an operation on an agent channel", func(err error) {
			ch.cancel(err)
			ch.closeWithReason(err) // which ends the reader
		})
		f()
	}
}

// run carries out an operation.
func (op *operation) run(m message) {
	ended := false
	defer func() {
		if !ended && op.part != nil { // it panics
			op.part.End(errPanicked)
		}
	}()
	switch op.kind {
	case kindExec:
		op.exec(m)
	case kindFiles:
		op.files(m)
	case kindConnect:
		op.connect(m)
	}
	ended = true
}

var errPanicked = errors.New("the operation panicked")

// end forgets the operation before its last frame is sent: then the client may use the ID again.
func (op *operation) end() {
	op.mu.Lock()
	op.ended = true
	op.mu.Unlock()
	op.ch.mu.Lock()
	delete(op.ch.operations, op.id)
	op.ch.mu.Unlock()
	op.close()
}

// close makes the operation get no more messages.
func (op *operation) close() {
	op.dropInput()
	op.ch.budget.give(frames, op.ctrl.close())
	op.ch.mu.Lock()
	b := op.bulk
	op.ch.mu.Unlock()
	if b != nil {
		b.end(errBulkEnded)
	}
}

// pass gives a message to its operation, and waits for room.
func (ch *channel) pass(m message) (queued bool, err error) {
	ch.mu.Lock()
	op := ch.operations[m.id]
	ch.mu.Unlock()
	if op == nil || op.kind != owner(m.kind) {
		return false, ch.replyUnknownID(m)
	}
	box := op.in
	switch m.kind {
	case kindStdin:
		return false, op.input(m)
	case kindResize, kindSignal:
		box = op.ctrl
	}
	queued, err = box.put(m)
	if errors.Is(err, errStuck) {
		err = errFull
	}
	return queued, err
}

// owner returns the kind of the requests that a message may follow.
func owner(kind string) string {
	switch kind {
	case kindStdin, kindResize, kindSignal:
		return kindExec
	case kindContent:
		return kindFiles
	}
	return kindConnect
}

// replyUnknownID answers a message whose operation does not exist, or has just ended.
func (ch *channel) replyUnknownID(m message) error {
	switch m.kind {
	case kindContent:
		return ch.answer(m.id, nil, fmt.Errorf("unknown write session: %d", m.id))
	case kindBytes:
		return ch.say(m.id, flagTerminal, kindUnconnected, unconnectedMessage{fmt.Sprintf("unknown TCP session: %d", m.id)})
	}
	return nil
}

// paused reports whether the sandbox is paused, so that nothing in it can take anything.
func (ch *channel) paused() bool {
	info, err := ch.box.Info(ch.ctx)
	return err == nil && info.State == sandpit.StatePaused
}

// hold counts bytes that are to be in the answer of an operation.
func (op *operation) hold(n int64) error {
	err := op.ch.budget.take(op.ch.ctx, windows, n)
	if err == nil {
		op.held += n
	}
	return err
}
