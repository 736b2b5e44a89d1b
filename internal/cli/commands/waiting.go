package commands

import (
	"context"
	"time"

	"github.com/sandpit-dev/sandpit"
)

// waitingAfter is the time after which creating a sandbox tells the user what
// it waits for.
const waitingAfter = 2 * time.Second

// sayWaiting says once what a sandbox waits for, if making it takes long. stop ends
// it.
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
		infos, err := s.list(ctx, sandpit.ListQuery{States: []sandpit.State{sandpit.StateCreating}, Limit: sandpit.MaxPage})
		waiting := 0
		for _, info := range infos {
			if info.Reason != "" { // it waits for room
				waiting++
			}
		}
		switch {
		case err != nil, ctx.Err() != nil:
		case waiting > 0:
			a.Note("the server is full, waiting for capacity (waiting sandboxes: %d); run 'sandpit ps' to list the running ones", waiting)
		default:
			a.Note("the server is still creating the sandbox")
		}
	}()
	return func() {
		cancel()
		<-done
	}
}
