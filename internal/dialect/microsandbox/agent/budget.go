package agent

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/sandpit-dev/sandpit/internal/errcode"
	"github.com/sandpit-dev/sandpit/internal/gate"
)

// pool is a part of a budget.
type pool int

const (
	frames  pool = iota // frames that wait for their operations
	inputs              // bytes that wait for the standard inputs of programs
	windows             // bytes that may wait of files and connections until the client takes them, or the sandbox does
	pools
)

// Bounds of a budget, in bytes. windows has none but that of the call.
const (
	maxFrames = 16 << 20 // of frames, unless it is one
	maxInputs = 16 << 20 // of inputs, unless it is one
)

// budget counts the bytes that wait on a channel, and has its call hold them. Its methods are safe for concurrent use.
//
// Bytes of windows take no room of frames. Room for one frame always stays, because the reader has to read what ends the
// wait of the others.
type budget struct {
	hold     func(n int64) error // has the call hold n bytes instead of those before; less is never too much
	patience time.Duration       // how long take waits
	paused   func() bool         // reports whether the sandbox is paused, which does not count as waiting

	freed chan struct{} // has an element when something was given back

	mu      sync.Mutex
	taken   [pools]int64
	charged int64 // that the call holds
}

func newBudget(hold func(n int64) error, patience time.Duration, paused func() bool) *budget {
	return &budget{hold: hold, patience: patience, paused: paused, freed: make(chan struct{}, 1)}
}

// errFull is the error of a channel on which something waits that its operation does not take.
var errFull error = &gate.Refusal{Code: errcode.Timeout, Message: "too much waits on this channel", Hint: "send no more than programs, files and ports take"}

// errTransfers is the error of a transfer that has no memory, because others of its channel have it.
var errTransfers error = &gate.Refusal{Code: errcode.RateLimited, Message: "too many files and connections are being transferred on this channel", Hint: "wait until some of them have ended"}

// take counts n bytes of a pool. For frames and inputs it waits until there is room, and returns errFull after too long. For
// windows it fails at once, with errTransfers if others have the memory.
func (b *budget) take(ctx context.Context, p pool, n int64) error {
	return b.grow(ctx, p, 0, n)
}

// grow is take for a frame or input of which a part was taken already, but that its bound holds for the others.
func (b *budget) grow(ctx context.Context, p pool, part, n int64) error {
	if p == windows {
		return b.try(p, part, n)
	}
	late, look := time.NewTimer(b.patience), time.NewTicker(b.patience/looks)
	defer late.Stop()
	defer look.Stop()
	for {
		err := b.try(p, part, n)
		if err == nil {
			return nil
		}
		select {
		case <-b.freed:
		case <-time.After(tryEvery): // another channel of the caller may have given something back
		case <-look.C:
			if b.paused() {
				late.Reset(b.patience)
			}
		case <-late.C:
			return fmt.Errorf("%w: %w", errFull, err)
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// try is grow without waiting.
func (b *budget) try(p pool, part, n int64) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	was := b.taken[p]
	if bound := [pools]int64{frames: maxFrames, inputs: maxInputs}[p]; bound > 0 && was > part && was+n > bound {
		return errFull
	}
	b.taken[p] += n
	var err error
	if p == windows {
		err = b.charge(maxFrame * copies)
	}
	if err == nil {
		err = b.charge(0)
	}
	if err == nil {
		return nil
	}
	b.taken[p] = was
	if r := (*gate.Refusal)(nil); p == windows && was > 0 && errors.As(err, &r) && r.Code == errcode.TooLarge {
		return errTransfers
	}
	return err
}

// charge has the call hold what was taken, and more bytes of frames. Precondition: b.mu is held.
func (b *budget) charge(more int64) error {
	n := b.taken[windows] + max(b.taken[frames]+b.taken[inputs]+more-gate.FreeBody, 0)
	if n == b.charged {
		return nil
	}
	err := b.hold(n)
	if err == nil {
		b.charged = n
	}
	return err
}

// give gives back n bytes of a pool.
func (b *budget) give(p pool, n int64) {
	if n == 0 {
		return
	}
	b.mu.Lock()
	b.taken[p] -= n
	_ = b.charge(0) // less is never too much
	b.mu.Unlock()
	select {
	case b.freed <- struct{}{}:
	default:
	}
}
