package engine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/driver"
	"github.com/sandpit-dev/sandpit/internal/guest/client"
	"github.com/sandpit-dev/sandpit/internal/image"
	"github.com/sandpit-dev/sandpit/internal/logstore"
)

// AdoptReport says what Adopt has found.
type AdoptReport struct {
	Adopted   int     // sandboxes that live on
	Processes int     // in them
	Gone      int     // sandboxes that were gone, with the machine's restart for example
	Half      int     // sandboxes that were being made, and have been cleaned away
	Failed    int     // sandboxes that are there as failed ones
	Refused   []error // records that this engine leaves alone, and why
}

const (
	adoptAtOnce = 8 // sandboxes
	// adoptPatience is how long a guest may take to answer.
	adoptPatience = 20 * time.Second
	// ownerPatience is how long the processes of a killed engine may take to die.
	ownerPatience = 10 * time.Second
	ownerRetry    = 20 * time.Millisecond
)

// Adopt takes over the sandboxes that the store has records of, with their
// processes and output. It is called once, before anything else. An error is one
// of the store or of ctx; what is wrong with one sandbox is in the report.
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
	var mu sync.Mutex
	var wg sync.WaitGroup
	patience := time.Now().Add(ownerPatience)
	places := make(chan struct{}, adoptAtOnce)
	known := make(map[string]bool, len(records))
	for _, r := range records {
		known[r.ID] = true
		places <- struct{}{}
		wg.Go(func() {
			defer func() { <-places }()
			found, processes, err := e.adopt(ctx, recoverer, r, patience)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err != nil:
				report.Refused = append(report.Refused, fmt.Errorf("adopting sandbox %s: %w", r.Name, err))
			case found == nil:
				report.Gone++
			case r.State == sandpit.StateCreating:
				report.Half++
			case found.present() == sandpit.StateFailed:
				report.Failed++
			default:
				report.Adopted++
				report.Processes += processes
			}
		})
	}
	wg.Wait()
	if err := ctx.Err(); err != nil {
		return report, err
	}
	e.sweepLogs(known)
	e.sweepDriver(ctx)
	e.Warm()
	return report, nil
}

// adopt takes one sandbox over. It returns none for one that is gone.
func (e *Engine) adopt(ctx context.Context, recoverer driver.Recoverer, r Record, patience time.Time) (*Sandbox, int, error) {
	var d data
	if err := json.Unmarshal(r.Data, &d); err != nil {
		return nil, 0, fmt.Errorf("reading its record: %w", err)
	}
	if d.Version > dataVersion || d.Handle != nil && d.Handle.Version > driver.HandleVersion {
		return nil, 0, sandpit.WithHint(fmt.Errorf("its record is of a newer version: %w", sandpit.ErrUnsupported), "use the version of sandpit that made it, or a newer one")
	}
	s := e.newSandbox(r.ID, r.Namespace)
	s.name, s.created, s.labels, s.image = r.Name, r.CreatedAt, d.Labels, d.Config
	s.info = sandpit.Info{ID: r.ID, Name: r.Name, Image: d.Image, Driver: e.opts.Driver.Name(), Limits: d.Limits, NotEnforced: d.NotEnforced}
	s.deadline, s.idle, s.onExpiry, s.over, s.most, s.reason = d.Deadline, d.Idle, d.OnExpiry, d.Over, d.Most, d.Reason
	s.demand = demand{d.Limits.Memory, d.Limits.CPUs, 1}
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
	switch {
	case r.State == sandpit.StateCreating && (err == nil || errors.Is(err, sandpit.ErrNotFound)):
		if err == nil {
			err = instance.Destroy(ctx)
		}
		if err != nil && !errors.Is(err, sandpit.ErrNotFound) {
			return nil, 0, fmt.Errorf("cleaning it away: %w", err)
		}
		return s, 0, s.drop()
	case errors.Is(err, sandpit.ErrNotFound) && r.State != sandpit.StateFailed:
		s.event(sandpit.EventRemoved, "gone")
		return nil, 0, s.drop()
	case err == nil:
		s.instance = instance
	case r.State == sandpit.StateFailed, errors.Is(err, sandpit.ErrClosed):
		s.instance = absent{}
	default:
		return nil, 0, err
	}

	if s.logs, err = logstore.Open(s.logDir(), logstore.Options{MaxBytes: e.opts.LogBytes}); err != nil {
		// What was written can't be read. The sandbox has no part in that.
		s.logs, _ = logstore.Open("", logstore.Options{})
	}
	processes, state := 0, sandpit.StateFailed
	if r.State != sandpit.StateFailed {
		processes, state, err = s.resume(ctx, r.State)
		if errors.Is(err, sandpit.ErrClosed) && s.dying() {
			// It was being removed when its owner died.
			if err := s.instance.Destroy(ctx); err != nil {
				return nil, 0, err
			}
			s.logs.Close()
			s.event(sandpit.EventRemoved, "gone")
			return nil, 0, s.drop()
		}
		if err != nil {
			state, s.reason = sandpit.StateFailed, "it could not be adopted: "+err.Error()
		}
	}
	if state == sandpit.StateFailed {
		if s.guest != nil {
			s.guest.Close()
		}
		_ = s.instance.Destroy(ctx)
		s.instance = absent{}
	}
	s.touch()
	s.mu.Lock()
	s.state = state
	if state == sandpit.StateRunning {
		s.reason, s.over = "", false
	}
	s.arm()
	s.mu.Unlock()
	e.enter(s)
	if state != r.State {
		if err := s.save(ctx); err != nil {
			return nil, 0, err
		}
	}
	if state != sandpit.StateFailed {
		go s.watch()
	}
	return s, processes, nil
}

// dying reports whether the guest is dead, or about to be.
func (s *Sandbox) dying() bool {
	if s.guest != nil {
		s.guest.Close()
	}
	select {
	case <-s.instance.Done():
		return true
	case <-time.After(deathPatience):
		return false
	}
}

// deathPatience is how long a guest that has been killed may take to be dead.
const deathPatience = 2 * time.Second

// enter registers a sandbox that is there.
func (e *Engine) enter(s *Sandbox) {
	e.gate.claim(s.demand)
	e.mu.Lock()
	e.space(s.namespace).insert(s)
	e.mu.Unlock()
	e.measure()
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
	return e.opts.Store.DeleteSandbox(context.Background(), s.id)
}

// resume connects to the guest and finds its processes. It returns how many run,
// and the state that the sandbox is in.
func (s *Sandbox) resume(ctx context.Context, was sandpit.State) (running int, state sandpit.State, err error) {
	ctx, cancel := context.WithTimeout(ctx, adoptPatience)
	defer cancel()
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
		}
	}
	conn, err := s.instance.Dial(ctx)
	if err != nil {
		return 0, "", err
	}
	if s.guest, err = client.New(ctx, conn, client.Options{Output: s.info.Limits.Output}); err != nil {
		return 0, "", err
	}
	list, err := s.guest.Processes(ctx)
	if err != nil {
		return 0, "", err
	}
	s.oomKills()
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
		err = freezer.Freeze(ctx)
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

// findAgain makes the hub of a process that was started by another engine. Who
// waited for it is gone, so it is one in the background now.
func (s *Sandbox) findAgain(ctx context.Context, p client.ProcessInfo) error {
	h := s.newHub(keptOutput)
	h.oomKills = s.oomSeen.Load()
	h.info = sandpit.ProcessInfo{
		ID: processID(p.Ref), PID: p.PID, Argv: p.Command, User: p.User,
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
		h.once.Do(func() {
			h.ended, h.result = true, p.Result
			close(h.done)
		})
		s.enlist(h)
	case errors.Is(err, sandpit.ErrNotFound): // it has just gone
	default:
		return err
	}
	return nil
}

// chunk enters a piece of output, or of what is not kept any more.
func (h *hub) chunk(c client.Chunk) error {
	<-h.ready
	if c.Lost > 0 {
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

// absent stands for an instance that is not there any more.
type absent struct{}

func (absent) Handle() driver.Handle { return driver.Handle{Version: driver.HandleVersion} }

func (absent) Dial(context.Context) (net.Conn, error) {
	return nil, fmt.Errorf("dialling the guest: %w", sandpit.ErrClosed)
}

func (absent) Stats(context.Context) (sandpit.Metrics, error) {
	return sandpit.UnknownMetrics(), nil
}

func (absent) Done() <-chan struct{} {
	done := make(chan struct{})
	close(done)
	return done
}

func (absent) Destroy(context.Context) error { return nil }

// isID reports whether a name can be one that NewID has returned.
func isID(name string) bool {
	return len(name) == 16 && strings.Trim(name, "abcdefghijklmnopqrstuvwxyz234567") == ""
}

// sweepLogs removes the logs of sandboxes that nobody knows.
func (e *Engine) sweepLogs(known map[string]bool) {
	if e.opts.Dir == "" {
		return
	}
	entries, _ := os.ReadDir(e.opts.Dir)
	for _, entry := range entries {
		if name := entry.Name(); entry.IsDir() && isID(name) && !known[name] {
			_ = os.RemoveAll(filepath.Join(e.opts.Dir, name))
		}
	}
}
