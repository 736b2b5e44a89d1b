package api_test

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	v1 "github.com/sandpit-dev/sandpit/internal/api/v1"
	"github.com/sandpit-dev/sandpit/internal/testkit"
)

// oddities answers as its path says: with a status, with cookies, or with what it
// was sent.
const oddities = `
import socket, threading
def serve(c):
    f = c.makefile("rb")
    line = f.readline(); head = {}
    while True:
        l = f.readline().strip()
        if not l: break
        k, v = l.split(b": ", 1); head[k.lower()] = v
    body = f.read(int(head.get(b"content-length", 0)))
    what = line.split()[1][1:]
    if what == b"echo":
        text = head.get(b"host", b"") + b"|" + head.get(b"authorization", b"-") + b"|" + head.get(b"content-encoding", b"-") + b"|" + body
        c.sendall(b"HTTP/1.1 200 OK\r\nSet-Cookie: a=b\r\nAccess-Control-Allow-Origin: *\r\nStrict-Transport-Security: max-age=9\r\nContent-Length: %d\r\n\r\n%s" % (len(text), text))
    elif what == b"upgrade":
        c.sendall(b"HTTP/1.1 101 Switching\r\nConnection: Upgrade\r\nUpgrade: talk\r\n\r\nhello")
    else:
        c.sendall(b"HTTP/1.1 " + what + b" Odd\r\nContent-Length: 0\r\n\r\n")
    c.close()
l = socket.socket(); l.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1); l.bind(("127.0.0.1", 8080)); l.listen(100)
while True:
    c, _ = l.accept()
    threading.Thread(target=serve, args=(c,)).start()
`

// What a request to a port has, and is answered with, is the sandbox's own, but for
// what would break the server's rules.
func TestRequestsArePassedOn(t *testing.T) {
	s := serve(t, func(o *options) { o.Origins = []string{"https://ui.example"} })
	sb := s.create("", v1.Spec{})
	s.python(sb, "", oddities, 1)
	host := "8080-" + sb.ID + ".localhost"
	byHeader := func(more map[string]string) map[string]string {
		h := map[string]string{"X-Sandpit-Sandbox": sb.ID, "X-Sandpit-Port": "8080"}
		for k, v := range more {
			h[k] = v
		}
		return h
	}
	t.Run("a status that is none", func(t *testing.T) {
		inner := *s
		inner.t = t
		for _, status := range []string{"000", "099"} {
			inner.refused(502, "protocol", ask{method: "GET", path: "/" + status, header: byHeader(nil)})
		}
	})
	for _, c := range []struct {
		name   string
		header map[string]string
		want   string
		bound  bool // to the rules of the server's own name
	}{
		{"by name", map[string]string{"Host": host}, host + "|-|-|body", false},
		{"by header", byHeader(nil), "localhost:8080|-|-|body", true},
		{"under a name that is that of the port", byHeader(map[string]string{"Host": "localhost:8080"}), "localhost:8080|-|-|body", true},
		{"packed", map[string]string{"Host": host, "Content-Encoding": "gzip"}, host + "|-|gzip|body", false},
		{"a key of the sandbox's own", map[string]string{"Host": host, "Authorization": "Bearer mine"}, host + "|Bearer mine|-|body", false},
		{"a name of the sandbox's own", map[string]string{"Host": host, "Authorization": "Basic mine"}, host + "|Basic mine|-|body", false},
		{"a key of ours", map[string]string{"Host": host, "Authorization": "Bearer " + adminKey}, host + "|-|-|body", false},
		{"both keys", map[string]string{"Host": host, "X-Sandpit-Key": adminKey, "Authorization": "Bearer mine"}, host + "|Bearer mine|-|body", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			inner := *s
			inner.t = t
			status, body, h := inner.get(ask{method: "POST", path: "/echo", body: "body", header: c.header})
			if status != 200 || string(body) != c.want {
				t.Errorf("%d %s, want %s", status, body, c.want)
			}
			if bound := h.Get("Content-Security-Policy") == "sandbox" && h.Get("Set-Cookie") == "" && h.Get("Strict-Transport-Security") == ""; bound != c.bound {
				t.Errorf("bound is %v: %v", bound, h)
			}
		})
	}
	// A page that may is told so once, and by the sandbox where the server says nothing.
	for origin, want := range map[string]string{"https://ui.example": "https://ui.example", "http://" + host: "*"} {
		_, _, h := s.get(ask{method: "POST", path: "/echo", body: "body", header: map[string]string{"Host": host, "Origin": origin}})
		if got := strings.Join(h.Values("Access-Control-Allow-Origin"), " "); got != want {
			t.Errorf("to %s it says %q", origin, got)
		}
	}
	// A key that is not valid is none over TCP.
	s.refused(401, "unauthenticated", ask{method: "POST", path: "/echo", key: "mine", header: byHeader(nil)})
	// What becomes another connection is recorded as that.
	conn := s.dial()
	fmt.Fprintf(conn, "GET /upgrade HTTP/1.1\r\nHost: %s\r\nConnection: Upgrade\r\nUpgrade: talk\r\n\r\n", host)
	if all, err := io.ReadAll(conn); err != nil || !strings.HasSuffix(string(all), "hello") {
		t.Fatalf("%q, %v", all, err)
	}
	eventually(t, "it is recorded", func() bool {
		ends := s.ends("proxy")
		return len(ends) > 0 && ends[len(ends)-1].Status == http.StatusSwitchingProtocols
	})
}

// deaf takes connections, and of the requests on them the head alone.
const deaf = `
import socket
l = socket.socket(); l.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1); l.bind(("127.0.0.1", 8080)); l.listen(100)
held = []
while True:
    c, _ = l.accept()
    held.append(c)
    head = b""
    while b"talk" in head or b"\r\n\r\n" not in head:
        if b"talk" in head and b"\r\n\r\n" in head:
            c.sendall(b"HTTP/1.1 101 Switching\r\nConnection: Upgrade\r\nUpgrade: talk\r\n\r\n")
            break
        more = c.recv(1)
        if not more or len(head) > 5000: break
        head += more
`

// messages are messages of a client, of so many bytes in all or a little more.
func messages(n int) []byte {
	var b bytes.Buffer
	for b.Len() < n {
		b.Write([]byte{0x82, 0x80 | 126, 0x10, 0, 0, 0, 0, 0})
		b.Write(make([]byte, 0x1000))
	}
	return b.Bytes()
}

// What is sent to somebody in a sandbox who takes nothing of it is given up after a
// while: the client, who can't be read from meanwhile, may have left long ago.
func TestWhatNobodyTakesIsGivenUp(t *testing.T) {
	testkit.NeedFull(t, "it waits for five seconds")
	s := serve(t, func(o *options) { o.Limits.Tunnel = 500 * time.Millisecond })
	sb := s.create("", v1.Spec{})
	s.python(sb, "", deaf, 1)
	var p v1.Process
	one := "/v1/sandboxes/" + sb.ID
	s.want(201, &p, ask{method: "POST", path: one + "/processes", body: v1.Command{Argv: []string{"sleep", "600"}, Stdin: true}})
	to := "X-Sandpit-Sandbox: " + sb.ID + "\r\nX-Sandpit-Port: 8080\r\n"
	long := "Content-Length: 100000000\r\n"
	for _, k := range []struct{ operation, head string }{
		{"connectPort", "GET " + one + "/ports/8080/tcp HTTP/1.1\r\nHost: sandpit\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n"},
		{"connectPort", "GET " + one + "/ports/8080/tcp HTTP/1.1\r\nHost: sandpit\r\n" + handshake},
		{"proxy", "POST / HTTP/1.1\r\nHost: sandpit\r\n" + to + long},
		{"proxy", "GET / HTTP/1.1\r\nHost: sandpit\r\n" + to + "Connection: Upgrade\r\nUpgrade: talk\r\n"},
		{"writeStdin", "POST " + one + "/processes/" + p.ID + "/stdin HTTP/1.1\r\nHost: sandpit\r\n" + long},
	} {
		before := s.ended(k.operation)
		conn := s.dial()
		if _, err := io.WriteString(conn, k.head+"\r\n"); err != nil {
			t.Fatal(err)
		}
		if strings.Contains(k.head, "Upgrade") {
			resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
			if err != nil || resp.StatusCode != http.StatusSwitchingProtocols {
				t.Fatalf("%s: %v, %v", k.operation, resp, err)
			}
		}
		_ = conn.SetWriteDeadline(time.Now().Add(300 * time.Millisecond))
		piece := make([]byte, 1<<20)
		if strings.Contains(k.head, "websocket") {
			piece = messages(len(piece))
		}
		for sent, err := 0, error(nil); err == nil; {
			var n int
			if n, err = conn.Write(piece); err == nil && sent > 90<<20 {
				t.Fatalf("%s: all is taken", k.operation)
			}
			sent += n
		}
		conn.Close()
		eventually(t, k.operation+" has ended", func() bool { return s.ended(k.operation) > before })
	}
}
