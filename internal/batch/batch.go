// Package batch lets many goroutines share one slow write, such as an fsync.
package batch

import (
	"errors"
	"sync"
)

// An Item is what one caller brings.
type Item[T any] struct {
	Value T
	Err   error // set by the write function: what Do returns

	turn chan struct{} // gets one token: it is done, or it leads
	done bool          // written before the token
}

// A Queue gives what callers bring to one function, in order, as many at a time
// as came while the function was busy. No goroutine of its own: the caller who
// finds the queue idle does the work, so one caller alone pays no switch.
type Queue[T any] struct {
	write func([]*Item[T])
	most  int

	mu      sync.Mutex
	busy    bool       // somebody leads; guarded by mu
	waiting []*Item[T] // guarded by mu
}

// New returns a queue. write gets at most so many items at once, never
// none, and is never called twice at the same time.
func New[T any](most int, write func([]*Item[T])) *Queue[T] {
	return &Queue[T]{write: write, most: most}
}

// errLeft is the error of those whose write function did not return.
var errLeft = errors.New("writing a batch: the writer panicked")

// Do returns when write has had v, with the error that it set. It does not end
// before that, so what the error says is always true.
func (q *Queue[T]) Do(v T) error {
	it := &Item[T]{Value: v, turn: make(chan struct{}, 1)}
	q.mu.Lock()
	q.waiting = append(q.waiting, it)
	if q.busy {
		q.mu.Unlock()
		<-it.turn
		if it.done {
			return it.Err
		}
		q.mu.Lock()
	}
	q.busy = true
	n := min(len(q.waiting), q.most)
	batch := q.waiting[:n:n]
	q.waiting = q.waiting[n:]
	q.mu.Unlock()

	returned := false
	defer func() {
		// A panic in write that a caller recovers from must not stop the queue.
		q.mu.Lock()
		if len(q.waiting) > 0 {
			q.waiting[0].turn <- struct{}{}
		} else {
			q.busy, q.waiting = false, nil
		}
		q.mu.Unlock()
		for _, other := range batch {
			if other == it {
				continue
			}
			if !returned {
				other.Err = errLeft
			}
			other.done = true
			other.turn <- struct{}{}
		}
	}()
	q.write(batch)
	returned = true
	return it.Err
}
