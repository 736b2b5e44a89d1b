package server_test

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	neturl "net/url"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
	v1 "github.com/sandpit-dev/sandpit/internal/api/v1"
	"github.com/sandpit-dev/sandpit/internal/dialect"
	"github.com/sandpit-dev/sandpit/internal/dialect/e2b"
	"github.com/sandpit-dev/sandpit/internal/network"
	"github.com/sandpit-dev/sandpit/internal/server"
	"github.com/sandpit-dev/sandpit/internal/testkit"
)

// baseImages is a policy file in which the images from which SDKs build templates are one that needs no download.
const baseImages = `aliases:
  python:3: host
  debian:stable: host
  ubuntu:latest: host
  node:lts: host
  oven/bun:latest: host
  fedora:44: host
  alpine:3.24: host
  archlinux:latest: host
`

// withDialect starts the server with a listener for a dialect, and returns its URL and a key in the form of
// its clients. It skips the test where no sandbox can be made.
func (s *served) withDialect(d dialect.Dialect) (url, key string) {
	s.t.Helper()
	at := testkit.Address(s.t)
	s.settings.Listen = append(s.settings.Listen, server.Listen{Address: server.Address{Network: "tcp", Host: at}, Service: d.Name})
	s.change = func(o *server.Options) { o.Dialects, o.Network = []dialect.Dialect{d}, network.InProcess{} }
	s.start()
	c := s.unix()
	defer c.Close()
	create(s.t, c, "probe")
	return "http://" + at, s.makeKey(v1.NewKey{Namespace: d.Name, Format: d.Name}).Secret
}

// withE2B is withDialect for clients of E2B.
func (s *served) withE2B() (url, key string) {
	s.t.Helper()
	return s.withDialect(e2b.New())
}

// The SDKs of E2B work unmodified: each runs programs that call what a server can answer, and
// check results and errors. docs/COMPATIBILITY.md has what comes of it.
func TestE2BClients(t *testing.T) {
	s := newServed(t)
	s.policy(baseImages)
	url, key := s.withE2B()
	env := []string{"E2B_API_URL=" + url, "E2B_SANDBOX_URL=" + url, "E2B_API_KEY=" + key}

	t.Run("JavaScript", func(t *testing.T) {
		npm, node := testkit.NeedProgram(t, "npm"), testkit.NeedProgram(t, "node")
		testkit.NeedProgram(t, "git") // which sandboxes of the host's files have, too
		g := newGenerator(t, "e2b-javascript", env)
		g.modules(npm)
		compatible(t, g.run(node, "scenario.mjs"), g.run(node, "code.mjs"), g.run(node, "templates.mjs"))
	})

	t.Run("Python", func(t *testing.T) {
		python := testkit.NeedProgram(t, "python3")
		testkit.NeedProgram(t, "git")
		g := newGenerator(t, "e2b-python", env)
		bin := filepath.Join(g.venv(python), "python")
		for _, form := range []string{"sync", "async"} {
			t.Run(form, func(t *testing.T) {
				if form == "async" {
					testkit.NeedLong(t, "it repeats what the synchronous classes do, with other classes of the same SDK")
				}
				own := *g
				own.t = t
				run := func(program string) string {
					return own.run(bin, "-X", "faulthandler", program, form)
				}
				compatible(t, run("scenario.py"), run("code.py"), run("templates.py"))
			})
		}
	})
}

// e2bCall sends a request to E2B's API, and wants a status and a text in the answer, which it returns.
func (s *served) e2bCall(t *testing.T, status int, text, method, url, body string, headers ...string) string {
	t.Helper()
	got, answer, _ := s.get(method, url, "", body, headers...)
	if got != status || !strings.Contains(answer, text) {
		t.Errorf("%s %s %.80q: %d %q, want %d %s", method, url, body, got, answer, status, text)
	}
	return answer
}

// envelope returns a message of a Connect stream.
func envelope(flags byte, message string) string {
	head := binary.BigEndian.AppendUint32([]byte{flags}, uint32(len(message)))
	return string(head) + message
}

// A create for which there is no room fails soon, with the reason, in the form that SDKs show.
func TestE2BWithoutRoom(t *testing.T) {
	t.Parallel()
	s := newServed(t)
	s.settings.Sandboxes = 1 // which is there
	url, key := s.withE2B()
	s.e2bCall(t, 429, "this server is full", "POST", url+"/v2/sandboxes", `{"templateID":"base"}`, "X-API-KEY", key)
}

// Requests that no SDK sends get an error in the form that the SDKs show, and nobody gets at the
// sandbox of another key.
func TestE2BBadInput(t *testing.T) {
	s := newServed(t)
	url, key := s.withE2B()
	call := func(status int, text, method, path, body string, headers ...string) string {
		t.Helper()
		return s.e2bCall(t, status, text, method, url+path, body, headers...)
	}
	other := s.keyOf("other", "")
	var made struct{ SandboxID, EnvdAccessToken, TrafficAccessToken string }
	if err := json.Unmarshal([]byte(call(201, "", "POST", "/sandboxes", `{"templateID":"base","timeout":600,"unknown":1}`, "X-API-KEY", key)), &made); err != nil {
		t.Fatal(err)
	}
	one, token := "/sandboxes/"+made.SandboxID, made.EnvdAccessToken
	if _, page, _ := s.get("GET", "http://sandpit/metrics", "", ""); !strings.Contains(page, `sandpit_ignored_fields_total{operation="e2b.createSandboxV1"} 1`) {
		t.Errorf("the metrics lack the ignored field:\n%s", page)
	}

	for _, limit := range []string{"0", "-1", "101", "x", "1.5", ""} { // as E2B
		status, text := 400, `from 1 to 100 (ask for further pages with nextToken)`
		if limit == "" {
			status, text = 200, made.SandboxID
		}
		call(status, text, "GET", "/v2/sandboxes?limit="+limit, "", "X-API-KEY", key)
	}
	call(200, made.SandboxID, "GET", "/v2/sandboxes?limit=100", "", "X-API-KEY", key)
	call(401, `{"code":401,"message":"the request has no key`, "GET", one, "")
	call(401, `{"code":401,`, "GET", one, "", "X-API-KEY", "e2b_00")
	call(401, `{"code":401,`, "GET", one, "", "X-API-KEY", token)
	for _, path := range []string{one, "/sandboxes/nonesuch"} {
		call(404, `{"code":404,`, "GET", path, "", "X-API-KEY", other)
		call(404, `{"code":404,`, "DELETE", path, "", "X-API-KEY", other)
		call(404, `{"code":404,`, "POST", path+"/pause", "{}", "X-API-KEY", other)
		call(404, `{"code":404,`, "POST", "/v2"+path+"/connect", `{"timeout":1}`, "X-API-KEY", other)
	}
	call(404, `"message":"the path does not exist`, "GET", "/v7/sandboxes", "", "X-API-KEY", key)
	for body, want := range map[string]string{
		`{"templateID":"base"`:               `{"code":400,`,
		`[]`:                                 `it must be an object`,
		`{"templateID":5}`:                   `\"templateID\" must be a string`,
		`{"templateID":"base","timeout":-1}`: `{"code":400,`,
		`{"templateID":"base","network":{"deny":1}}`: `unknown field \"deny\"`,
	} {
		call(400, want, "POST", "/v2/sandboxes", body, "X-API-KEY", key)
	}
	call(413, `{"code":413,`, "POST", "/v2/sandboxes", `{"x":"`+strings.Repeat("x", 5<<20)+`"}`, "X-API-KEY", key)
	call(404, `nonesuch`, "POST", "/v2/sandboxes", `{"templateID":"nonesuch"}`, "X-API-KEY", key)
	for _, body := range []string{`"volumeMounts":[{}]`, `"mcp":{}`, `"iam":{}`, `"autoPauseMemory":false`, `"network":{"egressProxy":{"address":"a:1"}}`, `"network":{"rules":{"a":[]}}`, `"network":{"maskRequestHost":"x"}`} {
		call(501, `not supported`, "POST", "/v2/sandboxes", `{"templateID":"base",`+body+`}`, "X-API-KEY", key)
	}

	list, start := "/process.Process/List", "/process.Process/Start"
	mine := []string{"E2b-Sandbox-Id", made.SandboxID, "X-Access-Token", token}
	call(200, `{"processes":[]}`, "POST", list, "{}", mine...)
	call(200, `{"processes":[]}`, "POST", list, "{}", mine[2:]...)
	call(204, "", "GET", "/health", "", mine...)
	call(401, `{"code":"unauthenticated",`, "POST", list, "{}", mine[:2]...)
	call(401, `{"code":"unauthenticated",`, "POST", list, "{}", "E2b-Sandbox-Id", "nonesuch", "X-Access-Token", token)
	call(401, `{"code":"unauthenticated",`, "POST", list, "{}", append(mine[:2:2], "X-Access-Token", token+"x")...)
	call(502, `{"code":"unavailable",`, "POST", list, "{}", "E2b-Sandbox-Id", made.SandboxID, "X-API-KEY", other)
	call(502, `{"code":502,`, "GET", "/health", "", "E2b-Sandbox-Id", made.SandboxID, "X-API-KEY", other)
	call(400, `{"code":"invalid_argument",`, "POST", list, `{"x`, mine...)
	call(404, `{"code":"unimplemented",`, "POST", "/process.Process/Nothing", `{}`, mine...)
	call(404, `{"code":"not_found",`, "POST", "/process.Process/SendInput", `{"process":{"pid":1}}`, mine...)
	call(400, `{"code":"invalid_argument",`, "POST", "/process.Process/SendSignal", `{"process":{"pid":1},"signal":"SIGNAL_X"}`, mine...)
	stream := append(mine, "Content-Type", "application/connect+json")
	for body, want := range map[string]string{
		"":                       "invalid_argument",
		"\x00\x00\x00\x00":       "invalid_argument",
		"\x00\xff\xff\xff\xff{}": "invalid_argument",
		envelope(1, "{}"):        "invalid_argument",
		envelope(0, "{"):         "invalid_argument",
		envelope(0, "{}") + "x":  "invalid_argument",
		envelope(0, `{"process":{"cmd":"/nonesuch"}}`): "invalid_argument",
	} {
		answer := call(200, `{"error":{"code":"`+want+`",`, "POST", start, body, stream...)
		if !strings.HasPrefix(answer, "\x02") {
			t.Errorf("%q does not end with an error: %q", body, answer)
		}
	}
	nobody := append(mine[:4:4], "Authorization", "Basic "+base64.StdEncoding.EncodeToString([]byte("nonesuch:")))
	call(200, `{"error":{"code":"unauthenticated","message":"starting a process: unknown user \"nonesuch\"`, "POST", start, envelope(0, `{"process":{"cmd":"/bin/true"}}`), append(nobody[:6:6], "Content-Type", "application/connect+json")...)
	call(401, `{"code":"unauthenticated",`, "POST", "/filesystem.Filesystem/Stat", `{"path":"/tmp"}`, nobody...)
	call(401, `{"code":401,`, "GET", "/files?path=/etc/hostname&username=nonesuch", "", mine...)
	call(401, `{"code":401,`, "POST", "/files?path=/tmp/x&username=nonesuch", "x", append(mine, "Content-Type", "application/octet-stream")...)
	answer := call(200, `{"event":{"end":{"exitCode":0,"exited":true,`, "POST", start, envelope(0, `{"process":{"cmd":"/bin/echo","args":["hi"]},"stdin":false}`), stream...)
	if want := `{"event":{"data":{"stdout":"` + base64.StdEncoding.EncodeToString([]byte("hi\n")) + `"}}}`; !strings.Contains(answer, want) || !strings.HasSuffix(answer, envelope(2, "{}")) {
		t.Errorf("the stream is %q, without %s", answer, want)
	}

	form := append(mine, "Content-Type", "multipart/form-data; boundary=b")
	call(200, `[{"path":"/tmp/x","name":"x","type":"file"}]`, "POST", "/files?path=/tmp/x&username=user", "content", append(mine, "Content-Type", "application/octet-stream")...)
	call(200, "content", "GET", "/files?path=/tmp/x", "", mine...)
	call(200, `[]`, "POST", "/files", "--b--\r\n", form...)
	call(404, `{"code":404,`, "GET", "/files?path=/nonesuch", "", mine...)
	call(401, `{"code":401,`, "GET", "/files?path=/tmp/x", "", mine[:2]...)
	call(502, `{"code":502,`, "GET", "/files?path=/tmp/x", "", "E2b-Sandbox-Id", made.SandboxID, "X-API-KEY", other)
	for _, x := range [][]string{ // headers, then the body
		append(mine, "x"),
		append(form, "x"),
		append(form, "--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"/tmp/y\"\r\n\r\nhalf"),
		append(form, "--b\r\nContent-Disposition: form-data; name=\"file\"\r\n\r\nx\r\n--b--\r\n"),
		append(mine, "Content-Encoding", "gzip", "x"),
	} {
		call(400, `{"code":400,`, "POST", "/files", x[len(x)-1], x[:len(x)-1]...)
	}
	call(404, `{"code":404,`, "GET", "/files?path=/tmp/y", "", mine...)
	call(415, `{"code":415,`, "POST", "/files?path=/tmp/y", "x", append(mine, "Content-Encoding", "br")...)
	for _, x := range [][2]string{{"X-Metadata-A", "ü"}, {"X-Metadata-A", strings.Repeat("b", 4096)}, {"X-Metadata-" + strings.Repeat("a", 247), "b"}} {
		call(400, `{"code":400,`, "POST", "/files?path=/tmp/y", "x", append(mine, x[0], x[1])...)
	}
	call(404, `{"code":404,`, "GET", "/files?path=/tmp/y", "", mine...)
	call(200, `[{"path":"/tmp/y","name":"y","type":"file","metadata":{"a":"b"}}]`, "POST", "/files?path=/tmp/y", "x", append(mine, "X-Metadata-A", "b")...)
	call(200, `"metadata":{"a":"b"}}}`, "POST", "/filesystem.Filesystem/Stat", `{"path":"/tmp/y"}`, mine...)
	call(400, `{"code":"invalid_argument",`, "POST", "/filesystem.Filesystem/ListDir", `{"path":"/etc/passwd"}`, mine...)
	call(400, `{"code":"invalid_argument","message":"remove /:`, "POST", "/filesystem.Filesystem/Remove", `{"path":"/"}`, mine...)
	call(404, `{"code":"not_found",`, "POST", "/filesystem.Filesystem/GetWatcherEvents", `{"watcherId":"x"}`, mine...)

	contexts := func(status int, text string, headers ...string) {
		t.Helper()
		call(status, text, "GET", "/contexts", "", append(headers, "E2b-Sandbox-Id", made.SandboxID)...)
	}
	contexts(200, "[]", "X-Access-Token", token)
	contexts(200, "[]", "E2B-Traffic-Access-Token", made.TrafficAccessToken)
	contexts(401, `{"code":401,`)
	contexts(401, `{"code":401,`, "E2B-Traffic-Access-Token", token)
	contexts(401, `{"code":401,`, "X-Access-Token", made.TrafficAccessToken)
	call(401, `{"code":"unauthenticated",`, "POST", list, "{}", "E2b-Sandbox-Id", made.SandboxID, "E2B-Traffic-Access-Token", made.TrafficAccessToken)
	call(404, `{"code":404,`, "POST", "/execute", `{"code":"1","context_id":"nonesuch"}`, mine...)
	call(400, `{"code":400,`, "POST", "/execute", `{"code":"1","language":"cobol"}`, mine...)

	admin := s.unix()
	defer admin.Close()
	var entries v1.AuditList
	if err := admin.Call(t.Context(), "GET", "/v1/audit?action=e2b.startProcess&sandbox="+made.SandboxID, nil, &entries); err != nil || len(entries.Entries) == 0 || !strings.Contains(entries.Entries[len(entries.Entries)-1].Detail, "program \"/bin/echo\" with ") {
		t.Errorf("the audit has %v, %v", entries.Entries, err)
	}
	call(204, "", "DELETE", one, "", "X-API-KEY", key)
	call(502, `{"code":502,`, "GET", "/health", "", mine...)
	call(404, `{"code":404,`, "DELETE", one, "", "X-API-KEY", key)
}

// A sandbox that pauses at the end of its time counts as paused from then on, also before the engine has paused it.
func TestE2BPausedAtItsEnd(t *testing.T) {
	s := newServed(t)
	url, key := s.withE2B()
	mine := []string{"X-API-KEY", key}
	for _, resumes := range []bool{false, true} {
		var made struct{ SandboxID, EnvdAccessToken string }
		body := fmt.Sprintf(`{"templateID":"base","timeout":1,"autoPause":true,"autoResume":{"enabled":%v}}`, resumes)
		if err := json.Unmarshal([]byte(s.e2bCall(t, 201, "", "POST", url+"/sandboxes", body, mine...)), &made); err != nil {
			t.Fatal(err)
		}
		one := url + "/sandboxes/" + made.SandboxID
		var info struct {
			State string
			EndAt time.Time
		}
		describe := func() {
			t.Helper()
			if err := json.Unmarshal([]byte(s.e2bCall(t, 200, "", "GET", one, "", mine...)), &info); err != nil {
				t.Fatal(err)
			}
		}
		describe()
		time.Sleep(time.Until(info.EndAt))
		if describe(); info.State != "paused" {
			t.Errorf("at its end it is %s", info.State)
		}
		if answer := s.e2bCall(t, 200, "", "GET", url+"/v2/sandboxes?state=running", "", mine...); strings.Contains(answer, made.SandboxID) {
			t.Errorf("the list of those that run has it: %s", answer)
		}
		work := []string{"E2b-Sandbox-Id", made.SandboxID, "X-Access-Token", made.EnvdAccessToken}
		if !resumes {
			s.e2bCall(t, 502, `{"code":"unavailable","message":"the sandbox is paused`, "POST", url+"/process.Process/List", "{}", work...)
			s.e2bCall(t, 201, `"sandboxID"`, "POST", one+"/connect", `{"timeout":600}`, mine...)
		}
		s.e2bCall(t, 200, `{"processes":[]}`, "POST", url+"/process.Process/List", "{}", work...)
		if describe(); info.State != "running" || time.Until(info.EndAt) < time.Minute {
			t.Errorf("then it is %+v", info)
		}
		s.e2bCall(t, 204, "", "DELETE", one, "", mine...)
	}
}

// Where Sandpit's own API is, E2B's is served by host name: the two parts of it, with TLS, as SDKs reach them that
// know a domain only.
func TestE2BByHostName(t *testing.T) {
	s := newServed(t)
	s.overTCP()
	s.settings.Domain = "sandboxes.example"
	_, key := s.withE2B()
	call := func(status int, text, method, host, path, body string, headers ...string) string {
		t.Helper()
		return s.e2bCall(t, status, text, method, "https://"+s.tcp+path, body, append(headers, "Host", host)...)
	}
	var made e2bBox
	if err := json.Unmarshal([]byte(call(201, "", "POST", "api.e2b.sandboxes.example", "/v2/sandboxes", `{"templateID":"base"}`, "X-API-KEY", key)), &made); err != nil {
		t.Fatal(err)
	}
	host := "49983-" + made.SandboxID + ".e2b.sandboxes.example"
	call(200, "{", "POST", host, "/process.Process/List", `{}`, "X-Access-Token", made.EnvdAccessToken)
	call(200, "{", "POST", host, "/process.Process/List", `{}`, "X-API-KEY", key)
	call(401, "", "POST", "49983-aaaaaaaaaaaaaaaa.e2b.sandboxes.example", "/process.Process/List", `{}`, "X-Access-Token", made.EnvdAccessToken)
	call(401, "", "POST", host, "/process.Process/List", `{}`)
	if made.Domain != "e2b.sandboxes.example" {
		t.Errorf("the domain is %q", made.Domain)
	}
	call(403, "open-ports", "GET", made.host("3000"), "/", "")
	call(502, "the port is not open", "GET", made.host("3000"), "/", "", "E2b-Traffic-Access-Token", made.TrafficAccessToken)
	call(404, "no_route", "POST", "localhost", "/process.Process/List", `{}`, "X-API-KEY", key)
	call(400, "is not a port", "GET", made.host("049983"), "/", "", "E2b-Traffic-Access-Token", made.TrafficAccessToken)

	// A token is for the sandbox with its ID, and not for another one with that name, or with the name that a token of traffic has.
	c := s.with(key)
	defer c.Close()
	if err := c.Remove(t.Context(), made.SandboxID); err != nil {
		t.Fatal(err)
	}
	for token, name := range map[string]string{made.EnvdAccessToken: made.SandboxID, made.TrafficAccessToken: made.SandboxID + ".traffic"} {
		if _, err := c.Create(t.Context(), sandpit.Spec{Name: name}); err != nil {
			t.Fatal(err)
		}
		call(502, "not found", "POST", "49983-"+name+".e2b.sandboxes.example", "/process.Process/List", `{}`, "X-Access-Token", token)
		call(502, "not found", "POST", "api.e2b.sandboxes.example", "/process.Process/List", `{}`, "X-Access-Token", token)
	}
}

// A signed URL ends with the key of its access token, is valid at the next server, and says nothing to the
// audit that would let its reader use it.
func TestE2BSignatures(t *testing.T) {
	s := newServed(t)
	url, _ := s.withE2B()
	owner := s.makeKey(v1.NewKey{Namespace: "signed"})
	var made struct{ SandboxID, EnvdAccessToken string }
	if err := json.Unmarshal([]byte(s.e2bCall(t, 201, "", "POST", url+"/v2/sandboxes", `{"templateID":"base","timeout":600}`, "X-API-KEY", owner.Secret)), &made); err != nil {
		t.Fatal(err)
	}
	s.e2bCall(t, 200, "", "POST", url+"/files?path=/tmp/x", "content", "X-Access-Token", made.EnvdAccessToken)
	sum := sha256.Sum256([]byte("/tmp/x:read::" + made.EnvdAccessToken))
	signature := "v1_" + base64.RawStdEncoding.EncodeToString(sum[:])
	signed := url + "/files?path=/tmp/x&signature=" + neturl.QueryEscape(signature)
	s.e2bCall(t, 200, "content", "GET", signed, "")
	s.e2bCall(t, 200, "content", "GET", signed, "", "E2b-Sandbox-Id", made.SandboxID)
	s.e2bCall(t, 401, `{"code":401,`, "GET", signed, "", "E2b-Sandbox-Id", "nonesuch")
	s.e2bCall(t, 200, "", "HEAD", signed, "")
	s.e2bCall(t, 401, `{"code":401,`, "GET", signed+"&signature_expiration=1", "")
	s.e2bCall(t, 401, `{"code":401,`, "GET", signed+"&username=root", "")
	for range 200 { // of a stranger at the same address
		s.e2bCall(t, 401, `{"code":401,`, "GET", signed+"&username=root", "")
	}
	s.e2bCall(t, 200, "content", "GET", signed, "")
	if err := s.stop(); err != nil {
		t.Fatal(err)
	}
	s.start()
	s.e2bCall(t, 200, "content", "GET", signed, "")
	admin := s.unix()
	defer admin.Close()
	var list v1.AuditList
	if err := admin.Call(t.Context(), "GET", "/v1/audit?action=e2b.readFile", nil, &list); err != nil || len(list.Entries) == 0 {
		t.Errorf("the audit has %v, %v", list.Entries, err)
	}
	for _, e := range list.Entries {
		if strings.Contains(fmt.Sprint(e), signature) || e.Allowed && (e.Sandbox != made.SandboxID || e.Key != owner.ID) {
			t.Errorf("the audit has %+v", e)
		}
	}
	if err := admin.Call(t.Context(), "DELETE", "/v1/keys/"+owner.ID, nil, nil); err != nil {
		t.Fatal(err)
	}
	s.e2bCall(t, 401, `{"code":401,`, "GET", signed, "")
}

// Input that a program does not read holds up its own request alone, and neither signals nor the end of the input.
func TestE2BInput(t *testing.T) {
	s := newServed(t)
	url, key := s.withE2B()
	box := s.newE2BSandbox(t, url, key, "")
	headers := []string{"E2b-Sandbox-Id", box.SandboxID, "X-API-KEY", key}
	process := func(method, message string) (int, string) {
		status, answer, _ := s.get("POST", url+"/process.Process/"+method, "", message, headers...)
		return status, answer
	}
	type answered struct {
		status int
		text   string
	}
	later := func(f func() (int, string)) <-chan answered {
		c := make(chan answered, 1)
		go func() {
			status, text := f()
			c <- answered{status, text}
		}()
		return c
	}
	for _, end := range []string{"CloseStdin", "SendSignal"} {
		ended := later(func() (int, string) {
			status, text, _ := s.get("POST", url+"/process.Process/Start", "", envelope(0, `{"process":{"cmd":"sleep","args":["1000"]},"stdin":true}`), append(headers, "Content-Type", "application/connect+json")...)
			return status, text
		})
		var list struct{ Processes []struct{ PID int } }
		testkit.Until(t, "the program runs", func() bool {
			_, answer := process("List", "{}")
			return json.Unmarshal([]byte(answer), &list) == nil && len(list.Processes) == 1
		})
		which := fmt.Sprintf(`{"process":{"pid":%d}`, list.Processes[0].PID)
		stuck := later(func() (int, string) {
			return process("SendInput", which+`,"input":{"stdin":"`+base64.StdEncoding.EncodeToString(make([]byte, 1<<20))+`"}}`)
		})
		testkit.Until(t, "input waits", func() bool { return s.figure("sandpit_open_streams") == 2 })
		if status, answer := process(end, which+`,"signal":"SIGNAL_SIGKILL"}`); status != 200 {
			t.Errorf("%s while input waits: %d %s", end, status, answer)
		}
		if got := <-stuck; got.status != 404 || !strings.Contains(got.text, "writing to the standard input") {
			t.Errorf("input that a program does not take, after %s: %+v", end, got)
		}
		if end == "CloseStdin" {
			if status, answer := process("SendSignal", which+`,"signal":"SIGNAL_SIGKILL"}`); status != 200 {
				t.Errorf("the signal: %d %s", status, answer)
			}
		}
		if got := <-ended; got.status != 200 || !strings.Contains(got.text, "signal: killed") {
			t.Errorf("the program: %+v", got)
		}
	}
}

// A watcher ends with the key that made it: other keys of its namespace, which could ask it, do not find it any more.
func TestE2BWatchersEndWithTheirKey(t *testing.T) {
	s := newServed(t)
	url, key := s.withE2B()
	box := s.newE2BSandbox(t, url, key, "")
	owner := s.makeKey(v1.NewKey{Namespace: "e2b"})
	watch := func(method, body, secret string, status int, text string) string {
		t.Helper()
		return s.e2bCall(t, status, text, "POST", url+"/filesystem.Filesystem/"+method, body, "E2b-Sandbox-Id", box.SandboxID, "X-API-KEY", secret)
	}
	var ended, goesOn struct{ WatcherID string }
	for secret, into := range map[string]*struct{ WatcherID string }{owner.Secret: &ended, key: &goesOn} {
		if err := json.Unmarshal([]byte(watch("CreateWatcher", `{"path":"/tmp"}`, secret, 200, "watcherId")), into); err != nil {
			t.Fatal(err)
		}
	}
	watch("GetWatcherEvents", `{"watcherId":"`+ended.WatcherID+`"}`, key, 200, `"events":[]`)
	admin := s.unix()
	defer admin.Close()
	if err := admin.Call(t.Context(), "DELETE", "/v1/keys/"+owner.ID, nil, nil); err != nil {
		t.Fatal(err)
	}
	testkit.Until(t, "the watcher has ended", func() bool {
		status, _, _ := s.get("POST", url+"/filesystem.Filesystem/GetWatcherEvents", "", `{"watcherId":"`+ended.WatcherID+`"}`, "E2b-Sandbox-Id", box.SandboxID, "X-API-KEY", key)
		return status == 404
	})
	watch("GetWatcherEvents", `{"watcherId":"`+goesOn.WatcherID+`"}`, key, 200, `"events":[]`)
}

// A watch whose directory is removed says so, after the changes until then, whether it is a stream or a watcher that is asked.
func TestE2BWatchedDirectoriesAreRemoved(t *testing.T) {
	s := newServed(t)
	url, key := s.withE2B()
	box := s.newE2BSandbox(t, url, key, "")
	call := func(method, body string, status int, text string) string {
		t.Helper()
		return s.e2bCall(t, status, text, "POST", url+"/filesystem.Filesystem/"+method, body, "E2b-Sandbox-Id", box.SandboxID, "X-API-KEY", key)
	}
	const dir = `{"path":"/tmp/w"}`
	call("MakeDir", dir, 200, "")
	var made struct{ WatcherID string }
	if err := json.Unmarshal([]byte(call("CreateWatcher", dir, 200, "watcherId")), &made); err != nil {
		t.Fatal(err)
	}
	request, err := http.NewRequestWithContext(t.Context(), "POST", url+"/filesystem.Filesystem/WatchDir", strings.NewReader(envelope(0, dir)))
	if err != nil {
		t.Fatal(err)
	}
	for name, value := range map[string]string{"E2b-Sandbox-Id": box.SandboxID, "X-API-KEY": key, "Content-Type": "application/connect+json"} {
		request.Header.Set(name, value)
	}
	stream, err := s.http().Do(request) // returns when the watch has begun
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Body.Close()
	call("Remove", dir, 200, "")
	all, err := io.ReadAll(stream.Body)
	if want := `{"filesystem":{"name":".","type":"EVENT_TYPE_REMOVE"}}`; err != nil || !strings.HasPrefix(string(all), envelope(0, `{"start":{}}`)) || !strings.Contains(string(all), want) || !strings.Contains(string(all), `{"error":{"code":"not_found","message":"the watched directory was removed`) {
		t.Errorf("the stream is %q, %v", all, err)
	}
	ask, events := `{"watcherId":"`+made.WatcherID+`"}`, ""
	testkit.Until(t, "the removal is told", func() bool {
		events = call("GetWatcherEvents", ask, 200, "")
		return events != `{"events":[]}`
	})
	if !strings.Contains(events, `{"name":".","type":"EVENT_TYPE_REMOVE"}`) {
		t.Errorf("the events are %s", events)
	}
	testkit.Until(t, "the watcher has ended", func() bool {
		status, text, _ := s.get("POST", url+"/filesystem.Filesystem/GetWatcherEvents", "", ask, "E2b-Sandbox-Id", box.SandboxID, "X-API-KEY", key)
		return status == 404 && strings.Contains(text, "the watched directory was removed")
	})
}

// When the kill of a process is answered, the process has ended: killing it again finds none.
func TestE2BKilledProcessesHaveEnded(t *testing.T) {
	s := newServed(t)
	url, key := s.withE2B()
	box := s.newE2BSandbox(t, url, key, "")
	c := s.with(key)
	defer c.Close()
	sb, err := c.Get(t.Context(), box.SandboxID)
	if err != nil {
		t.Fatal(err)
	}
	call := func(body string, status int, text string) {
		t.Helper()
		s.e2bCall(t, status, text, "POST", url+"/process.Process/SendSignal", body, "E2b-Sandbox-Id", box.SandboxID, "X-API-KEY", key)
	}
	var all sync.WaitGroup
	for range 8 { // at once, so that the news of the end are late
		all.Go(func() {
			for range 20 {
				p, err := sb.Start(t.Context(), sandpit.Command{Argv: []string{"sleep", "1000"}, Background: true})
				if err != nil {
					t.Error(err)
					return
				}
				kill := fmt.Sprintf(`{"process":{"pid":%d},"signal":"SIGNAL_SIGKILL"}`, p.PID())
				call(kill, 200, "{}")
				call(kill, 404, "no running process")
			}
		})
	}
	all.Wait()
}

// A large value arrives, with characters that HTML has a use for as they are. If one is too large, the client is told on standard error.
func TestE2BLargeValues(t *testing.T) {
	testkit.NeedProgram(t, "python3") // and so in the host image
	s := newServed(t)
	url, key := s.withE2B()
	box := s.newE2BSandbox(t, url, key, "")
	run := func(code string) string {
		t.Helper()
		body, err := json.Marshal(map[string]string{"code": code})
		if err != nil {
			t.Fatal(err)
		}
		return s.e2bCall(t, 200, "end_of_execution", "POST", url+"/execute", string(body), "E2b-Sandbox-Id", box.SandboxID, "X-API-KEY", key)
	}
	got := run("class P:\n def _repr_png_(self): return b'<' * (5 << 20)\n def __repr__(self): return '<' * (1 << 20)\nP()")
	if !strings.Contains(got, base64.StdEncoding.EncodeToString(bytes.Repeat([]byte("<"), 5<<20))) || !strings.Contains(got, `"`+strings.Repeat("<", 1<<20)+`"`) || strings.Contains(got, "left out") {
		t.Errorf("the answer has %d bytes", len(got))
	}
	got = run("class P:\n def _repr_png_(self): return b'x' * (8 << 20)\nP()")
	if !strings.Contains(got, `{"type":"stderr","text":"sandpit: output or values of this run were left out`) {
		t.Errorf("the answer is %.1000q", got)
	}
}

// The number of a run comes before anything else of it, once, as at E2B. That of code without a context is 0.
func TestE2BNumbersOfRuns(t *testing.T) {
	testkit.NeedProgram(t, "python3") // and so in the host image
	s := newServed(t)
	url, key := s.withE2B()
	box := s.newE2BSandbox(t, url, key, "")
	for language, code := range map[string]string{"python": "print(1)\n2", "javascript": "console.log(1); 2", "bash": "echo 1", "r": "cat('1\\n')\n2", "perl": "print 1"} {
		program := map[string]string{"python": "python3", "javascript": "node", "r": "Rscript"}[language]
		if _, err := exec.LookPath(cmp.Or(program, language)); err != nil { // and so the host image lacks it
			continue
		}
		for run := 1; run <= 3; run++ {
			body, _ := json.Marshal(map[string]string{"code": code, "language": language})
			got := s.e2bCall(t, 200, `"text":"1`, "POST", url+"/execute", string(body), "E2b-Sandbox-Id", box.SandboxID, "X-API-KEY", key)
			first, _, _ := strings.Cut(got, "\n")
			if language == "perl" {
				if !strings.Contains(got, `{"execution_count":0,"type":"number_of_executions"}`+"\n"+`{"type":"end_of_execution"}`) {
					t.Errorf("a run of %s: %s", language, got)
				}
			} else if want := fmt.Sprintf(`{"execution_count":%d,"type":"number_of_executions"}`, run); first != want || strings.Count(got, "number_of_executions") != 1 {
				t.Errorf("run %d of %s: %s", run, language, got)
			}
		}
	}
	// One that prints and shows nothing has its number, too.
	if got := s.e2bCall(t, 200, `{"execution_count":4,"type":"number_of_executions"}`+"\n"+`{"type":"end_of_execution"}`, "POST", url+"/execute", `{"code":"x = 1"}`, "E2b-Sandbox-Id", box.SandboxID, "X-API-KEY", key); strings.Count(got, "\n") != 2 {
		t.Errorf("a silent run: %s", got)
	}
}

// Each of several keys that connect to a sandbox at once can sign URLs.
func TestE2BSignaturesOfSeveralKeys(t *testing.T) {
	s := newServed(t)
	url, key := s.withE2B()
	var made e2bBox
	if err := json.Unmarshal([]byte(s.e2bCall(t, 201, "", "POST", url+"/v2/sandboxes", `{"templateID":"base","timeout":600}`, "X-API-KEY", key)), &made); err != nil {
		t.Fatal(err)
	}
	s.e2bCall(t, 200, "", "POST", url+"/files?path=/tmp/x", "content", "X-Access-Token", made.EnvdAccessToken)
	tokens := make([]e2bBox, 6)
	var all sync.WaitGroup
	for i := range tokens {
		secret := s.makeKey(v1.NewKey{Namespace: "e2b"}).Secret
		all.Go(func() {
			answer := s.e2bCall(t, 200, "", "POST", url+"/v2/sandboxes/"+made.SandboxID+"/connect", `{}`, "X-API-KEY", secret)
			if err := json.Unmarshal([]byte(answer), &tokens[i]); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	for _, b := range append(tokens, made) {
		sum := sha256.Sum256([]byte("/tmp/x:read::" + b.EnvdAccessToken))
		signature := "v1_" + base64.RawStdEncoding.EncodeToString(sum[:])
		s.e2bCall(t, 200, "content", "GET", url+"/files?path=/tmp/x&signature="+neturl.QueryEscape(signature), "")
	}
}

// A change of the network that is refused changes nothing, and neither does a create.
func TestE2BRefusedNetworkChangesNothing(t *testing.T) {
	s := newServed(t)
	url, key := s.withE2B()
	box := s.newE2BSandbox(t, url, key, `,"allow_internet_access":false`)
	call := func(status int, text, method, path, body string) {
		t.Helper()
		s.e2bCall(t, status, text, method, url+path, body, "X-API-KEY", key)
	}
	names := make([]string, 1500)
	for i := range names {
		names[i] = fmt.Sprintf("%036d.example.com", i)
	}
	many, err := json.Marshal(names)
	if err != nil {
		t.Fatal(err)
	}
	one := "/sandboxes/" + box.SandboxID
	for allow, want := range map[string]string{string(many): "network.allowOut has 1500 entries", `["not a host !!","8.8.8.8"]`: `network.allowOut: \"not a host !!\" is not an IP address, CIDR block or host name`} {
		call(400, want, "PUT", one+"/network", `{"allowOut":`+allow+`}`)
		call(200, `"allowInternetAccess":false`, "GET", one, "")
		call(400, want, "POST", "/sandboxes", `{"templateID":"base","network":{"allowOut":`+allow+`}}`)
	}
	call(204, "", "PUT", one+"/network", `{"allowOut":["8.8.8.8"]}`)
	call(200, `"allowOut":["8.8.8.8"]`, "GET", one, "")
}
