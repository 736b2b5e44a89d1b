package engine

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/driver"
	"github.com/sandpit-dev/sandpit/internal/fault"
	"github.com/sandpit-dev/sandpit/internal/feature"
	"github.com/sandpit-dev/sandpit/internal/guest/client"
	"github.com/sandpit-dev/sandpit/internal/guest/spawn"
	"github.com/sandpit-dev/sandpit/internal/image"
	"github.com/sandpit-dev/sandpit/internal/logstore"
	"github.com/sandpit-dev/sandpit/internal/notation"
	"github.com/sandpit-dev/sandpit/internal/policy"
)

// oomScoreAdj is the score of processes above that of the guest, so that a sandbox out of
// memory loses a process before its guest. 1000 would make the kernel choose any process of
// a sandbox before all of the host's, which is right for a machine under pressure, but it
// is the maximum.
const oomScoreAdj = 500

// create makes a sandbox for a tenant. It is canceled when ctx ends or when it takes too
// long. If the cancellation takes too long, too, it is stuck, and goes on alone.
func (e *Engine) create(ctx context.Context, t *Tenant, spec sandpit.Spec, dialects map[string]json.RawMessage) (*Sandbox, error) {
	if t.locked != nil {
		return nil, fault.Errorf(sandpit.ErrForbidden, "creating a sandbox: %w", t.locked)
	}
	if t.nested != "" && !notation.IsName(t.nested) {
		return nil, sandpit.WithHint(fault.Errorf(sandpit.ErrInvalid, "creating a sandbox: %.80q is not the name of a namespace", t.nested), notation.NameHint)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	making := &task{what: "creating", about: "a sandbox", namespace: t.namespace, cancel: cancel}
	if spec.Name != "" {
		making.about = "sandbox " + spec.Name
	}
	var s *Sandbox
	e.start(ctx, making, e.opts.Patience.Create, func(ctx context.Context) (err error) {
		s, err = e.build(ctx, making, t, spec, dialects)
		return err
	})
	if err := making.wait(context.Background()); err != nil {
		return nil, explainShortage(err)
	}
	return s, nil
}

// explainShortage adds a hint to errors for a lack of memory, processes or files, unless they have one.
func explainShortage(err error) error {
	if !shortage(err) || sandpit.Hint(err) != "" {
		return err
	}
	hint := "free memory, or raise the limit of processes (pids) of the server"
	switch {
	case errors.Is(err, syscall.EMFILE):
		hint = "raise the limit of open files (ulimit -n, or LimitNOFILE of the service), or remove sandboxes"
	case errors.Is(err, syscall.ENFILE):
		hint = "raise fs.file-max"
	}
	return sandpit.WithHint(fault.Errorf(sandpit.ErrExhausted, "creating a sandbox: %w", err), hint)
}

// build does the work of create.
func (e *Engine) build(ctx context.Context, making *task, t *Tenant, spec sandpit.Spec, dialects map[string]json.RawMessage) (*Sandbox, error) {
	mark := time.Now()
	trace := func(step string) {
		if e.opts.Trace != nil {
			now := time.Now()
			e.opts.Trace(step, now.Sub(mark))
			mark = now
		}
	}

	giveBack, err := e.try(ctx, making, t.namespace)
	if err != nil {
		return nil, err
	}
	defer giveBack()
	r, err := e.resolve(ctx, making, t, spec, true)
	if err != nil {
		return nil, err
	}
	trace("policy")

	lease, err := e.leaseFor(ctx, making, t, r.spec, giveBack)
	if err != nil {
		return nil, err
	}
	giveBack()
	making.limit(0) // there may be no room for long
	trace("image")

	s := e.newSandbox(NewID(), t.namespace)
	s.nested = t.nested
	entered := false
	defer func() {
		if !entered { // destroy has not been called
			s.repay()
		}
	}()
	s.lease, s.labels, s.dialects = lease, maps.Clone(r.spec.Labels), dialects
	s.setName(cmp.Or(r.spec.Name, s.id))
	s.idle, s.onExpiry = max(r.spec.Idle, 0), r.spec.OnExpiry
	p, plan, config, err := s.prepare(t, r, lease)
	if err != nil {
		lease.Release()
		return nil, err
	}
	s.prepared, s.demand = p, demandOf(plan.Limits)
	trace("plan")

	s.making, s.cancel = making, making.cancel
	if r.spec.NoStart {
		return s, s.shelve(ctx, making, t, r.spec, &entered)
	}
	if err := e.letIn(ctx, s, t, r.spec, &plan, config); err != nil {
		return nil, err
	}
	entered = true
	making.limit(e.opts.Patience.Create)
	if giveBack, err = e.try(ctx, making, t.namespace); err == nil {
		defer giveBack()
		e.pool.enter()
		defer e.pool.leave()
		err = s.make(ctx, plan, config, trace)
	}
	if err == nil {
		err = s.begin(ctx)
	}
	err = explainCancel(ctx, s.Name(), err)
	s.returnBlank()
	close(s.made)
	if err == nil && !making.settle() {
		err = making.stuckError() // which was the answer
	}
	if err != nil {
		s.callOff()
		_ = s.takeDown(context.WithoutCancel(ctx), "not created: "+err.Error())
		return nil, err
	}
	return s, nil
}

// resolved is a Spec as a policy allows it and the driver can enforce it.
type resolved struct {
	spec    sandpit.Spec // completed
	limits  sandpit.Limits
	enforce feature.Set
	caps    driver.Capabilities
	gaps    []sandpit.Gap
	egress  granted
	made    madeOf
}

// resolve resolves a Spec, which is that of another sandbox if new.
func (e *Engine) resolve(ctx context.Context, making *task, t *Tenant, spec sandpit.Spec, new bool) (*resolved, error) {
	making.enter("policy") // which looks at the sources of mounts
	r := &resolved{spec: t.policy.Complete(spec)}
	var err error
	if r.limits, err = policy.Resolve(r.spec, t.policy); err != nil {
		return nil, err
	}
	if err := notation.CheckRlimits(r.spec.Rlimits); err != nil {
		return nil, fmt.Errorf("creating a sandbox: %w", err)
	}
	if err := fileLimit(r.spec.Rlimits, r.limits.NoFile); err != nil {
		return nil, fmt.Errorf("creating a sandbox: %w", err)
	}
	if r.spec.NoStart && len(r.spec.Secrets) > 0 {
		return nil, sandpit.WithHint(fault.Errorf(sandpit.ErrUnsupported, "creating a sandbox without starting it: it can't have secrets"), "start it, and stop it if it is not needed yet")
	}
	making.enter("secrets")
	if r.made, err = e.useSecrets(ctx, t.namespace, t.policy, &r.spec); err != nil {
		return nil, err
	}
	if r.egress, err = e.allowEgress(asking(r.spec.Egress), nil, len(r.made.placeholders) > 0, r.made.hosts(), t.policy); err != nil {
		return nil, err
	}
	if new {
		if err := e.mayCreate(t); err != nil {
			return nil, err
		}
	}
	making.enter("probe")
	r.caps = e.opts.Driver.Probe(ctx)
	r.egress = r.egress.learnt(r.spec.Egress.Allow, r.caps)
	r.spec.Egress = r.egress.Egress
	r.enforce, r.gaps, err = r.caps.Negotiate(feature.Required(r.spec), &r.limits) // also what only the policy asks for
	return r, err
}

// leaseFor leases the image of a Spec.
func (e *Engine) leaseFor(ctx context.Context, making *task, t *Tenant, spec sandpit.Spec, giveBack func()) (*image.Lease, error) {
	acquire := e.opts.Acquire
	acquire.Pull, acquire.PublicOnly, acquire.Owner = spec.Pull, !t.policy.Vouches(spec.Image), t.namespace
	var lease *image.Lease
	err := making.onImage(ctx, acquire, giveBack, func(acquire image.AcquireOptions) (err error) {
		lease, err = e.opts.Images.Acquire(ctx, spec.Image, acquire)
		return err
	})
	if err == nil && ctx.Err() != nil {
		lease.Release()
		err = context.Cause(ctx)
	}
	return lease, err
}

// prepare decides what a sandbox with an image and a name is made of, and charges that to the sandbox.
func (s *Sandbox) prepare(t *Tenant, r *resolved, lease *image.Lease) (prepared, driver.Plan, client.Config, error) {
	root := lease.Rootfs()
	p := prepared{image: root.Config, rootInside: r.spec.RootInside, rlimits: r.spec.Rlimits, maxLife: t.policy.Max.Life, egress: r.egress, secretUses: r.made.secretUses}
	plan, config, err := s.plan(r, root)
	if err != nil {
		return p, plan, config, err
	}
	p.user = userName(config.User)
	if p.hasEgress(p.egress) {
		l := link()
		plan.Link = &l
	}
	trust, unread, err := s.intercept(&p, root, &plan)
	config.Env = slices.Concat(p.image.Env, trust, r.spec.Env, r.made.env)
	if err == nil && s.persistent {
		p.origin, p.secret, err = encodeMade(Made{Spec: r.spec, Policy: t.policy.Name, Guest: config, CA: p.ca, Own: p.own, Trusted: p.trusted})
	}
	if err == nil {
		s.mu.Lock()
		labels, kept := s.labels, 0 // bytes for dialects
		for _, data := range s.dialects {
			kept += len(data)
		}
		s.mu.Unlock()
		err = s.pay(costOf(labels, p.image, len(p.origin)+len(p.secret)+kept) + r.made.cost() + egressCost(p.egress))
	}
	if err != nil {
		return p, plan, config, fmt.Errorf("creating a sandbox: %w", err)
	}
	p.info = sandpit.Info{
		ID: s.id, Name: s.Name(), Namespace: s.nested, Image: imageName(root), Driver: s.engine.opts.Driver.Name(),
		Policy: t.policy.Name, Limits: plan.Limits, NotEnforced: slices.Concat(r.gaps, r.made.gap, unread),
	}
	return p, plan, config, nil
}

// demandOf returns the capacity that a sandbox with these limits takes.
func demandOf(l sandpit.Limits) demand { return demand{l.Memory, l.CPUs, 1} }

// letIn waits until there is capacity for a sandbox, and takes its name. A sandbox that can
// have a blank gets the blank's identity. One that must wait is listed meanwhile, and can
// be removed; it has its own identity, so it is made without a blank. On an error nothing
// is left, and its lease is released.
func (e *Engine) letIn(ctx context.Context, s *Sandbox, t *Tenant, spec sandpit.Spec, plan *driver.Plan, config client.Config) error {
	named := spec.Name != ""
	if e.gate.fitsNow(s.namespace, s.demand) {
		if !named && spec.Hostname == "" && len(spec.Rlimits) == 0 { // a held sandbox has a host name, and interpreters that run
			s.held = e.shelf.claim(s.lease.Rootfs().Reference, *plan, config)
		}
		if s.held != nil {
			s.takeIdentity(s.held.id, spec, plan)
		} else if s.blank = e.pool.claim(*plan); s.blank != nil {
			s.takeIdentity(s.blank.ID(), spec, plan)
		}
		s.making.concerns(s)
		err := e.admit(s, t, named)
		if err != nil {
			s.returnBlank()
			e.gate.leave(&s.demand)
			s.lease.Release()
		}
		return err
	}
	s.making.concerns(s)
	s.making.enter("waiting for capacity")
	s.reason = fmt.Sprintf("waiting for capacity (other waiting sandboxes: %d)", e.Waiting())
	if err := e.admit(s, t, named); err != nil {
		s.lease.Release()
		return err
	}
	err := e.gate.enter(ctx, s.namespace, s.demand, t.wait)
	if err == nil {
		s.mu.Lock()
		s.reason, s.admitted = "", time.Now()
		s.mu.Unlock()
		return nil
	}
	err = explainCancel(ctx, s.Name(), err)
	close(s.made)
	s.callOff()
	s.mu.Lock()
	s.removed = true
	s.mu.Unlock()
	e.forget(s)
	if s.nameLock != nil {
		s.nameLock()
	}
	s.lease.Release()
	return err
}

func (e *Engine) newSandbox(id, namespace string) *Sandbox {
	return &Sandbox{
		engine: e, id: id, namespace: namespace, persistent: e.opts.Store != nil, state: sandpit.StateCreating,
		memory: e.opts.Memory.Sandbox(namespace),
		change: make(chan struct{}, 1), gone: make(chan struct{}), made: make(chan struct{}),
	}
}

// admit takes the name of a new sandbox, here and on the machine.
func (e *Engine) admit(s *Sandbox, t *Tenant, named bool) error {
	if err := e.register(s, t); err != nil {
		return err
	}
	if named && !s.persistent {
		lock, err := lockName(e.opts.Images.Dir(), s.called(s.Name()).String())
		if err != nil {
			e.forget(s)
			if errors.Is(err, sandpit.ErrExists) {
				return fmt.Errorf("creating sandbox %q: %w", s.Name(), nameTaken())
			}
			return err
		}
		s.nameLock = lock
	}
	return nil
}

// outerFirst returns elements sorted by their targets: a mount comes before the mounts
// inside it, which it would hide.
func outerFirst[T any](all []T, target func(T) string) []T {
	return slices.SortedFunc(slices.Values(all), func(a, b T) int {
		return strings.Compare(path.Clean(target(a)), path.Clean(target(b)))
	})
}

// plan returns the driver's plan and the guest's configuration.
func (s *Sandbox) plan(r *resolved, root image.Rootfs) (driver.Plan, client.Config, error) {
	spec, limits, enforce, caps := r.spec, r.limits, r.enforce, r.caps
	who, err := chooseUser(spec.User, root)
	if err != nil {
		return driver.Plan{}, client.Config{}, err
	}
	if spec.Limits.Disk == 0 && enforce[feature.Memory] {
		limits.Disk = min(limits.Disk, fittingDisk(limits.Memory))
	}
	hostname := spec.Hostname
	if hostname == "" {
		hostname = hostnameFor(s.Name())
	}
	plan := driver.Plan{
		ID: s.id, Name: s.Name(), Hostname: hostname,
		Root:     driver.Root{Layers: root.Layers, Files: rootFiles(hostname)},
		Mounts:   outerFirst(spec.Mounts, func(m sandpit.Mount) string { return m.Target }),
		Tmpfs:    outerFirst(spec.Tmpfs, func(t sandpit.Tmpfs) string { return t.Target }),
		ReadOnly: spec.ReadOnly, Write: spec.Write,
		Limits: limits, Enforce: enforce,
		UID: who.uid, GID: who.gid, MultiUser: caps.Features[feature.Users] && (who.uid == 0 || spec.RootInside),
		Ephemeral: !s.persistent,
		Trace:     s.engine.opts.Trace,
	}
	for _, b := range root.Binds {
		plan.Root.Binds = append(plan.Root.Binds, driver.Bind(b))
	}
	for i := range plan.Tmpfs {
		if plan.Tmpfs[i].Size == 0 {
			plan.Tmpfs[i].Size = defaultTmpfs
		}
	}
	if spec.RootInside {
		plan.Root.Files = append(plan.Root.Files, s.engine.sudoFile()...)
	}
	// A volume of an image is a place for data of its own. Everything in a
	// sandbox is its own already; the directory has to exist.
	plan.Root.Dirs = volumes(root.Config.Volumes)

	dir := spec.WorkDir
	if dir == "" {
		dir = root.Config.WorkingDir
	}
	config := client.Config{
		User: who.text, Dir: dir, Env: slices.Concat(root.Config.Env, spec.Env),
		Output: limits.Output, NoFile: limits.NoFile,
		RootCaps: spawn.RootCapabilities, OOMScoreAdj: oomScoreAdj, Sudo: spec.RootInside,
	}
	return plan, config, nil
}

// make makes the sandbox and configures its guest. s has what was made so far, also after
// an error.
func (s *Sandbox) make(ctx context.Context, plan driver.Plan, config client.Config, trace func(string)) (err error) {
	ahead := s.joinAhead(ctx, plan.Link)
	defer func() {
		if err != nil {
			ahead.undo()
		}
	}()
	// The record comes first, so that nothing is made that nobody knows of.
	s.making.enter("record")
	if err := s.save(ctx); err != nil {
		return err
	}
	if s.persistent {
		if err := s.engine.opts.Images.Keep(s.id, s.lease); err != nil {
			return err
		}
	}
	var guest *client.Client // of the blank
	if s.blank != nil {
		if guest, err = s.bind(ctx, plan, trace); err != nil {
			return err
		}
	}
	held := false
	if s.held != nil {
		if guest, err = s.takeHeld(ctx, trace); err != nil {
			return err
		}
		held = guest != nil
	}
	if s.instance == nil {
		ahead.undo() // of a blank that was not bound
		ahead = nil
		if s.instance, err = s.engine.opts.Driver.Create(ctx, plan); err != nil {
			return err
		}
		trace("create")
	}
	err = s.greetAndJoin(ctx, guest, &config, &plan, ahead)
	if held && errors.Is(err, sandpit.ErrClosed) && ctx.Err() == nil { // it had ended when it was claimed
		if err = s.instance.Destroy(ctx); err != nil {
			return err
		}
		s.interpreters = nil
		if s.instance, err = s.engine.opts.Driver.Create(ctx, plan); err != nil {
			return err
		}
		err = s.greetAndJoin(ctx, nil, &config, &plan, nil)
	}
	if err != nil {
		return err
	}
	trace("guest")
	s.noteGaps()
	s.logs, err = s.openLog()
	for _, p := range s.interpreters {
		if err == nil {
			err = s.findAgain(ctx, p)
		}
	}
	s.interpreters = nil
	if err == nil && len(s.rlimits) > 0 {
		err = s.tryRlimits(ctx)
	}
	return err
}

// fileLimit returns a *sandpit.StageError if rlimits allow more open files than a sandbox.
func fileLimit(rlimits []sandpit.Rlimit, most int64) error {
	for _, l := range rlimits {
		if l.Resource == "nofile" && most > 0 && l.Hard > uint64(most) {
			err := fault.Invalidf("the rlimit nofile is too high: this sandbox allows at most %d", most)
			return &sandpit.StageError{Stage: sandpit.StageLimits, Err: sandpit.WithHint(err, "give the sandbox a higher limit when it is created, with --nofile")}
		}
	}
	return nil
}

// tryRlimits returns an error if the sandbox does not allow its rlimits. The guest looks at them before the program,
// which does not exist.
func (s *Sandbox) tryRlimits(ctx context.Context) error {
	p, err := s.guest.Start(ctx, sandpit.Command{Argv: []string{"/.sandpit/nonesuch"}, Dir: "/", Rlimits: s.rlimits})
	if err == nil { // a limit of 0 has killed it
		_, err = p.Wait(ctx)
	}
	if _, looked := errors.AsType[*sandpit.StartError](err); looked {
		return nil
	}
	if refused, ok := errors.AsType[*sandpit.StageError](err); ok { // without "starting a process"
		return fmt.Errorf("creating a sandbox: %w", refused)
	}
	return err
}

// noteGaps adds the gaps of the instance to those of the sandbox, and returns them.
func (s *Sandbox) noteGaps() []sandpit.Gap {
	l, ok := s.instance.(driver.Lacking)
	if !ok {
		return nil
	}
	gaps := l.Lacks()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, g := range gaps {
		others := slices.DeleteFunc(slices.Clone(s.info.NotEnforced), func(was sandpit.Gap) bool { return was.What == g.What })
		s.info.NotEnforced = append(others, g)
	}
	return gaps
}

// greetAndJoin configures the guest, and meanwhile joins the network, if the sandbox has egress
// and is not joining ahead.
func (s *Sandbox) greetAndJoin(ctx context.Context, guest *client.Client, config *client.Config, plan *driver.Plan, ahead *joining) error {
	if plan.Link == nil {
		return s.greet(ctx, guest, config, plan)
	}
	linker, err := s.permitPing(ctx, s.egress.Egress)
	if err == nil && (ahead == nil || !<-ahead.linked) {
		var file *os.File
		if file, err = linker.Link(ctx, *plan.Link); err == nil {
			joining, cancel := context.WithCancel(ctx)
			ahead = s.startJoining(joining, cancel, func() (*os.File, error) { return file, nil })
		}
	}
	if err != nil {
		if guest != nil {
			guest.Close()
		}
		return err
	}
	if err := s.greet(ctx, guest, config, plan); err != nil {
		ahead.undo()
		return err
	}
	s.making.enter("network")
	return ahead.wait()
}

// greet configures a new guest. It connects to it, unless guest is a connection.
func (s *Sandbox) greet(ctx context.Context, guest *client.Client, config *client.Config, plan *driver.Plan) error {
	if guest != nil {
		s.making.enter("configuring the guest")
		if err := guest.Configure(ctx, *config); err != nil {
			guest.Close()
			return s.explainGreeting(explainUser(err, config.User, plan))
		}
		s.guest = guest
		return nil
	}
	s.making.enter("greeting the guest")
	conn, err := s.instance.Dial(ctx)
	if err != nil {
		return s.explainGreeting(err)
	}
	guest, err = client.New(ctx, conn, client.Options{Config: config})
	if err != nil {
		return s.explainGreeting(explainUser(fmt.Errorf("greeting the guest: %w", err), config.User, plan))
	}
	s.guest = guest
	return nil
}

// explainGreeting adds the known reason why a new guest does not answer.
func (s *Sandbox) explainGreeting(err error) error {
	if errors.Is(err, sandpit.ErrClosed) && s.oomKills() > 0 {
		return sandpit.WithHint(fmt.Errorf("sandbox %s is out of memory: %w", s.Name(), err), "raise the memory limit")
	}
	if e, ok := s.instance.(driver.Explainer); ok && errors.Is(err, sandpit.ErrClosed) {
		return e.Explain(err)
	}
	return err
}

// openLog opens the log of the sandbox, with a share of its namespace's disk space.
func (s *Sandbox) openLog() (*logstore.Log, error) {
	e := s.engine
	e.mu.Lock()
	share := e.space(s.namespace).logs
	e.mu.Unlock()
	return logstore.Open(s.logDir(), logstore.Options{MaxBytes: e.opts.LogBytes, Memory: s.memory, Share: share})
}

func (s *Sandbox) logDir() string {
	if s.engine.opts.Dir == "" {
		return ""
	}
	return filepath.Join(s.engine.opts.Dir, s.id)
}

// begin marks a new sandbox as running.
func (s *Sandbox) begin(ctx context.Context) error {
	s.touch()
	s.mu.Lock()
	if s.removing || s.left {
		s.mu.Unlock()
		return fault.Errorf(sandpit.ErrClosed, "sandbox %s was removed while it was being created", s.Name())
	}
	s.state = sandpit.StateRunning
	from, told := s.created, sandpit.EventCreated
	if s.admitted.After(from) {
		from = s.admitted
	}
	if s.unstarted != nil {
		from, told = time.Now(), sandpit.EventStarted
		s.began, s.unstarted = from, nil
	}
	s.deadline = from.Add(s.info.Limits.Life)
	s.arm()
	s.mu.Unlock()
	s.tellGuest(ctx)
	s.making.enter("record")
	if err := s.save(ctx); err != nil {
		return err
	}
	go s.watch()
	s.engine.measure()
	s.event(told, "")
	return nil
}

// fittingDisk is the default part of a memory limit that files may take: they are in
// memory, and the kernel can't reclaim them. Without memory for anything else, the kernel
// would in the end kill the guest.
func fittingDisk(memory int64) int64 {
	const room = 12 << 20 // the guest and a small program
	return max(memory-max(memory/8, room), sandpit.MinDisk)
}

// defaultTmpfs is the default size of a Tmpfs, in bytes.
const defaultTmpfs = 64 << 20

func imageName(root image.Rootfs) string {
	if root.Digest != "" && !strings.Contains(root.Reference, "@") {
		return root.Reference + "@" + root.Digest
	}
	return root.Reference
}
