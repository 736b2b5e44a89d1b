package engine

import (
	"container/list"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/fault"
	"github.com/sandpit-dev/sandpit/internal/image"
	"github.com/sandpit-dev/sandpit/internal/ledger"
)

// sandboxCost is the memory of a sandbox without its labels and the configuration of its
// image, in bytes: mostly its samples, and the positions of its processes in the log.
const sandboxCost = 96 << 10

// fullRetry is the time to wait when the ledger is full.
const fullRetry = 5 * time.Second

// costOf returns the charge of a listed sandbox. made is the size of the result of
// encodeMade.
func costOf(labels map[string]string, config image.Config, made int) int64 {
	n := int64(sandboxCost) + ledger.Labels(labels) + ledger.Labels(config.Labels) + int64(made)
	for _, part := range [...][]string{config.Entrypoint, config.Cmd, config.Env, config.Volumes} {
		for _, s := range part {
			n += int64(len(s)) + ledger.StringCost
		}
	}
	return n
}

// charge charges the sandbox for what a request will leave behind. If there is no room, the
// processes that ended longest ago are forgotten: of the sandbox, of its namespace, or, if
// the server is full, of the namespace that has most.
func (s *Sandbox) charge(n int64) error {
	for {
		err := s.memory.Charge(n)
		var full *ledger.Full
		if !errors.As(err, &full) {
			return err
		}
		if s.evict(full.Level) {
			continue
		}
		const hint = "end processes or remove sandboxes that are no longer needed"
		if full.Level != ledger.Total {
			return sandpit.WithHint(fault.Kind{Err: full, Kind: sandpit.ErrQuota}, hint)
		}
		return &sandpit.RetryError{Err: sandpit.WithHint(fault.Kind{Err: full, Kind: sandpit.ErrExhausted}, hint), After: fullRetry}
	}
}

// pay increases the charge of a listed sandbox.
func (s *Sandbox) pay(n int64) error {
	if err := s.charge(n); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.repaid {
		s.memory.Return(n)
		return s.closedError()
	}
	s.cost += n
	return nil
}

// owe is pay regardless of the bounds, for data that exists in any case.
func (s *Sandbox) owe(n int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.repaid {
		s.memory.Add(n)
		s.cost += n
	}
}

// refund returns a part of the charge.
func (s *Sandbox) refund(n int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n = min(n, s.cost) // it may have been repaid
	s.cost -= n
	s.memory.Return(n)
}

// repay returns the whole charge. Afterwards nothing more is charged.
func (s *Sandbox) repay() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.memory.Return(s.cost)
	s.cost, s.repaid = 0, true
}

// evict forgets one ended process, and reports false if there is none.
func (s *Sandbox) evict(level ledger.Level) bool {
	ended := &s.engine.ended
	switch level {
	case ledger.Own:
		s.mu.Lock()
		i := slices.IndexFunc(s.broadcasters, (*broadcaster).mayGo)
		if i < 0 {
			s.mu.Unlock()
			return false
		}
		h := s.broadcasters[i]
		s.broadcasters = slices.Delete(s.broadcasters, i, i+1)
		s.mu.Unlock()
		ended.remove(h)
		h.forget()
		return true
	case ledger.Total:
		if ended.evict(s.engine.opts.Memory.Largest()) {
			return true
		}
	}
	return ended.evict(s.namespace)
}

// mayGo reports whether a process has ended and has no readers.
func (h *broadcaster) mayGo() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.ended && len(h.readers) == 0
}

// endedBroadcasters are the listed processes that have ended, by namespace, in the order in
// which they ended. Its lock is taken after Sandbox.mu and before broadcaster.mu.
type endedBroadcasters struct {
	mu     sync.Mutex
	spaces map[string]*list.List // of *broadcaster
	places map[*broadcaster]*list.Element
}

func (e *endedBroadcasters) add(h *broadcaster) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.spaces == nil {
		e.spaces, e.places = map[string]*list.List{}, map[*broadcaster]*list.Element{}
	}
	l := e.spaces[h.sandbox.namespace]
	if l == nil {
		l = list.New()
		e.spaces[h.sandbox.namespace] = l
	}
	e.places[h] = l.PushBack(h)
}

func (e *endedBroadcasters) remove(h *broadcaster) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if at := e.places[h]; at != nil {
		e.spaces[h.sandbox.namespace].Remove(at)
		delete(e.places, h)
	}
}

// evict forgets the process of a namespace that ended first, among those that may go. It
// reports false if there is none.
func (e *endedBroadcasters) evict(namespace string) bool {
	h := e.take(namespace)
	if h == nil {
		return false
	}
	h.sandbox.unlist(h)
	h.forget()
	return true
}

func (e *endedBroadcasters) take(namespace string) *broadcaster {
	e.mu.Lock()
	defer e.mu.Unlock()
	l := e.spaces[namespace]
	if l == nil {
		return nil
	}
	for at := l.Front(); at != nil; at = at.Next() {
		h := at.Value.(*broadcaster)
		if !h.mayGo() {
			continue
		}
		l.Remove(at)
		delete(e.places, h)
		return h
	}
	return nil
}
