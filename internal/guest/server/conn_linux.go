package server

import (
	"errors"
	"io"
	"os"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit/internal/guest/wire"
)

// maxStreams is how many streams a connection may have open at once.
const maxStreams = 1024

// errGone ends what a stream is doing when nobody wants it any more.
var errGone = errors.New("the stream is closed")

// conn is one connection to the host.
type conn struct {
	g *guest
	r io.ReadCloser
	w io.WriteCloser

	wmu  sync.Mutex // one frame at a time
	werr error

	mu      sync.Mutex
	streams map[uint32]*stream
	last    uint32 // the highest stream so far
	window  int    // initial credit that the host gives

	patience time.Duration // how long the host may take to greet; 0: as long as it likes
}

func newConn(g *guest, r io.ReadCloser, w io.WriteCloser) *conn {
	if f, ok := w.(*os.File); ok {
		if raw, err := f.SyscallConn(); err == nil {
			_ = raw.Control(func(fd uintptr) {
				// Of a pipe, and where there is a smaller limit, it is as it was.
				_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_SNDBUF, wire.SendBuffer)
			})
		}
	}
	return &conn{g: g, r: r, w: w, streams: make(map[uint32]*stream)}
}

// serve reads frames until the connection ends, and then closes every stream.
// The error says how the host has broken the protocol.
func (c *conn) serve() error {
	err := c.read()
	c.g.life.left(c)
	c.mu.Lock()
	streams := c.streams
	c.streams = nil
	c.mu.Unlock()
	for _, s := range streams {
		c.g.streamEnded(s)
		s.gone()
	}
	if err != nil {
		code := wire.CodeProtocol
		if errors.Is(err, errVersion) {
			code = wire.CodeVersion
		}
		m := wire.ErrorMessage{Code: code, Text: err.Error()}
		// The host may not be reading: it gets a moment, no more.
		if f, ok := c.w.(*os.File); ok {
			_ = f.SetWriteDeadline(time.Now().Add(100 * time.Millisecond))
		}
		_ = c.send(wire.Error, 0, m.Append(nil))
	}
	c.r.Close()
	c.w.Close()
	return err
}

var errVersion = errors.New("no common protocol version")

func (c *conn) read() error {
	hello := wire.HelloMessage{Version: wire.Version, MinVersion: wire.MinVersion, Window: wire.GuestWindow, Build: build()}
	if err := c.send(wire.Hello, 0, hello.Append(nil)); err != nil {
		return nil
	}
	if f, ok := c.r.(*os.File); ok && c.patience > 0 {
		_ = f.SetReadDeadline(time.Now().Add(c.patience))
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
	if f, ok := c.r.(*os.File); ok && c.patience > 0 {
		_ = f.SetReadDeadline(time.Time{})
	}
	c.g.life.arrived(c)
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
func (c *conn) frame(r *wire.Reader, h wire.Header) error {
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
	case wire.Data, wire.EOF, wire.Credit, wire.Close:
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
		if s.in == nil || h.Len == 0 {
			return errors.New("unexpected DATA frame")
		}
		b, ok := s.in.Space(h.Len)
		if !ok {
			return errors.New("DATA frame without credit")
		}
		err := r.Into(b)
		if err == nil {
			c.g.moved.Add(int64(h.Len))
			s.in.Commit(wire.Data, h.Len)
		}
		return err
	case wire.EOF:
		if s.in == nil {
			return errors.New("unexpected EOF frame")
		}
		s.in.Finish()
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
	case wire.Close:
		c.forget(s)
		s.gone()
	}
	return r.Skip(h.Len)
}

// open begins a stream.
func (c *conn) open(id uint32, b []byte) error {
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
		m := wire.ErrorMessage{Code: wire.CodeExhausted, Text: "too many streams on one connection"}
		return c.send(wire.Error, id, m.Append(nil))
	}
	s := &stream{c: c, id: id, out: wire.NewWindow(c.window)}
	c.streams[id] = s
	c.mu.Unlock()
	c.g.streams.Add(1)
	if err := c.g.handle(s, wire.Op(b[0]), b[1:]); err != nil {
		s.fail(err)
	}
	return nil
}

func (c *conn) forget(s *stream) {
	c.mu.Lock()
	_, known := c.streams[s.id]
	delete(c.streams, s.id)
	c.mu.Unlock()
	if known {
		c.g.streamEnded(s)
	}
}

// send sends one frame.
func (c *conn) send(t wire.Type, stream uint32, payload []byte) error {
	b := make([]byte, 0, wire.HeaderSize+len(payload))
	return c.write(wire.AppendFrame(b, t, stream, payload))
}

// write writes whole frames.
func (c *conn) write(frames []byte) error {
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

// stream is one operation under way.
type stream struct {
	c   *conn
	id  uint32
	in  *wire.Queue // content from the host; nil when there is none
	out *wire.Window

	lingers bool // what has arrived is still used when the stream is gone

	active atomic.Bool // it counts as activity

	mu     sync.Mutex
	closed bool
	onGone func()
}

// activate makes the stream count as activity while it lasts. It is called by
// the connection's reader.
func (s *stream) activate() {
	s.active.Store(true)
	s.c.g.life.busy.Add(1)
	s.c.g.life.touch(s.c.g)
}

// gone is called when the host has closed the stream or the connection is over.
func (s *stream) gone() {
	s.mu.Lock()
	first := !s.closed
	s.closed = true
	f := s.onGone
	s.mu.Unlock()
	if !first {
		return
	}
	s.out.Fail(errGone)
	switch {
	case s.in == nil:
	case s.lingers:
		s.in.Finish()
	default:
		s.in.Abort(errGone)
	}
	if f != nil {
		f()
	}
}

// whenGone makes f be called when the stream is gone, at once if it is already.
func (s *stream) whenGone(f func()) {
	s.mu.Lock()
	closed := s.closed
	s.onGone = f
	s.mu.Unlock()
	if closed && f != nil {
		f()
	}
}

func (s *stream) isGone() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.closed
}

// message is what a frame carries.
type message interface{ Append([]byte) []byte }

// nothing is an empty message.
type nothing struct{}

func (nothing) Append(b []byte) []byte { return b }

// reply sends the answer.
func (s *stream) reply(m message) {
	s.sendMessage(wire.Reply, m)
}

func (s *stream) sendMessage(t wire.Type, m message) {
	if s.isGone() {
		return
	}
	b, start := wire.BeginFrame(make([]byte, 0, 128))
	_ = s.c.write(wire.EndFrame(m.Append(b), start, t, s.id))
}

// end sends the last frame of the stream.
func (s *stream) end(t wire.Type, m message) {
	s.sendMessage(t, m)
	s.c.forget(s)
}

// answer ends a call.
func (s *stream) answer(m message, err error) {
	if err != nil {
		s.fail(err)
		return
	}
	s.end(wire.Reply, m)
}

// fail ends the stream with an error.
func (s *stream) fail(err error) {
	m := wire.ErrorMessage{Code: wire.CodeInternal, Text: err.Error()}
	var ge *guestError
	var errno unix.Errno
	switch {
	case errors.As(err, &ge):
		m.Code, m.Errno, m.Text = ge.code, uint64(ge.errno), ge.text
	case errors.As(err, &errno):
		m.Errno = uint64(errno)
	}
	s.end(wire.Error, &m)
}

// sendContent sends n bytes of content that begin at buf[wire.HeaderSize] as
// fast as there is credit. It overwrites what is before them.
func (s *stream) sendContent(channel wire.Type, buf []byte, n int) error {
	s.c.g.moved.Add(int64(n))
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

// content calls take with all content from the host in turn, and gives it
// credit. The error is io.EOF at its end, else that of take or errGone.
func (s *stream) content(take func([]byte) error) error {
	for {
		_, b, err := s.in.Next()
		if err != nil {
			return err
		}
		if err := take(b); err != nil {
			return err
		}
		s.giveCredit(s.in.Done())
	}
}

// giveCredit lets the host send n bytes more.
func (s *stream) giveCredit(n int) {
	if n > 0 {
		var p [4]byte
		_ = s.c.send(wire.Credit, s.id, wire.AppendCredit(p[:0], n))
	}
}

// refuse tells the host that no more content is wanted, while the stream goes on.
func (s *stream) refuse() {
	s.in.Close()
	if !s.isGone() {
		_ = s.c.send(wire.Close, s.id, nil)
	}
}

// buffers are for content: room for a header and a full payload.
var buffers = sync.Pool{New: func() any {
	b := make([]byte, wire.HeaderSize+wire.MaxData)
	return &b
}}

// guestError is an error with a code for the host.
type guestError struct {
	code  wire.Code
	errno unix.Errno
	text  string
}

func (e *guestError) Error() string { return e.text }

func fail(code wire.Code, text string) error { return &guestError{code: code, text: text} }

func invalid(text string) error { return fail(wire.CodeInvalid, text) }

// build names the guest's build, for people.
func build() string { return runtime.GOARCH + " " + runtime.Version() }
