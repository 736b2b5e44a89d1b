// Package conn serves the guest protocol on one connection to the host: its frames,
// its streams, and their credit.
package conn

import (
	"errors"
	"io"
	"os"
	"runtime"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit/internal/guest/wire"
)

// maxStreams is how many streams a connection may have open at once.
const maxStreams = 1024

// Handler handles what happens on connections. Its methods are called by several
// connections concurrently, but only a connection's reader calls its Open.
type Handler interface {
	// Greeted is called when the host has sent a valid greeting.
	Greeted(c *Conn)
	// Closed is called when the connection is over, before its streams end.
	Closed(c *Conn)
	// StreamBegun is called before Open.
	StreamBegun()
	// Open carries out an OPEN frame. Work that may take long goes on in a goroutine. An
	// error ends the stream.
	Open(s *Stream, op wire.Op, msg []byte) error
	// StreamActive is called when a stream begins to count as activity.
	StreamActive()
	// StreamEnded is called once for each stream that has begun. active says that
	// it counted as activity.
	StreamEnded(active bool)
	// Moved is called with the number of bytes of content sent or received.
	Moved(n int)
}

// Conn is one connection to the host.
type Conn struct {
	// Patience is the time in which the host must send its greeting. 0: no limit.
	Patience time.Duration

	h Handler
	r io.ReadCloser
	w io.WriteCloser

	wmu  sync.Mutex // one frame at a time
	werr error

	mu      sync.Mutex
	streams map[uint32]*Stream
	last    uint32 // the highest stream so far
	window  int    // initial credit that the host gives
}

// New returns a connection for Serve.
func New(h Handler, r io.ReadCloser, w io.WriteCloser) *Conn {
	if f, ok := w.(*os.File); ok {
		if raw, err := f.SyscallConn(); err == nil {
			_ = raw.Control(func(fd uintptr) {
				// Of a pipe, and where there is a smaller limit, it is as it was.
				_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_SNDBUF, wire.SendBuffer)
			})
		}
	}
	return &Conn{h: h, r: r, w: w, streams: make(map[uint32]*Stream)}
}

// Serve reads frames until the connection ends, and then closes every stream.
// The error says how the host has broken the protocol.
func (c *Conn) Serve() error {
	err := c.read()
	c.h.Closed(c)
	c.mu.Lock()
	streams := c.streams
	c.streams = nil
	c.mu.Unlock()
	for _, s := range streams {
		c.h.StreamEnded(s.active.Load())
		s.gone()
	}
	if err != nil {
		code := wire.CodeProtocol
		if errors.Is(err, errVersion) {
			code = wire.CodeVersion
		}
		// The host may not be reading: it gets a moment, no more.
		c.Leave(&wire.ErrorMessage{Code: code, Text: err.Error()}, 100*time.Millisecond)
	}
	c.r.Close()
	c.w.Close()
	return err
}

// Leave tells the host why the connection ends. It waits for the host for at most patience.
func (c *Conn) Leave(why *wire.ErrorMessage, patience time.Duration) {
	if f, ok := c.w.(*os.File); ok {
		_ = f.SetWriteDeadline(time.Now().Add(patience))
	}
	_ = c.send(wire.Error, 0, why.Append(nil))
}

var errVersion = errors.New("no common protocol version")

// guestFeatures are the features of this guest.
const guestFeatures = wire.FeatureWindows | wire.FeaturePassAll | wire.FeatureAs | wire.FeatureInPlace | wire.FeatureAttrs | wire.FeatureRlimits | wire.FeatureAsRoot

func (c *Conn) read() error {
	hello := wire.HelloMessage{Version: wire.Version, MinVersion: wire.MinVersion, Window: wire.GuestWindow, Features: guestFeatures, Build: Build()}
	if err := c.send(wire.Hello, 0, hello.Append(nil)); err != nil {
		return nil
	}
	if f, ok := c.r.(*os.File); ok && c.Patience > 0 {
		_ = f.SetReadDeadline(time.Now().Add(c.Patience))
	}
	r := wire.NewReader(c.r)
	h, err := r.Next()
	if err != nil {
		return violation(err)
	}
	if h.Type != wire.Hello || h.Stream != 0 {
		return errors.New("the first frame is " + h.Type.String() + ", not HELLO")
	}
	b, err := r.Message(h.Len)
	if err != nil {
		return nil
	}
	var peer wire.HelloMessage
	if err := peer.Decode(b); err != nil {
		return errors.New("HELLO: " + err.Error())
	}
	if peer.Version < wire.MinVersion || peer.MinVersion > wire.Version {
		return versionError(peer)
	}
	c.window = int(peer.Window)
	if f, ok := c.r.(*os.File); ok && c.Patience > 0 {
		_ = f.SetReadDeadline(time.Time{})
	}
	c.h.Greeted(c)
	for {
		h, err := r.Next()
		if err != nil {
			return violation(err)
		}
		if err := c.frame(r, h); err != nil {
			return violation(err)
		}
	}
}

// versionError says what both ends speak.
func versionError(peer wire.HelloMessage) error {
	u := func(n uint64) string { return strconv.FormatUint(n, 10) }
	return wrapped{errVersion, ": the guest speaks " + u(wire.MinVersion) + " to " + u(wire.Version) +
		", the host " + u(peer.MinVersion) + " to " + u(peer.Version)}
}

// wrapped is an error with more text behind it.
type wrapped struct {
	err  error
	text string
}

func (w wrapped) Error() string { return w.err.Error() + w.text }
func (w wrapped) Unwrap() error { return w.err }

// violation returns err if it is one of the protocol, and nil if the
// connection has just ended.
func violation(err error) error {
	var pathErr *os.PathError
	if err == io.EOF || err == io.ErrUnexpectedEOF || err == io.ErrClosedPipe || errors.As(err, &pathErr) {
		return nil
	}
	return err
}

// frame handles one frame. An error ends the connection.
func (c *Conn) frame(r *wire.Reader, h wire.Header) error {
	switch h.Type {
	case wire.Ping:
		b, err := r.Message(h.Len)
		if err != nil {
			return err
		}
		return c.send(wire.Pong, 0, b)
	case wire.Open:
		b, err := r.Message(h.Len)
		if err != nil {
			return err
		}
		return c.open(h.Stream, b)
	case wire.Data, wire.EOF, wire.Credit, wire.Close, wire.Passed:
	case wire.Error:
		if h.Stream == 0 {
			return io.EOF // the host says why it leaves
		}
		fallthrough
	default:
		return errors.New(h.Type.String() + " frame from the host")
	}

	c.mu.Lock()
	s, known := c.streams[h.Stream], h.Stream != 0 && h.Stream <= c.last
	c.mu.Unlock()
	if !known {
		return errors.New(h.Type.String() + " frame for stream " + strconv.FormatUint(uint64(h.Stream), 10) + ", which was never opened")
	}
	if s == nil { // it has just ended here
		return r.Skip(h.Len)
	}
	switch h.Type {
	case wire.Data:
		if s.In == nil || h.Len == 0 {
			return errors.New("unexpected DATA frame")
		}
		b, ok := s.In.Space(h.Len)
		if !ok {
			return errors.New("DATA frame without credit")
		}
		err := r.Into(b)
		if err == nil {
			c.h.Moved(h.Len)
			s.In.Commit(wire.Data, h.Len)
		}
		return err
	case wire.EOF:
		if s.In == nil {
			return errors.New("unexpected EOF frame")
		}
		s.In.Finish()
	case wire.Credit:
		b, err := r.Message(h.Len)
		if err != nil {
			return err
		}
		n, err := wire.DecodeCredit(b)
		if err != nil || !s.out.Add(n) {
			return errors.New("malformed CREDIT frame")
		}
		return nil
	case wire.Passed:
		b, err := r.Message(h.Len)
		if err != nil {
			return err
		}
		output, n, err := wire.DecodePassed(b)
		if err != nil {
			return errors.New("malformed PASSED frame")
		}
		room := s.Room(output)
		switch {
		case room == nil:
			return errors.New("unexpected PASSED frame")
		case n == wire.PassAll:
			room.Fail(ErrGone)
		case !room.Add(n):
			return errors.New("PASSED frame for more than was sent")
		}
		return nil
	case wire.Close:
		c.forget(s)
		s.gone()
	}
	return r.Skip(h.Len)
}

// open begins a stream.
func (c *Conn) open(id uint32, b []byte) error {
	if len(b) == 0 {
		return errors.New("empty OPEN frame")
	}
	c.mu.Lock()
	if id <= c.last {
		c.mu.Unlock()
		return errors.New("OPEN frame for a stream that is not new")
	}
	c.last = id
	if len(c.streams) >= maxStreams {
		c.mu.Unlock()
		m := wire.ErrorMessage{Code: wire.CodeExhausted, Text: wire.TooManyStreams}
		return c.send(wire.Error, id, m.Append(nil))
	}
	s := &Stream{c: c, id: id, out: wire.NewWindow(c.window)}
	c.streams[id] = s
	c.mu.Unlock()
	c.h.StreamBegun()
	if err := c.h.Open(s, wire.Op(b[0]), b[1:]); err != nil {
		s.Fail(err)
	}
	return nil
}

func (c *Conn) forget(s *Stream) {
	c.mu.Lock()
	_, known := c.streams[s.id]
	delete(c.streams, s.id)
	c.mu.Unlock()
	if known {
		c.h.StreamEnded(s.active.Load())
	}
}

// send sends one frame.
func (c *Conn) send(t wire.Type, stream uint32, payload []byte) error {
	b := make([]byte, 0, wire.HeaderSize+len(payload))
	return c.write(wire.AppendFrame(b, t, stream, payload))
}

// write writes whole frames.
func (c *Conn) write(frames []byte) error {
	c.wmu.Lock()
	defer c.wmu.Unlock()
	if c.werr != nil {
		return c.werr
	}
	if _, err := c.w.Write(frames); err != nil {
		c.werr = err
		return err
	}
	return nil
}

// Build names the guest's build, for people.
func Build() string { return runtime.GOARCH + " " + runtime.Version() }
