package webhook

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"strconv"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/fault"
)

// KindTest is the type of the message of a test. No event has it.
const KindTest sandpit.EventKind = "webhook.test"

// testEvery is the time between two tests in a namespace: a test is a request to any server
// that a caller names.
const testEvery = time.Second

// Tested is the outcome of a test.
type Tested struct {
	Status int   // of the answer; 0: there was none
	Err    error // why it was not delivered
	Took   time.Duration
}

// Test sends a message of the type KindTest to a hook of a namespace once, with the bounds of
// other messages, and returns the outcome. It changes neither the queue nor the status. It
// returns ErrNotFound if there is no such hook, and a RetryError that matches ErrRateLimited
// less than a second after the latest test in the namespace, or while it is in progress.
func (s *Sender) Test(ctx context.Context, namespace, id string) (Tested, error) {
	now := time.Now()
	s.mu.Lock()
	q := s.hooks[id]
	if q == nil || q.hook.Namespace != namespace {
		s.mu.Unlock()
		return Tested{}, fmt.Errorf("testing the webhook %.40q: %w", id, sandpit.ErrNotFound)
	}
	maps.DeleteFunc(s.tested, func(_ string, next time.Time) bool { return !now.Before(next) })
	if next, ok := s.tested[namespace]; ok {
		s.mu.Unlock()
		return Tested{}, &sandpit.RetryError{
			Err:   sandpit.WithHint(fault.Errorf(sandpit.ErrRateLimited, "testing the webhook %s: another test is in progress, or has just ended", id), "try again in a second"),
			After: min(next.Sub(now), testEvery),
		}
	}
	s.tested[namespace] = now.Add(s.opt.Timeout + testEvery) // until it ends
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		s.tested[namespace] = time.Now().Add(testEvery)
		s.mu.Unlock()
	}()

	ctx, cancel := context.WithTimeout(ctx, s.opt.Timeout)
	defer cancel()
	defer context.AfterFunc(q.ctx, cancel)()
	select {
	case s.slots <- struct{}{}:
		defer func() { <-s.slots }()
	case <-ctx.Done():
		return Tested{}, fmt.Errorf("testing the webhook %s: %w", id, ctx.Err())
	}
	body, err := json.Marshal(message{KindTest, now.UTC(), sandpit.Event{Time: now, Kind: KindTest}, 0})
	if err != nil {
		return Tested{}, fmt.Errorf("testing the webhook %s: %w", id, err)
	}
	began := time.Now()
	status, _, err := s.attempt(ctx, q, "test-"+strconv.FormatInt(now.UnixMicro(), 10), body)
	return Tested{status, err, time.Since(began)}, nil
}
