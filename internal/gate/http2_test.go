package gate_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sandpit-dev/sandpit/internal/gate"
)

// pipes is a listener whose connections are pipes, which know the time of a synctest bubble.
type pipes chan net.Conn

func (p pipes) Accept() (net.Conn, error) {
	c, ok := <-p
	if !ok {
		return nil, net.ErrClosed
	}
	return c, nil
}

func (p pipes) Close() error {
	close(p)
	return nil
}

func (p pipes) Addr() net.Addr { return &net.UnixAddr{Name: "pipe", Net: "unix"} }

func (p pipes) dial(context.Context, string, string) (net.Conn, error) {
	ours, theirs := net.Pipe()
	p <- theirs
	return ours, nil
}

// overHTTP2 serves a dialect over HTTP/2 and returns a client. Its requests go to http://gate.
func (s *served) overHTTP2(d gate.Dialect) *http.Client {
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	server := &http.Server{Protocols: protocols}
	s.gate.Configure(server, s.gate.Handler(d))
	l := make(pipes)
	go func() { _ = server.Serve(l) }()
	transport := &http.Transport{Protocols: protocols, DialContext: l.dial}
	s.t.Cleanup(func() {
		transport.CloseIdleConnections()
		_ = server.Close()
	})
	return &http.Client{Transport: transport}
}

// Over HTTP/2 a handler may think for longer than Limits.Stall, before it answers, between parts of
// its answer and between parts of the body, while a client that stalls is cut.
func TestOnlyStalledHTTP2StreamsAreCut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := serve(t, gate.Limits{})
		think := func() { time.Sleep(time.Hour) }
		cut := make(chan error, 1)
		d := echo("X-Key", "slow", func(c *gate.Call, text []byte) error {
			think()
			_ = say(c, text)
			_ = c.W.FlushError()
			think()
			return say(c, text)
		})
		d.Routes = append(d.Routes, gate.Route{Method: "POST", Path: "/parts", ID: "echo.parts", Handle: func(c *gate.Call) error {
			body, part := c.Body(-1, 0), make([]byte, 1)
			for {
				n, err := body.Read(part)
				if err == io.EOF {
					return nil
				}
				if err != nil {
					return err
				}
				think()
				_ = say(c, part[:n])
			}
		}}, gate.Route{Method: "GET", Path: "/endless", ID: "echo.endless", Handle: func(c *gate.Call) error {
			for {
				if _, err := c.W.Write(make([]byte, 32<<10)); err != nil {
					cut <- err
					return err
				}
			}
		}})
		client := s.overHTTP2(d)
		ask := func(method, path string, body io.Reader) *http.Response {
			r, err := http.NewRequestWithContext(t.Context(), method, "http://gate"+path, body)
			if err != nil {
				t.Fatal(err)
			}
			r.Host = "localhost"
			r.Header.Set("X-Key", "s1")
			resp, err := client.Do(r)
			if err != nil {
				t.Fatal(err)
			}
			if resp.ProtoMajor != 2 || resp.StatusCode != http.StatusOK {
				t.Errorf("%s: %s %s", path, resp.Proto, resp.Status)
			}
			return resp
		}
		want := func(resp *http.Response, text string) {
			got, err := io.ReadAll(resp.Body)
			_ = resp.Body.Close()
			if string(got) != text || err != nil {
				t.Errorf("got %q, %v; want %q", got, err, text)
			}
		}
		want(ask("POST", "/boxes/b/slow", strings.NewReader("x")), "xx")
		in, out := io.Pipe()
		go func() {
			_, _ = out.Write([]byte("abc"))
			_ = out.Close()
		}()
		want(ask("POST", "/parts", in), "abc")

		resp := ask("GET", "/endless", nil)
		began := time.Now()
		if err := <-cut; !errors.Is(err, gate.ErrClientGone) || time.Since(began) != 30*time.Second {
			t.Errorf("a client that does not read: %v after %v", err, time.Since(began))
		}
		_ = resp.Body.Close()
		in, out = io.Pipe()
		began = time.Now()
		r, _ := http.NewRequestWithContext(t.Context(), "POST", "http://localhost/boxes/b/slow", in)
		r.Header.Set("X-Key", "s1")
		late, err := client.Do(r)
		if err != nil || late.StatusCode != http.StatusRequestTimeout || time.Since(began) != 30*time.Second {
			t.Errorf("a client that does not send: %v, %v after %v", late, err, time.Since(began))
		}
		if err == nil {
			_ = late.Body.Close()
		}
		_ = out.Close()
	})
}
