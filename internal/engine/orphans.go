package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/driver"
)

// A record is written before its sandbox is made, and removed after it is gone. So a
// sandbox that runs without one is an orphan: its record was lost with the database, or the
// database is an older one. Its namespace is unknown, so nobody gets it, and it is
// destroyed only on the operator's request.

// ErrOrphans is the error of Adopt when sandboxes run that the store has no
// record of. It matches sandpit.ErrState.
var ErrOrphans error = orphansError{}

type orphansError struct{}

func (orphansError) Error() string {
	return "sandboxes are running of which the state has no record"
}
func (orphansError) Is(target error) bool { return target == sandpit.ErrState }

// maxNamed bounds the orphans that an error names.
const maxNamed = 8

// orphans returns the IDs of the sandboxes that run here without a record.
func (e *Engine) orphans(ctx context.Context, recoverer driver.Recoverer, records []Record) ([]string, error) {
	kept := make(chan []string, 1)
	t := e.work("looking for sandboxes without a record", nil, e.opts.Patience.Orphans, func(ctx context.Context) error {
		ids, err := recoverer.Persistent(ctx)
		kept <- ids
		return err
	})
	if err := t.wait(ctx); err != nil {
		return nil, err
	}
	ids := <-kept
	known := make(map[string]bool, len(records))
	for _, r := range records {
		known[r.ID] = true
	}
	ids = slices.DeleteFunc(ids, func(id string) bool { return known[id] })
	slices.Sort(ids)
	return ids, nil
}

// refuseOrphans returns ErrOrphans if there are any.
func refuseOrphans(ids []string) error {
	if len(ids) == 0 {
		return nil
	}
	names := strings.Join(ids[:min(len(ids), maxNamed)], ", ")
	if len(ids) > maxNamed {
		names += fmt.Sprintf(" and %d more", len(ids)-maxNamed)
	}
	return sandpit.WithHint(fmt.Errorf("%w: %s", ErrOrphans, names),
		"restore the directory state from its latest backup, because the database was lost or is an old copy; or destroy these sandboxes with 'sandpit serve --remove-orphans'")
}

// RemoveOrphans destroys the sandboxes that run here without a record. Call it before
// Adopt. It returns the IDs of the removed sandboxes. The error names the others, which are
// stuck or belong to another data directory; RemoveOrphans does not wait for them longer
// than Patience.Remove.
func (e *Engine) RemoveOrphans(ctx context.Context) ([]string, error) {
	recoverer, ok := e.opts.Driver.(driver.Recoverer)
	if !ok || e.opts.Store == nil {
		return nil, nil
	}
	records, err := e.opts.Store.Sandboxes(ctx)
	if err != nil {
		return nil, fmt.Errorf("removing orphans: %w", err)
	}
	ids, err := e.orphans(ctx, recoverer, records)
	if err != nil {
		return nil, fmt.Errorf("removing orphans: %w", err)
	}
	var (
		mu      sync.Mutex
		removed []string
		errs    []error
		wg      sync.WaitGroup
	)
	places := make(chan struct{}, adoptAtOnce)
	for _, id := range ids {
		t := &task{what: "removing", about: "orphan " + id}
		e.start(context.Background(), t, e.opts.Patience.Remove, func(ctx context.Context) error {
			defer takePlace(ctx, places, e.opts.Patience.Remove/2)()
			instance, err := recoverer.Recover(ctx, driver.Handle{Version: driver.HandleVersion, Driver: e.opts.Driver.Name(), ID: id})
			if err == nil {
				err = instance.Destroy(ctx)
			}
			if err == nil || errors.Is(err, sandpit.ErrNotFound) {
				err = e.opts.Images.Unkeep(id)
			}
			return err
		})
		wg.Go(func() {
			err := t.wait(ctx)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil:
				removed = append(removed, id)
			case t.isStuck():
				errs = append(errs, err)
			default:
				errs = append(errs, fmt.Errorf("removing orphan %s: %w", id, err))
			}
		})
	}
	wg.Wait()
	slices.Sort(removed)
	return removed, errors.Join(errs...)
}
