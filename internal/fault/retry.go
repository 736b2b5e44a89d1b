package fault

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sandpit-dev/sandpit"
)

// Temporary is an error that may not occur on the next try.
type Temporary struct {
	Err   error
	After time.Duration // when the server wants the next request; 0 if unknown
}

func (e *Temporary) Error() string { return e.Err.Error() }
func (e *Temporary) Unwrap() error { return e.Err }

// Temporaryf returns a Temporary that matches sandpit.ErrUnavailable.
func Temporaryf(after time.Duration, format string, args ...any) error {
	return &Temporary{Kind{fmt.Errorf(format, args...), sandpit.ErrUnavailable}, after}
}

// longestWait bounds what a registry may make us wait.
const longestWait = 20 * time.Second

// Backoff waits before the next try: 0.2 s, 0.4 s, …, or the time that the server
// requested. If that is longer than longestWait, Backoff returns an error at once.
func Backoff(ctx context.Context, try int, why error) error {
	wait := 100 * time.Millisecond << min(max(try, 0), 6)
	var t *Temporary
	if errors.As(why, &t) && t.After > 0 {
		if t.After > longestWait {
			return why
		}
		wait = t.After
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(wait):
		return Move(ctx)
	}
}
