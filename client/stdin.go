package client

import (
	"context"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/coder/websocket"

	v1 "github.com/sandpit-dev/sandpit/internal/api/v1"
	"github.com/sandpit-dev/sandpit/internal/lanes"
)

// stdin is the standard input of a process, over its WebSocket. Only one message
// is on the way at a time, so that a Write waits while the process does not
// read, and a part of one that is written when the input is closed is whole.
type stdin struct {
	conn  *websocket.Conn
	ctx   context.Context
	queue chan *frame
	room  *lanes.Room // what the server has room for; nil: it takes what the process takes

	mu     sync.Mutex // one Write at a time
	close  sync.Once
	closed chan struct{}
	over   sync.Once
	ended  chan struct{} // nothing can be sent any more, or is wanted
}

// frame is a message on its way.
type frame struct {
	n   int
	buf [1 + stdinChunk]byte
}

// stdinChunk is how much of the input a message has at most, in bytes.
const stdinChunk = 32 << 10

var stdinFrames = sync.Pool{New: func() any { return new(frame) }}

func newStdin(conn *websocket.Conn, ctx context.Context) *stdin {
	return &stdin{conn: conn, ctx: ctx, queue: make(chan *frame), closed: make(chan struct{}), ended: make(chan struct{})}
}

// Write writes to the process, and waits while it does not read. The error is
// os.ErrClosed after Close, and syscall.EPIPE when the process has ended
// or has closed its input.
func (w *stdin) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	select {
	case <-w.closed:
		return 0, os.ErrClosed
	case <-w.ended:
		return 0, syscall.EPIPE
	default:
	}
	sent := 0
	for len(b) > 0 {
		part := b
		if w.room != nil {
			n, err := w.room.Take(min(len(b), stdinChunk))
			if err != nil {
				return sent, err
			}
			part = b[:n]
		}
		f := stdinFrames.Get().(*frame)
		f.set(v1.FrameStdin, part)
		n := f.n - 1
		select {
		case w.queue <- f:
		case <-w.closed:
			return sent, os.ErrClosed
		case <-w.ended:
			return sent, syscall.EPIPE
		}
		sent += n
		b = b[n:]
	}
	return sent, nil
}

// Close closes standard input. A Write that is waiting fails.
func (w *stdin) Close() error {
	w.close.Do(func() {
		close(w.closed)
		if w.room != nil {
			w.room.Close(os.ErrClosed)
		}
	})
	return nil
}

func (f *frame) set(kind byte, b []byte) {
	f.buf[0] = kind
	f.n = 1 + copy(f.buf[1:], b)
}

// send sends what is written until the input is closed or the stream has ended.
func (w *stdin) send() {
	defer w.end()
	for {
		select {
		case f := <-w.queue:
			err := w.conn.Write(w.ctx, websocket.MessageBinary, f.buf[:f.n])
			stdinFrames.Put(f)
			if err != nil {
				return
			}
		case <-w.closed:
			var f frame
			f.set(v1.FrameEOF, nil)
			_ = w.conn.Write(w.ctx, websocket.MessageBinary, f.buf[:f.n])
			return
		case <-w.ended:
			return
		case <-w.ctx.Done():
			return
		}
	}
}

// Settle waits until the process has taken what was written, but no longer than patience.
func (w *stdin) Settle(patience time.Duration) {
	if w.room != nil {
		w.room.Settle(patience)
	}
}

// end makes every Write fail.
func (w *stdin) end() {
	w.over.Do(func() {
		close(w.ended)
		if w.room != nil {
			w.room.Close(syscall.EPIPE)
		}
	})
}
