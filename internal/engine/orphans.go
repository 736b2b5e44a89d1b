package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/driver"
)

// A record is written before its sandbox is made, and removed after it, so a
// sandbox that runs without one is an orphan: its record was lost with the
// database, or the database is an older one. Whose it was, nobody can tell: it is
// given to nobody, and is not destroyed unless the operator says so.

// ErrOrphans is the error of Adopt when sandboxes run that the store has no
// record of. It matches sandpit.ErrState.
var ErrOrphans error = orphansError{}

type orphansError struct{}

func (orphansError) Error() string {
	return "it was lost, or is older than they are"
}
func (orphansError) Is(target error) bool { return target == sandpit.ErrState }

// maxNamed bounds how many orphans an error names.
const maxNamed = 8

// orphans returns the IDs of the sandboxes that run here without a record.
func (e *Engine) orphans(ctx context.Context, recoverer driver.Recoverer, records []Record) ([]string, error) {
	kept := make(chan []string, 1)
	t := e.work("looking for sandboxes without a record", nil, e.opts.Patience.Orphans, func(ctx context.Context) error {
		ids, err := recoverer.Kept(ctx)
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

// refuseOrphans returns ErrOrphans when there are any.
func refuseOrphans(ids []string) error {
	if len(ids) == 0 {
		return nil
	}
	names := strings.Join(ids[:min(len(ids), maxNamed)], ", ")
	if len(ids) > maxNamed {
		names += fmt.Sprintf(" and %d more", len(ids)-maxNamed)
	}
	return sandpit.WithHint(fmt.Errorf("the state has no record of sandboxes that run here (%s): %w", names, ErrOrphans),
		"restore the directory state from its latest backup; or destroy these sandboxes with 'sandpit serve --remove-orphans'")
}

// RemoveOrphans destroys the sandboxes that run here without a record, and
// returns their IDs. It is called before Adopt.
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
	var errs []error
	for _, id := range ids {
		err := e.work("destroying it", nil, e.opts.Patience.Remove, func(ctx context.Context) error {
			instance, err := recoverer.Recover(ctx, driver.Handle{Version: driver.HandleVersion, Driver: e.opts.Driver.Name(), ID: id})
			if err == nil {
				err = instance.Destroy(ctx)
			}
			if err == nil || errors.Is(err, sandpit.ErrNotFound) {
				err = e.opts.Images.Unkeep(id)
			}
			return err
		}).wait(ctx)
		if err != nil {
			errs = append(errs, fmt.Errorf("removing orphan %s: %w", id, err))
		}
	}
	return ids, errors.Join(errs...)
}
