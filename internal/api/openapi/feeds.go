package openapi

import (
	"reflect"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"github.com/sandpit-dev/sandpit/internal/api"
	v1 "github.com/sandpit-dev/sandpit/internal/api/v1"
)

// feedContent returns the schema of a stream in a media type. OpenAPI 3.1 has no word for
// streams: like other generators it describes one as a list of its events, each with its
// name and the JSON of its data, or of its lines.
func feedContent(kind string, feed *api.Feed, schemas huma.Registry) *huma.Schema {
	of := func(v any) *huma.Schema { return schemas.Schema(reflect.TypeOf(v), true, "") }
	if kind == "application/x-ndjson" {
		return &huma.Schema{Type: huma.TypeArray, Description: "One per line", Items: &huma.Schema{OneOf: []*huma.Schema{of(feed.Lines), of(v1.LastLine{})}}}
	}
	event := &huma.Schema{Description: "A server-sent event, whose data is JSON"}
	for _, e := range feed.Events {
		name := &huma.Schema{Type: huma.TypeString}
		for _, n := range e.Names {
			name.Enum = append(name.Enum, n)
		}
		s := &huma.Schema{
			Type: huma.TypeObject, Title: feed.Name + " " + e.Names[0], Required: []string{"event", "data"},
			Properties: map[string]*huma.Schema{"event": name, "data": of(e.Of)},
		}
		if e.ID {
			s.Properties["id"] = &huma.Schema{Type: huma.TypeString, Description: "The position, a number"}
		}
		event.OneOf = append(event.OneOf, s)
	}
	schemas.Map()[feed.Name] = event
	return &huma.Schema{Type: huma.TypeArray, Items: &huma.Schema{Ref: "#/components/schemas/" + feed.Name}}
}

// shownEvent is an event on the page.
type shownEvent struct{ Names, Type string }

// shown returns the events of a feed for the page.
func shown(feed *api.Feed) (all []shownEvent) {
	if feed == nil {
		return nil
	}
	for _, e := range feed.Events {
		all = append(all, shownEvent{strings.Join(e.Names, ", "), reflect.TypeOf(e.Of).Name()})
	}
	return all
}
