package stream

import (
	"encoding/json"
	"time"

	"github.com/sandpit-dev/sandpit"
	v1 "github.com/sandpit-dev/sandpit/internal/api/v1"
	"github.com/sandpit-dev/sandpit/internal/gate"
)

// Frame sends a frame, soon. Output is sent as fast as the client passes it on.
func (s *Relay) Frame(kind byte, payload []byte) error {
	if !isOutput(kind) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.add(kind, payload)
		return s.err
	}
	return s.rooms.send(kind, payload, 2*gatherSize, func(part []byte) error {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.add(kind, part)
		return s.err
	})
}

// apart reports that each output has a window.
func (s *Relay) apart() bool { return true }

// add gathers a frame, and sends what is gathered if it is much. Precondition:
// s.mu is held.
func (s *Relay) add(kind byte, payload []byte) {
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

func (s *Relay) tick() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pending = false
	s.send()
}

// send sends what is gathered. Precondition: s.mu is held.
func (s *Relay) send() {
	if s.closed || s.err != nil || len(s.buf) == 0 {
		return
	}
	if _, s.err = s.conn.Write(s.buf); s.err != nil {
		s.c.Cancel(gate.ErrClientGone)
	}
	s.buf = s.buf[:0]
}

// answer sends a frame at once, because the client may be waiting for it.
func (s *Relay) answer(kind byte, payload []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.add(kind, payload)
	s.send()
}

// Flush sends gathered frames.
func (s *Relay) Flush() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.send()
}

// Finish tells the client at once how the process has ended, or an error, and notes that.
// If told is set, it returns the error as the client is told it. No frame is sent after it.
func (s *Relay) Finish(res sandpit.Result, err error, told func(error) v1.Error) {
	var result []byte
	if err == nil {
		result, err = json.Marshal(v1.FromResult(res))
	}
	end, status := endOf(s.c, err)
	if end.Error != nil {
		s.c.ReplaceOutcome(status, end.Error.Code, err)
		if told != nil {
			*end.Error = told(err)
		}
	}
	last, _ := json.Marshal(end) // of texts and numbers, which never fails
	s.mu.Lock()
	defer s.mu.Unlock()
	if err == nil {
		s.add(v1.FrameResult, result)
	}
	s.add(v1.FrameEnd, last)
	s.send()
	s.closed = true
}
