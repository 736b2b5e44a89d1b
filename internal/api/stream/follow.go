package stream

import (
	"context"
	"iter"
	"net/http"
	"strconv"

	v1 "github.com/sandpit-dev/sandpit/internal/api/v1"
	"github.com/sandpit-dev/sandpit/internal/gate"
)

// Source is what Follow sends.
type Source[T any] struct {
	// Live sources may give nothing for long. Their stream begins at once.
	Live bool

	// After is the position at which the source begins; 0: at its first element, or it has
	// no positions. With Begin the first event tells the client about it.
	After uint64
	Begin bool

	// ID appends a position as clients know it. nil: as a decimal number.
	ID func(b []byte, seq uint64) []byte

	// All returns the elements. An error is the last.
	All func(context.Context) iter.Seq2[T, error]

	// Name returns what an element is called as a server-sent event, and its position, or 0. An
	// element without a name is not sent, but passed: pings and the end have its position.
	Name func(T) (event string, seq uint64)
}

// Follow sends what a source gives, one line or event each, until it ends, the client
// leaves, or the server is about to end. The last line or event is a v1.End, from whose
// position a client may resume. A source that fails before it has given anything is an error
// with a status of its own, unless it is live.
func Follow[T any](c *gate.Call, kind string, source Source[T]) error {
	if err := c.OpenStream(); err != nil {
		return err
	}
	ctx, cancel := c.UntilDrained()
	defer cancel(nil)
	s := NewResponse(c, kind)
	if source.ID != nil {
		s.id = source.ID
	}
	defer s.Close()
	opened, head := source.Live, c.R.Method == http.MethodHead
	if opened {
		s.Open()
		if head {
			return nil
		}
	}
	if source.Begin {
		_ = s.line("begin", source.After, v1.Begin{Seq: source.After})
	}
	seq := source.After
	var why error
	for v, err := range source.All(ctx) {
		if why = err; err != nil || ctx.Err() != nil {
			break
		}
		if !opened {
			opened = true
			s.Open()
			if head {
				return nil
			}
		}
		event, at := source.Name(v)
		if at > 0 {
			seq = at
			s.passed(at)
		}
		if event == "" {
			continue
		}
		if s.line(event, at, v) != nil {
			return nil // the client has gone
		}
	}
	if c.Ctx.Err() != nil && c.BrokenOff() == nil {
		return nil // the client has gone
	}
	if ctx.Err() != nil {
		why = context.Cause(ctx)
	}
	if !opened {
		if why != nil {
			return why
		}
		s.Open()
	}
	end, status := endOf(c, why)
	if end.Seq = seq; end.Reason == v1.EndError {
		c.NoteOutcome(status, end.Error.Code, why)
	}
	if kind == Events {
		_ = s.line("end", seq, end)
	} else {
		_ = s.line("", 0, v1.LastLine{End: end})
	}
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
