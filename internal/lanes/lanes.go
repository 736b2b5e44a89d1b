// Package lanes passes on two streams, in the order in which they come, until one of them
// is stuck: then the other goes on.
package lanes

import (
	"context"
	"io"
	"sync"
	"time"
)

// Lanes passes on pieces of two streams, which are the lanes 0 and 1. The goroutine that
// calls Put also writes. If a write takes longer than Patience, another goroutine takes its
// place as the caller, and pieces of that lane wait here, while those of the other go on.
// The caller bounds how much may wait. Set the fields before the first Put.
type Lanes struct {
	Write  func(lane int, b []byte) // writes a piece, and may take its time
	Passed func(lane, n int)        // is called when n bytes have been written; may be nil
	Next   func()                   // goes on to call Put, as the last caller no longer does

	// Patience is the longest time that a write holds up what comes behind it. Waking
	// another goroutine for each piece would take longer than most writes.
	Patience time.Duration

	mu    sync.Mutex // guards the fields below
	lanes [2]lane
	idle  sync.Cond
}

type lane struct {
	busy    bool   // a goroutine writes
	waiting []byte // behind what it writes
	spare   []byte // empty, with the memory of what was written last
}

// Put writes a piece, or has it wait behind what its lane is writing. It does not keep b. It
// reports false if Next is called in the place of the caller, which must return then.
func (l *Lanes) Put(lane int, b []byte) (reading bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	to := &l.lanes[lane]
	if to.busy {
		to.waiting = append(to.waiting, b...)
		return true
	}
	to.busy = true
	late := time.AfterFunc(l.Patience, l.Next)
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

// write writes a piece. Precondition: l.mu is held, which write releases meanwhile.
func (l *Lanes) write(lane int, b []byte) {
	l.mu.Unlock()
	defer l.mu.Lock()
	l.Write(lane, b)
	if l.Passed != nil {
		l.Passed(lane, len(b))
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
	mu sync.Mutex
	to io.Writer
}

func (w *exclusive) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.to.Write(b)
}
