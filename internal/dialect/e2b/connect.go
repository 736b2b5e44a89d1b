package e2b

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/sandpit-dev/sandpit/internal/api/codec"
	"github.com/sandpit-dev/sandpit/internal/dialect"
	"github.com/sandpit-dev/sandpit/internal/errcode"
	"github.com/sandpit-dev/sandpit/internal/gate"
)

// The Connect protocol (connectrpc.com/docs/protocol), as far as the SDKs use it: its JSON codec,
// without compression, over HTTP/1.1 and 2. A unary call is a POST with a JSON body. In a stream
// each message is in an envelope: a byte of flags, its length in four bytes (big-endian), and JSON.

// Bounds of messages, in bytes.
const (
	maxMessage = 4 << 20  // that a client sends
	maxInput   = 64 << 20 // of one with input for a process, in base64: E2B has no bound, and memory does
	headSize   = 5        // of an envelope
	flagEnd    = 2        // of the envelope that ends a stream
)

// typeStream is the media type of streams.
const typeStream = "application/connect+json"

// rpcPath reports whether a path is one of a Connect service.
func rpcPath(path string) bool {
	return strings.HasPrefix(path, processService) || strings.HasPrefix(path, filesystemService)
}

// connectError is an error of a Connect service.
type connectError struct {
	Code    string `json:"code"`
	Message string `json:"message"`
}

// connectCode returns the code of the Connect protocol for a code of ours.
func connectCode(code string, status int) string {
	switch code {
	case errcode.Exists, errcode.FileExists:
		return "already_exists"
	case errcode.NotEmpty:
		return "failed_precondition"
	case errcode.StartFailed, errcode.TooLarge, errcode.UnsupportedMedia:
		return "invalid_argument"
	case errcode.NoSpace, errcode.QuotaExceeded, errcode.Overloaded, errcode.DiskFull:
		return "resource_exhausted"
	case errcode.NoRoute, errcode.MethodNotAllowed:
		return "unimplemented"
	case errcode.Canceled:
		return "canceled"
	}
	switch status {
	case http.StatusBadRequest:
		return "invalid_argument"
	case http.StatusUnauthorized:
		return "unauthenticated"
	case http.StatusForbidden:
		return "permission_denied"
	case http.StatusNotFound:
		return "not_found"
	case http.StatusTooManyRequests:
		return "resource_exhausted"
	case http.StatusNotImplemented:
		return "unimplemented"
	case http.StatusGatewayTimeout, http.StatusRequestTimeout:
		return "deadline_exceeded"
	case http.StatusBadGateway, http.StatusServiceUnavailable:
		return "unavailable"
	}
	return "internal"
}

// failRPC answers with an error of a Connect service. Clients of a stream read the text of an error
// only in a stream, whose status is that of a success.
func failRPC(c *gate.Call, f gate.Failure, status int) {
	e := connectError{connectCode(f.Code, status), f.Text()}
	if !isStream(c.R) || !c.Intended() || status == http.StatusBadGateway {
		body, _ := json.Marshal(e) // of strings, which never fails
		writeJSON(c.W, status, body)
		return
	}
	writeStream(c.W, endEnvelope(&e))
}

// writeStream answers with a whole stream. Its length lets clients read it that still send: see writeJSON.
func writeStream(w http.ResponseWriter, envelopes []byte) {
	w.Header().Set("Content-Type", typeStream)
	w.Header().Set("Content-Length", strconv.Itoa(len(envelopes)))
	w.WriteHeader(http.StatusOK)
	_, _ = w.Write(envelopes) // the client may have left
}

func isStream(r *http.Request) bool {
	kind, _, _ := strings.Cut(r.Header.Get("Content-Type"), ";")
	return strings.TrimSpace(kind) == typeStream
}

// envelope returns a message in an envelope.
func envelope(flags byte, message []byte) []byte {
	b := make([]byte, 5, 5+len(message))
	b[0] = flags
	binary.BigEndian.PutUint32(b[1:], uint32(len(message)))
	return append(b, message...)
}

// endEnvelope returns the envelope that ends a stream. A nil error is success.
func endEnvelope(e *connectError) []byte {
	body, _ := json.Marshal(struct {
		Error *connectError `json:"error,omitempty"`
	}{e}) // of strings, which never fails
	return envelope(flagEnd, body)
}

// openEnvelope returns the message in the envelope that is all of data.
func openEnvelope(data []byte) ([]byte, error) {
	if len(data) < headSize || int64(binary.BigEndian.Uint32(data[1:])) != int64(len(data)-headSize) {
		return nil, gate.Invalid("the body is not one envelope of the Connect protocol", "")
	}
	return data[headSize:], checkFlags(data[0])
}

// checkFlags checks the flags of an envelope that a client has sent.
func checkFlags(flags byte) error {
	if flags != 0 {
		return &gate.Refusal{Code: errcode.UnsupportedMedia, Message: "compressed messages are not supported", Hint: "send the message uncompressed"}
	}
	return nil
}

// nextEnvelope reads the message in the next envelope of a stream into a buffer, and returns io.EOF after the last one. The
// first byte comes from between, and then the others from what rest returns, which are readers of the same stream. read
// reads to the end.
func nextEnvelope(buf *bytes.Buffer, between io.Reader, rest func() io.Reader, limit int64, read func(*bytes.Buffer, io.Reader) error) error {
	var head [headSize]byte
	if _, err := io.ReadFull(between, head[:1]); err != nil {
		return err
	}
	within := rest()
	_, err := io.ReadFull(within, head[1:])
	size := int64(binary.BigEndian.Uint32(head[1:]))
	switch {
	case err == io.EOF || err == io.ErrUnexpectedEOF:
		return errCut()
	case err != nil:
		return err
	case size > limit:
		return &gate.Refusal{Code: errcode.TooLarge, Message: fmt.Sprintf("the message has more than %d bytes", limit), Hint: "send the input in parts"}
	}
	if err := checkFlags(head[0]); err != nil {
		return err
	}
	if buf.Reset(); buf.Cap() > maxMessage { // which the call no longer holds
		*buf = bytes.Buffer{}
	}
	if err := read(buf, io.LimitReader(within, size)); err != nil {
		return err
	}
	if int64(buf.Len()) < size {
		return errCut()
	}
	return nil
}

func errCut() error {
	return gate.Invalid("the body ends within an envelope of the Connect protocol", "")
}

// readJSON reads the JSON body of a request.
func (c *call) readJSON(v any) error { return dialect.ReadJSON(c.Call, v, maxMessage) }

// request is the message of a Connect service. about is what it is about, for the audit.
type request interface{ about() string }

// unary makes a handler of a function from a message to a message.
func unary[In any, P interface {
	*In
	request
}](f func(*call, P) (any, error)) func(*call) error {
	return func(c *call) error {
		in, limit := P(new(In)), int64(maxMessage)
		if _, input := any(in).(*inputRequest); input {
			limit = maxInput
		}
		if err := dialect.ReadJSON(c.Call, in, limit); err != nil {
			return c.Untouched(err)
		}
		if err := c.Intend(in.about()); err != nil {
			return err
		}
		out, err := f(c, in)
		if err != nil {
			return err
		}
		return c.answer(http.StatusOK, out)
	}
}

// streaming makes a handler of a function from a message to a stream of messages.
func streaming[In any, P interface {
	*In
	request
}](f func(*call, P) error) func(*call) error {
	return func(c *call) error {
		if err := c.OpenStream(); err != nil {
			return err
		}
		in := P(new(In))
		var buf bytes.Buffer
		err := c.ReadAll(&buf, c.Body(maxMessage+5, codec.BodyTime))
		data := buf.Bytes()
		if err == nil {
			data, err = openEnvelope(data)
		}
		if err == nil {
			err = dialect.Parse(c.Call, data, in)
		}
		about := ""
		if err == nil {
			about = in.about()
		}
		if refused := c.Intend(about); refused != nil {
			return refused
		}
		if err != nil {
			return c.Untouched(err)
		}
		buf = bytes.Buffer{}
		_ = c.Hold(gate.InMemory, 0) // the stream may be long; what it keeps of the request is little, and charged to the process
		return f(c, in)
	}
}

// eventStream sends messages to a client. Its methods are safe for concurrent use.
type eventStream struct {
	c         *call
	keepalive []byte        // the envelope
	every     time.Duration // the longest silence
	ready     chan struct{} // closed when the stream has begun, or never will

	mu    sync.Mutex
	timer *time.Timer // nil before the stream has begun; guarded by mu
	err   error       // of a client that has gone, or of a stream that has ended; guarded by mu
	buf   []byte      // of the last message; guarded by mu
}

// Bounds of the interval of messages that keep a connection alive.
const (
	minPing     = time.Second
	defaultPing = 90 * time.Second
)

// newStream returns a stream. keepalive is the message that is sent when nothing else was for a while.
// Close it.
func (c *call) newStream(keepalive string) *eventStream {
	s := &eventStream{c: c, keepalive: envelope(0, []byte(keepalive)), every: defaultPing, ready: make(chan struct{})}
	if n, err := strconv.Atoi(c.R.Header.Get("Keepalive-Ping-Interval")); err == nil && n > 0 {
		s.every = max(min(time.Duration(n), defaultPing/time.Second)*time.Second, minPing)
	}
	return s
}

// errEnded is the error of messages after the end of a stream.
var errEnded = errors.New("the stream has ended")

// begin sends the first message. Others wait for it.
func (s *eventStream) begin(message string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.c.W.Header().Set("Content-Type", typeStream)
	s.timer = time.AfterFunc(s.every, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		_ = s.write(s.keepalive) // if the client has left, the call ends
	})
	close(s.ready)
	return s.write(envelope(0, []byte(message)))
}

// send sends a message.
func (s *eventStream) send(message []byte) error {
	<-s.ready
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.write(envelope(0, message))
}

// sendBytes sends a message that consists of a part before some bytes, those in base64, and a part
// after them.
func (s *eventStream) sendBytes(before string, b []byte, after string) error {
	<-s.ready
	s.mu.Lock()
	defer s.mu.Unlock()
	s.buf = append(append(s.buf[:0], 0, 0, 0, 0, 0), before...)
	s.buf = base64.StdEncoding.AppendEncode(s.buf, b)
	s.buf = append(s.buf, after...)
	binary.BigEndian.PutUint32(s.buf[1:], uint32(len(s.buf)-5))
	return s.write(s.buf)
}

// write sends envelopes to the client. Precondition: s.mu is held.
func (s *eventStream) write(b []byte) error {
	if s.err == nil {
		if _, s.err = s.c.W.Write(b); s.err == nil {
			s.err = s.c.W.FlushError()
		}
		s.timer.Reset(s.every)
	}
	return s.err
}

// end ends the stream. Before it has begun, end returns the error, for gate.Call.Fail.
func (s *eventStream) end(err error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.timer == nil {
		return err
	}
	if s.err != nil {
		return nil
	}
	var e *connectError
	if err != nil {
		f := s.c.Describe(err)
		status := dataStatus(f)
		s.c.NoteOutcome(status, f.Code, err)
		e = &connectError{connectCode(f.Code, status), f.Text()}
	}
	_ = s.write(endEnvelope(e)) // the client may have left
	s.stop()
	return nil
}

// close makes the stream send nothing more. Handlers call it before they return.
func (s *eventStream) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.timer == nil {
		close(s.ready)
	}
	s.stop()
}

// stop is close. Precondition: s.mu is held.
func (s *eventStream) stop() {
	if s.err == nil {
		s.err = errEnded
	}
	if s.timer != nil {
		s.timer.Stop()
	}
}

// timeout returns the time that the client gives a call; 0: any.
func (c *call) timeout() time.Duration {
	ms, err := strconv.ParseInt(c.R.Header.Get("Connect-Timeout-Ms"), 10, 64)
	if err != nil || ms <= 0 || ms > 10_000_000_000 { // ten digits, as the protocol has it
		return 0
	}
	return time.Duration(ms) * time.Millisecond
}
