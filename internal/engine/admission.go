package engine

import (
	"context"
	"slices"
	"strconv"
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

// enter takes capacity for a sandbox, and waits for it if necessary. The error matches
// sandpit.ErrExhausted if none became free in time, and sandpit.ErrQuota if the server is too
// small for it.
func (a *admission) enter(ctx context.Context, namespace string, d demand) error {
	wait, maxWaiting := a.capacity.Wait, a.capacity.Waiting
	if wait <= 0 {
		wait = defaultWait
	}
	if maxWaiting <= 0 {
		maxWaiting = defaultWaiting
	}
	a.mu.Lock()
	if a.takeNow(namespace, d) {
		a.mu.Unlock()
		return nil
	}
	c := a.capacity
	if c.Memory > 0 && d.memory > c.Memory || c.CPUs > 0 && d.cpus > c.CPUs+cpuTolerance {
		a.mu.Unlock()
		return sandpit.WithHint(fault.Errorf(sandpit.ErrQuota, "creating a sandbox: it needs %s, and this server has %s in total", amounts(d.memory, d.cpus), amounts(c.Memory, c.CPUs)), "request less memory or fewer cpus")
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
// settle is called: both limits may be in force meanwhile. It fails if the sandbox has left,
// or what it needs in addition is not free, or creates of its namespace wait for it. It does
// not wait.
func (a *admission) hold(namespace string, d *demand, memory int64, cpus float64) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	more := demand{memory: max(memory-d.memory, 0), cpus: max(cpus-d.cpus, 0)}
	if d.sandboxes == 0 || more != (demand{}) && (len(a.queues[namespace]) > 0 || !a.fits(more)) {
		return false
	}
	a.take(more, 1)
	d.memory, d.cpus = d.memory+more.memory, d.cpus+more.cpus
	return true
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

// most returns for people what a sandbox can have at present, with what it has.
func (a *admission) most(d *demand) string {
	a.mu.Lock()
	defer a.mu.Unlock()
	var memory int64
	var cpus float64
	if c := a.capacity.Memory; c > 0 {
		memory = d.memory + max(0, c-a.used.memory)
	}
	if c := a.capacity.CPUs; c > 0 {
		cpus = d.cpus + max(0, c-a.used.cpus)
	}
	return amounts(memory, cpus)
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

// amounts returns memory and cpus for people; 0 is no limit.
func amounts(memory int64, cpus float64) string {
	size, count := "unlimited memory", "unlimited cpus"
	if memory > 0 {
		size = notation.FormatSize(memory) + " of memory"
	}
	if cpus > 0 {
		count = strconv.FormatFloat(cpus, 'g', 4, 64) + " cpus"
	}
	return size + " and " + count
}
