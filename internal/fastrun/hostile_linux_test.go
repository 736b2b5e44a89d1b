package fastrun

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
	v1 "github.com/sandpit-dev/sandpit/internal/api/v1"
)

// switching is the head of an answer.
const switching = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: " + Protocol + "\r\n\r\n"

// frames are some, one after the other.
func frames(all ...any) string {
	var b []byte
	for i := 0; i < len(all); i += 2 {
		b = v1.AppendFrame(b, all[i].(byte), []byte(all[i+1].(string)))
	}
	return string(b)
}

// says is a server that reads the request, says something, and hangs up once its
// client has sent so much more, or has gone.
func says(t testing.TB, words string, more int64) (home string) {
	t.Helper()
	home, err := os.MkdirTemp("", "sp")
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", filepath.Join(home, "server.sock"))
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	all.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			all.Go(func() {
				defer conn.Close()
				buf := make([]byte, 64<<10)
				if _, err := conn.Read(buf); err != nil {
					return
				}
				if _, err := io.WriteString(conn, words); err != nil {
					return
				}
				_, _ = io.CopyN(io.Discard, conn, more)
			})
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		all.Wait()
		if err := os.RemoveAll(home); err != nil {
			t.Error(err)
		}
	})
	return home
}

// run runs a command to its end.
func run(ctx context.Context, home string, cmd sandpit.Command) (sandpit.Result, error) {
	r := &Run{Home: home, Version: "test"}
	defer r.Close()
	p, err := r.Start(ctx, cmd)
	if err != nil {
		return sandpit.Result{}, err
	}
	return p.Wait(ctx)
}

// Whatever a server says, the command line ends with an error that tells it, and
// does the run itself only when the server can't have begun it.
func TestServersThatBreakOff(t *testing.T) {
	begun := switching + frames(v1.FrameStarted, "")
	for name, tt := range map[string]struct {
		words string
		kind  error
		text  string
	}{
		"nothing":                      {"", ErrDeclined, ""},
		"half a line":                  {"HTTP/1.1 101 Switch", ErrDeclined, ""},
		"busy":                         {"HTTP/1.1 503 Service Unavailable\r\n\r\n", ErrDeclined, ""},
		"no HTTP":                      {"SSH-2.0-OpenSSH\r\n", ErrDeclined, ""},
		"a line without an end":        {strings.Repeat("x", 32<<10), ErrDeclined, ""},
		"a head without an end":        {"HTTP/1.1 101 Switching Protocols\r\nA: b\r\n", sandpit.ErrUnavailable, "has exited"},
		"a header without an end":      {"HTTP/1.1 101 Switching Protocols\r\nA: " + strings.Repeat("x", 32<<10), nil, "running in the server"},
		"no first frame":               {switching, sandpit.ErrUnavailable, "has exited"},
		"half a frame":                 {switching + "\x01\x00\x00", sandpit.ErrUnavailable, "has exited"},
		"a first frame of another":     {switching + frames(v1.FrameStdout, "x"), sandpit.ErrProtocol, "out of place"},
		"an error":                     {switching + frames(v1.FrameEnd, `{"reason":"error","error":{"code":"not_found","message":"no such image","hint":"pull it"}}`), sandpit.ErrNotFound, "no such image"},
		"an end that is malformed":     {switching + frames(v1.FrameEnd, `[`), sandpit.ErrProtocol, "type 6"},
		"an end before the start":      {switching + frames(v1.FrameEnd, `{"reason":"ended"}`), sandpit.ErrProtocol, "type 6"},
		"a malformed report":           {switching + frames(FrameReport, `[`), sandpit.ErrProtocol, "type 36"},
		"an end after the start":       {begun, sandpit.ErrUnavailable, "has exited"},
		"half of the output":           {begun + frames(v1.FrameStdout, "out") + "\x02\x00\x00\x00\x09half", sandpit.ErrUnavailable, "has exited"},
		"a frame that is too long":     {begun + "\x02\x7f\xff\xff\xff", nil, "more than the"},
		"a frame of no type":           {begun + frames(byte(99), ""), sandpit.ErrProtocol, "type 99"},
		"a second start":               {begun + frames(v1.FrameStarted, ""), sandpit.ErrProtocol, "type 1"},
		"room for input nobody sends":  {begun + frames(v1.FrameTaken, "\x00\x00\x00\x01"), sandpit.ErrProtocol, "type 9"},
		"a malformed result":           {begun + frames(v1.FrameResult, `{"exit_code":`), sandpit.ErrProtocol, "type 5"},
		"a result without an end":      {begun + frames(v1.FrameResult, `{}`), sandpit.ErrUnavailable, "has exited"},
		"an end without a result":      {begun + frames(v1.FrameEnd, `{"reason":"ended"}`), sandpit.ErrProtocol, "type 6"},
		"an end without an error":      {begun + frames(v1.FrameResult, `{}`, v1.FrameEnd, `{"reason":"drained"}`), nil, "without giving a reason"},
		"an error in place of the end": {begun + frames(v1.FrameStdout, "out", v1.FrameEnd, `{"reason":"error","error":{"code":"unavailable","message":"gone"}}`), sandpit.ErrUnavailable, "gone"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := run(t.Context(), says(t, tt.words, 0), sandpit.Command{Argv: []string{"true"}})
			if err == nil || tt.kind != nil && !errors.Is(err, tt.kind) || !strings.Contains(err.Error(), tt.text) {
				t.Errorf("got %v, want %v with %q", err, tt.kind, tt.text)
			}
			if declined := errors.Is(err, ErrDeclined); declined != (tt.kind == ErrDeclined) { //nolint:errorlint // the table's own
				t.Errorf("declined: %v", declined)
			}
			if errors.Is(err, sandpit.ErrUnavailable) && strings.Contains(err.Error(), "has exited") && sandpit.Hint(err) == "" {
				t.Error("what to do is not said")
			}
		})
	}
}

// TestServersThatBreakOffAnExec is TestServersThatBreakOff for a sandbox that stays: until
// the server has agreed, the general client takes over.
func TestServersThatBreakOffAnExec(t *testing.T) {
	begun := switching + frames(v1.FrameStarted, `{"id":"p1","pid":7}`)
	for name, tt := range map[string]struct {
		words string
		kind  error
		text  string
	}{
		"nothing":                 {"", ErrDeclined, ""},
		"not found":               {"HTTP/1.1 404 Not Found\r\n\r\n", ErrDeclined, ""},
		"a head without an end":   {"HTTP/1.1 101 Switching Protocols\r\nA: b\r\n", ErrDeclined, ""},
		"a header without an end": {"HTTP/1.1 101 Switching Protocols\r\nA: " + strings.Repeat("x", 32<<10), ErrDeclined, ""},
		"no first frame":          {switching, sandpit.ErrUnavailable, "has exited"},
		"an error":                {switching + frames(v1.FrameEnd, `{"reason":"error","error":{"code":"state","message":"it is paused"}}`), sandpit.ErrState, "it is paused"},
		"a malformed start":       {switching + frames(v1.FrameStarted, ""), sandpit.ErrProtocol, "type 1"},
		"an end after the start":  {begun, sandpit.ErrUnavailable, "has exited"},
		"an error after it":       {begun + frames(v1.FrameEnd, `{"reason":"drained","error":{"code":"unavailable","message":"it leaves"}}`), sandpit.ErrUnavailable, "it leaves"},
	} {
		t.Run(name, func(t *testing.T) {
			more := int64(1) // it reads the request, too
			if errors.Is(tt.kind, ErrDeclined) {
				more = 0
			}
			r, err := Open(says(t, tt.words, more), "test", "box")
			if err == nil {
				defer r.Close()
				var p sandpit.Process
				if p, err = r.Start(t.Context(), sandpit.Command{Argv: []string{"true"}}); err == nil {
					if p.ID() != "p1" || p.PID() != 7 {
						t.Errorf("it is %q, %d", p.ID(), p.PID())
					}
					_, err = p.Wait(t.Context())
				}
				if errors.Is(err, ErrDeclined) {
					t.Error("what may have begun is declined")
				}
			}
			if !errors.Is(err, tt.kind) || !strings.Contains(err.Error(), tt.text) {
				t.Errorf("got %v, want %v with %q", err, tt.kind, tt.text)
			}
		})
	}
}

// TestKillOfASilentServer kills a command whose server says nothing any more: the kill
// fails, and so does the wait once it is given up.
func TestKillOfASilentServer(t *testing.T) {
	r := &Run{Home: says(t, switching+frames(v1.FrameStarted, ""), 1<<40), Version: "test"}
	defer r.Close()
	p, err := r.Start(t.Context(), sandpit.Command{Argv: []string{"true"}})
	if err != nil {
		t.Fatal(err)
	}
	waiting, giveUp := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, err := p.Wait(waiting)
		ended <- err
	}()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if err := p.Kill(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the kill: %v", err)
	}
	giveUp()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("the wait: %v", err)
	}
}

// A server that sends more output than there is room for is not obeyed: what it
// has the client hold is bounded.
func TestMoreOutputThanThereIsRoomFor(t *testing.T) {
	words := switching + frames(v1.FrameStarted, "")
	for range 10 {
		words += frames(v1.FrameStdout, strings.Repeat("x", v1.Window/4))
	}
	stuck := make(chan struct{})
	out := writerFunc(func(p []byte) (int, error) {
		<-stuck
		return len(p), nil
	})
	ended := make(chan error, 1)
	go func() {
		_, err := run(t.Context(), says(t, words, 1), sandpit.Command{Argv: []string{"true"}, Stdout: out})
		ended <- err
	}()
	time.AfterFunc(50*time.Millisecond, func() { close(stuck) }) // on which nothing depends but how much has come by then
	if err := <-ended; err == nil {
		t.Error("it has a result")
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

// Each stream comes in the order in which it was sent.
func TestOutputIsInOrder(t *testing.T) {
	words, want := switching+frames(v1.FrameStarted, ""), map[byte]string{}
	for n := range 1000 {
		kind := v1.FrameStdout
		if n%3 == 0 {
			kind = v1.FrameStderr
		}
		line := fmt.Sprintln(kind, n)
		words += frames(kind, line)
		want[kind] += line
	}
	words += frames(v1.FramePing, "", v1.FrameResult, `{"exit_code":5}`, v1.FrameEnd, `{"reason":"ended"}`)
	var out, errs bytes.Buffer
	res, err := run(t.Context(), says(t, words, 0), sandpit.Command{Argv: []string{"true"}, Stdout: &out, Stderr: &errs})
	if err != nil || res.ExitCode != 5 || out.String() != want[v1.FrameStdout] || errs.String() != want[v1.FrameStderr] {
		t.Errorf("got %+v, %v, %d and %d bytes", res, err, out.Len(), errs.Len())
	}
}

// Input ends when the server says that nobody takes any more, and goes no
// further than there is room.
func TestInputWithoutRoom(t *testing.T) {
	home := says(t, switching+frames(v1.FrameStarted, "", v1.FrameTaken, "\x00\x00\x00\x09"), 1<<40)
	r := &Run{Home: home, Version: "test"}
	defer r.Close()
	p, err := r.Start(t.Context(), sandpit.Command{Argv: []string{"true"}, Stdin: true})
	if err != nil {
		t.Fatal(err)
	}
	wrote := make(chan int, 1)
	go func() {
		n, err := p.Stdin().Write(make([]byte, 2*v1.Window))
		if err == nil {
			t.Error("all of it was taken")
		}
		wrote <- n
	}()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := p.Wait(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
	// 9 bytes of room are worth nothing before some was used.
	if n := <-wrote; n > v1.Window+9 {
		t.Errorf("%d bytes were sent", n)
	}
}

// Whatever a server says, a run ends, and with a result or an error. Output is
// what frames of output held.
func FuzzServer(f *testing.F) {
	begun := switching + frames(v1.FrameStarted, "")
	for _, s := range []string{
		"", "HTTP/1.1 404 Not Found\r\n\r\n", switching, begun,
		begun + frames(v1.FrameStdout, "out", v1.FrameStderr, "err", v1.FramePing, "", v1.FrameResult, `{"exit_code":3,"oom_killed":true}`, FrameReport, `{"info":{"id":"a"},"metrics":{}}`, v1.FrameEnd, `{"reason":"ended"}`),
		begun + frames(v1.FrameTaken, "\xff\xff\xff\xff", v1.FrameTaken, "\x00\x00\x00\x00", v1.FrameStdinClosed, "", v1.FrameTaken, "", v1.FrameResult, "{}", v1.FrameEnd, `{"reason":"ended"}`),
		switching + frames(FrameReport, `{"not_enforced":["memory"]}`, v1.FrameEnd, `{"reason":"error","error":{"code":"workdir_missing"}}`),
		begun + frames(v1.FrameEnd, `{"reason":"error","error":{"code":"overloaded","message":"\u001b[2J","hint":"a"}}`),
		begun + "\x02\xff\xff\xff\xff",
		switching + frames(v1.FrameEnd, `{}`),
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, words []byte) {
		ours, theirs := net.Pipe()
		go func() {
			go io.Copy(io.Discard, theirs) //nolint:errcheck // until it is closed
			_, _ = theirs.Write(words)
			_ = theirs.Close()
		}()
		defer ours.Close()
		var out bytes.Buffer
		r := &Run{Version: "test", Report: true}
		r.use(ours)
		p, err := r.start(t.Context(), r.head(RunPath, ""), sandpit.Command{Argv: []string{"true"}, Stdin: true, Stdout: &out, Stderr: &out})
		if err != nil {
			if p != nil || err.Error() == "" {
				t.Errorf("%v with %v", err, p)
			}
			return
		}
		go io.WriteString(p.Stdin(), "input") //nolint:errcheck // as it may
		if _, err := p.Wait(t.Context()); err == nil {
			_, _ = r.Info(t.Context())
			_, _ = r.Metrics(t.Context())
		} else if errors.Is(err, ErrDeclined) {
			t.Error("a run that was begun is declined")
		}
		if _, err := p.Stdin().Write([]byte("late")); err == nil {
			t.Error("a run that is over takes input")
		}
		if n := out.Len(); n > len(words) {
			t.Errorf("%d bytes of output in %d bytes", n, len(words))
		}
	})
}
