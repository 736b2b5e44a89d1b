package api

import (
	"context"
	"iter"
	"net/http"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/api/stream"
)

func eventRoutes() []Route {
	const tag = "Events"
	return []Route{
		{Method: http.MethodGet, Path: "/v1/events", ID: "followEvents", Ticket: true, Tag: tag, Summary: "Follow the events of sandboxes and processes", Text: "The first event is begin, with the position at which the stream begins. Pings and the last event have the position that the stream has reached, which counts events that are not selected, too. The latest 10,000 events are stored. An events.lost event means that some are missing, and the stream ends with the reason lost.", Query: []Param{labelParam(), {Name: "kind", Type: "string", Many: true, Enum: eventKinds(), Doc: "If repeated, one must match"}, {Name: "sandbox", Type: "string", Doc: "Its id, or its name at the time of the event"}, {Name: "after", Type: "integer", Doc: "Only events with a greater seq; default: new events only. The header Last-Event-ID has the same effect; the greater of both counts."}}, Status: http.StatusOK, Other: []string{stream.Events}, Feed: eventFeed(), handle: followEvents},
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
	if events.After == 0 { // the client must know where it is before the first event
		page, err := client.List(c.Ctx, sandpit.ListQuery{Limit: 1})
		if err != nil {
			return err
		}
		events.After = page.Seq
	}
	return stream.Follow(c.Call, stream.Events, stream.Source[sandpit.Event]{
		Live: true, After: events.After, Begin: true,
		All: func(ctx context.Context) iter.Seq2[sandpit.Event, error] {
			return untilLost(client.Events(ctx, sandpit.EventQuery{After: events.After}))
		},
		Name: func(e sandpit.Event) (event string, seq uint64) {
			if !events.Matches(e) {
				return "", e.Seq
			}
			return string(e.Kind), e.Seq
		},
	})
}

// untilLost returns events until some are missing, and then stream.ErrLost: a client that
// knows no kinds of events notices that, too.
func untilLost(all iter.Seq2[sandpit.Event, error]) iter.Seq2[sandpit.Event, error] {
	return func(yield func(sandpit.Event, error) bool) {
		for e, err := range all {
			if !yield(e, err) {
				return
			}
			if e.Kind == sandpit.EventLost {
				yield(sandpit.Event{}, stream.ErrLost)
				return
			}
		}
	}
}
