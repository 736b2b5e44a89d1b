package lanes

import (
	"sync"
	"time"
)

// Room counts how much of a stream may still be sent: its receiver holds at most a window, in
// bytes, and so never has to leave later frames unread. Its methods are safe for concurrent use.
type Room struct {
	window int
	mu     sync.Mutex
	change sync.Cond
	left   int
	err    error // why nothing more is sent
}

// NewRoom returns the room of a new stream.
func NewRoom(window int) *Room {
	r := &Room{window: window, left: window}
	r.change.L = &r.mu
	return r
}

// Take waits for room, and takes as much of the wanted amount as there is, at least one
// byte. The error is that of Close.
func (r *Room) Take(want int) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for r.left == 0 && r.err == nil {
		r.change.Wait()
	}
	if r.err != nil {
		return 0, r.err
	}
	n := min(want, r.left)
	r.left -= n
	return n, nil
}

// Give returns room for consumed bytes.
func (r *Room) Give(n uint32) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.left = int(min(uint64(r.left)+uint64(n), uint64(r.window)))
	r.change.Broadcast()
}

// Settle waits until all bytes that were taken are consumed, or nothing more is sent, but no
// longer than patience.
func (r *Room) Settle(patience time.Duration) {
	over := false
	timer := time.AfterFunc(patience, func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		over = true
		r.change.Broadcast()
	})
	defer timer.Stop()
	r.mu.Lock()
	defer r.mu.Unlock()
	for r.left < r.window && r.err == nil && !over {
		r.change.Wait()
	}
}

// Close ends every Take with an error. It reports false if it was called before; then the
// first error stays.
func (r *Room) Close(err error) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.err != nil {
		return false
	}
	r.err = err
	r.change.Broadcast()
	return true
}
