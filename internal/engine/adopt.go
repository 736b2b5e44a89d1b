package engine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/cmdline"
	"github.com/sandpit-dev/sandpit/internal/driver"
	"github.com/sandpit-dev/sandpit/internal/feature"
	"github.com/sandpit-dev/sandpit/internal/guest/client"
	"github.com/sandpit-dev/sandpit/internal/image"
	"github.com/sandpit-dev/sandpit/internal/logstore"
)

// AdoptReport says what Adopt has found.
type AdoptReport struct {
	Adopted   int               // sandboxes that live on
	Processes int               // in them
	Gone      int               // sandboxes that were gone, with the machine's restart for example: now failed ones
	Over      int               // sandboxes whose time was over or whose removal had begun, and have been cleaned away
	Half      int               // sandboxes that were being made, and have been cleaned away
	Failed    int               // other sandboxes that are there as failed ones
	Refused   []error           // records that this engine leaves alone, and why
	Exposed   map[string]string // data directories that sandboxes see, by the sandbox's name
	Lacking   []error           // sandboxes that live on without what this version enforces
}

const (
	adoptAtOnce = 8 // sandboxes
	// placeShare is the part of Patience.Adopt for which what hangs may hold the place
	// of another: 5 s.
	placeShare = 12
	// ownerPatience is how long the processes of a killed engine may take to die.
	ownerPatience = 10 * time.Second
	ownerRetry    = 20 * time.Millisecond
)

// Adopt takes over the sandboxes that the store has records of, with their
// processes and output. It is called once, before anything else. An error is one
// of the store or of ctx, or ErrOrphans; what is wrong with one sandbox is in the
// report.
func (e *Engine) Adopt(ctx context.Context) (AdoptReport, error) {
	var report AdoptReport
	if e.opts.Store == nil {
		return report, nil
	}
	recoverer, ok := e.opts.Driver.(driver.Recoverer)
	if !ok {
		return report, fmt.Errorf("adopting sandboxes: those of the driver %s do not outlive their owner: %w", e.opts.Driver.Name(), sandpit.ErrUnsupported)
	}
	records, err := e.opts.Store.Sandboxes(ctx)
	if err != nil {
		return report, fmt.Errorf("adopting sandboxes: %w", err)
	}
	ids, err := e.orphans(ctx, recoverer, records, false)
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
	places := make(chan struct{}, adoptAtOnce)
	known := make(map[string]bool, len(records))
	for _, r := range records {
		known[r.ID] = true
		wg.Go(func() {
			var result struct {
				found     found
				processes int
			}
			stand := e.newStandIn(r)
			t := &task{what: "adopting", about: "sandbox " + r.Name, namespace: r.Namespace, sandbox: stand.Sandbox}
			stand.adoption = t
			ctx, cancel := context.WithCancelCause(ctx)
			stand.cancel = cancel
			err := e.start(ctx, t, e.opts.Patience.Adopt, func(ctx context.Context) (err error) {
				defer cancel(nil)
				defer stand.leave()
				t.enter("waiting for others that are adopted")
				defer takePlace(places, e.opts.Patience.Adopt/placeShare)()
				t.limit(e.opts.Patience.Adopt / 2)
				t.enter("")
				result.found, result.processes, err = e.adopt(ctx, recoverer, r, patience, stand)
				return err
			}).wait(context.Background())
			found, processes := foundNothing, 0
			if t.ended() {
				found, processes = result.found, result.processes
			} else {
				stand.enter()
			}
			mu.Lock()
			defer mu.Unlock()
			switch {
			case !t.ended():
				report.Refused = append(report.Refused, err)
			case err != nil:
				report.Refused = append(report.Refused, fmt.Errorf("adopting sandbox %s: %w", r.Name, err))
			case found == foundLiving:
				report.Adopted++
				report.Processes += processes
				if stand.exposed != "" {
					if report.Exposed == nil {
						report.Exposed = map[string]string{}
					}
					report.Exposed[r.Name] = stand.exposed
				}
				for _, g := range stand.lacks {
					report.Lacking = append(report.Lacking, sandpit.WithHint(fmt.Errorf("sandbox %s: %s", r.Name, g.Why), g.Fix))
				}
			case found == foundGone:
				report.Gone++
			case found == foundOver:
				report.Over++
			case found == foundHalf:
				report.Half++
			case found == foundFailed:
				report.Failed++
			}
		})
	}
	wg.Wait()
	if err := ctx.Err(); err != nil {
		return report, err
	}
	_ = e.work("removing logs of nobody", nil, e.opts.Patience.Remove, func(context.Context) error {
		e.sweepLogs(known)
		return nil
	}).wait(ctx)
	e.sweepDriver(ctx)
	e.Warm()
	return report, nil
}

// found is what has become of a sandbox that there is a record of.
type found int

const (
	foundNothing found = iota // it is left alone
	foundLiving
	foundGone
	foundOver
	foundHalf
	foundFailed
)

// takePlace waits for a place, and returns what gives it back. One that is held
// for too long, by what hangs, is given back before.
func takePlace(places chan struct{}, limit time.Duration) (giveBack func()) {
	places <- struct{}{}
	var once sync.Once
	free := func() { once.Do(func() { <-places }) }
	timer := time.AfterFunc(limit, free)
	return func() {
		timer.Stop()
		free()
	}
}

// standIn is seen in the place of a sandbox whose adoption is stuck, and holds its
// name and what it was promised. It ends with the adoption.
type standIn struct {
	*Sandbox
	entered, over bool          // guarded by Engine.mu
	exposed       string        // a data directory that the sandbox sees, once it is adopted
	lacks         []sandpit.Gap // what the sandbox lacks; there when it is adopted
}

func (e *Engine) newStandIn(r Record) *standIn {
	s := e.newSandbox(r.ID, r.Namespace)
	s.name, s.created, s.state, s.instance, s.lease = r.Name, r.CreatedAt, sandpit.StateFailed, absent{}, &image.Lease{}
	s.info = sandpit.Info{ID: r.ID, Name: r.Name, Driver: e.opts.Driver.Name()}
	var d data
	if json.Unmarshal(r.Data, &d) == nil {
		s.labels, s.info.Image, s.info.Limits = d.Labels, d.Image, d.Limits
		s.demand = demand{d.Limits.Memory, d.Limits.CPUs, 1}
	}
	s.logs, _ = logstore.Open("", logstore.Options{})
	s.cancel = func(error) {}
	close(s.made)
	return &standIn{Sandbox: s}
}

func (s *standIn) enter() {
	e := s.engine
	e.mu.Lock()
	defer e.mu.Unlock()
	if s.entered = !s.over; s.entered {
		e.space(s.namespace).insert(s.Sandbox)
		e.gate.claim(s.demand)
	}
}

func (s *standIn) leave() {
	s.engine.mu.Lock()
	defer s.engine.mu.Unlock()
	s.out()
}

// replace registers the real sandbox in its place.
func (s *standIn) replace(real *Sandbox) {
	e := s.engine
	e.gate.claim(real.demand)
	e.mu.Lock()
	s.out()
	e.space(real.namespace).insert(real)
	e.mu.Unlock()
	e.measure()
}

// out is leave with Engine.mu held.
func (s *standIn) out() {
	e := s.engine
	s.over = true
	if s.entered {
		s.entered = false
		e.space(s.namespace).remove(s.Sandbox)
		e.gate.leave(s.demand)
	}
}

// adopt takes one sandbox over, and returns how many processes run in it.
func (e *Engine) adopt(ctx context.Context, recoverer driver.Recoverer, r Record, patience time.Time, stand *standIn) (found, int, error) {
	var d data
	if err := json.Unmarshal(r.Data, &d); err != nil {
		return foundNothing, 0, fmt.Errorf("reading its record: %w", err)
	}
	if d.Version > dataVersion || d.Handle != nil && d.Handle.Version > driver.HandleVersion {
		return foundNothing, 0, sandpit.WithHint(fmt.Errorf("its record is of a newer version: %w", sandpit.ErrUnsupported), "use the version of sandpit that made it, or a newer one")
	}
	s := e.newSandbox(r.ID, r.Namespace)
	s.name, s.created, s.labels, s.image = r.Name, r.CreatedAt, d.Labels, d.Config
	s.info = sandpit.Info{ID: r.ID, Name: r.Name, Image: d.Image, Driver: e.opts.Driver.Name(), Limits: d.Limits, NotEnforced: d.NotEnforced}
	s.deadline, s.idle, s.onExpiry, s.over, s.most, s.reason = d.Deadline, d.Idle, d.OnExpiry, d.Over, d.Most, d.Reason
	s.demand = demand{d.Limits.Memory, d.Limits.CPUs, 1}
	s.cost = costOf(d.Labels, d.Config) // whatever the bounds are: it is there
	s.memory.Add(s.cost)
	taken := false
	defer func() {
		if !taken {
			s.clear()
			s.repay()
		}
	}()
	s.lease = &image.Lease{} // what it keeps of the store is written there
	s.cancel = func(error) {}
	close(s.made)

	h := driver.Handle{Version: driver.HandleVersion, Driver: e.opts.Driver.Name(), ID: r.ID}
	if d.Handle != nil {
		h = *d.Handle
	}
	instance, err := recoverer.Recover(ctx, h)
	for errors.Is(err, sandpit.ErrExists) && time.Now().Before(patience) {
		// What a killed engine was making may hold on to it until it is dead, too.
		time.Sleep(ownerRetry)
		instance, err = recoverer.Recover(ctx, h)
	}
	unwanted := context.Cause(ctx) == errUnwanted
	if unwanted && errors.Is(err, context.Canceled) {
		// It is taken over all the same, to be removed.
		ctx = context.WithoutCancel(ctx)
		instance, err = recoverer.Recover(ctx, h)
	}
	gone := errors.Is(err, sandpit.ErrNotFound)
	half, ending := r.State == sandpit.StateCreating, unwanted || s.removalMarked()
	why := ""
	switch {
	case (half || ending) && (err == nil || gone):
		if err == nil {
			err = instance.Destroy(context.WithoutCancel(ctx))
		}
		if err != nil && !errors.Is(err, sandpit.ErrNotFound) {
			return foundNothing, 0, fmt.Errorf("cleaning it away: %w", err)
		}
		if half {
			return foundHalf, 0, s.drop()
		}
		s.event(sandpit.EventRemoved, "asked")
		return foundOver, 0, s.drop()
	case gone && r.State != sandpit.StateFailed:
		if s.endedInTime(r.State) {
			s.event(sandpit.EventRemoved, "life")
			return foundOver, 0, s.drop()
		}
		why = goneWhy(err)
		s.instance = absent{}
	case err == nil:
		s.instance = instance
		if x, ok := instance.(driver.Exposer); ok {
			stand.exposed = x.Exposed()
		}
		stand.lacks = s.noteGaps()
	case r.State == sandpit.StateFailed, errors.Is(err, sandpit.ErrClosed):
		s.instance = absent{}
	default:
		return foundNothing, 0, err
	}

	if s.logs, err = s.openLog(); err != nil {
		// What was written can't be read. The sandbox has no part in that.
		s.logs, _ = logstore.Open("", logstore.Options{})
	}
	processes, state := 0, sandpit.StateFailed
	if r.State != sandpit.StateFailed && why == "" {
		processes, state, err = s.resume(ctx, r.State)
		if errors.Is(err, errOtherGuest) {
			s.logs.Close()
			if l, ok := s.instance.(driver.Leaver); ok {
				l.Leave()
			}
			return foundNothing, 0, sandpit.WithHint(err, "use the version of sandpit that made it, or a newer one that still speaks to its guest")
		}
		if err != nil && ctx.Err() != nil {
			// Nothing is known of a guest that is silent: it may be held up by the kernel, a
			// debugger or a freezer, and answer the next engine.
			s.letGo()
			if context.Cause(ctx) == errUnwanted {
				if err := s.instance.Destroy(context.WithoutCancel(ctx)); err != nil {
					return foundNothing, 0, fmt.Errorf("removing it: %w", err)
				}
				_ = s.logs.Remove()
				s.event(sandpit.EventRemoved, "asked")
				return foundOver, 0, s.drop()
			}
			s.logs.Close()
			if l, ok := s.instance.(driver.Leaver); ok {
				l.Leave()
			}
			return foundNothing, 0, err
		}
		if err != nil {
			state, why = sandpit.StateFailed, "it could not be adopted: "+err.Error()
		}
	}
	if state == sandpit.StateFailed {
		if s.guest != nil {
			s.guest.Close()
		}
		_ = s.instance.Destroy(ctx)
		s.instance = absent{}
		_ = e.opts.Images.Unkeep(s.id)
	}
	s.touch()
	s.mu.Lock()
	s.state = state
	switch {
	case state == sandpit.StateRunning:
		s.reason, s.over = "", false
	case why != "":
		s.reason, s.over, s.deadline = why, false, time.Now().Add(lostKept)
	}
	s.arm()
	s.mu.Unlock()
	taken = true
	stand.replace(s)
	if state != r.State {
		if err := s.saveChange(ctx); err != nil {
			return foundNothing, 0, err
		}
	}
	switch {
	case state != sandpit.StateFailed:
		go s.watch()
		return foundLiving, processes, nil
	case why != "":
		s.event(sandpit.EventFailed, "failed: "+why)
	}
	e.discard(e.lose(s))
	if gone && r.State != sandpit.StateFailed {
		return foundGone, 0, nil
	}
	return foundFailed, 0, nil
}

// letGo ends the connection to the guest. The sandbox and its processes go on, and
// nothing is said of them.
func (s *Sandbox) letGo() {
	s.mu.Lock()
	s.left = true // or the end of the connection would count as that of the guest
	s.mu.Unlock()
	if s.guest != nil {
		s.guest.Close()
	}
	for _, h := range s.processes() {
		<-h.done
	}
}

// drop forgets a sandbox of which nothing is left.
func (s *Sandbox) drop() error {
	e := s.engine
	if dir := s.logDir(); dir != "" {
		_ = os.RemoveAll(dir)
	}
	if err := e.opts.Images.Unkeep(s.id); err != nil {
		return err
	}
	if err := e.opts.Store.DeleteSandbox(context.Background(), s.id); err != nil {
		return err
	}
	s.unmarkRemoval()
	return nil
}

// errOtherGuest says that a guest's protocol is not spoken here. What it guards is
// whole: another version of this program can take it over.
var errOtherGuest = errors.New("its guest belongs to another version of sandpit")

// errUnwanted calls off the adoption of a sandbox that is to be removed.
var errUnwanted = errors.New("its removal was asked for")

// resume connects to the guest and finds its processes. It returns how many run,
// and the state that the sandbox is in. With errOtherGuest that is as it was. A guest that is silent
// is waited for until ctx ends.
func (s *Sandbox) resume(ctx context.Context, was sandpit.State) (running int, state sandpit.State, err error) {
	state = sandpit.StateRunning
	freezer, _ := s.instance.(driver.Freezer)
	if freezer != nil {
		// The record may be older than the last change.
		frozen, err := freezer.Frozen(ctx)
		if err != nil && !errors.Is(err, sandpit.ErrUnsupported) {
			return 0, "", err
		}
		// Its guest can't answer while it stands still, or in part.
		if err := freezer.Thaw(ctx); err != nil && !errors.Is(err, sandpit.ErrUnsupported) {
			return 0, "", err
		}
		if frozen {
			state = sandpit.StatePaused
			defer func() {
				if err != nil && ctx.Err() != nil {
					err = errors.Join(err, freezer.Freeze(context.WithoutCancel(ctx)))
				}
			}()
		}
	}
	conn, err := s.instance.Dial(ctx)
	if err != nil {
		return 0, "", err
	}
	if s.guest, err = client.New(ctx, conn, client.Options{Output: s.info.Limits.Output}); err != nil {
		if errors.Is(err, sandpit.ErrUnsupported) {
			err = fmt.Errorf("%w: %w", errOtherGuest, err)
			if state == sandpit.StatePaused {
				err = errors.Join(err, freezer.Freeze(ctx))
			}
		}
		return 0, "", err
	}
	list, err := s.guest.Processes(ctx)
	if err != nil {
		return 0, "", err
	}
	if most := mostProcesses(s.info); len(list) > most {
		return 0, "", fmt.Errorf("its guest names %d processes, of which there can be %d: %w", len(list), most, sandpit.ErrProtocol)
	}
	s.oomKills()
	ended := func(p client.ProcessInfo) bool { return p.Exited && !p.Announced }
	if slices.ContainsFunc(list, ended) && errors.Is(s.guest.Announced(ctx, []uint64{0}), sandpit.ErrUnsupported) {
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
			return 0, "", err
		}
	}
	switch {
	case state == sandpit.StatePaused:
		if err = s.endedAreAnnounced(ctx, list); err == nil {
			err = freezer.Freeze(ctx)
		}
	case was == sandpit.StateStopped && running == 0:
		state = sandpit.StateStopped
	}
	if err == nil && state != sandpit.StatePaused {
		s.mu.Lock()
		s.state = state // as tellGuest is to know it
		s.mu.Unlock()
		s.tellGuest(ctx)
	}
	return running, state, err
}

// mostProcesses is how many processes a guest can name that does not lie: those
// that run, and the latest that have ended. Each is charged for when it is adopted.
func mostProcesses(info sandpit.Info) int {
	const unbounded = 1 << 16
	if slices.ContainsFunc(info.NotEnforced, func(g sandpit.Gap) bool { return g.What == string(feature.Pids) }) {
		return unbounded
	}
	return int(min(info.Limits.Pids, unbounded)) + 4*endedProcesses
}

// endedAreAnnounced waits until the end of the processes that have ended was
// announced, and has the guest note it.
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

// findAgain makes the hub of a process that was started by another engine. Who
// waited for it was cut off and did not leave it, so it is not killed as for a
// client that vanishes; nobody waits for it now, so it is one in the background.
func (s *Sandbox) findAgain(ctx context.Context, p client.ProcessInfo) error {
	h := s.newHub(keptOutput)
	h.oomKills = s.oomSeen.Load()
	argv, cut := cmdline.Clip(p.Command)
	h.charged = h.cost(argv, p.Stdin)
	s.memory.Add(h.charged)
	h.ref, h.told = p.Ref, p.Announced
	h.info = sandpit.ProcessInfo{
		ID: processID(p.Ref), PID: p.PID, Argv: argv, ArgvCut: cut || p.Cut, User: p.User,
		Background: true, StartedAt: p.Started, Terminal: p.Terminal,
	}
	h.log = s.logs.Process(h.info.ID, p.PID)
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

// chunk enters a piece of output, or of what is not kept any more.
func (h *hub) chunk(c client.Chunk) error {
	<-h.ready
	if c.Lost > 0 {
		if h.log != nil {
			h.log.Lost(c.Position + c.Lost)
		}
		h.mu.Lock()
		h.at = c.Position + c.Lost
		h.ring.end = h.at
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
