package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/driver"
)

// A sandbox that fails, or is found to be gone, is kept as a failed one for a while, so
// that its owner can find out what happened, and read its log. It takes no capacity or
// quota.
const (
	// lostGrace is the time that a sandbox that was found to be gone is kept.
	lostGrace = 24 * time.Hour

	// maxLost is the maximum number of failed sandboxes that are kept in a namespace.
	maxLost = 50
)

// lose returns the capacity of a failed sandbox of which nothing is left. If its namespace
// has too many of these, lose returns the oldest, to be discarded.
func (e *Engine) lose(s *Sandbox) []*Sandbox {
	e.mu.Lock()
	sp := e.spaces[s.namespace]
	if sp == nil || sp.ids[s.id] != s || slices.Contains(sp.lost, s) {
		e.mu.Unlock()
		return nil
	}
	sp.lost = append(sp.lost, s)
	slices.SortFunc(sp.lost, func(a, b *Sandbox) int { return cmp.Compare(a.created.UnixNano(), b.created.UnixNano()) })
	out := slices.Clone(sp.lost[:max(len(sp.lost)-maxLost, 0)])
	e.mu.Unlock()
	e.gate.leave(&s.demand)
	return out
}

// discard forgets failed sandboxes.
func (e *Engine) discard(failed []*Sandbox) {
	for _, s := range failed {
		s.callOff()
		// Not destroy: it would wait for the task that calls this.
		_ = e.work("removing", s, e.opts.Patience.Remove, func(ctx context.Context) error {
			return s.takeDown(ctx, "too many failed sandboxes")
		}).wait(context.Background())
	}
}

// endedInTime reports whether a sandbox that is gone should have ended by now: its guest
// does that if there is no engine.
func (s *Sandbox) endedInTime(state sandpit.State) bool {
	return s.onExpiry == sandpit.ExpiryRemove && state != sandpit.StateStopped && !time.Now().Before(s.deadline)
}

// goneWhy returns the reason why a sandbox is gone.
func goneWhy(err error) string {
	if errors.Is(err, driver.ErrRestarted) {
		return "the machine was restarted: its processes and files were in memory"
	}
	return "it ended while no server was running: its guest was killed, or it reached its idle time"
}

// absent is the instance of a sandbox that is gone.
type absent struct{}

func (absent) Handle() driver.Handle { return driver.Handle{Version: driver.HandleVersion} }

func (absent) Dial(context.Context) (net.Conn, error) {
	return nil, fmt.Errorf("dialling the guest: %w", sandpit.ErrClosed)
}

func (absent) Stats(context.Context) (sandpit.Metrics, error) {
	return sandpit.UnknownMetrics(), nil
}

func (absent) Done() <-chan struct{} {
	done := make(chan struct{})
	close(done)
	return done
}

func (absent) Destroy(context.Context) error { return nil }

// isID reports whether a name has the form of NewID.
func isID(name string) bool {
	return len(name) == 16 && strings.Trim(name, "abcdefghijklmnopqrstuvwxyz234567") == ""
}

// sweepLogs removes the logs and marks of unknown sandboxes.
func (e *Engine) sweepLogs(known map[string]bool) {
	if e.opts.Dir == "" {
		return
	}
	entries, _ := os.ReadDir(e.opts.Dir)
	for _, s := range e.Sandboxes() { // those made while the directory was read
		known[s.id] = true
	}
	for _, entry := range entries {
		id, marked := entry.Name(), false
		for _, mark := range marks() {
			if cut, ok := strings.CutSuffix(id, mark); ok {
				id, marked = cut, true
			}
		}
		if entry.IsDir() != marked && isID(id) && !known[id] {
			_ = os.RemoveAll(filepath.Join(e.opts.Dir, entry.Name()))
		}
	}
}
