package stream_test

import (
	"errors"
	"fmt"
	"io"
	"runtime"
	"strings"
	"testing"

	"github.com/sandpit-dev/sandpit/internal/api/stream"
	"github.com/sandpit-dev/sandpit/internal/errcode"
	"github.com/sandpit-dev/sandpit/internal/gate"
)

// Heads of parts that are too long, or have too many lines, are refused before much of them is held.
func TestFormHeadsAreBounded(t *testing.T) {
	lines := func(n int) string {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, "K%d: v\r\n", i)
		}
		return b.String()
	}
	const begin = "--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"x\"\r\n"
	for name, tc := range map[string]struct {
		head string
		ok   bool
	}{
		"usual":          {lines(10) + "\r\n", true},
		"a long path":    {"X-Path: " + strings.Repeat("%22", 4096) + "\r\n\r\n", true},
		"a long line":    {"X-A: " + strings.Repeat("a", 9<<20), false},
		"many lines":     {lines(2000) + "\r\n", false},
		"a few too many": {lines(32) + "\r\n", false},
	} {
		t.Run(name, func(t *testing.T) {
			body := &held{Reader: strings.NewReader(begin + tc.head + "content\r\n--b--\r\n")}
			form := stream.NewForm(body, "b")
			part, err := form.Next()
			if !tc.ok {
				if r := (*gate.Refusal)(nil); !errors.As(err, &r) || r.Code != errcode.TooLarge {
					t.Errorf("it is refused with %v", err)
				}
				if body.n > 64<<10 {
					t.Errorf("%d bytes were read", body.n)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if data, err := io.ReadAll(part); err != nil || string(data) != "content" {
				t.Errorf("the content is %q, %v", data, err)
			}
			if _, err := form.Next(); err != io.EOF { //nolint:errorlint // it is that value
				t.Error(err)
			}
		})
	}
}

// The content of a part that nobody reads has no bound.
func TestFormSkipsParts(t *testing.T) {
	form := stream.NewForm(strings.NewReader("--b\r\nA: b\r\n\r\n"+strings.Repeat("a", 1<<20)+"\r\n--b\r\nA: b\r\n\r\nlast\r\n--b--\r\n"), "b")
	if _, err := form.Next(); err != nil {
		t.Fatal(err)
	}
	part, err := form.Next()
	if err != nil {
		t.Fatal(err)
	}
	if data, err := io.ReadAll(part); err != nil || string(data) != "last" {
		t.Errorf("the content is %q, %v", data, err)
	}
}

// held counts what was read.
type held struct {
	io.Reader
	n int
}

func (h *held) Read(b []byte) (int, error) {
	n, err := h.Reader.Read(b)
	h.n += n
	return n, err
}

// heap returns the bytes of live objects.
func heap() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// Forms whose heads never end hold little.
func TestFormsHoldLittle(t *testing.T) {
	const n, most = 100, 64 << 10
	stalled := make(chan struct{})
	bodies := make([]io.Reader, n)
	for i := range bodies {
		var b strings.Builder
		b.WriteString("--b\r\n")
		for k := range 30 {
			fmt.Fprintf(&b, "K%d-%d: %s\r\n", i, k, strings.Repeat("v", 400))
		}
		bodies[i] = strings.NewReader(b.String())
	}
	before := heap()
	arrived, done := make(chan struct{}), make(chan struct{})
	for _, body := range bodies {
		go func() {
			_, _ = stream.NewForm(io.MultiReader(body, &stall{arrived, stalled}), "b").Next()
			done <- struct{}{}
		}()
	}
	for range bodies {
		<-arrived
	}
	grown := heap() - before
	close(stalled)
	for range bodies {
		<-done
	}
	if grown > n*most {
		t.Errorf("each holds %d bytes", grown/n)
	}
}

// stall is a body whose client sends nothing for a while.
type stall struct{ arrived, stalled chan struct{} }

func (s *stall) Read([]byte) (int, error) {
	s.arrived <- struct{}{}
	<-s.stalled
	return 0, io.ErrUnexpectedEOF
}
