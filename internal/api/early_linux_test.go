package api_test

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"os/exec"
	"testing"

	v1 "github.com/sandpit-dev/sandpit/internal/api/v1"

	"github.com/sandpit-dev/sandpit/internal/testkit"
)

// An answer that comes before all of a body has come reaches a client that reads
// nothing before it has sent all.
func TestEarlyAnswerIsRead(t *testing.T) {
	s := serve(t, nil)
	sb := s.create("", v1.Spec{Limits: &v1.Limits{Disk: 1 << 20}})
	files := "/v1/sandboxes/" + sb.ID + "/files"
	for name, c := range map[string]struct {
		method, path, kind, key string
		status                  int
	}{
		"a full disk":       {"PUT", files + "?path=/tmp/f", "application/octet-stream", "", 507},
		"append":            {"PUT", files + "?path=/tmp/f&append=true", "application/octet-stream", "", 507},
		"no such directory": {"PUT", files + "?path=/none/f", "application/octet-stream", "", 404},
		"no archive":        {"PUT", files + "/archive?path=/tmp", "application/x-tar", "", 400},
		"an edit":           {"POST", files + "/edit?path=/tmp/f", "application/json", "", 413},
		"input of nobody":   {"POST", "/v1/sandboxes/" + sb.ID + "/processes/none/stdin", "application/octet-stream", "", 404},
		"a wrong key":       {"PUT", files + "?path=/tmp/f", "application/octet-stream", "wrong", 401},
		"no such path":      {"PUT", "/v1/none", "application/octet-stream", "", 404},
		"to a sandbox":      {"POST", "/x", "application/octet-stream", "", 404},
	} {
		for _, expect := range []bool{false, true} {
			for _, chunked := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s/expect=%v/chunked=%v", name, expect, chunked), func(t *testing.T) {
					head := fmt.Sprintf("%s %s HTTP/1.1\r\nHost: sandpit\r\nContent-Type: %s\r\n", c.method, c.path, c.kind)
					if key := c.key; key == "" {
						head += "Authorization: Bearer " + adminKey + "\r\n"
					} else {
						head += "Authorization: Bearer " + key + "\r\n"
					}
					if name == "to a sandbox" {
						head += "X-Sandpit-Sandbox: none\r\nX-Sandpit-Port: 80\r\n"
					}
					if expect {
						head += "Expect: 100-continue\r\n" // and does not wait for it
					}
					for _, network := range []string{"unix", "tcp"} {
						conn := s.dialOn(network)
						if err := sendAll(conn, head, chunked); err != nil {
							t.Errorf("%s: sending it: %v", network, err)
							continue
						}
						resp, err := readAnswer(conn)
						if err != nil || resp.StatusCode != c.status {
							t.Errorf("%s: got %v, %v, want %d", network, resp, err, c.status)
						}
					}
				})
			}
		}
	}
}

// sendAll sends 24 MiB: more than sockets hold, and less than the server reads on.
func sendAll(conn net.Conn, head string, chunked bool) error {
	const pieces = 24
	piece := bytes.Repeat([]byte("x"), 1<<20)
	if chunked {
		piece = fmt.Appendf(nil, "%x\r\n%s\r\n", len(piece), piece)
		head += "Transfer-Encoding: chunked\r\n\r\n"
	} else {
		head += fmt.Sprintf("Content-Length: %d\r\n\r\n", pieces*len(piece))
	}
	if _, err := io.WriteString(conn, head); err != nil {
		return err
	}
	for range pieces {
		if _, err := conn.Write(piece); err != nil {
			return err
		}
	}
	if chunked {
		_, err := io.WriteString(conn, "0\r\n\r\n")
		return err
	}
	return nil
}

// readAnswer reads the answer behind "100 Continue".
func readAnswer(conn net.Conn) (*http.Response, error) {
	br := bufio.NewReader(conn)
	for {
		resp, err := http.ReadResponse(br, nil)
		if err != nil || resp.StatusCode >= 200 {
			if err == nil {
				_, err = io.ReadAll(resp.Body)
				resp.Body.Close()
			}
			return resp, err
		}
	}
}

// refusers are servers in the sandbox that answer before they have read what is
// sent: on 8080 and then close, on 8081 and then wait.
const refusers = `
import socket, threading
def serve(port, wait):
    l = socket.socket(); l.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1); l.bind(("127.0.0.1", port)); l.listen()
    held = []
    while True:
        c, _ = l.accept()
        head = b""
        while b"\r\n\r\n" not in head:
            head += c.recv(4096)
        c.sendall(b"HTTP/1.1 413 Too Large\r\nContent-Length: 4\r\nConnection: close\r\n\r\nmuch")
        if wait:
            held.append(c)
        else:
            c.close()
threading.Thread(target=serve, args=(8081, True)).start()
serve(8080, False)
`

// That holds for what is passed on to a sandbox.
func TestEarlyAnswerOfASandboxIsRead(t *testing.T) {
	s := serve(t, nil)
	sb := s.create("", v1.Spec{})
	s.python(sb, "", refusers, 2)
	for _, port := range []string{"8080", "8081"} {
		for _, expect := range []bool{false, true} {
			for _, chunked := range []bool{false, true} {
				t.Run(fmt.Sprintf("port=%s/expect=%v/chunked=%v", port, expect, chunked), func(t *testing.T) {
					head := "POST /x HTTP/1.1\r\nHost: " + port + "-" + sb.ID + ".localhost\r\n"
					if expect {
						head += "Expect: 100-continue\r\n"
					}
					for range 5 {
						conn := s.dial()
						if err := sendAll(conn, head, chunked); err != nil {
							t.Fatalf("sending it: %v", err)
						}
						resp, err := readAnswer(conn)
						if err != nil || resp.StatusCode != http.StatusRequestEntityTooLarge {
							t.Fatalf("got %v, %v", resp, err)
						}
					}
				})
			}
		}
	}
}

// python runs a program in the background, and returns when it listens on so many
// ports.
func (s *service) python(sb v1.Sandbox, key, program string, ports int) {
	s.t.Helper()
	var out v1.Executed
	s.want(200, &out, ask{method: "POST", path: execPath(sb), key: key, body: v1.Exec{Command: v1.Command{Script: "command -v python3"}}})
	if out.Result.ExitCode != 0 {
		if _, err := exec.LookPath("python3"); err == nil {
			s.t.Fatal("python3 of this machine is not in the sandbox")
		}
		testkit.Lacks(s.t, "the program python3, to listen in a sandbox")
	}
	s.want(201, nil, ask{method: "POST", path: "/v1/sandboxes/" + sb.ID + "/processes", key: key, body: v1.Command{Argv: []string{"python3", "-c", program}}})
	eventually(s.t, "it listens", func() bool {
		var list v1.PortList
		s.want(200, &list, ask{method: "GET", path: "/v1/sandboxes/" + sb.ID + "/ports", key: key})
		return len(list.Ports) == ports
	})
}
