package client

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"io"
	"strconv"
	"time"

	"github.com/sandpit-dev/sandpit"
)

// event is a server-sent event (HTML Standard, 9.2).
type event struct {
	id   string
	name string // "message" when it has none
	data []byte // good until the next one
}

// Bounds of an event, in bytes: the longest hold 64 KiB of output, or with code, a value that it displays.
const (
	maxEvent     = 1 << 20
	maxCodeEvent = 2 * sandpit.MaxCodeOutput
)

// eventReader reads server-sent events.
type eventReader struct {
	r    *bufio.Reader
	id   string // stays until another one comes
	at   string // the id of the latest complete event, also of one without data, which next does not return
	data []byte
	most int // bytes of an event
}

func newEventReader(r io.Reader) *eventReader {
	return &eventReader{r: bufio.NewReaderSize(r, 16<<10), most: maxEvent}
}

// next returns the next event. alive is called for each line, of events or not.
func (e *eventReader) next(alive func()) (event, error) {
	ev := event{name: "message"}
	e.data = e.data[:0]
	some := false
	for {
		line, err := e.line()
		if err != nil {
			return event{}, err
		}
		alive()
		if len(line) == 0 {
			e.at = e.id
			if some {
				ev.id, ev.data = e.id, bytes.TrimSuffix(e.data, []byte("\n"))
				return ev, nil
			}
			ev.name = "message"
			continue
		}
		field, value, _ := bytes.Cut(line, []byte(":"))
		value = bytes.TrimPrefix(value, []byte(" "))
		switch string(field) {
		case "event":
			ev.name = string(value)
		case "id":
			e.id = string(value)
		case "data":
			some = true
			if len(e.data)+len(value) >= e.most {
				return event{}, badAnswer("an event that is too long")
			}
			e.data = append(append(e.data, value...), '\n')
		}
	}
}

// line reads a line without its end. It is good until the next one.
func (e *eventReader) line() ([]byte, error) {
	line, err := e.r.ReadSlice('\n')
	if errors.Is(err, bufio.ErrBufferFull) {
		long := bytes.Clone(line)
		for errors.Is(err, bufio.ErrBufferFull) {
			if len(long) > e.most {
				return nil, badAnswer("a line that is too long")
			}
			line, err = e.r.ReadSlice('\n')
			long = append(long, line...)
		}
		line = long
	}
	if err == io.EOF && len(line) > 0 {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(line[:len(line)-1], []byte("\r")), nil
}

// events makes a request that is answered with events and hands each on, until take returns
// false or an error, or the stream ends. The error is then io.EOF if there is no more, errLost
// if events are missing, and else one that says why. position becomes that of the stream, which
// may be past the latest event; it may be nil.
func (c *Client) events(ctx context.Context, r request, position *uint64, take func(event) (bool, error)) error {
	ctx, stop := c.under(ctx)
	defer stop()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	r.accept = "text/event-stream"
	silence := time.AfterFunc(patience, func() { cancel(errSilent) })
	defer silence.Stop()
	resp, err := c.send(ctx, r)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if !isType(resp, "text/event-stream") {
		return badAnswer("no events")
	}
	in := newEventReader(resp.Body)
	in.most = cmp.Or(r.maxEvent, maxEvent)
	for {
		silence.Reset(patience)
		ev, err := in.next(func() { silence.Reset(patience) })
		if at, perr := strconv.ParseUint(in.at, 10, 64); perr == nil && position != nil {
			*position = at
		}
		if err != nil {
			return c.failed(ctx, err)
		}
		silence.Stop() // while the caller looks at it, the server is not silent
		if ev.name == "end" {
			err := endError(ev.data)
			switch {
			case err == nil:
				return io.EOF
			case ctx.Err() != nil: // the server's reason is that the caller has left
				return c.failed(ctx, err)
			}
			return err
		}
		if more, err := take(ev); !more || err != nil {
			return err
		}
	}
}
