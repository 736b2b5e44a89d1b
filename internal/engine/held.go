package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/driver"
	"github.com/sandpit-dev/sandpit/internal/fault"
	"github.com/sandpit-dev/sandpit/internal/feature"
	"github.com/sandpit-dev/sandpit/internal/guest/client"
	"github.com/sandpit-dev/sandpit/internal/image"
	"github.com/sandpit-dev/sandpit/internal/interpreter"
	"github.com/sandpit-dev/sandpit/internal/policy"
)

// Held configures sandboxes that are held ready, complete and with warm interpreters. A Create gets
// one if it would make the very same: all that its Spec asks for beyond the image can be changed afterwards,
// or is what the policy gives anyway.
type Held struct {
	Image      string        // as Spec.Image; it must be in the store
	Policy     policy.Policy // of the creates that they are for
	RootInside bool          // as Spec.RootInside
	Language   string        // of the interpreter
	Modules    []string      // that the interpreter has imported
	Size       int           // how many are held
	MaxAge     time.Duration // at which one is replaced, because files of the image "host" may change; default 1 h
}

// key identifies what is held, apart from the policy, whose effect is compared by plans.
func (c *Held) key() string {
	return strings.Join(append([]string{c.Image, c.Policy.Name, strconv.FormatBool(c.RootInside), c.Language}, c.Modules...), "\x00")
}

const (
	defaultHeldMaxAge = time.Hour

	// heldLook is the interval at which the held sandboxes are compared with what the policies
	// and images are by then.
	heldLook = 15 * time.Second

	// heldPatience is the time that a missing one waits for a moment without creates.
	heldPatience = time.Second

	// heldRest is the pause after making a held sandbox under constant creates, in multiples of the time that making it took. Without
	// creates the pause is that time once.
	heldRest = 3

	// heldMemory is the memory that a held sandbox counts for until it is measured, in bytes.
	heldMemory = 64 << 20
)

// held is a sandbox of the warm pool that no caller has yet.
type held struct {
	engine       *Engine
	key          string
	id           string
	plan         driver.Plan   // as asHeld returns it
	config       client.Config // the same
	lease        *image.Lease
	instance     driver.Instance
	guest        *client.Client
	processes    []*client.Process    // the interpreters, by the streams that have started them
	interpreters []client.ProcessInfo // the same
	memory       int64                // bytes that it uses
	until        time.Time            // when it is too old
}

// usable reports whether the guest and the interpreters live, and are not too old.
func (h *held) usable() bool {
	if time.Now().After(h.until) {
		return false
	}
	select {
	case <-h.instance.Done():
		return false
	case <-h.guest.Done():
		return false
	default:
	}
	over, cancel := context.WithCancel(context.Background())
	cancel()
	return !slices.ContainsFunc(h.processes, func(p *client.Process) bool {
		_, err := p.Wait(over)
		return !errors.Is(err, context.Canceled)
	})
}

// destroy removes it, and returns when it is gone or stuck.
func (h *held) destroy() {
	if h.guest != nil {
		h.guest.Close()
	}
	if h.instance != nil {
		_ = h.engine.work("removing held sandbox "+h.id, nil, h.engine.opts.Patience.Remove, h.instance.Destroy).wait(context.Background())
	}
	h.lease.Release()
}

// fits reports whether it is what a plan and a configuration make, apart from its identity.
func (h *held) fits(plan driver.Plan, config client.Config) bool {
	plan, config = asHeld(plan, config, h.id)
	return reflect.DeepEqual(plan, h.plan) && reflect.DeepEqual(config, h.config)
}

// asHeld returns the plan and configuration of the held sandbox with an ID: with its identity, and without its lifetime and
// network interface, which are decided when it is handed out.
func asHeld(plan driver.Plan, config client.Config, id string) (driver.Plan, client.Config) {
	plan.ID, plan.Name, plan.Hostname = id, id, hostnameFor(id)
	plan.Root.Files = slices.Clone(plan.Root.Files)
	copy(plan.Root.Files, rootFiles(plan.Hostname))
	plan.Limits.Life = 0
	plan.Enforce = maps.Clone(plan.Enforce)
	delete(plan.Enforce, feature.Egress)
	delete(plan.Enforce, feature.Ping)
	plan.Link, plan.Trace, plan.KeepLater = nil, nil, !plan.Ephemeral
	return plan, config
}

// shelf keeps held sandboxes ready.
type shelf struct {
	reserve[*held]
	engine *Engine

	conf []Held // guarded by mu
}

func newShelf(e *Engine, conf []Held) *shelf {
	return &shelf{reserve: newReserve[*held](), engine: e, conf: conf}
}

// begin starts the keeper, if there is something to keep.
func (h *shelf) begin() {
	h.mu.Lock()
	none := len(h.conf) == 0 || h.closed
	h.mu.Unlock()
	if !none {
		h.start.Do(func() { go h.keep() })
	}
}

// set changes what is held.
func (h *shelf) set(conf []Held) {
	h.mu.Lock()
	h.conf = conf
	h.mu.Unlock()
	h.begin()
	h.poke()
}

// claim returns a held sandbox that is what a plan and a configuration make, or nil. The caller uses it
// or gives it back.
func (h *shelf) claim(image string, plan driver.Plan, config client.Config) *held {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !slices.ContainsFunc(h.conf, func(c Held) bool { return c.Image == image }) {
		return nil
	}
	k, ok := h.take(func(k *held) bool {
		if !k.usable() {
			h.poke()
			return false
		}
		return k.fits(plan, config)
	})
	if !ok {
		return nil
	}
	h.poke()
	return k
}

// keep is the keeper: it replaces missing, old and unusable ones, and those that no create would make
// any more.
func (h *shelf) keep() {
	defer close(h.done)
	var pause time.Duration // after a failure
	for h.ctx.Err() == nil {
		quiet := h.quiet()
		missing := h.evict()
		if missing == nil {
			h.await(heldLook)
			continue
		}
		began := time.Now()
		err := h.fill(*missing)
		switch {
		case err != nil && h.ctx.Err() == nil:
			if pause == 0 || pause == lastPoolPause { // the first time, and then each minute
				h.engine.opts.NotHeld(*missing, err)
			}
			pause = min(max(2*pause, firstPoolPause), lastPoolPause)
			h.await(pause)
		case !quiet:
			pause = 0
			h.rest(heldRest * time.Since(began))
		default:
			pause = 0
			h.rest(time.Since(began))
		}
	}
}

// quiet waits a while for a moment without creates, and reports whether there was one.
func (h *shelf) quiet() bool {
	for end := time.Now().Add(heldPatience); time.Now().Before(end) && h.ctx.Err() == nil; h.rest(settle) {
		if h.engine.pool.quiet() {
			return true
		}
	}
	return false
}

// evict destroys surplus held sandboxes. It returns a configuration that lacks one, or nil.
func (h *shelf) evict() *Held {
	h.mu.Lock()
	conf, ready := slices.Clone(h.conf), slices.Clone(h.ready)
	h.mu.Unlock()
	wanted := map[string]int{}
	for i := range conf {
		c := &conf[i]
		of := func(k *held) bool { return k.key == c.key() }
		if !slices.ContainsFunc(ready, of) {
			wanted[c.key()] = c.Size
			continue
		}
		var now *held
		err := h.try(func(ctx context.Context, t *task) (err error) {
			if now, err = h.engine.wouldHold(ctx, t, *c); err == nil {
				now.lease.Release()
			}
			return err
		})
		if err == nil {
			wanted[c.key()] = c.Size
			ready = slices.DeleteFunc(ready, func(k *held) bool { return of(k) && !k.fits(now.plan, now.config) })
		}
	}
	left, bounded := h.engine.gate.left()
	var missing *Held
	kept := map[*held]bool{}
	for i := len(ready) - 1; i >= 0; i-- { // the youngest stay
		k := ready[i]
		if wanted[k.key] > 0 && k.usable() && (!bounded || k.memory <= left) {
			wanted[k.key]--
			left -= k.memory
			kept[k] = true
		}
	}
	for i := range conf {
		if missing == nil && wanted[conf[i].key()] > 0 && (!bounded || left >= 2*heldMemory) {
			missing = &conf[i]
		}
	}
	h.mu.Lock()
	var out []*held
	h.ready = slices.DeleteFunc(h.ready, func(k *held) bool {
		drop := !kept[k]
		if drop {
			out = append(out, k)
		}
		return drop
	})
	h.mu.Unlock()
	for _, k := range out {
		k.destroy()
	}
	return missing
}

// fill makes one.
func (h *shelf) fill(c Held) error {
	return h.try(func(ctx context.Context, t *task) error {
		k, err := h.engine.hold(ctx, t, c)
		if err == nil {
			h.add(k)
		}
		return err
	})
}

// try does something that may hang.
func (h *shelf) try(f func(ctx context.Context, t *task) error) error {
	if err := h.engine.mayTry(blankSpace); err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(h.ctx)
	t := &task{what: "holding a sandbox", namespace: blankSpace, cancel: cancel}
	return h.engine.start(ctx, t, h.engine.opts.Patience.Create, func(ctx context.Context) error { return f(ctx, t) }).wait(context.Background())
}

// wouldHold returns a sandbox that c stands for before it is made. The caller releases its lease.
func (e *Engine) wouldHold(ctx context.Context, t *task, c Held) (*held, error) {
	giveBack, err := e.try(ctx, t, blankSpace)
	if err != nil {
		return nil, err
	}
	defer giveBack()
	tenant := e.As(blankSpace, c.Policy)
	r, err := e.resolve(ctx, t, tenant, sandpit.Spec{Image: c.Image, RootInside: c.RootInside, Pull: sandpit.PullNever}, false)
	if err != nil {
		return nil, err
	}
	s := e.newSandbox(NewID(), blankSpace)
	defer s.repay()
	if s.lease, err = e.leaseFor(ctx, t, tenant, r.spec, giveBack); err != nil {
		return nil, err
	}
	s.setName(s.id)
	_, plan, config, err := s.prepare(tenant, r, s.lease)
	if err != nil {
		s.lease.Release()
		return nil, err
	}
	k := &held{engine: e, key: c.key(), id: s.id, lease: s.lease, memory: heldMemory}
	k.plan, k.config = asHeld(plan, config, s.id)
	return k, nil
}

// hold makes a sandbox with warm interpreters.
func (e *Engine) hold(ctx context.Context, t *task, c Held) (*held, error) {
	k, err := e.wouldHold(ctx, t, c)
	if err != nil {
		return nil, err
	}
	if err := k.make(ctx, t, c); err != nil {
		k.destroy()
		return nil, err
	}
	return k, nil
}

func (k *held) make(ctx context.Context, t *task, c Held) (err error) {
	t.enter("creating")
	if k.instance, err = k.engine.opts.Driver.Create(ctx, k.plan); err != nil {
		return err
	}
	if _, ok := k.instance.(driver.Keeper); !ok && k.plan.KeepLater {
		return fault.Errorf(sandpit.ErrUnsupported, "holding a sandbox: the driver can't make it outlive this program later")
	}
	t.enter("greeting the guest")
	conn, err := k.instance.Dial(ctx)
	if err != nil {
		return err
	}
	if k.guest, err = client.New(ctx, conn, client.Options{Config: &k.config}); err != nil {
		return err
	}
	t.enter("starting the interpreter")
	made, err := interpreter.Warm(ctx, starter{ctx, k.guest}, c.Language, c.Modules)
	if err != nil {
		return err
	}
	all, err := k.guest.Processes(ctx)
	if err != nil {
		return err
	}
	for _, p := range made {
		p := p.(*client.Process) // as starter returns it
		i := slices.IndexFunc(all, func(is client.ProcessInfo) bool { return is.Ref == p.Ref() && !is.Exited })
		if i < 0 {
			return fault.Errorf(sandpit.ErrUnavailable, "holding a sandbox: an interpreter of it has ended")
		}
		k.processes, k.interpreters = append(k.processes, p), append(k.interpreters, all[i])
	}
	if m, err := k.instance.Stats(ctx); err == nil && m.Memory > 0 {
		k.memory = m.Memory
	}
	k.until = time.Now().Add(cmp.Or(max(c.MaxAge, 0), defaultHeldMaxAge))
	return nil
}

// starter starts interpreters in a sandbox that nobody has.
type starter struct {
	ctx   context.Context
	guest *client.Client
}

// Start starts a process in the background.
func (s starter) Start(ctx context.Context, cmd sandpit.Command, o interpreter.Origin) (sandpit.Process, error) {
	p, err := s.guest.StartDetached(ctx, cmd, client.Detach{Keep: guestKeeps, Hold: true, Zygote: o == interpreter.Zygote, Fork: o == interpreter.Fork})
	if err != nil {
		return nil, err
	}
	return p, nil
}

// Follow passes the output on, from the start.
func (s starter) Follow(id string, stdout, stderr io.Writer) (done <-chan struct{}, leave func(), err error) {
	ref, err := strconv.ParseUint(id, 10, 64)
	if err != nil {
		return nil, nil, err
	}
	p, err := s.guest.Attach(s.ctx, ref, 0, client.AttachOptions{AttachOptions: sandpit.AttachOptions{Stdout: stdout, Stderr: stderr}, Hold: true})
	if err != nil {
		return nil, nil, err
	}
	over := make(chan struct{})
	go func() {
		defer close(over)
		_, _ = p.Wait(context.Background())
	}()
	return over, p.Detach, nil
}

// takeHeld makes the sandbox the one that was held. It returns the connection to its guest, or nil if that
// failed and the sandbox must be made without it.
func (s *Sandbox) takeHeld(ctx context.Context, trace func(string)) (*client.Client, error) {
	k := s.held
	s.held = nil
	defer k.lease.Release() // the sandbox has its own
	for _, p := range k.processes {
		p.Detach()
	}
	var err error
	if s.persistent {
		s.making.enter("keeping")
		err = k.instance.(driver.Keeper).Keep(ctx) // as hold has checked
	}
	if err == nil {
		s.instance, s.interpreters = k.instance, k.interpreters
		trace("held")
		return k.guest, nil
	}
	k.guest.Close()
	if left := k.instance.Destroy(ctx); left != nil || ctx.Err() != nil {
		s.instance = k.instance // to be removed
		return nil, fmt.Errorf("creating a sandbox: %w", errors.Join(err, left))
	}
	return nil, nil //nolint:nilnil // as documented
}
