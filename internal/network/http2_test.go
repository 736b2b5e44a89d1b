package network

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"runtime"
	"strings"
	"sync"
	"testing"

	"golang.org/x/net/http2"

	"github.com/sandpit-dev/sandpit"
)

// client2 returns a client inside that speaks HTTP/2 without TLS to a host, whatever requests say.
func client2(t *testing.T, in *inside, hostport string) *http.Client {
	b := &sandboxed{t: t, dial: func(context.Context, string, int) (net.Conn, error) { return in.dial(hostport) }}
	c := b.client("", 0, true)
	protocols := c.Transport.(*http.Transport).Protocols
	protocols.SetHTTP2(false)
	protocols.SetUnencryptedHTTP2(true)
	return c
}

// serveHTTP2 serves HTTP/2 without TLS. With first, it speaks first, as gRPC does.
func serveHTTP2(t *testing.T, first bool, handler http.HandlerFunc) netip.AddrPort {
	if first {
		return listen(t, func(c net.Conn) { new(http2.Server).ServeConn(c, &http2.ServeConnOpts{Handler: handler}) }) //nolint:staticcheck // only that speaks first
	}
	server := &http.Server{Handler: handler, ReadHeaderTimeout: patience, Protocols: new(http.Protocols)}
	server.Protocols.SetUnencryptedHTTP2(true)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() { defer close(done); _ = server.Serve(l) }()
	t.Cleanup(func() { server.Close(); <-done })
	return l.Addr().(*net.TCPAddr).AddrPort()
}

// HTTP/2 without TLS passes as HTTP/2, and each of its requests is checked, whoever speaks first.
func TestHTTP2WithoutTLS(t *testing.T) {
	for _, first := range []bool{false, true} {
		t.Run(fmt.Sprintf("the origin speaks first %t", first), func(t *testing.T) {
			var mu sync.Mutex
			hosts := map[string]bool{}
			a := serveHTTP2(t, first, func(w http.ResponseWriter, r *http.Request) {
				mu.Lock()
				hosts[r.Host] = true
				mu.Unlock()
				echoStream(w, r)
			})
			good := at("good.test", a)
			terms := granted(t, sandpit.Egress{Allow: []string{"good.test"}, Resolve: []string{"good.test:127.0.0.1"}})
			in := joinOn(t, terms)
			if first { // what waits for its client is passed on to one of something else
				c := in.must(good)
				if _, err := io.WriteString(c, "\x00"); err != nil {
					t.Fatal(err)
				}
				frame, err := http2.NewFramer(nil, c).ReadFrame()
				if f, ok := frame.(*http2.SettingsFrame); !ok || f.IsAck() {
					t.Errorf("another client reads %v, %v", frame, err)
				}
			}
			c := client2(t, in, good)
			r, w := io.Pipe()
			stream, _ := http.NewRequestWithContext(t.Context(), "POST", "http://"+good+"/", r)
			stream.Trailer = http.Header{"X-Begun": nil}
			res, err := c.Do(stream)
			if err != nil {
				t.Fatal(err)
			}
			for _, text := range []string{"one", "two"} {
				_, _ = io.WriteString(w, text)
				got := make([]byte, len(text))
				if _, err := io.ReadFull(res.Body, got); err != nil || string(got) != text {
					t.Fatalf("%q, %v", got, err)
				}
				for _, host := range []string{"evil.test", at("evil.test", a), "good.test:1"} { // beside the stream
					if status, text := do(t, c, "GET", "http://"+good+"/", nil, "Host", host); status != http.StatusForbidden || !strings.HasPrefix(text, "sandpit: HTTP asks for ") {
						t.Errorf("%s: %d %s", host, status, text)
					}
				}
				if status, _ := do(t, c, "GET", "http://"+good+"/", nil); status != http.StatusOK || res.ProtoMajor != 2 {
					t.Errorf("another request is answered with %d, the stream over HTTP/%d", status, res.ProtoMajor)
				}
			}
			stream.Trailer.Set("X-Begun", "trailer")
			w.Close()
			if rest, err := io.ReadAll(res.Body); err != nil || len(rest) > 0 || res.Trailer.Get("X-End") != "trailer" {
				t.Errorf("%q, %v, trailer %v", rest, err, res.Trailer)
			}
			mu.Lock()
			defer mu.Unlock()
			if len(hosts) != 1 || !hosts[good] {
				t.Errorf("the origin was asked for %v", hosts)
			}
			in.wait("the denials", func() bool { return in.denied(good) != "" })
		})
	}
}

// An origin may reset a stream while the body and the trailer of its request end.
func TestResetsWhileBodiesEnd(t *testing.T) {
	a := serveHTTP2(t, false, func(w http.ResponseWriter, _ *http.Request) {
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	})
	good := at("good.test", a)
	in := joinOn(t, granted(t, sandpit.Egress{Allow: []string{"good.test"}, Resolve: []string{"good.test:127.0.0.1"}}))
	c := client2(t, in, good)
	c.Timeout = patience
	for i := range 100 {
		r, w := io.Pipe()
		request, _ := http.NewRequestWithContext(t.Context(), "POST", "http://"+good+"/", r)
		request.Trailer = http.Header{"X-Begun": {"trailer"}}
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			_, _ = io.WriteString(w, "body")
			for range i * 100 {
				runtime.Gosched()
			}
			w.Close()
		}()
		res, err := c.Do(request)
		if err == nil {
			_, err = io.Copy(io.Discard, res.Body)
			res.Body.Close()
		}
		if err == nil && res.StatusCode != http.StatusBadGateway {
			t.Errorf("a response that was reset is whole: %s", res.Status)
		}
		r.Close()
		<-ended
	}
}

// Nobody reads HTTP/2 without TLS where rules are about requests, and no secret is put into it.
func TestHTTP2WithoutTLSGetsNoMore(t *testing.T) {
	a := serveHTTP2(t, false, func(http.ResponseWriter, *http.Request) { t.Error("a request") })
	o := &origin{port: int(a.Port())}
	terms := o.terms(t, o.twoSecrets(true, true), "good.test:PORT", "GET:https://other.test:PORT/*")
	in := joinOn(t, terms)
	if status, text := do(t, client2(t, in, at("good.test", a)), "GET", "http://"+at("good.test", a)+"/", nil, "X-Key", placeholder); status != http.StatusForbidden || !strings.Contains(text, "over HTTPS") {
		t.Errorf("%d %s", status, text)
	}
	if res, err := client2(t, in, at("other.test", a)).Get("http://" + at("other.test", a) + "/"); err == nil {
		res.Body.Close()
		t.Error("a request was answered")
	}
	in.wait("the denial", func() bool { return strings.Contains(in.denied(at("other.test", a)), "nothing but HTTPS") })
}
