package stream

import (
	"context"
	"encoding/binary"
	"io"
	"slices"
	"sync"
	"time"

	"github.com/sandpit-dev/sandpit"
	v1 "github.com/sandpit-dev/sandpit/internal/api/v1"
	"github.com/sandpit-dev/sandpit/internal/fastrun"
	"github.com/sandpit-dev/sandpit/internal/gate"
)

// killPatience is the time in which a guest must kill a command.
const killPatience = time.Second

// read takes what the client sends, for the process once that is started,
// until the client leaves.
func (s *Relay) read(started <-chan sandpit.Process) error {
	var p sandpit.Process
	var stdin *inlet
	defer func() {
		if stdin != nil {
			stdin.close()
		}
	}()
	var buf []byte
	for {
		kind, payload, err := v1.ReadFrame(s.in, buf, fastrun.Window)
		if err != nil {
			return gate.ErrClientGone
		}
		buf = payload
		if p == nil {
			select {
			case p = <-started:
			case <-s.c.Ctx.Done():
				return context.Cause(s.c.Ctx)
			}
		}
		switch kind {
		case v1.FrameStdin, v1.FrameEOF:
			if stdin == nil {
				stdin = newInlet(s, p)
			}
			if !stdin.put(payload, kind == v1.FrameEOF) {
				return errMessage("the client sent more input than it was given credit for")
			}
		case v1.FrameResize, v1.FrameSignal:
			if err := control(s.c.Ctx, p, kind, payload); err != nil {
				return err
			}
		case fastrun.FramePassed:
			if len(payload) != 5 || payload[0] != v1.FrameStdout && payload[0] != v1.FrameStderr {
				return errMessage("it names no output, or its length is not 5 bytes")
			}
			s.room[payload[0]-v1.FrameStdout].Give(binary.BigEndian.Uint32(payload[1:]))
		case fastrun.FrameKill:
			ctx, cancel := context.WithTimeout(s.c.Ctx, killPatience)
			err := p.Kill(ctx)
			cancel()
			if err != nil {
				return err // its sandbox goes, and it with that
			}
		case fastrun.FrameBackground:
			b, ok := p.(sandpit.Backgrounder)
			if !ok {
				return errMessage("the command can't be moved to the background")
			}
			if err := b.Background(s.c.Ctx); err != nil {
				return err
			}
			s.answer(fastrun.FrameBackground, nil)
		default:
			return errMessage("its type is unknown")
		}
	}
}

// inlet holds standard input that the process has not taken yet. The client
// sends no more than it is told that there is room for, so that the frames behind
// the input are always read.
type inlet struct {
	s *Relay

	mu      sync.Mutex // guards the fields below
	changed sync.Cond
	waiting []byte
	held    int // bytes, with those that are being written
	eof     bool
	closed  bool
}

// newInlet returns the input of a process.
func newInlet(s *Relay, p sandpit.Process) *inlet {
	i := &inlet{s: s}
	i.changed.L = &i.mu
	go i.pump(p.Stdin())
	return i
}

// put adds a piece. It reports false when that is more than there is room for.
func (i *inlet) put(piece []byte, eof bool) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.held+len(piece) > fastrun.Window {
		return false
	}
	i.waiting = append(i.waiting, piece...)
	i.held += len(piece)
	i.eof = i.eof || eof
	i.changed.Signal()
	return true
}

// close ends the pump. The process has no use for it then.
func (i *inlet) close() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.closed = true
	i.changed.Signal()
}

// next waits for input and returns all there is, or nothing at its end. Memory that is
// not needed any more is used for the input that comes meanwhile.
func (i *inlet) next(memory []byte) (input []byte, more bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	for len(i.waiting) == 0 && !i.eof && !i.closed {
		i.changed.Wait()
	}
	if i.closed {
		return nil, false
	}
	input, i.waiting = i.waiting, memory[:0]
	return input, true
}

// pump writes the input to the process, and tells the client how much was taken,
// early enough that the client never waits while there is room.
func (i *inlet) pump(in io.WriteCloser) {
	var input []byte
	var more bool
	untold := 0
	for {
		if input, more = i.next(input); !more {
			return
		}
		if in == nil {
			i.s.answer(v1.FrameStdinClosed, nil)
			return
		}
		if len(input) == 0 {
			_ = in.Close()
			return
		}
		for piece := range slices.Chunk(input, fastrun.Window/4) {
			if _, err := in.Write(piece); err != nil { // the process has closed it, or has ended
				i.s.answer(v1.FrameStdinClosed, nil)
				return
			}
			i.mu.Lock()
			i.held -= len(piece)
			i.mu.Unlock()
			if untold += len(piece); untold >= fastrun.Window/4 {
				i.tell(untold)
				untold = 0
			}
		}
	}
}

// tell tells the client at once how much was taken, because it may be waiting for that.
func (i *inlet) tell(n int) {
	i.s.answer(fastrun.FrameTaken, binary.BigEndian.AppendUint32(nil, uint32(n)))
}
