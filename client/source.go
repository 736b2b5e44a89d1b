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
	ctx    context.Context // of the request that sends it

	start  sync.Once
	pieces chan sourced
	own    []byte // for pieces of a direct one
	conn   holder // that it is sent on, or nil
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

// How much is read ahead, in bytes: little at first, as most content is.
const (
	firstPiece  = 16 << 10
	sourcePiece = 256 << 10
)

func newSource(r io.Reader) *source {
	s := &source{r: r, ctx: context.Background(), stopped: make(chan struct{})}
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
	if s.direct {
		if err := s.begin(); err != nil {
			return 0, err
		}
		return s.r.Read(b)
	}
	if len(s.rest) == 0 {
		if err := s.next(); err != nil {
			return 0, err
		}
	}
	n := copy(b, s.rest)
	s.rest = s.rest[n:]
	if n == 0 {
		return 0, s.end
	}
	return n, nil
}

// WriteTo writes all to w, in pieces as large as they were read: net/http sends
// each as one, where it would cut what it reads itself into 32 KiB.
func (s *source) WriteTo(w io.Writer) (int64, error) {
	var sent int64
	for {
		if s.direct && len(s.rest) == 0 {
			if s.own == nil {
				s.own = make([]byte, sourcePiece)
			}
			n, err := s.Read(s.own)
			s.rest, s.end = s.own[:n], err
		}
		if len(s.rest) == 0 && s.end == nil {
			if err := s.next(); err != nil {
				return sent, err
			}
		}
		if len(s.rest) > 0 {
			n, err := s.send(w)
			sent += int64(n)
			if err != nil {
				return sent, err
			}
			s.rest = nil
		}
		switch s.end {
		case nil:
		case io.EOF:
			return sent, nil
		default:
			return sent, s.end
		}
	}
}

// holder is a connection that sends a chunk of a body as one.
type holder interface {
	Hold()
	Release() error
}

// send writes the last piece to w.
func (s *source) send(w io.Writer) (int, error) {
	if s.conn == nil {
		return w.Write(s.rest)
	}
	s.conn.Hold()
	n, err := w.Write(s.rest)
	if rerr := s.conn.Release(); err == nil {
		err = rerr
	}
	return n, err
}

// begin notes that something is asked for, and fails when nothing is to be.
func (s *source) begin() error {
	select {
	case <-s.stopped:
		return fs.ErrClosed
	default:
	}
	s.mu.Lock()
	s.begun = true
	s.mu.Unlock()
	return nil
}

// next waits for the next piece, unless the end was told with the last.
func (s *source) next() error {
	if err := s.begin(); err != nil || s.end != nil {
		return err
	}
	s.start.Do(func() { go s.read() })
	select {
	case p := <-s.pieces:
		s.rest, s.end = p.b, p.err
		return nil
	case <-s.stopped:
		return fs.ErrClosed
	case <-s.ctx.Done():
		return s.ctx.Err()
	}
}

// read reads until the end, or until nobody wants more. Of two buffers one is
// being sent while the other is filled.
func (s *source) read() {
	var bufs [2][]byte
	size := firstPiece
	for i := 0; ; i = 1 - i {
		if len(bufs[i]) < size {
			bufs[i] = make([]byte, size)
		}
		size = sourcePiece
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
