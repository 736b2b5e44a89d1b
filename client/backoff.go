package client

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/sandpit-dev/sandpit"
)

// backoff spaces out tries until they are no longer useful.
type backoff struct {
	until time.Time
	next  time.Duration
}

// Tries come after 50 ms at first and 2 s in the end, each with a random part
// so that many clients do not come at once.
const (
	firstPause = 50 * time.Millisecond
	mostPause  = 2 * time.Second
)

// newBackoff returns one that gives up after a time.
func newBackoff(limit time.Duration) *backoff {
	return &backoff{until: time.Now().Add(limit), next: firstPause}
}

// passing reports whether the same request may succeed later.
func passing(err error) bool {
	return errors.Is(err, sandpit.ErrUnavailable) || sandpit.RetryAfter(err) > 0
}

// wait waits until the next try, at least for as long as err says. It is false when the time is
// over or ctx has ended.
func (b *backoff) wait(ctx context.Context, err error) bool {
	pause := max(b.next/2, sandpit.RetryAfter(err)) + rand.N(b.next/2+1)
	b.next = min(2*b.next, mostPause)
	if time.Now().Add(pause).After(b.until) {
		return false
	}
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
