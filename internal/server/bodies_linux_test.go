package server_test

import (
	"bytes"
	"cmp"
	"compress/zlib"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/api"
	v1 "github.com/sandpit-dev/sandpit/internal/api/v1"
	"github.com/sandpit-dev/sandpit/internal/dialect"
	"github.com/sandpit-dev/sandpit/internal/dialect/e2b"
	"github.com/sandpit-dev/sandpit/internal/dialect/microsandbox"
	"github.com/sandpit-dev/sandpit/internal/gate"
	"github.com/sandpit-dev/sandpit/internal/network"
	"github.com/sandpit-dev/sandpit/internal/server"
	"github.com/sandpit-dev/sandpit/internal/testkit"
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

// halfBodies are beginnings of bodies whose rest does not come. Each has what its client says about it.
func halfBodies(t *testing.T) map[string]struct{ head, body string } {
	const form = "--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"x\"\r\n"
	const isForm, packed = "Content-Type: multipart/form-data; boundary=b\r\n", "Content-Encoding: gzip\r\n"
	const stream = "Content-Type: application/connect+json\r\nConnect-Protocol-Version: 1\r\n"
	lines := strings.Builder{}
	for i := range 9900 {
		fmt.Fprintf(&lines, "K%d: v\r\n", i)
	}
	text, long := strings.Repeat("a", 256<<10), strings.Repeat("a", 9<<20)
	return map[string]struct{ head, body string }{
		"a text":                    {"Content-Type: application/json\r\n", `{"a":"` + text},
		"a packed text":             {"Content-Type: application/json\r\n" + packed, string(deflated(t, `{"a":"`+long))},
		"a list":                    {"Content-Type: application/json\r\n", `{"a":[` + strings.Repeat("{},", 80<<10)},
		"bytes":                     {"Content-Type: application/octet-stream\r\n", text},
		"packed bytes":              {"Content-Type: application/octet-stream\r\n" + packed, string(deflated(t, long))},
		"a form's long line":        {isForm, form + "X-A: " + text},
		"a form's packed long line": {isForm + packed, string(deflated(t, form+"X-A: "+long))},
		"a form's many lines":       {isForm + packed, string(deflated(t, form+lines.String()))},
		"a long message":            {stream, "\x00\xff\xff\xff\xff" + `{"a":"` + text},
		"a packed message":          {stream + "Connect-Content-Encoding: gzip\r\n", "\x01\x00\xff\xff\xff" + string(deflated(t, `{"a":"`+long))},
	}
}

// keptOf returns the dialect, and has it report its routes.
func keptOf(d dialect.Dialect, report func([]gate.Route)) dialect.Dialect {
	serve := d.New
	d.New = func(s dialect.Server) gate.Dialect {
		g := serve(s)
		report(g.Routes)
		return g
	}
	return d
}

// The server holds at most twice what has come of a body that is not complete, and 256 KiB, whatever the route and the body are.
func TestHalfBodiesHoldLittle(t *testing.T) {
	const each, free = 2, 256 << 10
	s := newServed(t)
	s.settings.Connections = 4000
	s.policy(baseImages)
	s.plain()
	var e2bRoutes, msbRoutes []gate.Route
	dialects := []dialect.Dialect{
		keptOf(e2b.New(), func(all []gate.Route) { e2bRoutes = all }),
		keptOf(microsandbox.New(), func(all []gate.Route) { msbRoutes = all }),
	}
	at := map[string]string{"": s.tcp}
	for _, d := range dialects {
		at[d.Name] = testkit.Address(t)
		s.settings.Listen = append(s.settings.Listen, server.Listen{Address: server.Address{Network: "tcp", Host: at[d.Name]}, Service: d.Name})
	}
	s.change = func(o *server.Options) { o.Dialects, o.Network = dialects, network.InProcess{} }
	s.start()
	// begin sends the beginnings of bodies, and returns how many bytes they have.
	half := halfBodies(t)
	begin := func(method, path, service string, headers ...string) (conns []net.Conn, sent int) {
		for _, b := range half {
			for range 2 {
				conn, err := net.Dial("tcp", at[service])
				if err != nil {
					t.Fatal(err)
				}
				conns, sent = append(conns, conn), sent+len(b.body)
				head := method + " " + path + " HTTP/1.1\r\nHost: localhost\r\n" + strings.Join(headers, "\r\n") + "\r\n" + b.head + "Content-Length: 100000000\r\n\r\n"
				_, _ = conn.Write([]byte(head + b.body)) // it may be refused before all is sent
			}
		}
		return conns, sent
	}
	var box, process string
	fresh := func(key string) { // after routes that end it
		c := s.with(key)
		defer c.Close()
		if box != "" {
			if sb, err := c.Get(t.Context(), box); err == nil {
				if info, err := sb.Info(t.Context()); err == nil && info.State == sandpit.StateRunning {
					return
				}
			}
		}
		box = s.newE2BSandbox(t, "http://"+at[e2b.Name], s.makeKey(v1.NewKey{Namespace: "n", Format: e2b.Name}).Secret, "").SandboxID
		sb, err := c.Get(t.Context(), box)
		if err != nil {
			t.Fatal(err)
		}
		p, err := sb.Start(t.Context(), sandpit.Command{Argv: []string{"sleep", "10000"}, Background: true, Stdin: true})
		if err != nil {
			t.Fatal(err)
		}
		process = p.ID()
	}
	try := func(service, id, method, path string) {
		key := s.makeKey(v1.NewKey{Namespace: "n", Format: service, Admin: true}).Secret // with a rate of its own
		fresh(key)
		headers := []string{"Authorization: Bearer " + key}
		if service == e2b.Name {
			headers = []string{"X-API-KEY: " + key, "E2b-Sandbox-Id: " + box}
		}
		path = regexp.MustCompile(`\{[^}]*\}`).ReplaceAllStringFunc(path, func(name string) string {
			switch name {
			case "{sb}", "{sandbox}":
				return box
			case "{p}":
				return process
			case "{id}":
				if service == e2b.Name {
					return box
				}
			case "{hash}":
				return "aa"
			case "{port}":
				return "80"
			case "{$}":
				return ""
			}
			return "half"
		})
		if id == "e2b.uploadArchive" {
			b := builder{t, s, "http://" + at[service], key}
			b.request("half")
			var link struct{ URL string }
			if err := json.Unmarshal([]byte(b.call(201, "", "GET", path, "")), &link); err != nil {
				t.Fatal(err)
			}
			path = strings.TrimPrefix(link.URL, b.url)
		}
		before := int64(heapInUse())
		conns, sent := begin(method, path, service, headers...)
		for range 5 { // meanwhile it takes what it takes
			_, _, _ = s.get("GET", "http://sandpit/v1/version", "", "")
		}
		if grown := int64(heapInUse()) - before; grown > int64(each*sent+len(conns)*free) {
			t.Errorf("%s %s holds %d bytes of %d that were sent", method, path, grown, sent)
		}
		for _, conn := range conns {
			_ = conn.Close()
		}
	}
	for _, r := range api.Routes() {
		path, sep := r.Path, "?"
		for _, p := range r.Query {
			if p.Required {
				path, sep = path+sep+p.Name+"="+map[bool]string{true: "/tmp/x", false: "0"}[p.Type == "string"], "&"
			}
		}
		try("", r.ID, r.Method, path)
	}
	for _, r := range e2bRoutes {
		try(e2b.Name, r.ID, cmp.Or(r.Method, "POST"), cmp.Or(r.Path, "/")+"?path=/tmp/x")
	}
	for _, r := range msbRoutes {
		try(microsandbox.Name, r.ID, cmp.Or(r.Method, "POST"), cmp.Or(r.Path, "/v1/sandboxes/by-name/half"))
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
