package network

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit/internal/intercept"
)

// TestCancelledHints has a sandbox cancel requests while informational responses with large headers are on their
// way: nothing that two goroutines share ends the process. Without the copies that hidingWriter has the server make, it
// fails under the race detector, as `make test-long` runs it, and otherwise seldom.
func TestCancelledHints(t *testing.T) {
	requests := 200
	if os.Getenv("SANDPIT_TEST_LONG") != "" {
		requests = 20000
	}
	o := newOrigin(t, false, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		for i := range 1000 {
			w.Header().Set(fmt.Sprintf("X%04d", i), "v")
		}
		for range 4 {
			w.WriteHeader(http.StatusEarlyHints)
		}
		clear(w.Header())
	}))
	b := newSandboxed(t, o.terms(t, nil, "*:https://good.test:PORT/*"))
	c := b.client("good.test", o.port, true)
	var work sync.WaitGroup
	for worker := range 8 {
		work.Go(func() {
			for i := worker; i < requests; i += 8 {
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(2+i%20)*time.Millisecond)
				r, _ := http.NewRequestWithContext(ctx, "GET", o.url("/"), nil)
				if res, err := c.Do(r); err == nil {
					res.Body.Close()
				}
				cancel()
			}
		})
	}
	work.Wait()
	if status, text := do(t, c, "GET", o.url("/"), nil); status != http.StatusOK {
		t.Errorf("%d %s", status, text)
	}
}

// Streams of HTTP/2 that an origin without it gets one by one use its connections again.
func TestConnectionsAreUsedAgain(t *testing.T) {
	const streams = 8
	arrived := make(chan struct{})
	pass := make(chan struct{})
	o := newOrigin(t, false, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		arrived <- struct{}{}
		<-pass
	}))
	b := newSandboxed(t, o.terms(t, nil, "*:https://good.test:PORT/*"))
	c := b.client("good.test", o.port, true)
	for _, n := range []int{1, streams, streams, streams} {
		var work sync.WaitGroup
		for range n {
			work.Go(func() {
				res, err := c.Get(o.url("/"))
				if err != nil {
					t.Error(err)
					arrived <- struct{}{}
					<-pass
					return
				}
				res.Body.Close()
			})
		}
		for range n {
			<-arrived
		}
		for range n {
			pass <- struct{}{}
		}
		work.Wait()
	}
	if n := b.Traffic().Connections; n > streams {
		t.Errorf("%d connections for %d requests at once", n, streams)
	}
}

// Responses over HTTP/2 that a program does not read hold up no others of the connection.
func TestUnreadResponsesHoldUpNoOthers(t *testing.T) {
	const streams = 32
	size := 2 * intercept.MaxUnread
	o := newOrigin(t, true, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(make([]byte, size)) }))
	b := newSandboxed(t, o.terms(t, nil, "*:https://good.test:PORT/*"))
	c := b.client("good.test", o.port, true)
	c.Transport.(*http.Transport).HTTP2 = &http.HTTP2Config{MaxReceiveBufferPerStream: 64 << 10}
	for range streams - 1 {
		res, err := c.Get(o.url("/"))
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	r, _ := http.NewRequestWithContext(ctx, "GET", o.url("/"), nil)
	res, err := c.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if n, err := io.Copy(io.Discard, res.Body); err != nil || n != int64(size) {
		t.Errorf("%d bytes, %v", n, err)
	}
	if n := b.Traffic().Connections; n != 1 {
		t.Errorf("%d connections", n)
	}
}

// A long answer holds nothing of its request, which others wait for.
func TestLongAnswersHoldNoRequests(t *testing.T) {
	const size, requests = 256 << 10, 33 // one more than may hold their bodies at once
	o := newOrigin(t, true, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	}))
	secrets := o.twoSecrets(false, false)
	secrets[0].Renewable = true
	b := newSandboxed(t, o.terms(t, secrets, "good.test:PORT"))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	defer time.AfterFunc(patience, cancel).Stop()
	c := b.client("good.test", o.port, true)
	for i := range requests {
		r, _ := http.NewRequestWithContext(ctx, "POST", o.url("/"), bytes.NewReader(make([]byte, size)))
		res, err := c.Do(r)
		if err != nil {
			t.Fatalf("request %d: %v", i, err)
		}
		defer res.Body.Close()
	}
}
