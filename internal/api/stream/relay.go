package stream

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/api/codec"
	v1 "github.com/sandpit-dev/sandpit/internal/api/v1"
	"github.com/sandpit-dev/sandpit/internal/fastrun"
	"github.com/sandpit-dev/sandpit/internal/gate"
)

// Relay carries one command for a client of package fastrun: frames in both directions
// over the connection of a call, each with a window. Its methods are safe for concurrent use.
//
// Small frames wait for more, so that the start, the output and the end of a short
// command are one message.
type Relay struct {
	c       *gate.Call
	conn    net.Conn
	in      *bufio.Reader
	rooms   *rooms
	started chan sandpit.Process // of Connect

	// Of Serve: reading is closed when reading from the client has ended.
	reading chan struct{}
	stop    func() bool

	mu      sync.Mutex
	buf     []byte
	timer   *time.Timer // to send what is gathered; nil before there was something
	pending bool        // the timer is set
	closed  bool
	err     error
}

// NewRelay takes over the connection of a call. Close it in the end. The answer to the
// request goes out with the first frame, or by Flush.
func NewRelay(c *gate.Call) (*Relay, error) {
	conn, buffered, err := http.NewResponseController(c.W).Hijack()
	if err != nil {
		return nil, fmt.Errorf("taking over the connection: %w", err)
	}
	_ = conn.SetDeadline(time.Now().Add(gate.HeaderTime))
	c.NoteOutcome(http.StatusSwitchingProtocols, "", nil)
	s := newRelay(c, conn, buffered.Reader)
	s.buf = append(s.buf, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: "+fastrun.Protocol+"\r\n\r\n"...)
	return s, nil
}

func newRelay(c *gate.Call, conn net.Conn, in *bufio.Reader) *Relay {
	return &Relay{c: c, conn: conn, in: in, rooms: newRooms(), started: make(chan sandpit.Process, 1)}
}

// Request reads the first frame.
func (s *Relay) Request(req *fastrun.Request) error {
	kind, payload, err := v1.ReadFrame(s.in, nil, fastrun.MaxRequest)
	if err != nil {
		return gate.ErrClientGone
	}
	if kind != fastrun.FrameRequest {
		return gate.Invalid("the first frame is not a request", "")
	}
	return codec.Parse(payload, req)
}

// Serve passes what the client sends on to the process of Connect, until Close. The call ends
// when the client leaves.
func (s *Relay) Serve() {
	_ = s.conn.SetDeadline(time.Time{}) // whoever waits for the command may stop reading for as long as they like
	// Whatever waits for the client ends with the call.
	s.stop = context.AfterFunc(s.c.Ctx, s.breakOff)
	s.reading = make(chan struct{})
	go func() {
		defer close(s.reading)
		defer s.c.Protect("reading from a client", s.c.Cancel)
		s.c.Cancel(s.read(s.started))
	}()
}

// breakOff closes the connection: at once if the client has left, or else after a moment
// for the last frames.
func (s *Relay) breakOff() {
	s.rooms.close(context.Cause(s.c.Ctx))
	if errors.Is(context.Cause(s.c.Ctx), gate.ErrClientGone) {
		_ = s.conn.Close()
		return
	}
	_ = s.conn.SetWriteDeadline(time.Now().Add(gate.LastWords))
}

// Begin calls start, which starts the process, and tells the client about it. Output
// waits until the client has been told.
func (s *Relay) Begin(start func() (v1.Process, error)) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	// A client that has no answer when the connection ends runs the command
	// itself: it must know before this one may have begun.
	s.send()
	p, err := start()
	if err != nil {
		return err
	}
	payload, err := json.Marshal(p)
	if err != nil {
		return err
	}
	s.add(v1.FrameStarted, payload)
	return nil
}

// Connect names the process to which Serve passes on what the client sends. Call it once.
func (s *Relay) Connect(p sandpit.Process) { s.started <- p }

// Close closes the connection, and returns when it is no longer used.
func (s *Relay) Close() {
	_ = s.conn.Close()
	if s.reading != nil {
		<-s.reading
		s.stop()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	if s.timer != nil {
		s.timer.Stop()
	}
}
