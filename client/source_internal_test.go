package client

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"strings"
	"testing"
	"testing/iotest"
)

// TestSourceIsReadOrWritten holds that a source gives the same by both ways.
func TestSourceIsReadOrWritten(t *testing.T) {
	content := strings.Repeat("0123456789abcdef", 100_000)
	broken := errors.New("the reader is broken")
	readers := map[string]func() io.Reader{
		"in memory":         func() io.Reader { return strings.NewReader(content) },
		"a reader":          func() io.Reader { return struct{ io.Reader }{strings.NewReader(content)} },
		"a byte at a time":  func() io.Reader { return iotest.OneByteReader(strings.NewReader(content[:1000])) },
		"the end with data": func() io.Reader { return iotest.DataErrReader(strings.NewReader(content)) },
		"empty":             func() io.Reader { return strings.NewReader("") },
		"empty reader":      func() io.Reader { return struct{ io.Reader }{strings.NewReader("")} },
		"broken":            func() io.Reader { return io.MultiReader(strings.NewReader(content), iotest.ErrReader(broken)) },
	}
	ways := map[string]func(s *source) ([]byte, error){
		"Read":    func(s *source) ([]byte, error) { return io.ReadAll(s) },
		"WriteTo": func(s *source) ([]byte, error) { var b bytes.Buffer; _, err := s.WriteTo(&b); return b.Bytes(), err },
		"both": func(s *source) ([]byte, error) {
			first := make([]byte, 10)
			n, err := io.ReadFull(s, first)
			if err == io.EOF || err == io.ErrUnexpectedEOF {
				return first[:n], nil // all of it
			}
			if err != nil {
				return nil, err
			}
			b := bytes.NewBuffer(first)
			_, err = s.WriteTo(b)
			return b.Bytes(), err
		},
	}
	for name, r := range readers {
		want, wantErr := io.ReadAll(r())
		for way, all := range ways {
			s := newSource(r())
			got, err := all(s)
			if !bytes.Equal(got, want) || !errors.Is(err, wantErr) {
				t.Errorf("%s by %s: %d bytes and %v, want %d and %v", name, way, len(got), err, len(want), wantErr)
			}
			if err := s.stop(); !errors.Is(err, wantErr) {
				t.Errorf("%s by %s: stop says %v, want %v", name, way, err, wantErr)
			}
			s = newSource(r())
			_ = s.stop()
			if _, err := all(s); !errors.Is(err, fs.ErrClosed) {
				t.Errorf("%s by %s, once stopped: %v, want %v", name, way, err, fs.ErrClosed)
			}
		}
	}
	// One that blocks does not hold the call up.
	ctx, cancel := context.WithCancel(t.Context())
	r, w := io.Pipe()
	defer w.Close()
	s := newSource(r)
	s.ctx = ctx
	cancel()
	if _, err := s.WriteTo(io.Discard); !errors.Is(err, context.Canceled) {
		t.Errorf("WriteTo of a reader that blocks, when the call has ended: %v", err)
	}
	_, _ = s.stop(), r.Close()
}
