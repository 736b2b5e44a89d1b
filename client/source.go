package client

import (
	"bytes"
	"context"
	"io"
	"io/fs"
	"strings"
	"sync"
)

// source is what is sent of a caller's reader. It keeps the error of a reader
// that fails. A call that ends does not wait for a reader that blocks: that is
// read by a goroutine, one piece ahead.
type source struct {
	r      io.Reader
	direct bool            // it never blocks
	ctx    context.Context // of the call
	client context.Context

	start  sync.Once
	pieces chan sourced
	rest   []byte // of the last piece
	end    error  // behind it

	mu      sync.Mutex
	begun   bool  // something was asked for; guarded by mu
	err     error // of r; guarded by mu
	stopped chan struct{}
}

// sourced is what one Read of the reader has given.
type sourced struct {
	b   []byte
	err error
}

// sourcePiece is how much is read ahead, in bytes.
const sourcePiece = 64 << 10

func (c *Client) newSource(ctx context.Context, r io.Reader) *source {
	s := &source{r: r, ctx: ctx, client: c.ctx, stopped: make(chan struct{})}
	switch r.(type) {
	case *bytes.Reader, *bytes.Buffer, *strings.Reader:
		s.direct = true
	default:
		s.pieces = make(chan sourced)
	}
	return s
}

// Read is for one goroutine, that of the call.
func (s *source) Read(b []byte) (int, error) {
	select {
	case <-s.stopped:
		return 0, fs.ErrClosed
	default:
	}
	s.mu.Lock()
	s.begun = true
	s.mu.Unlock()
	if s.direct {
		return s.r.Read(b)
	}
	if len(s.rest) == 0 && s.end == nil {
		s.start.Do(func() { go s.read() })
		select {
		case p := <-s.pieces:
			s.rest, s.end = p.b, p.err
		case <-s.stopped:
			return 0, fs.ErrClosed
		case <-s.ctx.Done():
			return 0, s.ctx.Err()
		case <-s.client.Done():
			return 0, errClosed
		}
	}
	if len(s.rest) > 0 {
		n := copy(b, s.rest)
		s.rest = s.rest[n:]
		return n, nil
	}
	return 0, s.end
}

// read reads until the end, or until nobody wants more. Of two buffers one is
// being sent while the other is filled.
func (s *source) read() {
	var bufs [2][]byte
	for i := 0; ; i = 1 - i {
		if bufs[i] == nil {
			bufs[i] = make([]byte, sourcePiece)
		}
		n, err := s.r.Read(bufs[i])
		if err != nil && err != io.EOF {
			s.mu.Lock()
			s.err = err
			s.mu.Unlock()
		}
		select {
		case s.pieces <- sourced{bufs[i][:n], err}:
		case <-s.stopped:
			return
		}
		if err != nil {
			return
		}
	}
}

// touched reports whether something may have been read.
func (s *source) touched() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.begun
}

// stop ends the reading, and returns the error of the reader. A Read of it that
// is under way may go on.
func (s *source) stop() error {
	close(s.stopped)
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}
