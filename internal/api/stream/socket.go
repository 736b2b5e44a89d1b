package stream

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
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

// Socket is a WebSocket whose binary messages are frames, in both directions.
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

	mu   sync.Mutex
	buf  []byte
	last time.Time // something was sent
}

// Accept makes a WebSocket of the connection of a call. Close it in the end.
func Accept(c *gate.Call) (*Socket, error) {
	if c.R.ProtoMajor != 1 || c.R.ProtoMinor == 0 {
		return nil, &gate.Refusal{Code: errcode.Invalid, Message: "WebSockets need HTTP/1.1", Hint: "do not offer h2 in the TLS handshake"}
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
	conn, err := websocket.Accept(c.W, c.R, &websocket.AcceptOptions{InsecureSkipVerify: true, CompressionMode: websocket.CompressionDisabled})
	if err != nil {
		c.NoteOutcome(http.StatusBadRequest, "invalid", err)
		c.W.Taken() // websocket.Accept has answered
		return nil, err
	}
	c.W.Taken()
	c.NoteOutcome(http.StatusSwitchingProtocols, "", nil)
	conn.SetReadLimit(v1.MaxFrame + v1.FrameHead)
	s := &Socket{c: c, conn: conn, io: context.WithoutCancel(c.Ctx), last: time.Now()}
	context.AfterFunc(c.Ctx, s.breakOff)
	return s, nil
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

// breakOff closes the connection of a call that was broken off, after a moment for the last
// frames. The moment is shorter than gate.LastWords, so that the gate sees the call end.
// It does not use s.conn.CloseNow, which waits while Close waits for the client's answer.
func (s *Socket) breakOff() {
	if s.c.BrokenOff() != nil {
		time.AfterFunc(gate.LastWords/2, func() { _ = s.c.W.Conn.Close() })
	}
}

// Frame sends a frame.
func (s *Socket) Frame(kind byte, payload []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.frameLocked(kind, payload)
}

// frameLocked is Frame. Precondition: s.mu is held.
func (s *Socket) frameLocked(kind byte, payload []byte) error {
	for first := true; first || len(payload) > 0; first = false {
		part := payload[:min(len(payload), v1.MaxFrame)]
		payload = payload[len(part):]
		s.buf = v1.AppendFrame(s.buf[:0], kind, part)
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
// frames behind standard input that the process does not read.
const (
	maxControls = 100      // resizes and signals a second
	maxControl  = 4 << 10  // bytes of one
	stdinPiece  = 64 << 10 // bytes; longer frames are split
	stdinQueue  = 4        // pieces that wait for the process
)

// receive takes what the client sends until it leaves, which ends the call.
func (s *Socket) receive(p sandpit.Process) {
	stdin := make(chan []byte, stdinQueue)
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.pump(p, stdin)
	}()
	controls := rate.NewLimiter(maxControls, maxControls)
	err := s.take(p, stdin, controls)
	close(stdin)
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
				_ = s.Frame(v1.FrameDeaf, nil)
			}
		}
	}
}

// errFrame returns the error for a message that is not a valid frame.
func errFrame(why string) error {
	return gate.Invalid("a message is not a valid frame: "+why, "see /docs")
}

// take reads frames.
func (s *Socket) take(p sandpit.Process, stdin chan<- []byte, controls *rate.Limiter) error {
	for {
		kind, msg, err := s.conn.Reader(s.io)
		if err != nil {
			return gate.ErrClientGone
		}
		frame := frameReader{msg: msg}
		if kind != websocket.MessageBinary || frame.begin() != nil {
			return errFrame(noFrame)
		}
		switch frame.kind {
		case v1.FrameStdin:
			for frame.left > 0 {
				piece, err := frame.next(stdinPiece)
				if err != nil {
					return err
				}
				if err := s.put(stdin, piece); err != nil {
					return err
				}
			}
		case v1.FrameEOF:
			if err := s.put(stdin, nil); err != nil {
				return err
			}
		case v1.FrameResize, v1.FrameSignal:
			payload, err := frame.next(maxControl)
			if err != nil {
				return err
			}
			if err := controls.Wait(s.c.Ctx); err != nil {
				return context.Cause(s.c.Ctx)
			}
			if err := control(s.c.Ctx, p, frame.kind, payload); err != nil {
				return err
			}
		case v1.FramePing:
		default:
			return errFrame("its type is unknown")
		}
		if err := frame.end(); err != nil {
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

const noFrame = "its length does not match its payload"

// frameReader reads a message, which is a frame, piece by piece. It never holds a whole
// frame.
type frameReader struct {
	msg  io.Reader
	kind byte
	left int // bytes of the payload
}

// begin reads the head.
func (f *frameReader) begin() error {
	var head [v1.FrameHead]byte
	if _, err := io.ReadFull(f.msg, head[:]); err != nil {
		return err
	}
	kind, n := v1.ParseFrameHead(head[:])
	f.kind, f.left = kind, int(min(n, v1.MaxFrame+1))
	return nil
}

// next reads the next bytes of the payload, up to a maximum.
func (f *frameReader) next(limit int) ([]byte, error) {
	b := make([]byte, min(f.left, limit))
	f.left -= len(b)
	if _, err := io.ReadFull(f.msg, b); errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return nil, errFrame(noFrame)
	} else if err != nil {
		return nil, gate.ErrClientGone
	}
	return b, nil
}

// end reads the rest of the message, which must be as long as the rest of the payload.
// Only frames whose payload means nothing have one left.
func (f *frameReader) end() error {
	n, err := io.Copy(io.Discard, f.msg)
	if err != nil {
		return gate.ErrClientGone
	}
	if n != int64(f.left) {
		return errFrame(noFrame)
	}
	return nil
}

// First reads v from the first message, which is JSON in a text message of at most
// limit bytes.
func (s *Socket) First(v any, limit int64) error {
	ctx, cancel := context.WithTimeout(s.io, gate.HeaderTime)
	defer cancel()
	s.conn.SetReadLimit(limit)
	kind, msg, err := s.conn.Reader(ctx)
	if err != nil {
		return gate.ErrClientGone
	}
	if kind != websocket.MessageText {
		return gate.Invalid("the first message is not a valid Command", "send the Command as a text message")
	}
	buf := new(bytes.Buffer)
	var r *gate.Refusal
	if err := s.c.ReadAll(buf, msg); errors.As(err, &r) {
		return err
	} else if err != nil {
		return gate.ErrClientGone
	}
	s.conn.SetReadLimit(v1.MaxFrame + v1.FrameHead)
	return codec.ParseHeld(s.c, buf.Bytes(), v)
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
		s.receive(p)
	}()
}

// Finish tells the client how the process has ended, and closes the socket. It returns
// when nobody reads from the client any more.
func (s *Socket) Finish(res sandpit.Result, err error) {
	s.stopPing()
	finish(s.c, s, res, err)
	code, reason := websocket.StatusNormalClosure, ""
	switch {
	case errors.Is(err, gate.ErrDraining):
		code, reason = websocket.StatusGoingAway, gate.ErrDraining.Error()
	case errors.Is(err, gate.ErrKeyEnded):
		code, reason = websocket.StatusPolicyViolation, gate.ErrKeyEnded.Error()
	}
	s.c.Cancel(nil)
	_ = s.conn.Close(code, reason)
	<-s.reading
}

// Refuse tells the client an error instead of serving it, and closes the socket.
func (s *Socket) Refuse(err error) {
	status, e := codec.Describe(s.c, err)
	s.c.ReplaceOutcome(status, e.Code, err)
	_ = sendJSON(s, v1.FrameError, e)
	_ = s.conn.Close(websocket.StatusNormalClosure, "")
}

// Close closes the connection. It is a no-op after Finish and Refuse.
func (s *Socket) Close() { _ = s.conn.CloseNow() }
