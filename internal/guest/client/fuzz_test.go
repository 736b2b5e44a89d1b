package client

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/guest/wire"
	"github.com/sandpit-dev/sandpit/internal/testkit"
)

func TestMain(m *testing.M) { os.Exit(testkit.Main(m)) }

// frames joins frames of a guest, behind its greeting.
func frames(fs ...[]byte) []byte {
	hello := wire.HelloMessage{Version: wire.Version, MinVersion: wire.MinVersion, Window: wire.GuestWindow, Build: "test"}
	b := wire.AppendFrame(nil, wire.Hello, 0, hello.Append(nil))
	for _, f := range fs {
		b = append(b, f...)
	}
	return b
}

func frame(t wire.Type, stream uint32, m interface{ Append([]byte) []byte }) []byte {
	var p []byte
	if m != nil {
		p = m.Append(nil)
	}
	return wire.AppendFrame(nil, t, stream, p)
}

// play answers a client with fixed bytes and then hangs up: some at once, and
// the rest when it has opened its second stream, or has been used without that.
func play(t testing.TB, greeting, rest []byte, use func(ctx context.Context, c *Client)) error {
	ours, theirs := net.Pipe()
	opened, used := make(chan struct{}), make(chan struct{})
	leave := sync.OnceFunc(func() { close(used) })
	defer leave()
	go func() {
		defer close(opened)
		for r := wire.NewReader(theirs); ; {
			h, err := r.Next()
			if err == nil {
				err = r.Skip(h.Len)
			}
			if err != nil {
				return
			}
			if h.Type == wire.Open && h.Stream == 2 {
				go io.Copy(io.Discard, theirs)
				return
			}
		}
	}()
	go func() {
		_, _ = theirs.Write(greeting)
		if len(rest) > 0 {
			select {
			case <-opened:
			case <-used:
			}
			_, _ = theirs.Write(rest)
		}
		theirs.Close()
	}()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	c, err := New(ctx, ours, Options{Config: &Config{Output: 1 << 20}})
	if err != nil {
		return err
	}
	defer c.Close()
	use(ctx, c)
	leave()
	select {
	case <-c.Done():
	case <-ctx.Done():
		t.Fatal("the connection does not end")
	}
	return c.Err()
}

// exercise does a bit of everything.
func exercise(ctx context.Context, c *Client) {
	if p, err := c.Start(ctx, sandpit.Command{Argv: []string{"x"}, Stdin: true, Stdout: io.Discard}); err == nil {
		_, _ = p.Wait(ctx)
		_ = p.Signal(ctx, 15)
	}
	_, _, _ = c.Files().ReadDir(ctx, "/", "", 10)
	if r, err := c.Files().Open(ctx, "/x", 0, -1); err == nil {
		_, _ = io.Copy(io.Discard, r)
		r.Close()
	}
	_, _ = c.Files().Write(ctx, "/x", bytes.NewReader(make([]byte, 1000)), sandpit.WriteOptions{})
	_, _ = c.Processes(ctx)
	_ = c.Ping(ctx)
}

// A ping that was called off before it was sent takes no other's answer.
func TestPingThatWasNotSent(t *testing.T) {
	ours, theirs := net.Pipe()
	defer theirs.Close()
	go func() { _, _ = theirs.Write(frames()) }()
	read := func(want wire.Type) {
		r := wire.NewReader(theirs)
		if h, err := r.Next(); err != nil || h.Type != want || r.Skip(h.Len) != nil {
			t.Errorf("got %v, %v", h.Type, err)
		}
	}
	greeted := make(chan struct{})
	go func() { defer close(greeted); read(wire.Hello) }()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	c, err := New(ctx, ours, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	<-greeted
	brief, end := context.WithTimeout(ctx, 10*time.Millisecond)
	defer end()
	if err := c.Ping(brief); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("nobody reads it, and got %v", err)
	}
	go func() {
		read(wire.Ping)
		_, _ = theirs.Write(wire.AppendFrame(nil, wire.Pong, 0, nil))
	}()
	if err := c.Ping(ctx); err != nil {
		t.Error(err)
	}
}

// The configuration is stream 1, the start stream 2.
var good = [][]byte{
	frame(wire.Reply, 1, nil),
}

func TestHostileGuest(t *testing.T) {
	ok := frame(wire.Reply, 1, nil)
	started := frame(wire.Reply, 2, &wire.Started{Ref: 1, PID: 2})
	data := func(n int) []byte { return wire.AppendFrame(nil, wire.Data, 2, make([]byte, n)) }
	flood := [][]byte{started}
	for range wire.HostWindow/wire.MaxData + 1 {
		flood = append(flood, data(wire.MaxData))
	}
	for name, tc := range map[string]struct {
		greeting []byte
		rest     [][]byte // when the process is being started
	}{
		"no greeting":            {ok, nil},
		"garbage":                {[]byte("HTTP/1.1 400 Bad Request\r\n\r\n"), nil},
		"data for a call":        {frames(wire.AppendFrame(nil, wire.Data, 1, []byte("x"))), nil},
		"a second greeting":      {append(frames(ok), frames()...), nil},
		"pong":                   {frames(ok, wire.AppendFrame(nil, wire.Pong, 0, nil)), nil},
		"unknown frame":          {frames(ok), [][]byte{wire.AppendFrame(nil, 99, 0, nil)}},
		"frame of the host":      {frames(ok), [][]byte{wire.AppendFrame(nil, wire.Open, 2, nil)}},
		"stream never opened":    {frames(ok), [][]byte{frame(wire.Reply, 77, nil)}},
		"data before the reply":  {frames(ok), [][]byte{data(1)}},
		"empty data":             {frames(ok), [][]byte{started, data(0)}},
		"two replies":            {frames(ok), [][]byte{started, started}},
		"event before the reply": {frames(ok), [][]byte{frame(wire.Event, 2, &wire.Exit{})}},
		"exit code too large":    {frames(ok), [][]byte{started, frame(wire.Event, 2, &wire.Exit{Code: 256})}},
		"end of file":            {frames(ok), [][]byte{started, wire.AppendFrame(nil, wire.EOF, 2, nil)}},
		"huge pid":               {frames(ok), [][]byte{frame(wire.Reply, 2, &wire.Started{Ref: 1, PID: 1 << 40})}},
		"endless credit":         {frames(ok), [][]byte{started, wire.AppendFrame(nil, wire.Credit, 2, []byte{0xff, 0xff, 0xff, 0xff})}},
		"malformed credit":       {frames(ok), [][]byte{started, wire.AppendFrame(nil, wire.Credit, 2, []byte{1})}},
		"malformed error":        {frames(ok), [][]byte{wire.AppendFrame(nil, wire.Error, 2, []byte{0xff})}},
		"more than the window":   {frames(ok), flood},
		"more than the limit":    {frames(ok), append([][]byte{started}, data(600), data(600))},
		"an accusation":          {frames(ok), [][]byte{frame(wire.Error, 0, &wire.ErrorMessage{Code: wire.CodeProtocol, Text: "\x1b[2J"})}},
	} {
		err := play(t, tc.greeting, bytes.Join(tc.rest, nil), func(ctx context.Context, c *Client) {
			cmd := sandpit.Command{Argv: []string{"x"}, Stdout: blocked(ctx, c)}
			if name == "more than the limit" {
				cmd.OutputLimit = 1000
			}
			p, err := c.Start(ctx, cmd)
			if err == nil {
				_, err = p.Wait(ctx)
			}
			if err == nil || errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%s: start and wait gave %v", name, err)
			}
			if name == "huge pid" && !errors.Is(err, sandpit.ErrProtocol) {
				t.Errorf("%s: got %v, want ErrProtocol", name, err)
			}
		})
		if name == "huge pid" {
			continue // found by the start, not by the connection, which may have ended by then
		}
		if !errors.Is(err, sandpit.ErrProtocol) {
			t.Errorf("%s: got %v, want ErrProtocol", name, err)
		}
		if strings.Contains(err.Error(), "\x1b") {
			t.Errorf("%s: %q is no text for a terminal", name, err)
		}
	}
}

// blocked is a writer that takes nothing while the connection lasts.
func blocked(ctx context.Context, c *Client) io.Writer {
	return writerFunc(func(b []byte) (int, error) {
		select {
		case <-ctx.Done():
		case <-c.Done():
		}
		return len(b), nil
	})
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }

// A guest is served when the ranges of versions meet, and else refused by a text
// that names both.
func TestOtherVersion(t *testing.T) {
	for _, tt := range []struct {
		oldest, newest uint64
		served         bool
	}{
		{wire.Version, wire.Version, true},
		{wire.Version, wire.Version + 1, true},
		{0, wire.MinVersion, true},
		{0, wire.Version + 9, true},
		{wire.Version + 1, wire.Version + 2, false},
		{0, wire.MinVersion - 1, false},
	} {
		hello := wire.HelloMessage{Version: tt.newest, MinVersion: tt.oldest, Window: wire.GuestWindow}
		greeting := append(wire.AppendFrame(nil, wire.Hello, 0, hello.Append(nil)), frame(wire.Reply, 1, nil)...)
		started := false
		err := play(t, greeting, frame(wire.Reply, 2, &wire.Started{Ref: 1, PID: 2}), func(ctx context.Context, c *Client) {
			_, err := c.Start(ctx, sandpit.Command{Argv: []string{"x"}})
			started = err == nil
		})
		if started != tt.served {
			t.Errorf("versions %d to %d: started: %t, %v", tt.oldest, tt.newest, started, err)
		}
		both := fmt.Sprintf("the guest speaks protocol version %d to %d, this program %d to %d", tt.oldest, tt.newest, wire.MinVersion, wire.Version)
		if !tt.served && (!errors.Is(err, sandpit.ErrUnsupported) || sandpit.Hint(err) == "" || !strings.Contains(err.Error(), both)) {
			t.Errorf("versions %d to %d: got %v", tt.oldest, tt.newest, err)
		}
	}
}

// A guest that has died between two frames has not broken the protocol.
func TestGuestThatDies(t *testing.T) {
	greeting := frames(good[0])
	for n := range len(greeting) {
		if err := play(t, greeting[:n], nil, exercise); !errors.Is(err, sandpit.ErrClosed) {
			t.Errorf("after %d bytes: got %v, want ErrClosed", n, err)
		}
	}
	rest := append(frame(wire.Reply, 2, &wire.Started{Ref: 1, PID: 2}), wire.AppendFrame(nil, wire.Data, 2, []byte("output"))...)
	for n := range len(rest) {
		if err := play(t, greeting, rest[:n], exercise); !errors.Is(err, sandpit.ErrClosed) {
			t.Errorf("after %d bytes: got %v, want ErrClosed", n, err)
		}
	}
}

// A guest that is alive and reads nothing holds nobody up for longer than wished.
func TestGuestThatDoesNotListen(t *testing.T) {
	ours, theirs := net.Pipe()
	defer theirs.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := New(ctx, ours, Options{}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("greeting: got %v", err)
	}

	ours, theirs = net.Pipe()
	defer theirs.Close()
	read := make(chan struct{})
	go func() {
		_, _ = theirs.Write(frames(good[0]))
		_, _ = theirs.Read(make([]byte, 4096))
		<-read // some of the first request is read, and then all
		_, _ = theirs.Read(make([]byte, 3))
		<-read
		_, _ = io.Copy(io.Discard, theirs)
	}()
	c, err := New(t.Context(), ours, Options{Config: &Config{}})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for i := range 5 {
		if i == 1 {
			read <- struct{}{}
		}
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
		if _, err := c.Files().Stat(ctx, "/x"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("stat: got %v", err)
		}
		cancel()
	}
	read <- struct{}{}
}

func FuzzGreeting(f *testing.F) {
	f.Add(frames())
	f.Add(frames(good...))
	f.Add(frame(wire.Error, 0, &wire.ErrorMessage{Code: wire.CodeVersion, Text: "no"}))
	f.Add(frames(frame(wire.Error, 1, &wire.ErrorMessage{Code: wire.CodeInvalid, Text: "unknown user"})))
	f.Fuzz(func(t *testing.T, greeting []byte) {
		_ = play(t, greeting, nil, func(context.Context, *Client) {})
	})
}

func FuzzGuest(f *testing.F) {
	started := frame(wire.Reply, 2, &wire.Started{Ref: 1, PID: 2})
	add := func(fs ...[]byte) { f.Add(bytes.Join(fs, nil)) }
	add(started, wire.AppendFrame(nil, wire.Data, 2, []byte("out")), wire.AppendFrame(nil, wire.Data2, 2, []byte("err")),
		frame(wire.Event, 2, &wire.Exit{Code: 3}), frame(wire.Error, 3, &wire.ErrorMessage{Code: wire.CodeNotFound}))
	add(started, frame(wire.Event, 2, &wire.Exit{}))
	add(frame(wire.Error, 2, &wire.ErrorMessage{Code: wire.CodeInvalid, Text: "no"}))
	add(started, wire.AppendFrame(nil, wire.Credit, 2, []byte{1, 0, 0, 0}), wire.AppendFrame(nil, wire.Close, 2, nil), wire.AppendFrame(nil, wire.Pong, 0, nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		_ = play(t, frames(good...), b, func(ctx context.Context, c *Client) {
			p, err := c.Start(ctx, sandpit.Command{Argv: []string{"x"}, Stdin: true, Stdout: io.Discard})
			if err == nil {
				_, _ = p.Wait(ctx)
			}
		})
	})
}

// FuzzAnswer is one answer to each operation.
func FuzzAnswer(f *testing.F) {
	record := func(m interface{ Append([]byte) []byte }, content string) []byte {
		return append(wire.AppendFrame(frame(wire.Reply, 2, nil), wire.Data, 2, append(wire.AppendRecord(nil, m), content...)), wire.AppendFrame(nil, wire.EOF, 2, nil)...)
	}
	f.Add(uint8(6), frame(wire.Reply, 2, &wire.Entries{List: []wire.File{{Name: "a"}, {Name: "a/b"}}}))
	f.Add(uint8(7), record(&wire.GrepLine{Kind: wire.GrepMatch, Path: "a", Line: 3, Text: "x"}, ""))
	f.Add(uint8(8), record(&wire.WatchEvent{Kind: wire.WatchRename, Path: "a", From: "b"}, ""))
	f.Add(uint8(9), record(&wire.TreeEntry{Kind: wire.TreeFile, Path: "a", Size: 3}, "abc"))
	f.Add(uint8(9), record(&wire.TreeEntry{Kind: wire.TreeFile, Path: "../a", Size: 3}, "abc"))
	f.Add(uint8(10), bytes.Join([][]byte{
		frame(wire.Reply, 2, nil), wire.AppendFrame(nil, wire.Data, 2, []byte("x")), wire.AppendFrame(nil, wire.EOF, 2, nil), frame(wire.Event, 2, &wire.Closed{Errno: 104}),
	}, nil))
	f.Add(uint8(11), frame(wire.Reply, 2, &wire.Ports{List: []wire.Port{{Address: "\x7f\x00\x00\x01", Port: 80}}}))
	f.Add(uint8(12), frame(wire.Reply, 2, &wire.LifetimeState{Life: 5}))
	f.Add(uint8(13), bytes.Join([][]byte{
		frame(wire.Reply, 2, &wire.Started{Ref: 1, PID: 2}),
		wire.AppendFrame(nil, wire.Data, 2, wire.AppendRecord(wire.AppendRecord(nil, &wire.Output{Lost: 5}), &wire.Output{Kind: wire.OutputStdout, Position: 5, Data: "x"})),
		frame(wire.Event, 2, &wire.Exit{Code: 1}),
	}, nil))
	for op, m := range []interface{ Append([]byte) []byte }{
		&wire.Entries{List: []wire.File{{Name: "a"}}}, &wire.File{Mode: 0o100644}, &wire.Written{Bytes: 5}, &wire.Processes{List: []wire.Process{{Started: wire.Started{Ref: 1}}}},
		&wire.Info{PID: 1}, &wire.Path{Path: "target"},
	} {
		f.Add(uint8(op), append(frame(wire.Reply, 2, m), wire.AppendFrame(nil, wire.EOF, 2, nil)...))
	}
	f.Fuzz(func(t *testing.T, op uint8, b []byte) {
		_ = play(t, frames(good...), b, func(ctx context.Context, c *Client) {
			switch op % 15 {
			case 0:
				_, _, _ = c.Files().ReadDir(ctx, "/", "", 10)
			case 1:
				if r, err := c.Files().Open(ctx, "/x", 0, -1); err == nil {
					_, _ = io.Copy(io.Discard, r)
					r.Close()
				}
			case 2:
				_, _ = c.Files().Write(ctx, "/x", bytes.NewReader(make([]byte, 1000)), sandpit.WriteOptions{})
			case 3:
				_, _ = c.Processes(ctx)
			case 4:
				_, _ = c.Info(ctx)
			case 5:
				_, _ = c.Files().Readlink(ctx, "/x")
			case 6:
				_, _, _ = files{c: c}.Find(ctx, "/", sandpit.FindQuery{Limit: 10})
			case 7:
				_, _ = files{c: c}.Grep(ctx, "/", sandpit.GrepQuery{Pattern: "x.*y"})
			case 8:
				for _, err := range (files{c: c}).Watch(ctx, "/", true) {
					if err != nil {
						break
					}
				}
			case 9:
				_ = files{c: c}.Download(ctx, "/x", io.Discard)
			case 10:
				if conn, err := c.Dial(ctx, 80); err == nil {
					_, _ = conn.Write([]byte("x"))
					_, _ = io.Copy(io.Discard, conn)
					conn.Close()
				}
			case 11:
				_, _ = c.Ports(ctx)
			case 12:
				_, _ = c.TimeLeft(ctx)
				_, _ = c.Expired(ctx)
			case 13:
				if p, err := c.Attach(ctx, 1, 0, AttachOptions{Chunk: func(Chunk) error { return nil }}); err == nil {
					_, _ = p.Wait(ctx)
				}
			case 14:
				_ = files{c: c}.Edit(ctx, "/x", []sandpit.Edit{{Old: "a"}})
			}
		})
	})
}
