package server

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit/internal/guest/wire"
	"github.com/sandpit-dev/sandpit/internal/testkit"
)

// The child processes of a fuzz run are no guests.
func TestMain(m *testing.M) { os.Exit(testkit.Main(m)) }

// harmless stands in for what a guest does: it decodes everything and carries
// content both ways, but starts no programs and touches no files.
func harmless(s *stream, op wire.Op, msg []byte) error {
	for _, m := range []interface{ Decode([]byte) error }{
		new(wire.Config), new(wire.Start), new(wire.Attach), new(wire.Signal), new(wire.Resize), new(wire.After), new(wire.Stat),
		new(wire.ReadDir), new(wire.Read), new(wire.Write), new(wire.Path), new(wire.Lifetime), new(wire.Find), new(wire.Grep),
		new(wire.Edits), new(wire.Watch), new(wire.Dial),
	} {
		_ = m.Decode(msg)
	}
	switch op {
	case wire.OpDial:
		s.lingers = true
		fallthrough
	case wire.OpStart, wire.OpAttach, wire.OpWrite:
		s.in = wire.NewQueue(wire.GuestWindow)
		s.whenGone(func() {})
		go func() {
			s.reply(&wire.Started{Ref: 1, PID: 2})
			buf := make([]byte, wire.HeaderSize+wire.MaxData)
			err := s.content(func(b []byte) error {
				for len(b) > 0 {
					n := copy(buf[wire.HeaderSize:], b)
					if err := s.sendContent(wire.Data, buf, n); err != nil {
						return err
					}
					b = b[n:]
				}
				return nil
			})
			if err != io.EOF {
				s.refuse()
			}
			s.end(wire.Event, &wire.Exit{})
		}()
	case wire.OpInfo, wire.OpList, wire.OpStat:
		s.answer(nothing{}, nil)
	default:
		return fail(wire.CodeUnsupported, "not here")
	}
	return nil
}

// serve feeds a guest fixed bytes and returns what it makes of them.
func serve(b []byte) error {
	g := &guest{handle: harmless, procs: map[uint64]*process{}, idle: time.NewTimer(time.Hour)}
	defer g.idle.Stop()
	ours, theirs := net.Pipe()
	go io.Copy(io.Discard, ours)
	go func() {
		_, _ = ours.Write(b)
		ours.Close()
	}()
	return newConn(g, theirs, theirs).serve()
}

func hello(fs ...[]byte) []byte {
	h := wire.HelloMessage{Version: wire.Version, MinVersion: wire.MinVersion, Window: wire.MinWindow}
	return append(wire.AppendFrame(nil, wire.Hello, 0, h.Append(nil)), bytes.Join(fs, nil)...)
}

func open(id uint32, op wire.Op, m message) []byte {
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
		"content for a call":    hello(open(1, wire.OpWrite+100, nothing{}), open(2, wire.OpStart, &wire.Start{}), data(2, 0)),
		"data after end":        hello(start, wire.AppendFrame(nil, wire.EOF, 1, nil), data(1, 1), data(1, 1)),
		"malformed credit":      hello(start, wire.AppendFrame(nil, wire.Credit, 1, []byte{1})),
		"more than any window":  hello(start, wire.AppendFrame(nil, wire.Credit, 1, []byte{0xff, 0xff, 0xff, 0xff})),
		"more data than credit": hello(flood, flood[len(start):]),
	} {
		err := serve(b)
		if name == "data after end" { // unless the stream was over before the data came
			continue
		}
		if err == nil {
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
		g := &guest{handle: harmless, procs: map[uint64]*process{}, idle: time.NewTimer(time.Hour)}
		ours, theirs := net.Pipe()
		ended := make(chan error, 1)
		go func() { ended <- newConn(g, theirs, theirs).serve() }()
		go func() {
			h := wire.HelloMessage{Version: tt.newest, MinVersion: tt.oldest, Window: wire.MinWindow}
			_, _ = ours.Write(append(wire.AppendFrame(nil, wire.Hello, 0, h.Append(nil)), open(1, wire.OpInfo, nothing{})...))
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
		g.idle.Stop()
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

// A program that a host has sent ends, and stays within itself.
func FuzzMatcher(f *testing.F) {
	f.Add((&wire.Grep{Prog: []wire.Inst{
		{Op: wire.InstAlt, Out: 1, Arg: 2}, {Op: wire.InstRune, Out: 0, Ranges: []int32{'a', 'z'}}, {Op: wire.InstEmpty, Out: 3, Arg: wire.EmptyEnd}, {Op: wire.InstMatch},
	}}).Append(nil), []byte("abc"))
	f.Add((&wire.Grep{Literal: "b", Prog: []wire.Inst{{Op: wire.InstAlt}, {Op: wire.InstAny}}}).Append(nil), []byte("äb"))
	f.Fuzz(func(t *testing.T, message, line []byte) {
		var m wire.Grep
		if m.Decode(message) != nil {
			return
		}
		k := newMatcher(&m)
		first := k.match(line)
		if k.match(line) != first {
			t.Error("not the same a second time")
		}
	})
}

// What a program may have named its sockets' addresses is no line of the kernel's.
func FuzzPorts(f *testing.F) {
	f.Add([]byte("  sl  local_address rem_address   st\n   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 1\n"))
	f.Add([]byte("   1: 00000000000000000000000001000000:0016 00000000000000000000000000000000:0000 0A 00000000:00000000 00:00000000 00000000     0\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		for line := range bytes.Lines(b) {
			p, ok := parsePort(line)
			if ok && len(p.Address) != 4 && len(p.Address) != 16 {
				t.Errorf("%q: %+v", line, p)
			}
		}
	})
}

func FuzzGlob(f *testing.F) {
	f.Add("src/**/*.go", "src/a/b/c.go")
	f.Add("**/**/**/x", "a/a/a/a/x")
	f.Add("[a-", "a")
	f.Fuzz(func(t *testing.T, pattern, name string) {
		g, err := newGlob(pattern)
		if err != nil || g == nil {
			return
		}
		at := g.begin()
		for element := range strings.SplitSeq(name, "/") {
			led := g.leads(at)
			at = g.step(at, element)
			if g.matches(at) && !led {
				t.Errorf("%q matches %q below what leads nowhere", pattern, name)
			}
		}
	})
}

// Users are looked up in hostile files.
func FuzzUserFile(f *testing.F) {
	f.Add([]byte("root:x:0:0:root:/root:/bin/sh\n# comment\n\n:::\nuser:x:1000:1000::/home/user:\n"))
	f.Add([]byte("staff:x:50:user,,root\nx:y:4294967295:a\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		n := 0
		eachLine(b, func(fields []string) bool {
			n++
			for _, s := range fields {
				if id, ok := parseID(s); ok && id == 1<<32-1 {
					t.Error("an id that is none")
				}
				isMember(s, "user")
			}
			return true
		})
		if n > bytes.Count(b, []byte{'\n'})+1 {
			t.Error("more lines than there are")
		}
	})
}

func TestReadSmall(t *testing.T) {
	dir := t.TempDir()
	large := filepath.Join(dir, "large")
	if err := os.WriteFile(large, make([]byte, 1001), 0o644); err != nil {
		t.Fatal(err)
	}
	fifo := filepath.Join(dir, "fifo")
	if err := unix.Mkfifo(fifo, 0o644); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]error{large: unix.EFBIG, fifo: unix.EINVAL, dir: unix.EINVAL, "/dev/zero": unix.EINVAL, dir + "/none": unix.ENOENT} {
		if _, err := readSmall(path, 1000); err != want {
			t.Errorf("%s: got %v, want %v", path, err, want)
		}
	}
	if b, err := readSmall(large, 1001); err != nil || len(b) != 1001 {
		t.Errorf("got %d bytes, %v", len(b), err)
	}
}

func TestScanner(t *testing.T) {
	var s scanner
	s.read()
	self, parent := os.Getpid(), os.Getppid()
	found := false
	for _, p := range s.all {
		if p.pid == self {
			// Its first thread may run, sleep, or wait for a disk.
			found = p.ppid == parent && strings.IndexByte("RSD", p.state) >= 0
		}
	}
	if !found {
		t.Errorf("this process (%d, child of %d) is not in %+v", self, parent, s.all)
	}
}
