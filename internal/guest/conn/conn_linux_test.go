package conn

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit/internal/guest/wire"
	"github.com/sandpit-dev/sandpit/internal/testkit"
)

func TestMain(m *testing.M) { os.Exit(testkit.Main(m)) }

// harmless stands in for what a guest does: it decodes everything and carries
// content both ways, but starts no programs and touches no files.
type harmless struct{}

func (harmless) Greeted(*Conn)    {}
func (harmless) Closed(*Conn)     {}
func (harmless) StreamBegun()     {}
func (harmless) StreamActive()    {}
func (harmless) StreamEnded(bool) {}
func (harmless) Moved(int)        {}

func (harmless) Open(s *Stream, op wire.Op, msg []byte) error {
	for _, m := range []interface{ Decode([]byte) error }{
		new(wire.Config), new(wire.Start), new(wire.Attach), new(wire.Signal), new(wire.Resize), new(wire.After), new(wire.Stat),
		new(wire.ReadDir), new(wire.Read), new(wire.Write), new(wire.Path), new(wire.Lifetime), new(wire.Find), new(wire.Grep),
		new(wire.Edits), new(wire.Watch), new(wire.Dial),
	} {
		_ = m.Decode(msg)
	}
	switch op {
	case wire.OpDial:
		s.Lingers = true
		fallthrough
	case wire.OpStart, wire.OpAttach, wire.OpWrite:
		s.In = wire.NewQueue(wire.GuestWindow)
		s.WhenGone(func() {})
		go func() {
			s.Reply(&wire.Started{Ref: 1, PID: 2})
			buf := make([]byte, wire.HeaderSize+wire.MaxData)
			err := s.Content(func(b []byte) error {
				for len(b) > 0 {
					n := copy(buf[wire.HeaderSize:], b)
					if err := s.Send(wire.Data, buf, n); err != nil {
						return err
					}
					b = b[n:]
				}
				return nil
			})
			if err != io.EOF {
				s.Refuse()
			}
			s.End(wire.Event, &wire.Exit{})
		}()
	case wire.OpInfo, wire.OpList, wire.OpStat:
		s.Answer(Nothing{}, nil)
	default:
		return wire.Fail(wire.CodeUnsupported, "not here")
	}
	return nil
}

// serve feeds a guest fixed bytes and returns what it makes of them.
func serve(b []byte) error {
	ours, theirs := net.Pipe()
	go io.Copy(io.Discard, ours)
	go func() {
		_, _ = ours.Write(b)
		ours.Close()
	}()
	return New(harmless{}, theirs, theirs).Serve()
}

func hello(fs ...[]byte) []byte {
	h := wire.HelloMessage{Version: wire.Version, MinVersion: wire.MinVersion, Window: wire.MinWindow}
	return append(wire.AppendFrame(nil, wire.Hello, 0, h.Append(nil)), bytes.Join(fs, nil)...)
}

func open(id uint32, op wire.Op, m Message) []byte {
	return wire.AppendFrame(nil, wire.Open, id, m.Append([]byte{byte(op)}))
}

func data(id uint32, n int) []byte { return wire.AppendFrame(nil, wire.Data, id, make([]byte, n)) }

func TestHostThatBreaksTheProtocol(t *testing.T) {
	start := open(1, wire.OpStart, &wire.Start{})
	flood := start
	for range wire.GuestWindow / wire.MaxData {
		flood = append(flood, data(1, wire.MaxData)...)
	}
	other := wire.HelloMessage{Version: 99, MinVersion: 99, Window: wire.MinWindow}
	for name, b := range map[string][]byte{
		"no greeting":           start,
		"garbage":               []byte("GET / HTTP/1.1\r\n\r\n"),
		"other version":         wire.AppendFrame(nil, wire.Hello, 0, other.Append(nil)),
		"small window":          wire.AppendFrame(nil, wire.Hello, 0, (&wire.HelloMessage{Version: 1, MinVersion: 1, Window: 1}).Append(nil)),
		"frame of the guest":    hello(wire.AppendFrame(nil, wire.Reply, 1, nil)),
		"unknown stream":        hello(data(1, 1)),
		"stream used twice":     hello(start, start),
		"stream 0":              hello(open(0, wire.OpStart, &wire.Start{})),
		"empty open":            hello(wire.AppendFrame(nil, wire.Open, 1, nil)),
		"content for a call":    hello(open(1, wire.OpWrite+100, Nothing{}), open(2, wire.OpStart, &wire.Start{}), data(2, 0)),
		"malformed PASSED":      hello(start, wire.AppendFrame(nil, wire.Passed, 1, []byte{byte(wire.EOF), 0, 0, 0, 0})),
		"PASSED unasked for":    hello(start, wire.AppendFrame(nil, wire.Passed, 1, wire.AppendPassed(nil, wire.Data, 1))),
		"malformed credit":      hello(start, wire.AppendFrame(nil, wire.Credit, 1, []byte{1})),
		"more than any window":  hello(start, wire.AppendFrame(nil, wire.Credit, 1, []byte{0xff, 0xff, 0xff, 0xff})),
		"more data than credit": hello(flood, flood[len(start):]),
	} {
		if err := serve(b); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	if err := serve(hello(start, data(1, 10), wire.AppendFrame(nil, wire.Close, 1, nil), data(1, 10))); err != nil {
		t.Errorf("data behind a close: %v", err)
	}
}

// A host is served when the ranges of versions meet, and else told so, on stream 0.
func TestHostOfAnotherVersion(t *testing.T) {
	for _, tt := range []struct {
		oldest, newest uint64
		served         bool
	}{
		{wire.Version, wire.Version + 1, true},
		{0, wire.MinVersion, true},
		{wire.Version + 1, wire.Version + 2, false},
		{0, wire.MinVersion - 1, false},
	} {
		ours, theirs := net.Pipe()
		ended := make(chan error, 1)
		go func() { ended <- New(harmless{}, theirs, theirs).Serve() }()
		go func() {
			h := wire.HelloMessage{Version: tt.newest, MinVersion: tt.oldest, Window: wire.MinWindow}
			_, _ = ours.Write(append(wire.AppendFrame(nil, wire.Hello, 0, h.Append(nil)), open(1, wire.OpInfo, Nothing{})...))
		}()
		r := wire.NewReader(ours)
		var kinds []wire.Type
		var why wire.ErrorMessage
		for range 2 {
			h, err := r.Next()
			if err != nil {
				t.Fatal(err)
			}
			b, err := r.Message(h.Len)
			if err != nil {
				t.Fatal(err)
			}
			if kinds = append(kinds, h.Type); h.Type == wire.Error {
				if err := why.Decode(b); err != nil || h.Stream != 0 {
					t.Errorf("versions %d to %d: on stream %d, %v", tt.oldest, tt.newest, h.Stream, err)
				}
			}
		}
		ours.Close()
		err := <-ended
		switch {
		case kinds[0] != wire.Hello:
			t.Errorf("versions %d to %d: the first frame is %s", tt.oldest, tt.newest, kinds[0])
		case tt.served && kinds[1] != wire.Reply:
			t.Errorf("versions %d to %d: the second frame is %s, %+v, %v", tt.oldest, tt.newest, kinds[1], why, err)
		case !tt.served && (kinds[1] != wire.Error || why.Code != wire.CodeVersion || !errors.Is(err, errVersion)):
			t.Errorf("versions %d to %d: the second frame is %s, %+v, %v", tt.oldest, tt.newest, kinds[1], why, err)
		}
	}
}

func TestManyStreams(t *testing.T) {
	var b []byte
	for i := range uint32(maxStreams + 10) {
		b = append(b, open(i+1, wire.OpStart, &wire.Start{})...)
	}
	if err := serve(hello(b)); err != nil {
		t.Error(err)
	}
}

func FuzzHost(f *testing.F) {
	f.Add(hello())
	f.Add(hello(open(1, wire.OpStart, &wire.Start{Flags: wire.StartStdin, Argv: []string{"a"}}), data(1, 100), wire.AppendFrame(nil, wire.EOF, 1, nil),
		wire.AppendFrame(nil, wire.Credit, 1, []byte{100, 0, 0, 0}), wire.AppendFrame(nil, wire.Ping, 0, []byte("x"))))
	f.Add(hello(open(1, wire.OpConfigure, &wire.Config{User: "u"}), open(5, wire.OpStat, &wire.Stat{Path: "/"}), wire.AppendFrame(nil, wire.Close, 1, nil),
		open(6, wire.OpWrite, &wire.Write{Path: "/x"}), data(6, 3), wire.AppendFrame(nil, wire.Close, 6, nil), data(6, 3)))
	f.Add(wire.AppendFrame(nil, wire.Error, 0, (&wire.ErrorMessage{}).Append(nil)))
	f.Fuzz(func(t *testing.T, b []byte) {
		done := make(chan struct{})
		go func() { _ = serve(b); close(done) }()
		select {
		case <-done:
		case <-time.After(time.Minute):
			t.Fatal("the guest does not end although its connection has")
		}
	})
}
