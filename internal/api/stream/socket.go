package stream

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/coder/websocket"
	"golang.org/x/time/rate"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/api/codec"
	v1 "github.com/sandpit-dev/sandpit/internal/api/v1"
	"github.com/sandpit-dev/sandpit/internal/errcode"
	"github.com/sandpit-dev/sandpit/internal/gate"
)

// Socket is a WebSocket. Each binary message is a byte that says what it is (v1.FrameStdout
// and others), and a payload.
type Socket struct {
	c    *gate.Call
	conn *websocket.Conn

	// The library breaks the connection when the context of a Read or Write ends. This
	// one outlives the call's, so that the client can be told why the call ends.
	io context.Context

	// Of Serve: reading is closed when nobody reads from the client any more, and
	// stopPing ends the pings.
	reading  chan struct{}
	stopPing func()

	rooms *rooms // nil: without windows

	mu    sync.Mutex
	buf   []byte
	last  time.Time // something was sent
	ended bool      // FrameEnd was sent, which is the last one
}

// Accept makes a WebSocket of the connection of a call. Close it in the end.
func Accept(c *gate.Call) (*Socket, error) {
	conn, err := Upgrade(c, v1.Subprotocol)
	if err != nil {
		return nil, err
	}
	return &Socket{c: c, conn: conn, io: context.WithoutCancel(c.Ctx), last: time.Now()}, nil
}

// Upgrade answers the handshake of a WebSocket. subprotocol is the only one that clients may offer; "": any, of
// which none is chosen. Messages of the client have no limit. Close the connection in the end.
func Upgrade(c *gate.Call, subprotocol string) (*websocket.Conn, error) {
	if c.R.ProtoMajor != 1 || c.R.ProtoMinor == 0 {
		return nil, &gate.Refusal{Code: errcode.Invalid, Message: "this path opens a WebSocket, which needs HTTP/1.1", Hint: "connect with a WebSocket client that does not offer h2; to run a command by HTTP/2, send a POST"}
	}
	if !hasToken(c.R.Header, "Connection", "upgrade") || !hasToken(c.R.Header, "Upgrade", "websocket") {
		c.W.Header().Set("Upgrade", "websocket")
		c.W.Header().Set("Connection", "Upgrade")
		return nil, &gate.Refusal{Code: errcode.UpgradeRequired, Message: "this path needs a WebSocket", Hint: "connect with a WebSocket client"}
	}
	keys := c.R.Header.Values("Sec-WebSocket-Key")
	if key, err := base64.StdEncoding.DecodeString(strings.Join(keys, ",")); c.R.Header.Get("Sec-WebSocket-Version") != "13" || err != nil || len(key) != 16 {
		return nil, gate.Invalid("the WebSocket handshake is malformed", "use version 13 of the protocol (RFC 6455)")
	}
	// Origins have been checked. Compression would cost memory per socket and
	// tell secrets by their length.
	opt := &websocket.AcceptOptions{InsecureSkipVerify: true, CompressionMode: websocket.CompressionDisabled}
	if subprotocol != "" {
		opt.Subprotocols = []string{subprotocol}
		if c.R.Header.Values("Sec-WebSocket-Protocol") != nil && !hasToken(c.R.Header, "Sec-WebSocket-Protocol", subprotocol) {
			return nil, gate.Invalid("none of the subprotocols that the client offers is served here", "offer "+subprotocol+", or none")
		}
	}
	conn, err := websocket.Accept(c.W, c.R, opt)
	c.W.Taken()
	if err != nil { // which websocket.Accept has answered
		c.NoteOutcome(http.StatusBadRequest, errcode.Invalid, err)
		return nil, err
	}
	c.NoteOutcome(http.StatusSwitchingProtocols, "", nil)
	conn.SetReadLimit(-1) // messages are read piece by piece, and bounded there
	return conn, nil
}

// hasToken reports whether a header that is a list contains a word, in any case.
func hasToken(h http.Header, name, word string) bool {
	for _, line := range h.Values(name) {
		for part := range strings.SplitSeq(line, ",") {
			if strings.EqualFold(strings.TrimSpace(part), word) {
				return true
			}
		}
	}
	return false
}

// Windows bounds each output by a v1.Window, and the input by a v1.InputWindow. Call it before
// anything is sent.
func (s *Socket) Windows() {
	s.rooms = newRooms()
	context.AfterFunc(s.c.Ctx, func() { s.rooms.close(context.Cause(s.c.Ctx)) })
}

func (s *Socket) apart() bool { return s.rooms != nil }

// socketPiece is the size in bytes of a message of output if there are windows.
const socketPiece = 256 << 10

// Frame sends a frame. With windows, output is sent as fast as the client passes it on.
func (s *Socket) Frame(kind byte, payload []byte) error {
	if s.rooms != nil && isOutput(kind) {
		return s.rooms.send(kind, payload, socketPiece, func(part []byte) error { return s.frame(kind, part) })
	}
	return s.frame(kind, payload)
}

func (s *Socket) frame(kind byte, payload []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.frameLocked(kind, payload)
}

// frameLocked is Frame. Precondition: s.mu is held.
func (s *Socket) frameLocked(kind byte, payload []byte) error {
	if s.ended { // such as that standard input is closed, which is so because the process has ended
		return gate.ErrClientGone
	}
	s.ended = kind == v1.FrameEnd
	for first := true; first || len(payload) > 0; first = false {
		part := payload[:min(len(payload), v1.MaxFrame)]
		payload = payload[len(part):]
		s.buf = append(append(s.buf[:0], kind), part...)
		if err := s.send(websocket.MessageBinary, s.buf); err != nil {
			return err
		}
	}
	return nil
}

// send sends a message. A client that does not take it in time has left.
// Precondition: s.mu is held.
func (s *Socket) send(kind websocket.MessageType, b []byte) error {
	ctx, cancel := context.WithTimeout(s.io, s.c.Gate().Limits().Stall)
	defer cancel()
	err := s.conn.Write(ctx, kind, b)
	if err != nil {
		s.c.Cancel(gate.ErrClientGone)
	}
	s.last = time.Now()
	s.c.W.Sent += int64(len(b))
	return err
}

// ping keeps the connection alive until ctx ends.
func (s *Socket) ping(ctx context.Context) {
	ticker := time.NewTicker(silence / 2)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		s.mu.Lock()
		quiet := time.Since(s.last) >= silence/2
		s.mu.Unlock()
		if quiet && s.Frame(v1.FramePing, nil) != nil {
			return
		}
	}
}

// Bounds of what a client sends. Resizes and signals that come faster wait, and so do
// messages behind standard input that the process does not read.
const (
	maxControls = 100      // resizes and signals a second
	maxControl  = 4 << 10  // bytes of one
	stdinPiece  = 64 << 10 // bytes; longer messages are split
	stdinQueue  = 4        // pieces that wait for the process
)

// receive takes what the client sends until it leaves, which ends the call.
func (s *Socket) receive(p sandpit.Process) {
	controls := rate.NewLimiter(maxControls, maxControls)
	if s.rooms != nil {
		in := newInlet(s.c, p, v1.InputWindow, func(kind byte, payload []byte) { _ = s.frame(kind, payload) })
		defer in.close()
		err := s.take(p, func(piece []byte) error { return in.put(piece, piece == nil) }, controls)
		in.close()
		s.c.Cancel(err)
		<-in.done
		return
	}
	stdin := make(chan []byte, stdinQueue)
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer s.c.Protect("passing input on", s.c.Cancel)
		s.pump(p, stdin)
	}()
	end := sync.OnceFunc(func() { close(stdin) })
	defer end()
	err := s.take(p, func(piece []byte) error { return s.put(stdin, piece) }, controls)
	end()
	s.c.Cancel(err)
	<-done
}

// pump writes to standard input. A nil piece ends it.
func (s *Socket) pump(p sandpit.Process, pieces <-chan []byte) {
	in := p.Stdin()
	for b := range pieces {
		switch {
		case in == nil:
		case b == nil:
			_ = in.Close()
			in = nil
		default:
			if _, err := in.Write(b); err != nil {
				in = nil // the process has closed it, or is gone
				_ = s.Frame(v1.FrameStdinClosed, nil)
			}
		}
	}
}

// errMessage returns the error for a message that is not valid.
func errMessage(why string) error {
	return gate.Invalid("a message of the client is not valid: "+why, "see /docs")
}

// take reads messages. put takes pieces of standard input; nil ends it.
func (s *Socket) take(p sandpit.Process, put func(piece []byte) error, controls *rate.Limiter) error {
	for {
		kind, r, err := s.conn.Reader(s.io)
		if err != nil {
			return gate.ErrClientGone
		}
		var channel [1]byte
		if kind != websocket.MessageBinary {
			return errMessage("it is not binary")
		}
		if _, err := io.ReadFull(r, channel[:]); err != nil {
			return errMessage("it is empty")
		}
		msg := &message{r: r}
		switch channel[0] {
		case v1.FrameStdin:
			err = msg.pass(put)
		case v1.FrameEOF:
			if _, err = msg.whole(0); err == nil {
				err = put(nil)
			}
		case v1.FrameResize, v1.FrameSignal:
			var text []byte
			if text, err = msg.whole(maxControl); err != nil {
				break
			}
			if controls.Wait(s.c.Ctx) != nil {
				return context.Cause(s.c.Ctx)
			}
			err = control(s.c.Ctx, p, channel[0], text)
		case v1.FramePassed:
			var payload []byte
			if payload, err = msg.whole(5); err != nil {
				break
			}
			if s.rooms == nil {
				err = errMessage("the socket was opened without windows")
				break
			}
			err = s.rooms.passed(payload)
		case v1.FramePing:
			_, err = msg.whole(0)
		default:
			err = errMessage(fmt.Sprintf("the channel %d is unknown", channel[0]))
		}
		if err != nil {
			return err
		}
	}
}

// put queues a piece of input, and waits for room.
func (s *Socket) put(stdin chan<- []byte, piece []byte) error {
	select {
	case stdin <- piece:
		return nil
	case <-s.c.Ctx.Done():
		return context.Cause(s.c.Ctx)
	}
}

// message reads the payload of a message piece by piece. It never holds the whole.
type message struct {
	r io.Reader
	n int // bytes that have been read
}

var errTooLong error = &gate.Refusal{Code: errcode.TooLarge, Message: "a message of the client is longer than 1 MiB", Hint: "send it in parts"}

// next returns the next bytes, up to a maximum of stdinPiece; none at the end.
func (m *message) next(limit int) ([]byte, error) {
	buf := pieces.Get().(*[stdinPiece]byte)
	defer pieces.Put(buf)
	n, err := io.ReadFull(m.r, buf[:limit])
	if m.n += n; m.n > v1.MaxFrame {
		return nil, errTooLong
	}
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		return nil, gate.ErrClientGone
	}
	return bytes.Clone(buf[:n]), nil
}

// pass passes the payload on in pieces.
func (m *message) pass(put func(piece []byte) error) error {
	for {
		piece, err := m.next(stdinPiece)
		if err != nil || len(piece) == 0 {
			return err
		}
		if err := put(piece); err != nil {
			return err
		}
	}
}

// whole returns the payload, and an error if it is longer than limit bytes.
func (m *message) whole(limit int) ([]byte, error) {
	b, err := m.next(limit + 1)
	if err == nil && len(b) > limit {
		err = errMessage("it is longer than its channel allows")
	}
	return b, err
}

// pieces are buffers for messages, whose length is not known before they are read.
var pieces = sync.Pool{New: func() any { return new([stdinPiece]byte) }}

var errLate error = &gate.Refusal{Code: errcode.BodyTimeout, Message: "the first message did not arrive in time", Hint: "send the Command as soon as the socket is open"}

// First reads v from the first message, which is JSON in a text message of at most limit bytes. A client
// that does not send it within gate.Limits.First is told so.
func (s *Socket) First(v any, limit int64) error {
	late := make(chan struct{})
	timer := time.AfterFunc(s.c.Gate().Limits().First, func() {
		defer close(late)
		s.Refuse(errLate) // which ends the read
	})
	data, err := s.first(limit)
	if !timer.Stop() {
		<-late
		return errLate
	}
	if err != nil {
		return err
	}
	return codec.ParseHeld(s.c, data, v)
}

func (s *Socket) first(limit int64) ([]byte, error) {
	kind, msg, err := s.conn.Reader(s.io)
	if err != nil {
		return nil, gate.ErrClientGone
	}
	if kind != websocket.MessageText {
		return nil, gate.Invalid("the first message is not a valid Command", "send the Command as a text message")
	}
	buf := new(bytes.Buffer)
	var r *gate.Refusal
	if err := s.c.ReadAll(buf, io.LimitReader(msg, limit+1)); errors.As(err, &r) {
		return nil, err
	} else if err != nil {
		return nil, gate.ErrClientGone
	}
	if int64(buf.Len()) > limit {
		return nil, &gate.Refusal{Code: errcode.TooLarge, Message: "the first message is too large", Hint: "pass large input as standard input"}
	}
	return buf.Bytes(), nil
}

// Begin calls start, which starts a process or attaches to one, and tells the client
// about it. Output waits until the client has been told.
func (s *Socket) Begin(start func() (v1.Process, error)) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	p, err := start()
	if err != nil {
		return err
	}
	payload, err := json.Marshal(p)
	if err != nil {
		return err
	}
	return s.frameLocked(v1.FrameStarted, payload)
}

// Serve passes what the client sends on to the process, until Finish. The call ends
// when the client leaves.
func (s *Socket) Serve(p sandpit.Process) {
	ctx, cancel := context.WithCancel(s.c.Ctx)
	var pings sync.WaitGroup
	pings.Go(func() { s.ping(ctx) })
	s.stopPing = func() {
		cancel()
		pings.Wait() // they change the count of sent bytes, which is read when the call has ended
	}
	s.reading = make(chan struct{})
	go func() {
		defer close(s.reading)
		defer s.c.Protect("reading from a client", s.c.Cancel)
		s.receive(p)
	}()
}

// Finish tells the client how the process has ended, and closes the socket. It returns
// when nobody reads from the client any more.
func (s *Socket) Finish(res sandpit.Result, err error) {
	s.stopPing()
	end, status := finish(s.c, s, v1.FromResult(res), err)
	s.c.Cancel(nil)
	s.close(end, status)
	<-s.reading
}

// Refuse tells the client an error instead of serving it, and closes the socket.
func (s *Socket) Refuse(err error) {
	end, status := endOf(s.c, err)
	s.c.ReplaceOutcome(status, end.Error.Code, err)
	_ = sendJSON(s, v1.FrameEnd, end)
	s.close(end, status)
}

// goodbye is how long a client may take for the rest of what was sent to it, and for its part
// of the close handshake. The library bounds the handshake by as much, but not the rest of a
// message that the client has begun.
const goodbye = 5 * time.Second

// close closes the socket with the code and reason that fit its end.
func (s *Socket) close(end v1.End, status int) {
	reason := ""
	if end.Error != nil {
		reason = end.Error.Code
	}
	s.c.W.CloseIn(goodbye)
	_ = s.conn.Close(closeCode(end, status), reason)
}

// clientError and the status of an error of the client make a close code, of which 4000 to
// 4999 are free for each protocol (RFC 6455, 7.4.2).
const clientError = 4000

// closeCode returns the close code for an end (RFC 6455, 7.4.1).
func closeCode(end v1.End, status int) websocket.StatusCode {
	switch {
	case end.Reason == v1.EndEnded:
		return websocket.StatusNormalClosure
	case end.Reason == v1.EndDrained:
		return websocket.StatusGoingAway
	case status == http.StatusUnauthorized, status == http.StatusForbidden:
		return websocket.StatusPolicyViolation
	case status == http.StatusRequestEntityTooLarge:
		return websocket.StatusMessageTooBig
	case status >= http.StatusInternalServerError:
		return websocket.StatusInternalError
	}
	return clientError + websocket.StatusCode(status)
}

// Close closes the connection. It is a no-op after Finish and Refuse.
func (s *Socket) Close() { _ = s.conn.CloseNow() }
