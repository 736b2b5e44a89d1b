package fastrun

import (
	"io"
	"os"
	"time"

	v1 "github.com/sandpit-dev/sandpit/internal/api/v1"
	"github.com/sandpit-dev/sandpit/internal/lanes"
)

// stdin is the standard input of a process.
type stdin struct {
	p    *process
	room *lanes.Room
}

func newStdin(p *process) *stdin { return &stdin{p: p, room: lanes.NewRoom(v1.Window)} }

// end says that no more is taken.
func (s *stdin) end() { s.room.Close(io.ErrClosedPipe) }

// Write sends input, as fast as the process takes it.
func (s *stdin) Write(b []byte) (int, error) {
	sent := 0
	for sent < len(b) {
		n, err := s.room.Take(len(b) - sent)
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

// Settle waits until the server has passed on what was written, but no longer than patience.
func (s *stdin) Settle(patience time.Duration) { s.room.Settle(patience) }

// Close ends the input.
func (s *stdin) Close() error {
	if !s.room.Close(os.ErrClosed) {
		return nil
	}
	return s.p.send(v1.FrameEOF, nil)
}
