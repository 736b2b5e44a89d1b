package stream

import (
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"net/http"
	"strconv"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/sandpit-dev/sandpit"
	v1 "github.com/sandpit-dev/sandpit/internal/api/v1"
	"github.com/sandpit-dev/sandpit/internal/gate"
	"github.com/sandpit-dev/sandpit/internal/httpconn"
)

// Media types of responses beside v1.StreamType.
const (
	Events = "text/event-stream"
	Lines  = "application/x-ndjson"
)

// Times of a stream.
const (
	// gather is how long a little output waits for more, so that the answer of a
	// short command is sent in one piece. It is too short for a person to notice.
	gather = time.Millisecond

	// gatherStart is how long the first frame waits for output, or for the end of a
	// short command.
	gatherStart = 4 * time.Millisecond

	// silence is the time without content after which a ping is sent.
	silence = 20 * time.Second
)

// gatherSize is the size of a write to the client, in bytes.
const gatherSize = 128 << 10

// passSize is the size in bytes from which output is sent without being gathered.
const passSize = 32 << 10

var gathers = sync.Pool{New: func() any { b := make([]byte, 0, gatherSize); return &b }}

// Response writes frames, server-sent events or lines of JSON as the answer to a call.
// Its methods are safe for concurrent use.
type Response struct {
	c    *gate.Call
	kind string // its media type
	conn *httpconn.Conn

	mu       sync.Mutex
	buf      *[]byte     // gathered content
	timer    *time.Timer // sends buf, or a ping
	pending  bool        // something is gathered and the timer set
	starting bool        // and it is only the first frame
	closed   bool
	err      error  // of the connection
	seq      uint64 // the position that pings tell to the client; 0: none
	id       func(b []byte, seq uint64) []byte
}

// NewResponse returns a stream of a media type: v1.StreamType for frames, Events or
// Lines. Nothing is sent before it begins, so that an error can still have a status of
// its own.
func NewResponse(c *gate.Call, kind string) *Response {
	return &Response{c: c, kind: kind, conn: c.Conn(), buf: gathers.Get().(*[]byte), id: decimal}
}

// decimal appends a position as a decimal number.
func decimal(b []byte, seq uint64) []byte { return strconv.AppendUint(b, seq, 10) }

// begin sends the head of the response. Precondition: s.mu is held.
func (s *Response) begin() {
	h := s.c.W.Header()
	h.Set("Content-Type", s.kind)
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	s.c.W.WriteHeader(http.StatusOK)
	s.timer = time.AfterFunc(silence, s.tick)
}

// Begin calls start, which starts a process or attaches to one, and tells the client
// about it. Output waits until the client has been told.
func (s *Response) Begin(start func() (v1.Process, error)) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	p, err := start()
	if err != nil {
		return err
	}
	s.begin()
	payload, err := json.Marshal(p)
	if err != nil {
		return err
	}
	return s.frameLocked(v1.FrameStarted, payload)
}

// tick sends gathered frames, or a ping.
func (s *Response) tick() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.err != nil {
		return
	}
	if !s.pending {
		if s.seq > 0 && s.kind == Events { // an event without data, which is not one but sets Last-Event-ID
			*s.buf = append(s.id(append(*s.buf, "id: "...), s.seq), '\n')
		}
		s.add(v1.FramePing, nil)
	}
	s.send(true)
	s.timer.Reset(silence)
}

// send sends what is gathered. With flush, net/http holds nothing of it back.
// Precondition: s.mu is held.
func (s *Response) send(flush bool) {
	s.pending, s.starting = false, false
	if s.err != nil {
		return
	}
	if len(*s.buf) > 0 {
		_, s.err = s.c.W.Write(*s.buf)
		*s.buf = (*s.buf)[:0]
	}
	if s.err == nil && flush {
		s.err = s.c.W.FlushError()
	}
	if s.err != nil {
		s.c.Cancel(s.err) // nobody reads any more
	}
}

// add gathers a frame. Precondition: s.mu is held.
func (s *Response) add(kind byte, payload []byte) {
	switch s.kind {
	case Events:
		*s.buf = appendEvent(*s.buf, kind, payload)
		return
	case Lines:
		*s.buf = append(*s.buf, payload...) // of a ping: nothing
		return
	}
	*s.buf = v1.AppendFrame(*s.buf, kind, payload)
}

// Frame sends a frame, soon.
func (s *Response) Frame(kind byte, payload []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.frameLocked(kind, payload)
}

// frameLocked is Frame. Precondition: s.mu is held.
func (s *Response) frameLocked(kind byte, payload []byte) error {
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

// pass sends a large frame without copying it, after what is gathered. Precondition:
// s.mu is held.
func (s *Response) pass(kind byte, payload []byte) {
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

// added sends what is gathered, at once if it is much, or else soon. Output that
// comes fast is not flushed: net/http sends whatever exceeds its own small buffers at
// once, and the rest goes with the next write. Precondition: s.mu is held.
func (s *Response) added() {
	if len(*s.buf) >= gatherSize/2 {
		s.send(false)
	} else if s.pending && !s.starting {
		return
	}
	s.pending, s.starting = true, false
	s.timer.Reset(gather)
}

// line sends v as a line of JSON, or as the data of an event. seq is the position of the
// event, or 0 if it has none.
func (s *Response) line(event string, seq uint64, v any) error {
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
	if s.kind == Events {
		if seq > 0 {
			b = append(s.id(append(b, "id: "...), seq), '\n')
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

// passed notes a position, which the next ping tells to the client.
func (s *Response) passed(seq uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seq = seq
}

// Open begins the stream at once, so that the client knows that it has begun, unless it has begun
// or ended before.
func (s *Response) Open() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.timer == nil && !s.closed {
		s.begin()
		s.send(true)
	}
}

// Opened reports whether the stream has begun.
func (s *Response) Opened() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.timer != nil
}

func isOutput(kind byte) bool { return kind == v1.FrameStdout || kind == v1.FrameStderr }

// Finish tells the client how the process has ended.
func (s *Response) Finish(res sandpit.Result, err error) {
	_, _ = finish(s.c, s, v1.FromResult(res), err)
}

// FinishCode tells the client how a run of code has ended.
func (s *Response) FinishCode(res sandpit.CodeResult, err error) {
	_, _ = finish(s.c, s, v1.FromCodeResult(res), err)
}

// Close sends gathered frames and ends the stream.
func (s *Response) Close() {
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

// eventName returns the name of a frame as a server-sent event.
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
	case v1.FrameOutput:
		return "output"
	case v1.FrameWaiting:
		return "waiting"
	case v1.FrameResult:
		return "result"
	}
	return "end"
}

// appendEvent appends a frame as a server-sent event (HTML Standard, 9.2). JSON is on
// one line, as json.Marshal writes it.
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
		text, _ := json.Marshal(v1.Lost{Bytes: binary.BigEndian.Uint64(payload)})
		b = append(b, text...)
	default:
		b = append(b, payload...)
	}
	return append(b, "\n\n"...)
}
