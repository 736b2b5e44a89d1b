package batch

import (
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
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
				if err := q.Do(v); (err != nil) != (v%3 == 0) {
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
	do := func(v string) (panicked bool, err error) {
		defer func() { panicked = recover() != nil }()
		return false, q.Do(v)
	}
	var wg sync.WaitGroup
	wg.Go(func() { _, _ = do("first") })
	<-started
	for range 5 {
		wg.Go(func() { _, _ = do("boom") })
	}
	close(leave)
	wg.Wait()
	if panicked, err := do("last"); err != nil || panicked {
		t.Errorf("got %v, %v", err, panicked)
	}
}

func BenchmarkAlone(b *testing.B) {
	q := New(10, func([]*Item[int]) {})
	for b.Loop() {
		_ = q.Do(1)
	}
}
