package mcp

import (
	"context"
	"sync"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// progressPause is the time between two reports of progress. Clients that extend their timeout by each report
// wait at least some seconds.
const progressPause = time.Second

// progress reports about a call, with what message returns, until the function that it returns was called. A client that
// has not asked for progress gets none.
func (c *call) progress(ctx context.Context, message func() string) (stop func()) {
	token := c.req.Params.GetProgressToken()
	if token == nil {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	var reports sync.WaitGroup
	reports.Go(func() {
		began := time.Now()
		tick := time.NewTicker(progressPause)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			took := time.Since(began)
			err := c.req.Session.NotifyProgress(ctx, &sdk.ProgressNotificationParams{
				ProgressToken: token, Progress: took.Seconds(), Message: clean(message()) + " for " + took.Round(time.Second).String(),
			})
			if err != nil {
				return
			}
		}
	})
	return func() {
		cancel()
		reports.Wait()
	}
}
