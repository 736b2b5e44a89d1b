package stream_test

import (
	"bufio"
	"context"
	"io"
	"iter"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sandpit-dev/sandpit/internal/api/stream"
	"github.com/sandpit-dev/sandpit/internal/gate"
	"github.com/sandpit-dev/sandpit/internal/testkit"
)

func TestMain(m *testing.M) { os.Exit(testkit.Main(m)) }

// oneConn is a listener with one connection.
type oneConn chan net.Conn

func (l oneConn) Accept() (net.Conn, error) {
	c, ok := <-l
	if !ok {
		return nil, net.ErrClosed
	}
	return c, nil
}

func (l oneConn) Close() error {
	close(l)
	return nil
}

func (l oneConn) Addr() net.Addr { return &net.UnixAddr{Name: "pipe", Net: "unix"} }

// Pings and the end of a stream have the position that it has reached, also where no element was
// selected for long.
func TestPingsHaveThePosition(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := gate.New(gate.Options{})
		server := new(http.Server)
		g.Configure(server, g.Handler(gate.Dialect{
			Credential: func(*http.Request) (string, bool) { return "", false },
			Fail:       func(c *gate.Call, f gate.Failure) { c.W.WriteHeader(f.Status) },
			Routes: []gate.Route{{Method: "GET", Path: "/", ID: "follow", Open: true, Handle: func(c *gate.Call) error {
				return stream.Follow(c, stream.Events, stream.Source[int]{
					Live: true, After: 3, Begin: true,
					All: func(ctx context.Context) iter.Seq2[int, error] {
						return func(yield func(int, error) bool) {
							for seq := 5; seq < 8 && yield(seq, nil); seq++ {
								time.Sleep(time.Minute)
							}
							<-ctx.Done()
						}
					},
					Name: func(seq int) (string, uint64) {
						if seq == 5 {
							return "selected", 5
						}
						return "", uint64(seq)
					},
				})
			}}},
		}))
		l := make(oneConn, 1)
		conn, theirs := net.Pipe()
		l <- theirs
		go func() { _ = server.Serve(l) }()
		go func() { _, _ = io.WriteString(conn, "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n") }()
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatal(err)
		}
		got := make(chan string)
		go func() {
			text, _ := io.ReadAll(resp.Body)
			got <- string(text)
		}()
		time.Sleep(time.Hour)
		if err := g.Close(t.Context()); err != nil {
			t.Error(err)
		}
		text := <-got
		var passed []string
		for line := range strings.Lines(text) {
			if id, ok := strings.CutPrefix(line, "id: "); ok && (len(passed) == 0 || passed[len(passed)-1] != id) {
				passed = append(passed, id)
			}
		}
		if strings.Join(passed, "") != "3\n5\n6\n7\n" || !strings.Contains(text, "id: 7\n:\n\n") || strings.Count(text, "event: selected\n") != 1 || !strings.Contains(text, `data: {"reason":"drained","seq":7`) {
			t.Errorf("%q has the positions %q", text, passed)
		}
		_ = conn.Close()
		_ = server.Close()
	})
}
