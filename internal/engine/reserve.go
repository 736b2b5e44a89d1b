package engine

import (
	"context"
	"slices"
	"sync"
	"time"
)

// reserve has what a keeper makes ahead: blanks, or held sandboxes.
type reserve[T interface{ destroy() }] struct {
	start  sync.Once // of the keeper
	ctx    context.Context
	cancel context.CancelFunc
	wake   chan struct{} // one place: something has changed
	done   chan struct{} // closed when the keeper has ended

	mu      sync.Mutex // guards all below
	ready   []T        // oldest first
	closed  bool
	claimed int64
	missed  int64
}

func newReserve[T interface{ destroy() }]() reserve[T] {
	ctx, cancel := context.WithCancel(context.Background())
	return reserve[T]{ctx: ctx, cancel: cancel, wake: make(chan struct{}, 1), done: make(chan struct{})}
}

func (r *reserve[T]) poke() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// take takes the oldest one that fits. The caller uses it or gives it back. Precondition: r.mu is held.
func (r *reserve[T]) take(fits func(T) bool) (found T, ok bool) {
	i := slices.IndexFunc(r.ready, fits)
	if i < 0 {
		r.missed++
		return found, false
	}
	found = r.ready[i]
	r.ready = slices.Delete(r.ready, i, i+1)
	r.claimed++
	return found, true
}

// add adds a new one.
func (r *reserve[T]) add(v T) {
	r.mu.Lock()
	keep := !r.closed
	if keep {
		r.ready = append(r.ready, v)
	}
	r.mu.Unlock()
	if !keep {
		v.destroy()
	}
}

// giveBack returns one that was taken and not used.
func (r *reserve[T]) giveBack(v T) {
	r.mu.Lock()
	keep := !r.closed
	if keep {
		r.ready = slices.Insert(r.ready, 0, v)
		r.claimed--
	}
	r.mu.Unlock()
	if !keep {
		v.destroy()
	}
}

// close destroys all of them when the keeper has ended.
func (r *reserve[T]) close() {
	r.mu.Lock()
	r.closed = true
	r.mu.Unlock()
	r.cancel()
	r.start.Do(func() { close(r.done) }) // no keeper was ever started
	<-r.done
	r.mu.Lock()
	ready := r.ready
	r.ready = nil
	r.mu.Unlock()
	var wg sync.WaitGroup
	for _, v := range ready {
		wg.Go(v.destroy)
	}
	wg.Wait()
}

// await waits until something changes, or d is over.
func (r *reserve[T]) await(d time.Duration) { waitFor(r.ctx, r.wake, max(d, time.Millisecond)) }

// rest waits for a fixed time.
func (r *reserve[T]) rest(d time.Duration) { waitFor(r.ctx, nil, d) }

func waitFor(ctx context.Context, wake <-chan struct{}, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-wake:
	case <-timer.C:
	case <-ctx.Done():
	}
}
