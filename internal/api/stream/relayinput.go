package stream

import (
	"context"
	"encoding/binary"
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
	for {
		kind, payload, err := v1.ReadFrame(s.in, nil, fastrun.Window)
		if err != nil {
			return gate.ErrClientGone
		}
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
				return errFrame("the client sent more input than it was given credit for")
			}
		case v1.FrameResize, v1.FrameSignal:
			if err := control(s.c.Ctx, p, kind, payload); err != nil {
				return err
			}
		case v1.FramePassed:
			if len(payload) != 4 {
				return errFrame("its length is not 4 bytes")
			}
			s.room.Give(binary.BigEndian.Uint32(payload))
		case v1.FrameKill:
			ctx, cancel := context.WithTimeout(s.c.Ctx, killPatience)
			err := p.Kill(ctx)
			cancel()
			if err != nil {
				return err // its sandbox goes, and it with that
			}
		default:
			return errFrame("its type is unknown")
		}
	}
}

// inlet holds standard input that the process has not taken yet. The client
// sends no more than it is told that there is room for, so that what comes
// behind the input is always read.
type inlet struct {
	s    *Relay
	wake chan struct{} // one place: something has changed

	mu     sync.Mutex // guards all below
	pieces [][]byte
	held   int // bytes
	eof    bool
	closed bool
}

// newInlet returns the input of a process.
func newInlet(s *Relay, p sandpit.Process) *inlet {
	i := &inlet{s: s, wake: make(chan struct{}, 1)}
	go i.pump(p)
	return i
}

// put adds a piece. It reports false when that is more than there is room for.
func (i *inlet) put(piece []byte, eof bool) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.held+len(piece) > fastrun.Window {
		return false
	}
	if len(piece) > 0 {
		i.pieces = append(i.pieces, piece)
		i.held += len(piece)
	}
	i.eof = i.eof || eof
	i.poke()
	return true
}

// close ends the pump, once the process has no use for it.
func (i *inlet) close() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.closed = true
	i.poke()
}

func (i *inlet) poke() {
	select {
	case i.wake <- struct{}{}:
	default:
	}
}

// next returns the next piece; nil at the end of the input.
func (i *inlet) next() (piece []byte, more bool) {
	for {
		i.mu.Lock()
		switch {
		case i.closed:
			i.mu.Unlock()
			return nil, false
		case len(i.pieces) > 0:
			piece, i.pieces = i.pieces[0], i.pieces[1:]
			i.mu.Unlock()
			return piece, true
		case i.eof:
			i.mu.Unlock()
			return nil, true
		}
		i.mu.Unlock()
		<-i.wake
	}
}

// pump writes the input to the process, and tells the client what was taken:
// early enough that it never waits for room while there is some.
func (i *inlet) pump(p sandpit.Process) {
	in := p.Stdin()
	untold := 0
	for {
		piece, more := i.next()
		switch {
		case !more:
			return
		case in == nil:
			i.tell(0)
			return
		case piece == nil:
			_ = in.Close()
			return
		}
		_, err := in.Write(piece)
		i.mu.Lock()
		i.held -= len(piece)
		i.mu.Unlock()
		if err != nil { // the process has closed it, or is gone
			i.tell(0)
			in = nil
			continue
		}
		if untold += len(piece); untold >= fastrun.Window/4 {
			i.tell(untold)
			untold = 0
		}
	}
}

func (i *inlet) tell(n int) {
	_ = i.s.tell(v1.FrameTaken, binary.BigEndian.AppendUint32(nil, uint32(n)))
}
