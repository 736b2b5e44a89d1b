package client

import (
	"context"
	"errors"
	"fmt"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/fault"
	"github.com/sandpit-dev/sandpit/internal/guest/wire"
)

// stream is one operation under way.
type stream struct {
	c  *Client
	id uint32
	op wire.Op

	in     *wire.Queue // content from the guest; nil when there is none
	out    *wire.Window
	answer chan answer // one REPLY or ERROR

	// Only the connection's reader touches these until in or answer tells.
	replied bool
	limit   int64 // bytes of content that the guest may send; 0: any number
	got     int64
	exit    wire.Exit
}

type answer struct {
	msg []byte
	err error
}

var errPeerClosed = errors.New("the other end is closed")

// process reports whether it is the stream of a process.
func (s *stream) process() bool { return s.op == wire.OpStart || s.op == wire.OpAttach }

// newStream enters a stream, or returns nil when the connection has ended.
func (c *Client) newStream(op wire.Op, content bool, limit int64) *stream {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil || c.last == 1<<32-1 {
		return nil
	}
	c.last++
	s := &stream{c: c, id: c.last, op: op, out: wire.NewWindow(c.window), answer: make(chan answer, 1), limit: limit}
	if content {
		s.in = wire.NewQueue(wire.HostWindow)
	}
	c.streams[s.id] = s
	return s
}

// message is what a frame carries.
type message interface{ Append([]byte) []byte }

// decoder is what an answer is decoded to.
type decoder interface{ Decode([]byte) error }

// errTooLong says that a request does not fit a frame.
var errTooLong = fault.Errorf(sandpit.ErrInvalid, "the request is longer than %d MiB", wire.MaxOpen>>20)

// open opens a stream and sends its request.
func (c *Client) open(ctx context.Context, op wire.Op, m message, content bool, limit int64) (*stream, error) {
	return c.openAs(ctx, &wire.As{}, op, m, content, limit)
}

// openAs is open with the rights that as names, unless its user is empty. op is one of files.
func (c *Client) openAs(ctx context.Context, as *wire.As, op wire.Op, m message, content bool, limit int64) (*stream, error) {
	b, start := wire.BeginFrame(make([]byte, 0, 256))
	switch {
	case as.User != "":
		as.Op, as.Message = uint64(op), string(m.Append(nil))
		b = as.Append(append(b, byte(wire.OpAs)))
	case m != nil:
		b = m.Append(append(b, byte(op)))
	default:
		b = append(b, byte(op))
	}
	if len(b)-wire.HeaderSize > wire.MaxOpen {
		return nil, errTooLong
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	// The ids must reach the guest in order, so they are given out under the lock of writing.
	select {
	case c.wsem <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-c.done:
		return nil, c.err
	}
	s := c.newStream(op, content, limit)
	if s == nil {
		<-c.wsem
		if err := c.Err(); err != nil {
			return nil, err
		}
		return nil, fmt.Errorf("opening a stream: %w: all %d streams of the connection were used", sandpit.ErrExhausted, uint32(1<<32-1))
	}
	sent, err := c.writeLocked(ctx, wire.EndFrame(b, start, wire.Open, s.id))
	<-c.wsem
	if err != nil {
		if sent {
			s.close()
		} else {
			c.forget(s)
		}
		return nil, err
	}
	return s, nil
}

// call opens a stream and waits for its answer.
func (c *Client) call(ctx context.Context, op wire.Op, m message, to decoder) error {
	s, err := c.open(ctx, op, m, false, 0)
	if err != nil {
		return err
	}
	return s.result(ctx, to)
}

// result waits for the answer, and decodes it unless to is nil.
func (s *stream) result(ctx context.Context, to decoder) error {
	b, err := s.wait(ctx)
	if err != nil || to == nil {
		return err
	}
	if err := to.Decode(b); err != nil {
		err = violation("%s", err)
		s.c.fail(err)
		return err
	}
	return nil
}

// wait waits for the answer. When ctx ends first, the stream is closed.
func (s *stream) wait(ctx context.Context) ([]byte, error) {
	select {
	case a := <-s.answer:
		return a.msg, a.err
	case <-ctx.Done():
		s.close()
		return nil, ctx.Err()
	}
}

// fail ends the stream with an error, on the side of the host.
func (s *stream) fail(err error) {
	select {
	case s.answer <- answer{err: err}:
	default: // it was answered before
	}
	s.out.Fail(err)
	if s.in != nil {
		s.in.Fail(err)
	}
}

// close gives the stream up.
func (s *stream) close() {
	if !s.c.forget(s) {
		return // it has ended already
	}
	s.c.writeLater(wire.AppendFrame(nil, wire.Close, s.id, nil))
	s.out.Fail(errBroken)
	if s.in != nil {
		s.in.Close()
	}
}

// forget removes the stream from the table, and reports whether it was in it.
func (c *Client) forget(s *stream) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, ok := c.streams[s.id]
	delete(c.streams, s.id)
	return ok
}

// credit lets the guest send n bytes more.
func (s *stream) credit(n int) {
	if n > 0 {
		var b [wire.HeaderSize + 4]byte
		f, start := wire.BeginFrame(b[:0])
		_, _ = s.c.write(context.Background(), wire.EndFrame(wire.AppendCredit(f, n), start, wire.Credit, s.id))
	}
}

// passed tells the guest that n bytes of an output were passed on.
func (s *stream) passed(output wire.Type, n int) {
	var b [wire.HeaderSize + 5]byte
	f, start := wire.BeginFrame(b[:0])
	_, _ = s.c.write(context.Background(), wire.EndFrame(wire.AppendPassed(f, output, n), start, wire.Passed, s.id))
}

// send sends content as there is credit for it, in as many frames at once as
// there is credit for. It returns how much was sent.
func (s *stream) send(ctx context.Context, p []byte) (sent int, err error) {
	for len(p) > 0 {
		n, err := s.out.Take(len(p))
		if err != nil {
			return sent, err
		}
		pieces := make([][]byte, 0, 2*uploadFrames)
		all := 0
		for {
			head := make([]byte, wire.HeaderSize)
			wire.PutHeader(head, wire.Header{Len: n, Type: wire.Data, Stream: s.id})
			pieces = append(pieces, head, p[:n])
			p, all = p[n:], all+n
			n = min(len(p), wire.MaxData)
			if n == 0 || len(pieces) == cap(pieces) || !s.out.TryTake(n) {
				break
			}
		}
		if _, err := s.c.write(ctx, pieces...); err != nil {
			return sent, err
		}
		sent += all
	}
	return sent, nil
}

// endContent ends the content to the guest, if that still wants any.
func (s *stream) endContent() {
	s.c.mu.Lock()
	open := s.c.streams[s.id] != nil
	s.c.mu.Unlock()
	if open {
		_, _ = s.c.write(context.Background(), wire.AppendFrame(nil, wire.EOF, s.id, nil))
	}
}

// abortWith makes reading fail when ctx ends; the function that it returns gives
// the stream up.
func (s *stream) abortWith(ctx context.Context) (end func()) {
	stop := context.AfterFunc(ctx, func() {
		s.in.Abort(ctx.Err())
		s.close()
	})
	return func() {
		stop()
		s.close()
	}
}

// broken closes a stream whose content could not all be sent, and returns why:
// what the guest says is a better reason than err.
func (s *stream) broken(ctx context.Context, err error) error {
	select {
	case a := <-s.answer:
		if a.err != nil {
			err = a.err
		}
	default:
	}
	if ctx.Err() != nil {
		err = ctx.Err()
	}
	s.close()
	return err
}
