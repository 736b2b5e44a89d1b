package api

import (
	"context"
	"fmt"
	"iter"
	"net/http"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/api/stream"
)

func eventRoutes() []Route {
	const tag = "Server"
	return []Route{
		{Method: http.MethodGet, Path: "/v1/events", ID: "followEvents", Tag: tag, Summary: "Follow the events of sandboxes and processes", Text: "The latest 10,000 events are stored. An events.lost event means that some are missing.", Query: []Param{labelParam(), {Name: "kind", Type: "string", Many: true, Enum: eventKinds(), Doc: "If repeated, one must match"}, {Name: "sandbox", Type: "string", Doc: "Its id, or its name at the time of the event"}, {Name: "after", Type: "integer", Doc: "Only events with a greater seq; default: new events only. The header Last-Event-ID has the same effect; the greater of both counts."}}, Status: http.StatusOK, Other: []string{stream.Events}, handle: followEvents},
	}
}

func eventKinds() []string {
	var all []string
	for _, k := range sandpit.EventKinds() {
		all = append(all, string(k))
	}
	return all
}

func followEvents(c *call) error {
	q := c.query()
	events := sandpit.EventQuery{Kinds: texts[sandpit.EventKind](q, "kind"), Sandbox: q.text("sandbox")}
	events.Labels, events.HasLabels = q.labels()
	events.After, _ = c.after(q)
	if q.err != nil {
		return q.err
	}
	client := c.api.opts.Backend.Client(c.Caller)
	return stream.Follow(c.Call, stream.Events, true, func(ctx context.Context) iter.Seq2[sandpit.Event, error] { return client.Events(ctx, events) },
		func(e sandpit.Event) (event, id string) { return string(e.Kind), fmt.Sprint(e.Seq) })
}
