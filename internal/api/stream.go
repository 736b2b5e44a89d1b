package api

import (
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"sync"
	"time"
	"unicode/utf8"

	v1 "github.com/sandpit-dev/sandpit/internal/api/v1"
	"github.com/sandpit-dev/sandpit/internal/gate"
	"github.com/sandpit-dev/sandpit/internal/httpconn"
)

// Times of a stream.
const (
	// gather is how long a little output waits for more, so that a short
	// command's answer goes out in one piece. A person doesn't see it.
	gather = time.Millisecond

	// gatherStart is how long the news of a start waits for output, or for
	// the end of a command that is short.
	gatherStart = 4 * time.Millisecond

	// silence is after what time a ping is sent, so that both ends know that
	// the other is there.
	silence = 20 * time.Second
)

// gatherSize is how much is sent at once, in bytes.
const gatherSize = 128 << 10

// passSize is from what size on output is sent without being gathered, in bytes.
const passSize = 32 << 10

var gathers = sync.Pool{New: func() any { b := make([]byte, 0, gatherSize); return &b }}

// stream writes frames, server-sent events or lines of JSON to a response. Its
// methods may be called from many goroutines.
type stream struct {
	c    *call
	kind string // its media type
	conn *httpconn.Conn

	mu       sync.Mutex
	buf      *[]byte     // what is gathered
	timer    *time.Timer // to send it, or a ping
	pending  bool        // something is gathered and the timer set
	starting bool        // and it is the news of a start alone
	closed   bool
	err      error // of the connection
}

// newStream begins a stream. Nothing is sent before its first frame, so that
// an error can still have a status of its own.
func newStream(c *call, kind string) *stream {
	return &stream{c: c, kind: kind, conn: c.Conn(), buf: gathers.Get().(*[]byte)}
}

// begin sends the head of the response. Precondition: s.mu is held.
func (s *stream) begin() {
	h := s.c.W.Header()
	h.Set("Content-Type", s.kind)
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	s.c.W.WriteHeader(s.c.route.Status)
	s.timer = time.AfterFunc(silence, s.tick)
}

// tick sends what is gathered, or a ping.
func (s *stream) tick() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.err != nil {
		return
	}
	if !s.pending {
		s.add(v1.FramePing, nil)
	}
	s.send(true)
	s.timer.Reset(silence)
}

// send sends what is gathered, and tells net/http to hold nothing of it back.
// Precondition: s.mu is held.
func (s *stream) send(flush bool) {
	s.pending, s.starting = false, false
	if s.err != nil {
		return
	}
	if len(*s.buf) > 0 {
		_, s.err = s.c.W.Write(*s.buf)
		*s.buf = (*s.buf)[:0]
	}
	if s.err == nil && flush {
		s.err = s.c.W.Flush()
	}
	if s.err != nil {
		s.c.Cancel(s.err) // nobody reads any more
	}
}

// add gathers a frame. Precondition: s.mu is held.
func (s *stream) add(kind byte, payload []byte) {
	switch s.kind {
	case eventStream:
		*s.buf = appendEvent(*s.buf, kind, payload)
		return
	case ndjson:
		*s.buf = append(*s.buf, payload...) // of a ping: nothing
		return
	}
	*s.buf = v1.AppendFrame(*s.buf, kind, payload)
}

// frame sends a frame, soon.
func (s *stream) frame(kind byte, payload []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.frameLocked(kind, payload)
}

// frameLocked is frame. Precondition: s.mu is held.
func (s *stream) frameLocked(kind byte, payload []byte) error {
	for first := true; first || len(payload) > 0; first = false {
		if s.closed || s.err != nil {
			return s.err
		}
		part := payload
		if isOutput(kind) {
			if s.kind == v1.StreamType && len(payload) >= passSize {
				part = payload[:min(len(payload), v1.MaxFrame)]
				payload = payload[len(part):]
				s.pass(kind, part)
				continue
			}
			part = payload[:min(len(payload), gatherSize/2)]
		}
		payload = payload[len(part):]
		s.add(kind, part)
		if kind == v1.FrameStarted {
			s.pending, s.starting = true, true
			s.timer.Reset(gatherStart)
			return nil
		}
		s.added()
	}
	return s.err
}

// pass sends a frame that is large enough without a copy of it, behind what is
// gathered. Precondition: s.mu is held.
func (s *stream) pass(kind byte, payload []byte) {
	*s.buf = v1.AppendFrameHead(*s.buf, kind, len(payload))
	s.conn.Hold()
	if s.send(false); s.err == nil {
		_, s.err = s.c.W.Write(payload)
	}
	if err := s.conn.Release(); err != nil && s.err == nil {
		s.err = gate.Gone(err)
	}
	if s.err != nil {
		s.c.Cancel(s.err)
	}
	s.pending = true // the rest of it is with net/http
	s.timer.Reset(gather)
}

// added sends what is gathered, now if it is much, or else soon. Output that
// comes fast is not flushed: net/http sends what is larger than its own small
// buffers at once, and the rest of it goes with the next. Precondition: s.mu is
// held.
func (s *stream) added() {
	if len(*s.buf) >= gatherSize/2 {
		s.send(false)
	} else if s.pending && !s.starting {
		return
	}
	s.pending, s.starting = true, false
	s.timer.Reset(gather)
}

// line sends a line of JSON, or an event with that as its data.
func (s *stream) line(event, id string, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.err != nil {
		return s.err
	}
	b := *s.buf
	if s.kind == eventStream {
		if id != "" {
			b = append(append(append(b, "id: "...), id...), '\n')
		}
		b = append(append(append(b, "event: "...), event...), "\ndata: "...)
		b = append(append(b, data...), "\n\n"...)
	} else {
		b = append(append(b, data...), '\n')
	}
	*s.buf = b
	s.added()
	return s.err
}

// open begins the stream at once, so that the client knows that it follows.
func (s *stream) open() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.begin()
	s.send(true)
}

func isOutput(kind byte) bool { return kind == v1.FrameStdout || kind == v1.FrameStderr }

// json sends a frame of JSON.
func (s *stream) json(kind byte, v any) error {
	payload, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return s.frame(kind, payload)
}

// close sends what is gathered and ends the stream.
func (s *stream) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return
	}
	if s.timer != nil {
		s.timer.Stop()
	}
	s.send(false) // net/http sends the rest when the handler returns
	s.closed = true
	if cap(*s.buf) <= 2*gatherSize {
		*s.buf = (*s.buf)[:0]
		gathers.Put(s.buf)
	}
	s.buf = nil
}

// output is a process's standard output or error on its way to the client.
type output struct {
	s    sink
	kind byte
}

// Write sends a piece of output.
func (o output) Write(b []byte) (int, error) {
	if err := o.s.frame(o.kind, b); err != nil {
		return 0, err
	}
	return len(b), nil
}

// sink takes frames.
type sink interface {
	frame(kind byte, payload []byte) error
}

// lost tells of output that was not kept.
func lost(s sink, bytes int64) error {
	return s.frame(v1.FrameLost, binary.BigEndian.AppendUint64(nil, uint64(bytes)))
}

// eventNames are what frames are called as server-sent events.
func eventName(kind byte) string {
	switch kind {
	case v1.FrameStarted:
		return "started"
	case v1.FrameStdout:
		return "stdout"
	case v1.FrameStderr:
		return "stderr"
	case v1.FrameLost:
		return "lost"
	case v1.FrameResult:
		return "result"
	}
	return "error"
}

// appendEvent appends a frame as a server-sent event (HTML Standard, 9.2). What
// is JSON is on one line, as json.Marshal writes it.
func appendEvent(b []byte, kind byte, payload []byte) []byte {
	if kind == v1.FramePing {
		return append(b, ":\n\n"...)
	}
	b = append(b, "event: "...)
	b = append(b, eventName(kind)...)
	b = append(b, "\ndata: "...)
	switch kind {
	case v1.FrameStdout, v1.FrameStderr:
		b = append(b, `{"data":"`...)
		b = base64.StdEncoding.AppendEncode(b, payload)
		b = append(b, '"')
		if utf8.Valid(payload) {
			text, _ := json.Marshal(string(payload)) // of a string, which never fails
			b = append(append(b, `,"text":`...), text...)
		}
		b = append(b, '}')
	case v1.FrameLost:
		text, _ := json.Marshal(map[string]uint64{"bytes": binary.BigEndian.Uint64(payload)})
		b = append(b, text...)
	default:
		b = append(b, payload...)
	}
	return append(b, "\n\n"...)
}
