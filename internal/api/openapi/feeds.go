package openapi

import (
	"reflect"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"github.com/sandpit-dev/sandpit/internal/api"
	v1 "github.com/sandpit-dev/sandpit/internal/api/v1"
)

// feedContent returns the schema of a stream in a media type. OpenAPI 3.1 has no word for
// streams: the content is text, whose parts have the schema contentSchema. Generators would
// read a stream to its end and parse it as one JSON value if it were described as a list.
// A server-sent event is described as an object of its name, its position and the JSON of
// its data. All of them are named, so that generated types have names.
func feedContent(kind string, feed *api.Feed, schemas huma.Registry) *huma.Schema {
	of := func(v any) *huma.Schema { return schemas.Schema(reflect.TypeOf(v), true, "") }
	reference := func(name string, s *huma.Schema) *huma.Schema {
		schemas.Map()[name] = s
		return &huma.Schema{Ref: "#/components/schemas/" + name}
	}
	content := func(item *huma.Schema) *huma.Schema {
		return &huma.Schema{Type: huma.TypeString, Extensions: map[string]any{"contentMediaType": kind, "contentSchema": item}}
	}
	stem := strings.TrimSuffix(feed.Name, "Item")
	if kind == "application/x-ndjson" {
		return content(reference(strings.TrimSuffix(stem, "Stream")+"Line", &huma.Schema{
			Description: "A line of a stream", OneOf: []*huma.Schema{of(feed.Lines), of(v1.LastLine{})},
		}))
	}
	item := &huma.Schema{
		Description:   "A server-sent event, whose data is JSON",
		Discriminator: &huma.Discriminator{PropertyName: "event", Mapping: map[string]string{}},
	}
	for _, e := range feed.Events {
		name := &huma.Schema{Type: huma.TypeString}
		s := &huma.Schema{
			Type: huma.TypeObject, Required: []string{"event", "data"},
			Properties: map[string]*huma.Schema{"event": name, "data": of(e.Of)},
		}
		if e.ID {
			s.Properties["id"] = &huma.Schema{Type: huma.TypeString, Description: "The position, a number"}
		}
		variant := reference(stem+reflect.TypeOf(e.Of).Name(), s)
		for _, n := range e.Names {
			name.Enum = append(name.Enum, n)
			item.Discriminator.Mapping[n] = variant.Ref
		}
		// The data of some events repeats their name.
		data := reflect.TypeOf(e.Of).Name()
		for field, list := range map[string]string{"kind": data + "Kind", "stream": "OutputStream"} {
			if same := schemas.Map()[data].Properties[field]; same != nil {
				*same = *reference(list, &huma.Schema{Type: huma.TypeString, Enum: name.Enum})
				*name = *same
			}
		}
		item.OneOf = append(item.OneOf, variant)
	}
	return content(reference(feed.Name, item))
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
