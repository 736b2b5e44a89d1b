package engine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/cmdline"
	"github.com/sandpit-dev/sandpit/internal/driver"
	"github.com/sandpit-dev/sandpit/internal/fault"
	"github.com/sandpit-dev/sandpit/internal/feature"
	"github.com/sandpit-dev/sandpit/internal/guest/client"
	"github.com/sandpit-dev/sandpit/internal/image"
	"github.com/sandpit-dev/sandpit/internal/interpreter"
	"github.com/sandpit-dev/sandpit/internal/logstore"
)

// AdoptReport is the result of Adopt.
type AdoptReport struct {
	Adopted    int               // sandboxes that were adopted
	Processes  int               // their processes
	Gone       int               // sandboxes that no longer exist, for example after a restart of the machine; now failed
	Expired    int               // sandboxes whose lifetime had ended or whose removal had begun; now removed
	Incomplete int               // sandboxes whose creation was interrupted; now removed
	Failed     int               // other sandboxes that failed
	Refused    []error           // why records were not adopted
	Exposed    map[string]string // data directories that sandboxes see, by the sandbox's name
	Lacking    []error           // sandboxes that lack protections of this version
}

const (
	adoptAtOnce = 8 // sandboxes of a namespace
	// placeShare is the part of Patience.Adopt for which a hanging adoption may hold a
	// place: 5 s.
	placeShare = 12
	// pausedShare is the part of Patience.Adopt for which a paused sandbox runs so that
	// its guest can answer: 15 s.
	pausedShare = 4
	// ownerPatience is the time in which the processes of a killed engine must die.
	ownerPatience = 10 * time.Second
	ownerRetry    = 20 * time.Millisecond
)

// Adopt takes over the sandboxes that the store has records of, with their processes and
// output. Call it once, before anything else. It returns an error of the store or of ctx,
// or ErrOrphans. The report has the problems of single sandboxes.
func (e *Engine) Adopt(ctx context.Context) (AdoptReport, error) {
	var report AdoptReport
	if e.opts.Store == nil {
		return report, nil
	}
	recoverer, ok := e.opts.Driver.(driver.Recoverer)
	if !ok {
		return report, fault.Errorf(sandpit.ErrUnsupported, "adopting sandboxes: sandboxes of the driver %s end with their server", e.opts.Driver.Name())
	}
	records, err := e.opts.Store.Sandboxes(ctx)
	if err != nil {
		return report, fmt.Errorf("adopting sandboxes: %w", err)
	}
	ids, err := e.orphans(ctx, recoverer, records)
	switch {
	case errors.Is(err, errStuck): // what is known is served
		report.Refused = append(report.Refused, err)
	case err != nil:
		return report, err
	}
	if err := refuseOrphans(ids); err != nil {
		return report, err
	}
	var mu sync.Mutex
	var wg sync.WaitGroup
	patience := time.Now().Add(ownerPatience)
	places := map[string]chan struct{}{} // of each namespace, so that silent guests hold up their own only
	known := make(map[string]bool, len(records))
	for _, r := range records {
		known[r.ID] = true
		ctx, cancel := context.WithCancelCause(ctx)
		s, err := e.recall(recoverer, r, cancel)
		if err != nil {
			cancel(nil)
			report.Refused = append(report.Refused, fmt.Errorf("adopting sandbox %s: %w", r.Name, err))
			continue
		}
		own := places[r.Namespace]
		if own == nil {
			own = make(chan struct{}, adoptAtOnce)
			places[r.Namespace] = own
		}
		wg.Go(func() {
			var a adopted
			t := &task{what: "adopting", about: "sandbox " + r.Name, namespace: r.Namespace, sandbox: s}
			err := e.start(ctx, t, e.opts.Patience.Adopt, func(ctx context.Context) error {
				defer cancel(nil)
				t.enter("waiting for other sandboxes that are being adopted")
				defer takePlace(ctx, own, e.opts.Patience.Adopt/placeShare)()
				t.limit(e.opts.Patience.Adopt / 2)
				t.enter("")
				is, err := e.adopt(ctx, s, r, patience)
				s.ready()
				if err != nil && ctx.Err() == nil && s.abandon() {
					e.gate.leave(&s.demand)
				}
				a = is
				return err
			}).wait(context.Background())
			mu.Lock()
			defer mu.Unlock()
			switch {
			case !t.ended():
				report.Refused = append(report.Refused, err)
				s.saving.Lock()
				stopped := s.noted || r.State == sandpit.StateStopped
				s.saving.Unlock()
				if !stopped { // for which time does not pass
					s.mu.Lock()
					s.arm()
					s.mu.Unlock()
				}
			case err != nil:
				report.Refused = append(report.Refused, fmt.Errorf("adopting sandbox %s: %w", r.Name, err))
			case a.found == foundLiving:
				report.Adopted++
				report.Processes += a.processes
				if a.exposed != "" {
					if report.Exposed == nil {
						report.Exposed = map[string]string{}
					}
					report.Exposed[r.Name] = a.exposed
				}
				for _, g := range a.lacks {
					report.Lacking = append(report.Lacking, sandpit.WithHint(fmt.Errorf("sandbox %s: %s", r.Name, g.Why), g.Fix))
				}
			case a.found == foundGone:
				report.Gone++
			case a.found == foundExpired:
				report.Expired++
			case a.found == foundIncomplete:
				report.Incomplete++
			case a.found == foundFailed:
				report.Failed++
			}
		})
	}
	wg.Wait()
	if err := ctx.Err(); err != nil {
		return report, err
	}
	_ = e.work("removing logs without a sandbox", nil, e.opts.Patience.Remove, func(context.Context) error {
		e.sweepLogs(known)
		return nil
	}).wait(ctx)
	e.work("removing unfinished images", nil, e.opts.Patience.Remove, func(context.Context) error {
		e.opts.Images.Sweep()
		return nil
	})
	e.sweepDriver(ctx)
	e.Warm()
	return report, nil
}

// found is the outcome of the adoption of a sandbox.
type found int

const (
	foundNothing found = iota // it is left alone
	foundLiving
	foundGone
	foundExpired
	foundIncomplete
	foundFailed
)

// adopted is the result of the adoption of one sandbox.
type adopted struct {
	found     found
	processes int           // that run in it
	exposed   string        // a data directory that it sees
	lacks     []sandpit.Gap // what it lacks
}

// takePlace waits for a place, or until ctx ends, and returns a function that releases it.
// A place that is held for longer than limit is released before.
func takePlace(ctx context.Context, places chan struct{}, limit time.Duration) (giveBack func()) {
	select {
	case places <- struct{}{}:
	case <-ctx.Done():
		return func() {}
	}
	free := sync.OnceFunc(func() { <-places })
	timer := time.AfterFunc(limit, free)
	return func() {
		timer.Stop()
		free()
	}
}

// recall registers the sandbox of a record. Its name is then taken, and its capacity
// charged. Until it is adopted, it is in StateCreating and can only be removed, which calls
// cancel.
func (e *Engine) recall(recoverer driver.Recoverer, r Record, cancel context.CancelCauseFunc) (*Sandbox, error) {
	d, err := readData(r)
	if err != nil {
		return nil, err
	}
	if d.Driver != e.opts.Driver.Name() {
		return nil, fault.Errorf(sandpit.ErrUnsupported, "it was made by the driver %q, and this program has %q", d.Driver, e.opts.Driver.Name())
	}
	var made madeRecord
	if err := json.Unmarshal(d.Made, &made); err != nil {
		return nil, fmt.Errorf("reading its record: %w", err)
	}
	s := e.newSandbox(r.ID, r.Namespace)
	called := splitName(r.Name)
	s.nested = called.nested
	s.setName(called.name)
	s.created, s.labels, s.dialects, s.began = r.CreatedAt, d.Labels, d.Dialects, d.Began
	s.deadline, s.idle, s.onExpiry, s.expired, s.reason = d.Deadline, d.Idle, d.OnExpiry, d.Expired, d.Reason
	s.changing = d.Changing
	s.prepared = prepared{
		image: d.Config, rootInside: made.Spec.RootInside, rlimits: made.Spec.Rlimits, user: userName(made.Guest.User), origin: d.Made, secret: r.Secret, trusted: made.Trusted, maxLife: d.MaxLife,
		info: sandpit.Info{
			ID: r.ID, Name: called.name, Namespace: called.nested, Image: d.Image, Driver: d.Driver,
			Policy: made.Policy, Limits: d.Limits, NotEnforced: d.NotEnforced,
		},
		secretUses: secretUses{uses: made.Spec.Secrets, placeholders: d.Secrets, recalled: true},
	}
	if s.linked = d.Egress != nil; s.linked {
		s.egress = *d.Egress
	}
	s.lease = &image.Lease{} // what it keeps of the store is written there
	s.cancel = cancel
	h := driver.Handle{Version: driver.HandleVersion, Driver: e.opts.Driver.Name(), ID: r.ID}
	if d.Handle != nil && d.Handle.Driver != "" { // earlier versions wrote an empty one when it was gone
		h = *d.Handle
	}
	s.instance = unrecovered{recoverer: recoverer, handle: h}
	s.touch()
	s.demand = demandOf(d.Limits)
	if made.CA {
		sealed, _ := openMade(r.Secret) // without it, the sandbox has no network, and a gap
		s.ca, s.own = sealed.CA, sealed.Own
	}
	for _, name := range made.Own { // one that is lost does not become a stored one of its name
		if _, ok := s.own[name]; !ok {
			if s.own == nil {
				s.own = map[string]OwnSecret{}
			}
			s.own[name] = OwnSecret{}
		}
	}
	s.cost = costOf(d.Labels, d.Config, len(d.Made)+len(r.Secret)) + s.secretUses.cost() + egressCost(s.egress) // whatever the bounds are: it is there
	for _, data := range d.Dialects {
		s.cost += int64(len(data))
	}
	s.memory.Add(s.cost)
	if r.State == sandpit.StateCreated {
		made, err := decodeMade(s.origin, s.secret, s.image)
		if err != nil {
			s.repay()
			return nil, err
		}
		s.unstarted, s.demand = &made.Spec, demand{}
	}
	e.gate.claim(s.demand)
	e.mu.Lock()
	e.space(s.namespace).insert(s)
	e.mu.Unlock()
	return s, nil
}

// unrecovered is the instance of a sandbox that is not adopted yet. It can only be
// destroyed, which does not need the guest.
type unrecovered struct {
	absent
	recoverer driver.Recoverer
	handle    driver.Handle
}

func (u unrecovered) Destroy(ctx context.Context) error {
	instance, err := u.recoverer.Recover(context.WithoutCancel(ctx), u.handle)
	if errors.Is(err, sandpit.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	return instance.Destroy(ctx)
}

// adopt takes one sandbox over. When ctx ends, it returns an error and leaves the
// rest to whoever has called it off.
func (e *Engine) adopt(ctx context.Context, s *Sandbox, r Record, patience time.Time) (adopted, error) {
	var a adopted
	if ctx.Err() != nil && context.Cause(ctx) != errExpired {
		return a, ctx.Err()
	}
	if r.State == sandpit.StateCreated {
		return s.adoptUnstarted(ctx, patience)
	}
	is, whole := s.instance.(unrecovered), context.WithoutCancel(ctx)
	instance, err := is.recoverer.Recover(whole, is.handle)
	for errors.Is(err, sandpit.ErrExists) && time.Now().Before(patience) && ctx.Err() == nil {
		// What a killed engine was making may hold on to it until it is dead, too.
		time.Sleep(ownerRetry)
		instance, err = is.recoverer.Recover(whole, is.handle)
	}
	gone := errors.Is(err, sandpit.ErrNotFound)
	switch {
	case err == nil:
		s.instance = instance
	case gone, r.State == sandpit.StateFailed, errors.Is(err, sandpit.ErrClosed):
		s.instance = absent{}
	default:
		return a, err
	}
	incomplete, why := r.State == sandpit.StateCreating, ""
	switch {
	case incomplete && (err == nil || gone):
		a.found = foundIncomplete
		return a, s.cleanAway(ctx, "")
	case s.marked(removalMark) && (err == nil || gone):
		a.found = foundExpired
		return a, s.cleanAway(ctx, "asked")
	case gone && r.State != sandpit.StateFailed && s.endedInTime(r.State):
		a.found = foundExpired
		return a, s.cleanAway(ctx, "life")
	case gone && r.State != sandpit.StateFailed:
		why = goneWhy(err)
	case err == nil:
		if x, ok := instance.(driver.Exposer); ok {
			a.exposed = x.Exposed()
		}
		a.lacks = s.noteGaps()
		s.restoreLimits(whole)
		if s.linked && r.State != sandpit.StateFailed {
			a.lacks = append(a.lacks, s.rejoinNetwork(ctx, patience)...)
		}
	}

	if s.logs, err = s.openLog(); err != nil {
		// What was written can't be read. The sandbox has no part in that.
		s.logs, _ = logstore.Open("", logstore.Options{})
	}
	state := sandpit.StateFailed
	if r.State != sandpit.StateFailed && why == "" {
		was := r.State
		if s.marked(stopMark) {
			s.saving.Lock()
			s.noted, was = true, sandpit.StateStopped
			s.saving.Unlock()
		}
		a.processes, state, err = s.resume(ctx, was)
		switch {
		case errors.Is(err, errOtherGuest):
			return a, sandpit.WithHint(err, "use the version of Sandpit that created it, or a newer one that supports its guest")
		case err != nil && (ctx.Err() != nil || shortage(err)):
			return a, err
		case err != nil:
			state, why = sandpit.StateFailed, "it could not be adopted: "+err.Error()
		}
	}
	left := false // something of a failed one
	if state == sandpit.StateFailed {
		first := false
		s.failing.Do(func() { first = true })
		if !first {
			return s.died(), nil
		}
		s.closeGuest()
		s.leaveNetwork()
		if left = s.instance.Destroy(ctx) != nil; !left {
			s.instance = absent{}
			_ = e.opts.Images.Unkeep(s.id)
		}
	}
	s.touch()
	s.mu.Lock()
	if state != sandpit.StateFailed && s.state == sandpit.StateFailed {
		s.mu.Unlock()
		return s.died(), nil
	}
	s.state = state
	switch {
	case state == sandpit.StateRunning:
		s.reason, s.expired = "", false
	case state == sandpit.StatePaused && context.Cause(ctx) == errExpired:
		s.reason, s.expired = "life", true
	case why != "":
		s.reason, s.expired, s.deadline = why, false, time.Now().Add(lostGrace)
	}
	s.arm()
	s.mu.Unlock()
	s.ready()
	e.measure()
	if state != r.State || s.noted {
		if err := s.saveChange(ctx); err != nil {
			return a, err
		}
	}
	a.found = foundLiving
	switch {
	case state != sandpit.StateFailed:
		go s.watch()
		return a, nil
	case why != "":
		s.event(sandpit.EventFailed, "failed: "+why)
	}
	if !left {
		e.discard(e.lose(s))
	}
	if a.found = foundFailed; gone && r.State != sandpit.StateFailed {
		a.found = foundGone
	}
	return a, nil
}

// shortage reports whether an error says that something was scarce here, which is no
// fault of the sandbox.
func shortage(err error) bool {
	scarce := []error{syscall.EMFILE, syscall.ENFILE, syscall.ENOMEM, syscall.ENOBUFS, syscall.EAGAIN}
	return slices.ContainsFunc(scarce, func(no error) bool { return errors.Is(err, no) })
}

// died ends the adoption of a sandbox whose guest has died meanwhile. What else is to
// be done is done by fail.
func (s *Sandbox) died() adopted {
	s.mu.Lock()
	s.arm()
	s.mu.Unlock()
	s.ready()
	return adopted{found: foundFailed}
}

// ready ends the adoption.
func (s *Sandbox) ready() {
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case <-s.made:
	default:
		close(s.made)
	}
}

// cleanAway removes a sandbox that must not be adopted.
func (s *Sandbox) cleanAway(ctx context.Context, reason string) error {
	s.callOff()
	s.ready()
	if err := s.takeDown(context.WithoutCancel(ctx), reason); err != nil {
		return fmt.Errorf("cleaning it up: %w", err)
	}
	return nil
}

// letGo closes the connection to the guest and forgets its processes. They keep running,
// and no event reports them.
func (s *Sandbox) letGo() {
	s.mu.Lock()
	s.muted = true // or the end of the connection would count as that of the guest
	s.mu.Unlock()
	s.closeGuest()
	all := s.processes()
	for _, h := range all {
		<-h.done
		h.once.Do(func() {}) // and all that belongs to the end is done
	}
	s.mu.Lock()
	s.guest, s.broadcasters, s.muted = nil, nil, false
	s.mu.Unlock()
	for _, h := range all {
		s.engine.ended.remove(h)
		h.forget()
	}
}

// errOtherGuest is the error for a guest with an unsupported protocol version. Another
// version of this program can adopt its sandbox.
var errOtherGuest = errors.New("its guest belongs to another version of Sandpit")

// errTimeOver cancels the adoption of a sandbox that must be frozen because its time is
// over.
var errExpired = errors.New("its lifetime has ended")

// resume connects to the guest and finds its processes. It returns how many run,
// and the state that the sandbox is in. With errOtherGuest that is as it was. A guest
// that is silent is waited for until ctx ends. A paused sandbox runs meanwhile, so it
// is frozen again before long, without a connection to its guest. If it can't be frozen
// again, it runs on.
func (s *Sandbox) resume(ctx context.Context, was sandpit.State) (running int, state sandpit.State, err error) {
	freezer, _ := s.instance.(driver.Freezer)
	whole := context.WithoutCancel(ctx)
	frozen, ask := false, ctx
	if freezer != nil {
		// The record may be older than the last change.
		if frozen, err = freezer.Frozen(ctx); err != nil && !errors.Is(err, sandpit.ErrUnsupported) {
			return 0, "", err
		}
		// An engine that was killed while it read the files has left a running one paused.
		if frozen && s.marked(savingMark) {
			frozen = false
			defer func() { _ = s.mark(whole, false, savingMark) }()
		}
		// An engine that was killed while it asked the guest has left a paused one running.
		frozen = frozen || was == sandpit.StatePaused && s.marked(pauseMark)
		if frozen && s.mark(whole, true, pauseMark) != nil {
			// Nothing would tell the next engine. The guest is asked when it is resumed.
			return 0, sandpit.StatePaused, freezer.Freeze(whole)
		}
		// Its guest can't answer while it stands still, or in part.
		if err := freezer.Thaw(ctx); err != nil && !errors.Is(err, sandpit.ErrUnsupported) {
			return 0, "", err
		}
	}
	if frozen {
		var cancel context.CancelFunc
		ask, cancel = context.WithTimeout(ctx, s.engine.opts.Patience.Adopt/pausedShare)
		defer cancel()
	}
	running, err = s.connect(ask, frozen)
	silent := err != nil && ask.Err() != nil
	if silent {
		s.letGo()
	}
	expired := context.Cause(ctx) == errExpired
	if frozen || silent && expired && freezer != nil {
		asleep := freezer.Freeze(whole)
		switch {
		case asleep == nil && silent && (expired || ctx.Err() == nil):
			running, err = 0, nil
		case silent && ctx.Err() == nil: // it runs on
			if running, err = s.connect(ctx, true); err == nil {
				asleep = freezer.Freeze(ctx)
			}
		}
		if asleep == nil || err == nil {
			_ = s.mark(whole, false, pauseMark)
		}
		if asleep == nil || err != nil {
			return running, sandpit.StatePaused, errors.Join(err, asleep)
		}
	}
	if err != nil {
		return 0, "", err
	}
	state = sandpit.StateRunning
	if was == sandpit.StateStopped && running == 0 {
		state = sandpit.StateStopped
	}
	s.mu.Lock()
	if s.state != sandpit.StateFailed {
		s.state = state // as tellGuest is to know it
	}
	s.mu.Unlock()
	s.tellGuest(ctx)
	return running, state, nil
}

// connect connects to the guest of another engine, and finds its processes. It returns
// how many run. Before a sandbox is paused again, its guest also hears which ends were
// announced.
func (s *Sandbox) connect(ctx context.Context, pausing bool) (running int, err error) {
	conn, err := s.instance.Dial(ctx)
	if err != nil {
		return 0, err
	}
	guest, err := client.New(ctx, conn, client.Options{Output: s.info.Limits.Output})
	if errors.Is(err, sandpit.ErrUnsupported) {
		err = fmt.Errorf("%w: %w", errOtherGuest, err)
	}
	if err != nil {
		return 0, err
	}
	s.mu.Lock()
	left := s.left
	s.guest = guest
	s.mu.Unlock()
	if left { // abandon has looked before
		guest.Close()
	}
	list, err := guest.Processes(ctx)
	if err != nil {
		return 0, err
	}
	if limit := maxProcesses(s.info); len(list) > limit {
		return 0, fault.Errorf(sandpit.ErrProtocol, "its guest reports %d processes, but at most %d can exist", len(list), limit)
	}
	s.oomKills()
	ended := func(p client.ProcessInfo) bool { return p.Exited && !p.Announced }
	if slices.ContainsFunc(list, ended) && errors.Is(guest.Announced(ctx, []uint64{0}), sandpit.ErrUnsupported) {
		// A guest of an earlier version can't say what was announced: rather than all
		// at every start, nothing is announced again.
		for i := range list {
			list[i].Announced = list[i].Exited
		}
	}
	for _, p := range list {
		if !p.Exited {
			running++
		}
		if err := s.findAgain(ctx, p); err != nil {
			return 0, err
		}
	}
	if pausing {
		err = s.endedAreAnnounced(ctx, list)
	}
	return running, err
}

// mostProcesses is the maximum number of processes that an honest guest reports: running
// ones, and the latest that have ended. Each is charged for when it is adopted.
func maxProcesses(info sandpit.Info) int {
	const unbounded = 1 << 16
	if slices.ContainsFunc(info.NotEnforced, func(g sandpit.Gap) bool { return g.What == string(feature.Pids) }) {
		return unbounded
	}
	return int(min(info.Limits.Pids, unbounded)) + 4*endedProcesses
}

// endedAreAnnounced waits until the ends of the ended processes were announced, and makes
// the guest note it.
func (s *Sandbox) endedAreAnnounced(ctx context.Context, list []client.ProcessInfo) error {
	ended := map[uint64]bool{}
	for _, p := range list {
		ended[p.Ref] = p.Exited
	}
	for _, h := range s.processes() {
		if !ended[h.ref] {
			continue
		}
		select {
		case <-h.done:
			h.once.Do(func() {}) // and all that belongs to the end is done
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	s.note(ctx)
	return nil
}

// findAgain makes the broadcaster of a process that was started by another engine. Who
// waited for it was cut off and did not leave it, so it is not killed as for a
// client that vanishes; nobody waits for it now, so it is one in the background.
func (s *Sandbox) findAgain(ctx context.Context, p client.ProcessInfo) error {
	h := s.newBroadcaster(keptOutput)
	h.oomKills, h.refused = s.oomSeen.Load(), s.refusedSeen.Load()
	argv, cut := cmdline.Clip(p.Command)
	h.charged = h.cost(argv, len(p.Dir)+len(p.Tag), p.Stdin)
	s.memory.Add(h.charged)
	h.ref, h.told, h.before = p.Ref, p.Announced, p.Position
	if p.Exited {
		h.was = &p.Result
	}
	h.info = sandpit.ProcessInfo{
		ID: processID(p.Ref), PID: p.PID, Argv: argv, ArgvCut: cut || p.Cut, User: p.User, Dir: strings.Clone(p.Dir), Tag: strings.Clone(p.Tag),
		Background: true, StartedAt: p.Started, Terminal: p.Terminal,
	}
	h.log, h.marks = s.logs.Process(h.info.ID, p.PID), interpreter.NewUnmarked(argv)
	process, err := s.guest.Attach(ctx, p.Ref, 0, client.AttachOptions{
		AttachOptions: sandpit.AttachOptions{Stdin: p.Stdin && !p.Exited},
		Chunk:         h.chunk, Hold: true,
	})
	switch {
	case err == nil:
		h.process = process
		if in := process.Stdin(); in != nil {
			h.stdin = newStdinPump(in)
		}
		s.enlist(h)
		close(h.ready)
		go h.watch()
	case p.Exited && (errors.Is(err, sandpit.ErrNotFound) || errors.Is(err, sandpit.ErrState)):
		close(h.ready)
		s.enlist(h)
		h.end(p.Result, nil)
	case errors.Is(err, sandpit.ErrNotFound): // it has just gone
		h.forget()
	default:
		h.forget()
		return err
	}
	return nil
}

// chunk adds a piece of output, or of lost output.
func (h *broadcaster) chunk(c client.Chunk) error {
	<-h.ready
	if c.Lost > 0 {
		if h.log != nil {
			h.log.Lost(c.Position + c.Lost)
		}
		end := c.Position + c.Lost
		h.recording.Lock()
		h.at = end
		h.recording.Unlock()
		h.mu.Lock()
		h.ring.end = end
		h.ring.drop()
		h.notify()
		h.mu.Unlock()
		return nil
	}
	stream := stdoutStream
	if c.Stderr {
		stream = stderrStream
	}
	h.feed(stream, c.Data)
	return nil
}
