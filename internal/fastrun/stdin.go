package fastrun

import (
	"io"
	"os"
	"sync"

	v1 "github.com/sandpit-dev/sandpit/internal/api/v1"
)

// stdin is the standard input of a process: no more of it is under way than
// the window allows.
type stdin struct {
	p *process

	mu     sync.Mutex
	change sync.Cond
	room   int
	closed bool // by this end
	gone   bool // nobody takes any more
}

func newStdin(p *process) *stdin {
	s := &stdin{p: p, room: Window}
	s.change.L = &s.mu
	return s
}

// taken makes room. 0: nobody takes any more.
func (s *stdin) taken(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.room = min(s.room+n, Window)
	s.gone = s.gone || n == 0
	s.change.Broadcast()
}

// end says that the process has ended.
func (s *stdin) end() { s.taken(0) }

// Write sends input, as fast as the process takes it.
func (s *stdin) Write(b []byte) (int, error) {
	sent := 0
	for sent < len(b) {
		n, err := s.reserve(len(b) - sent)
		if err != nil {
			return sent, err
		}
		if err := s.p.send(v1.FrameStdin, b[sent:sent+n]); err != nil {
			return sent, err
		}
		sent += n
	}
	return sent, nil
}

// reserve waits for room, and returns how much there is of what is wanted.
func (s *stdin) reserve(want int) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.room == 0 && !s.gone && !s.closed {
		s.change.Wait()
	}
	switch {
	case s.closed:
		return 0, os.ErrClosed
	case s.gone:
		return 0, io.ErrClosedPipe
	}
	n := min(want, s.room)
	s.room -= n
	return n, nil
}

// Close ends the input.
func (s *stdin) Close() error {
	s.mu.Lock()
	closed := s.closed
	s.closed = true
	s.change.Broadcast()
	s.mu.Unlock()
	if closed {
		return nil
	}
	return s.p.send(v1.FrameEOF, nil)
}
