package stream

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"net"
	"sync"
	"syscall"
	"testing"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/api/codec"
	v1 "github.com/sandpit-dev/sandpit/internal/api/v1"
	"github.com/sandpit-dev/sandpit/internal/fastrun"
	"github.com/sandpit-dev/sandpit/internal/gate"
)

// reader is a process that takes its input and notes the rest.
type reader struct {
	mu    sync.Mutex
	input bytes.Buffer // guarded by mu
	eof   bool         // guarded by mu
	wrong string       // guarded by mu
}

func (*reader) ID() string              { return "" }
func (*reader) PID() int                { return 1 }
func (p *reader) Stdin() io.WriteCloser { return p }

func (p *reader) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.eof {
		p.wrong = "input after its end"
	}
	return p.input.Write(b)
}

func (p *reader) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.eof = true
	return nil
}

func (p *reader) Signal(_ context.Context, sig syscall.Signal) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if sig < 1 || sig > 64 {
		p.wrong = "signal " + sig.String()
	}
	return nil
}

func (*reader) Resize(context.Context, sandpit.TerminalSize) error { return nil }
func (*reader) Kill(context.Context) error                         { return nil }
func (*reader) Wait(context.Context) (sandpit.Result, error)       { return sandpit.Result{}, nil }

// Whatever the client of a run sends, the process gets nothing but what frames
// of input held, in order, and the run ends when the client does.
func FuzzRunInput(f *testing.F) {
	frame := v1.AppendFrame
	for _, s := range [][]byte{
		nil,
		frame(frame(nil, v1.FrameStdin, []byte("in")), v1.FrameEOF, nil),
		frame(frame(nil, v1.FrameEOF, nil), v1.FrameStdin, []byte("late")),
		frame(nil, v1.FrameSignal, []byte(`{"signal":15,"group":true}`)),
		frame(nil, v1.FrameSignal, []byte(`{"signal":-1}`)),
		frame(nil, v1.FrameResize, []byte(`{"rows":99999,"cols":-1}`)),
		frame(frame(nil, v1.FramePassed, []byte{v1.FrameStderr, 255, 255, 255, 255}), v1.FramePassed, []byte{1, 0, 0, 0, 0}),
		frame(nil, fastrun.FrameKill, []byte("x")),
		frame(nil, 99, nil),
		{v1.FrameStdin, 0xff, 0xff, 0xff, 0xff},
		frame(nil, v1.FrameStdin, make([]byte, v1.Window)),
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, sent []byte) {
		ours, theirs := net.Pipe()
		defer theirs.Close()
		defer ours.Close()
		go io.Copy(io.Discard, theirs) //nolint:errcheck // until it is closed
		ctx, cancel := context.WithCancelCause(t.Context())
		defer cancel(nil)
		r := newRelay(&gate.Call{Ctx: ctx, Cancel: cancel}, ours, bufio.NewReader(bytes.NewReader(sent)))
		defer r.Close()
		p := new(reader)
		started := make(chan sandpit.Process, 1)
		started <- p
		if err := r.read(started); err == nil {
			t.Error("the client goes on for ever")
		}
		var whole []byte
		for in := bytes.NewReader(sent); ; {
			kind, payload, err := v1.ReadFrame(in, nil, v1.Window)
			if err != nil {
				break
			}
			if kind == v1.FrameStdin {
				whole = append(whole, payload...)
			}
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.wrong != "" || !bytes.HasPrefix(whole, p.input.Bytes()) {
			t.Errorf("%s; the process has got %q of %q", p.wrong, p.input.Bytes(), whole)
		}
	})
}

// Whatever the request of a run is, it is read or refused.
func FuzzRunRequest(f *testing.F) {
	for _, s := range []string{
		`{"spec":{"image":"host"},"command":{"argv":["true"]},"workdir":true,"report":true}`, `{}`, ``, `[]`, `{"command":{"timeout":-1}}`,
		`{"spec":{"limits":{"memory":1e99}}}`, `{"spec":{"mounts":[{"source":"\u0000"}]}}`, `{"other":1}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		req := new(fastrun.Request)
		if err := codec.Parse(body, req); err != nil {
			c := &gate.Call{ID: "id", Ctx: t.Context()}
			if status, e := codec.Describe(c, err); status != 400 || fastrun.EncodeError(err).Message == "" || e.Message == "" {
				t.Errorf("%q is refused as %d %+v", body, status, e)
			}
			return
		}
		if req.Spec != nil {
			_, _ = req.Spec.Sandpit()
		}
		_, _ = req.Command.Sandpit()
	})
}
