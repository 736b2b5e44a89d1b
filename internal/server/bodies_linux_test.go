package server_test

import (
	"bytes"
	"compress/zlib"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit/internal/dialect"
)

// deflated returns the beginning of a gzip stream with data, whose end does not come.
func deflated(t *testing.T, data string) []byte {
	t.Helper()
	var b bytes.Buffer
	b.WriteString("\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff") // RFC 1952
	z, err := zlib.NewWriterLevel(&b, zlib.BestSpeed)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(z, data); err != nil {
		t.Fatal(err)
	}
	if err := z.Flush(); err != nil {
		t.Fatal(err)
	}
	out := b.Bytes()
	return append(out[:10:10], out[12:]...) // without the head of zlib
}

// Clients of E2B that send the longest heads of parts slowly make the server hold little.
func TestE2BFormsHoldLittle(t *testing.T) {
	const n, most = 40, 1 << 20
	s := newServed(t)
	url, key := s.withE2B()
	box := s.newE2BSandbox(t, url, key, "")
	const begin = "--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"x\"\r\n"
	many := strings.Builder{}
	for i := range 9900 {
		fmt.Fprintf(&many, "K%d: v\r\n", i)
	}
	for name, body := range map[string][]byte{"a long line": deflated(t, begin+"X-A: "+strings.Repeat("a", 9<<20)), "many lines": deflated(t, begin+many.String())} {
		t.Run(name, func(t *testing.T) {
			before := int64(heapInUse())
			for range n {
				conn, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
				if err != nil {
					t.Fatal(err)
				}
				defer conn.Close()
				head := fmt.Sprintf("POST /files?path=/tmp/x HTTP/1.1\r\nHost: localhost\r\nX-API-KEY: %s\r\nE2b-Sandbox-Id: %s\r\nContent-Encoding: gzip\r\nContent-Type: multipart/form-data; boundary=b\r\nContent-Length: 100000000\r\n\r\n", key, box.SandboxID)
				if _, err := conn.Write(append([]byte(head), body...)); err != nil {
					t.Fatal(err)
				}
				_ = conn.SetReadDeadline(time.Now().Add(patience))
				answer := make([]byte, 1<<10)
				if k, err := conn.Read(answer); err != nil || !strings.HasPrefix(string(answer[:k]), "HTTP/1.1 413") {
					t.Fatalf("%v, %.300q", err, answer[:k])
				}
			}
			if grown := int64(heapInUse()) - before; grown > n*most {
				t.Errorf("each holds %d bytes", grown/n)
			}
		})
	}
}

// What the answer to an upload of many files has is charged as it grows.
func TestE2BAnswersAreCharged(t *testing.T) {
	s := newServed(t)
	url, key := s.withE2B()
	box := s.newE2BSandbox(t, url, key, "")
	long := "/tmp" + strings.Repeat("/"+strings.Repeat("<", 240), 15) // which JSON makes six times as long
	var body strings.Builder
	for range 4000 {
		body.WriteString("--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"" + long + "\"\r\n\r\n\r\n")
	}
	body.WriteString("--b--\r\n")
	s.e2bCall(t, 413, "needs more of the server's memory", "POST", url+"/files", body.String(), "Content-Type", "multipart/form-data; boundary=b", "E2b-Sandbox-Id", box.SandboxID, "X-API-KEY", key, "X-Metadata-A", strings.Repeat("<", 3900))
}

// Files that are sent in messages are charged before their content comes, also in no bulk. When others have the memory, they are refused.
func TestAgentWritesAreCharged(t *testing.T) {
	s := newServed(t)
	url, key := s.withMicrosandbox()
	_, a := s.agentBox(url, key)
	h := a.openToWrite()
	write := func(more msi) {
		request := msi{"op": msi{"Write": msi{"handle": h, "offset": 0}}}
		for k, v := range more {
			request[k] = v
		}
		a.start("core.fs.request", request)
	}
	refused := func(n int) (refused int) {
		t.Helper()
		for range n {
			if f := a.next(); f.kind == "core.fs.response" {
				if refused++; !strings.Contains(fmt.Sprint(f.p["error"]), "too many files and connections are being transferred") {
					t.Errorf("%+v", f)
				}
			}
		}
		return refused
	}
	for range 120 {
		write(msi{"bulk": offer(3<<20, 0)})
	}
	if refused(120) == 0 {
		t.Fatal("there is room for more")
	}
	const room = 2<<20/(256<<10) + 1 // less than another one in bulk needs
	for range 3 * room {
		write(nil)
	}
	if n := refused(2 * room); n != 2*room {
		t.Errorf("%d of %d are refused", n, 2*room)
	}
}

// Lists of many empty arguments are charged by the number of items, and programs with more rlimits than there are are refused.
func TestAgentListsAreCharged(t *testing.T) {
	s := newServed(t)
	url, key := s.withMicrosandbox()
	_, a := s.agentBox(url, key)
	h := a.openToWrite()
	for range 120 {
		a.start("core.fs.request", msi{"op": msi{"Write": msi{"handle": h, "offset": 0}}, "bulk": offer(3<<20, 0)})
	}
	for range 120 {
		a.next()
	}
	a.start("core.exec.request", msi{"cmd": "true", "args": make([]string, 60_000)})
	if f := a.next(); f.kind != "core.exec.failed" || f.p["kind"] != "resource_limit" {
		t.Errorf("%+v", f)
	}
	limit := msi{"resource": "nofile", "soft": 10, "hard": 10}
	many := make([]msi, 17)
	for i := range many {
		many[i] = limit
	}
	a.start("core.exec.request", msi{"cmd": "true", "rlimits": many})
	if f := a.next(); f.kind != "core.error" || !strings.Contains(fmt.Sprint(f.p["message"]), "17 rlimits") {
		t.Errorf("%+v", f)
	}
}

// Operations on open files, and touches, count against the rate of the key.
func TestAgentHandlesHaveARate(t *testing.T) {
	s := newServed(t)
	url, key := s.withMicrosandbox()
	_, a := s.agentBox(url, key)
	h, failed := a.fs("OpenFile", msi{"path": "/etc/passwd", "options": msi{"read": true}})
	if failed != "" {
		t.Fatal(failed)
	}
	began := time.Now()
	const n = 1200
	for i := range n {
		if i%2 == 0 {
			a.start("core.fs.request", msi{"op": msi{"FStat": msi{"handle": h}}})
		} else {
			a.start("core.touch", msi{})
		}
		if f := a.next(); f.kind != "core.fs.response" && f.kind != "core.touched" {
			t.Fatalf("%+v", f)
		}
	}
	if took := time.Since(began); took < (n-dialect.Burst-100)*time.Second/dialect.Rate {
		t.Errorf("%d operations took %v", n, took)
	}
}

// Calls by JSON-RPC that end nothing do not use up what the key has for those that stop a sandbox.
func TestMicrosandboxRPCStopsInAFlood(t *testing.T) {
	s := newServed(t)
	url, key := s.withMicrosandbox()
	call := func(path, body string) int {
		status, _, _ := s.get("POST", url+path, key, body)
		return status
	}
	flood := func() {
		for refused := 0; refused < 150; {
			if call("/api/v1/rpc", `{"jsonrpc":"2.0","method":"sandbox.metrics.get","params":{"namespace":"n","sandbox":""},"id":1}`) == 429 {
				refused++
			}
		}
	}
	flood()
	for range 3 {
		if status := call("/api/v1/rpc", `{"jsonrpc":"2.0","method":"sandbox.stop","params":{"namespace":"n","sandbox":"none"},"id":1}`); status != 404 {
			t.Errorf("a stop is answered with %d", status)
		}
	}
	flood()
	for range 3 {
		if status := call("/mcp", `{"jsonrpc":"2.0","method":"tools/call","params":{"name":"sandbox_stop","arguments":{"namespace":"n","sandbox":"none"}},"id":1}`); status != 200 {
			t.Errorf("a stop by a tool is answered with %d", status)
		}
	}
}

// A change of a process is refused if there is no such process, also if it changes nothing.
func TestE2BUpdateFindsTheProcess(t *testing.T) {
	s := newServed(t)
	url, key := s.withE2B()
	box := s.newE2BSandbox(t, url, key, "")
	s.e2bCall(t, 404, "", "POST", url+"/process.Process/Update", `{"process":{"pid":999999}}`, "E2b-Sandbox-Id", box.SandboxID, "X-API-KEY", key)
}
