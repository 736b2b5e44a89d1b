package api

import (
	"context"
	"fmt"
	"net/http"
	"strconv"

	"github.com/sandpit-dev/sandpit"
)

func eventRoutes() []Route {
	const tag = "Server"
	return []Route{
		{Method: http.MethodGet, Path: "/v1/events", ID: "followEvents", Tag: tag, Summary: "Follow the events of sandboxes and processes", Text: "The latest 10,000 events are stored. An events.lost event means that some are missing.", Query: []Param{{Name: "after", Type: "integer", Doc: "Only events with a greater seq; default: new events only. The header Last-Event-ID has the same effect."}}, Status: http.StatusOK, Other: []string{eventStream}, handle: followEvents},
	}
}

func followEvents(c *call) error {
	q := c.query()
	after := q.number("after", maxSeq)
	if last := c.R.Header.Get("Last-Event-ID"); last != "" && !q.values.Has("after") {
		n, err := strconv.ParseUint(last, 10, 64)
		if err != nil {
			q.fail("Last-Event-ID", "is not a number")
		}
		after = n
	}
	if q.err != nil {
		return q.err
	}
	client := c.api.opts.Backend.Client(c.Caller)
	return follow(c, eventStream, true, func(ctx context.Context) seq[sandpit.Event] { return client.Events(ctx, after) },
		func(e sandpit.Event) (event, id string) { return string(e.Kind), fmt.Sprint(e.Seq) })
}
