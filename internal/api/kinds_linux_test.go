package api_test

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"

	v1 "github.com/sandpit-dev/sandpit/internal/api/v1"
)

// kind is a request that goes on for as long as its client wants.
type kind struct {
	operation, line, head, body string

	length  int  // of the body as it is told; -1: in chunks. More than there is: the rest never comes
	endless bool // its answer has no end
}

// talker is a server in the sandbox, which sends without end, after an upgrade if
// one is asked for. What comes to 9090 it takes, and says nothing.
const talker = `
import socket, threading
def talk(c, port):
    head = b""
    while port == 8080 and b"\r\n\r\n" not in head:
        more = c.recv(4096)
        if not more: return c.close()
        head += more
    try:
        if b"Upgrade:" in head:
            c.sendall(b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: talk\r\n\r\n")
        elif port == 8080:
            c.sendall(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n")
        while b"/quiet" not in head:
            c.sendall(b"well " * 1000)
        while c.recv(4096): pass
    except OSError: pass
    c.close()
def serve(port):
    l = socket.socket(); l.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1); l.bind(("127.0.0.1", port)); l.listen(100)
    while True:
        c, _ = l.accept()
        threading.Thread(target=talk, args=(c, port), daemon=True).start()
threading.Thread(target=serve, args=(9090,)).start()
serve(8080)
`

// kinds are all that goes on in a sandbox which runs talker, with a process that
// writes without end and reads nothing, and /tmp/large.
func kinds(sb v1.Sandbox, p v1.Process) map[string]kind {
	const (
		chatty = `{"script":"while :; do echo well; done"}`
		quiet  = `{"argv":["sleep","7999"]}`
		json   = "Content-Type: application/json\r\n"
		socket = handshake
		tunnel = "Connection: Upgrade\r\nUpgrade: tcp\r\n"
		talk   = "Connection: Upgrade\r\nUpgrade: talk\r\n"
		events = "Accept: text/event-stream\r\n"
		frames = "Accept: " + v1.StreamType + "\r\n"
	)
	one := "/v1/sandboxes/" + sb.ID
	to := "X-Sandpit-Sandbox: " + sb.ID + "\r\nX-Sandpit-Port: 8080\r\n"
	return map[string]kind{
		"writes a file":           {"writeFile", "PUT " + one + "/files?path=/tmp/f", "", "abc", 1000, false},
		"writes a file in chunks": {"writeFile", "PUT " + one + "/files?path=/tmp/f", "", "3\r\nabc\r\n", -1, false},
		"writes half a chunk":     {"writeFile", "PUT " + one + "/files?path=/tmp/f", "", "ff\r\nabc", -1, false},
		"writes an archive":       {"uploadArchive", "PUT " + one + "/files/archive?path=/tmp", "", "abc", 1000, false},
		"writes a zip archive":    {"uploadArchive", "PUT " + one + "/files/archive?path=/tmp&format=zip", "", "abc", 1000, false},
		"writes a packed archive": {"uploadArchive", "PUT " + one + "/files/archive?path=/tmp&format=tar.gz", "", "\x1f\x8b\x08\x00\x00\x00\x00\x00", 1000, false},
		"writes input":            {"writeStdin", "POST " + one + "/processes/" + p.ID + "/stdin", "", "abc", 1000, false},
		"asks for a sandbox":      {"createSandbox", "POST /v1/sandboxes", json, `{"name":`, 1000, false},
		"asks for an edit":        {"editFile", "POST " + one + "/files/edit?path=/tmp/f", json, `{`, 1000, false},
		"sends to a sandbox":      {"proxy", "POST /quiet", to, "abc", 1000, false},

		"runs a command":             {"exec", "POST " + one + "/exec", json + frames, quiet, len(quiet), false},
		"runs a command for events":  {"exec", "POST " + one + "/exec", json + events, quiet, len(quiet), false},
		"waits for a command":        {"exec", "POST " + one + "/exec", json, quiet, len(quiet), false},
		"runs over a WebSocket":      {"execSocket", "GET " + one + "/exec", socket, masked(1, quiet), 0, false},
		"waits for a process":        {"waitProcess", "GET " + one + "/processes/" + p.ID + "/wait?timeout=3600", "", "", 0, false},
		"follows events":             {"followEvents", "GET /v1/events", "", "", 0, false},
		"watches files":              {"watchFiles", "GET " + one + "/files/watch?path=/tmp", "", "", 0, false},
		"opens a quiet tunnel":       {"connectPort", "GET " + one + "/ports/8080/tcp", tunnel, "", 0, false},
		"opens a quiet socket":       {"connectPort", "GET " + one + "/ports/8080/tcp", socket, "", 0, false},
		"changes protocols, quietly": {"proxy", "GET /quiet", to + talk, "", 0, false},

		"runs what talks":                  {"exec", "POST " + one + "/exec", json + frames, chatty, len(chatty), true},
		"runs what talks, for events":      {"exec", "POST " + one + "/exec", json + events, chatty, len(chatty), true},
		"runs what talks over a WebSocket": {"execSocket", "GET " + one + "/exec", socket, masked(1, chatty), 0, true},
		"follows output":                   {"followOutput", "GET " + one + "/processes/" + p.ID + "/output", "", "", 0, true},
		"follows output as events":         {"followOutput", "GET " + one + "/processes/" + p.ID + "/output", events, "", 0, true},
		"attaches":                         {"attachProcess", "GET " + one + "/processes/" + p.ID + "/attach", socket, "", 0, true},
		"follows logs":                     {"getLogs", "GET " + one + "/logs?follow=true", "", "", 0, true},
		"follows logs as events":           {"getLogs", "GET " + one + "/logs?follow=true", events, "", 0, true},
		"reads a file":                     {"readFile", "GET " + one + "/files?path=/tmp/large", "", "", 0, true},
		"reads an archive":                 {"downloadArchive", "GET " + one + "/files/archive?path=/tmp", "", "", 0, true},
		"reads a zip archive":              {"downloadArchive", "GET " + one + "/files/archive?path=/tmp&format=zip", "", "", 0, true},
		"reads of a sandbox":               {"proxy", "GET /x", to, "", 0, true},
		"opens a tunnel":                   {"connectPort", "GET " + one + "/ports/9090/tcp", tunnel, "", 0, true},
		"opens a tunnel of messages":       {"connectPort", "GET " + one + "/ports/9090/tcp", socket, "", 0, true},
		"changes protocols":                {"proxy", "GET /x", to + talk, "", 0, true},
	}
}

// large is more than all buffers on the way hold.
const large = 16 << 20

// talking makes a sandbox in which all kinds are possible.
func (s *service) talking(key string) (v1.Sandbox, v1.Process) {
	s.t.Helper()
	sb := s.create(key, v1.Spec{})
	var out v1.Executed
	// Noise: what can't be packed makes a large archive of any kind.
	s.want(200, &out, ask{method: "POST", path: execPath(sb), key: key, body: v1.Exec{Command: v1.Command{Script: fmt.Sprintf("head -c %d /dev/urandom > /tmp/large", large)}}})
	if out.Result.ExitCode != 0 {
		s.t.Fatalf("%+v", out)
	}
	s.python(sb, key, talker, 2)
	var p v1.Process
	s.want(201, &p, ask{method: "POST", path: "/v1/sandboxes/" + sb.ID + "/processes", key: key, body: v1.Command{Script: "while :; do echo well; done", Stdin: true}})
	return sb, p
}

// begin makes a request by hand. Of one that gets an answer it has read the head.
func (s *service) begin(sb v1.Sandbox, network, key string, k kind) net.Conn {
	s.t.Helper()
	conn := s.dialOn(network)
	head := k.line + " HTTP/1.1\r\nHost: sandpit\r\nX-Sandpit-Key: " + key + "\r\n" + k.head
	switch {
	case k.length < 0:
		head += "Transfer-Encoding: chunked\r\n"
	case k.length > 0:
		head += fmt.Sprintf("Content-Length: %d\r\n", k.length)
	}
	if _, err := io.WriteString(conn, head+"\r\n"+k.body); err != nil {
		s.t.Fatal(err)
	}
	switch {
	case k.operation == "waitProcess", k.operation == "exec" && k.head == "Content-Type: application/json\r\n":
	case k.length == len(k.body) || k.length == 0:
		if resp, err := http.ReadResponse(bufio.NewReaderSize(conn, 16), nil); err != nil || resp.StatusCode >= 300 {
			s.t.Fatal(resp, err)
		}
	}
	return conn
}

// masked is a message of a client (RFC 6455, 5.2) of at most 125 bytes, masked
// with zeros.
func masked(opcode byte, text string) string {
	var b bytes.Buffer
	b.Write([]byte{0x80 | opcode, 0x80 | byte(len(text)), 0, 0, 0, 0})
	b.WriteString(text)
	return b.String()
}

// ended is how many calls have ended.
func (s *service) ended(operation string) int {
	n := 0
	for _, e := range s.audit.all() {
		if e.Action == operation && e.Phase == "end" {
			n++
		}
	}
	return n
}
