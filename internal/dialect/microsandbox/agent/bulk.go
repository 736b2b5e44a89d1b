package agent

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/sandpit-dev/sandpit/internal/errcode"
	"github.com/sandpit-dev/sandpit/internal/gate"
)

// Since generation 8, the content of a file and the bytes of a connection are records, which are not CBOR, if the request has
// an offer of that. A record is a frame with flagBulk alone, whose body is
//
//	[kind u8][flow u8][0 u16][offset u64 BE][bytes]
//
// The receiver of each flow says up to which offset the sender may go. Messages tell that, the end of a flow, and that nothing
// more is wanted. Therefore what waits here is no more than a window, and never holds up other operations.

// Kinds of transfers, and their flows.
const (
	bulkFiles = 1
	bulkTCP   = 2

	bulkIn  = 1 // from the client
	bulkOut = 2
)

// Bounds of transfers.
const (
	bulkFormat    = 1
	bulkHead      = 12        // bytes of a record before its content
	minBulkRecord = 16 << 10  // the least that an offer may have as the largest content of a record
	maxBulkRecord = 3 << 20   // the most
	maxBulkCredit = 32 << 20  // that a peer may give
	bulkRecord    = 256 << 10 // the largest content of a record, unless the client wants less
	filesWindow   = 1 << 20
	tcpWindow     = 256 << 10
)

type (
	// bulkOffer is a client's, in a request.
	bulkOffer struct {
		Format uint8  `cbor:"format"`
		Record uint32 `cbor:"max_record_payload"`
		Credit uint64 `cbor:"guest_to_host_credit_limit"`
	}

	acceptedMessage struct {
		Kind   uint8  `cbor:"kind"`
		Flows  uint8  `cbor:"flows"`
		Format uint8  `cbor:"format"`
		Record uint32 `cbor:"max_record_payload"`
		In     uint64 `cbor:"host_to_guest_credit_limit"`
		Out    uint64 `cbor:"guest_to_host_credit_limit"`
	}

	creditMessage struct {
		Kind     uint8  `cbor:"kind"`
		Flow     uint8  `cbor:"flow"`
		Consumed uint64 `cbor:"consumed_offset"`
		Limit    uint64 `cbor:"credit_limit"`
	}

	finishMessage struct {
		Kind uint8  `cbor:"kind"`
		Flow uint8  `cbor:"flow"`
		End  uint64 `cbor:"final_offset"`
	}
)

// bulk is the transfer of an operation. Its methods are safe for concurrent use, by one reader and one writer.
type bulk struct {
	op     *operation
	kind   uint8
	record int    // the largest content of a record
	window uint64 // of what comes; 0: nothing may come

	patience time.Duration // how long the client may give no credit

	mu   sync.Mutex // guards all below
	cond sync.Cond  // something has changed

	// What comes.
	buf      []byte // that is not read yet
	received uint64 // offset
	limit    uint64 // up to which the client may send
	finished bool

	// What is sent.
	sent   uint64
	credit uint64 // up to which may be sent

	err error // why it has ended
}

// errBulkEnded is the error of a transfer that the client does not want any more.
var errBulkEnded error = &gate.Refusal{Code: errcode.Canceled, Message: "the client has ended the transfer"}

// errNoCredit is the error of a transfer whose client takes nothing.
var errNoCredit error = &gate.Refusal{Code: errcode.Timeout, Message: "the client has given no credit for the rest of the transfer in time", Hint: "take what comes, or cancel the transfer"}

// accept begins a transfer of flows, and tells the client. It returns nil if the client has not offered any.
func (op *operation) accept(offer *bulkOffer, kind, flows uint8, window uint64) (*bulk, error) {
	if offer == nil {
		return nil, nil //nolint:nilnil // most clients offer none
	}
	if offer.Format != bulkFormat || offer.Record < minBulkRecord || offer.Record > maxBulkRecord || offer.Credit > maxBulkCredit || (offer.Credit > 0) != (flows&bulkOut != 0) {
		return nil, gate.Invalid("the offer of a bulk transfer is not valid", "")
	}
	if flows&bulkIn == 0 {
		window = 0
	}
	b := &bulk{op: op, kind: kind, record: int(min(offer.Record, bulkRecord)), window: window, limit: window, credit: offer.Credit}
	b.cond.L = &b.mu
	b.patience = op.ch.call.Gate().Limits().Stall
	if kind == bulkTCP {
		b.patience = op.ch.call.Gate().Limits().Tunnel
	}
	op.ch.mu.Lock()
	op.bulk = b
	op.ch.mu.Unlock()
	if op.ch.ctx.Err() != nil { // it may not have been seen by those who close operations
		b.end(errBulkEnded)
	}
	return b, op.ch.say(op.id, 0, kindBulkAccepted, acceptedMessage{kind, flows, bulkFormat, uint32(b.record), window, offer.Credit})
}

// end ends the transfer: both sides of it fail.
func (b *bulk) end(why error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.err == nil {
		b.err = why
	}
	b.cond.Broadcast()
}

// Read reads what the client has sent, and gives it credit for more.
func (b *bulk) Read(p []byte) (int, error) {
	b.mu.Lock()
	if b.kind == bulkFiles && len(b.buf) == 0 { // connections may be idle
		late := time.AfterFunc(b.patience, func() { b.end(errNoContent) })
		defer late.Stop()
	}
	for len(b.buf) == 0 && !b.finished && b.err == nil {
		b.cond.Wait()
	}
	n := copy(p, b.buf)
	if b.buf = b.buf[n:]; len(b.buf) == 0 {
		b.buf = nil
	}
	consumed := b.received - uint64(len(b.buf))
	var err error
	switch {
	case n > 0:
	case b.err != nil:
		err = b.err
	default:
		err = io.EOF
	}
	more := n > 0 && !b.finished && b.limit-consumed <= b.window/2
	if more {
		b.limit = consumed + b.window
	}
	limit := b.limit
	b.mu.Unlock()
	if more {
		if err := b.op.ch.say(b.op.id, 0, kindBulkCredit, creditMessage{b.kind, bulkIn, consumed, limit}); err != nil {
			return n, err
		}
	}
	return n, err
}

// Write sends data as records, as there is credit for it.
func (b *bulk) Write(p []byte) (n int, err error) {
	for n < len(p) {
		b.mu.Lock()
		b.await()
		at, size := b.sent, int(min(uint64(len(p)-n), uint64(b.record), b.credit-b.sent))
		err := b.err
		b.sent += uint64(size)
		b.mu.Unlock()
		if err != nil {
			return n, err
		}
		if err := b.op.ch.sendRecord(b.op.id, b.kind, at, p[n:n+size]); err != nil {
			return n, err
		}
		n += size
	}
	return n, nil
}

// await waits for credit, or the end. Precondition: b.mu is held.
func (b *bulk) await() {
	if b.sent < b.credit || b.err != nil {
		return
	}
	late := time.AfterFunc(b.patience, func() { b.end(errNoCredit) })
	defer late.Stop()
	for b.sent >= b.credit && b.err == nil {
		b.cond.Wait()
	}
}

// finish tells the client that nothing more is sent.
func (b *bulk) finish() error {
	b.mu.Lock()
	end := b.sent
	b.mu.Unlock()
	return b.op.ch.say(b.op.id, 0, kindBulkFinish, finishMessage{b.kind, bulkOut, end})
}

// take takes a record, whose content belongs to the transfer then.
func (b *bulk) take(r record) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	end := r.offset + uint64(len(r.content))
	switch {
	case r.kind != b.kind || r.flow != bulkIn || b.window == 0:
		return errors.New("a record of another transfer")
	case b.finished:
		return errors.New("a record after the end")
	case r.offset != b.received:
		return fmt.Errorf("a record at %d, not %d", r.offset, b.received)
	case end > b.limit || len(r.content) > b.record:
		return errors.New("a record beyond the credit, or too large a one")
	}
	switch {
	case b.err != nil: // nobody reads it
	case len(b.buf) == 0:
		b.buf = r.content // a reader that keeps up needs no copy
	default:
		b.buf = append(b.buf, r.content...)
	}
	b.received = end
	b.cond.Broadcast()
	return nil
}

// tell takes a message about the transfer.
func (b *bulk) tell(m message) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	defer b.cond.Broadcast()
	switch m.kind {
	case kindBulkCredit:
		var c creditMessage
		if err := decoder().Unmarshal(m.payload, &c); err != nil {
			return err
		}
		if c.Kind != b.kind || c.Flow != bulkOut || c.Consumed > b.sent || c.Limit < c.Consumed || c.Limit-c.Consumed > maxBulkCredit {
			return errors.New("credit that is not valid")
		}
		b.credit = max(b.credit, c.Limit) // what comes again changes nothing
	case kindBulkFinish:
		var f finishMessage
		if err := decoder().Unmarshal(m.payload, &f); err != nil {
			return err
		}
		if f.Kind != b.kind || f.Flow != bulkIn || b.finished || f.End != b.received {
			return errors.New("an end that is not that of what was sent")
		}
		b.finished = true
	case kindBulkCancel:
		if b.err == nil {
			b.err = errBulkEnded
		}
	}
	return nil
}

// record is the body of a frame with flagBulk.
type record struct {
	kind, flow uint8
	offset     uint64
	content    []byte
}

func parseRecord(body []byte) (record, error) {
	if len(body) <= bulkHead || body[2] != 0 || body[3] != 0 {
		return record{}, errors.New("the record is not valid")
	}
	r := record{kind: body[0], flow: body[1], offset: binary.BigEndian.Uint64(body[4:]), content: body[bulkHead:]}
	if r.offset > 1<<62 {
		return record{}, errors.New("the offset of the record is out of range")
	}
	return r, nil
}

// transfer passes a record or message on to the transfer of its operation, which ends if it can't have come from a
// client that keeps the rules. One for an operation that has ended is dropped.
func (ch *channel) transfer(id uint32, pass func(*bulk) error) {
	ch.mu.Lock()
	var b *bulk
	if op := ch.operations[id]; op != nil {
		b = op.bulk
	}
	ch.mu.Unlock()
	if b == nil {
		return
	}
	if err := pass(b); err != nil {
		b.end(gate.Invalid("the bulk transfer is not valid: "+err.Error(), ""))
	}
}

// sendRecord sends a record.
func (ch *channel) sendRecord(id uint32, kind uint8, offset uint64, content []byte) error {
	ch.write.Lock()
	defer ch.write.Unlock()
	if ch.ctx.Err() != nil {
		return errGone
	}
	b := binary.BigEndian.AppendUint32(ch.buf[:0], uint32(afterLength+bulkHead+len(content)))
	b = append(binary.BigEndian.AppendUint32(b, id), flagBulk, kind, bulkOut, 0, 0)
	ch.buf = append(binary.BigEndian.AppendUint64(b, offset), content...)
	return ch.put(ch.buf)
}
