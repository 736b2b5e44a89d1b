package sandpittest

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"os/exec"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
)

var portProperties = []property{
	{"Dial connects to a port, and each direction can be closed alone", testDial},
	{"many connections at once, of any size", testManyConnections},
	{"Dial where nothing listens is ErrUnavailable", testDialNothing},
	{"Ports lists what listens", testPorts},
	{"a connection ends with the sandbox", testDialRemove},
	{"a preview opens a port without a key, until it is revoked or the sandbox removed", testPreview},
}

// networker returns the ports of a sandbox.
func networker(t *testing.T, sb sandpit.Sandbox) sandpit.Networker {
	t.Helper()
	n, ok := sb.(sandpit.Networker)
	if !ok {
		t.Skip("this client does not reach ports")
	}
	if _, err := n.Ports(guarded(t)); errors.Is(err, sandpit.ErrUnsupported) {
		t.Skipf("ports are not reached here: %v", err)
	}
	return n
}

// The servers are of Python, which is not in every image.
const (
	// Reads to the end, then answers with how much it was, and what was first.
	countingServer = `
import socketserver
class H(socketserver.BaseRequestHandler):
    def handle(self):
        n, first = 0, b''
        while True:
            b = self.request.recv(65536)
            if not b: break
            if not n: first = b[:5]
            n += len(b)
        self.request.sendall(b'%d %s' % (n, first))
class S(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    request_queue_size = 128
S(('127.0.0.1', 8080), H).serve_forever()
`
	// Gives back what it gets.
	echoServer = `
import socketserver
class H(socketserver.BaseRequestHandler):
    def handle(self):
        while True:
            b = self.request.recv(65536)
            if not b: break
            self.request.sendall(b)
class S(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    request_queue_size = 128
S(('127.0.0.1', 8081), H).serve_forever()
`
	// Says hello to browsers.
	helloServer = `
import http.server
class H(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'hello from ' + self.path.encode())
http.server.ThreadingHTTPServer(('127.0.0.1', 8082), H).serve_forever()
`
)

// serve starts a server and waits until it listens.
func serve(t *testing.T, e *env, program string, port uint16) (sandpit.Sandbox, sandpit.Networker) {
	t.Helper()
	sb := e.sandbox(t, sandpit.Spec{})
	n := networker(t, sb)
	if !run(t, sb, sandpit.Command{Script: "command -v python3"}).Success() {
		if _, err := exec.LookPath("python3"); err == nil && state(t, sb, sandpit.StateRunning).Image == "host" {
			t.Fatal("python3 of this machine is not in the sandbox")
		}
		t.Skip("the image has no python3 to listen with: a machine that has one runs this in its host image")
	}
	put(t, sb, "/tmp/server.py", program)
	var out written
	start(t, sb, sandpit.Command{Argv: []string{"python3", "/tmp/server.py"}, Stderr: &out})
	eventually(t, "the server listens", func() bool {
		conn, err := n.Dial(guarded(t), port)
		if err == nil {
			conn.Close()
			return true
		}
		if !errors.Is(err, sandpit.ErrUnavailable) {
			t.Fatalf("dialing: %v; the server says %s", err, out.String())
		}
		return false
	})
	return sb, n
}

// closeWrite ends what is sent.
func closeWrite(t *testing.T, conn net.Conn) {
	t.Helper()
	c, ok := conn.(interface{ CloseWrite() error })
	if !ok {
		t.Fatalf("a %T has no CloseWrite", conn)
	}
	must(t, c.CloseWrite())
}

func testDial(t *testing.T, e *env) {
	_, n := serve(t, e, countingServer, 8080)
	for _, size := range []int{0, 1, 5 << 20} {
		conn, err := n.Dial(guarded(t), 8080)
		must(t, err)
		must(t, conn.SetDeadline(time.Now().Add(guard)))
		if _, err := conn.Write(bytes.Repeat([]byte("hello"), size)); err != nil {
			t.Fatal(err)
		}
		closeWrite(t, conn)
		got, err := io.ReadAll(conn)
		must(t, err)
		want := strconv.Itoa(5*size) + " hello"
		if size == 0 {
			want = "0 "
		}
		if string(got) != want {
			t.Errorf("sent %d bytes and got %q", 5*size, got)
		}
		must(t, conn.Close())
	}
}

func testManyConnections(t *testing.T, e *env) {
	_, n := serve(t, e, echoServer, 8081)
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			conn, err := n.Dial(guarded(t), 8081)
			if err != nil {
				t.Error(err)
				return
			}
			defer conn.Close()
			if err := conn.SetDeadline(time.Now().Add(guard)); err != nil {
				t.Error(err)
			}
			sent := noise(1 << 20)
			wg.Go(func() {
				if _, err := conn.Write(sent); err != nil {
					t.Error(err)
				}
				if c, ok := conn.(interface{ CloseWrite() error }); ok {
					_ = c.CloseWrite()
				}
			})
			got, err := io.ReadAll(conn)
			if err != nil || !bytes.Equal(got, sent) {
				t.Errorf("%d bytes come back: %v", len(got), err)
			}
		})
	}
	wg.Wait()
}

func testDialNothing(t *testing.T, e *env) {
	sb := e.sandbox(t, sandpit.Spec{})
	n := networker(t, sb)
	for _, port := range []uint16{1, 9, 65535} {
		conn, err := n.Dial(guarded(t), port)
		if err == nil {
			conn.Close()
		}
		wantKind(t, err, sandpit.ErrUnavailable)
	}
	if _, err := n.Dial(guarded(t), 0); err == nil {
		t.Error("port 0 is reached")
	}
	must(t, sb.Remove(guarded(t)))
	_, err := n.Dial(guarded(t), 80)
	wantKind(t, err, sandpit.ErrClosed)
}

func testPorts(t *testing.T, e *env) {
	_, n := serve(t, e, echoServer, 8081)
	ports, err := n.Ports(t.Context())
	must(t, err)
	if !slices.Contains(ports, sandpit.Port{Port: 8081, Address: "127.0.0.1"}) {
		t.Errorf("got %+v", ports)
	}
	quiet := networker(t, e.sandbox(t, sandpit.Spec{}))
	if ports, err := quiet.Ports(t.Context()); err != nil || slices.ContainsFunc(ports, func(p sandpit.Port) bool { return p.Port == 8081 }) {
		t.Errorf("another sandbox has %+v, %v", ports, err)
	}
}

func testDialRemove(t *testing.T, e *env) {
	sb, n := serve(t, e, echoServer, 8081)
	conn, err := n.Dial(guarded(t), 8081)
	must(t, err)
	defer conn.Close()
	if _, err := io.WriteString(conn, "hello"); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(conn, make([]byte, 5)); err != nil {
		t.Fatal(err)
	}
	must(t, sb.Remove(guarded(t)))
	must(t, conn.SetDeadline(time.Now().Add(guard)))
	if n, err := conn.Read(make([]byte, 1)); err == nil || n > 0 {
		t.Errorf("after the end %d bytes come, %v", n, err)
	} else if ne := net.Error(nil); errors.As(err, &ne) && ne.Timeout() {
		t.Errorf("the connection does not end: %v", err)
	}
}

func testPreview(t *testing.T, e *env) {
	if _, ok := e.sandbox(t, sandpit.Spec{}).(sandpit.Previewer); !ok {
		t.Skip("this client has no previews")
	}
	sb, _ := serve(t, e, helloServer, 8082)
	p := sb.(sandpit.Previewer)
	made, err := p.Preview(guarded(t), 8082, 0)
	must(t, err)
	if life := made.ExpiresAt.Sub(made.CreatedAt); made.Port != 8082 || life <= 0 || life > time.Hour {
		t.Errorf("got %+v", made)
	}
	if status, body := e.visit(t, made.URL); status != http.StatusOK || body != "hello from /" {
		t.Errorf("it shows %d %q", status, body)
	}
	other, err := p.Preview(guarded(t), 8082, time.Minute)
	must(t, err)
	if life := other.ExpiresAt.Sub(other.CreatedAt); life != time.Minute {
		t.Errorf("one of a minute lasts %s", life)
	}
	all, err := p.Previews(guarded(t))
	must(t, err)
	for i, want := range []sandpit.Preview{made, other} {
		want.URL = ""
		if len(all) != 2 || all[i].ID != want.ID || all[i].Port != want.Port || all[i].URL != "" || !all[i].ExpiresAt.Equal(want.ExpiresAt) {
			t.Errorf("listed are %+v, of which %d is %+v", all, i, want)
		}
	}
	must(t, p.RevokePreview(guarded(t), made.ID))
	if status, body := e.visit(t, made.URL); status != http.StatusForbidden {
		t.Errorf("after its end it shows %d %q", status, body)
	}
	wantKind(t, p.RevokePreview(guarded(t), made.ID), sandpit.ErrNotFound)
	_, err = p.Preview(guarded(t), 0, 0)
	wantKind(t, err, sandpit.ErrInvalid)
	_, err = p.Preview(guarded(t), 80, -time.Second)
	wantKind(t, err, sandpit.ErrInvalid)
	must(t, sb.Remove(guarded(t)))
	if status, body := e.visit(t, other.URL); status != http.StatusForbidden {
		t.Errorf("after the end of its sandbox it shows %d %q", status, body)
	}
	_, err = p.Preview(guarded(t), 80, 0)
	wantKind(t, err, sandpit.ErrClosed)
	_, err = p.Previews(guarded(t))
	wantKind(t, err, sandpit.ErrClosed)
}

// visit opens the URL of a preview. Its certificate is for others to test.
func (e *env) visit(t *testing.T, url string) (status int, body string) {
	t.Helper()
	transport := &http.Transport{
		TLSClientConfig:   &tls.Config{InsecureSkipVerify: true}, //nolint:gosec // see above
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, e.opt.Previews)
		},
	}
	req, err := http.NewRequestWithContext(guarded(t), http.MethodGet, url, http.NoBody)
	must(t, err)
	resp, err := transport.RoundTrip(req)
	must(t, err)
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	must(t, err)
	return resp.StatusCode, string(b)
}
