package engine

import (
	"context"
	"time"

	"github.com/sandpit-dev/sandpit"
)

// What is kept of what sandboxes use: a sample every ten seconds, of an hour.
const (
	samplePeriod = 10 * time.Second
	maxSamples   = 360
)

// samples are the latest of a sandbox. The one after the latest is at next,
// once they are full.
type samples struct {
	all  []sandpit.Sample
	next int
}

func (h *samples) add(s sandpit.Sample) {
	if len(h.all) < maxSamples {
		h.all = append(h.all, s)
		return
	}
	h.all[h.next] = s
	h.next = (h.next + 1) % maxSamples
}

// since returns those taken at a time or later, oldest first.
func (h *samples) since(t time.Time) []sandpit.Sample {
	out := []sandpit.Sample{}
	for i := range h.all {
		if s := h.all[(h.next+i)%len(h.all)]; !s.Time.Before(t) {
			out = append(out, s)
		}
	}
	return out
}

// History returns samples. See sandpit.Meter.
func (s *Sandbox) History(_ context.Context, since time.Time) ([]sandpit.Sample, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.removing {
		return nil, s.closedError()
	}
	return s.samples.since(since), nil
}

// measure begins to take samples, if that is not being done.
func (e *Engine) measure() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.clock == nil && !e.closed {
		e.clock = time.AfterFunc(samplePeriod, e.sample)
	}
}

// sample takes a sample of each sandbox, and goes on while there is one.
func (e *Engine) sample() {
	all := e.Sandboxes()
	for _, s := range all {
		s.mu.Lock()
		measured := !s.removing && (s.state == sandpit.StateRunning || s.state == sandpit.StatePaused || s.state == sandpit.StateStopped)
		s.mu.Unlock()
		if !measured {
			continue
		}
		m, err := s.instance.Stats(context.Background())
		if err != nil {
			continue // it is being removed
		}
		s.mu.Lock()
		s.samples.add(sandpit.Sample{Time: time.Now(), Metrics: m})
		s.mu.Unlock()
		if s.kept {
			s.renew(time.Now())
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.clock = nil
	if len(all) > 0 && !e.closed {
		e.clock = time.AfterFunc(samplePeriod, e.sample)
	}
}
