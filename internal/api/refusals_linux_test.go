package api_test

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/api"
	v1 "github.com/sandpit-dev/sandpit/internal/api/v1"
	"github.com/sandpit-dev/sandpit/internal/gate"
	"github.com/sandpit-dev/sandpit/internal/testkit"
)

// Every refusal has its status and code, and the one shape of errors.
func TestRefusals(t *testing.T) {
	s := serve(t, nil)
	json := map[string]string{"Content-Type": "application/json"}
	with := func(k, v string) map[string]string { return map[string]string{k: v} }
	for _, c := range []struct {
		name   string
		status int
		code   string
		ask    ask
	}{
		{"no key on TCP", 401, "unauthenticated", ask{method: "GET", path: "/v1/sandboxes", key: "none"}},
		{"a wrong key", 401, "unauthenticated", ask{method: "GET", path: "/v1/sandboxes", key: "wrong"}},
		{"a long key", 401, "unauthenticated", ask{method: "GET", path: "/v1/sandboxes", key: strings.Repeat("k", 600)}},
		{"a wrong key on the unix socket", 401, "unauthenticated", ask{method: "GET", path: "/v1/sandboxes", header: with("Authorization", "Bearer wrong")}},
		{"another host", 421, "host_refused", ask{method: "GET", path: "/v1/version", key: adminKey, header: with("Host", "evil.example")}},
		{"another host, unix", 421, "host_refused", ask{method: "GET", path: "/v1/version", header: with("Host", "evil.example")}},
		{"a host that only begins well", 421, "host_refused", ask{method: "GET", path: "/v1/version", key: adminKey, header: with("Host", "localhost.evil.example")}},
		{"a web page", 403, "origin_refused", ask{method: "GET", path: "/v1/version", key: adminKey, header: with("Origin", "https://evil.example")}},
		{"a page without a name", 403, "origin_refused", ask{method: "POST", path: "/v1/sandboxes", header: with("Origin", "null")}},
		{"a page of this machine", 403, "origin_refused", ask{method: "GET", path: "/v1/version", header: with("Origin", "http://localhost:3000")}},
		{"a cross-site request", 403, "origin_refused", ask{method: "GET", path: "/v1/version", header: with("Sec-Fetch-Site", "cross-site")}},
		{"a same-site request", 403, "origin_refused", ask{method: "GET", path: "/v1/version", header: with("Sec-Fetch-Site", "same-site")}},
		{"a WebSocket of a page", 403, "origin_refused", ask{method: "GET", path: "/v1/sandboxes/x/exec", header: map[string]string{"Origin": "https://evil.example", "Connection": "Upgrade", "Upgrade": "websocket"}}},
		{"no such path", 404, "no_route", ask{method: "GET", path: "/v2/sandboxes"}},
		{"no path", 404, "no_route", ask{method: "CONNECT", path: ""}},
		{"a path with an empty part", 404, "no_route", ask{method: "GET", path: "//v1/sandboxes", key: "none"}},
		{"a path upwards", 404, "no_route", ask{method: "GET", path: "/v1/../v1/sandboxes", key: "none"}},
		{"a path that stays", 404, "no_route", ask{method: "GET", path: "/v1/./sandboxes"}},
		{"a path with a slash at its end", 404, "no_route", ask{method: "GET", path: "/v1/sandboxes/"}},
		{"a field twice", 400, "invalid", ask{method: "POST", path: "/v1/sandboxes", body: `{"name":"x","name":"y"}`, header: json}},
		{"a field in another case", 400, "invalid", ask{method: "POST", path: "/v1/sandboxes", body: `{"NAME":"x"}`, header: json}},
		{"a time to come", 400, "invalid", ask{method: "GET", path: "/v1/audit?since=9999-01-01T00:00:00Z"}},
		{"no such method", 405, "method_not_allowed", ask{method: "PATCH", path: "/v1/sandboxes"}},
		{"keys of others", 403, "forbidden", ask{method: "GET", path: "/v1/keys", key: aliceKey}},
		{"audit of others", 403, "forbidden", ask{method: "GET", path: "/v1/audit", key: aliceKey}},
		{"figures of others", 403, "forbidden", ask{method: "GET", path: "/metrics", key: aliceKey}},
		{"a key by one who may not", 403, "forbidden", ask{method: "POST", path: "/v1/keys", key: aliceKey, body: v1.NewKey{}}},
		{"no such sandbox", 404, "not_found", ask{method: "GET", path: "/v1/sandboxes/none"}},
		{"no such key", 404, "not_found", ask{method: "DELETE", path: "/v1/keys/none"}},
		{"no such webhook", 404, "not_found", ask{method: "DELETE", path: "/v1/webhooks/none"}},
		{"an unknown field", 400, "invalid", ask{method: "POST", path: "/v1/sandboxes", body: `{"nome":"x"}`, header: json}},
		{"no JSON", 400, "invalid", ask{method: "POST", path: "/v1/sandboxes", body: `{"name":`, header: json}},
		{"a PUT of nothing", 400, "invalid", ask{method: "PUT", path: "/v1/sandboxes/none/egress", header: json}},
		{"a PUT of white space", 400, "invalid", ask{method: "PUT", path: "/v1/sandboxes/none/lifetime", body: " \n", header: json}},
		{"a list", 400, "invalid", ask{method: "POST", path: "/v1/sandboxes", body: `[]`, header: json}},
		{"two objects", 400, "invalid", ask{method: "POST", path: "/v1/sandboxes", body: `{}{}`, header: json}},
		{"a wrong type", 400, "invalid", ask{method: "POST", path: "/v1/sandboxes", body: `{"name":1}`, header: json}},
		{"a bad name", 400, "invalid", ask{method: "POST", path: "/v1/sandboxes", body: v1.Spec{Name: "../x"}}},
		{"a form", 415, "unsupported_media", ask{method: "POST", path: "/v1/sandboxes", body: `{}`, header: with("Content-Type", "text/plain")}},
		{"a compressed body", 415, "unsupported_media", ask{method: "POST", path: "/v1/sandboxes", body: gzipped(t, "{}"), header: map[string]string{"Content-Type": "application/json", "Content-Encoding": "gzip"}}},
		{"a compressed file", 415, "unsupported_media", ask{method: "PUT", path: "/v1/sandboxes/x/files?path=/x", body: "x", header: with("Content-Encoding", "gzip")}},
		{"a large body", 413, "too_large", ask{method: "POST", path: "/v1/sandboxes", body: `{"name":"` + strings.Repeat("x", 11<<20) + `"}`, header: json}},
		{"an unknown parameter", 400, "invalid", ask{method: "GET", path: "/v1/sandboxes?lable=a%3Db"}},
		{"a parameter where there is none", 400, "invalid", ask{method: "DELETE", path: "/v1/sandboxes/x?force=true"}},
		{"a parameter beside a body", 400, "invalid", ask{method: "POST", path: "/v1/sandboxes?name=x", body: v1.Spec{}}},
		{"a query that is none", 400, "invalid", ask{method: "GET", path: "/v1/version?%zz"}},
		{"a parameter twice", 400, "invalid", ask{method: "GET", path: "/v1/sandboxes?limit=1&limit=2"}},
		{"a bad parameter", 400, "invalid", ask{method: "GET", path: "/v1/sandboxes?limit=-1"}},
		{"a bad label", 400, "invalid", ask{method: "GET", path: "/v1/sandboxes?label==x"}},
		{"an unknown state", 400, "invalid", ask{method: "GET", path: "/v1/sandboxes?state=dead"}},
		{"a bad page", 400, "invalid", ask{method: "GET", path: "/v1/sandboxes?after=!"}},
		{"a missing parameter", 400, "invalid", ask{method: "GET", path: "/v1/sandboxes/x/files"}},
		{"no WebSocket", 426, "upgrade_required", ask{method: "GET", path: "/v1/sandboxes/x/ports/80/tcp"}},
		{"no port", 400, "invalid", ask{method: "GET", path: "/v1/sandboxes/x/ports/0/tcp"}},
		{"a registry that is away", 503, "unavailable", ask{method: "POST", path: "/v1/images/pull", body: v1.ImagePull{Image: "x"}}},
		{"no image", 404, "not_found", ask{method: "DELETE", path: "/v1/images?image=x"}},
		{"names of no image", 404, "not_found", ask{method: "POST", path: "/v1/images/tag", body: v1.ImageTag{Image: "saved:x", Names: []string{"y"}}}},
		{"a name of an image of others", 400, "invalid", ask{method: "POST", path: "/v1/images/tag", body: v1.ImageTag{Image: "debian:13", Names: []string{"y"}}}},
		{"no names of an image", 400, "invalid", ask{method: "POST", path: "/v1/images/tag", body: v1.ImageTag{Image: "saved:x"}}},
		{"too many names of an image", 400, "invalid", ask{method: "POST", path: "/v1/images/tag", body: v1.ImageTag{Image: "saved:x", Names: slices.Repeat([]string{"y"}, 33)}}},
		{"a long idempotency key", 400, "invalid", ask{method: "POST", path: "/v1/sandboxes", body: v1.Spec{}, header: with("Idempotency-Key", strings.Repeat("x", 256))}},
		{"a sandbox by header that is not there", 404, "not_found", ask{method: "GET", path: "/", header: map[string]string{"X-Sandpit-Sandbox": "x", "X-Sandpit-Port": "80"}}},
		{"a port by header that is none", 400, "invalid", ask{method: "GET", path: "/", header: map[string]string{"X-Sandpit-Sandbox": "x", "X-Sandpit-Port": "99999"}}},
		{"a port without a sandbox", 404, "not_found", ask{method: "GET", path: "/v1/keys", header: map[string]string{"X-Sandpit-Port": "80"}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			inner := *s
			inner.t = t
			inner.refused(c.status, c.code, c.ask)
		})
	}
	resp := s.do(ask{method: "PATCH", path: "/v1/sandboxes"})
	resp.Body.Close()
	if got := resp.Header.Get("Allow"); got != "GET, POST, DELETE" {
		t.Errorf("Allow is %q", got)
	}
	// What was refused is in the audit.
	var denied []string
	for _, e := range s.audit.all() {
		if !e.Allowed {
			denied = append(denied, e.Rule)
		}
	}
	for _, rule := range []string{"unauthenticated", "host_refused", "origin_refused", "forbidden"} {
		if !slices.Contains(denied, rule) {
			t.Errorf("the audit has no refusal by %s", rule)
		}
	}
}

// A refusal names what is wrong and what to do.
func TestWordsOfRefusals(t *testing.T) {
	s := serve(t, nil)
	sb := s.create("", v1.Spec{})
	var p v1.Process
	s.want(201, &p, ask{method: "POST", path: "/v1/sandboxes/" + sb.ID + "/processes", body: v1.Command{Argv: []string{"sleep", "7652"}}})
	signal := "/v1/sandboxes/" + sb.ID + "/processes/" + p.ID + "/signal"
	for _, c := range []struct {
		method, path, body string
		message, hint      string
	}{
		{"POST", execPath(sb), `{"argv":["a"],"script":"b"}`, "argv and a script exclude each other", "give one of them"},
		{"POST", execPath(sb), `{}`, "no program is given", "give argv or a script"},
		{"POST", execPath(sb), `{"argv":["a"],"timeout":-1}`, `"timeout" must not be negative`, "leave it out"},
		{"POST", execPath(sb), `{"argv":["a"],"nofile":-1}`, `"nofile" must not be negative`, "leave it out"},
		{"POST", execPath(sb), `{"argv":["a"],"cwd":"/"}`, `"cwd" is unknown`, "dir"},
		{"POST", "/v1/sandboxes", `{"memory":1}`, `"memory" is unknown`, "limits"},
		{"POST", signal, `{}`, `"signal" is missing`, "15 for SIGTERM"},
		{"POST", signal, `{"signal":65}`, `"signal" must be a number from 1 to 64`, "15 for SIGTERM"},
		{"POST", signal, `{"signal":"FOO"}`, `"signal" must be a number from 1 to 64`, "/docs"},
		{"DELETE", "/v1/sandboxes", "", "no filter is given", "all=true"},
		{"POST", "/v1/tickets", `{}`, `"path" is missing`, "/v1/events"},
	} {
		a := ask{method: c.method, path: c.path}
		if c.body != "" {
			a.body = c.body
		}
		if e := s.refused(400, "invalid", a); !strings.Contains(e.Message, c.message) || !strings.Contains(e.Hint, c.hint) {
			t.Errorf("%s %s %s: %q (hint: %s)", c.method, c.path, c.body, e.Message, e.Hint)
		}
	}
	client, base := s.http2()
	r, err := http.NewRequestWithContext(t.Context(), "GET", base+execPath(sb), http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("X-Sandpit-Key", adminKey)
	resp, err := client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if body, err := io.ReadAll(resp.Body); err != nil || resp.StatusCode != 400 || !strings.Contains(string(body), "this path opens a WebSocket") || !strings.Contains(string(body), "send a POST") {
		t.Errorf("a socket over HTTP/2: %s %s, %v", resp.Status, body, err)
	}
}

func gzipped(t *testing.T, text string) string {
	t.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	_, _ = io.WriteString(w, text)
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// What needs no key says nothing about anybody.
func TestOpenRoutes(t *testing.T) {
	s := serve(t, nil)
	for path, kind := range map[string]string{
		"/healthz": "application/json", "/v1/openapi.json": "application/openapi+json",
		"/docs": "text/html; charset=utf-8", "/docs/style.css": "text/css; charset=utf-8",
	} {
		status, body, h := s.get(ask{method: "GET", path: path, key: "none"})
		if status != 200 || h.Get("Content-Type") != kind || len(body) < 10 {
			t.Errorf("%s: %d %s", path, status, h.Get("Content-Type"))
		}
		if path == "/docs" && !strings.HasPrefix(h.Get("Content-Security-Policy"), "default-src 'none'") {
			t.Errorf("the page may do %q", h.Get("Content-Security-Policy"))
		}
	}
}

// A page that is allowed may use the API from a browser.
func TestAllowedOrigin(t *testing.T) {
	s := serve(t, func(o *options) { o.Origins = []string{"https://ui.example"} })
	header := map[string]string{"Origin": "https://ui.example"}
	h := s.want(200, nil, ask{method: "GET", path: "/v1/version", key: adminKey, header: header})
	if h.Get("Access-Control-Allow-Origin") != "https://ui.example" {
		t.Error(h)
	}
	s.want(204, nil, ask{method: "OPTIONS", path: "/v1/sandboxes", key: "none", header: map[string]string{"Origin": "https://ui.example", "Access-Control-Request-Method": "POST"}})
	s.refused(401, "unauthenticated", ask{method: "GET", path: "/v1/version", key: "none", header: header})
	s.refused(403, "origin_refused", ask{method: "GET", path: "/v1/version", key: adminKey, header: map[string]string{"Origin": "https://ui.example.evil.example"}})
}

// A key has a rate, which its owner alone feels.
func TestRate(t *testing.T) {
	const every = 1000 // seconds: the next comes long after this test
	s := serve(t, func(o *options) { o.Limits.Rate, o.Limits.Burst = 1.0/every, 3 })
	began := time.Now()
	for range 3 {
		s.want(200, nil, ask{method: "GET", path: "/v1/version", key: aliceKey})
	}
	_, _, h := s.get(ask{method: "GET", path: "/v1/version", key: aliceKey})
	s.refused(429, "rate_limited", ask{method: "GET", path: "/v1/version", key: aliceKey})
	if n, err := strconv.Atoi(h.Get("Retry-After")); err != nil || n > every || n < every-int(time.Since(began).Seconds())-1 {
		t.Errorf("Retry-After is %q, %v after the first request", h.Get("Retry-After"), time.Since(began))
	}
	s.want(200, nil, ask{method: "GET", path: "/v1/version", key: bobKey})
	for range 10 {
		s.want(200, nil, ask{method: "GET", path: "/v1/version"})
	}
}

// A key that sends too many requests, signals among them, can still end processes by a signal.
func TestFloodsLeaveRoomForSignals(t *testing.T) {
	const burst = 30
	s := serve(t, func(o *options) { o.Limits.Rate, o.Limits.Burst = 1e-6, burst })
	sb := s.create(aliceKey, v1.Spec{})
	path := "/v1/sandboxes/" + sb.ID + "/processes"
	var p [3]v1.Process
	for i := range p {
		s.want(201, &p[i], ask{method: "POST", path: path, key: aliceKey, body: v1.Command{Argv: []string{"sleep", "600"}}})
	}
	for range burst - 1 - len(p) {
		s.want(200, nil, ask{method: "GET", path: "/v1/version", key: aliceKey})
	}
	signal := func(i int, body any) ask {
		return ask{method: "POST", path: path + "/" + p[i].ID + "/signal", key: aliceKey, body: body}
	}
	for range burst {
		s.refused(429, "rate_limited", signal(0, v1.Signal{Signal: 28}))
	}
	for i, n := range []int{2, 15, 9} { // as many as burst/10
		s.want(204, nil, signal(i, v1.Signal{Signal: n}))
	}
	s.refused(429, "rate_limited", signal(0, v1.Signal{Signal: 9}))
}

// Open streams are bounded for each key and in all.
func TestStreamsAreBounded(t *testing.T) {
	s := serve(t, func(o *options) { o.Limits.Streams, o.Limits.TotalStreams = 2, 3 })
	var open []*http.Response
	for range 2 {
		open = append(open, s.do(ask{method: "GET", path: "/v1/events", key: aliceKey}))
	}
	s.refused(429, "too_many_streams", ask{method: "GET", path: "/v1/events", key: aliceKey})
	open = append(open, s.do(ask{method: "GET", path: "/v1/events", key: bobKey}))
	s.refused(503, "overloaded", ask{method: "GET", path: "/v1/events", key: bobKey})
	for _, resp := range open {
		resp.Body.Close()
	}
	eventually(t, "the streams are counted back", func() bool {
		resp := s.do(ask{method: "GET", path: "/v1/events", key: aliceKey})
		defer resp.Body.Close()
		return resp.StatusCode == 200
	})
}

// What can't be recorded is not done; what changes nothing is.
func TestAuditFailsClosed(t *testing.T) {
	s := serve(t, nil)
	s.audit.fail(errDisk)
	for _, r := range api.Routes() {
		if !r.Guarded || r.Upgrade {
			continue
		}
		path := strings.NewReplacer("{sb}", "x", "{p}", "1", "{id}", "x", "{port}", "80").Replace(r.Path)
		sep := "?"
		for _, p := range r.Query {
			if p.Required {
				path += sep + p.Name + "=" + "0"
				sep = "&"
			}
		}
		if r.ID == "renameFile" || r.ID == "copyFile" {
			continue // they look for the sandbox first; see below
		}
		a := ask{method: r.Method, path: path}
		if r.In != nil {
			a.body = map[string]any{}
		}
		if r.Vital {
			continue // see TestVitalRequestsWithoutAnAudit
		}
		s.refused(503, "audit_unavailable", a)
	}
	for _, path := range []string{"/v1/version", "/v1/sandboxes", "/v1/images"} {
		s.want(200, nil, ask{method: "GET", path: path})
	}
	s.audit.fail(nil)
	sb := s.create("", v1.Spec{})
	s.want(200, nil, ask{method: "PUT", path: "/v1/sandboxes/" + sb.ID + "/files?path=/tmp/a", body: "x"})
	s.audit.fail(errDisk)
	s.refused(503, "audit_unavailable", ask{method: "POST", path: "/v1/sandboxes/" + sb.ID + "/files/rename?from=/tmp/a&to=/tmp/b"})
	s.refused(503, "audit_unavailable", ask{method: "POST", path: "/v1/sandboxes/" + sb.ID + "/files/copy?from=/tmp/a&to=/tmp/b"})
	s.refused(503, "audit_unavailable", ask{method: "POST", path: "/v1/sandboxes/" + sb.ID + "/exec", body: v1.Exec{Command: v1.Command{Script: "touch /tmp/c"}}})
	s.audit.fail(nil)
	var list v1.FileList
	s.want(200, &list, ask{method: "GET", path: "/v1/sandboxes/" + sb.ID + "/files/list?path=/tmp"})
	if len(list.Entries) != 1 || list.Entries[0].Name != "a" {
		t.Errorf("something was done all the same: %+v", list)
	}
}

// A call is recorded before it takes effect and when it has ended, without what
// may be secret.
func TestAuditTellsAll(t *testing.T) {
	s := serve(t, nil)
	sb := s.create(aliceKey, v1.Spec{Name: "audited", Env: v1.Env{List: []string{"TOKEN=hush-env"}}})
	s.want(200, nil, ask{method: "POST", path: "/v1/sandboxes/audited/exec", key: aliceKey, body: v1.Exec{Command: v1.Command{Argv: []string{"echo", "hush-arg"}, Env: v1.Env{List: []string{"X=hush-env"}}}, StdinData: []byte("hush-in")}})
	s.want(200, nil, ask{method: "PUT", path: "/v1/sandboxes/audited/files?path=/tmp/f", key: aliceKey, body: "hush-content"})
	entries := s.audit.all()
	for _, action := range []string{"createSandbox", "exec", "writeFile"} {
		var phases []string
		for _, e := range entries {
			if e.Action != action {
				continue
			}
			phases = append(phases, e.Phase)
			if e.Caller != "alice" || e.Namespace != "alice" || e.Key != "alice" || e.RequestID == "" || !e.Allowed {
				t.Errorf("%+v", e)
			}
			if e.Phase == "end" && (e.Status < 200 || e.Status > 201) {
				t.Errorf("%+v", e)
			}
		}
		if !slices.Equal(phases, []string{"intent", "end"}) {
			t.Errorf("%s is recorded as %v", action, phases)
		}
	}
	text := fmt.Sprintf("%+v", entries)
	if strings.Contains(text, "hush") || strings.Contains(text, aliceKey) {
		t.Error("the audit has a secret")
	}
	if !strings.Contains(text, sb.ID) || !strings.Contains(text, `program "echo"`) || !strings.Contains(text, "/tmp/f") {
		t.Errorf("the audit does not say on what: %s", text)
	}
}

// A failure of the server's own is told to an administrator alone.
func TestInternalErrorsAreKept(t *testing.T) {
	s := serve(t, nil)
	s.keys.mu.Lock()
	s.keys.err = &fs.PathError{Op: "reading", Path: "/secret/place", Err: errDisk}
	s.keys.mu.Unlock()
	e := s.refused(500, "internal", ask{method: "GET", path: "/v1/version", key: aliceKey})
	if strings.Contains(fmt.Sprint(e), "/secret") {
		t.Error(e)
	}
	if log := s.log.String(); !strings.Contains(log, "level=ERROR") || !strings.Contains(log, "/secret/place") || !strings.Contains(log, e.RequestID) {
		t.Error("the log does not say what failed")
	}
}

// The same create sent again is carried out once.
func TestIdempotency(t *testing.T) {
	s := serve(t, nil)
	spec := v1.Spec{Labels: map[string]string{"a": "b"}}
	probe := s.create("", v1.Spec{})
	s.want(204, nil, ask{method: "DELETE", path: "/v1/sandboxes/" + probe.ID})
	create := func(key string, spec v1.Spec) ask {
		return ask{method: "POST", path: "/v1/sandboxes", body: spec, header: map[string]string{"Idempotency-Key": key}}
	}
	var first, again v1.Sandbox
	h := s.want(201, &first, create("k1", spec))
	if h.Get("Idempotent-Replayed") != "" || h.Get("Location") != "/v1/sandboxes/"+first.ID {
		t.Error(h)
	}
	h = s.want(201, &again, create("k1", spec))
	if h.Get("Idempotent-Replayed") != "true" || h.Get("Location") != "/v1/sandboxes/"+first.ID || again.ID != first.ID {
		t.Errorf("%v %s is not %s", h, again.ID, first.ID)
	}
	if ends := s.ends("createSandbox"); ends[len(ends)-1].Sandbox != first.ID {
		t.Errorf("the audit says %+v", ends[len(ends)-1])
	}
	s.refused(422, "idempotency_mismatch", create("k1", v1.Spec{Name: "other"}))
	// One that failed may be tried again.
	s.refused(400, "invalid", create("k2", v1.Spec{Name: "!"}))
	s.refused(400, "invalid", create("k2", v1.Spec{Name: "!"}))
	// The server died after it had made the sandbox: it is found.
	s.repeats.mu.Lock()
	s.repeats.all["local/k1"].answered = false
	s.repeats.mu.Unlock()
	h = s.want(201, &again, create("k1", spec))
	if h.Get("Idempotent-Replayed") != "true" || again.ID != first.ID {
		t.Errorf("%v %s is not %s", h, again.ID, first.ID)
	}
	// It is found by what it was made for, not by its name, which may be that of another.
	for _, name := range []string{"box", "free"} {
		s.repeats.mu.Lock()
		began, _ := json.Marshal(v1.Spec{Name: name})
		s.repeats.all["local/"+name] = &repeat{Repeatable: api.Repeatable{Hash: sha256.Sum256(append([]byte("/v1/sandboxes\n"), began...)), Resource: "/" + name}}
		s.repeats.mu.Unlock()
	}
	s.want(201, nil, ask{method: "POST", path: "/v1/sandboxes", body: v1.Spec{Name: "box"}})
	s.refused(409, "exists", create("box", v1.Spec{Name: "box"}))
	if h = s.want(201, nil, create("free", v1.Spec{Name: "free"})); h.Get("Idempotent-Replayed") != "" {
		t.Error(h)
	}
	// Without a mark nobody knows whether the sandbox was made.
	s.repeats.mu.Lock()
	began, _ := json.Marshal(v1.Spec{})
	s.repeats.all["local/k0"] = &repeat{Repeatable: api.Repeatable{Hash: sha256.Sum256(append([]byte("/v1/sandboxes\n"), began...))}}
	s.repeats.mu.Unlock()
	s.refused(409, "outcome_unknown", create("k0", v1.Spec{}))
	// Many at once.
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			status, body, _ := s.get(create("k3", spec))
			if status != 201 && status != 409 {
				t.Errorf("%d %s", status, body)
			}
		})
	}
	wg.Wait()
	var list v1.SandboxList
	s.want(200, &list, ask{method: "GET", path: "/v1/sandboxes?label=a%3Db"})
	if len(list.Sandboxes) != 2 {
		t.Errorf("there are %d sandboxes", len(list.Sandboxes))
	}
}

// vague is a backend whose sandboxes can't be described.
type vague struct{ api.Backend }

type vagueSandbox struct{ sandpit.Sandbox }

func (vague) Marked(gate.Caller, string) (sandpit.Sandbox, error) { return vagueSandbox{}, nil }

func (vagueSandbox) ID() string { return "vague" }

func (vagueSandbox) Info(context.Context) (sandpit.Info, error) {
	return sandpit.Info{}, sandpit.ErrClosed
}

// A key is not in use behind a request that fails, however it does. If the sandbox was made, the key
// remains that of the sandbox.
func TestIdempotencyKeyIsGivenBack(t *testing.T) {
	s := serve(t, func(o *options) { o.Backend = vague{o.Backend} })
	begun, _ := json.Marshal(v1.Spec{Name: "box"})
	s.repeats.all["local/k"] = &repeat{Repeatable: api.Repeatable{Hash: sha256.Sum256(append([]byte("/v1/sandboxes\n"), begun...)), Resource: "/mark"}}
	again := ask{method: "POST", path: "/v1/sandboxes", body: v1.Spec{Name: "box"}, header: map[string]string{"Idempotency-Key": "k"}}
	for range 2 {
		s.refused(410, "closed", again)
	}
	s.repeats.mu.Lock()
	defer s.repeats.mu.Unlock()
	if r := s.repeats.all["local/k"]; r == nil || r.running || r.Resource != "/mark" {
		t.Errorf("of the key is kept: %+v", r)
	}
}

// dial opens a connection of a client that does things by hand.
func (s *service) dial() net.Conn { return s.dialOn("unix") }

func (s *service) dialOn(network string) net.Conn {
	s.t.Helper()
	address := s.path
	if network == "tcp" {
		address = strings.TrimPrefix(s.base, "http://")
	}
	conn, err := net.Dial(network, address)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(testkit.Patience))
	return conn
}

// Headers are bounded, and a body that stops coming ends its request.
func TestSlowAndLargeRequests(t *testing.T) {
	s := serve(t, func(o *options) { o.Limits.Stall = 300 * time.Millisecond })
	conn := s.dial()
	fmt.Fprintf(conn, "GET /v1/version HTTP/1.1\r\nHost: sandpit\r\nX: %s\r\n\r\n", strings.Repeat("x", 64<<10))
	line, err := bufio.NewReader(conn).ReadString('\n')
	if err != nil || !strings.Contains(line, "431") {
		t.Errorf("large headers: %q, %v", line, err)
	}
	conn = s.dial()
	fmt.Fprintf(conn, "POST /v1/sandboxes HTTP/1.1\r\nHost: sandpit\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{")
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusRequestTimeout {
		t.Errorf("a body that stops: %s", resp.Status)
	}
	conn = s.dial()
	fmt.Fprint(conn, "POST /v1/sandboxes HTTP/1.1\r\nHost: sandpit\r\nTransfer-Encoding: chunked\r\n\r\nno chunk\r\n")
	if resp, err = readAnswer(conn); err != nil || resp.StatusCode != http.StatusBadRequest {
		t.Errorf("a body that is none: %v, %v", resp, err)
	}
	// Others were served meanwhile.
	s.want(200, nil, ask{method: "GET", path: "/v1/version"})
}

// A body that is cut is a typed error, if its client still reads, and leaves nothing behind.
func TestCutBodies(t *testing.T) {
	s := serve(t, nil)
	sb := s.create("", v1.Spec{})
	one := "/v1/sandboxes/" + sb.ID
	for name, c := range map[string]struct{ method, path, kind, body string }{
		"create":    {"POST", "/v1/sandboxes", "application/json", `{"name":"cut"`},
		"whole":     {"POST", "/v1/sandboxes", "application/json", `{"name":"cut"}`}, // and yet shorter than was said
		"exec":      {"POST", one + "/exec", "application/json", `{"argv":["touch","/tmp/cut"]`},
		"process":   {"POST", one + "/processes", "application/json", `{"argv":["touch","/tmp/cut"]`},
		"multipart": {"POST", one + "/exec", "multipart/form-data; boundary=b", "--b\r\nContent-Disposition: form-data; name=\"command\"\r\n\r\n{\"argv\":[\"touch\","},
		"file":      {"PUT", one + "/files?path=/tmp/cut", "application/octet-stream", "half"},
		"change":    {"PATCH", one, "application/json", `{"name":"cut"`},
	} {
		conn := s.dial()
		fmt.Fprintf(conn, "%s %s HTTP/1.1\r\nHost: sandpit\r\nContent-Type: %s\r\nContent-Length: 1000\r\n\r\n%s", c.method, c.path, c.kind, c.body)
		if err := conn.(interface{ CloseWrite() error }).CloseWrite(); err != nil {
			t.Fatal(err)
		}
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			continue // the server may close the connection of a client that is gone
		}
		var e v1.Error
		if err := json.NewDecoder(resp.Body).Decode(&e); resp.StatusCode != 499 || e.Code != "canceled" {
			t.Errorf("%s: %s %+v, %v", name, resp.Status, e, err)
		}
		_ = resp.Body.Close()
	}
	s.refused(404, "not_found", ask{method: "GET", path: "/v1/sandboxes/cut"})
	s.refused(404, "file_not_found", ask{method: "GET", path: one + "/files?path=/tmp/cut"})
	if got := s.pages(one+"/processes", "processes", 100); len(got) > 0 {
		t.Errorf("processes were started: %v", got)
	}
	var box v1.Sandbox
	s.want(200, &box, ask{method: "GET", path: one})
	if box.Name != sb.Name {
		t.Errorf("the sandbox was renamed to %q", box.Name)
	}
}

// While the server ends, what goes on may end, and nothing begins.
func TestDraining(t *testing.T) {
	s := serve(t, nil)
	sb := s.create("", v1.Spec{})
	follows := s.do(ask{method: "GET", path: "/v1/events"})
	defer follows.Body.Close()
	type answer struct {
		out v1.Executed
		err error
	}
	done := make(chan answer)
	go func() {
		var a answer
		resp, err := s.try(context.Background(), ask{method: "POST", path: "/v1/sandboxes/" + sb.ID + "/exec", body: v1.Exec{Command: v1.Command{Script: "echo begun > /tmp/begun; sleep 0.5; echo whole"}}})
		if err != nil {
			done <- answer{err: err}
			return
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		if a.err = err; err == nil {
			strict(t, body, &a.out)
		}
		done <- a
	}()
	eventually(t, "the command runs", func() bool {
		status, _, _ := s.get(ask{method: "GET", path: "/v1/sandboxes/" + sb.ID + "/files/stat?path=/tmp/begun"})
		return status == 200
	})
	closed := make(chan error)
	go func() { closed <- s.gate.Close(context.Background()) }()
	if _, err := io.ReadAll(follows.Body); err != nil {
		t.Errorf("what only follows is not ended well: %v", err)
	}
	s.refused(503, "draining", ask{method: "GET", path: "/v1/version"})
	if a := <-done; a.err != nil || a.out.Stdout != "whole\n" {
		t.Errorf("what was being done is not done: %+v", a)
	}
	if err := <-closed; err != nil {
		t.Error(err)
	}
}

// What does not end by itself is broken off, and told so.
func TestDrainingBreaksOff(t *testing.T) {
	s := serve(t, nil)
	sb := s.create("", v1.Spec{})
	resp := s.do(ask{method: "POST", path: "/v1/sandboxes/" + sb.ID + "/exec", body: v1.Exec{Command: v1.Command{Script: "echo begun; exec sleep 600"}}, header: map[string]string{"Accept": "text/event-stream"}})
	defer resp.Body.Close()
	br := bufio.NewReader(resp.Body)
	for line := ""; !strings.Contains(line, "begun"); {
		var err error
		if line, err = br.ReadString('\n'); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	if err := s.gate.Close(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Close says %v", err)
	}
	rest, err := io.ReadAll(br)
	if err != nil || !strings.Contains(string(rest), "event: end\ndata: {\"reason\":\"drained\"") || !strings.Contains(string(rest), `"code":"unavailable"`) {
		t.Errorf("%v: %s", err, rest)
	}
	// It is the server that ends, not the command.
	box, err := s.engine.As("local", defaultPolicy()).Get(t.Context(), sb.ID)
	if err != nil {
		t.Fatal(err)
	}
	all, err := box.Processes(t.Context())
	if err != nil || len(all) != 1 || all[0].Result != nil {
		t.Errorf("its processes are %+v, %v", all, err)
	}
}

// TestDrainingEndsSilentSockets records the ends of calls whose WebSocket clients never
// answer the close frame: of one that the gate breaks off, and of one whose process has
// ended before.
func TestDrainingEndsSilentSockets(t *testing.T) {
	s := serve(t, nil)
	sb := s.create("", v1.Spec{})
	var conns [2]*websocket.Conn
	for i, command := range []string{`{"argv":["cat"],"stdin":true}`, `{"argv":["true"]}`} {
		conns[i] = s.socket(t.Context(), "/v1/sandboxes/"+sb.ID+"/exec", "")
		if err := conns[i].Write(t.Context(), websocket.MessageText, []byte(command)); err != nil {
			t.Fatal(err)
		}
	}
	receive(t, conns[0], v1.FrameStarted, "")
	receive(t, conns[1], v1.FrameResult, "")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.gate.Close(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("Close says %v", err)
	}
	if n := s.ended("execSocket"); n != 2 {
		t.Errorf("the audit has %d ends of the calls", n)
	}
	if end := ended(t, conns[0], websocket.StatusGoingAway); end.Reason != v1.EndDrained || end.Error == nil || end.Error.Code != "unavailable" {
		t.Errorf("it ended with %+v", end)
	}
}

// A stop without grace kills at once; one that says nothing of it gives time.
func TestStopWithoutGrace(t *testing.T) {
	s := serve(t, nil)
	sb := s.create("", v1.Spec{})
	one := "/v1/sandboxes/" + sb.ID
	for body, want := range map[string]int{`{"grace":0}`: 404, `{"grace":20}`: 200, `{}`: 200} {
		s.want(201, nil, ask{method: "POST", path: one + "/processes", body: v1.Command{Script: `trap "touch /tmp/term; exit" TERM; touch /tmp/begun; while :; do sleep 0.05; done`}})
		eventually(t, "it has begun", func() bool {
			status, _, _ := s.get(ask{method: "GET", path: one + "/files/stat?path=/tmp/begun"})
			return status == 200
		})
		s.want(200, nil, ask{method: "POST", path: one + "/stop", body: body, header: map[string]string{"Content-Type": "application/json"}})
		s.want(200, nil, ask{method: "POST", path: one + "/start"})
		if status, answer, _ := s.get(ask{method: "GET", path: one + "/files/stat?path=/tmp/term"}); status != want {
			t.Errorf("after %s: %d %s", body, status, answer)
		}
		s.want(200, nil, ask{method: "POST", path: execPath(sb), body: v1.Exec{Command: v1.Command{Script: "rm -f /tmp/term /tmp/begun"}}})
	}
	for _, body := range []string{`{"grace":-1}`, `{"grace":601}`} {
		s.refused(400, "invalid", ask{method: "POST", path: one + "/stop", body: body, header: map[string]string{"Content-Type": "application/json"}})
	}
}

// A path with a slash too many is said to have it, and no other.
func TestSlashAtTheEnd(t *testing.T) {
	s := serve(t, nil)
	for path, want := range map[string]bool{"/v1/sandboxes/": true, "/v1/none/": false, "/v1/none": false} {
		status, body, _ := s.get(ask{method: "GET", path: path})
		if status != 404 || strings.Contains(string(body), "remove the trailing slash") != want {
			t.Errorf("%s: %d %s", path, status, body)
		}
	}
}
