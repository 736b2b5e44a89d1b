package api

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
	"syscall"
	"time"

	"github.com/coder/websocket"
	"golang.org/x/time/rate"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/api/codec"
	v1 "github.com/sandpit-dev/sandpit/internal/api/v1"
	"github.com/sandpit-dev/sandpit/internal/gate"
)

// socket is a WebSocket whose binary messages are frames, both ways.
type socket struct {
	c    *call
	conn *websocket.Conn

	// A Read or Write whose context ends breaks the connection. Theirs is not
	// the call's, so that there can be last words when that ends.
	io context.Context

	mu   sync.Mutex
	buf  []byte
	last time.Time // something was sent
}

// accept makes a WebSocket of the call.
func (c *call) accept() (*socket, error) {
	if c.R.ProtoMajor != 1 || c.R.ProtoMinor == 0 {
		return nil, &gate.Refusal{Status: http.StatusBadRequest, Code: "invalid", Message: "WebSockets need HTTP/1.1", Hint: "do not offer h2 in the TLS handshake"}
	}
	if !hasToken(c.R.Header, "Connection", "upgrade") || !hasToken(c.R.Header, "Upgrade", "websocket") {
		c.W.Header().Set("Upgrade", "websocket")
		c.W.Header().Set("Connection", "Upgrade")
		return nil, &gate.Refusal{Status: http.StatusUpgradeRequired, Code: "invalid", Message: "this path needs a WebSocket", Hint: "connect with a WebSocket client"}
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
	s := &socket{c: c, conn: conn, io: context.WithoutCancel(c.Ctx), last: time.Now()}
	context.AfterFunc(c.Ctx, s.breakOff)
	return s, nil
}

// hasToken reports whether a header that is a list has a word, in lower case.
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

// breakOff ends the socket of a call that was broken off, after what is to be said.
func (s *socket) breakOff() {
	if s.c.BrokenOff() != nil {
		time.AfterFunc(gate.LastWords, func() { _ = s.conn.CloseNow() })
	}
}

// frame sends a frame.
func (s *socket) frame(kind byte, payload []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.frameLocked(kind, payload)
}

// frameLocked is frame. Precondition: s.mu is held.
func (s *socket) frameLocked(kind byte, payload []byte) error {
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

// send sends a message. A client that does not take it in time has gone.
// Precondition: s.mu is held.
func (s *socket) send(kind websocket.MessageType, b []byte) error {
	ctx, cancel := context.WithTimeout(s.io, s.c.api.gate.Limits().Stall)
	defer cancel()
	err := s.conn.Write(ctx, kind, b)
	if err != nil {
		s.c.Cancel(gate.ErrClientGone)
	}
	s.last = time.Now()
	s.c.W.Sent += int64(len(b))
	return err
}

// json sends a frame of JSON.
func (s *socket) json(kind byte, v any) error {
	payload, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return s.frame(kind, payload)
}

// jsonLocked is json. Precondition: s.mu is held.
func (s *socket) jsonLocked(kind byte, v any) error {
	payload, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return s.frameLocked(kind, payload)
}

// ping keeps the connection alive until ctx ends.
func (s *socket) ping(ctx context.Context) {
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
		if quiet && s.frame(v1.FramePing, nil) != nil {
			return
		}
	}
}

// Bounds of what a client says. Resizes and signals that come faster wait, and so
// does what comes behind standard input that a process does not read.
const (
	maxControls = 100      // resizes and signals a second
	maxControl  = 4 << 10  // bytes of one
	stdinPiece  = 64 << 10 // bytes; longer frames are cut into such
	stdinQueue  = 4        // pieces that wait for the process
)

// serve takes what the client sends until it leaves, which ends the call.
func (s *socket) serve(p sandpit.Process) {
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
func (s *socket) pump(p sandpit.Process, pieces <-chan []byte) {
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
				_ = s.frame(v1.FrameDeaf, nil)
			}
		}
	}
}

// errFrame ends a call whose client sends what is no frame.
func errFrame(why string) error {
	return gate.Invalid("a message is not a valid frame: "+why, "see /docs")
}

// take reads frames.
func (s *socket) take(p sandpit.Process, stdin chan<- []byte, controls *rate.Limiter) error {
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

// put has a piece written, when there is room for it.
func (s *socket) put(stdin chan<- []byte, piece []byte) error {
	select {
	case stdin <- piece:
		return nil
	case <-s.c.Ctx.Done():
		return context.Cause(s.c.Ctx)
	}
}

const noFrame = "its length does not match its payload"

// frameReader reads the frame that a message is, piece by piece: it is never held
// as a whole.
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

// next reads the next bytes of the payload, at most so many.
func (f *frameReader) next(most int) ([]byte, error) {
	b := make([]byte, min(f.left, most))
	f.left -= len(b)
	if _, err := io.ReadFull(f.msg, b); errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return nil, errFrame(noFrame)
	} else if err != nil {
		return nil, gate.ErrClientGone
	}
	return b, nil
}

// end reads what is left of the message, which must be the payload's rest: only that
// of a frame which says nothing by it.
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

// control carries out a resize or a signal. That the process has exited in the
// meantime is no error.
func control(ctx context.Context, p sandpit.Process, kind byte, payload []byte) error {
	if kind == v1.FrameResize {
		var size v1.Size
		if err := codec.Parse(payload, &size); err != nil {
			return err
		}
		_ = p.Resize(ctx, sandpit.TerminalSize{Rows: size.Rows, Cols: size.Cols})
		return nil
	}
	var sig v1.Signal
	if err := codec.Parse(payload, &sig); err != nil {
		return err
	}
	_ = signal(ctx, p, sig)
	return nil
}

func signal(ctx context.Context, p sandpit.Process, sig v1.Signal) error {
	if sig.Signal < 1 || sig.Signal > 64 {
		return gate.Invalid("the signal does not exist", "use a number from 1 to 64")
	}
	if sig.Group {
		if g, ok := p.(sandpit.GroupSignaler); ok {
			return g.SignalGroup(ctx, syscall.Signal(sig.Signal))
		}
	}
	return p.Signal(ctx, syscall.Signal(sig.Signal))
}

// end closes the socket politely.
func (s *socket) end(code websocket.StatusCode, reason string) {
	_ = s.conn.Close(code, reason)
}

// attend serves the client beside the process.
func (s *socket) attend(p sandpit.Process) (reading chan struct{}, stop func()) {
	ctx, cancel := context.WithCancel(s.c.Ctx)
	var pings sync.WaitGroup
	pings.Go(func() { s.ping(ctx) })
	reading = make(chan struct{})
	go func() {
		defer close(reading)
		s.serve(p)
	}()
	return reading, func() {
		cancel()
		pings.Wait() // what is sent is counted, which is read when the call has ended
	}
}

// goodbye closes the socket after the last frame, and returns when nobody reads
// from it any more.
func (s *socket) goodbye(reading chan struct{}, err error) {
	code, reason := websocket.StatusNormalClosure, ""
	switch {
	case errors.Is(err, gate.ErrDraining):
		code, reason = websocket.StatusGoingAway, gate.ErrDraining.Error()
	case errors.Is(err, gate.ErrKeyEnded):
		code, reason = websocket.StatusPolicyViolation, gate.ErrKeyEnded.Error()
	}
	s.c.Cancel(nil)
	s.end(code, reason)
	<-reading
}

// command reads the first message.
func (s *socket) command() (sandpit.Command, error) {
	ctx, cancel := context.WithTimeout(s.io, gate.HeaderTime)
	defer cancel()
	s.conn.SetReadLimit(maxCommand)
	kind, msg, err := s.conn.Reader(ctx)
	if err != nil {
		return sandpit.Command{}, gate.ErrClientGone
	}
	in := new(v1.Command)
	if kind != websocket.MessageText {
		return sandpit.Command{}, gate.Invalid("the first message is not a valid Command", "send the Command as a text message")
	}
	buf := new(bytes.Buffer)
	var r *gate.Refusal
	if err := s.c.ReadAll(buf, msg); errors.As(err, &r) {
		return sandpit.Command{}, err
	} else if err != nil {
		return sandpit.Command{}, gate.ErrClientGone
	}
	s.conn.SetReadLimit(v1.MaxFrame + v1.FrameHead)
	if err := codec.ParseHeld(s.c.Call, buf.Bytes(), in); err != nil {
		return sandpit.Command{}, err
	}
	if err := s.c.intendFor(in); err != nil {
		return sandpit.Command{}, err
	}
	return in.Sandpit(), nil
}

// refuse tells an error and closes the socket.
func (s *socket) refuse(err error) error {
	status, e := codec.Describe(s.c.Call, err)
	s.c.ReplaceOutcome(status, e.Code, err)
	_ = s.json(v1.FrameError, e)
	s.end(websocket.StatusNormalClosure, "")
	return nil
}
