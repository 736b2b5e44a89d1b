package api

import (
	"github.com/sandpit-dev/sandpit"
	v1 "github.com/sandpit-dev/sandpit/internal/api/v1"
)

// Feed describes the events of a stream, for the reference.
type Feed struct {
	Name   string // of the schema of an event
	Events []Event
	Lines  any // the JSON of a line, if the stream also comes in lines, the last of which is a v1.LastLine
}

// Event describes events of a stream.
type Event struct {
	Names []string // of the events
	Of    any      // the JSON of their data: a value of its type
	ID    bool     // they have a position, as id
}

// ended is the last event of each feed.
func ended(id bool) Event { return Event{Names: []string{"end"}, Of: v1.End{}, ID: id} }

func processFeed() *Feed {
	return &Feed{Name: "ProcessStreamItem", Events: []Event{
		{Names: []string{"started"}, Of: v1.Process{}},
		{Names: []string{"stdout", "stderr"}, Of: v1.Output{}},
		{Names: []string{"lost"}, Of: v1.Lost{}},
		{Names: []string{"result"}, Of: v1.Result{}},
		ended(false),
	}}
}

func codeFeed() *Feed {
	return &Feed{Name: "CodeStreamItem", Events: []Event{
		{Names: []string{"waiting"}, Of: v1.CodeWaiting{}},
		{Names: []string{"stdout", "stderr"}, Of: v1.Output{}},
		{Names: []string{"output"}, Of: v1.CodeOutput{}},
		{Names: []string{"result"}, Of: v1.CodeResult{}},
		ended(false),
	}}
}

func logFeed() *Feed {
	return &Feed{Name: "LogStreamItem", Lines: sandpit.LogEntry{}, Events: []Event{{Names: []string{"stdout", "stderr"}, Of: sandpit.LogEntry{}, ID: true}, ended(true)}}
}

func eventFeed() *Feed {
	return &Feed{Name: "EventStreamItem", Events: []Event{{Names: []string{"begin"}, Of: v1.Begin{}, ID: true}, {Names: append(eventKinds(), string(sandpit.EventLost)), Of: sandpit.Event{}, ID: true}, ended(true)}}
}

func fileFeed() *Feed {
	kinds := []string{}
	for _, k := range [...]sandpit.WatchKind{sandpit.WatchReady, sandpit.WatchCreate, sandpit.WatchWrite, sandpit.WatchRemove, sandpit.WatchRename, sandpit.WatchChmod, sandpit.WatchOverflow} {
		kinds = append(kinds, string(k))
	}
	return &Feed{Name: "FileStreamItem", Events: []Event{{Names: kinds, Of: sandpit.FileEvent{}}, ended(false)}}
}
