package client

import (
	"context"
	"iter"
	"net/http"

	"github.com/sandpit-dev/sandpit"
	v1 "github.com/sandpit-dev/sandpit/internal/api/v1"
)

// RemoveAll removes the sandboxes that a query selects: without a filter, all that are visible
// to this client. It ignores After, Limit and NewestFirst. It yields the ID and name of each sandbox once,
// with an error if that could not be removed, and the others are removed all the same. An
// error without a sandbox ends it. If the caller stops, some sandboxes may be removed that it
// has not seen.
func (c *Client) RemoveAll(ctx context.Context, q sandpit.ListQuery) iter.Seq2[sandpit.Info, error] {
	return func(yield func(sandpit.Info, error) bool) {
		query, err := filterQuery(q)
		if err != nil {
			yield(sandpit.Info{}, err)
			return
		}
		if len(query) == 0 {
			query.Set("all", "true")
		}
		for {
			var part v1.RemovedList
			if err := c.call(ctx, request{method: http.MethodDelete, path: "/v1/sandboxes", query: query}, &part); err != nil {
				yield(sandpit.Info{}, err)
				return
			}
			for _, r := range part.Sandboxes {
				var err error
				if r.Error != nil {
					err = hinted(told(*r.Error), r.Error.Hint)
				}
				if !yield(sandpit.Info{ID: r.ID, Name: r.Name}, err) {
					return
				}
			}
			if part.Next == "" {
				return
			}
			if part.Next == query.Get("after") {
				yield(sandpit.Info{}, badAnswer("the same part of a removal again"))
				return
			}
			query.Set("after", part.Next)
		}
	}
}
