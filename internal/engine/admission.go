package engine

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/fault"
	"github.com/sandpit-dev/sandpit/internal/notation"
)

// Capacity bounds what all sandboxes of an engine may use together. 0 means no bound.
type Capacity struct {
	Memory    int64   // bytes; the sum of their limits
	CPUs      float64 // the same for CPUs
	Sandboxes int

	// Wait is the time that a Create may wait for capacity; default 30 s.
	Wait time.Duration

	// Waiting bounds the number of waiting Creates in one namespace; default 256.
	Waiting int
}

const (
	defaultWait    = 30 * time.Second
	defaultWaiting = 256
)

// demand is the capacity that a sandbox needs.
type demand struct {
	memory    int64
	cpus      float64
	sandboxes int
}

// admission admits sandboxes while there is capacity. Creates wait in the queue of their
// namespace, and the queues are served in turn, so that a tenant with many creates does not
// hold up others. A create that is too large for the free capacity lets smaller ones of
// other namespaces pass.
type admission struct {
	capacity Capacity

	mu     sync.Mutex
	used   demand
	queues map[string][]*waiter
	turn   []string // namespaces with a queue, the next to be served first
}

type waiter struct {
	want demand
	in   chan struct{} // closed when let in
}

func (a *admission) fits(d demand) bool {
	c := a.capacity
	return (c.Memory == 0 || a.used.memory+d.memory <= c.Memory) &&
		(c.CPUs == 0 || a.used.cpus+d.cpus <= c.CPUs+cpuTolerance) &&
		(c.Sandboxes == 0 || a.used.sandboxes+d.sandboxes <= c.Sandboxes)
}

// cpuTolerance allows for rounding in sums of fractions.
const cpuTolerance = 1e-6

func (a *admission) take(d demand, sign int) {
	a.used.memory += int64(sign) * d.memory
	a.used.cpus += float64(sign) * d.cpus
	a.used.sandboxes += sign * d.sandboxes
}

// claim takes capacity regardless of the bound, for a sandbox that exists.
func (a *admission) claim(d demand) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.take(d, 1)
}

// fitsNow takes capacity for a sandbox if there is some and no create waits for it.
func (a *admission) fitsNow(namespace string, d demand) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.takeNow(namespace, d)
}

// takeNow is fitsNow with a.mu held.
func (a *admission) takeNow(namespace string, d demand) bool {
	fits := len(a.queues[namespace]) == 0 && a.fits(d)
	if fits {
		a.take(d, 1)
	}
	return fits
}

// enter takes capacity for a sandbox, and waits for it if necessary, at most for the time of the
// capacity and, unless that is 0, of most. The error matches
// sandpit.ErrExhausted if none became free in time, and sandpit.ErrQuota if the server is too
// small for it.
func (a *admission) enter(ctx context.Context, namespace string, d demand, most time.Duration) error {
	wait, maxWaiting := a.capacity.Wait, a.capacity.Waiting
	if wait <= 0 {
		wait = defaultWait
	}
	if most > 0 {
		wait = min(wait, most)
	}
	if maxWaiting <= 0 {
		maxWaiting = defaultWaiting
	}
	a.mu.Lock()
	if a.takeNow(namespace, d) {
		a.mu.Unlock()
		return nil
	}
	if err := a.tooSmall(d); err != nil {
		a.mu.Unlock()
		return fmt.Errorf("creating a sandbox: %w", err)
	}
	if len(a.queues[namespace]) >= maxWaiting {
		a.mu.Unlock()
		return fullError(wait)
	}
	w := &waiter{want: d, in: make(chan struct{})}
	if a.queues == nil {
		a.queues = map[string][]*waiter{}
	}
	if len(a.queues[namespace]) == 0 {
		a.turn = append(a.turn, namespace)
	}
	a.queues[namespace] = append(a.queues[namespace], w)
	a.mu.Unlock()

	timer := time.NewTimer(wait)
	defer timer.Stop()
	var err error
	select {
	case <-w.in:
		return nil
	case <-ctx.Done():
		err = ctx.Err()
	case <-timer.C:
		err = fullError(wait)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	select {
	case <-w.in: // just now
		if ctx.Err() == nil {
			return nil
		}
		a.take(d, -1)
	default:
		a.drop(namespace, slices.Index(a.queues[namespace], w))
	}
	a.serve()
	return err
}

// fullError returns the error that there is no capacity, with the time to try again.
func fullError(wait time.Duration) error {
	return &sandpit.RetryError{
		Err: sandpit.WithHint(fault.Errorf(sandpit.ErrExhausted, "creating a sandbox: this server is full"),
			"remove a sandbox, request less memory (which is reserved in full), or try again later"),
		After: max(wait/2, time.Second),
	}
}

// mayHave checks the number of sandboxes of a tenant.
func (t *Tenant) mayHave(n int) error {
	if r := t.policy.Rules; r != nil && r.Sandboxes > 0 && n > r.Sandboxes {
		return sandpit.WithHint(fault.Errorf(sandpit.ErrQuota, "creating a sandbox: the limit of %d sandboxes is reached", r.Sandboxes), "remove a sandbox first")
	}
	return nil
}

// mayCreate checks the rate and number of creates of a tenant, before anything is pulled.
func (e *Engine) mayCreate(t *Tenant) error {
	r := t.policy.Rules
	if r == nil {
		return nil
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	sp := e.space(t.namespace)
	if err := t.mayHave(sp.live() + 1); err != nil {
		return err
	}
	if r.CreateRate <= 0 {
		return nil
	}
	if wait := sp.rate.take(r.CreateRate, time.Now()); wait > 0 {
		return &sandpit.RetryError{
			Err: sandpit.WithHint(fault.Errorf(sandpit.ErrRateLimited, "creating a sandbox: the limit of %v per second is reached", r.CreateRate),
				"try again more slowly"),
			After: wait,
		}
	}
	return nil
}

// left returns the free memory capacity, if there is a bound.
func (a *admission) left() (bytes int64, bounded bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.capacity.Memory - a.used.memory, a.capacity.Memory > 0
}

// Waiting returns the number of callers that wait for capacity to create a sandbox.
func (e *Engine) Waiting() int {
	e.gate.mu.Lock()
	defer e.gate.mu.Unlock()
	n := 0
	for _, q := range e.gate.queues {
		n += len(q)
	}
	return n
}

// leave returns the capacity of a sandbox.
func (a *admission) leave(d *demand) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.take(*d, -1)
	*d = demand{}
	a.serve()
}

// hold has a sandbox hold the larger of what it has and of the amounts of a change, until
// settle is called: both limits may be in force meanwhile. It does not wait. The error matches
// sandpit.ErrQuota if the server is too small, sandpit.ErrExhausted if there is no room now or
// creates of the namespace wait for some, and sandpit.ErrState if the sandbox has left.
func (a *admission) hold(namespace string, d *demand, memory int64, cpus float64) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	var want, more demand
	if memory > d.memory {
		want.memory, more.memory = memory, memory-d.memory
	}
	if cpus > d.cpus {
		want.cpus, more.cpus = cpus, cpus-d.cpus
	}
	switch {
	case d.sandboxes == 0:
		return fault.Errorf(sandpit.ErrState, "the sandbox has failed")
	case more == (demand{}):
		return nil
	}
	if err := a.tooSmall(want); err != nil {
		return err
	}
	if n := len(a.queues[namespace]); n > 0 {
		return sandpit.WithHint(fault.Errorf(sandpit.ErrExhausted, "creates of this namespace that wait for capacity come first (waiting: %d)", n), "remove those that have the state creating, or try again later")
	}
	c := a.capacity
	free := demand{memory: d.memory + max(c.Memory-a.used.memory, 0), cpus: d.cpus + max(c.CPUs-a.used.cpus, 0)}
	if lacks, has := c.exceeded(want, free); lacks != (demand{}) {
		return sandpit.WithHint(fault.Errorf(sandpit.ErrExhausted, "this server has no room for %s", amounts(lacks)), "request at most "+amounts(has)+", or try again later")
	}
	a.take(more, 1)
	d.memory, d.cpus = d.memory+more.memory, d.cpus+more.cpus
	return nil
}

// settle ends what hold began: the sandbox needs these amounts, and the rest is free.
func (a *admission) settle(d *demand, memory int64, cpus float64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if d.sandboxes == 0 { // it has left
		return
	}
	a.take(demand{memory: memory - d.memory, cpus: cpus - d.cpus}, 1)
	d.memory, d.cpus = memory, cpus
	a.serve()
}

// tooSmall returns the error that the server is too small, or nil.
func (a *admission) tooSmall(d demand) error {
	c := a.capacity
	needs, has := c.exceeded(d, demand{memory: c.Memory, cpus: c.CPUs})
	if needs == (demand{}) {
		return nil
	}
	return sandpit.WithHint(fault.Errorf(sandpit.ErrQuota, "it needs %s, and this server has %s in total", amounts(needs), amounts(has)), "request less")
}

// exceeded returns the amounts of which a demand is above a bound, and those of the bound, where
// the capacity is bounded.
func (c Capacity) exceeded(d, bound demand) (needs, has demand) {
	if c.Memory > 0 && d.memory > bound.memory {
		needs.memory, has.memory = d.memory, bound.memory
	}
	if c.CPUs > 0 && d.cpus > bound.cpus+cpuTolerance {
		needs.cpus, has.cpus = d.cpus, bound.cpus
	}
	return needs, has
}

// serve admits creates that fit: the first of each queue, the queues in turn.
func (a *admission) serve() {
	for skipped := 0; skipped < len(a.turn); {
		namespace := a.turn[0]
		w := a.queues[namespace][0]
		a.turn = append(a.turn[1:], namespace)
		if !a.fits(w.want) {
			skipped++
			continue
		}
		a.take(w.want, 1)
		close(w.in)
		a.drop(namespace, 0)
		skipped = 0
	}
}

// drop removes a waiter from its queue.
func (a *admission) drop(namespace string, i int) {
	q := slices.Delete(a.queues[namespace], i, i+1)
	if a.queues[namespace] = q; len(q) == 0 {
		delete(a.queues, namespace)
		a.turn = slices.DeleteFunc(a.turn, func(n string) bool { return n == namespace })
	}
}

// bucket bounds a rate.
type bucket struct {
	tokens float64
	at     time.Time
}

// take takes a token. Tokens accrue at rate per second, up to burst. If there is none, take
// returns how long to wait.
func (b *bucket) take(rate float64, now time.Time) time.Duration {
	burst := max(rate, 1)
	if b.at.IsZero() {
		b.tokens = burst
	} else {
		b.tokens = min(burst, b.tokens+now.Sub(b.at).Seconds()*rate)
	}
	b.at = now
	if b.tokens < 1 {
		return time.Duration((1 - b.tokens) / rate * float64(time.Second))
	}
	b.tokens--
	return 0
}

// amounts returns the memory and cpus of a demand for people, those that are not 0.
func amounts(d demand) string {
	var all []string
	if d.memory > 0 {
		all = append(all, notation.FormatSize(d.memory)+" of memory")
	}
	if d.cpus > 0 {
		all = append(all, strconv.FormatFloat(d.cpus, 'g', 4, 64)+" cpus")
	}
	return strings.Join(all, " and ")
}
