package client

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/coder/websocket"
	"go.uber.org/goleak"

	"github.com/sandpit-dev/sandpit"
	v1 "github.com/sandpit-dev/sandpit/internal/api/v1"
	"github.com/sandpit-dev/sandpit/internal/testkit"
)

// blocked is a writer that takes nothing until it is released.
type blocked struct {
	calls   atomic.Int64
	entered chan struct{}
	release chan struct{}
}

func (w *blocked) Write(b []byte) (int, error) {
	if w.calls.Add(1) == 1 {
		close(w.entered)
	}
	<-w.release
	return len(b), nil
}

// Neither Close nor Detach waits for a writer of the caller that is stuck, nor does a Wait then.
// When it goes on, it is not called again, and nothing is left.
func TestStuckWriterDoesNotHoldUpClose(t *testing.T) {
	before := goleak.IgnoreCurrent()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		send := func(b []byte) error {
			_, err := w.Write(b)
			return errors.Join(err, http.NewResponseController(w).Flush())
		}
		if strings.HasPrefix(r.Header.Get("Upgrade"), "websocket") {
			conn, err := websocket.Accept(w, r, &websocket.AcceptOptions{Subprotocols: []string{v1.Subprotocol}})
			if err != nil {
				return
			}
			defer conn.CloseNow()
			ctx := t.Context()
			if strings.HasSuffix(r.URL.Path, "/exec") {
				_, _, _ = conn.Read(ctx) // the command
			}
			send = func(b []byte) error {
				return conn.Write(ctx, websocket.MessageBinary, append([]byte{b[0]}, b[v1.FrameHead:]...))
			}
			defer func() {
				for err == nil {
					_, _, err = conn.Read(ctx)
				}
			}()
		} else {
			w.Header().Set("Content-Type", v1.StreamType)
		}
		_ = send(frameOf(v1.FrameStarted, []byte(`{"id":"p","pid":7}`)))
		sent := 0
		for err := error(nil); err == nil && sent < v1.Window/2; sent += 1000 {
			err = send(frameOf(v1.FrameStdout, make([]byte, 1000)))
		}
		if r.Header.Get("Upgrade") == "" {
			<-r.Context().Done()
		}
	}))
	for _, end := range []string{"Close", "Detach"} {
		for what, cmd := range map[string]sandpit.Command{
			"one output":         {Argv: []string{"yes"}},
			"an input":           {Argv: []string{"yes"}, Stdin: true},
			"two outputs apart":  {Argv: []string{"yes"}, Stderr: writerFunc(func(b []byte) (int, error) { return len(b), nil })},
			"two outputs in one": {Argv: []string{"yes"}, Stderr: os.Stderr},
		} {
			t.Run(end+" with "+what, func(t *testing.T) {
				c, err := New(Options{Address: s.URL})
				if err != nil {
					t.Fatal(err)
				}
				w := &blocked{entered: make(chan struct{}), release: make(chan struct{})}
				if cmd.Stdout = w; cmd.Stderr == os.Stderr {
					cmd.Stderr = w
				}
				p, err := c.sandbox("id", "name").Start(t.Context(), cmd)
				if err != nil {
					t.Fatal(err)
				}
				heard(t, "the first Write", w.entered)
				closed := make(chan struct{})
				waited := make(chan error, 1)
				go func() {
					defer close(closed)
					if end == "Close" {
						_ = c.Close()
					} else {
						p.(sandpit.Detacher).Detach()
					}
				}()
				go func() {
					_, err := p.Wait(context.Background())
					waited <- err
				}()
				heard(t, end, closed)
				if err := heard(t, "Wait", waited); !errors.Is(err, sandpit.ErrState) {
					t.Errorf("Wait returns %v", err)
				}
				close(w.release)
				if err := c.Close(); err != nil {
					t.Error(err)
				}
				if n := w.calls.Load(); n != 1 {
					t.Errorf("the writer was called %d times", n)
				}
			})
		}
	}
	s.Close()
	if err := testkit.Leaks(before); err != nil {
		t.Error(err)
	}
}

// onlyStarted is the stream of a process of which only the start is told.
type onlyStarted struct {
	l    *link
	told bool
}

func (f *onlyStarted) next() (byte, []byte, error) {
	if !f.told {
		f.told = true
		return v1.FrameStarted, []byte(`{"id":"p","pid":7}`), nil
	}
	<-f.l.ctx.Done()
	return 0, nil, io.ErrUnexpectedEOF
}

func (f *onlyStarted) finish() {}

// framesOf is a stream of frames, which are their types.
type framesOf struct{ kinds []byte }

func (f *framesOf) next() (byte, []byte, error) {
	if len(f.kinds) == 0 {
		return 0, nil, io.ErrUnexpectedEOF
	}
	kind := f.kinds[0]
	f.kinds = f.kinds[1:]
	if kind == v1.FrameStarted {
		return kind, []byte(`{"id":"p","pid":7}`), nil
	}
	return kind, nil, nil
}

func (f *framesOf) finish() {}

// A later server may send frames that this client does not know, also before the process has started.
func TestUnknownFramesAreIgnored(t *testing.T) {
	c, err := New(Options{Address: "http://127.0.0.1:1"})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for _, test := range []struct {
		kinds []byte
		ok    bool
	}{
		{[]byte{200, v1.FramePing, v1.FrameStarted}, true},
		{[]byte{v1.FrameStdout, v1.FrameStarted}, false},
		{[]byte{v1.FrameResult, v1.FrameStarted}, false},
	} {
		l := c.tie(t.Context())
		p, err := c.sandbox("id", "name").started(l, &framesOf{test.kinds})
		if l.end(); (err == nil) != test.ok || test.ok && p.id != "p" {
			t.Errorf("%v: %v", test.kinds, err)
		}
	}
}

// A Write to an input fails when the client is closed, also while the process is being started.
func TestCloseEndsInput(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if conn, err := websocket.Accept(w, r, nil); err == nil {
			_, _, _ = conn.Read(r.Context())
		}
	}))
	defer s.Close()
	conn, _, err := websocket.Dial(t.Context(), s.URL, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.CloseNow()
	started := 0
	for range 2000 {
		c, err := New(Options{Address: s.URL})
		if err != nil {
			t.Fatal(err)
		}
		l := c.tie(t.Context())
		closed := make(chan struct{})
		go func() {
			defer close(closed)
			_ = c.Close()
		}()
		p, err := c.sandbox("id", "name").begin(t.Context(), l, &onlyStarted{l: l}, newStdin(conn, l.ctx), output{})
		if err == nil {
			started++
			wrote := make(chan error, 1)
			go func() {
				for err = error(nil); err == nil; {
					_, err = p.Stdin().Write([]byte("x"))
				}
				wrote <- err
			}()
			if err := heard(t, "Write", wrote); !errors.Is(err, syscall.EPIPE) {
				t.Errorf("Write returns %v", err)
			}
		}
		heard(t, "Close", closed)
	}
	t.Log("started", started)
}
