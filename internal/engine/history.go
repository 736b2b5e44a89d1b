package engine

import (
	"context"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/driver"
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

// sampleWait bounds how long measuring one sandbox delays the samples of the others.
const sampleWait = time.Second

// sample takes a sample of the sandbox. A measurement that hangs costs sampleWait
// once: while it is under way, no samples are taken.
func (s *Sandbox) sample() {
	if s.engine.mayTry(s.namespace) != nil {
		return // each measurement that hangs holds a thread
	}
	m, begun := s.measure()
	if !begun && time.Since(m.began) >= sampleWait {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), sampleWait)
	defer cancel()
	if m.task.wait(ctx) != nil {
		return // it hangs, or the sandbox is being removed
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.samples.add(sandpit.Sample{Time: time.Now(), Metrics: m.metrics})
}

// measurement is one reading of what a sandbox uses. The kernel may hold it up.
type measurement struct {
	began   time.Time
	task    *task
	metrics sandpit.Metrics // once the task has ended
}

// measure returns the measurement of the sandbox that is under way. If there is none it
// begins one, and reports true. So at most one hangs, however many callers there are.
func (s *Sandbox) measure() (m *measurement, begun bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.measuring != nil && !s.measuring.task.ended() {
		return s.measuring, false
	}
	m = &measurement{began: time.Now()}
	// The task is not one of the sandbox: one that hangs does not make it a failed one.
	t := &task{what: "measuring", about: "sandbox " + s.name, namespace: s.namespace}
	m.task = s.engine.start(context.Background(), t, s.engine.opts.Patience.Measure, func(ctx context.Context) (err error) {
		driver.ProgressOf(ctx).Enter(driver.Doing{Step: "stats"})
		m.metrics, err = s.instance.Stats(ctx)
		return err
	})
	s.measuring = m
	return m, true
}

// Metrics returns what the sandbox uses.
func (s *Sandbox) Metrics(ctx context.Context) (sandpit.Metrics, error) {
	switch s.present() {
	case "":
		return sandpit.Metrics{}, s.closedError()
	case sandpit.StateCreating:
		return sandpit.Metrics{}, s.stateError(sandpit.StateCreating)
	}
	m, begun := s.measure()
	err := m.task.wait(ctx)
	if err == nil && !begun {
		// Its result may be older than the question.
		m, _ = s.measure()
		err = m.task.wait(ctx)
	}
	if err != nil {
		return sandpit.Metrics{}, err
	}
	return m.metrics, nil
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
		if s.kept {
			s.renew(time.Now())
		}
		s.sample()
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.clock = nil
	if len(all) > 0 && !e.closed {
		e.clock = time.AfterFunc(samplePeriod, e.sample)
	}
}
