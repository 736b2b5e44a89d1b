package api

import (
	"context"
	"net"
	"sync"
	"time"

	v1 "github.com/sandpit-dev/sandpit/internal/api/v1"
	"github.com/sandpit-dev/sandpit/internal/fastrun"
	"github.com/sandpit-dev/sandpit/internal/gate"
)

// runStream writes frames to the client of a run. Its methods may be called
// from many goroutines.
//
// What is little waits for more, so that the start, the output and the end of
// a short command are one message.
type runStream struct {
	conn   net.Conn
	cancel context.CancelCauseFunc
	room   *fastrun.Room // of output

	mu      sync.Mutex
	buf     []byte
	timer   *time.Timer // to send what is gathered; nil before there was something
	pending bool        // the timer is set
	closed  bool
	err     error
}

// frame sends output, soon, and as fast as the client passes it on.
func (s *runStream) frame(kind byte, payload []byte) error {
	for len(payload) > 0 {
		n, err := s.room.Take(min(len(payload), gatherSize/2))
		if err != nil {
			return err
		}
		if err := s.tell(kind, payload[:n]); err != nil {
			return err
		}
		payload = payload[n:]
	}
	return nil
}

// tell sends a small frame, soon.
func (s *runStream) tell(kind byte, payload []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.add(kind, payload)
	return s.err
}

// add gathers a frame, and sends what is gathered if it is much. Precondition:
// s.mu is held.
func (s *runStream) add(kind byte, payload []byte) {
	if s.closed || s.err != nil {
		return
	}
	s.buf = v1.AppendFrame(s.buf, kind, payload)
	switch {
	case len(s.buf) >= gatherSize/2:
		s.send()
	case s.timer == nil:
		s.pending = true
		s.timer = time.AfterFunc(gather, s.tick)
	case !s.pending:
		s.pending = true
		s.timer.Reset(gather)
	}
}

func (s *runStream) tick() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pending = false
	s.send()
}

// send sends what is gathered. Precondition: s.mu is held.
func (s *runStream) send() {
	if s.closed || s.err != nil || len(s.buf) == 0 {
		return
	}
	if _, s.err = s.conn.Write(s.buf); s.err != nil {
		s.cancel(gate.ErrClientGone)
	}
	s.buf = s.buf[:0]
}

// sendNow sends what is gathered.
func (s *runStream) sendNow() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.send()
}

// last sends the last frame, with all before it, at once.
func (s *runStream) last(kind byte, payload []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.add(kind, payload)
	s.send()
	s.closed = true
}

// close ends the stream.
func (s *runStream) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	if s.timer != nil {
		s.timer.Stop()
	}
}
