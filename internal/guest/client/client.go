// Package client is the host's end of the guest protocol: it starts processes
// and does file work in a sandbox over one connection to its guest.
//
// A guest is not trusted. Whatever it sends, in whatever order, a Client
// neither crashes nor holds more than a window of bytes for each stream that
// the host has opened. The first violation closes the connection, and
// everything on it fails with sandpit.ErrProtocol.
package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"slices"
	"sync"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/fault"
	"github.com/sandpit-dev/sandpit/internal/guest/wire"
)

// Config configures all processes and file work of a sandbox.
type Config struct {
	User        string   // "name", "uid", "name:group" or "uid:gid", looked up in the image; empty: the guest's own
	Dir         string   // where processes start and relative paths begin; empty: the user's home, or / when that does not exist
	Env         []string // of every process, "KEY=VALUE", before Command.Env
	Output      int64    // bytes of output that a process may have; 0: no limit
	NoFile      int64    // open descriptors of each process; 0: as many as the guest
	RootCaps    uint64   // capabilities that processes of uid 0 keep, a bit each; 0: none
	OOMScoreAdj int      // of processes; only raising works
	Sudo        bool     `json:",omitempty"` // programs of the sandbox's user may start others as root
}

// Options are for New.
type Options struct {
	// Config, unless nil, is sent to the guest with the greeting, so that it costs no
	// round trip. A guest keeps it for all later connections.
	Config *Config

	// Output is the limit on output that an earlier connection has configured.
	// It lets the client notice a guest that ignores it. Config sets it too.
	Output int64

	// OnExit is called once for each process before its result is returned, to add what
	// only the host knows. It may be called concurrently.
	OnExit func(*sandpit.Result)
}

// Client is one connection to a guest. All methods are safe for concurrent use.
type Client struct {
	conn   net.Conn
	onExit func(*sandpit.Result)

	wsem    chan struct{} // held while writing
	pending []byte        // rest of a frame whose writer gave up; guarded by wsem

	delayedMu sync.Mutex
	delayed   []byte // frames to be written when possible
	flushing  bool

	mu       sync.Mutex
	streams  map[uint32]*stream
	last     uint32
	window   int    // that the guest gives each stream; 0 until it has greeted
	features uint64 // of the guest
	output   int64
	err      error         // why the connection has ended
	done     chan struct{} // closed when it has
	pings    []chan struct{}
}

var errBroken = errors.New("the connection to the guest is closed")

// New greets the guest on conn and returns when it has answered and has accepted the
// configuration, if any. On an error, and by Close, conn is closed. The error matches
// sandpit.ErrProtocol for an invalid answer, sandpit.ErrUnsupported for a guest of another
// version, sandpit.ErrClosed if the guest has gone, and sandpit.ErrInvalid for a
// configuration that the guest refuses.
func New(ctx context.Context, conn net.Conn, opt Options) (*Client, error) {
	if b, ok := conn.(interface{ SetWriteBuffer(bytes int) error }); ok {
		_ = b.SetWriteBuffer(wire.SendBuffer)
	}
	c := &Client{
		conn: conn, onExit: opt.OnExit, output: opt.Output,
		wsem: make(chan struct{}, 1), streams: make(map[uint32]*stream), done: make(chan struct{}),
	}
	hello := wire.HelloMessage{Version: wire.Version, MinVersion: wire.MinVersion, Window: wire.HostWindow, Build: runtime.GOOS + " " + runtime.Version()}
	b, start := wire.BeginFrame(make([]byte, 0, 256))
	b = wire.EndFrame(hello.Append(b), start, wire.Hello, 0)
	var configured *stream
	if opt.Config != nil {
		configured = c.newStream(wire.OpConfigure, false, 0)
		m, err := opt.Config.message()
		if err != nil {
			conn.Close()
			return nil, err
		}
		b, start = wire.BeginFrame(b)
		b = wire.EndFrame(m.Append(append(b, byte(wire.OpConfigure))), start, wire.Open, configured.id)
		c.output = opt.Config.Output
	}
	greeted := make(chan struct{})
	go c.read(greeted)
	_, err := c.write(ctx, b)
	if err == nil {
		select {
		case <-greeted:
		case <-ctx.Done():
			err = ctx.Err()
		case <-c.done:
			err = c.err
		}
	}
	if err == nil && configured != nil {
		_, err = configured.wait(ctx)
	}
	if err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

func (conf *Config) message() (*wire.Config, error) {
	if conf.NoFile < 0 || conf.Output < 0 {
		return nil, fault.Errorf(sandpit.ErrInvalid, "configuring the guest: a limit is negative")
	}
	return &wire.Config{
		User: conf.User, Dir: conf.Dir, Env: conf.Env, Output: conf.Output, NoFile: uint64(conf.NoFile),
		RootCaps: conf.RootCaps, OOMScoreAdj: int64(conf.OOMScoreAdj), Sudo: conf.Sudo,
	}, nil
}

// Configure replaces the guest's configuration. Running processes keep theirs.
func (c *Client) Configure(ctx context.Context, conf Config) error {
	m, err := conf.message()
	if err != nil {
		return err
	}
	if err := c.call(ctx, wire.OpConfigure, m, nil); err != nil {
		return fmt.Errorf("configuring the guest: %w", err)
	}
	c.mu.Lock()
	c.output = conf.Output
	c.mu.Unlock()
	return nil
}

// Close closes the connection. Foreground processes that it has started die. It is
// idempotent.
func (c *Client) Close() error {
	c.fail(fmt.Errorf("%w: the connection to its guest was closed", sandpit.ErrClosed))
	return nil
}

// Done returns a channel that is closed when the connection has ended; Err then says why.
func (c *Client) Done() <-chan struct{} { return c.done }

// Err returns why the connection has ended, or nil while it has not. It matches
// sandpit.ErrProtocol or sandpit.ErrClosed, and in the latter case ErrExpired
// when the guest has ended because its time was over.
func (c *Client) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// fail ends the connection and everything on it. The first reason counts.
func (c *Client) fail(err error) {
	c.mu.Lock()
	if c.err != nil {
		c.mu.Unlock()
		return
	}
	c.err = err
	streams := c.streams
	c.streams = nil
	close(c.done)
	c.mu.Unlock()
	c.conn.Close()
	for _, s := range streams {
		s.fail(err)
	}
}

// read handles frames until the connection ends.
func (c *Client) read(greeted chan struct{}) {
	defer fault.Protect("reading from the guest", func(err error) { c.fail(fault.Kind{Err: err, Kind: sandpit.ErrProtocol}) })
	err := c.readFrames(greeted)
	var netErr net.Error
	switch {
	case errors.Is(err, sandpit.ErrProtocol), errors.Is(err, sandpit.ErrUnsupported), errors.Is(err, sandpit.ErrClosed):
	case errors.Is(err, wire.ErrFrame), errors.Is(err, wire.ErrMessage):
		err = fmt.Errorf("%w: %w", sandpit.ErrProtocol, err)
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.As(err, &netErr), errors.Is(err, os.ErrClosed):
		err = fmt.Errorf("%w: its guest has exited", sandpit.ErrClosed)
	default:
		err = fmt.Errorf("%w: reading from its guest: %w", sandpit.ErrClosed, err)
	}
	c.fail(err)
}

func violation(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{sandpit.ErrProtocol}, args...)...)
}

func (c *Client) readFrames(greeted chan struct{}) error {
	r := wire.NewReader(c.conn)
	for first := true; ; first = false {
		h, err := r.Next()
		if err != nil {
			return err
		}
		switch {
		case h.Stream == 0 && h.Type == wire.Error:
			b, err := r.Message(h.Len)
			if err != nil {
				return err
			}
			var m wire.ErrorMessage
			if err := m.Decode(b); err != nil {
				return err
			}
			if m.Code == wire.CodeVersion {
				return sandpit.WithHint(fmt.Errorf("%w: %s", sandpit.ErrUnsupported, printable(m.Text)),
					"use the guest that belongs to this version of sandpit")
			}
			if m.Code == wire.CodeExpired {
				return fmt.Errorf("%w: %w: %s", sandpit.ErrClosed, ErrExpired, printable(m.Text))
			}
			return violation("it says: %s", printable(m.Text))
		case first:
			if h.Type != wire.Hello || h.Stream != 0 {
				return violation("the first frame is %s", h.Type)
			}
			b, err := r.Message(h.Len)
			if err != nil {
				return err
			}
			var peer wire.HelloMessage
			if err := peer.Decode(b); err != nil {
				return err
			}
			if peer.Version < wire.MinVersion || peer.MinVersion > wire.Version {
				return sandpit.WithHint(fmt.Errorf("%w: the guest speaks protocol version %d to %d, this program %d to %d",
					sandpit.ErrUnsupported, peer.MinVersion, peer.Version, wire.MinVersion, wire.Version),
					"use the guest that belongs to this version of sandpit")
			}
			c.mu.Lock()
			c.window, c.features = int(peer.Window), peer.Features
			for _, s := range c.streams { // opened before the window was known
				s.out.Add(uint32(peer.Window))
			}
			c.mu.Unlock()
			close(greeted)
		case h.Stream == 0:
			if h.Type != wire.Pong {
				return violation("%s frame on stream 0", h.Type)
			}
			if err := r.Skip(h.Len); err != nil {
				return err
			}
			if !c.pong() {
				return violation("unexpected PONG frame")
			}
		default:
			if err := c.frame(r, h); err != nil {
				return err
			}
		}
	}
}

// frame handles a frame of a stream.
func (c *Client) frame(r *wire.Reader, h wire.Header) error {
	c.mu.Lock()
	s, known := c.streams[h.Stream], h.Stream <= c.last
	c.mu.Unlock()
	if !known {
		return violation("%s frame for a stream that was never opened", h.Type)
	}
	if s == nil { // closed here while the guest was sending
		return r.Skip(h.Len)
	}
	switch h.Type {
	case wire.Data, wire.Data2:
		if s.in == nil || !s.replied || h.Len == 0 || h.Type == wire.Data2 && !s.process() {
			return violation("unexpected %s frame", h.Type)
		}
		if s.limit > 0 {
			if s.got += int64(h.Len); s.got > s.limit {
				return violation("more output than allowed")
			}
		}
		b, ok := s.in.Space(h.Len)
		if !ok {
			return violation("%s frame without credit", h.Type)
		}
		if err := r.Into(b); err != nil {
			return err
		}
		s.in.Commit(h.Type, h.Len)
		return nil
	case wire.Reply, wire.Error, wire.Event, wire.Credit:
		b, err := r.Message(h.Len)
		if err != nil {
			return err
		}
		return c.message(s, h.Type, b)
	case wire.EOF:
		// Before the stream is forgotten: who waits for its answer would not be
		// told that the connection has failed.
		if !s.replied {
			return violation("unexpected EOF frame")
		}
		switch s.op {
		case wire.OpRead, wire.OpGrep, wire.OpWatch, wire.OpPack:
			c.forget(s)
		case wire.OpDial: // it goes on in the other direction
		default:
			return violation("unexpected EOF frame")
		}
		if !s.in.Finish() {
			return violation("unexpected EOF frame")
		}
	case wire.Close:
		s.out.Fail(errPeerClosed)
	default:
		return violation("%s frame from the guest", h.Type)
	}
	return r.Skip(h.Len)
}

// message handles a frame that carries a message.
func (c *Client) message(s *stream, t wire.Type, b []byte) error {
	switch t {
	case wire.Credit:
		n, err := wire.DecodeCredit(b)
		if err != nil {
			return err
		}
		if !s.out.Add(n) {
			return violation("too much credit")
		}
	case wire.Reply:
		if s.replied {
			return violation("two replies")
		}
		s.replied = true
		if s.in == nil { // a call
			c.forget(s)
		}
		s.answer <- answer{msg: append([]byte(nil), b...)}
	case wire.Error:
		var m wire.ErrorMessage
		if err := m.Decode(b); err != nil {
			return err
		}
		c.forget(s)
		s.fail(guestError(&m))
	case wire.Event:
		if s.op == wire.OpDial && s.replied {
			return c.hungUp(s, b)
		}
		if !s.process() || !s.replied {
			return violation("unexpected EVENT frame")
		}
		if err := s.exit.Decode(b); err != nil {
			return err
		}
		c.forget(s)
		s.in.Finish()
		s.out.Fail(errPeerClosed)
	}
	return nil
}

// Ping returns when the guest has answered.
func (c *Client) Ping(ctx context.Context) error {
	ch := make(chan struct{})
	c.mu.Lock()
	if c.err != nil {
		defer c.mu.Unlock()
		return c.err
	}
	if len(c.pings) >= maxPings {
		c.mu.Unlock()
		return fmt.Errorf("pinging the guest: %w: too many pings under way", sandpit.ErrState)
	}
	c.pings = append(c.pings, ch)
	c.mu.Unlock()
	if sent, err := c.write(ctx, wire.AppendFrame(nil, wire.Ping, 0, nil)); err != nil {
		if !sent { // no answer will come that could be taken for another's
			c.mu.Lock()
			c.pings = slices.DeleteFunc(c.pings, func(p chan struct{}) bool { return p == ch })
			c.mu.Unlock()
		}
		return err
	}
	select {
	case <-ch:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-c.done:
		return c.err
	}
}

// maxPings bounds the pings under way.
const maxPings = 64

// pong ends the oldest ping.
func (c *Client) pong() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.pings) == 0 {
		return false
	}
	close(c.pings[0])
	c.pings = c.pings[1:]
	return true
}
