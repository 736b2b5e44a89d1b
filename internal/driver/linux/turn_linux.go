package linux

import (
	"sync"
	"sync/atomic"
	"time"
)

// maxEnding is how many sandboxes are killed and reaped at the same moment.
//
// The kernel frees the filters of a sandbox in its shared workqueue. A thousand
// that were queued there at once have deadlocked Linux 6.18.
const maxEnding = 16

// endPatience is how long a sandbox waits for its turn to end. It goes on
// afterwards: those before it may be stuck in the kernel for good.
const endPatience = 5 * time.Second

// turnstile lets a number of callers through at a time.
type turnstile struct {
	places  chan struct{}
	waiting atomic.Int64 // how many wait to enter
}

func newTurnstile(places int) *turnstile { return &turnstile{places: make(chan struct{}, places)} }

// enter waits for a place, but not for ever, and returns what gives it back. A
// place that is held for too long, by what is stuck, is given back before.
func (t *turnstile) enter() (leave func()) {
	t.waiting.Add(1)
	defer t.waiting.Add(-1)
	if !offer(t.places, struct{}{}, endPatience) {
		return func() {}
	}
	return t.held()
}

// offer sends a value, and reports false if nobody takes it in time. What takes
// it may be stuck in the kernel for good.
func offer[T any](to chan<- T, value T, patience time.Duration) bool {
	select {
	case to <- value:
		return true
	default:
	}
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case to <- value:
		return true
	case <-timer.C:
		return false
	}
}

// held returns what gives a place back.
func (t *turnstile) held() (leave func()) {
	free := sync.OnceFunc(func() { <-t.places })
	timer := time.AfterFunc(endPatience, free)
	return func() {
		timer.Stop()
		free()
	}
}
