package stream

import (
	"context"
	"errors"
	"iter"
	"net/http"
	"strconv"

	"github.com/sandpit-dev/sandpit/internal/api/codec"
	"github.com/sandpit-dev/sandpit/internal/gate"
)

// Follow sends what a source gives, one line or event each, until it ends, the
// client leaves, or the server is about to end. A source that fails before it
// has given anything is an error with a status of its own.
//
// With live the source may give nothing for long, and the stream begins at once. Errors
// that the source has from the start then are events. name returns what a server-sent
// event is called, and the position from which a client may resume after it.
func Follow[T any](c *gate.Call, kind string, live bool, source func(context.Context) iter.Seq2[T, error], name func(T) (event, id string)) error {
	if err := c.OpenStream(); err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(c.Ctx)
	defer cancel(nil)
	defer context.AfterFunc(c.Gate().Live(), func() { cancel(gate.ErrDraining) })()
	s := NewResponse(c, kind)
	defer s.Close()
	opened := false
	if live {
		opened = true
		s.open()
	}
	for v, err := range source(ctx) {
		if ctx.Err() != nil {
			break
		}
		if err != nil {
			return lastEvent(c, s, opened, err)
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
		return lastEvent(c, s, opened, err)
	}
	if !opened {
		s.open()
	}
	return nil
}

// lastEvent tells the client why a stream ends: by an event if it can. Otherwise it
// returns err, which becomes the status, or breaks the stream off.
func lastEvent(c *gate.Call, s *Response, opened bool, err error) error {
	if !opened || s.kind != Events {
		return err
	}
	status, e := codec.Describe(c, err)
	c.NoteOutcome(status, e.Code, err)
	_ = s.line("error", "", e)
	return nil
}

// ResumeAfter returns the position after which a client resumes a stream that it has
// lost, as browsers say it on their own (Last-Event-ID; HTML Standard, 9.2). It returns
// 0 for a client that does not say so.
func ResumeAfter(r *http.Request) (uint64, error) {
	last := r.Header.Get("Last-Event-ID")
	if last == "" {
		return 0, nil
	}
	return strconv.ParseUint(last, 10, 64)
}
