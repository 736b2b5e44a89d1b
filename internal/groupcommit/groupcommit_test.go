package groupcommit

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func TestEveryItemIsWrittenOnceInOrder(t *testing.T) {
	var written []int // of the writer alone
	var writers atomic.Int32
	q := New(7, func(items []*Item[int]) {
		if writers.Add(1) != 1 {
			t.Error("two writers at once")
		}
		if len(items) == 0 || len(items) > 7 {
			t.Errorf("%d items", len(items))
		}
		for _, it := range items {
			written = append(written, it.Value)
			if it.Value%3 == 0 {
				it.Err = errors.New("a third")
			}
		}
		runtime.Gosched()
		writers.Add(-1)
	})
	const callers, each = 50, 40
	var wg sync.WaitGroup
	for c := range callers {
		wg.Go(func() {
			for i := range each {
				v := c*each + i
				if err := q.Do(t.Context(), v); (err != nil) != (v%3 == 0) {
					t.Errorf("%d: got %v", v, err)
				}
			}
		})
	}
	wg.Wait()
	last := map[int]int{}
	for _, v := range written {
		if v%each != last[v/each] {
			t.Fatalf("caller %d: %d came out of turn", v/each, v%each)
		}
		last[v/each]++
	}
	if len(written) != callers*each {
		t.Errorf("%d were written", len(written))
	}
}

func TestAPanicStopsNobodyElse(t *testing.T) {
	started, leave := make(chan struct{}), make(chan struct{})
	q := New(10, func(items []*Item[string]) {
		if items[0].Value == "first" {
			close(started)
			<-leave
		}
		if items[0].Value == "boom" {
			panic("boom")
		}
	})
	var wg sync.WaitGroup
	wg.Go(func() { _ = q.Do(t.Context(), "first") })
	<-started
	for range 5 {
		wg.Go(func() {
			if q.Do(t.Context(), "boom") == nil {
				t.Error("a panic is no error")
			}
		})
	}
	close(leave)
	wg.Wait()
	if err := q.Do(t.Context(), "last"); err != nil {
		t.Error(err)
	}
}

// A write that hangs keeps no caller waiting for longer than Patience. Items that
// waited behind it are not written. When it ends, the queue goes on.
func TestAWriteThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		released := make(chan struct{})
		var written []int // of the writer alone
		q := New(2, func(items []*Item[int]) {
			<-released
			for _, it := range items {
				written = append(written, it.Value)
			}
		})
		began := time.Now()
		answers := make(chan error)
		do := func(v int) {
			go func() { answers <- q.Do(t.Context(), v) }()
			synctest.Wait()
		}
		do(1) // is being written
		for v := range 5 {
			do(v + 2)
		}
		for range 6 {
			if err := <-answers; !errors.Is(err, ErrHangs) {
				t.Errorf("got %v", err)
			}
		}
		if took := time.Since(began); took != Patience || !q.Hangs() {
			t.Errorf("it took %s; that it hangs is said: %v", took, q.Hangs())
		}
		if err := q.Do(t.Context(), 7); !errors.Is(err, ErrHangs) || time.Since(began) != Patience {
			t.Errorf("the next one after %s: %v", time.Since(began), err)
		}
		close(released)
		synctest.Wait()
		if err := q.Do(t.Context(), 8); err != nil || q.Hangs() {
			t.Errorf("once it goes on: %v; that it hangs is said: %v", err, q.Hangs())
		}
		if len(written) != 2 || written[0] != 1 || written[1] != 8 {
			t.Errorf("written are %d", written)
		}
	})
}

// A caller that leaves before its turn waits no longer, and its item is not written.
// A caller that leaves later learns the outcome.
func TestLeaving(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		released := make(chan struct{})
		n := 0 // of the writer alone
		q := New(10, func(items []*Item[int]) {
			<-released
			n += len(items)
		})
		first, second := make(chan error, 1), make(chan error, 1)
		ctx, leave := context.WithCancel(t.Context())
		go func() { first <- q.Do(ctx, 1) }()
		synctest.Wait()
		go func() { second <- q.Do(ctx, 2) }()
		synctest.Wait()
		leave()
		synctest.Wait()
		select {
		case err := <-second:
			if !errors.Is(err, context.Canceled) {
				t.Errorf("who waited has left with %v", err)
			}
		default:
			t.Error("who has left waits on")
		}
		close(released)
		if err := <-first; err != nil || n != 1 {
			t.Errorf("%d were written, and the first one's error is %v", n, err)
		}
	})
}

func BenchmarkAlone(b *testing.B) {
	q := New(10, func([]*Item[int]) {})
	for b.Loop() {
		_ = q.Do(b.Context(), 1)
	}
}
