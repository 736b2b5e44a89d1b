package server

import (
	"context"
	"errors"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/sandpit-dev/sandpit"
)

// errIdle ends a server without requests.
var errIdle = errors.New("the server is idle")

// idleness measures how long no connection has been busy. Its methods are safe for
// concurrent use.
type idleness struct {
	mu    sync.Mutex
	busy  map[net.Conn]bool // guarded by mu
	since time.Time         // the last one became idle; guarded by mu
}

// connection is for http.Server.ConnState.
func (i *idleness) connection(c net.Conn, state http.ConnState) {
	i.mu.Lock()
	defer i.mu.Unlock()
	switch state {
	case http.StateNew, http.StateActive:
		if i.busy == nil {
			i.busy = map[net.Conn]bool{}
		}
		i.busy[c] = true
	case http.StateIdle, http.StateHijacked, http.StateClosed:
		// One that was taken over is for a sandbox, which keeps the server.
		delete(i.busy, c)
		i.since = time.Now()
	}
}

// idle returns the time since a connection was busy.
func (i *idleness) idle(begun time.Time) time.Duration {
	i.mu.Lock()
	defer i.mu.Unlock()
	if len(i.busy) > 0 {
		return 0
	}
	if i.since.Before(begun) {
		i.since = begun
	}
	return time.Since(i.since)
}

// leaveWhenIdle ends the server when it has had no sandbox and no request for the set time.
func (s *server) leaveWhenIdle(ctx context.Context, leave context.CancelCauseFunc) {
	begun := time.Now()
	after := s.opt.Settings.IdleExit
	tick := time.NewTicker(min(after/4+time.Millisecond, 10*time.Second))
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if s.idle.idle(begun) < after {
			continue
		}
		if s.engine.Live()+s.runs.engine.Live() > 0 {
			begun = time.Now()
			continue
		}
		s.opt.Log.Info("exiting: the server is idle")
		leave(errIdle)
		return
	}
}

// leaveWhenAsked ends the server at a request, if it has neither a request nor a run in progress. The next
// server adopts its sandboxes.
func (s *server) leaveWhenAsked(ctx context.Context, leave context.CancelCauseFunc) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.opt.Leave:
		}
		if s.idle.idle(time.Time{}) > 0 && s.runs.engine.Live() == 0 && s.gate.DrainIdle() {
			s.opt.Log.Info("exiting: another server takes the place of this one")
			leave(errIdle)
			return
		}
	}
}

// machineMemory returns the memory of this machine in bytes, or the default limit of one
// sandbox if it is unknown.
func machineMemory() int64 {
	if n := totalMemory(); n > 0 {
		return n
	}
	return sandpit.DefaultLimits().Memory
}
