package engine

import (
	"cmp"
	"context"
	"errors"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/driver"
	"github.com/sandpit-dev/sandpit/internal/feature"
	"github.com/sandpit-dev/sandpit/internal/guest/client"
	"github.com/sandpit-dev/sandpit/internal/image"
	"github.com/sandpit-dev/sandpit/internal/policy"
)

// Pool configures the warm pool, of blanks and held sandboxes. Blanks are sandboxes that are complete except for what
// depends on their Spec, so that Create only has to bind one. They are not listed and
// take no capacity from sandboxes: they use only capacity that sandboxes leave free, and give way
// when it is needed. Drivers that do not implement driver.Preparer have no pool.
type Pool struct {
	// Size is the number of blanks while sandboxes are being created. 0: none.
	Size int

	// Floor is the number of blanks after Idle without a Create, at most Size. 0 means
	// one, a negative value none.
	Floor int

	// Idle is the time that the pool keeps its size without a Create; default 5 min.
	Idle time.Duration

	// MaxAge is the age at which a blank is replaced; default 10 min.
	MaxAge time.Duration

	// Held are sandboxes that are held ready in full, each with an interpreter.
	Held []Held
}

const (
	defaultPoolIdle = 5 * time.Minute
	defaultMaxAge   = 10 * time.Minute

	// blankMemory is the memory that a blank counts for, in bytes: more than a waiting
	// guest takes, with its kernel memory.
	blankMemory = sandpit.MinMemory

	// blankPatience is the time in which a blank must be made.
	blankPatience = time.Minute

	// After a failure, the next blank is tried after these pauses, which double.
	firstPoolPause = 100 * time.Millisecond
	lastPoolPause  = time.Minute

	// quietPatience is the time that a missing blank waits for a moment without creates,
	// which have priority.
	quietPatience = 250 * time.Millisecond

	// settle is how long after the last sandbox was made blanks are made in its
	// place, while half of them are left: its first command comes first. It is
	// a few times what a short one takes.
	settle = 20 * time.Millisecond
)

// PoolStats are counters of the warm pool.
type PoolStats struct {
	Ready   int   // that wait
	Claimed int64 // that became sandboxes
	Missed  int64 // sandboxes made without a blank although there is a pool

	Held        int   // sandboxes that are held in full
	HeldClaimed int64 // that were handed out
	HeldMissed  int64 // sandboxes of an image of which some are held, which got none
}

// blank is a blank of the driver, with a connection to its guest that has been greeted, if the
// driver can do that ahead.
type blank struct {
	driver.Blank
	engine *Engine
	guest  *client.Client
	made   time.Time
	linked bool // it may have an interface, as no new one has
}

// destroy destroys the blank, and returns when it is gone or stuck.
func (b *blank) destroy() {
	if b.guest != nil {
		b.guest.Close()
	}
	_ = b.engine.work("removing blank "+b.ID(), nil, b.engine.opts.Patience.Remove, func(ctx context.Context) error {
		return b.Destroy(ctx) // else the driver's Sweep does
	}).wait(context.Background())
}

// pool keeps blanks ready. The zero value never has any.
type pool struct {
	reserve[*blank]
	engine  *Engine
	prepare func(ctx context.Context) (*blank, error) // nil: there are none
	room    func() (bytes int64, bounded bool)        // that is promised to nobody

	// Guarded by mu.
	conf    Pool
	lastUse time.Time
	busy    int // sandboxes that are being made
}

func newPool(e *Engine, conf Pool) *pool {
	p := &pool{reserve: newReserve[*blank](), engine: e, conf: conf, room: e.gate.left}
	if preparer, ok := e.opts.Driver.(driver.Preparer); ok {
		p.prepare = func(ctx context.Context) (*blank, error) { return e.prepareBlank(ctx, preparer) }
	}
	return p
}

// Warm starts to fill the pool, as Adopt and Create also do.
func (e *Engine) Warm() {
	e.pool.begin()
	e.shelf.begin()
}

// SetPool changes the configuration of the warm pool.
func (e *Engine) SetPool(conf Pool) {
	p := e.pool
	p.mu.Lock()
	p.conf = conf
	p.mu.Unlock()
	p.begin()
	p.poke()
	e.shelf.set(conf.Held)
}

// PoolStats returns the counters of the warm pool.
func (e *Engine) PoolStats() PoolStats {
	e.pool.mu.Lock()
	st := PoolStats{Ready: len(e.pool.ready), Claimed: e.pool.claimed, Missed: e.pool.missed}
	e.pool.mu.Unlock()
	e.shelf.mu.Lock()
	defer e.shelf.mu.Unlock()
	st.Held, st.HeldClaimed, st.HeldMissed = len(e.shelf.ready), e.shelf.claimed, e.shelf.missed
	return st
}

// begin starts the keeper, if there is something to keep.
func (p *pool) begin() {
	p.mu.Lock()
	none := p.prepare == nil || p.conf.Size <= 0 || p.closed
	p.mu.Unlock()
	if !none {
		p.start.Do(func() {
			p.mu.Lock()
			p.lastUse = time.Now()
			p.mu.Unlock()
			go p.keep()
		})
	}
}

// enter notes that a sandbox is being made, until leave.
func (p *pool) enter() {
	p.begin()
	p.mu.Lock()
	p.busy++
	p.lastUse = time.Now()
	p.mu.Unlock()
}

func (p *pool) leave() {
	p.mu.Lock()
	p.busy--
	p.lastUse = time.Now()
	p.mu.Unlock()
	p.poke()
}

// claim returns a blank that fits a plan, or nil. The caller uses it or gives it back.
func (p *pool) claim(plan driver.Plan) *blank {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.prepare == nil || p.conf.Size <= 0 {
		return nil
	}
	now := time.Now()
	b, _ := p.take(func(b *blank) bool { return now.Sub(b.made) < p.maxAge() && b.Fits(plan) })
	return b
}

// giveBack returns a claimed, unused blank, or destroys it if it is not as it was.
func (p *pool) giveBack(b *blank) {
	if b.linked {
		b.destroy()
		return
	}
	p.reserve.giveBack(b)
}

func (p *pool) maxAge() time.Duration { return cmp.Or(max(p.conf.MaxAge, 0), defaultMaxAge) }

// target returns the wanted number of blanks. Precondition: p.mu is held.
func (p *pool) target(now time.Time) int {
	size, floor := max(p.conf.Size, 0), max(cmp.Or(p.conf.Floor, 1), 0)
	if now.Sub(p.lastUse) >= cmp.Or(max(p.conf.Idle, 0), defaultPoolIdle) {
		size = min(size, floor)
	}
	if left, bounded := p.room(); bounded {
		size = min(size, int(max(left, 0)/blankMemory))
	}
	return size
}

// keep is the keeper: it replaces missing, old and unusable blanks, and destroys surplus
// ones.
func (p *pool) keep() {
	defer close(p.done)
	var pause time.Duration // after a failure
	var missing time.Time   // since when a blank is missing
	for p.ctx.Err() == nil {
		now := time.Now()
		want, next := p.evict(now)
		switch {
		case want == 0:
			missing = time.Time{}
		case missing.IsZero():
			missing = now
			fallthrough
		default:
			if pause := p.courtesy(now); pause > 0 && now.Sub(missing) < quietPatience {
				next = min(pause, quietPatience-now.Sub(missing))
				break
			}
			err := p.fill(min(want, poolWorkers()))
			if err == nil {
				pause, missing = 0, time.Now()
				continue
			}
			if errors.Is(err, sandpit.ErrUnsupported) {
				pause = lastPoolPause
			}
			pause = min(max(2*pause, firstPoolPause), lastPoolPause)
			p.rest(pause)
			continue
		}
		p.await(next)
	}
}

// poolWorkers is the number of blanks that are made concurrently: half of the CPUs.
func poolWorkers() int { return max(1, runtime.GOMAXPROCS(0)/2) }

// courtesy returns how long to delay blanks for creates in progress, or that have just
// ended. 0: no delay.
func (p *pool) courtesy(now time.Time) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.busy > 0:
		return quietPatience
	case 2*len(p.ready) >= p.target(now):
		return max(0, settle-now.Sub(p.lastUse))
	}
	return 0
}

// quiet reports whether no sandbox is being made, or was just made.
func (p *pool) quiet() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.busy == 0 && time.Since(p.lastUse) >= settle
}

// evict destroys surplus blanks. It returns the number of missing ones, and when to check
// again.
func (p *pool) evict(now time.Time) (missing int, next time.Duration) {
	p.mu.Lock()
	target := p.target(now)
	var out []*blank
	p.ready = slices.DeleteFunc(p.ready, func(b *blank) bool {
		drop := now.Sub(b.made) >= p.maxAge() || !b.Usable()
		if drop {
			out = append(out, b)
		}
		return drop
	})
	if n := len(p.ready) - target; n > 0 {
		out = append(out, p.ready[:n]...)
		p.ready = slices.Delete(p.ready, 0, n)
	}
	missing, next = target-len(p.ready), poolLook
	if len(p.ready) > 0 {
		next = min(next, p.maxAge()-now.Sub(p.ready[0].made))
	}
	p.mu.Unlock()
	for _, b := range out {
		b.destroy()
	}
	return missing, next
}

// poolLook is the interval at which the idle pool is checked.
const poolLook = 10 * time.Second

// fill makes n blanks concurrently.
func (p *pool) fill(n int) error {
	errs := make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			if errs[i] = p.engine.mayTry(blankSpace); errs[i] != nil {
				return
			}
			ctx, cancel := context.WithCancelCause(p.ctx)
			t := &task{what: "creating a blank", namespace: blankSpace, cancel: cancel}
			errs[i] = p.engine.start(ctx, t, min(blankPatience, p.engine.opts.Patience.Create), func(ctx context.Context) error {
				b, err := p.prepare(ctx)
				if err == nil {
					p.add(b)
				}
				return err
			}).wait(context.Background())
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// sweepAgain is the time after which to sweep the remains of a killed engine once more: the
// guests of its blanks may have been about to end.
const sweepAgain = 10 * time.Second

// sweepDriver makes the driver remove what a killed engine has left.
func (e *Engine) sweepDriver(ctx context.Context) {
	sw, ok := e.opts.Driver.(driver.Sweeper)
	if !ok {
		return
	}
	sweep := func() *task {
		return e.work("removing the remains", nil, e.opts.Patience.Remove, func(ctx context.Context) error {
			sw.Sweep(ctx)
			return nil
		})
	}
	_ = sweep().wait(ctx)
	time.AfterFunc(sweepAgain, func() { sweep() })
}

// prepareBlank makes a blank for ordinary sandboxes.
func (e *Engine) prepareBlank(ctx context.Context, preparer driver.Preparer) (*blank, error) {
	limits, err := policy.Resolve(sandpit.Spec{}, e.opts.Policy)
	if err != nil {
		return nil, err
	}
	enforce, _, err := e.opts.Driver.Probe(ctx).Negotiate(nil, &limits)
	if err != nil {
		return nil, err
	}
	if enforce[feature.Memory] {
		limits.Disk = min(limits.Disk, fittingDisk(limits.Memory))
	}
	made, err := preparer.Prepare(ctx, NewID(), driver.BlankPlan{
		Ephemeral: e.opts.Store == nil, UID: image.UserID, GID: image.UserID, Limits: limits, Enforce: enforce,
	})
	if err != nil {
		return nil, err
	}
	b := &blank{engine: e, Blank: made, made: time.Now()}
	conn, err := b.Dial(ctx)
	if errors.Is(err, sandpit.ErrUnsupported) {
		return b, nil
	}
	if err == nil {
		b.guest, err = client.New(ctx, conn, client.Options{})
	}
	if err != nil {
		b.destroy()
		return nil, err
	}
	return b, nil
}

// takeIdentity gives a new sandbox the identity of a blank, or of a held sandbox.
func (s *Sandbox) takeIdentity(id string, spec sandpit.Spec, plan *driver.Plan) {
	s.id = id
	s.info.ID, plan.ID = s.id, s.id
	if spec.Name == "" {
		s.setName(s.id)
		s.info.Name, plan.Name = s.id, s.id
		if spec.Hostname == "" {
			plan.Hostname = hostnameFor(s.id)
			copy(plan.Root.Files, rootFiles(plan.Hostname)) // with which it begins
		}
	}
}

// returnBlank returns an unused blank, or held sandbox, to its pool.
func (s *Sandbox) returnBlank() {
	if s.held != nil {
		s.engine.shelf.giveBack(s.held)
		s.held = nil
	}
	if s.blank != nil {
		s.engine.pool.giveBack(s.blank)
		s.blank = nil
	}
}

// bind makes the sandbox from the blank whose identity it has, and returns the connection to its
// guest, or nil if there is none yet. If that fails and the sandbox must be made without it, it has no
// instance.
func (s *Sandbox) bind(ctx context.Context, plan driver.Plan, trace func(string)) (*client.Client, error) {
	b := s.blank
	s.blank = nil
	inst, err := b.Bind(ctx, plan)
	if err == nil {
		s.instance = inst
		trace("bind")
		return b.guest, nil
	}
	if b.guest != nil {
		b.guest.Close()
	}
	// What is wrong with the plan would be so again; what was wrong with
	// the blank is not.
	if ctx.Err() != nil || errors.Is(err, sandpit.ErrInvalid) || errors.Is(err, sandpit.ErrUnsupported) {
		return nil, err
	}
	return nil, nil //nolint:nilnil // as documented
}
