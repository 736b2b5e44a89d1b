// Package lanes passes on two streams, in the order in which they come, until one of them
// is stuck: then the other goes on.
package lanes

import (
	"bytes"
	"context"
	"io"
	"sync"
	"sync/atomic"
	"time"
)

// Lanes passes on pieces of two streams, which are the lanes 0 and 1. The goroutine that
// calls Put also writes. If a write takes long, another goroutine takes its place as the
// caller, and pieces of that lane wait here, while those of the other go on. The caller
// bounds how much may wait: see Waiting.
type Lanes struct {
	writers  [2]io.Writer // nil: what comes is dropped, as after a failure
	window   int
	passed   func(lane, n int)
	next     func()
	patience time.Duration
	one      *exclusive // if both are one writer

	mu    sync.Mutex // guards writers and the fields below
	lanes [2]lane
	idle  sync.Cond
}

type lane struct {
	busy    bool   // a goroutine writes
	waiting []byte // behind what it writes
	spare   []byte // empty, with the memory of what was written last
	untold  int    // bytes written since the last call of passed; of the goroutine that writes
}

// patience is the longest time that a write holds up what comes behind it. Waking another
// goroutine for each piece would take longer than most writes. It is too short for a person to
// notice, and long enough that both streams come in the order in which they were written.
const patience = 10 * time.Millisecond

// New returns lanes to two writers, each of which may be nil. A writer that fails gets
// nothing more. If both are one writer, it is not called twice at the same time.
//
// The sender may send window bytes of a lane before it hears that some have been written.
// passed tells it, whenever that are a quarter of the window. next goes on to call Put, in a
// goroutine of its own, as the last caller no longer does.
func New(a, b io.Writer, window int, passed func(lane, n int), next func()) *Lanes {
	a, b = Exclusive(a, b)
	one, _ := a.(*exclusive)
	return &Lanes{writers: [2]io.Writer{a, b}, window: window, passed: passed, next: next, patience: patience, one: one}
}

// Put writes a piece, or has it wait behind what its lane is writing. It does not keep b. It
// reports false if next is called in the place of the caller, which must return then.
func (l *Lanes) Put(lane int, b []byte) (reading bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	to := &l.lanes[lane]
	if to.busy {
		to.waiting = append(to.waiting, b...)
		return true
	}
	to.busy = true
	late := time.AfterFunc(l.patience, l.next)
	l.write(lane, b)
	if reading = late.Stop(); !reading {
		for len(to.waiting) > 0 {
			now := to.waiting
			to.waiting = to.spare
			l.write(lane, now)
			to.spare = now[:0]
		}
		to.spare = nil
	}
	to.busy = false
	l.idle.Broadcast()
	return reading
}

// write writes a piece. Precondition: l.mu is held, which write releases meanwhile, and the
// lane is busy.
func (l *Lanes) write(lane int, b []byte) {
	w := l.writers[lane]
	l.mu.Unlock()
	defer l.mu.Lock()
	if w != nil {
		if _, err := w.Write(b); err != nil {
			l.mu.Lock()
			l.writers[lane] = nil
			l.mu.Unlock()
		}
	}
	untold := &l.lanes[lane].untold
	if *untold += len(b); *untold >= l.window/4 {
		l.passed(lane, *untold)
		*untold = 0
	}
}

// Drop drops what waits, and what comes later. A write in progress goes on.
func (l *Lanes) Drop() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range l.lanes {
		l.writers[i], l.lanes[i].waiting = nil, nil
	}
	if l.one != nil {
		l.one.over.Store(true) // a write of one lane may wait for that of the other
	}
}

// Waiting returns the number of bytes that wait behind what a lane writes.
func (l *Lanes) Waiting(lane int) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.lanes[lane].waiting)
}

// Wait returns when everything has been written, or ctx has ended.
func (l *Lanes) Wait(ctx context.Context) {
	defer context.AfterFunc(ctx, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.idle.Broadcast()
	})()
	l.mu.Lock()
	defer l.mu.Unlock()
	for (l.lanes[0].busy || l.lanes[1].busy) && ctx.Err() == nil {
		l.idle.L = &l.mu
		l.idle.Wait()
	}
}

// Joined is implemented by writers that never wait, or not each for its own reader alone, such
// as those of two streams over one connection.
type Joined interface{ Joined() }

// Apart reports whether two writers wait for different readers, so that Lanes are of use. A
// *bytes.Buffer has no reader before the end.
func Apart(a, b io.Writer) bool {
	return a != nil && b != nil && !same(a, b) && !joined(a) && !joined(b)
}

func joined(w io.Writer) bool {
	switch w.(type) {
	case Joined, *bytes.Buffer:
		return true
	}
	return false
}

// Exclusive returns the writers, which never write at the same time if they are one.
func Exclusive(a, b io.Writer) (io.Writer, io.Writer) {
	if a == nil || !same(a, b) {
		return a, b
	}
	w := &exclusive{to: a}
	return w, w
}

// same reports whether two writers are one. Values of some types can't be compared.
func same(a, b io.Writer) bool {
	defer func() { _ = recover() }()
	return a == b
}

type exclusive struct {
	mu   sync.Mutex
	to   io.Writer
	over atomic.Bool // nothing more is written
}

func (w *exclusive) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.over.Load() {
		return len(b), nil
	}
	return w.to.Write(b)
}
