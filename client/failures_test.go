package client

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/sandpit-dev/sandpit"
	v1 "github.com/sandpit-dev/sandpit/internal/api/v1"
	"github.com/sandpit-dev/sandpit/internal/testkit"
)

// against returns a client of a server that does as h says: here, wrong.
func against(t *testing.T, h http.HandlerFunc) *Client {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	c, err := New(Options{Address: s.URL, Key: "k"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func TestErrorsAreThoseOfTheServer(t *testing.T) {
	for _, kind := range []error{
		sandpit.ErrInvalid, sandpit.ErrUnsupported, sandpit.ErrForbidden, sandpit.ErrNotFound, sandpit.ErrExists, sandpit.ErrState, sandpit.ErrUnavailable,
		sandpit.ErrExhausted, sandpit.ErrQuota, sandpit.ErrRateLimited, sandpit.ErrDiskFull, sandpit.ErrIntegrity, sandpit.ErrProtocol, sandpit.ErrClosed, sandpit.ErrNoSpace, fs.ErrNotExist, fs.ErrPermission,
	} {
		c := against(t, func(w http.ResponseWriter, _ *http.Request) {
			e := v1.FromError(sandpit.WithHint(fmt.Errorf("doing it: %w", kind), "do that"))
			e.RequestID = "r-1"
			w.Header().Set("Retry-After", "3600")
			w.WriteHeader(http.StatusTeapot)
			_ = json.NewEncoder(w).Encode(e)
		})
		_, err := c.Create(t.Context(), sandpit.Spec{})
		if !errors.Is(err, kind) || err.Error() != "doing it: "+kind.Error() || sandpit.Hint(err) != "do that" || RequestID(err) != "r-1" || sandpit.RetryAfter(err) != time.Hour {
			t.Errorf("%v: got %q, hint %q, request %q, again after %v", kind, err, sandpit.Hint(err), RequestID(err), sandpit.RetryAfter(err))
		}
	}
}

func TestAnswersOfSomethingElse(t *testing.T) {
	for name, c := range map[string]struct {
		status int
		body   string
		kind   error
	}{
		"a proxy":         {502, "<html>bad gateway", sandpit.ErrUnavailable},
		"no Sandpit":      {404, "404 page not found", sandpit.ErrUnsupported},
		"a login page":    {302, "", nil},
		"escapes":         {500, `{"code":"internal","message":"\u001b[31mred\nline"}`, nil},
		"an unknown code": {409, `{"code":"from_the_future","message":"new"}`, nil},
		"not JSON":        {201, "<html>", sandpit.ErrUnavailable},
		"no id":           {201, "{}", sandpit.ErrUnavailable},
		"an odd id":       {201, `{"id":"../../etc"}`, sandpit.ErrUnavailable},
		"nothing":         {204, "", sandpit.ErrUnavailable},
		"their context":   {499, `{"code":"canceled","message":"context canceled"}`, sandpit.ErrUnavailable},
	} {
		t.Run(name, func(t *testing.T) {
			cl := against(t, func(w http.ResponseWriter, _ *http.Request) {
				w.WriteHeader(c.status)
				_, _ = io.WriteString(w, c.body)
			})
			_, err := cl.Create(t.Context(), sandpit.Spec{})
			if err == nil || c.kind != nil && !errors.Is(err, c.kind) || errors.Is(err, context.Canceled) || strings.ContainsAny(err.Error(), "\n\x1b") {
				t.Errorf("got %q", err)
			}
		})
	}
}

func TestNoServer(t *testing.T) {
	dir := t.TempDir()
	deep := filepath.Join(dir, strings.Repeat("long", 30), "s") // longer than the name of a socket
	if err := os.MkdirAll(filepath.Dir(deep), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, address := range []string{"unix://" + filepath.Join(dir, "s"), "unix://" + deep, "http://" + testkit.Address(t)} {
		c, err := New(Options{Address: address})
		if err != nil {
			t.Fatal(err)
		}
		_, err = c.List(t.Context(), sandpit.ListQuery{})
		if !errors.Is(err, sandpit.ErrUnavailable) || sandpit.Hint(err) == "" || errors.Is(err, fs.ErrNotExist) || strings.Contains(err.Error(), "/proc/self") {
			t.Errorf("%s: %v (%s)", address, err, sandpit.Hint(err))
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		if _, err := c.List(t.Context(), sandpit.ListQuery{}); !errors.Is(err, sandpit.ErrState) {
			t.Errorf("after Close: %v", err)
		}
	}
}

// A spoken is a server at the other end of a pipe, which says what it is told to.
func piped(t *testing.T, serve func(net.Conn, *bufio.Reader)) *Client {
	t.Helper()
	c, err := New(Options{Address: "unix:///pipe", Dial: func(context.Context, string, string) (net.Conn, error) {
		ours, theirs := net.Pipe()
		go func() {
			defer theirs.Close()
			serve(theirs, bufio.NewReader(theirs))
		}()
		return ours, nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// asked reads a request of a small body.
func asked(in *bufio.Reader) (*http.Request, error) {
	r, err := http.ReadRequest(in)
	if err == nil {
		_, _ = io.Copy(io.Discard, r.Body)
	}
	return r, err
}

// A server that takes requests and never answers.
func TestSilence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := piped(t, func(_ net.Conn, in *bufio.Reader) {
			for {
				if _, err := asked(in); err != nil {
					return
				}
			}
		})
		began := time.Now()
		_, err := c.List(t.Context(), sandpit.ListQuery{})
		if took := time.Since(began); !errors.Is(err, sandpit.ErrUnavailable) || took != patience {
			t.Errorf("List returns after %v: %v", took, err)
		}
		sb := c.sandbox("id", "name")
		if err := sb.Stop(t.Context(), time.Hour); !errors.Is(err, sandpit.ErrUnavailable) || time.Since(began) != 2*patience+time.Hour {
			t.Errorf("Stop returns after %v: %v", time.Since(began), err)
		}
		// What may take long ends with its context.
		ctx, cancel := context.WithTimeout(t.Context(), 24*time.Hour)
		defer cancel()
		began = time.Now()
		_, err = c.Create(ctx, sandpit.Spec{})
		if took := time.Since(began); !errors.Is(err, context.DeadlineExceeded) || took != 24*time.Hour+cancelGrace {
			t.Errorf("Create returns after %v: %v", took, err)
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
}

// head is what comes before the frames of a stream.
const streamHead = "HTTP/1.1 200 OK\r\nContent-Type: " + v1.StreamType + "\r\nTransfer-Encoding: chunked\r\n\r\n"

func chunk(b []byte) []byte {
	return append(append([]byte(fmt.Sprintf("%x\r\n", len(b))), b...), "\r\n"...)
}

func TestSilentStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const pings = 100
		c := piped(t, func(conn net.Conn, in *bufio.Reader) {
			r, err := asked(in)
			if err != nil {
				return
			}
			if r.Method == http.MethodGet { // whether the sandbox is still there
				_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 11\r\n\r\n{\"id\":\"id\"}")
				return
			}
			_, _ = io.WriteString(conn, streamHead)
			_, _ = conn.Write(chunk(frameOf(v1.FrameStarted, []byte(`{"id":"p","pid":7}`))))
			for range pings {
				time.Sleep(20 * time.Second)
				_, _ = conn.Write(chunk(frameOf(v1.FramePing, nil)))
			}
			_, _ = io.Copy(io.Discard, conn) // and nothing more
		})
		began := time.Now()
		p, err := c.sandbox("id", "name").Start(t.Context(), sandpit.Command{Argv: []string{"true"}})
		if err != nil || p.PID() != 7 || p.ID() != "p" {
			t.Fatalf("got %v, %v", p, err)
		}
		_, err = p.Wait(t.Context())
		if took := time.Since(began); !errors.Is(err, sandpit.ErrUnavailable) || took != pings*20*time.Second+patience {
			t.Errorf("Wait returns after %v: %v", took, err)
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
}

// Somebody who takes no output for long does not make the server a silent one.
func TestSlowWriter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := piped(t, func(conn net.Conn, in *bufio.Reader) {
			if _, err := asked(in); err != nil {
				return
			}
			_, _ = io.WriteString(conn, streamHead)
			_, _ = conn.Write(chunk(slices.Concat(frameOf(v1.FrameStarted, []byte(`{"id":"p","pid":7}`)), frameOf(v1.FrameStdout, []byte("out")), frameOf(v1.FrameResult, []byte(`{"exit_code":3}`)))))
			_, _ = io.WriteString(conn, "0\r\n\r\n")
			_, _ = io.Copy(io.Discard, conn)
		})
		var got strings.Builder
		w := writerFunc(func(b []byte) (int, error) {
			time.Sleep(24 * time.Hour)
			return got.Write(b)
		})
		p, err := c.sandbox("id", "name").Start(t.Context(), sandpit.Command{Argv: []string{"true"}, Stdout: w})
		if err != nil {
			t.Fatal(err)
		}
		if res, err := p.Wait(t.Context()); err != nil || res.ExitCode != 3 || got.String() != "out" {
			t.Errorf("got %+v, %v, %q", res, err, got.String())
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
}

type writerFunc func(b []byte) (int, error)

func (w writerFunc) Write(b []byte) (int, error) { return w(b) }

// Streams that are no good, each of which ends a Start or a Wait with an error.
func TestBadStreams(t *testing.T) {
	started := frameOf(v1.FrameStarted, []byte(`{"id":"p","pid":7}`))
	for name, stream := range map[string][]byte{
		"nothing":           nil,
		"cut in a head":     started[:3],
		"output first":      frameOf(v1.FrameStdout, []byte("x")),
		"no end":            started,
		"cut in output":     append(slices.Clone(started), frameOf(v1.FrameStdout, []byte("hello"))[:7]...),
		"a frame too long":  {v1.FrameStarted, 0xff, 0xff, 0xff, 0xff},
		"started no JSON":   frameOf(v1.FrameStarted, []byte("{")),
		"an odd id":         frameOf(v1.FrameStarted, []byte(`{"id":"../x","pid":7}`)),
		"a pid too large":   frameOf(v1.FrameStarted, []byte(`{"id":"p","pid":4294967296}`)),
		"result no JSON":    append(slices.Clone(started), frameOf(v1.FrameResult, []byte("x"))...),
		"end no JSON":       append(slices.Clone(started), frameOf(v1.FrameEnd, []byte("x"))...),
		"end of no reason":  append(slices.Clone(started), frameOf(v1.FrameEnd, []byte("{}"))...),
		"end, no result":    append(slices.Clone(started), frameOf(v1.FrameEnd, []byte(`{"reason":"ended"}`))...),
		"the server drains": append(slices.Clone(started), frameOf(v1.FrameEnd, []byte(`{"reason":"drained","error":{"code":"unavailable","message":"the server is shutting down"}}`))...),
		"the sandbox ended": append(slices.Clone(started), frameOf(v1.FrameEnd, []byte(`{"reason":"error","error":{"code":"closed","message":"gone"}}`))...),
	} {
		t.Run(name, func(t *testing.T) {
			c := against(t, func(w http.ResponseWriter, r *http.Request) {
				if r.Method == http.MethodGet {
					_, _ = io.WriteString(w, `{"id":"id"}`)
					return
				}
				w.Header().Set("Content-Type", v1.StreamType)
				_, _ = w.Write(stream)
			})
			want := sandpit.ErrUnavailable
			if name == "the sandbox ended" {
				want = sandpit.ErrClosed
			}
			p, err := c.sandbox("id", "name").Start(t.Context(), sandpit.Command{Argv: []string{"true"}, Stdout: io.Discard})
			if err == nil {
				_, err = p.Wait(t.Context())
			}
			var cut *InterruptedError
			if isCut := name == "no end" || name == "cut in output"; !errors.Is(err, want) || errors.As(err, &cut) != isCut {
				t.Errorf("got %v", err)
			}
		})
	}
}

// A list of something else is not an empty one.
func TestListsOfSomethingElse(t *testing.T) {
	c := against(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, `{"data":[{"id":"x"}]}`) })
	if page, err := c.List(t.Context(), sandpit.ListQuery{}); !errors.Is(err, sandpit.ErrUnavailable) {
		t.Errorf("got %+v, %v", page, err)
	}
}

// A run that its caller leaves ends with the caller's error, also where the server's comes first.
func TestLeftRun(t *testing.T) {
	c := against(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, "event: stdout\ndata: {\"data\":\"eA==\"}\n\n"+
			"event: end\ndata: {\"reason\":\"error\",\"error\":{\"code\":\"canceled\",\"message\":\"context canceled\"}}\n\n")
	})
	ctx, cancel := context.WithCancel(t.Context())
	leave := writerFunc(func(b []byte) (int, error) {
		cancel()
		return len(b), nil
	})
	_, err := c.sandbox("id", "name").RunCode(ctx, sandpit.Code{Source: "x", Stdout: leave})
	if !errors.Is(err, context.Canceled) || errors.Is(err, sandpit.ErrUnavailable) {
		t.Errorf("got %v", err)
	}
}

// Events go on where they were when the server comes back.
func TestEventsGoOn(t *testing.T) {
	var asks atomic.Int64
	var afters []string
	c := against(t, func(w http.ResponseWriter, r *http.Request) {
		afters = append(afters, r.URL.Query().Get("after"))
		w.Header().Set("Content-Type", "text/event-stream")
		n := asks.Add(1)
		fmt.Fprintf(w, ":\n\nevent: sandbox.created\nid: %d\ndata: {\"seq\":%d}\n\n", n, n)
		switch n {
		case 2:
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		case 3: // events that were not selected have passed; the next has not come completely
			_, _ = io.WriteString(w, "id: 30\n:\n\nevent: sandbox.created\nid: 31\ndata: {}\n")
		}
	})
	var got []uint64
	for e, err := range c.Events(t.Context(), sandpit.EventQuery{}) {
		if err != nil {
			t.Fatal(err)
		}
		if got = append(got, e.Seq); len(got) == 4 {
			break
		}
	}
	if !slices.Equal(got, []uint64{1, 2, 3, 4}) || !slices.Equal(afters, []string{"", "1", "2", "30"}) {
		t.Errorf("got %d, asked for what comes after %q", got, afters)
	}
	// A server that refuses is not asked again.
	refusing := against(t, func(w http.ResponseWriter, _ *http.Request) {
		asks.Add(100)
		w.WriteHeader(http.StatusForbidden)
		_, _ = io.WriteString(w, `{"code":"forbidden","message":"no"}`)
	})
	before := asks.Load()
	for _, err := range refusing.Events(t.Context(), sandpit.EventQuery{}) {
		if !errors.Is(err, sandpit.ErrForbidden) {
			t.Errorf("got %v", err)
		}
	}
	if asks.Load() != before+100 {
		t.Errorf("it was asked %d times", (asks.Load()-before)/100)
	}
}

// A stream that ends says why: one that has all, is refused or fails is not resumed, and one
// that was drained, has lost something or was cut is, where it was.
func TestStreamsEnd(t *testing.T) {
	var afters []string
	c := against(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		say := func(event string, seq int, data string) {
			fmt.Fprintf(w, "event: %s\nid: %d\ndata: %s\n\n", event, seq, data)
		}
		if strings.HasSuffix(r.URL.Path, "/logs") {
			say("stdout", 3, `{"seq":3,"data":"YQ=="}`)
			say("end", 3, `{"reason":"ended","seq":3}`)
			return
		}
		afters = append(afters, r.URL.Query().Get("after"))
		switch n := len(afters); n {
		case 1:
			say("sandbox.created", n, `{"seq":1}`)
			say("end", n, `{"reason":"drained","seq":1,"error":{"code":"unavailable","message":"the server is shutting down"}}`)
		case 2:
			say("sandbox.created", n, `{"seq":2}`)
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		case 3:
			say("events.lost", 9, `{"seq":9,"kind":"events.lost"}`)
			say("end", 9, `{"reason":"lost","seq":9}`)
		default:
			say("sandbox.created", 10, `{"seq":10}`)
			say("end", 10, `{"reason":"error","seq":10,"error":{"code":"unauthenticated","message":"the key is no longer valid"}}`)
		}
	})
	var got []uint64
	for e, err := range c.Events(t.Context(), sandpit.EventQuery{}) {
		if err != nil {
			if !errors.Is(err, sandpit.ErrForbidden) || e.Seq != 0 {
				t.Errorf("it ended with %v", err)
			}
			break
		}
		got = append(got, e.Seq)
	}
	if !slices.Equal(got, []uint64{1, 2, 9, 10}) || !slices.Equal(afters, []string{"", "1", "2", "9"}) {
		t.Errorf("got %d, asked for what comes after %q", got, afters)
	}
	entries := 0
	for _, err := range c.sandbox("id", "name").Logs(t.Context(), sandpit.LogQuery{Follow: true}) {
		if entries++; err != nil {
			t.Error(err)
		}
	}
	if entries != 1 {
		t.Errorf("the log has %d entries", entries)
	}
}

// A server that is away for good is given up.
func TestEventsGiveUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := piped(t, func(net.Conn, *bufio.Reader) {})
		began := time.Now()
		for _, err := range c.Events(t.Context(), sandpit.EventQuery{After: 5}) {
			var cut *InterruptedError
			if took := time.Since(began); !errors.As(err, &cut) || cut.After != 5 || !errors.Is(err, sandpit.ErrUnavailable) || took > away || took < away/2 {
				t.Errorf("after %v: %v", took, err)
			}
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
}

// A server of a later version may have codes and fields that are unknown here: the status tells the
// kind. One of an earlier version may not have the path.
func TestServerOfAnotherVersion(t *testing.T) {
	for name, tt := range map[string]struct {
		status int
		body   string
		kind   error
	}{
		"a new code of too many requests": {429, `{"code":"too_many_boxes","message":"m","wait":{"s":1}}`, sandpit.ErrRateLimited},
		"a new code of a bad request":     {422, `{"code":"odd_request","message":"m"}`, sandpit.ErrInvalid},
		"a new code of a busy server":     {503, `{"code":"asleep","message":"m"}`, sandpit.ErrUnavailable},
		"a path that it does not have":    {404, `{"code":"no_route","message":"m"}`, sandpit.ErrUnsupported},
		"a quota":                         {403, `{"code":"quota_exceeded","message":"m"}`, sandpit.ErrQuota},
		"a key of another server":         {401, `{"code":"unauthenticated","message":"m"}`, sandpit.ErrForbidden},
		"a start that failed":             {422, `{"code":"start_failed","message":"m","exit_code":126}`, sandpit.ErrStart},
	} {
		t.Run(name, func(t *testing.T) {
			s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.WriteHeader(tt.status)
				_, _ = io.WriteString(w, tt.body)
			}))
			defer s.Close()
			c, err := New(Options{Address: s.URL})
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			_, err = c.sandbox("id", "name").Start(t.Context(), sandpit.Command{Argv: []string{"true"}})
			if !errors.Is(err, tt.kind) || err.Error() != "m" {
				t.Errorf("got %v, want %v", err, tt.kind)
			}
			var failed *sandpit.StartError
			if errors.As(err, &failed) != (tt.kind == sandpit.ErrStart) || failed != nil && *failed != (sandpit.StartError{ExitCode: 126, Reason: "m"}) {
				t.Errorf("got %+v", failed)
			}
		})
	}
}

// Close ends what is under way, and leaves nothing.
func TestCloseLeavesNothing(t *testing.T) {
	before := goleak.IgnoreCurrent()
	arrived := make(chan struct{}, 100)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/exec") {
			w.Header().Set("Content-Type", v1.StreamType)
			_, _ = w.Write(frameOf(v1.FrameStarted, []byte(`{"id":"p","pid":7}`)))
			_ = http.NewResponseController(w).Flush()
		}
		arrived <- struct{}{}
		<-r.Context().Done()
	}))
	c, err := New(Options{Address: s.URL})
	if err != nil {
		t.Fatal(err)
	}
	sb := c.sandbox("id", "name")
	p, err := sb.Start(t.Context(), sandpit.Command{Argv: []string{"true"}})
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 3)
	go func() {
		_, err := p.Wait(context.Background())
		ended <- err
	}()
	go func() {
		_, err := sb.Info(context.Background())
		ended <- err
	}()
	go func() {
		var last error
		for _, err := range c.Events(context.Background(), sandpit.EventQuery{}) {
			last = err
		}
		ended <- last
	}()
	for range 3 {
		<-arrived
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	for range 3 {
		if err := <-ended; !errors.Is(err, sandpit.ErrState) {
			t.Errorf("got %v", err)
		}
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	s.Close()
	if err := testkit.Leaks(before); err != nil {
		t.Error(err)
	}
}

// Who asks too often waits for his turn; what can't be sent again is not.
func TestTurn(t *testing.T) {
	var asked atomic.Int64
	c := against(t, func(w http.ResponseWriter, r *http.Request) {
		if asked.Add(1)%2 == 1 {
			w.Header().Set("Retry-After", "1")
			w.WriteHeader(http.StatusTooManyRequests)
			_, _ = io.WriteString(w, `{"code":"rate_limited","message":"too many"}`)
			return
		}
		b, _ := io.ReadAll(r.Body)
		fmt.Fprintf(w, `{"id":"id","bytes":%d}`, len(b))
	})
	sb := c.sandbox("id", "name")
	if _, err := sb.Info(t.Context()); err != nil || asked.Load() != 2 {
		t.Errorf("asked %d times: %v", asked.Load(), err)
	}
	// The server has refused it before it was sent.
	if n, err := sb.Files().Write(t.Context(), "/f", io.LimitReader(zeros{}, 1<<20), sandpit.WriteOptions{}); err != nil || n != 1<<20 || asked.Load() != 4 {
		t.Errorf("asked %d times, %d bytes: %v", asked.Load(), n, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := sb.Info(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) { return len(b), nil }

// lateContext is a context whose children hear of its end a little after others do,
// as may happen with any on a busy machine.
type lateContext struct{ context.Context }

func (lateContext) Value(any) any { return nil }

func (c lateContext) AfterFunc(f func()) func() bool {
	return context.AfterFunc(c.Context, func() { time.Sleep(100 * time.Millisecond); f() })
}

// An upload that its context ends says so, whoever hears of it first.
func TestUploadIsCalledOff(t *testing.T) {
	c := against(t, func(w http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) })
	ctx, cancel := context.WithCancel(t.Context())
	r, w := io.Pipe()
	defer r.Close()
	go func() {
		_, _ = w.Write([]byte("some"))
		cancel()
	}()
	if _, err := c.sandbox("x", "x").Files().Write(lateContext{ctx}, "/f", r, sandpit.WriteOptions{}); !errors.Is(err, context.Canceled) || errors.Is(err, sandpit.ErrUnavailable) {
		t.Errorf("got %v", err)
	}
}

// The head of an answer is bounded, also where no package does that.
func TestEndlessHead(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	sent := make(chan int, 1)
	go func() {
		conn, err := l.Accept()
		if err != nil {
			sent <- 0
			return
		}
		defer conn.Close()
		_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\n")
		lines, n := []byte(strings.Repeat("X: y\r\n", 10_000)), 0
		for n < 100<<20 && err == nil {
			var k int
			k, err = conn.Write(lines)
			n += k
		}
		sent <- n
	}()
	c, err := New(Options{Address: "http://" + l.Addr().String()})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.upgrade(t.Context(), "/", "tcp"); !errors.Is(err, sandpit.ErrUnavailable) {
		t.Errorf("got %v", err)
	}
	_ = l.Close()
	if n := <-sent; n >= 100<<20 {
		t.Errorf("%d bytes were taken", n)
	}
}
