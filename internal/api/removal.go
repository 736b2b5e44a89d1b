package api

import (
	"errors"
	"net/url"
	"strings"
	"sync"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/api/codec"
	v1 "github.com/sandpit-dev/sandpit/internal/api/v1"
	"github.com/sandpit-dev/sandpit/internal/gate"
)

// Bounds of a removal by filter: an entry of the audit has room for the IDs of so many
// sandboxes.
const (
	maxRemoved    = 50
	removedAtOnce = 8
)

// removeSandboxes removes the sandboxes that a filter selects.
func removeSandboxes(c *call) (v1.RemovedList, error) {
	out := v1.RemovedList{Sandboxes: []v1.Removed{}}
	q := c.query()
	all, filter := q.flag("all", false), q.sandboxes()
	filter.After = q.text("after")
	filtered := len(filter.Labels)+len(filter.HasLabels)+len(filter.States) > 0 || !filter.Since.IsZero() || !filter.Until.IsZero()
	switch {
	case all && filtered:
		q.fail("all", "can't be combined with a filter")
	case !all && !filtered && q.err == nil:
		q.err = gate.Invalid("no filter is given", "give label, state, since or until, or all=true")
	}
	if q.err != nil {
		return out, c.Untouched(q.err)
	}
	asked, _ := url.QueryUnescape(c.R.URL.RawQuery) // which c.query has read
	if err := c.Intend(asked); err != nil {
		return out, err
	}
	client := c.api.opts.Backend.Client(c.Caller)
	filter.Limit = maxRemoved
	page, err := client.List(c.Ctx, filter)
	if err != nil {
		return out, c.Untouched(err)
	}
	if len(page.Sandboxes) == 0 {
		_ = c.Untouched(nil)
	}
	errs, selected := make([]error, len(page.Sandboxes)), make([]bool, len(page.Sandboxes))
	var wait sync.WaitGroup
	places := make(chan struct{}, removedAtOnce)
	for i, info := range page.Sandboxes {
		places <- struct{}{}
		wait.Go(func() {
			defer func() { <-places }()
			defer c.Protect("removing a sandbox", func(err error) { errs[i] = err })
			selected[i], errs[i] = c.api.opts.Backend.RemoveSelected(c.Ctx, c.Caller, info.ID, filter)
		})
	}
	wait.Wait()
	removed, failed := "", ""
	for i, info := range page.Sandboxes {
		if !selected[i] && errs[i] == nil { // its labels or state have changed meanwhile
			continue
		}
		one := v1.Removed{ID: info.ID, Name: info.Name}
		switch err := errs[i]; {
		case errors.Is(err, sandpit.ErrNotFound), errors.Is(err, sandpit.ErrClosed): // by another caller
		case err != nil:
			failed += " " + info.ID
			e := codec.Error(c.Describe(err))
			one.Error = &e
		default:
			removed += " " + info.ID
		}
		out.Sandboxes = append(out.Sandboxes, one)
	}
	c.Detail = strings.TrimSpace("removed" + removed)
	if failed != "" {
		c.Detail += "; failed" + failed
	}
	out.Next = page.Next
	return out, nil
}
