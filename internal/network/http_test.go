package network

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/egress"
	"github.com/sandpit-dev/sandpit/internal/intercept"
)

// The log keeps little of what a sandbox writes into its requests, and nothing that a terminal obeys.
func TestLongRequests(t *testing.T) {
	a := serveHTTP(t, func(http.ResponseWriter, *http.Request) {})
	in := join(t, sandpit.Egress{Allow: []string{"good.test"}, Resolve: []string{"good.test:127.0.0.1"}})
	const size = intercept.MaxHead / 2
	for _, host := range []string{"good.test:" + strings.Repeat("a", size), "good.test." + strings.Repeat("a", size)} {
		if got := request(t, in.must(at("good.test", a)), "GET / HTTP/1.1\r\nHost: "+host+"\r\n\r\n"); got != http.StatusForbidden {
			t.Errorf("%.20q is answered with %d", host, got)
		}
	}
	for _, f := range in.net.Log().Flows {
		if len(f.Why) > maxText+len("…") {
			t.Errorf("%d bytes of a reason are kept: %.300q", len(f.Why), f.Why)
		}
	}
	var fs flows
	if d := fs.begin(egress.Destination{}).decide(sandpit.EgressDecision{Why: "a\x1b[2J"}); d.Why != "a?[2J" {
		t.Errorf("the reason is noted as %q", d.Why)
	}
}

// What is left of a body when the origin answers before its end is not read as another request: the answer arrives,
// then the connection ends.
func TestEarlyAnswersEndConnections(t *testing.T) {
	early := func(c net.Conn) {
		r := bufio.NewReader(c)
		request, err := http.ReadRequest(r)
		if err != nil {
			return
		}
		_, _ = io.WriteString(c, "HTTP/1.1 401 Unauthorized\r\nContent-Length: 2\r\n\r\nno")
		_, _ = io.Copy(io.Discard, request.Body)
		if request, err := http.ReadRequest(r); err == nil {
			t.Errorf("the origin gets %s %s", request.Method, request.URL)
		}
	}
	hidden := "GET /hidden HTTP/1.1\r\nHost: evil.test\r\n\r\n"
	check := func(t *testing.T, c net.Conn, host string, chunked bool) {
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(patience))
		head, rest := fmt.Sprintf("Content-Length: %d\r\n\r\n", 1+len(hidden)), hidden
		if chunked {
			head, rest = fmt.Sprintf("Transfer-Encoding: chunked\r\n\r\n%x\r\n", 1+len(hidden)), hidden+"\r\n0\r\n\r\n"
		}
		fmt.Fprintf(c, "POST / HTTP/1.1\r\nHost: %s\r\n%sx", host, head)
		r := bufio.NewReader(c)
		res, err := http.ReadResponse(r, nil)
		if err != nil {
			t.Fatal(err)
		}
		if text, err := io.ReadAll(res.Body); res.StatusCode != http.StatusUnauthorized || string(text) != "no" || err != nil {
			t.Errorf("%s: %q, %v", res.Status, text, err)
		}
		_, _ = io.WriteString(c, rest+"GET /next HTTP/1.1\r\nHost: "+host+"\r\n\r\n")
		if rest, _ := io.ReadAll(r); len(rest) > 0 {
			t.Errorf("after the answer comes %q", rest)
		}
	}
	for _, chunked := range []bool{true, false} {
		t.Run(fmt.Sprintf("plain, chunked %t", chunked), func(t *testing.T) {
			a := listen(t, early)
			in := join(t, sandpit.Egress{Allow: []string{"good.test"}, Resolve: []string{"good.test:127.0.0.1"}})
			check(t, in.must(at("good.test", a)), at("good.test", a), chunked)
			if why := in.denied("evil.test"); why != "" || in.net.Traffic().Denials != 0 {
				t.Errorf("%d denials: %s", in.net.Traffic().Denials, why)
			}
		})
		t.Run(fmt.Sprintf("intercepted, chunked %t", chunked), func(t *testing.T) {
			o := newOrigin(t, false, http.NotFoundHandler())
			a := listen(t, func(c net.Conn) { early(tls.Server(c, o.TLS)) })
			o.port = int(a.Port())
			b := newSandboxed(t, o.terms(t, nil, "*:https://good.test:PORT/*"))
			conn, err := b.dial(t.Context(), "good.test", o.port)
			if err != nil {
				t.Fatal(err)
			}
			check(t, tls.Client(conn, &tls.Config{ServerName: "good.test", RootCAs: b.trusted}), o.host("good.test"), chunked)
		})
	}
}

// A connection whose bodies were read serves the next request, also if the origin answers while one comes.
func TestWholeBodiesKeepConnections(t *testing.T) {
	a := serveHTTP(t, echoStream)
	in := join(t, sandpit.Egress{Allow: []string{"good.test"}, Resolve: []string{"good.test:127.0.0.1"}})
	c := in.must(at("good.test", a))
	r := bufio.NewReader(c)
	for _, head := range []string{"Content-Length: 4\r\n\r\nbody", "Transfer-Encoding: chunked\r\n\r\n4\r\nbody\r\n0\r\n\r\n", "Content-Length: 4\r\n\r\nbody"} {
		fmt.Fprintf(c, "POST / HTTP/1.1\r\nHost: %s\r\n%s", at("good.test", a), head)
		res, err := http.ReadResponse(r, nil)
		if err != nil {
			t.Fatal(err)
		}
		if text, err := io.ReadAll(res.Body); string(text) != "body" || err != nil {
			t.Errorf("%q, %v", text, err)
		}
	}
}

// A client that sends its whole request before it reads gets the answer nevertheless, if that comes early: an origin's, and why
// a request was denied.
func TestEarlyAnswersArrive(t *testing.T) {
	const sent, answered = 8 << 20, 200 << 10 // of which the second fits into the buffers of one who does not read
	a := listen(t, func(c net.Conn) {
		r := bufio.NewReader(c)
		if _, err := http.ReadRequest(r); err == nil {
			fmt.Fprintf(c, "HTTP/1.1 413 Content Too Large\r\nContent-Length: %d\r\n\r\n%s", answered, strings.Repeat("x", answered))
			_, _ = io.Copy(io.Discard, r)
		}
	})
	in := join(t, sandpit.Egress{Allow: []string{"good.test"}, Resolve: []string{"good.test:127.0.0.1"}})
	for host, want := range map[string]struct{ status, size int }{at("good.test", a): {http.StatusRequestEntityTooLarge, answered}, "evil.test": {http.StatusForbidden, 0}} {
		c := in.must(at("good.test", a))
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(patience))
		fmt.Fprintf(c, "POST / HTTP/1.1\r\nHost: %s\r\nContent-Length: %d\r\n\r\n", host, sent)
		if _, err := c.Write(make([]byte, sent)); err != nil {
			t.Errorf("to %s: %v", host, err)
			continue
		}
		res, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			t.Errorf("from %s: %v", host, err)
			continue
		}
		text, err := io.ReadAll(res.Body)
		if res.StatusCode != want.status || want.size > 0 && len(text) != want.size || err != nil {
			t.Errorf("from %s: %s, %d bytes, %v", host, res.Status, len(text), err)
		}
	}
}

// The end of a request that was answered comes while what follows it is discarded, also of one that uses up what the sandbox may
// send: neither ends the process, and nothing that nobody gets counts.
func TestEndsOfAnsweredRequests(t *testing.T) {
	a := listen(t, func(c net.Conn) {
		r := bufio.NewReader(c)
		if _, err := http.ReadRequest(r); err == nil {
			_, _ = io.WriteString(c, "HTTP/1.1 413 Content Too Large\r\nContent-Length: 2\r\n\r\nno")
			_, _ = io.Copy(io.Discard, r)
		}
	})
	const most = 1 << 20 // of which Go's server reads 64 KiB at most ahead, on each connection
	in := join(t, good(sandpit.EgressBounds{Sent: most}))
	for _, host := range []string{at("good.test", a), "evil.test"} {
		for request, end := range map[string]string{
			"Content-Length: 11\r\n\r\n0123456789":                  "x",
			"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r": "\n",
		} {
			c := in.must(at("good.test", a))
			_ = c.SetDeadline(time.Now().Add(patience))
			fmt.Fprintf(c, "POST / HTTP/1.1\r\nHost: %s\r\n%s", host, request)
			if _, err := http.ReadResponse(bufio.NewReader(c), nil); err != nil {
				t.Error(err)
			}
			time.Sleep(20 * time.Millisecond) // until Go's server waits for the end of the body
			_, _ = io.WriteString(c, end)
			time.Sleep(20 * time.Millisecond)
			_, _ = c.Write(make([]byte, 4*most))
			c.Close()
		}
	}
	in.wait("the end of all", func() bool { return in.net.places() == 0 })
	if sent := in.net.Traffic().Sent; sent >= most {
		t.Errorf("%d bytes count as sent", sent)
	}
	in.must(at("good.test", a)).Close()
}

func (n *Network) places() int64 {
	n.bounds.mu.Lock()
	defer n.bounds.mu.Unlock()
	return n.bounds.now
}
