package api_test

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	v1 "github.com/sandpit-dev/sandpit/internal/api/v1"
)

// That a client leaves, in whatever it does, is no failure of the server: its log
// has no error. Over TCP the connection is reset.
func TestLeavingIsNoFailure(t *testing.T) {
	s := serve(t, nil)
	sb := s.create("", v1.Spec{})
	one := "/v1/sandboxes/" + sb.ID
	s.want(200, nil, ask{method: "PUT", path: one + "/files?path=/tmp/large", body: strings.NewReader(strings.Repeat("large", 2<<20))})
	var p v1.Process
	s.want(201, &p, ask{method: "POST", path: one + "/processes", body: v1.Command{Script: "while :; do echo well; done", Stdin: true}})
	s.python(sb, listener, 1)

	chatty := `{"script":"while :; do echo well; done"}`
	json := "Content-Type: application/json\r\n"
	socket := "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
	tunnel := "Connection: Upgrade\r\nUpgrade: tcp\r\n"
	to := "X-Sandpit-Sandbox: " + sb.ID + "\r\nX-Sandpit-Port: 8080\r\n"
	for name, c := range map[string]struct {
		operation, line, head, body string
		length                      int // of the body as it is told; -1: in chunks
	}{
		"writes a file":              {"writeFile", "PUT " + one + "/files?path=/tmp/f", "", "abc", 1000},
		"writes a file in chunks":    {"writeFile", "PUT " + one + "/files?path=/tmp/f", "", "3\r\nabc\r\n", -1},
		"writes half a chunk":        {"writeFile", "PUT " + one + "/files?path=/tmp/f", "", "ff\r\nabc", -1},
		"writes an archive":          {"uploadArchive", "PUT " + one + "/files/archive?path=/tmp", "", "abc", 1000},
		"writes a zip archive":       {"uploadArchive", "PUT " + one + "/files/archive?path=/tmp&format=zip", "", "abc", 1000},
		"writes a packed archive":    {"uploadArchive", "PUT " + one + "/files/archive?path=/tmp&format=tar.gz", "", "\x1f\x8b\x08\x00\x00\x00\x00\x00", 1000},
		"writes input":               {"writeStdin", "POST " + one + "/processes/" + p.ID + "/stdin", "", "abc", 1000},
		"asks for a sandbox":         {"createSandbox", "POST /v1/sandboxes", json, `{"name":`, 1000},
		"asks for an edit":           {"editFile", "POST " + one + "/files/edit?path=/tmp/f", json, `{`, 1000},
		"sends to a sandbox":         {"proxy", "POST /x", to, "abc", 1000},
		"runs a command":             {"exec", "POST " + one + "/exec", json + "Accept: " + v1.StreamType + "\r\n", chatty, len(chatty)},
		"runs a command for events":  {"exec", "POST " + one + "/exec", json + "Accept: text/event-stream\r\n", chatty, len(chatty)},
		"waits for a command":        {"exec", "POST " + one + "/exec", json, `{"argv":["sleep","7999"]}`, 25},
		"runs over a WebSocket":      {"execSocket", "GET " + one + "/exec", socket, maskedText(chatty), 0},
		"follows output":             {"followOutput", "GET " + one + "/processes/" + p.ID + "/output", "", "", 0},
		"attaches":                   {"attachProcess", "GET " + one + "/processes/" + p.ID + "/attach", socket, "", 0},
		"follows logs":               {"getLogs", "GET " + one + "/logs?follow=true", "", "", 0},
		"follows events":             {"followEvents", "GET /v1/events", "", "", 0},
		"watches files":              {"watchFiles", "GET " + one + "/files/watch?path=/tmp", "", "", 0},
		"reads a file":               {"readFile", "GET " + one + "/files?path=/tmp/large", "", "", 0},
		"reads an archive":           {"downloadArchive", "GET " + one + "/files/archive?path=/tmp", "", "", 0},
		"reads a zip archive":        {"downloadArchive", "GET " + one + "/files/archive?path=/tmp&format=zip", "", "", 0},
		"opens a tunnel":             {"connectPort", "GET " + one + "/ports/8080/tcp", tunnel, "", 0},
		"opens a tunnel of messages": {"connectPort", "GET " + one + "/ports/8080/tcp", socket, "", 0},
	} {
		for _, network := range []string{"unix", "tcp"} {
			t.Run(name+"/"+network, func(t *testing.T) {
				before := s.ended(c.operation)
				conn := s.dialOn(network)
				head := c.line + " HTTP/1.1\r\nHost: sandpit\r\nAuthorization: Bearer " + adminKey + "\r\n" + c.head
				switch {
				case c.length < 0:
					head += "Transfer-Encoding: chunked\r\n"
				case c.length > 0:
					head += fmt.Sprintf("Content-Length: %d\r\n", c.length)
				}
				if _, err := io.WriteString(conn, head+"\r\n"+c.body); err != nil {
					t.Fatal(err)
				}
				switch {
				case name == "waits for a command":
					eventually(t, "it runs", func() bool { return s.running(sb, "7999") })
				case c.length == len(c.body) || c.length == 0: // it gets an answer
					if _, err := http.ReadResponse(bufio.NewReader(conn), nil); err != nil {
						t.Fatal(err)
					}
				}
				if tcp, ok := conn.(*net.TCPConn); ok {
					_ = tcp.SetLinger(0)
				}
				_ = conn.Close()
				eventually(t, "it has ended", func() bool { return s.ended(c.operation) > before })
			})
		}
	}
	for line := range strings.Lines(s.log.String()) {
		if strings.Contains(line, "level=ERROR") || strings.Contains(line, "level=WARN") {
			t.Error(line)
		}
	}
}

// maskedText is a text message of a client (RFC 6455, 5.2), masked with zeros.
func maskedText(text string) string {
	var b bytes.Buffer
	b.Write([]byte{0x81, 0x80 | byte(len(text)), 0, 0, 0, 0})
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
