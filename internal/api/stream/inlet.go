package stream

import (
	"encoding/binary"
	"io"
	"slices"
	"sync"

	"github.com/sandpit-dev/sandpit"
	v1 "github.com/sandpit-dev/sandpit/internal/api/v1"
	"github.com/sandpit-dev/sandpit/internal/gate"
)

// inlet holds standard input that the process has not taken yet. The client
// sends no more than it is told that there is room for, so that the frames behind
// the input are always read.
type inlet struct {
	window int                             // bytes that it may hold
	answer func(kind byte, payload []byte) // sends a frame to the client
	done   chan struct{}                   // closed when nothing more is written to the process

	mu      sync.Mutex // guards the fields below
	changed sync.Cond
	waiting []byte
	held    int // bytes, with those that are being written
	eof     bool
	closed  bool
}

// newInlet returns the input of a process for a call.
func newInlet(c *gate.Call, p sandpit.Process, window int, answer func(kind byte, payload []byte)) *inlet {
	i := &inlet{window: window, answer: answer, done: make(chan struct{})}
	i.changed.L = &i.mu
	go func() {
		defer close(i.done)
		defer c.Protect("passing input on", c.Cancel)
		i.pump(p.Stdin())
	}()
	return i
}

// put adds a piece, or ends the input. The error is that of more than there is room for.
func (i *inlet) put(piece []byte, eof bool) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.held+len(piece) > i.window {
		return errMessage("it has more input than there is room for")
	}
	i.waiting = append(i.waiting, piece...)
	i.held += len(piece)
	i.eof = i.eof || eof
	i.changed.Signal()
	return nil
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
// early enough that the client never waits while there is room, and when there is no more:
// a client that leaves can wait for that.
func (i *inlet) pump(in io.WriteCloser) {
	var input []byte
	var more bool
	untold := 0
	for {
		if input, more = i.next(input); !more {
			return
		}
		if in == nil {
			i.answer(v1.FrameStdinClosed, nil)
			return
		}
		if len(input) == 0 {
			_ = in.Close()
			return
		}
		for piece := range slices.Chunk(input, i.window/4) {
			if _, err := in.Write(piece); err != nil { // the process has closed it, or has ended
				i.answer(v1.FrameStdinClosed, nil)
				return
			}
			i.mu.Lock()
			i.held -= len(piece)
			empty := i.held == 0
			i.mu.Unlock()
			if untold += len(piece); empty || untold >= i.window/4 {
				i.tell(untold)
				untold = 0
			}
		}
	}
}

// tell tells the client at once how much was taken, because it may be waiting for that.
func (i *inlet) tell(n int) {
	i.answer(v1.FrameTaken, binary.BigEndian.AppendUint32(nil, uint32(n)))
}
