package client

import (
	"bytes"
	"encoding/binary"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	v1 "github.com/sandpit-dev/sandpit/internal/api/v1"
)

func frameOf(kind byte, payload []byte) []byte {
	b := binary.BigEndian.AppendUint32([]byte{kind}, uint32(len(payload)))
	return append(b, payload...)
}

// piece is output that came without a break, or another frame.
type piece struct {
	kind byte
	data []byte
}

func (p piece) equal(q piece) bool { return p.kind == q.kind && bytes.Equal(p.data, q.data) }

// readPieces reads frames to their end, and joins output of one stream.
func readPieces(f *bodyFrames) ([]piece, error) {
	var all []piece
	for {
		kind, b, err := f.next()
		if err != nil {
			return all, err
		}
		if n := len(all); n > 0 && isOutput(kind) && all[n-1].kind == kind {
			all[n-1].data = append(all[n-1].data, b...)
			continue
		}
		all = append(all, piece{kind, bytes.Clone(b)})
	}
}

func TestFrames(t *testing.T) {
	long := bytes.Repeat([]byte("0123456789"), 20_000)
	json := bytes.Repeat([]byte("j"), frameBuffer+5)
	stream := slices.Concat(
		frameOf(v1.FrameStarted, []byte("{}")), frameOf(v1.FrameStdout, []byte("out")), frameOf(v1.FramePing, nil), frameOf(v1.FrameStdout, nil),
		frameOf(v1.FrameStderr, long), frameOf(v1.FrameEnd, json), frameOf(v1.FrameResult, []byte("end")),
	)
	want := []piece{
		{v1.FrameStarted, []byte("{}")},
		{v1.FrameStdout, []byte("out")},
		{v1.FramePing, nil},
		{v1.FrameStderr, long},
		{v1.FrameEnd, json},
		{v1.FrameResult, []byte("end")},
	}
	for name, r := range map[string]io.Reader{
		"at once":     bytes.NewReader(stream),
		"byte wise":   iotest.OneByteReader(bytes.NewReader(stream)),
		"in halves":   iotest.HalfReader(bytes.NewReader(stream)),
		"end at once": iotest.DataErrReader(bytes.NewReader(stream)),
	} {
		got, err := readPieces(newBodyFrames(io.NopCloser(r)))
		if err != io.EOF || !slices.EqualFunc(got, want, piece.equal) {
			t.Errorf("%s: %d frames, %v", name, len(got), err)
		}
	}
	for n := range stream[:40] {
		if _, err := readPieces(newBodyFrames(io.NopCloser(bytes.NewReader(stream[:n])))); err != io.EOF && err != io.ErrUnexpectedEOF {
			t.Errorf("cut at %d: %v", n, err)
		}
	}
}

func FuzzFrames(f *testing.F) {
	f.Add(frameOf(v1.FrameStdout, []byte("out")), uint8(3))
	f.Add(slices.Concat(frameOf(v1.FrameResult, []byte("{}")), frameOf(v1.FrameStderr, bytes.Repeat([]byte("x"), 70_000))), uint8(200))
	f.Add([]byte{v1.FrameEnd, 0xff, 0xff, 0xff, 0xff, 1}, uint8(1))
	f.Add([]byte{}, uint8(0))
	f.Fuzz(func(t *testing.T, stream []byte, size uint8) {
		// However it is cut, the same comes out.
		whole, _ := readPieces(newBodyFrames(io.NopCloser(bytes.NewReader(stream))))
		cut, _ := readPieces(newBodyFrames(io.NopCloser(&slow{stream, int(size) + 1})))
		if !slices.EqualFunc(whole, cut, piece.equal) {
			t.Errorf("at once: %q\nin pieces: %q", whole, cut)
		}
		total := 0
		for _, p := range whole {
			total += len(p.data)
		}
		if total > len(stream) {
			t.Errorf("%d bytes out of %d", total, len(stream))
		}
	})
}

// slow is a reader that gives at most so many bytes at once.
type slow struct {
	b []byte
	n int
}

func (s *slow) Read(b []byte) (int, error) {
	if len(s.b) == 0 {
		return 0, io.EOF
	}
	n := copy(b[:min(len(b), s.n)], s.b)
	s.b = s.b[n:]
	return n, nil
}

func readEvents(r io.Reader) ([]event, error) {
	in := newEventReader(r)
	var all []event
	for {
		e, err := in.next(func() {})
		if err != nil {
			return all, err
		}
		e.data = bytes.Clone(e.data)
		all = append(all, e)
	}
}

func TestServerSentEvents(t *testing.T) {
	const stream = ": a comment\n\nevent: one\nid: 7\ndata: {\"a\":\n\n:\n\ndata:two\ndata: lines\r\nignored: x\n\nevent: no data\n\ndata\n\ndata: not ended\n"
	got, err := readEvents(strings.NewReader(stream))
	want := []event{{"7", "one", []byte(`{"a":`)}, {"7", "message", []byte("two\nlines")}, {"7", "message", nil}}
	same := slices.EqualFunc(got, want, func(a, b event) bool {
		return a.id == b.id && a.name == b.name && bytes.Equal(a.data, b.data)
	})
	if err != io.EOF || !same {
		t.Errorf("got %q, %v", got, err)
	}
	for name, long := range map[string]string{
		"a line": "data: " + strings.Repeat("x", 3<<20),
		"lines":  strings.Repeat("data: "+strings.Repeat("x", 1000)+"\n", 3000),
	} {
		if _, err := readEvents(strings.NewReader(long)); err == nil || err == io.EOF {
			t.Errorf("%s that is too long gives %v", name, err)
		}
	}
}

func FuzzServerSentEvents(f *testing.F) {
	f.Add([]byte("event: e\nid: 1\ndata: {}\n\n"), uint8(1))
	f.Add([]byte(":\n\n\r\n\ndata\ndata:\n\n"), uint8(7))
	f.Fuzz(func(t *testing.T, stream []byte, size uint8) {
		whole, _ := readEvents(bytes.NewReader(stream))
		cut, _ := readEvents(&slow{stream, int(size) + 1})
		same := slices.EqualFunc(whole, cut, func(a, b event) bool {
			return a.id == b.id && a.name == b.name && bytes.Equal(a.data, b.data)
		})
		if !same {
			t.Errorf("at once: %q\nin pieces: %q", whole, cut)
		}
	})
}
