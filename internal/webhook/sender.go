package webhook

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/ledger"
)

// Options configure a Sender. The zero Options are usable.
type Options struct {
	// Private allows addresses that are not public, and plain HTTP.
	Private bool

	// Attempts at one event. Default 10, which with the delays below takes
	// about a quarter of an hour.
	Attempts int

	// FirstDelay is the time before the second attempt, doubled before each further one up
	// to MaxDelay. The real delay is random, between half of it and all of it. Defaults 1
	// s and 5 min.
	FirstDelay, MaxDelay time.Duration

	// Timeout of an attempt. Default 15 s.
	Timeout time.Duration

	// Queue is the number of events of a hook that may wait. Default 1,000.
	Queue int

	// Memory is charged for waiting events. If it is nil, only Queue and queueBytes bound
	// them.
	Memory *ledger.Ledger

	// TLS, if not nil, configures the connections. It is for tests.
	TLS *tls.Config

	Log *slog.Logger // default: none
}

const (
	// queueBytes bounds what the events of a hook that wait take in memory.
	queueBytes = 2 << 20

	// maxAtOnce bounds the attempts that are made at once, for all hooks: one for
	// each. A namespace has 32 (package state), so that no few tenants whose
	// receivers do not answer hold up the others.
	maxAtOnce = 512

	// maxIdle bounds the connections that wait for the next event.
	maxIdle = 64
)

// Status has the counters of a hook.
type Status struct {
	Waiting   int    // events
	Failures  int    // attempts that failed since the last that did not
	Dropped   uint64 // events that were given up or pushed out
	LastError string // of the latest attempt that failed
}

// Sender sends events to hooks. It has goroutines only while events wait. All methods are
// safe for concurrent use.
type Sender struct {
	opt    Options
	client *http.Client
	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	slots  chan struct{}
	work   sync.WaitGroup

	mu     sync.Mutex
	hooks  map[string]*queue    // by ID; guarded by mu
	tested map[string]time.Time // when a namespace may make the next test; guarded by mu
	closed bool                 // guarded by mu
}

// queue is a hook with what waits for it.
type queue struct {
	hook   Hook
	key    []byte
	ctx    context.Context // ends when the hook is removed
	cancel context.CancelFunc

	memory *ledger.Account
	events []sandpit.Event // guarded by Sender.mu, as all below
	busy   bool            // somebody sends
	lost   uint64          // events dropped that no message has told of
	status Status
}

// NewSender returns a sender without hooks.
func NewSender(opt Options) *Sender {
	def := func(d *time.Duration, to time.Duration) {
		if *d <= 0 {
			*d = to
		}
	}
	def(&opt.FirstDelay, time.Second)
	def(&opt.MaxDelay, 5*time.Minute)
	def(&opt.Timeout, 15*time.Second)
	if opt.Attempts <= 0 {
		opt.Attempts = 10
	}
	if opt.Queue <= 0 {
		opt.Queue = 1000
	}
	opt.Queue = max(opt.Queue, 2) // one is being sent
	if opt.Log == nil {
		opt.Log = slog.New(slog.DiscardHandler)
	}
	s := &Sender{opt: opt, slots: make(chan struct{}, maxAtOnce), hooks: map[string]*queue{}, tested: map[string]time.Time{}}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.client = &http.Client{
		Timeout: opt.Timeout,
		Transport: &http.Transport{
			Proxy:                  nil, // a proxy would resolve names itself
			DialContext:            dialer(opt.Private).DialContext,
			TLSClientConfig:        opt.TLS,
			TLSHandshakeTimeout:    10 * time.Second,
			MaxIdleConnsPerHost:    1,
			MaxIdleConns:           maxIdle,
			IdleConnTimeout:        30 * time.Second,
			MaxResponseHeaderBytes: 16 << 10,
			DisableCompression:     true,
		},
		// A redirect is an answer that is not 2xx.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return s
}

// Add adds a hook, which gets events from now on. Errors are those of Hook.Check.
func (s *Sender) Add(h Hook) error {
	if err := h.Check(s.opt.Private); err != nil {
		return err
	}
	key, err := secretBytes(h.Secret)
	if err != nil {
		return err
	}
	q := &queue{hook: h, key: key, memory: s.opt.Memory.Account(h.Namespace, queueBytes)}
	q.ctx, q.cancel = context.WithCancel(s.ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	if old := s.hooks[h.ID]; old != nil {
		old.cancel()
	}
	s.hooks[h.ID] = q
	return nil
}

// Remove removes a hook at once, with its waiting events.
func (s *Sender) Remove(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if q := s.hooks[id]; q != nil {
		q.cancel()
		delete(s.hooks, id)
	}
}

// Status returns the counters of a hook; zero if there is no such hook.
func (s *Sender) Status(id string) Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	q := s.hooks[id]
	if q == nil {
		return Status{}
	}
	status := q.status
	status.Waiting = len(q.events)
	return status
}

// Send queues an event for the hooks of a namespace. It does not wait.
func (s *Sender) Send(namespace string, e sandpit.Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return
	}
	for _, q := range s.hooks {
		if !q.hook.wants(namespace, e.Kind) {
			continue
		}
		for len(q.events) >= s.opt.Queue || q.memory.Charge(cost(e)) != nil {
			if len(q.events) < 2 { // one is always taken
				q.memory.Add(cost(e))
				break
			}
			// The first is being sent; the oldest that is not goes.
			q.memory.Return(cost(q.events[1]))
			copy(q.events[1:], q.events[2:])
			q.events[len(q.events)-1] = sandpit.Event{}
			q.events = q.events[:len(q.events)-1]
			q.status.Dropped++
			q.lost++
		}
		q.events = append(q.events, e)
		if !q.busy {
			q.busy = true
			s.work.Go(func() { s.drain(q) })
		}
	}
}

// cost is what an event that waits takes in memory, as if it shared its labels
// with no other.
func cost(e sandpit.Event) int64 { return ledger.Event(&e) + ledger.Labels(e.Labels) }

// drain sends what waits for a hook, in order, until nothing does.
func (s *Sender) drain(q *queue) {
	for {
		s.mu.Lock()
		if len(q.events) == 0 || q.ctx.Err() != nil {
			for _, e := range q.events {
				q.memory.Return(cost(e))
			}
			q.events, q.busy = nil, false
			s.mu.Unlock()
			return
		}
		e := q.events[0]
		s.mu.Unlock()

		sent := s.deliver(q, e)

		s.mu.Lock()
		if len(q.events) > 0 {
			q.memory.Return(cost(e))
			q.events[0] = sandpit.Event{} // its labels are not held by the array
			q.events = q.events[1:]
		}
		if !sent && q.ctx.Err() == nil {
			q.status.Dropped++
			q.lost++
		}
		s.mu.Unlock()
	}
}

// deliver makes the attempts at one event, and reports whether one was
// answered well.
func (s *Sender) deliver(q *queue, e sandpit.Event) bool {
	s.mu.Lock()
	lost := q.lost
	s.mu.Unlock()
	body, err := encode(e, lost)
	if err != nil {
		s.opt.Log.Error("encoding an event for webhooks", "seq", e.Seq, "error", err)
		return false
	}
	for n := range s.opt.Attempts {
		select {
		case s.slots <- struct{}{}:
		case <-q.ctx.Done():
			return false
		}
		_, again, err := s.attempt(q.ctx, q, strconv.FormatUint(e.Seq, 10), body)
		<-s.slots

		s.mu.Lock()
		if err == nil {
			q.status.Failures, q.status.LastError = 0, ""
			q.lost -= lost
		} else if q.ctx.Err() == nil {
			q.status.Failures++
			q.status.LastError = err.Error()
		}
		s.mu.Unlock()
		if err == nil {
			return true
		}
		s.opt.Log.Debug("a webhook failed", "webhook", q.hook.ID, "seq", e.Seq, "attempt", n+1, "error", err)
		if again < 0 || n+1 == s.opt.Attempts || !sleep(q.ctx, max(s.delay(n), min(again, s.opt.MaxDelay))) {
			break
		}
	}
	if q.ctx.Err() == nil {
		s.opt.Log.Warn("an event could not be delivered to a webhook", "webhook", q.hook.ID, "seq", e.Seq)
	}
	return false
}

func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// Close stops all sending, including attempts in progress. It is idempotent.
func (s *Sender) Close() error {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.cancel()
	s.work.Wait()
	s.client.CloseIdleConnections()
	return nil
}

var errGone = errors.New("it responded with status 410 and gets no more events")
