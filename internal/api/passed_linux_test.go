package api_test

import (
	"context"
	"net/http"
	"strings"
	"testing"

	"github.com/coder/websocket"

	v1 "github.com/sandpit-dev/sandpit/internal/api/v1"
	"github.com/sandpit-dev/sandpit/internal/testkit"
)

// socketServer is a server of WebSockets in the sandbox, which sends back what it
// gets, closes when it is told to, and dies when it is told to.
const socketServer = `
import socket, threading, hashlib, base64, struct, os
def exactly(c, n):
    b = b""
    while len(b) < n:
        more = c.recv(n - len(b))
        if not more: raise OSError
        b += more
    return b
def serve(c):
    head = b""
    while b"\r\n\r\n" not in head:
        more = c.recv(1)
        if not more: return
        head += more
    assert b"X-Sandpit" not in head and b"secret" not in head
    key = [l.split(b": ")[1] for l in head.split(b"\r\n") if l.lower().startswith(b"sec-websocket-key")][0]
    accept = base64.b64encode(hashlib.sha1(key + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest())
    c.sendall(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: " + accept + b"\r\n\r\n")
    while True:
        op, n = exactly(c, 2)
        n &= 127
        if n == 126: n = struct.unpack(">H", exactly(c, 2))[0]
        elif n == 127: n = struct.unpack(">Q", exactly(c, 8))[0]
        mask = exactly(c, 4)
        data = bytearray(exactly(c, n))
        for i in range(4): data[i::4] = bytes(b ^ mask[i] for b in data[i::4])
        if op & 15 == 9: op = 0x8a
        if data == b"die": os._exit(0)
        if data == b"close": op, data = 0x88, struct.pack(">H", 4000) + b"as told"
        size = bytes([len(data)]) if len(data) < 126 else b"\x7e" + struct.pack(">H", len(data)) if len(data) < 65536 else b"\x7f" + struct.pack(">Q", len(data))
        c.sendall(bytes([op]) + size + bytes(data))
        if op == 0x88: return c.close()
def run(c):
    try: serve(c)
    except OSError: c.close()
l = socket.socket(); l.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1); l.bind(("127.0.0.1", 8080)); l.listen(100)
while True:
    c, _ = l.accept()
    threading.Thread(target=run, args=(c,)).start()
`

// WebSockets of a server in the sandbox are passed on: messages small and large,
// both ways, pings, the ends that either side makes, and that of the server.
func TestWebSocketsArePassedOn(t *testing.T) {
	s := serve(t, nil)
	sb := s.create(aliceKey, v1.Spec{})
	s.python(sb, aliceKey, socketServer, 1)
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience)
	defer cancel()
	dial := func(header http.Header, host string) (*websocket.Conn, *http.Response, error) {
		header.Set("X-Sandpit-Key", aliceKey)
		conn, resp, err := websocket.Dial(ctx, strings.Replace(s.base, "http", "ws", 1)+"/chat?room=1", &websocket.DialOptions{HTTPClient: s.tcp, HTTPHeader: header, Host: host})
		if err == nil {
			conn.SetReadLimit(8 << 20)
			t.Cleanup(func() { _ = conn.CloseNow() })
		}
		return conn, resp, err
	}
	host := "8080-" + sb.ID + ".localhost"
	byHeader := http.Header{"X-Sandpit-Sandbox": {sb.ID}, "X-Sandpit-Port": {"8080"}}
	for name, open := range map[string]func() (*websocket.Conn, *http.Response, error){
		"by name":   func() (*websocket.Conn, *http.Response, error) { return dial(http.Header{}, host) },
		"by header": func() (*websocket.Conn, *http.Response, error) { return dial(byHeader.Clone(), "") },
	} {
		conn, _, err := open()
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		for _, text := range []string{"small", strings.Repeat("x", 70_000), strings.Repeat("large", 1<<20)} {
			if err := conn.Write(ctx, websocket.MessageText, []byte(text)); err != nil {
				t.Fatal(err)
			}
			if _, got, err := conn.Read(ctx); err != nil || string(got) != text {
				t.Fatalf("%s: of %d bytes %d came back: %v", name, len(text), len(got), err)
			}
		}
		read := conn.CloseRead(ctx)
		if err := conn.Ping(ctx); err != nil {
			t.Errorf("%s: a ping: %v", name, err)
		}
		if err := conn.Close(websocket.StatusNormalClosure, ""); err != nil {
			t.Errorf("%s: closing: %v", name, err)
		}
		<-read.Done()
	}
	// A page of the sandbox may open one, and one from elsewhere may not.
	port := strings.TrimPrefix(s.base, "http://127.0.0.1")
	if _, _, err := dial(http.Header{"Origin": {"http://" + host + port}}, host+port); err != nil {
		t.Errorf("a page of the sandbox: %v", err)
	}
	if _, resp, err := dial(http.Header{"Origin": {"https://evil.example"}}, host); err == nil || resp == nil || resp.StatusCode != http.StatusForbidden {
		t.Errorf("a page from elsewhere: %v, %v", resp, err)
	}
	// The server ends one, and then itself.
	for _, end := range []struct {
		word string
		code websocket.StatusCode
	}{{"close", 4000}, {"die", -1}} {
		conn, _, err := dial(http.Header{}, host)
		if err != nil {
			t.Fatal(err)
		}
		if err := conn.Write(ctx, websocket.MessageText, []byte(end.word)); err != nil {
			t.Fatal(err)
		}
		if _, _, err := conn.Read(ctx); err == nil || websocket.CloseStatus(err) != end.code {
			t.Errorf("after %q: %v", end.word, err)
		}
	}
	if _, resp, err := dial(http.Header{}, host); err == nil || resp == nil || resp.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("to a server that is gone: %v, %v", resp, err)
	}
	eventually(t, "all have ended", func() bool { return s.ended("proxy") == 6 })
}
