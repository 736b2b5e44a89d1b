package api_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sandpit-dev/sandpit/internal/api"
	v1 "github.com/sandpit-dev/sandpit/internal/api/v1"
)

// keyed returns a request with an Idempotency-Key.
func keyed(key string, a ask) ask {
	header := map[string]string{"Idempotency-Key": key}
	for name, value := range a.header {
		header[name] = value
	}
	a.header = header
	return a
}

// Each request of a route that has the header Idempotency-Key is carried out once for each key, and
// repeated with its first answer. Those are all that POST, and others of which a repetition does more.
func TestEveryPostCanBeRepeated(t *testing.T) {
	s := serve(t, nil)
	sb := s.create("", v1.Spec{Name: "box"})
	base := "/v1/sandboxes/" + sb.ID
	sh := func(script string) string { return s.shell(sb, script) }
	sh("echo old > /tmp/edited; echo x > /tmp/from; echo x > /tmp/copied")
	var reader v1.Process
	s.want(201, &reader, ask{method: "POST", path: base + "/processes", body: v1.Command{Script: `trap 'echo signal >>/tmp/signals' USR1; while :; do read line && echo "$line" >>/tmp/lines; done`, Stdin: true}})
	if reader.User == "" {
		t.Error("a process is started without a user")
	}
	process := base + "/processes/" + reader.ID
	all := map[string]struct {
		status int
		ask    ask
	}{
		"createSandbox":     {201, ask{path: "/v1/sandboxes", body: v1.Spec{}}},
		"startSandbox":      {200, ask{path: base + "/start"}},
		"pauseSandbox":      {200, ask{path: base + "/pause"}},
		"resumeSandbox":     {200, ask{path: base + "/resume"}},
		"stopSandbox":       {404, ask{path: "/v1/sandboxes/none/stop", body: v1.Stop{}}},
		"exec":              {200, ask{path: execPath(sb), body: v1.Exec{Command: v1.Command{Script: "echo x >>/tmp/executed; echo out"}}}},
		"startProcess":      {201, ask{path: base + "/processes", body: v1.Command{Script: "echo x >>/tmp/started; exec sleep 7551"}}},
		"signalProcess":     {204, ask{path: process + "/signal", body: v1.Signal{Signal: 10}}},
		"backgroundProcess": {204, ask{path: process + "/background"}},
		"resizeProcess":     {400, ask{path: process + "/resize", body: v1.Size{Rows: 1, Cols: 1}}}, // it has no terminal
		"writeStdin":        {204, ask{path: process + "/stdin", body: "a line\n"}},
		"editFile":          {204, ask{path: base + "/files/edit?path=/tmp/edited", body: `{"edits":[{"old":"old","new":"new"}]}`, header: asJSON()}},
		"makeDirectory":     {204, ask{path: base + "/files/mkdir?path=/tmp/made"}},
		"renameFile":        {204, ask{path: base + "/files/rename?from=/tmp/from&to=/tmp/to"}},
		"copyFile":          {204, ask{path: base + "/files/copy?from=/tmp/copied&to=/tmp/copy"}},
		"linkFile":          {204, ask{path: base + "/files/symlink?path=/tmp/link&target=/tmp"}},
		"changeFile":        {204, ask{path: base + "/files?path=/tmp/copied&size=1&mode=0600"}},
		"createContext":     {400, ask{path: base + "/contexts", body: v1.NewContext{Language: "cobol"}}},
		"restartContext":    {404, ask{path: base + "/contexts/none/restart"}},
		"interruptContext":  {404, ask{path: base + "/contexts/none/interrupt"}},
		"commitSandbox":     {201, ask{path: base + "/commit", body: v1.Commit{Name: "once", NoPause: true}}},
		"pullImage":         {503, ask{path: "/v1/images/pull", body: v1.ImagePull{Image: "x"}}},
		"tagImage":          {404, ask{path: "/v1/images/tag", body: v1.ImageTag{Image: "saved:none", Names: []string{"x"}}}},
		"createKey":         {201, ask{path: "/v1/keys", body: v1.NewKey{Name: "once" + strings.Repeat("<", 50)}}},
		"createWebhook":     {201, ask{path: "/v1/webhooks", body: v1.NewWebhook{URL: "https://once.example"}}},
		"updateSandbox":     {200, ask{path: "/v1/sandboxes/box", body: `{"name":"renamed"}`, header: asJSON()}},
		"changeEgress":      {200, ask{path: base + "/egress", body: v1.EgressChange{Add: &v1.EgressRules{Allow: []string{"a.example"}}}}},
		"writeFile":         {200, ask{path: base + "/files?append=true&path=/tmp/appended", body: "a line\n"}},
		"testWebhook":       {404, ask{path: "/v1/webhooks/none/test"}},
	}
	for _, r := range api.Routes() {
		if !slices.ContainsFunc(r.Headers, func(h api.Param) bool { return h.Name == "Idempotency-Key" }) {
			if r.Method == http.MethodPost && r.Guarded && !r.IgnoresIdempotency {
				t.Errorf("%s can't be repeated", r.ID)
			}
			continue
		}
		c, ok := all[r.ID]
		if !ok {
			t.Errorf("nobody tries to repeat %s", r.ID)
			continue
		}
		t.Run(r.ID, func(t *testing.T) {
			s := *s
			s.t = t
			c.ask.method = r.Method
			a := keyed("key-"+r.ID, c.ask)
			status, first, h := s.get(a)
			if status != c.status || h.Get("Idempotent-Replayed") != "" {
				t.Fatalf("%d %s %v", status, first, h)
			}
			for range 2 {
				status, again, h := s.get(a)
				if c.status >= 300 { // it is carried out again
					if status != c.status || h.Get("Idempotent-Replayed") != "" {
						t.Errorf("%d %s %v", status, again, h)
					}
					continue
				}
				if r.ShowsSecret {
					var made, kept map[string]any
					if err := errors.Join(json.Unmarshal(first, &made), json.Unmarshal(again, &kept)); err != nil || made["secret"] == nil {
						t.Fatalf("%s: %v", first, err)
					}
					delete(made, "secret")
					if len(again) > len(first) {
						t.Errorf("what is kept is longer than the answer: %s", again)
					}
					if diff := cmp.Diff(made, kept); diff != "" {
						t.Error(diff)
					}
					again = first
				}
				if r.ID == "exec" {
					again = first // which has its own test
				}
				if status != c.status || h.Get("Idempotent-Replayed") != "true" || strings.TrimSpace(string(again)) != strings.TrimSpace(string(first)) {
					t.Errorf("repeated: %d %s %v, first %s", status, again, h, first)
				}
			}
			if c.status < 300 {
				other := a
				switch {
				case r.ID == "createSandbox":
					other.body = v1.Spec{Name: "another"}
				case strings.Contains(a.path, "from="):
					other.path = strings.Replace(a.path, "from=", "from=/other", 1)
				case strings.Contains(a.path, sb.ID):
					other.path = strings.Replace(a.path, sb.ID, sb.ID+"-other", 1)
				default:
					return
				}
				s.refused(422, "idempotency_mismatch", other)
			}
		})
	}
	eventually(t, "the line and the signal have come", func() bool { return sh("cat /tmp/lines /tmp/signals") == "a line\nsignal\n" })
	if got := sh("cat /tmp/edited /tmp/executed /tmp/started /tmp/appended"); got != "new\nx\nx\na line\n" {
		t.Errorf("more than once was done: %q", got)
	}
	for id, detail := range map[string]string{"startProcess": "; repeated", "makeDirectory": "; repeated"} {
		if ends := s.ends(id); len(ends) != 4+map[string]int{"startProcess": 1}[id] || !strings.HasSuffix(ends[len(ends)-2].Detail, detail) || ends[len(ends)-2].Status/100 != 2 {
			t.Errorf("the audit says of %s: %+v", id, ends)
		}
	}
}

// An Idempotency-Key costs no memory for a long body, whose bytes it compares.
func TestIdempotencyOfLongBodies(t *testing.T) {
	s := serve(t, nil)
	a := ask{method: "POST", path: "/v1/sandboxes/none/exec", body: `{"argv":["` + strings.Repeat("<", 8<<20) + `"]}`, header: asJSON()}
	allocated := func(a ask) uint64 {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		s.refused(404, "not_found", a)
		runtime.ReadMemStats(&after)
		return after.TotalAlloc - before.TotalAlloc
	}
	allocated(a)
	plain, once := allocated(a), allocated(keyed("long", a))
	if once > plain+16<<20 {
		t.Errorf("a request of 8 MiB allocates %d MiB, with a key %d MiB", plain>>20, once>>20)
	}
	create := keyed("create", ask{method: "POST", path: "/v1/sandboxes", body: `{"name":"once"}`, header: asJSON()})
	s.want(201, nil, create)
	s.want(201, nil, create)
	create.body = `{ "name":"once"}`
	s.refused(422, "idempotency_mismatch", create)
}

// A search of files changes nothing. Its answer, which is content of files, is not stored.
func TestSearchIsNotStored(t *testing.T) {
	s := serve(t, nil)
	sb := s.create("", v1.Spec{})
	a := keyed("k", ask{method: "POST", path: "/v1/sandboxes/" + sb.ID + "/files/grep?path=/tmp", body: v1.Grep{Pattern: "secret"}})
	for i := range 2 {
		s.shell(sb, "echo a secret >>/tmp/file")
		var out v1.GrepResult
		if h := s.want(200, &out, a); h.Get("Idempotent-Replayed") != "" || len(out.Lines) != i+1 {
			t.Errorf("%v %+v", h, out)
		}
	}
	s.repeats.mu.Lock()
	defer s.repeats.mu.Unlock()
	if len(s.repeats.all) != 0 {
		t.Errorf("there are %d stored answers", len(s.repeats.all))
	}
}

// A request that was interrupted by the end of its server is not carried out again.
func TestUnknownOutcome(t *testing.T) {
	s := serve(t, nil)
	sb := s.create("", v1.Spec{})
	a := keyed("k", ask{method: "POST", path: "/v1/sandboxes/" + sb.ID + "/processes", body: v1.Command{Argv: []string{"true"}}})
	s.want(201, nil, a)
	s.repeats.mu.Lock()
	s.repeats.all["local/k"].answered = false
	s.repeats.mu.Unlock()
	for range 2 {
		s.refused(409, "outcome_unknown", a)
	}
}

// A repeated exec attaches to the first process, in each form of answer, while that runs
// and afterwards.
func TestExecIsRepeated(t *testing.T) {
	s := serve(t, nil)
	sb := s.create("", v1.Spec{})
	command := `{"script":"echo begun; cat >/dev/null; until [ -e /tmp/go ]; do sleep 0.05; done; echo ended; echo diag >&2; exit 3"}`
	exec := func(accept string) ask {
		body, header := form(partOf{"command", text(command), ""}, partOf{"stdin", text("some input"), ""})
		header["Accept"] = accept
		return keyed("k", ask{method: "POST", path: execPath(sb), body: body, header: header})
	}
	first := s.do(exec(v1.StreamType))
	defer first.Body.Close()
	if got := outputFrame(t, first); got != "begun\n" {
		t.Errorf("got %q", got)
	}
	second := s.do(exec("text/event-stream"))
	defer second.Body.Close()
	if second.StatusCode != 200 || second.Header.Get("Idempotent-Replayed") != "true" {
		t.Fatal(second.Status, second.Header)
	}
	s.shell(sb, "echo >/tmp/go")
	events, err := io.ReadAll(second.Body)
	if err != nil || !strings.Contains(string(events), "begun") || !strings.Contains(string(events), "ended") || !strings.Contains(string(events), `"exit_code":3`) {
		t.Errorf("%v %s", err, events)
	}
	rest, err := io.ReadAll(first.Body)
	if err != nil || !strings.Contains(string(rest), "ended") {
		t.Errorf("%v %q", err, rest)
	}
	var out v1.Executed
	for range 2 {
		out = v1.Executed{}
		h := s.want(200, &out, exec(""))
		if h.Get("Idempotent-Replayed") != "true" || out.Stdout != "begun\nended\n" || out.Stderr != "diag\n" || out.Result.ExitCode != 3 || out.Lost != 0 || out.Process.ID == "" {
			t.Errorf("%v %+v", h, out)
		}
	}
	// Output that is no longer kept is counted.
	long := keyed("long", ask{method: "POST", path: execPath(sb), body: v1.Exec{Command: v1.Command{Script: "head -c 3000000 /dev/zero; echo end"}}})
	s.want(200, nil, long)
	out = v1.Executed{}
	s.want(200, &out, long)
	if out.Lost == 0 || out.Lost+int64(len(out.Stdout)) != 3000004 || !strings.HasSuffix(out.Stdout, "\x00end\n") {
		t.Errorf("%d bytes are lost, and %d have come", out.Lost, len(out.Stdout))
	}
	s.refused(422, "idempotency_mismatch", keyed("long", ask{method: "POST", path: execPath(sb), body: v1.Exec{Command: v1.Command{Script: "true"}}}))
}

// A command with a key goes on when its client leaves, until that comes back or does not.
func TestCallerComesBack(t *testing.T) {
	const comeBack = 500 * time.Millisecond
	for name, within := range map[string]time.Duration{"in time": time.Hour, "never": comeBack} {
		t.Run(name, func(t *testing.T) {
			s := serve(t, func(o *options) { o.ComeBack = within })
			sb := s.create("", v1.Spec{})
			for i, accept := range []string{"application/json", v1.StreamType} {
				word := fmt.Sprint(7600 + i)
				a := keyed(word, ask{method: "POST", path: execPath(sb), body: v1.Exec{Command: v1.Command{Script: "echo begun; echo x >/tmp/begun" + word + "; until [ -e /tmp/end" + word + " ]; do sleep 0.05; done; echo ended; : sleep " + word}}, header: map[string]string{"Accept": accept}})
				ctx, cancel := context.WithCancel(context.Background())
				gone := make(chan struct{})
				go func() {
					defer close(gone)
					if resp, err := s.try(ctx, a); err == nil {
						_, _ = io.Copy(io.Discard, resp.Body)
						resp.Body.Close()
					}
				}()
				eventually(t, "it has begun", func() bool { return s.shell(sb, "cat /tmp/begun"+word) == "x\n" })
				cancel()
				<-gone
				eventually(t, "the server has noticed", func() bool {
					for _, e := range s.ends("exec") {
						if e.Status == 499 {
							return true
						}
					}
					return false
				})
				if within == comeBack {
					eventually(t, "it is killed", func() bool { return !s.running(sb, "", word) })
					continue
				}
				if !s.running(sb, "", word) {
					t.Fatal("it does not go on")
				}
				s.shell(sb, "echo >/tmp/end"+word)
				a.header["Accept"] = "application/json"
				var out v1.Executed
				s.want(200, &out, a)
				if out.Stdout != "begun\nended\n" || out.Result.ExitCode != 0 {
					t.Errorf("%+v", out)
				}
			}
		})
	}
}

func (s *service) shell(sb v1.Sandbox, script string) string {
	s.t.Helper()
	var out v1.Executed
	s.want(200, &out, ask{method: "POST", path: execPath(sb), body: v1.Exec{Command: v1.Command{Script: script}}})
	return out.Stdout
}

// An append that was refused before it began gives its key back.
func TestRefusedAppendGivesItsKeyBack(t *testing.T) {
	s := serve(t, nil)
	sb := s.create("", v1.Spec{})
	base := "/v1/sandboxes/" + sb.ID
	for i, where := range []string{"/tmp/none/f", "/proc/version", "/tmp/f"} {
		request := keyed(fmt.Sprint("k", i), ask{method: "PUT", path: base + "/files?append=true&path=" + where, body: "a line\n"})
		if where == "/tmp/f" {
			s.want(200, nil, ask{method: "POST", path: base + "/stop", body: v1.Stop{}})
			s.refused(409, "state", request)
			s.want(200, nil, ask{method: "POST", path: base + "/start"})
		} else {
			for range 2 {
				if status, _, header := s.get(request); status/100 != 4 || header.Get("Idempotent-Replayed") != "" {
					t.Errorf("%s: %d, %v", where, status, header)
				}
			}
			s.shell(sb, "mkdir -p /tmp/none")
		}
		if where != "/proc/version" {
			s.want(200, nil, request)
			if got := s.shell(sb, "cat "+where); got != "a line\n" {
				t.Errorf("%s is %q", where, got)
			}
		}
	}
}
