package linux

import (
	"sync"
	"sync/atomic"
	"time"
)

// maxEnding is the number of sandboxes that are killed and reaped at the same time.
//
// The kernel frees the filters of a sandbox in its shared workqueue. A thousand filters
// queued there at once have deadlocked Linux 6.18.
const maxEnding = 16

// endPatience is the time that a sandbox waits for its turn to end. It goes on afterwards:
// those before it may be stuck in the kernel.
const endPatience = 5 * time.Second

// turnstile lets a number of callers through at a time.
type turnstile struct {
	places  chan struct{}
	waiting atomic.Int64 // how many wait to enter
}

func newTurnstile(places int) *turnstile { return &turnstile{places: make(chan struct{}, places)} }

// enter waits for a place for a limited time, and returns a function that releases it. A
// place that is held for too long is released before.
func (t *turnstile) enter() (leave func()) {
	t.waiting.Add(1)
	defer t.waiting.Add(-1)
	if !offer(t.places, struct{}{}, endPatience) {
		return func() {}
	}
	return t.held()
}

// offer sends a value, and reports false if the receiver does not take it in time. It may
// be stuck in the kernel.
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

// held returns a function that releases a place.
func (t *turnstile) held() (leave func()) {
	free := sync.OnceFunc(func() { <-t.places })
	timer := time.AfterFunc(endPatience, free)
	return func() {
		timer.Stop()
		free()
	}
}
