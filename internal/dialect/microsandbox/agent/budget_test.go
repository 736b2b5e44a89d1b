package agent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sandpit-dev/sandpit/internal/errcode"
	"github.com/sandpit-dev/sandpit/internal/gate"
)

// testBudget returns a budget whose call may hold most bytes, and what it holds.
func testBudget(most int64, patience time.Duration, paused func() bool) (b *budget, held *int64) {
	held = new(int64)
	return newBudget(func(n int64) error {
		if n > most && n > *held {
			return &gate.Refusal{Code: errcode.TooLarge}
		}
		*held = n
		return nil
	}, patience, paused), held
}

// Each pool has its bound, but one piece always fits. What the call holds is what was taken, without what is free.
func TestBudget(t *testing.T) {
	b, held := testBudget(1<<40, time.Minute, awake)
	for _, p := range []pool{frames, inputs} {
		if err := b.try(p, 0, maxFrames+1); err != nil {
			t.Errorf("one piece of pool %d: %v", p, err)
		}
		if err := b.try(p, 0, 1); !errors.Is(err, errFull) {
			t.Errorf("more of pool %d: %v", p, err)
		}
	}
	if err := b.try(frames, maxFrames+1, 1); err != nil {
		t.Errorf("more of the same piece: %v", err)
	}
	b.give(frames, 1)
	if err := b.try(windows, 0, 1<<30); err != nil {
		t.Error(err)
	}
	if want := int64(1<<30 + 2*(maxFrames+1) - gate.FreeBody); *held != want {
		t.Errorf("%d bytes are held, want %d", *held, want)
	}
	for p, n := range b.taken {
		b.give(pool(p), n)
	}
	if b.taken != [pools]int64{} || *held != 0 {
		t.Errorf("after all was given back %v is taken, and %d is held", b.taken, *held)
	}
	for range 2 {
		if err := b.try(frames, 0, gate.FreeBody/2); err != nil || *held != 0 {
			t.Errorf("%d bytes are held for little, %v", *held, err)
		}
	}
}

// A frame of which little comes counts for little, whatever length it announces.
func TestAnnouncedFramesCountForLittle(t *testing.T) {
	b, held := testBudget(1<<40, time.Minute, awake)
	ch := &channel{budget: b, ctx: t.Context()}
	from, to := io.Pipe()
	read := make(chan error)
	go func() {
		body, err := ch.readBody(from, maxFrame)
		if err == nil && (len(body) != maxFrame || body[maxFrame-1] != 'x') {
			err = fmt.Errorf("%d bytes are not what was sent", len(body))
		}
		read <- err
	}()
	if _, err := to.Write(bytes.Repeat([]byte{'x'}, gate.FreeBody-1)); err != nil {
		t.Fatal(err)
	}
	b.mu.Lock()
	if *held > gate.FreeBody*copies {
		t.Errorf("%d bytes are held", *held)
	}
	b.mu.Unlock()
	if _, err := to.Write(bytes.Repeat([]byte{'x'}, maxFrame-gate.FreeBody+1)); err != nil {
		t.Fatal(err)
	}
	if err := <-read; err != nil || b.taken[frames] != maxFrame*copies {
		t.Errorf("%d bytes are taken, %v", b.taken[frames], err)
	}
}

// Frames of many channels that come at the same time are all read, one after the other if need be.
func TestManyFramesAtTheSameTime(t *testing.T) {
	const most, channels = 256 << 20, 100
	var mu sync.Mutex
	total := int64(0)
	read := make(chan error)
	for range channels {
		own := int64(0)
		hold := func(n int64) error {
			mu.Lock()
			defer mu.Unlock()
			if n > own && total+n-own > most {
				return errFull
			}
			total += n - own
			own = n
			return nil
		}
		ch := &channel{budget: newBudget(hold, time.Minute, awake), ctx: t.Context()}
		go func() {
			body, err := ch.readBody(bytes.NewReader(make([]byte, maxFrame)), maxFrame)
			ch.budget.give(frames, int64(len(body))*copies)
			read <- err
		}()
	}
	for range channels {
		if err := <-read; err != nil {
			t.Error(err)
		}
	}
}

// Windows leave room for one frame, and are refused at once: for good if nothing else has the memory.
func TestWindowsLeaveRoomForAFrame(t *testing.T) {
	const most = 1 << 30
	b, held := testBudget(most, time.Minute, awake)
	room := int64(most - (maxFrame*copies - gate.FreeBody))
	refusal := (*gate.Refusal)(nil)
	if err := b.take(t.Context(), windows, room+1); !errors.As(err, &refusal) || refusal.Code != errcode.TooLarge || b.taken[windows] != 0 {
		t.Errorf("the first: %v, and %d is taken", err, b.taken[windows])
	}
	if err := b.take(t.Context(), windows, room); err != nil {
		t.Error(err)
	}
	if err := b.take(t.Context(), windows, 1); !errors.Is(err, errTransfers) || b.taken[windows] != room {
		t.Errorf("the next: %v, and %d is taken", err, b.taken[windows])
	}
	if *held != room {
		t.Errorf("%d bytes are held, want %d", *held, room)
	}
	if err := b.take(t.Context(), frames, maxFrame*copies); err != nil {
		t.Errorf("a frame: %v", err)
	}
}

// A wait ends when there is room, when it has lasted too long, or when the channel ends. While the sandbox is paused it lasts.
func TestBudgetWaits(t *testing.T) {
	b, _ := testBudget(1<<40, time.Minute, awake)
	if err := b.try(frames, 0, maxFrames); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error)
	take := func(ctx context.Context, b *budget) { go func() { ended <- b.take(ctx, frames, 1) }() }
	take(t.Context(), b)
	b.give(frames, 1)
	if err := <-ended; err != nil {
		t.Errorf("with room: %v", err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	take(ctx, b)
	cancel(errGone)
	if err := <-ended; !errors.Is(err, errGone) {
		t.Errorf("on a channel that ends: %v", err)
	}

	synctest.Test(t, func(t *testing.T) {
		const patience, paused = 16 * time.Second, 50 * time.Second
		began := time.Now()
		b, _ := testBudget(1<<40, patience, func() bool { return time.Since(began) < paused })
		if err := b.try(frames, 0, maxFrames); err != nil {
			t.Fatal(err)
		}
		err := b.take(t.Context(), frames, 1)
		if waited := time.Since(began); !errors.Is(err, errFull) || waited < paused || waited > paused+patience {
			t.Errorf("after %v: %v", waited, err)
		}
	})
}
