package server_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/sandpit-dev/sandpit"
	v1 "github.com/sandpit-dev/sandpit/internal/api/v1"
	"github.com/sandpit-dev/sandpit/internal/testkit"
)

// repeater answers with the request that it gets, or changes to a protocol that repeats lines.
const repeater = `
import socket, threading
def serve(c):
    head = b""
    while b"\r\n\r\n" not in head:
        more = c.recv(65536)
        if not more: return c.close()
        head += more
    if b"upgrade: lines" in head.lower():
        c.sendall(b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: lines\r\n\r\n")
        while True:
            more = c.recv(65536)
            if not more: return c.close()
            c.sendall(more)
    c.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nSet-Cookie: a=b; Domain=localhost; Path=/\r\nClear-Site-Data: *\r\nConnection: close\r\n\r\n" + head)
    c.close()
l = socket.socket(); l.bind(("127.0.0.1", 3000)); l.listen(100)
print("ready", flush=True)
while True:
    threading.Thread(target=serve, args=l.accept()[:1]).start()
`

// e2bBox is a sandbox that was created with E2B's API. That of newE2BBox has a repeater at port 3000.
type e2bBox struct {
	SandboxID, EnvdAccessToken, TrafficAccessToken, Domain string
}

// newE2BSandbox creates a sandbox. fields are added to the request.
func (s *served) newE2BSandbox(t *testing.T, url, key, fields string) (made e2bBox) {
	t.Helper()
	if err := json.Unmarshal([]byte(s.e2bCall(t, 201, "", "POST", url+"/v2/sandboxes", `{"templateID":"base","timeout":600`+fields+`}`, "X-API-KEY", key)), &made); err != nil {
		t.Fatal(err)
	}
	return made
}

// newE2BBox creates a sandbox with a repeater. fields are added to the request.
func (s *served) newE2BBox(t *testing.T, url, key, fields string) e2bBox {
	t.Helper()
	made := s.newE2BSandbox(t, url, key, fields)
	c := s.with(key)
	t.Cleanup(func() { _ = c.Close() })
	sb, err := c.Get(t.Context(), made.SandboxID)
	if err != nil {
		t.Fatal(err)
	}
	ready, w := io.Pipe()
	if _, err := sb.Start(t.Context(), sandpit.Command{Argv: []string{"python3", "-c", repeater}, Stdout: w}); err != nil {
		t.Fatal(err)
	}
	if _, err := bufio.NewReader(ready).ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	return made
}

// host returns what getHost of the SDKs returns.
func (b e2bBox) host(port string) string { return port + "-" + b.SandboxID + "." + b.Domain }

// upgraded makes a connection without a key to the repeater.
func (b e2bBox) upgraded(t *testing.T, address string) (net.Conn, *bufio.Reader) {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	fmt.Fprintf(conn, "GET / HTTP/1.1\r\nHost: %s\r\nConnection: Upgrade\r\nUpgrade: lines\r\n\r\n", b.host("3000"))
	r := bufio.NewReader(conn)
	resp, err := http.ReadResponse(r, nil)
	if err != nil || resp.StatusCode != http.StatusSwitchingProtocols {
		t.Fatalf("%+v, %v", resp, err)
	}
	fmt.Fprintln(conn, "hello")
	if line, err := r.ReadString('\n'); line != "hello\n" {
		t.Fatalf("%q, %v", line, err)
	}
	return conn, r
}

// The host name of getHost opens every port of a sandbox but those of the dialect on this machine, without a key. Nothing in
// the sandbox learns a key or token, its answers say nothing to browsers about other hosts, and nobody else gets in.
func TestE2BPorts(t *testing.T) {
	testkit.NeedProgram(t, "python3")
	s := newServed(t)
	url, key := s.withE2B()
	other := s.keyOf("other", "")
	box := s.newE2BBox(t, url, key, "")
	address := strings.TrimPrefix(url, "http://")
	if _, port, _ := net.SplitHostPort(address); box.Domain != "e2b.localhost:"+port {
		t.Errorf("the domain is %q", box.Domain)
	}
	at := func(status int, text, host, path string, headers ...string) string {
		t.Helper()
		return s.e2bCall(t, status, text, "GET", url+path, "", append(headers, "Host", host)...)
	}
	own := box.host("3000")

	at(200, "GET /a//b?c=%zz HTTP/1.1\r\nHost: "+own+"\r\n", own, "/a//b?c=%zz")
	at(200, "GET /sandboxes ", own, "/sandboxes")
	answer := at(200, "X-Api-Key: of-the-program\r\n", own, "/", "X-API-KEY", "of-the-program", "X-Access-Token", box.EnvdAccessToken, "E2b-Other", "x", "Authorization", "Basic eA==")
	if strings.Contains(answer, box.EnvdAccessToken) || strings.Contains(answer, "E2b") || !strings.Contains(answer, "Authorization: Basic eA==") {
		t.Errorf("the sandbox got %s", answer)
	}
	if answer := at(200, "", own, "/", "X-API-KEY", key); strings.Contains(answer, key) || strings.Contains(answer, "X-Api-Key") {
		t.Errorf("the sandbox got %s", answer)
	}
	for _, secret := range []string{key, box.EnvdAccessToken, box.TrafficAccessToken} {
		at(400, "must not reach a sandbox", own, "/?a="+secret)
		at(400, "must not reach a sandbox", own, "/", "Other", secret)
	}
	_, _, header := s.get("GET", url, "", "", "Host", own)
	if got := header["Set-Cookie"]; len(got) != 1 || got[0] != "a=b; Path=/" || header.Get("Clear-Site-Data") != "" {
		t.Errorf("a browser is told %v", header)
	}

	at(502, `"message":"the sandbox was not found"`, own, "/", "X-API-KEY", other)
	at(401, `{"code":401,`, own, "/", "X-API-KEY", "e2b_"+strings.Repeat("0", 60))
	at(403, "is not valid", own, "/", "E2b-Traffic-Access-Token", box.EnvdAccessToken)
	at(200, "GET / ", own, "/", "E2b-Traffic-Access-Token", box.TrafficAccessToken)
	for _, proxy := range []string{"X-Forwarded-For", "X-Forwarded-Host", "Forwarded", "Via", "X-Real-IP"} {
		at(403, "open-ports", own, "/", proxy, "192.0.2.1")
	}
	for _, proxy := range []string{"X-Forwarded-For", "Forwarded", "X-Real-IP", "True-Client-IP", "CF-Connecting-IP", "X-Original-Forwarded-For", "X-Envoy-External-Address", "CloudFront-Viewer-Address", "X_Forwarded_For"} {
		if answer := at(200, "GET / ", own, "/", "E2b-Traffic-Access-Token", box.TrafficAccessToken, proxy, "192.0.2.1"); strings.Contains(answer, "192.0.2.1") {
			t.Errorf("the sandbox learns the address of a caller: %s", answer)
		}
	}
	s.e2bCall(t, 400, "can't be forwarded", "CONNECT", url, "", "Host", own)
	at(403, "origin", own, "/", "Origin", "http://evil.example")
	at(421, "", "3000-"+box.SandboxID+".localhost", "/")
	at(400, "is not a port", box.host("0"), "/")
	at(400, "is not a port", box.host("65536"), "/")
	closed := at(502, `"message":"the sandbox is running, but the port is not open`, box.host("3001"), "/")
	if !strings.Contains(closed, `"sandboxId":"`+box.SandboxID+`","port":3001`) {
		t.Errorf("a closed port is answered with %s", closed)
	}
	at(502, "<h1>", box.host("3001"), "/", "Accept", "text/html")
	at(502, `"the sandbox was not found"`, "3000-aaaaaaaaaaaaaaaa."+box.Domain, "/")
	at(401, "", box.host("49983"), "/files?path=/etc/passwd")
	at(401, "", box.host("49999"), "/contexts")
	at(401, `{"code":401,`, box.host("x3000"), "/sandboxes")

	routed := []string{"E2b-Sandbox-Id", box.SandboxID, "E2b-Sandbox-Port", "3000"}
	at(401, `{"code":401,`, address, "/", routed...)
	at(200, "Host: localhost:3000\r\n", address, "/", append(routed, "X-API-KEY", key)...)
	at(200, "GET / ", address, "/", append(routed, "E2b-Traffic-Access-Token", box.TrafficAccessToken)...)
	at(200, "GET / ", own, "/", "E2b-Sandbox-Id", "nonesuch", "E2b-Sandbox-Port", "49983")

	conn, r := box.upgraded(t, address)
	s.e2bCall(t, 204, "", "DELETE", url+"/sandboxes/"+box.SandboxID, "", "X-API-KEY", key)
	if _, err := r.ReadByte(); err == nil {
		t.Error("a connection outlives its sandbox")
	}
	_ = conn.Close()
	at(502, `"the sandbox was not found"`, own, "/")
}

// The ports of a sandbox with allowPublicTraffic=false need its token of traffic. What a policy does not open, or not any more, is
// closed, also while it is used, as with the end of the key. A policy can open them everywhere.
func TestE2BPortsAreClosed(t *testing.T) {
	testkit.NeedProgram(t, "python3")
	s := newServed(t)
	s.policy("policies:\n  some: {open-ports: loopback}\n  all: {open-ports: true}\n  none: {open-ports: false}\n")
	url, key := s.withE2B()
	address := strings.TrimPrefix(url, "http://")
	at := func(status int, text, host string, headers ...string) {
		t.Helper()
		s.e2bCall(t, status, text, "GET", url+"/", "", append(headers, "Host", host)...)
	}
	private := s.newE2BBox(t, url, key, `,"network":{"allowPublicTraffic":false}`)
	at(403, "e2b-traffic-access-token is missing", private.host("3000"))
	at(403, "e2b-traffic-access-token is not valid", private.host("3000"), "E2b-Traffic-Access-Token", private.TrafficAccessToken+"x")
	at(200, "GET / ", private.host("3000"), "E2b-Traffic-Access-Token", private.TrafficAccessToken)
	at(200, "GET / ", private.host("3000"), "X-API-KEY", key)
	s.e2bCall(t, 200, `"allowPublicTraffic":false`, "GET", url+"/sandboxes/"+private.SandboxID, "", "X-API-KEY", key)

	none := s.newE2BBox(t, url, s.keyOf("none", "none"), "")
	at(403, "open-ports", none.host("3000"))
	at(200, "GET / ", none.host("3000"), "E2b-Traffic-Access-Token", none.TrafficAccessToken)
	all := s.newE2BBox(t, url, s.keyOf("all", "all"), "")
	at(200, "GET / ", all.host("3000"), "X-Forwarded-For", "192.0.2.1")

	owner := s.makeKey(v1.NewKey{Namespace: "some", Policy: "some"})
	some := s.newE2BBox(t, url, owner.Secret, "")
	_, first := some.upgraded(t, address)
	kept, second := all.upgraded(t, address)
	s.policy("policies:\n  some: {open-ports: false}\n  all: {open-ports: true}\n  none: {open-ports: false}\n")
	s.reload <- struct{}{}
	if _, err := first.ReadByte(); err == nil {
		t.Error("a connection goes on that the policy does not allow any more")
	}
	at(403, "open-ports", some.host("3000"))
	fmt.Fprintln(kept, "again")
	if line, err := second.ReadString('\n'); line != "again\n" {
		t.Errorf("one that is allowed ended, too: %q, %v", line, err)
	}

	s.policy("policies:\n  some: {open-ports: true}\n")
	s.reload <- struct{}{}
	testkit.Until(t, "the policy is in force", func() bool {
		status, _, _ := s.get("GET", url, "", "", "Host", some.host("3000"))
		return status == http.StatusOK
	}, func() string { return "" })
	_, r := some.upgraded(t, address)
	admin := s.unix()
	defer admin.Close()
	if err := admin.Call(t.Context(), "DELETE", "/v1/keys/"+owner.ID, nil, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := r.ReadByte(); err == nil {
		t.Error("a connection outlives the key")
	}
	at(403, "", some.host("3000"))
}
