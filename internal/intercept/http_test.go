package intercept

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"slices"
	"strings"
	"testing"

	"github.com/sandpit-dev/sandpit/internal/egress"
)

// FuzzTarget checks that an allowed request goes on with a path, or with the * of OPTIONS, and never
// with another host.
func FuzzTarget(f *testing.F) {
	for _, target := range []string{
		"/", "/a?b", "*", "http://good.test/a?", "http://good.test", "//evil.test/a", "x:http://evil.test/p", "http:http://evil.test/p", "x:evil.test/p", "http:evil.test", "x:*", "x:/p", "x:?q",
		"http://user@good.test/", "http:///p", "ftp://good.test/", "/%", "/\\", "?q", "evil.test",
	} {
		for _, method := range []string{"GET", "OPTIONS"} {
			f.Add(method + " " + target)
		}
	}
	f.Fuzz(func(t *testing.T, line string) {
		r, err := http.ReadRequest(bufio.NewReader(strings.NewReader(line + " HTTP/1.1\r\nHost: good.test\r\n\r\n")))
		if err != nil || r.Method == http.MethodConnect || r.Host != "good.test" || !originTarget(r) {
			return
		}
		out := r.Clone(t.Context())
		rewrite(&httputil.ProxyRequest{In: r, Out: out}, "http")
		var sent bytes.Buffer
		if err := out.Write(&sent); err != nil {
			return
		}
		got, err := http.ReadRequest(bufio.NewReader(&sent))
		if err != nil {
			t.Fatalf("%q goes on as %q", line, sent.String())
		}
		if got.Host != "good.test" || got.RequestURI[0] != '/' && (got.RequestURI != "*" || got.Method != http.MethodOptions) {
			t.Errorf("%q goes on as %s %s of %s", line, got.Method, got.RequestURI, got.Host)
		}
	})
}

// The goroutines of the sandbox's side and of the origin's share no trailer: a map that changes while another
// goroutine reads it ends the process.
func TestTrailersAreNotShared(t *testing.T) {
	in := httptest.NewRequest(http.MethodGet, "/", io.MultiReader(strings.NewReader("body")))
	in.Trailer = http.Header{"X-Sum": nil}
	in, _ = secrets(nil).put(in, egress.Destination{}, true)
	out := in.Clone(t.Context())
	rewrite(&httputil.ProxyRequest{In: in, Out: out}, "https")
	in.Trailer.Set("X-Sum", "1") // as the server does at the end of the body
	if v, ok := out.Trailer["X-Sum"]; !ok || len(v) > 0 {
		t.Errorf("before the end of the body: %v", out.Trailer)
	}
	if !slices.Equal(out.TransferEncoding, []string{"chunked"}) {
		t.Error("the transport may read the body while it reads the trailer's names")
	}
	if _, err := io.ReadAll(out.Body); err != nil || out.Trailer.Get("X-Sum") != "1" {
		t.Errorf("at the end: %v, %v", out.Trailer, err)
	}
}

// However many connections over HTTP/2 a sandbox has, the responses on them that it does not read take bounded memory.
// Each connection gets some, and the first as much as it can use.
func TestUnreadResponsesAreBounded(t *testing.T) {
	const connections = 512
	s := new(Server)
	var release []func()
	all := 0
	for i := range connections {
		streams, unread, done := s.shareStreams()
		release = append(release, done)
		all += streams * unread
		if i == 0 && (streams != maxStreams || unread != MaxUnread) || streams < minStreams || unread < minUnread {
			t.Errorf("connection %d: %d streams of %d bytes", i, streams, unread)
		}
	}
	if most := AllUnread + connections*minStreams*minUnread; all > most {
		t.Errorf("%d connections may hold %d bytes, more than %d", connections, all, most)
	}
	for _, done := range release {
		done()
	}
	if s.streams != 0 || s.unread != 0 {
		t.Errorf("%d streams of %d bytes are left", s.streams, s.unread)
	}
}

// What a sandbox is told of a connection that failed has no address of this machine.
func TestReasonsHaveNoAddresses(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	_, err = net.Dial("tcp", l.Addr().String())
	if why := Reason(fmt.Errorf("sending: %w", err)); why != "dial: connection refused" {
		t.Errorf("%v becomes %q", err, why)
	}
	if why := Reason(ErrSecretChanged); why != ErrSecretChanged.Error() {
		t.Error(why)
	}
}
