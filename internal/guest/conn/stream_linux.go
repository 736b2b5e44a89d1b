package conn

import (
	"errors"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit/internal/guest/wire"
)

// ErrGone ends the operation of a stream that the host has closed.
var ErrGone = errors.New("the stream is closed")

// Stream is one operation in progress.
type Stream struct {
	// In has the content from the host. Handler.Open sets it if there is any.
	In *wire.Queue
	// Rooms are what the host may still be sent before it has passed it on, of each output.
	// Handler.Open sets them if the host tells that.
	Rooms [2]*wire.Window
	// Lingers keeps content that has arrived when the stream is gone.
	Lingers bool

	c   *Conn
	id  uint32
	out *wire.Window

	active atomic.Bool // it counts as activity

	mu     sync.Mutex
	closed bool
	onGone func()
}

// Activate makes the stream count as activity while it lasts. The connection's reader calls
// it.
func (s *Stream) Activate() {
	s.active.Store(true)
	s.c.h.StreamActive()
}

// gone is called when the host has closed the stream or the connection is over.
func (s *Stream) gone() {
	s.mu.Lock()
	first := !s.closed
	s.closed = true
	f := s.onGone
	s.mu.Unlock()
	if !first {
		return
	}
	s.out.Fail(ErrGone)
	for _, room := range s.Rooms {
		if room != nil {
			room.Fail(ErrGone)
		}
	}
	switch {
	case s.In == nil:
	case s.Lingers:
		s.In.Finish()
	default:
		s.In.Abort(ErrGone)
	}
	if f != nil {
		f()
	}
}

// WhenGone calls f when the stream is gone, immediately if it already is.
func (s *Stream) WhenGone(f func()) {
	s.mu.Lock()
	closed := s.closed
	s.onGone = f
	s.mu.Unlock()
	if closed && f != nil {
		f()
	}
}

// Gone reports whether the host has closed the stream or the connection is over.
func (s *Stream) Gone() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.closed
}

// Message is the payload of a frame.
type Message interface{ Append([]byte) []byte }

// Nothing is an empty message.
type Nothing struct{}

// Append appends nothing.
func (Nothing) Append(b []byte) []byte { return b }

// Room returns that of Rooms for an output, Data or Data2.
func (s *Stream) Room(output wire.Type) *wire.Window {
	if output == wire.Data2 {
		return s.Rooms[1]
	}
	return s.Rooms[0]
}

// Reply sends the answer.
func (s *Stream) Reply(m Message) {
	s.sendMessage(wire.Reply, m)
}

func (s *Stream) sendMessage(t wire.Type, m Message) {
	if s.Gone() {
		return
	}
	b, start := wire.BeginFrame(make([]byte, 0, 128))
	_ = s.c.write(wire.EndFrame(m.Append(b), start, t, s.id))
}

// End sends the last frame of the stream.
func (s *Stream) End(t wire.Type, m Message) {
	s.sendMessage(t, m)
	s.c.forget(s)
}

// Answer ends a call.
func (s *Stream) Answer(m Message, err error) {
	if err != nil {
		s.Fail(err)
		return
	}
	s.End(wire.Reply, m)
}

// Fail ends the stream with an error.
func (s *Stream) Fail(err error) {
	m := &wire.ErrorMessage{Code: wire.CodeInternal, Text: err.Error()}
	var errno unix.Errno
	if !errors.As(err, &m) && errors.As(err, &errno) {
		m.Errno = uint64(errno)
	}
	s.End(wire.Error, m)
}

// Send sends n bytes of content, which begin at buf[wire.HeaderSize], as
// fast as there is credit. It overwrites the bytes before them.
func (s *Stream) Send(channel wire.Type, buf []byte, n int) error {
	s.c.h.Moved(n)
	for at := 0; n > 0; {
		k, err := s.out.Take(n)
		if err != nil {
			return err
		}
		// The header overwrites content that has been sent already.
		frame := buf[at : at+wire.HeaderSize+k]
		wire.PutHeader(frame, wire.Header{Len: k, Type: channel, Stream: s.id})
		if err := s.c.write(frame); err != nil {
			return err
		}
		at += k
		n -= k
	}
	return nil
}

// Content calls take with each piece of content from the host, and then gives the host
// credit. It returns io.EOF at the end of the content, or ErrGone, or the error of take.
func (s *Stream) Content(take func([]byte) error) error {
	for {
		_, b, err := s.In.Next()
		if err != nil {
			return err
		}
		if err := take(b); err != nil {
			return err
		}
		s.GiveCredit(s.In.Done())
	}
}

// GiveCredit lets the host send n more bytes.
func (s *Stream) GiveCredit(n int) {
	if n > 0 {
		var p [4]byte
		_ = s.c.send(wire.Credit, s.id, wire.AppendCredit(p[:0], n))
	}
}

// EndContent tells the host that no more content will come, while the stream goes on.
func (s *Stream) EndContent() { _ = s.c.send(wire.EOF, s.id, nil) }

// Drop ends a stream that the host has closed, without telling the host.
func (s *Stream) Drop() { s.c.forget(s) }

// Refuse tells the host that no more content is wanted, while the stream goes on.
func (s *Stream) Refuse() {
	s.In.Close()
	if !s.Gone() {
		_ = s.c.send(wire.Close, s.id, nil)
	}
}
