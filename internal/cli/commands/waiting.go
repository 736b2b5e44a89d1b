package commands

import (
	"context"
	"time"

	"github.com/sandpit-dev/sandpit"
)

// waitingAfter is how long a sandbox may be in the making before the person who
// waits for it is told why.
const waitingAfter = 2 * time.Second

// sayWaiting says once, when a sandbox takes long to be made, what it waits for. It
// ends with stop.
func (a *tree) sayWaiting(ctx context.Context, s *session) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		timer := time.NewTimer(waitingAfter)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
			return
		}
		infos, err := s.list(ctx, sandpit.ListQuery{State: sandpit.StateCreating, Limit: 1000})
		waiting := 0
		for _, info := range infos {
			if info.Reason != "" { // that it waits for room
				waiting++
			}
		}
		switch {
		case err != nil, ctx.Err() != nil:
		case waiting > 0:
			a.Note("the server is full: %d sandboxes wait for room, this one among them; 'sandpit ps' shows what there is", waiting)
		default:
			a.Note("the server is still making the sandbox")
		}
	}()
	return func() {
		cancel()
		<-done
	}
}
