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
	"github.com/sandpit-dev/sandpit/internal/dialect"
	"github.com/sandpit-dev/sandpit/internal/engine"
	"github.com/sandpit-dev/sandpit/internal/errcode"
	"github.com/sandpit-dev/sandpit/internal/gate"
)

// Bounds of a channel.
const (
	maxOperations = 256      // in progress
	maxHeld       = 16 << 20 // bytes of frames that wait, unless it is one
	maxInputs     = 16 << 20 // bytes that wait for the standard inputs of programs
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

	files   handles
	touches uint64 // of the reader alone

	mu         sync.Mutex
	operations map[uint32]*operation
	held       int64         // bytes of frames that wait, and of inputs
	windows    int64         // bytes that may wait of files and connections
	inputs     int64         // bytes that wait for the standard inputs of programs
	freed      chan struct{} // has an element when held has become less
	all        sync.WaitGroup
}

func newChannel(c *gate.Call, s dialect.Server, box engine.Box, conn *websocket.Conn, name string) *channel {
	ch := &channel{
		call: c, server: s, box: box, conn: conn, name: name, io: context.WithoutCancel(c.Ctx),
		operations: map[uint32]*operation{}, freed: make(chan struct{}, 1),
	}
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
	ended := context.AfterFunc(ch.call.Ctx, func() { ch.farewell(nil) }) // which ends the reader
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
		ch.farewell(err)
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

// complain tells the client that it has sent something that can't be understood.
func (ch *channel) complain(id uint32, kind, text, offending string) error {
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
		size := int64(n) * copies
		if err := ch.hold(size); err != nil {
			return err
		}
		body := make([]byte, n)
		if _, err := io.ReadFull(from, body); err != nil {
			return err
		}
		queued := false
		switch {
		case flags == flagBulk:
			r, bad := parseRecord(body)
			if bad != nil {
				err = ch.complain(id, errMalformed, bad.Error(), "")
				break
			}
			ch.transfer(id, func(b *bulk) error { return b.take(r) })
		case flags&flagBulk != 0:
			err = ch.complain(id, "invalid_flags", "a record has no other flag", "")
		default:
			e, bad := parseBody(body)
			if bad != nil {
				err = ch.complain(id, errMalformed, bad.Error(), "")
				break
			}
			queued, err = ch.take(message{id: id, kind: e.T, payload: e.P, size: size})
		}
		if !queued {
			ch.release(size)
		}
		if err != nil {
			return err
		}
	}
	return context.Cause(ch.ctx)
}

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
			return false, ch.complain(m.id, "capability_unavailable", ch.call.Describe(err).Message, m.kind)
		}
		ch.touches++
		return false, ch.say(m.id, flagTerminal, kindTouched, touchedMessage{ch.touches})
	case kindShutdown:
		return false, ch.shutdown()
	}
	return false, ch.complain(m.id, errUnsupported, fmt.Sprintf("messages of type %.60q are not supported", m.kind), m.kind)
}

// shutdown stops the sandbox.
func (ch *channel) shutdown() error {
	part, err := ch.begin(opShutdown, "")
	if err == nil {
		err = ch.box.Stop(part.Ctx, -1)
		part.End(err)
	}
	if err != nil {
		return ch.complain(0, "capability_unavailable", ch.call.Describe(err).Message, kindShutdown)
	}
	return nil
}

// start begins an operation.
func (ch *channel) start(m message) (queued bool, err error) {
	tunnel := ch.call.Gate().Limits().Tunnel
	op := &operation{ch: ch, id: m.id, kind: m.kind, in: newInbox(maxWaiting, 0, tunnel, ch.standing), ctrl: newInbox(maxWaiting, 0, tunnel, ch.standing)}
	if m.kind == kindExec {
		op.in = newInbox(0, maxInput, tunnel, ch.standing)
	}
	ch.mu.Lock()
	_, used := ch.operations[m.id]
	used = used || m.id == 0 // which is of no operation
	many := len(ch.operations) >= maxOperations
	if !used && !many && ch.ctx.Err() == nil {
		ch.operations[m.id] = op
		ch.all.Go(ch.protected(func() { op.run(m) }))
	}
	ch.mu.Unlock()
	switch {
	case used:
		return false, ch.complain(m.id, errSession, "the ID is in use", m.kind)
	case many:
		return false, ch.complain(m.id, errSession, fmt.Sprintf("more than %d operations are in progress on this connection", maxOperations), m.kind)
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
			ch.farewell(err) // which ends the reader
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
	op.ch.release(op.ctrl.close())
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
		return false, ch.stray(m)
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

// stray answers a message for which there is no operation. It may have ended meanwhile.
func (ch *channel) stray(m message) error {
	switch m.kind {
	case kindContent:
		return ch.answer(m.id, nil, fmt.Errorf("unknown write session: %d", m.id))
	case kindBytes:
		return ch.say(m.id, flagTerminal, kindUnconnected, unconnectedMessage{fmt.Sprintf("unknown TCP session: %d", m.id)})
	}
	return nil
}

// hold counts bytes of a frame, and waits until there is room for them.
func (ch *channel) hold(n int64) error { return ch.room(n, ch.tryHold) }

// holdInput counts bytes that are to wait for the standard input of a program, and waits until there is room for them.
func (ch *channel) holdInput(n int64) error { return ch.room(n, ch.tryHoldInput) }

// standing reports whether the sandbox is paused, so that nothing in it can take anything.
func (ch *channel) standing() bool {
	info, err := ch.box.Info(ch.ctx)
	return err == nil && info.State == sandpit.StatePaused
}

// room tries to count bytes until there is room for them. The time for which the sandbox is paused does not count.
func (ch *channel) room(n int64, try func(n int64) error) error {
	patience := ch.call.Gate().Limits().Tunnel
	late, look := time.NewTimer(patience), time.NewTicker(patience/looks)
	defer late.Stop()
	defer look.Stop()
	for {
		err := try(n)
		if err == nil {
			return nil
		}
		select {
		case <-ch.freed:
		case <-time.After(tryEvery): // of another channel of the caller
		case <-look.C:
			if ch.standing() {
				late.Reset(patience)
			}
		case <-late.C:
			return fmt.Errorf("%w: %w", errFull, err)
		case <-ch.ctx.Done():
			return context.Cause(ch.ctx)
		}
	}
}

// errFull is the error of a channel on which something waits that its operation does not take.
var errFull error = &gate.Refusal{Code: errcode.Timeout, Message: "too much waits on this channel", Hint: "send no more than programs, files and ports take"}

func (ch *channel) tryHold(n int64) error {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	if frames := ch.held - ch.inputs; frames > 0 && frames+n > maxHeld {
		return errFull
	}
	return ch.add(n)
}

func (ch *channel) tryHoldInput(n int64) error {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	if ch.inputs > 0 && ch.inputs+n > maxInputs {
		return errFull
	}
	err := ch.add(n)
	if err == nil {
		ch.inputs += n
	}
	return err
}

// add counts bytes that wait. Precondition: ch.mu is held.
func (ch *channel) add(n int64) error {
	err := ch.account(ch.held + n)
	if err == nil {
		ch.held += n
	}
	return err
}

// account has the call hold n bytes of frames and inputs. Precondition: ch.mu is held.
func (ch *channel) account(n int64) error {
	if n <= gate.FreeBody && ch.held <= gate.FreeBody {
		return nil
	}
	return ch.charge(n, ch.windows)
}

// charge has the call hold bytes of frames and inputs, and of windows. Precondition: ch.mu is held.
func (ch *channel) charge(held, windows int64) error {
	return ch.call.Hold(gate.InMemory, windows+max(held-gate.FreeBody, 0))
}

// holdWindow counts bytes that may wait of a file or a connection until the client takes them, or the sandbox does. They
// take no room of frames: room for one stays, because the reader has to read what ends the wait.
func (ch *channel) holdWindow(n int64) error {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	if err := ch.charge(ch.held+maxFrame*copies, ch.windows+n); err != nil {
		if r := (*gate.Refusal)(nil); ch.windows > 0 && errors.As(err, &r) && r.Code == errcode.TooLarge {
			return errTransfers
		}
		return err
	}
	ch.windows += n
	return ch.charge(ch.held, ch.windows)
}

// errTransfers is the error of a transfer that has no memory, because others of its channel have it.
var errTransfers error = &gate.Refusal{Code: errcode.RateLimited, Message: "too many files and connections are being transferred on this channel", Hint: "wait until some of them have ended"}

// hold is channel.holdWindow for what is to be in the answer of an operation.
func (op *operation) hold(n int64) error {
	err := op.ch.holdWindow(n)
	if err == nil {
		op.held += n
	}
	return err
}

// releaseWindow undoes holdWindow.
func (ch *channel) releaseWindow(n int64) {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	ch.windows -= n
	_ = ch.charge(ch.held, ch.windows) // less is never too much
}

// release undoes hold.
func (ch *channel) release(n int64) { ch.give(n, 0) }

// releaseInput undoes holdInput.
func (ch *channel) releaseInput(n int64) { ch.give(n, n) }

// give gives back n bytes, inputs of which have waited for standard inputs.
func (ch *channel) give(n, inputs int64) {
	if n == 0 {
		return
	}
	ch.mu.Lock()
	_ = ch.add(-n) // less is never too much
	ch.inputs -= inputs
	ch.mu.Unlock()
	select {
	case ch.freed <- struct{}{}:
	default:
	}
}
