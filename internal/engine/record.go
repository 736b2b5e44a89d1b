package engine

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/driver"
	"github.com/sandpit-dev/sandpit/internal/image"
)

// dataVersion is the version of data that this program writes. It reads those
// before it, and refuses later ones.
const dataVersion = 1

// data is Record.Data: what an engine needs to take a sandbox over.
type data struct {
	Version     int               `json:"version"`
	Handle      *driver.Handle    `json:"handle,omitempty"` // none while it is made
	Labels      map[string]string `json:"labels,omitempty"`
	Image       string            `json:"image"`
	Config      image.Config      `json:"config"`
	Limits      sandpit.Limits    `json:"limits"`
	NotEnforced []sandpit.Gap     `json:"not_enforced,omitempty"`
	Deadline    time.Time         `json:"deadline,omitzero"`
	Idle        time.Duration     `json:"idle,omitempty"`
	OnExpiry    sandpit.Expiry    `json:"on_expiry"`
	Over        bool              `json:"over,omitempty"`
	Most        time.Duration     `json:"most,omitempty"` // how long it may live in all; 0: no bound
	Reason      string            `json:"reason,omitempty"`
}

// record returns what is to be kept of the sandbox as it is now.
func (s *Sandbox) record() (Record, error) {
	s.mu.Lock()
	d := data{
		Version: dataVersion, Labels: s.labels, Image: s.info.Image, Config: s.image,
		Limits: s.info.Limits, NotEnforced: s.info.NotEnforced, Deadline: s.deadline,
		Idle: s.idle, OnExpiry: s.onExpiry, Over: s.over, Most: s.most, Reason: s.reason,
	}
	r := Record{ID: s.id, Namespace: s.namespace, Name: s.name, State: s.state, CreatedAt: s.created}
	s.mu.Unlock()
	if r.State != sandpit.StateCreating && s.instance != nil {
		h := s.instance.Handle()
		d.Handle = &h
	}
	var err error
	if r.Data, err = json.Marshal(d); err != nil {
		return r, fmt.Errorf("writing the record of sandbox %s: %w", s.name, err)
	}
	return r, nil
}

// save writes the record, if the sandbox is to be kept.
func (s *Sandbox) save(ctx context.Context) error {
	if !s.kept {
		return nil
	}
	s.saving.Lock() // so that an earlier state does not replace a later one
	defer s.saving.Unlock()
	s.mu.Lock()
	removed := s.removed
	s.mu.Unlock()
	if removed {
		return nil
	}
	r, err := s.record()
	if err != nil {
		return err
	}
	return s.engine.opts.Store.PutSandbox(ctx, r)
}

// deletions removes the records of sandboxes that are gone, and tries again
// when the store can't do it now: a removal does not wait for a full disk.
type deletions struct {
	mu     sync.Mutex
	failed map[string]Store
	timer  *time.Timer
	closed bool
}

// deleteRetry is how long to wait after a record could not be removed.
const deleteRetry = 2 * time.Second

// add removes a record now, or else later, and reports whether it is removed.
func (d *deletions) add(store Store, id string) bool {
	if store.DeleteSandbox(context.Background(), id) == nil {
		return true
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.failed == nil {
		d.failed = map[string]Store{}
	}
	d.failed[id] = store
	d.schedule()
	return false
}

// schedule has what failed tried again. Precondition: d.mu is held.
func (d *deletions) schedule() {
	if d.timer == nil && !d.closed && len(d.failed) > 0 {
		d.timer = time.AfterFunc(deleteRetry, d.retry)
	}
}

func (d *deletions) retry() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.timer = nil
	if d.closed {
		return
	}
	for id, store := range d.failed {
		if store.DeleteSandbox(context.Background(), id) != nil {
			break
		}
		delete(d.failed, id)
	}
	d.schedule()
}

func (d *deletions) close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closed = true
	if d.timer != nil {
		d.timer.Stop()
	}
}
