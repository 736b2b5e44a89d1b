package api

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"strconv"
	"strings"

	"github.com/sandpit-dev/sandpit"
	v1 "github.com/sandpit-dev/sandpit/internal/api/v1"
	"github.com/sandpit-dev/sandpit/internal/gate"
)

type seq[T any] = iter.Seq2[T, error]

// accepts reports whether the client asks for a media type by name.
func (c *call) accepts(kind string) bool {
	return strings.Contains(c.R.Header.Get("Accept"), kind)
}

// follow sends what a source gives, one line or event each, until it ends, the
// client leaves, or the server is about to end. A source that fails before it
// has given anything is an error with a status of its own.
func follow[T any](c *call, kind string, live bool, source func(context.Context) seq[T], name func(T) (event, id string)) error {
	if err := c.OpenStream(); err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(c.Ctx)
	defer cancel(nil)
	defer context.AfterFunc(c.api.gate.Live(), func() { cancel(gate.ErrDraining) })()
	s := newStream(c, kind)
	defer s.close()
	opened := false
	if live {
		// What is followed may say nothing for long. What is wrong from the
		// start shows at once, but for the source's own reading.
		opened = true
		s.open()
	}
	for v, err := range source(ctx) {
		if ctx.Err() != nil {
			break
		}
		if err != nil {
			return c.lastEvent(s, opened, err)
		}
		if !opened {
			opened = true
			s.open()
		}
		event, id := name(v)
		if s.line(event, id, v) != nil {
			break
		}
	}
	if err := c.BrokenOff(); errors.Is(err, gate.ErrKeyEnded) {
		return c.lastEvent(s, opened, err)
	}
	if !opened {
		s.open()
	}
	return nil
}

// lastEvent tells why a stream ends: as an event, or else by its status, or by
// breaking it off.
func (c *call) lastEvent(s *stream, opened bool, err error) error {
	if !opened || s.kind != eventStream {
		return err
	}
	status, e := c.describe(err)
	c.NoteOutcome(status, e.Code, err)
	_ = s.line("error", "", e)
	return nil
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

func watchFiles(c *call) error {
	q := c.query()
	path, recursive := q.text("path"), q.flag("recursive", false)
	if q.err != nil {
		return q.err
	}
	files, err := c.files()
	if err != nil {
		return err
	}
	return follow(c, eventStream, false, func(ctx context.Context) seq[sandpit.FileEvent] { return files.Watch(ctx, path, recursive) },
		func(e sandpit.FileEvent) (event, id string) { return string(e.Kind), "" })
}

// searchAudit answers with a page of the audit.
func searchAudit(c *call) (v1.AuditList, error) {
	out := v1.AuditList{Entries: []v1.Audit{}}
	q := c.query()
	query := AuditQuery{
		Sandbox: q.text("sandbox"), Namespace: q.text("namespace"), Caller: q.text("caller"), Action: q.text("action"), RequestID: q.text("request_id"),
		Since: q.time("since"), Until: q.time("until"), After: q.number("after", maxSeq), Denied: q.flag("denied", false),
	}
	limit := cmp.Or(int(q.number("limit", maxPage)), 100)
	if q.err != nil {
		return out, q.err
	}
	query.Limit = limit + 1
	found, err := c.api.opts.Audit.Search(c.Ctx, query)
	if err != nil {
		return out, err
	}
	if len(found) > limit {
		found = found[:limit]
		out.Next = found[limit-1].Seq
	}
	out.Entries = append(out.Entries, found...)
	return out, nil
}
