package agent

import (
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// awake is inbox.paused of a sandbox that runs.
func awake() bool { return false }

// An inbox takes as many messages and bytes as it may, and waits for room as long as its operation takes something.
func TestInbox(t *testing.T) {
	put := func(b *inbox, size int64) (bool, error) { return b.put(message{size: size}) }
	for name, x := range map[string]struct {
		messages int
		bytes    int64
		sizes    []int64 // the last of which has no room
	}{
		"messages": {2, 0, []int64{100, 100, 1}},
		"bytes":    {0, 100, []int64{60, 40, 1}},
		"one":      {0, 100, []int64{1000, 1}},
	} {
		t.Run(name, func(t *testing.T) {
			b := newInbox(x.messages, x.bytes, time.Millisecond, awake)
			last := len(x.sizes) - 1
			for _, size := range x.sizes[:last] {
				if queued, err := put(b, size); !queued || err != nil {
					t.Fatalf("%d bytes: %v, %v", size, queued, err)
				}
			}
			if queued, err := put(b, x.sizes[last]); queued || !errors.Is(err, errStuck) {
				t.Errorf("of one that is full and whose operation takes nothing: %v, %v", queued, err)
			}

			b.patience = time.Hour
			done := make(chan error)
			go func() {
				_, err := put(b, x.sizes[last])
				done <- err
			}()
			if m, ok := b.next(); !ok || m.size != x.sizes[0] {
				t.Errorf("next returned %+v, %v", m, ok)
			}
			if err := <-done; err != nil {
				t.Errorf("with room again: %v", err)
			}

			left := x.sizes[last]
			for _, size := range x.sizes[1:last] {
				left += size
			}
			if size := b.close(); size != left || !b.gone() {
				t.Errorf("%d bytes were dropped, not %d: %v", size, left, b.gone())
			}
			if queued, err := put(b, 1); queued || err != nil {
				t.Errorf("after close: %v, %v", queued, err)
			}
			if _, ok := b.next(); ok || b.close() != 0 {
				t.Error("there is something after close")
			}
		})
	}
}

// Each part of a message that an operation takes begins its time anew. So does a message for one that had nothing to take.
func TestInboxProgress(t *testing.T) {
	b := newInbox(1, 0, time.Hour, awake)
	long := time.Now().Add(-2 * time.Hour)
	b.since = long
	if queued, err := b.put(message{}); !queued || err != nil || b.since == long {
		t.Errorf("the first message: %v, %v at %v", queued, err, b.since)
	}
	b.since = long
	if _, err := b.put(message{}); !errors.Is(err, errStuck) {
		t.Errorf("after two hours: %v", err)
	}
	b.progress()
	done := make(chan error)
	go func() {
		_, err := b.put(message{})
		done <- err
	}()
	b.next()
	if err := <-done; err != nil {
		t.Errorf("after progress: %v", err)
	}
	b.next()
	b.since = long
	if queued, err := b.put(message{}); !queued || err != nil || b.since != long {
		t.Errorf("while the operation is still busy: %v, %v at %v", queued, err, b.since)
	}
}

// The time for which its sandbox is paused is not time in which an operation takes nothing.
func TestInboxOfPausedSandbox(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var paused atomic.Bool
		b := newInbox(1, 0, time.Hour, paused.Load)
		paused.Store(true)
		if queued, err := b.put(message{}); !queued || err != nil {
			t.Fatalf("the first message: %v, %v", queued, err)
		}
		done := make(chan error, 1)
		go func() {
			_, err := b.put(message{})
			done <- err
		}()
		time.Sleep(10 * time.Hour)
		select {
		case err := <-done:
			t.Fatalf("while it is paused: %v", err)
		default:
		}
		paused.Store(false)
		resumed := time.Now()
		if err := <-done; !errors.Is(err, errStuck) || time.Since(resumed) < time.Hour-time.Hour/looks {
			t.Errorf("%v after it goes on: %v", time.Since(resumed), err)
		}
	})
}
