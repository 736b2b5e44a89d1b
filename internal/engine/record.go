package engine

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/driver"
	"github.com/sandpit-dev/sandpit/internal/fault"
	"github.com/sandpit-dev/sandpit/internal/guest/client"
	"github.com/sandpit-dev/sandpit/internal/guest/spawn"
	"github.com/sandpit-dev/sandpit/internal/image"
)

// dataVersion is the version of data that this program writes. It reads earlier versions,
// and refuses later ones.
const dataVersion = 2

// data is Record.Data: what an engine needs to adopt a sandbox.
type data struct {
	Version     int               `json:"version"`
	Driver      string            `json:"driver"`
	Handle      *driver.Handle    `json:"handle,omitempty"` // none while it is made, and once it is gone
	Made        json.RawMessage   `json:"made"`             // as encodeMade returns it
	Labels      map[string]string `json:"labels,omitempty"`
	Image       string            `json:"image"`
	Config      image.Config      `json:"config"`
	Limits      sandpit.Limits    `json:"limits"`
	Egress      *granted          `json:"egress,omitempty"`   // none: nothing is reached
	Secrets     map[string]string `json:"secrets,omitempty"`  // the placeholders of secrets that are bound to hosts, by name
	Changing    bool              `json:"changing,omitempty"` // other limits may be in force
	NotEnforced []sandpit.Gap     `json:"not_enforced,omitempty"`
	Deadline    time.Time         `json:"deadline,omitzero"`
	Idle        time.Duration     `json:"idle,omitempty"`
	OnExpiry    sandpit.Expiry    `json:"on_expiry"`
	Expired     bool              `json:"over,omitempty"`
	MaxLife     time.Duration     `json:"most,omitempty"` // how long it may live in all; 0: no bound
	Reason      string            `json:"reason,omitempty"`
	Began       time.Time         `json:"began,omitzero"` // Sandbox.began

	Dialects map[string]json.RawMessage `json:"dialects,omitempty"` // see Sandbox.SetDialect
}

// readData reads Record.Data of any version up to dataVersion, and returns it in that.
// Version 1 did not say what the sandbox was made with: of that the name, the image, the
// limits and what is known of the guest's configuration remain.
func readData(r Record) (data, error) {
	var d data
	if err := json.Unmarshal(r.Data, &d); err != nil {
		return d, fmt.Errorf("reading its record: %w", err)
	}
	if d.Version > dataVersion || d.Handle != nil && d.Handle.Version > driver.HandleVersion {
		return d, sandpit.WithHint(fault.Errorf(sandpit.ErrUnsupported, "its record has a newer version"), "use the version of Sandpit that created it, or a newer one")
	}
	if d.Version > 1 {
		return d, nil
	}
	d.Version, d.Driver = dataVersion, "linux" // the only one that there was
	if d.Handle != nil {
		d.Driver = cmp.Or(d.Handle.Driver, d.Driver)
	}
	var err error
	d.Made, _, err = encodeMade(Made{
		Spec: sandpit.Spec{Name: splitName(r.Name).name, Image: d.Image, Limits: d.Limits, Labels: d.Labels, Idle: d.Idle, OnExpiry: d.OnExpiry},
		Guest: client.Config{
			User: d.Config.User, Dir: d.Config.WorkingDir, Output: d.Limits.Output, NoFile: d.Limits.NoFile,
			RootCaps: spawn.RootCapabilities, OOMScoreAdj: oomScoreAdj,
		},
	})
	return d, err
}

// record returns the record of the sandbox as it is now, or with other settings if next is
// not nil.
func (s *Sandbox) record(next *settings) (Record, error) {
	x := s.settings()
	if next != nil {
		x = *next
	}
	s.mu.Lock()
	d := data{
		Version: dataVersion, Driver: s.info.Driver, Made: s.origin, Labels: x.labels, Image: s.info.Image, Config: s.image,
		Limits: x.limits, Changing: x.changing, NotEnforced: s.info.NotEnforced, Deadline: x.deadline,
		Idle: x.idle, OnExpiry: x.onExpiry, Expired: x.expired, MaxLife: s.maxLife, Reason: s.reason, Secrets: s.placeholders, Began: s.began, Dialects: maps.Clone(s.dialects),
	}
	if s.hasEgress(x.egress) || s.network != nil {
		d.Egress = &x.egress
	}
	r := Record{ID: s.id, Namespace: s.namespace, Name: s.called(x.name).String(), State: s.state, CreatedAt: s.created, Secret: s.secret, NewSecret: s.newSecret}
	if s.unstarted != nil { // also while it is started: after a crash it can be started again
		r.State = sandpit.StateCreated
	}
	s.mu.Unlock()
	if r.State != sandpit.StateCreated && r.State != sandpit.StateCreating && s.instance != nil {
		if h := s.instance.Handle(); h.Driver != "" { // not that of one that is gone
			d.Handle = &h
		}
	}
	var err error
	if r.Data, err = json.Marshal(d); err != nil {
		return r, fmt.Errorf("writing the record of sandbox %s: %w", s.Name(), err)
	}
	return r, nil
}

// save writes the record, if the sandbox is persistent.
func (s *Sandbox) save(ctx context.Context) error {
	s.saving.Lock() // so that an earlier state does not replace a later one
	defer s.saving.Unlock()
	return s.put(ctx, nil)
}

// put writes the record, or removes it if erase was called. Precondition: s.saving is held.
func (s *Sandbox) put(ctx context.Context, next *settings) error {
	if s.erasing {
		return s.unrecord()
	}
	s.mu.Lock()
	removed := s.removed
	s.mu.Unlock()
	if removed || !s.persistent {
		return nil
	}
	r, err := s.record(next)
	if err != nil {
		return err
	}
	err = s.engine.opts.Store.PutSandbox(ctx, r)
	s.newSecret = s.newSecret && err != nil
	full, stopped := errors.Is(err, sandpit.ErrExhausted), r.State == sandpit.StateStopped
	switch { // a disk that hangs is not asked for more
	case full && stopped:
		_ = s.mark(ctx, true, stopMark)
		s.noted = true
	case s.noted && (err == nil || full):
		_ = s.mark(ctx, false, stopMark)
		s.noted = false
	}
	return err
}

// saveSettings writes the record with other settings, which are then in force, unless the removal has
// begun meanwhile.
func (s *Sandbox) saveSettings(ctx context.Context, next *settings) error {
	s.saving.Lock()
	defer s.saving.Unlock()
	if err := s.put(ctx, next); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.removing {
		return s.closedError()
	}
	s.setName(next.name)
	s.info.Name, s.labels, s.info.Limits, s.expiry = next.name, next.labels, next.limits, next.expiry
	s.egress, s.changing = next.egress, next.changing
	s.arm()
	return nil
}

// saveLater queues the record to be written when the store can take it.
func (s *Sandbox) saveLater() {
	s.engine.unwritten.add(s)
}

// saveChange writes the record of a completed change of the state. If the store can't take
// it now, the change stands, and the record is written later; until then Adopt finds the
// state out from the sandbox.
func (s *Sandbox) saveChange(ctx context.Context) error {
	err := s.save(context.WithoutCancel(ctx))
	if errors.Is(err, sandpit.ErrExhausted) || errors.Is(err, sandpit.ErrUnavailable) {
		s.saveLater()
		return nil
	}
	return err
}

// erase removes the record of a sandbox that is gone, now or later: a removal does not wait
// for a full disk. Nothing writes the record from then on.
func (s *Sandbox) erase() {
	s.saving.Lock()
	s.erasing = true
	err := s.unrecord()
	s.saving.Unlock()
	if err != nil {
		s.saveLater()
	}
}

// unrecord removes the record, and then the marks. Precondition: s.saving is held.
func (s *Sandbox) unrecord() error {
	if s.erased {
		return nil
	}
	if err := s.engine.opts.Store.DeleteSandbox(context.Background(), s.id); err != nil {
		return err
	}
	s.erased = true
	_ = s.mark(context.Background(), false, marks()...)
	return nil
}

// unwritten has the sandboxes whose records the store could not take. They are retried with
// their present state.
type unwritten struct {
	flushing sync.Mutex // held while records are written; taken before mu

	mu     sync.Mutex // not held while records are written
	all    map[*Sandbox]struct{}
	timer  *time.Timer // nil: none is set, and no retry is under way
	closed bool
}

// writeRetry is the time to wait after a failed write.
const writeRetry = 2 * time.Second

// add queues the record of a sandbox to be retried.
func (u *unwritten) add(s *Sandbox) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.all == nil {
		u.all = map[*Sandbox]struct{}{}
	}
	u.all[s] = struct{}{}
	u.schedule()
}

// schedule retries failed writes later. Precondition: u.mu is held.
func (u *unwritten) schedule() {
	if u.timer == nil && !u.closed && len(u.all) > 0 {
		u.timer = time.AfterFunc(writeRetry, u.retry)
	}
}

func (u *unwritten) retry() {
	u.flush()
	u.mu.Lock()
	defer u.mu.Unlock()
	u.timer = nil
	u.schedule()
}

// flush writes the queued records that the store can take.
func (u *unwritten) flush() {
	u.flushing.Lock()
	defer u.flushing.Unlock()
	u.mu.Lock()
	all := slices.Collect(maps.Keys(u.all))
	u.mu.Unlock()
	for _, s := range all {
		u.mu.Lock()
		delete(u.all, s) // before: it may be added again meanwhile
		u.mu.Unlock()
		if s.save(context.Background()) != nil {
			u.add(s)
			return
		}
	}
}

// close tries a last time.
func (u *unwritten) close() {
	u.mu.Lock()
	u.closed = true
	if u.timer != nil {
		u.timer.Stop()
	}
	u.mu.Unlock()
	u.flush()
}
