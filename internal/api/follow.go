package api

import (
	"context"
	"errors"
	"iter"
	"strings"

	"github.com/sandpit-dev/sandpit/internal/api/codec"
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
	status, e := codec.Describe(c.Call, err)
	c.NoteOutcome(status, e.Code, err)
	_ = s.line("error", "", e)
	return nil
}
