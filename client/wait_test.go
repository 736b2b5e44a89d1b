package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/testkit"
)

// waitedFor is a server that is asked for the end of a process, which it does not tell before end
// is closed.
type waitedFor struct {
	asked, left chan struct{}
	end         chan struct{}
}

func (s *waitedFor) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if strings.HasSuffix(r.URL.Path, "/wait") {
		s.asked <- struct{}{}
		select {
		case <-s.end:
			_, _ = io.WriteString(w, `{"id":"p1","pid":7,"result":{"exit_code":3}}`)
		case <-r.Context().Done():
			s.left <- struct{}{}
		}
		return
	}
	_, _ = io.WriteString(w, `{"id":"p1","pid":7}`)
}

// heard waits for something that must come.
func heard[T any](t *testing.T, what string, c <-chan T) (v T) {
	t.Helper()
	select {
	case v = <-c:
	case <-time.After(testkit.Patience):
		t.Fatalf("timed out waiting for %s", what)
	}
	return v
}

// A Wait asks the server only as long as its caller waits: to the server, a sandbox with somebody
// who waits is not idle.
func TestAbandonedWaitEnds(t *testing.T) {
	s := &waitedFor{asked: make(chan struct{}, 9), left: make(chan struct{}, 9), end: make(chan struct{})}
	c := against(t, s.ServeHTTP)
	attach := func() sandpit.Process {
		p, err := c.sandbox("id", "name").Attach(t.Context(), "p1", sandpit.AttachOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	wait := func(ctx context.Context, p sandpit.Process) <-chan error {
		ended := make(chan error, 1)
		go func() {
			res, err := p.Wait(ctx)
			if err == nil && res.ExitCode != 3 {
				err = fmt.Errorf("got %+v", res)
			}
			ended <- err
		}()
		return ended
	}

	p := attach()
	ctx, cancel := context.WithCancel(t.Context())
	first := wait(ctx, p)
	heard(t, "the first request", s.asked)
	second := wait(t.Context(), p)
	cancel()
	if err := heard(t, "the first Wait", first); err != context.Canceled {
		t.Errorf("the Wait that is called off returns %v", err)
	}
	heard(t, "the end of the first request", s.left)
	heard(t, "the request of the second Wait", s.asked)

	left := attach()
	third := wait(t.Context(), left)
	heard(t, "the request of the third Wait", s.asked)
	left.(sandpit.Detacher).Detach()
	if err := heard(t, "the Wait for a process from which it detached", third); !errors.Is(err, errDetached) {
		t.Errorf("after Detach, Wait returns %v", err)
	}
	heard(t, "the end of the third request", s.left)

	close(s.end)
	if err := heard(t, "the second Wait", second); err != nil {
		t.Error(err)
	}
	if _, err := p.Wait(ctx); err != nil || len(s.asked) != 0 {
		t.Errorf("once the end is known, Wait returns %v, and has asked %d times", err, len(s.asked))
	}
}

// A server that asks to try again later is asked again, and an error is not for ever.
func TestRefusalsPass(t *testing.T) {
	for code, status := range map[string]int{
		"overloaded": 503, "unavailable": 503, "draining": 503, "too_many_streams": 429, "rate_limited": 429,
	} {
		t.Run(code, func(t *testing.T) {
			t.Parallel()
			var mu sync.Mutex
			asked := map[string]int{}
			var broken atomic.Bool
			c := against(t, func(w http.ResponseWriter, r *http.Request) {
				path := r.URL.Path[strings.LastIndex(r.URL.Path, "/"):]
				mu.Lock()
				asked[path]++
				n := asked[path]
				mu.Unlock()
				event := func(n int) {
					w.Header().Set("Content-Type", "text/event-stream")
					fmt.Fprintf(w, "event: stdout\nid: %d\ndata: {\"seq\":%d}\n\n", n, n)
				}
				switch {
				case path == "/wait" && broken.Load():
					w.WriteHeader(http.StatusTeapot)
				case path == "/wait" && n == 2 || (path == "/events" || path == "/logs") && n == 2:
					w.Header().Set("Retry-After", "1")
					w.WriteHeader(status)
					fmt.Fprintf(w, `{"code":%q,"message":"try again in 1 s"}`, code)
				case path == "/wait":
					_, _ = io.WriteString(w, `{"id":"p1","pid":7,"result":{"exit_code":3}}`)
				case path == "/events" || path == "/logs":
					if event(n); n == 1 {
						_ = http.NewResponseController(w).Flush()
						panic(http.ErrAbortHandler)
					}
					_, _ = io.WriteString(w, "event: end\ndata: {\"reason\":\"ended\"}\n\n")
				default:
					_, _ = io.WriteString(w, `{"id":"p1","pid":7}`)
				}
			})
			sb := c.sandbox("id", "name")
			p, err := sb.Attach(t.Context(), "p1", sandpit.AttachOptions{})
			if err != nil {
				t.Fatal(err)
			}
			broken.Store(true)
			if _, err := p.Wait(t.Context()); err == nil || errors.Is(err, sandpit.ErrUnavailable) {
				t.Errorf("refused for good, Wait returns %v", err)
			}
			broken.Store(false)
			if res, err := p.Wait(t.Context()); err != nil || res.ExitCode != 3 {
				t.Errorf("Wait returns %+v, %v", res, err)
			}
			events, entries := 0, 0
			for _, err := range c.Events(t.Context(), sandpit.EventQuery{}) {
				if events++; err != nil {
					t.Errorf("Events ends with %v", err)
				}
			}
			for _, err := range sb.Logs(t.Context(), sandpit.LogQuery{}) {
				if entries++; err != nil {
					t.Errorf("Logs ends with %v", err)
				}
			}
			if events != 2 || entries != 2 {
				t.Errorf("there were %d events and %d entries", events, entries)
			}
		})
	}
}

// A stream that can't go on tells its position with any error, unless it was refused.
func TestInterruptedStreamHasItsPosition(t *testing.T) {
	asks := 0
	c := against(t, func(w http.ResponseWriter, _ *http.Request) {
		if asks++; asks > 1 {
			w.WriteHeader(http.StatusForbidden)
			_, _ = io.WriteString(w, `{"code":"forbidden","message":"no"}`)
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, "event: sandbox.created\nid: 8\ndata: {\"seq\":8}\n\n")
	})
	var last error
	for _, err := range c.Events(t.Context(), sandpit.EventQuery{}) {
		last = err
	}
	var cut *InterruptedError
	if !errors.As(last, &cut) || cut.After != 8 || !errors.Is(last, sandpit.ErrForbidden) {
		t.Errorf("a stream that broke off ends with %v", last)
	}
	for _, err := range c.Events(t.Context(), sandpit.EventQuery{}) {
		last = err
	}
	if errors.As(last, &cut) || !errors.Is(last, sandpit.ErrForbidden) {
		t.Errorf("a stream that is refused ends with %v", last)
	}
}
