package fastrun

import "sync"

// Room is how much of a stream may yet be sent: its receiver holds no more than
// the Window, and so never has to leave unread what comes behind. Its methods
// may be called from many goroutines.
type Room struct {
	mu     sync.Mutex
	change sync.Cond
	left   int
	err    error // why nothing more is sent
}

// NewRoom returns the room of a stream that begins.
func NewRoom() *Room {
	r := &Room{left: Window}
	r.change.L = &r.mu
	return r
}

// Take waits for room, and takes as much of what is wanted as there is: at least
// a byte. The error is what Close was given.
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

// Give gives back what the receiver has done with.
func (r *Room) Give(n uint32) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.left = int(min(uint64(r.left)+uint64(n), Window))
	r.change.Broadcast()
}

// Close ends every Take. It reports false when it had been called before: then
// the first error stays.
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
