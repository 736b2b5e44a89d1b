package api_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	v1 "github.com/sandpit-dev/sandpit/internal/api/v1"
	"github.com/sandpit-dev/sandpit/internal/testkit"
)

// rawForm returns a multipart body with the boundary b, up to the content of its part stdin.
func rawForm(script string) string {
	return "--b\r\nContent-Disposition: form-data; name=\"command\"\r\n\r\n{\"script\":\"" + script + "\"}\r\n--b\r\nContent-Disposition: form-data; name=\"stdin\"\r\n\r\n"
}

// formEnd is the end of such a body.
const formEnd = "\r\n--b--\r\n"

// asForm returns a request with such a body.
func asForm(path, body string) ask {
	return ask{method: "POST", path: path, body: body, header: map[string]string{"Content-Type": "multipart/form-data; boundary=b"}}
}

// A repeated exec belongs to the sandbox of the first, whatever has its name since, and never
// touches a process of another.
func TestRepeatedExecKeepsItsSandbox(t *testing.T) {
	s := serve(t, func(o *options) { o.ComeBack = time.Millisecond })
	first := s.create("", v1.Spec{Name: "box"})
	a := keyed("k", ask{method: "POST", path: "/v1/sandboxes/box/exec", body: v1.Exec{Command: v1.Command{Script: "echo first"}}})
	var out v1.Executed
	s.want(200, &out, a)
	ref, began := out.Process.ID, out.Process.StartedAt
	s.want(200, nil, ask{method: "PATCH", path: "/v1/sandboxes/box", body: v1.Change{Name: new("old")}})
	second := s.create("", v1.Spec{Name: "box"})
	var other v1.Process
	s.want(201, &other, ask{method: "POST", path: "/v1/sandboxes/box/processes", body: v1.Command{Script: "echo other; exec sleep 7651"}})
	if other.ID != ref {
		t.Fatalf("the processes are %s and %s", ref, other.ID)
	}
	out = v1.Executed{}
	if h := s.want(200, &out, a); h.Get("Idempotent-Replayed") != "true" || out.Stdout != "first\n" || !out.Process.StartedAt.Equal(began) || out.Process.Result != nil {
		t.Errorf("after the name was reused: %+v", out)
	}
	if ends := s.ends("exec"); ends[len(ends)-1].Sandbox != first.ID {
		t.Errorf("the audit says %+v", ends[len(ends)-1])
	}
	s.want(204, nil, ask{method: "DELETE", path: "/v1/sandboxes/old"})
	s.refused(404, "not_found", a)
	if !s.running(second, "", "7651") {
		t.Error("the process of another sandbox was killed")
	}
}

// http2 returns a client that speaks HTTP/2, and the URL for it.
func (s *service) http2() (*http.Client, string) {
	s.t.Helper()
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	server := &http.Server{Handler: s.server.Handler, ConnContext: s.server.ConnContext, Protocols: protocols, ReadHeaderTimeout: testkit.Patience}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		s.t.Fatal(err)
	}
	go func() { _ = server.Serve(l) }()
	transport := &http.Transport{Protocols: protocols}
	s.t.Cleanup(func() {
		transport.CloseIdleConnections()
		_ = server.Close()
	})
	return &http.Client{Transport: transport, Timeout: testkit.Patience}, "http://" + l.Addr().String()
}

// The connection of a first caller dies without a word, in the middle of the input. Its command is
// not killed, because another caller waits for it, which passes the rest of the input.
func TestSilentCallerIsReplaced(t *testing.T) {
	testkit.NeedFull(t, "it waits for five seconds")
	s := serve(t, func(o *options) { o.Limits.Stall = 2 * time.Second })
	sb := s.create("", v1.Spec{})
	body := rawForm("cat")
	for _, protocol := range []string{"HTTP/1.1", "HTTP/2.0"} {
		client, base := s.tcp, s.base
		if protocol == "HTTP/2.0" {
			client, base = s.http2()
		}
		in, out := io.Pipe()
		first := make(chan error, 1)
		go func() {
			r, _ := http.NewRequestWithContext(context.Background(), "POST", base+execPath(sb), in)
			r.Header.Set("Content-Type", "multipart/form-data; boundary=b")
			r.Header.Set("Idempotency-Key", protocol)
			r.Header.Set("X-Sandpit-Key", adminKey)
			resp, err := client.Do(r)
			if err == nil {
				_ = resp.Body.Close()
				if err = errors.New(resp.Proto + " " + resp.Status); resp.Proto == protocol && resp.StatusCode >= 400 {
					err = nil
				}
			}
			first <- err
		}()
		_, _ = io.WriteString(out, body+"one ")
		eventually(t, "it has begun", func() bool {
			s.repeats.mu.Lock()
			defer s.repeats.mu.Unlock()
			r := s.repeats.all["local/"+protocol]
			return r != nil && r.answered
		})
		var got v1.Executed
		s.want(200, &got, keyed(protocol, asForm(execPath(sb), body+"one two"+formEnd)))
		if got.Stdout != "one two" || got.Result.ExitCode != 0 {
			t.Errorf("%s: %+v", protocol, got)
		}
		if err := <-first; err != nil {
			t.Errorf("%s: the first caller: %v", protocol, err)
		}
		_ = out.Close()
	}
}

// A repeated request whose body is not valid does not harm the process, nor does the first.
func TestBadInputIsNotTheEnd(t *testing.T) {
	s := serve(t, nil)
	sb := s.create("", v1.Spec{})
	body := rawForm("cat; echo read")
	s.refused(400, "invalid", keyed("k", asForm(execPath(sb), body+"one")))
	for _, rest := range []string{"", "one", "one\r\n--b\r\nContent-Disposition: form-data; name=\"more\"\r\n\r\n" + formEnd, "one" + strings.Repeat("\r\n--b", 3)} {
		s.refused(400, "invalid", keyed("k", asForm(execPath(sb), body+rest)))
	}
	var out v1.Executed
	s.want(200, &out, keyed("k", asForm(execPath(sb), body+"one\r\n--b--\r\n")))
	if !strings.HasPrefix(out.Stdout, "one") || !strings.HasSuffix(out.Stdout, "read\n") || out.Result.ExitCode != 0 {
		t.Errorf("%+v", out)
	}
}

// Nothing but a short head is read between the parts of a multipart body: not one that never ends.
func TestLongHeadsOfParts(t *testing.T) {
	s := serve(t, func(o *options) { o.Limits.Stall = time.Hour })
	sb := s.create("", v1.Spec{})
	long := "X-Long: " + strings.Repeat("x", 20<<10)
	const command = "--b\r\nContent-Disposition: form-data; name=\"command\"\r\n"
	for name, c := range map[string]struct {
		status int
		body   string
	}{
		"before the command": {413, "--b\r\n" + long},
		"before stdin":       {413, command + "\r\n{\"argv\":[\"cat\"]}\r\n--b\r\n" + long},
		"behind stdin":       {400, rawForm("cat") + "x\r\n--b\r\n" + long},
		"no boundary":        {400, strings.Repeat("x", 20<<10)},
	} {
		conn := s.dialOn("unix")
		_ = conn.SetDeadline(time.Now().Add(testkit.Patience))
		// The client sends no more before it has the answer.
		fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: sandpit\r\nContent-Type: multipart/form-data; boundary=b\r\nContent-Length: 100000000\r\n\r\n%s", execPath(sb), c.body)
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		var e v1.Error
		err = json.NewDecoder(resp.Body).Decode(&e)
		if resp.StatusCode != c.status || err != nil {
			t.Errorf("%s: %s %+v, %v", name, resp.Status, e, err)
		}
		_ = conn.Close()
	}
}
