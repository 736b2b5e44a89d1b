package api_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/sandpit-dev/sandpit"
	v1 "github.com/sandpit-dev/sandpit/internal/api/v1"
	auditlog "github.com/sandpit-dev/sandpit/internal/audit"
	"github.com/sandpit-dev/sandpit/internal/gate"
)

// ends returns how calls of an operation have ended.
func (s *service) ends(operation string) []v1.Audit {
	var out []v1.Audit
	for _, e := range s.audit.all() {
		if e.Action == operation && e.Phase == "end" {
			out = append(out, e)
		}
	}
	return out
}

// Who is not known enters little into the audit, whatever he does: older entries
// make room for newer ones.
func TestStrangersEnterLittle(t *testing.T) {
	s := serve(t, func(o *options) {
		o.Origins, o.Limits.Strangers = []string{"https://ui.example"}, gate.AuditShare{Rate: 0.001, Burst: 1}
	})
	preflight := map[string]string{"Origin": "https://ui.example", "Access-Control-Request-Method": "POST"}
	s.tcp.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	for range 20 {
		for _, a := range []ask{
			{method: "PATCH", path: "/v1/sandboxes", key: "none"},
			{method: "POST", path: "/healthz", key: "none"},
			{method: "GET", path: "//docs", key: "none"},
			{method: "GET", path: "/v1/sandboxes", key: "wrong"},
			{method: "OPTIONS", path: "/v1/sandboxes", key: "none", header: preflight},
		} {
			s.do(a).Body.Close()
		}
	}
	size := func() (n int) {
		for _, e := range s.audit.all() {
			data, _ := json.Marshal(e)
			n += len(data)
		}
		return n
	}
	if n := size(); n > 3*auditlog.MaxEntry {
		t.Errorf("requests of strangers take %d bytes", n)
	}
	// What has no entry is counted, and that is one entry.
	entered := len(s.audit.all())
	eventually(t, "all requests have ended", func() bool {
		if err := s.gate.Summarise(t.Context(), true); err != nil {
			t.Fatal(err)
		}
		counted := entered
		for _, e := range s.ends("audit.summary") {
			var n int
			if _, err := fmt.Sscanf(e.Detail, "%d requests since ", &n); err != nil || e.Allowed || e.Rule != "strangers" {
				t.Fatalf("%+v: %v", e, err)
			}
			counted += n
		}
		return counted >= 80 // the 20 preflights are no refusals
	})
}

// L15: a key that floods the audit is refused when it has used up its share, and
// pushes out no more. What ends something is done all the same, other keys notice
// nothing, and one entry tells what has none.
func TestOneKeyCantFillTheAudit(t *testing.T) {
	const share = 64 << 10
	s := serve(t, func(o *options) { o.Limits.Audit = gate.AuditShare{Rate: 0.001, Burst: share} })
	hostile := strings.Repeat("%01", 1000)
	bytesOf := func(key string) (n int) {
		for _, e := range s.audit.all() {
			if e.Key == key {
				data, _ := json.Marshal(e)
				n += len(data)
			}
		}
		return n
	}
	refused := 0
	for range 400 {
		resp := s.do(ask{method: "GET", path: "/v1/sandboxes/x/files?path=/" + hostile, key: aliceKey})
		resp.Body.Close()
		if resp.StatusCode == http.StatusTooManyRequests {
			refused++
		}
	}
	if refused < 200 {
		t.Fatalf("%d of 400 requests were refused", refused)
	}
	s.refused(429, "audit_rate", ask{method: "GET", path: "/v1/sandboxes", key: aliceKey})
	if n := bytesOf("alice"); n > share+4*auditlog.MaxEntry {
		t.Errorf("with a share of %d bytes a key has entered %d", share, n)
	}
	s.want(200, nil, ask{method: "GET", path: "/v1/sandboxes", key: bobKey})
	s.refused(404, "not_found", ask{method: "DELETE", path: "/v1/sandboxes/mine", key: aliceKey}) // and not 429
	s.refused(429, "audit_rate", ask{method: "POST", path: "/v1/sandboxes/mine/processes/1/signal", body: v1.Signal{Signal: 15}, key: aliceKey})
	if err := s.gate.Summarise(t.Context(), false); err != nil || s.ended("removeSandbox") != 0 {
		t.Errorf("beyond its share %d entries of a key are written, %v", s.ended("removeSandbox"), err)
	}
	eventually(t, "a summary, and an entry of its own", func() bool {
		if err := s.gate.Summarise(t.Context(), true); err != nil {
			t.Fatal(err)
		}
		reasons := map[string]string{}
		for _, e := range s.ends("audit.summary") {
			if e.Key != "alice" || e.Namespace == "" {
				t.Fatalf("%+v", e)
			}
			reasons[e.Rule] += e.Detail
		}
		own := s.ends("removeSandbox")
		return strings.Contains(reasons["audit_rate"], "readFile") && len(own) == 1 && own[0].Key == "alice" && own[0].Sandbox == "mine" && own[0].Code == "not_found"
	})
}

// L14: what ends something or takes rights away is done although the audit can't be
// written, and is entered, with what it was about, when it can.
func TestVitalRequestsWithoutAnAudit(t *testing.T) {
	s := serve(t, nil)
	sb := s.create("", v1.Spec{})
	one := "/v1/sandboxes/" + sb.ID
	var p v1.Process
	s.want(201, &p, ask{method: "POST", path: one + "/processes", body: v1.Command{Argv: []string{"sleep", "600"}}})
	var q v1.Process
	s.want(201, &q, ask{method: "POST", path: one + "/processes", body: v1.Command{Argv: []string{"sleep", "600"}}})
	var key v1.Key
	s.want(201, &key, ask{method: "POST", path: "/v1/keys", body: v1.NewKey{Name: "ci"}})
	s.want(200, nil, ask{method: "GET", path: "/v1/sandboxes", key: key.Secret})
	var hook v1.Webhook
	s.want(201, &hook, ask{method: "POST", path: "/v1/webhooks", body: v1.NewWebhook{URL: "https://hooks.example/hush"}})

	s.audit.fail(errDisk)
	s.refused(503, "audit_unavailable", ask{method: "POST", path: "/v1/keys", body: v1.NewKey{}})
	s.want(204, nil, ask{method: "DELETE", path: "/v1/keys/" + key.ID})
	s.refused(401, "unauthenticated", ask{method: "GET", path: "/v1/sandboxes", key: key.Secret})
	s.refused(503, "audit_unavailable", ask{method: "POST", path: one + "/processes/" + p.ID + "/signal", body: v1.Signal{Signal: 15}})
	s.want(204, nil, ask{method: "POST", path: one + "/processes/" + p.ID + "/signal", body: v1.Signal{Signal: 9}})
	s.want(204, nil, ask{method: "DELETE", path: one + "/processes/" + q.ID})
	s.want(200, nil, ask{method: "POST", path: one + "/stop", body: v1.Stop{}})
	s.want(204, nil, ask{method: "DELETE", path: one})
	s.refused(404, "not_found", ask{method: "GET", path: one})
	s.want(204, nil, ask{method: "DELETE", path: "/v1/webhooks/" + hook.ID})
	if err := s.gate.Summarise(t.Context(), false); !errors.Is(err, errDisk) {
		t.Errorf("summarising without an audit: %v", err)
	}

	full := time.Now()
	s.audit.fail(nil)
	want := []string{
		"signalProcess " + sb.ID + " process " + p.ID + " signal 9", "killProcess " + sb.ID + " process " + q.ID, "stopSandbox " + sb.ID + " ",
		"removeSandbox " + sb.ID + " ", "revokeKey  " + key.ID, "removeWebhook  " + hook.ID,
	}
	eventually(t, "all have their entries", func() bool {
		if err := s.gate.Summarise(t.Context(), false); err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, e := range s.audit.all() {
			if e.Phase == "end" && e.Time.Before(full) && e.Status < 300 && slices.Contains([]string{"signalProcess", "killProcess", "stopSandbox", "removeSandbox", "revokeKey", "removeWebhook"}, e.Action) {
				got = append(got, e.Action+" "+e.Sandbox+" "+e.Detail)
			}
		}
		slices.Sort(got)
		return slices.Equal(got, slices.Sorted(slices.Values(want)))
	})
}

// On a full disk so many entries of vital requests wait, and no more of one caller
// than leave room for the others; the rest is counted.
func TestPendingEntriesAreBounded(t *testing.T) {
	s := serve(t, func(o *options) { o.Limits.Rate, o.Limits.Burst = 1e6, 1e6 })
	s.audit.fail(errDisk)
	const asked = 300
	for i := range asked {
		s.refused(404, "not_found", ask{method: "DELETE", path: fmt.Sprintf("/v1/sandboxes/box%d%s", i, strings.Repeat("é", 2000)), key: aliceKey})
	}
	s.refused(404, "not_found", ask{method: "DELETE", path: "/v1/sandboxes/his", key: bobKey})
	s.audit.fail(nil)
	eventually(t, "all are entered or counted", func() bool {
		if err := s.gate.Summarise(t.Context(), true); err != nil {
			t.Fatal(err)
		}
		own, counted, his := 0, 0, 0
		for _, e := range s.ends("removeSandbox") {
			switch {
			case e.Key == "bob" && e.Sandbox == "his":
				his++
			case len(e.Sandbox) > 2100 || !utf8.ValidString(e.Sandbox):
				t.Fatalf("an entry keeps %d bytes", len(e.Sandbox))
			default:
				own++
			}
		}
		for _, e := range s.ends("audit.summary") {
			var n int
			if _, err := fmt.Sscanf(e.Detail, "%d requests since ", &n); err != nil || e.Rule != "unrecorded" || !e.Allowed || e.Key != "alice" {
				t.Fatalf("%+v: %v", e, err)
			}
			counted += n
		}
		return own == 250 && counted == asked-own && his == 1
	})
}

// L15: a key hides nothing that it ends by requests that end nothing or repeat others,
// whether its share of the audit is used up or the disk is full. What a process has left
// behind is ended by a kill of it, and so is what is stopped for a client who leaves.
func TestNoKeyHidesWhatItEnds(t *testing.T) {
	for name, full := range map[string]bool{"its share is used up": false, "the disk is full": true} {
		t.Run(name, func(t *testing.T) {
			s := serve(t, func(o *options) {
				o.Limits.Rate, o.Limits.Burst = 1e6, 1e6
				if !full {
					o.Limits.Audit = gate.AuditShare{Rate: 0.001, Burst: 64 << 10}
				}
			})
			sb := s.create(aliceKey, v1.Spec{})
			one := "/v1/sandboxes/" + sb.ID
			var ended, runs v1.Process
			s.want(201, &ended, ask{method: "POST", path: one + "/processes", body: v1.Command{Argv: []string{"true"}}, key: aliceKey})
			s.want(201, &runs, ask{method: "POST", path: one + "/processes", body: v1.Command{Argv: []string{"sleep", "600"}}, key: aliceKey})
			var left, deaf v1.Process
			s.want(201, &left, ask{method: "POST", path: one + "/processes", body: v1.Command{Script: "exec >/dev/null 2>&1; sleep 600 &"}, key: aliceKey})
			for _, p := range []v1.Process{ended, left} {
				s.want(200, nil, ask{method: "GET", path: one + "/processes/" + p.ID + "/wait", key: aliceKey})
			}
			other := s.create(aliceKey, v1.Spec{})
			s.want(201, &deaf, ask{method: "POST", path: "/v1/sandboxes/" + other.ID + "/processes", body: v1.Command{Script: "trap '' TERM; >/tmp/deaf; while :; do sleep 600; done"}, key: aliceKey})
			s.want(200, nil, ask{method: "POST", path: "/v1/sandboxes/" + other.ID + "/exec", body: v1.Exec{Command: v1.Command{Script: "until test -e /tmp/deaf; do sleep 0.01; done"}}, key: aliceKey})
			if full {
				s.audit.fail(errDisk)
			} else {
				for refused := false; !refused; {
					resp := s.do(ask{method: "GET", path: "/v1/sandboxes/x/files?path=/" + strings.Repeat("%01", 1000), key: aliceKey})
					resp.Body.Close()
					refused = resp.StatusCode == http.StatusTooManyRequests
				}
			}
			for i := range 150 {
				s.refused(404, "not_found", ask{method: "DELETE", path: fmt.Sprintf("/v1/sandboxes/box%d", i), key: aliceKey})
				s.want(204, nil, ask{method: "DELETE", path: one + "/processes/" + ended.ID, key: aliceKey})
			}
			stopping, leave := context.WithCancel(t.Context())
			client := s.engine.As("alice", defaultPolicy())
			go func() {
				defer leave()
				eventually(t, "it is being stopped", func() bool {
					page, err := client.List(t.Context(), sandpit.ListQuery{States: []sandpit.State{sandpit.StateStopped}})
					return err != nil || len(page.Sandboxes) > 0
				})
			}()
			grace := 600.0
			if resp, err := s.try(stopping, ask{method: "POST", path: "/v1/sandboxes/" + other.ID + "/stop", body: v1.Stop{Grace: &grace}, key: aliceKey}); err == nil {
				resp.Body.Close()
				t.Errorf("a stop that is left answers %d", resp.StatusCode)
			}
			s.want(204, nil, ask{method: "DELETE", path: one + "/processes/" + left.ID, key: aliceKey})
			s.want(204, nil, ask{method: "DELETE", path: one + "/processes/" + runs.ID, key: aliceKey})
			s.want(200, nil, ask{method: "POST", path: one + "/stop", body: v1.Stop{}, key: aliceKey})
			for range 300 {
				s.want(200, nil, ask{method: "POST", path: one + "/stop", body: v1.Stop{}, key: aliceKey})
			}
			s.want(204, nil, ask{method: "DELETE", path: one, key: aliceKey})
			s.audit.fail(nil)
			if full {
				if err := s.gate.Summarise(t.Context(), true); err != nil {
					t.Fatal(err)
				}
			}
			has := func(action, sandbox, detail string, status int) bool {
				return slices.ContainsFunc(s.ends(action), func(e v1.Audit) bool {
					return e.Key == "alice" && e.Sandbox == sandbox && e.Detail == detail && e.Status == status
				})
			}
			eventually(t, "what it has ended is entered", func() bool {
				return has("killProcess", sb.ID, "process "+runs.ID, 204) && has("killProcess", sb.ID, "process "+left.ID, 204) &&
					has("stopSandbox", sb.ID, "", 200) && has("stopSandbox", other.ID, "", 499) && has("removeSandbox", sb.ID, "", 204)
			})
			if err := s.gate.Summarise(t.Context(), true); err != nil {
				t.Fatal(err)
			}
			if !slices.ContainsFunc(s.ends("audit.summary"), func(e v1.Audit) bool { return e.Rule == "unrecorded" && strings.Contains(e.Detail, "removeSandbox (") }) {
				t.Errorf("what it did in vain is not counted: %+v", s.ends("audit.summary"))
			}
			if n := len(s.ends("killProcess")) + len(s.ends("stopSandbox")) + len(s.ends("removeSandbox")); n > 260 {
				t.Errorf("%d entries are written", n)
			}
		})
	}
}

// pendingWrite is the error of an entry that may be written when a disk goes on that hangs.
type pendingWrite struct {
	error
	result chan error
}

func (e pendingWrite) Wait() error { return <-e.result }

// What a disk that hangs may still write is entered again only when it has not.
func TestLateEntriesAreEnteredOnce(t *testing.T) {
	s := serve(t, nil)
	for name, result := range map[string]error{"written": nil, "lost": errDisk} {
		hang := pendingWrite{errDisk, make(chan error, 1)}
		hang.result <- result
		s.audit.fail(hang)
		s.refused(404, "not_found", ask{method: "DELETE", path: "/v1/sandboxes/" + name, key: aliceKey})
	}
	s.audit.fail(nil)
	eventually(t, "the one that is lost is entered", func() bool {
		if err := s.gate.Summarise(t.Context(), true); err != nil {
			t.Fatal(err)
		}
		return len(s.ends("removeSandbox")) > 0
	})
	if all := s.ends("removeSandbox"); len(all) != 1 || all[0].Sandbox != "lost" {
		t.Errorf("entered are %+v", all)
	}
}

// A stranger who is refused often hides nothing of what is refused to a key.
func TestRefusalsToKeysAreAllRecorded(t *testing.T) {
	s := serve(t, func(o *options) { o.Limits.Strangers = gate.AuditShare{Rate: 0.001, Burst: 1} })
	for range 20 {
		s.refused(401, "unauthenticated", ask{method: "GET", path: "/v1/keys", key: "wrong"})
		s.refused(403, "forbidden", ask{method: "GET", path: "/v1/keys", key: aliceKey})
	}
	n := 0
	for _, e := range s.ends("listKeys") {
		if e.Key == "alice" && !e.Allowed && e.Rule == "forbidden" {
			n++
		}
	}
	if n != 20 {
		t.Errorf("of 20 refusals %d are recorded", n)
	}
}

// What only administrators may do counts as a request of who may not.
func TestRateHoldsForWhatIsForbidden(t *testing.T) {
	s := serve(t, func(o *options) { o.Limits.Rate, o.Limits.Burst = 0.001, 3 })
	for range 3 {
		s.refused(403, "forbidden", ask{method: "GET", path: "/v1/keys", key: aliceKey})
	}
	s.refused(429, "rate_limited", ask{method: "GET", path: "/v1/keys", key: aliceKey})
}

// refuser answers as a server that refuses.
const refuser = `
import http.server
class H(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(int(self.path[1:])); self.send_header("Content-Length", "0"); self.end_headers()
    def log_message(self, *a): pass
http.server.HTTPServer(("127.0.0.1", 8080), H).serve_forever()
`

// What a sandbox refuses is no decision of the server.
func TestRefusalsOfASandboxAreNotOurs(t *testing.T) {
	s := serve(t, nil)
	sb := s.create("", v1.Spec{})
	s.python(sb, "", refuser, 1)
	for _, status := range []string{"401", "403", "421", "429"} {
		s.do(ask{method: "GET", path: "/" + status, header: map[string]string{"X-Sandpit-Sandbox": sb.ID, "X-Sandpit-Port": "8080"}}).Body.Close()
	}
	s.refused(403, "permission", ask{method: "PATCH", path: "/v1/sandboxes/" + sb.ID + "/files?path=/proc/version&mode=0777"})
	eventually(t, "all have ended", func() bool { return s.ended("proxy") == 4 && s.ended("changeFile") == 1 })
	for _, e := range append(s.ends("proxy"), s.ends("changeFile")...) {
		if !e.Allowed || e.Rule != "" || e.Status < 400 {
			t.Errorf("%+v", e)
		}
	}
}

// An entry says which key, webhook, process, port or file a call was about, and
// what a new key may do.
func TestAuditNamesItsObjects(t *testing.T) {
	s := serve(t, nil)
	sb := s.create("", v1.Spec{})
	one := "/v1/sandboxes/" + sb.ID
	var p v1.Process
	s.want(201, &p, ask{method: "POST", path: one + "/processes", body: v1.Command{Argv: []string{"sleep", "600"}}})
	var key v1.Key
	s.want(201, &key, ask{method: "POST", path: "/v1/keys", body: v1.NewKey{Name: "ci", Namespace: "team", Policy: "small", Admin: true}})
	var hook v1.Webhook
	s.want(201, &hook, ask{method: "POST", path: "/v1/webhooks", body: v1.NewWebhook{URL: "https://hooks.example/hush"}})
	s.want(204, nil, ask{method: "DELETE", path: "/v1/keys/" + key.ID})
	s.want(204, nil, ask{method: "DELETE", path: "/v1/webhooks/" + hook.ID})
	s.want(200, nil, ask{method: "PUT", path: "/v1/secrets/a?scope=server", body: v1.NewSecret{Value: "hush", Hosts: []string{"hush.example"}}})
	s.refused(404, "not_found", ask{method: "PUT", path: "/v1/secrets/a/value", body: v1.SecretValue{Value: "hush"}})
	s.refused(404, "not_found", ask{method: "DELETE", path: "/v1/secrets/a?sandbox=box"})
	s.want(204, nil, ask{method: "POST", path: one + "/processes/" + p.ID + "/signal", body: v1.Signal{Signal: 28}})
	s.get(ask{method: "POST", path: one + "/processes/" + p.ID + "/resize", body: v1.Size{Rows: 1, Cols: 1}})
	s.want(204, nil, ask{method: "DELETE", path: one + "/processes/" + p.ID})
	s.want(200, nil, ask{method: "GET", path: one + "/processes/" + p.ID + "/wait"})
	s.refused(503, "unavailable", ask{method: "GET", path: one + "/ports/8080/tcp", header: map[string]string{"Connection": "Upgrade", "Upgrade": "tcp"}})
	s.want(200, nil, ask{method: "GET", path: one + "/files/stat?path=/etc"})
	for operation, detail := range map[string]string{
		"createKey": `name "ci" namespace "team" policy "small" administrator; key ` + key.ID, "createWebhook": "webhook " + hook.ID,
		"revokeKey": key.ID, "removeWebhook": hook.ID,
		"signalProcess": "process " + p.ID + " signal 28", "resizeProcess": "process " + p.ID, "killProcess": "process " + p.ID, "waitProcess": "process " + p.ID,
		"setSecret": `secret a scope "server"`, "rotateSecret": "secret a", "removeSecret": `secret a sandbox "box"`,
		"connectPort": "port 8080", "statFile": "/etc",
	} {
		eventually(t, operation+" has ended", func() bool { return s.ended(operation) == 1 })
		if got := s.ends(operation)[0].Detail; got != detail {
			t.Errorf("%s is about %q, want %q", operation, got, detail)
		}
	}
}

// With what an image says, all of argv are arguments, and may be secrets.
func TestArgumentsOfAnImageAreNotRecorded(t *testing.T) {
	s := serve(t, nil)
	for _, c := range []v1.Command{
		{Argv: []string{"hush", "b"}, FromImage: true},
		{Argv: []string{"hush", "b"}, Entrypoint: &[]string{"/bin/echo"}},
		{Argv: []string{"aHVzaA==", "Yg=="}, Encoding: "base64", FromImage: true},
	} {
		s.refused(404, "not_found", ask{method: "POST", path: "/v1/sandboxes/none/exec", body: v1.Exec{Command: c}})
	}
	details := []string{}
	for _, e := range s.ends("exec") {
		details = append(details, e.Detail)
	}
	if got, want := strings.Join(details, "\n"), "program of the image with 2 arguments\nprogram \"/bin/echo\" with 2 arguments\nprogram of the image with 2 arguments"; got != want {
		t.Errorf("got:\n%s\nwant:\n%s", got, want)
	}
}
