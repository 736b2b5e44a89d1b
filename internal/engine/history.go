package engine

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/driver"
)

// The history of a sandbox's usage: a sample every ten seconds, for an hour.
const (
	samplePeriod = 10 * time.Second
	maxSamples   = 360
)

// samples are the latest samples of a sandbox. Once they are full, the oldest is at next.
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

// since returns the samples taken at a time or later, oldest first.
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

// measure starts to take samples, unless that is in progress.
func (e *Engine) measure() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.clock == nil && !e.closed {
		e.clock = time.AfterFunc(samplePeriod, func() { e.sample() })
	}
}

// sample starts a round of samples in each namespace, and repeats it while there are
// sandboxes. Each namespace has its own goroutine, and is left out while its latest round
// lasts: measurements that hang delay only samples of their namespace.
func (e *Engine) sample() (rounds *sync.WaitGroup) {
	rounds = new(sync.WaitGroup)
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.clock != nil {
		e.clock.Stop()
		e.clock = nil
	}
	if e.closed {
		return rounds
	}
	for _, sp := range e.spaces {
		if len(sp.order) > 0 && e.clock == nil {
			e.clock = time.AfterFunc(samplePeriod, func() { e.sample() })
		}
		if len(sp.order) == 0 || sp.sampling {
			continue
		}
		sp.sampling = true
		all := slices.Clone(sp.order)
		rounds.Go(func() {
			for _, s := range all {
				s.sample()
			}
			e.mu.Lock()
			defer e.mu.Unlock()
			sp.sampling = false
		})
	}
	return rounds
}

// sample takes a sample of the sandbox. A measurement that hangs costs Patience.Sample
// once: while it is in progress, no samples are taken.
func (s *Sandbox) sample() {
	s.mu.Lock()
	measured := !s.removing && (s.state == sandpit.StateRunning || s.state == sandpit.StatePaused || s.state == sandpit.StateStopped)
	s.mu.Unlock()
	if !measured {
		return
	}
	if s.persistent {
		s.renew(time.Now())
	}
	if s.engine.mayTry(s.namespace) != nil {
		return // each measurement that hangs holds a thread
	}
	wait := s.engine.opts.Patience.Sample
	r, begun := s.measure()
	if !begun && time.Since(r.began) >= wait {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), wait)
	defer cancel()
	if r.task.wait(ctx) != nil {
		return // it hangs, or the sandbox is being removed
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.samples.add(sandpit.Sample{Time: time.Now(), Metrics: r.metrics})
}

// reading is a query of the kernel about a sandbox, which may hang.
type reading struct {
	began   time.Time
	task    *task
	metrics sandpit.Metrics // once the task has ended
}

// read returns the reading that is in progress at a place of the sandbox. If there is none
// it starts one, and reports true. So at most one hangs at each place, for any number of
// callers.
func (s *Sandbox) read(at **reading, what, step string, f func(ctx context.Context) (sandpit.Metrics, error)) (r *reading, begun bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if *at != nil && !(*at).task.ended() {
		return *at, false
	}
	r = &reading{began: time.Now()}
	// The task is not one of the sandbox: one that hangs does not make it a failed one.
	t := &task{what: what, about: "sandbox " + s.Name(), namespace: s.namespace}
	r.task = s.engine.start(context.Background(), t, s.engine.opts.Patience.Measure, func(ctx context.Context) (err error) {
		driver.ProgressOf(ctx).Enter(driver.Doing{Step: step})
		r.metrics, err = f(ctx)
		return err
	})
	*at = r
	return r, true
}

// fresh returns the result of a reading that began after the call of fresh.
func fresh(ctx context.Context, read func() (r *reading, begun bool)) (sandpit.Metrics, error) {
	r, begun := read()
	err := r.task.wait(ctx)
	if err == nil && !begun {
		r, _ = read()
		err = r.task.wait(ctx)
	}
	if err != nil {
		return sandpit.Metrics{}, err
	}
	return r.metrics, nil
}

// measure reads the usage of the sandbox.
func (s *Sandbox) measure() (r *reading, begun bool) {
	return s.read(&s.measuring, "measuring", "stats", s.instance.Stats)
}

// countKills reads the numbers of out-of-memory kills and refused processes. The other metrics are not valid.
func (s *Sandbox) countKills() (r *reading, begun bool) {
	instance := s.instance
	return s.read(&s.counting, "counting kills in", "oom kills", func(ctx context.Context) (m sandpit.Metrics, err error) {
		c, ok := instance.(driver.OOMCounter)
		if !ok {
			return instance.Stats(ctx)
		}
		if m.PidsRefused, err = c.PidsRefused(); err != nil {
			return m, err
		}
		m.OOMKills, err = c.OOMKills()
		return m, err
	})
}

// Metrics returns the resource usage of the sandbox.
func (s *Sandbox) Metrics(ctx context.Context) (sandpit.Metrics, error) {
	switch state := s.present(); state {
	case "":
		return sandpit.Metrics{}, s.closedError()
	case sandpit.StateCreated, sandpit.StateCreating:
		return sandpit.Metrics{}, s.stateError(state)
	}
	return fresh(ctx, s.measure)
}
