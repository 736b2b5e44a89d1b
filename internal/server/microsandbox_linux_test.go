package server_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/sandpit-dev/sandpit"
	v1 "github.com/sandpit-dev/sandpit/internal/api/v1"
	"github.com/sandpit-dev/sandpit/internal/dialect"
	"github.com/sandpit-dev/sandpit/internal/dialect/microsandbox"
	"github.com/sandpit-dev/sandpit/internal/driver"
	"github.com/sandpit-dev/sandpit/internal/driver/linux"
	"github.com/sandpit-dev/sandpit/internal/feature"
	"github.com/sandpit-dev/sandpit/internal/network"
	"github.com/sandpit-dev/sandpit/internal/server"
	"github.com/sandpit-dev/sandpit/internal/testkit"
)

// withMicrosandbox is withDialect for clients of microsandbox's APIs.
func (s *served) withMicrosandbox() (url, key string) {
	s.t.Helper()
	return s.withDialect(microsandbox.New())
}

// The SDKs of microsandbox work unmodified: each runs a program that calls what a server can answer, and checks results
// and errors. docs/COMPATIBILITY.md has what comes of it.
func TestMicrosandboxClients(t *testing.T) {
	s := newServed(t)
	url, _ := s.withMicrosandbox()
	env := func(namespace string) []string {
		key := s.makeKey(v1.NewKey{Namespace: namespace, Format: "microsandbox"}).Secret
		return []string{"MSB_BACKEND=cloud", "MSB_API_URL=" + url, "MSB_API_KEY=" + key}
	}

	npm, node, python := testkit.NeedProgram(t, "npm"), testkit.NeedProgram(t, "node"), testkit.NeedProgram(t, "python3")
	for _, language := range []string{"javascript", "python"} {
		for _, version := range recipeVersions(t, "microsandbox-"+language) {
			t.Run(language+"/"+version, func(t *testing.T) {
				if version != newest {
					testkit.NeedLong(t, "it installs and runs older versions")
				}
				g := newGenerator(t, "microsandbox-"+language, env(language+version))
				g.version(version)
				if language == "javascript" {
					// The SDK asks for a newer node than it needs, and ci for the packages of other platforms.
					modules := g.modules(npm, "install")
					compatible(t, g.printed(node, "scenario.mjs"))
					programs, err := filepath.Glob(filepath.Join(modules, "@superradcompany/*/bin/msb"))
					compatible(t, commandLine(t, programs, err, env(language+version+"-msb")))
					return
				}
				bin := g.venv(python)
				compatible(t, g.printed(filepath.Join(bin, "python"), "-X", "faulthandler", "scenario.py"))
				programs, err := filepath.Glob(filepath.Join(bin, "../lib/python3*/site-packages/microsandbox/_bundled/bin/msb"))
				compatible(t, commandLine(t, programs, err, env(language+version+"-msb")))
			})
		}
	}
	t.Run("mcp", func(t *testing.T) {
		g := newGenerator(t, "microsandbox-mcp", append(env("mcp"), "HOME="+t.TempDir()))
		g.modules(npm, "install")
		compatible(t, g.printed(node, "scenario.mjs"))
	})
}

// commandLine runs the commands of the program msb in the native package of an SDK, and reports on each. What it does not have is
// of other versions.
func commandLine(t *testing.T, programs []string, err error, env []string) (report string) {
	t.Helper()
	if err != nil || len(programs) != 1 {
		t.Fatalf("the native packages have the programs %q, %v", programs, err)
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "up"), []byte("from the host"), 0o600); err != nil {
		t.Fatal(err)
	}
	run := func(args ...string) (out string, code int) {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), programs[0], args...)
		cmd.Dir, cmd.Env = dir, append(append(os.Environ(), env...), "HOME="+dir)
		all, err := cmd.CombinedOutput()
		if cmd.ProcessState == nil {
			t.Fatal(err)
		}
		return string(all), cmd.ProcessState.ExitCode()
	}
	out, _ := run("--version")
	version := strings.TrimPrefix(strings.Fields(out + " ? ?")[1], "v")
	for _, c := range []struct {
		args string // of msb; the first one is the command, and ~ is a space
		code int
		want string // in its output

		status string // if it does not work
	}{
		{"create --name m -e FOO=bar microsandbox/python", 0, "", ""},
		{"ls", 0, "running", ""},
		{"status m", 0, "running", ""},
		{"inspect m", 0, "running", ""},
		{"exec m -- sh -c exit~3", 3, "", ""},
		{"exec m -- printenv FOO", 0, "bar\n", ""},
		{"cp DIR/up m:/tmp/up", 0, "", ""},
		{"exec m -- cat /tmp/up", 0, "from the host", ""},
		{"cp m:/tmp/up DIR/down", 0, "", ""},
		{"stop m", 0, "Stopped", ""},
		{"start m", 0, "Started", ""},
		{"restart m", 0, "Stopped", ""},
		{"run --name once microsandbox/python -- echo once", 0, "once\n", ""},
		{"rm -f once", 0, "Removed", ""},
		{"exec once -- true", 1, "not found", ""},
		{"logs m", 1, "logs", "refused by the client: local only"},
		{"ping m", 1, "not supported by this backend", "refused by the client: local only"},
		{"touch m", 1, "not supported by this backend", "refused by the client: local only"},
		{"metrics m", 1, "local backend", "refused by the client: local only"},
		{"image ls", 1, "local backend", "refused by the client: local only"},
		{"pull x", 1, "local backend", "refused by the client: local only"},
		{"volume ls", 1, "501: GET /v1/volumes: volumes are not supported by this server", "not yet: volumes"},
		{"snapshot ls", 1, "snapshot", "not yet: snapshots"},
		{"rm -f m", 0, "Removed", ""},
	} {
		args := strings.Fields(c.args)
		for i, a := range args {
			args[i] = strings.NewReplacer("~", " ", "DIR", dir).Replace(a)
		}
		out, code := run(args...)
		if code != c.code || !strings.Contains(out, c.want) {
			t.Errorf("msb %s %s: %d %q, want %d %q", version, c.args, code, out, c.code, c.want)
		}
		status := c.status
		if status == "" {
			status = "works"
		}
		if args[0] == "snapshot" && !strings.Contains(out, "501: GET /v1/snapshots: snapshots are not supported by this server") {
			status = "refused by the client: local only" // until 0.6
		}
		report += fmt.Sprintf(`{"client":"microsandbox (msb)","version":%q,"method":"msb %s","status":%q}`+"\n", version, args[0], status)
	}
	if down, err := os.ReadFile(filepath.Join(dir, "down")); err != nil || string(down) != "from the host" {
		t.Errorf("copied %q, %v", down, err)
	}
	return report
}

// Values of secrets are used, and stored nowhere in clear: programs in the sandbox have placeholders.
func TestMicrosandboxSecrets(t *testing.T) {
	testkit.NeedRoot(t, "to make the interface of a sandbox")
	s := newServed(t)
	url, key := s.withMicrosandbox()
	bearer := []string{"Authorization", "Bearer " + key}
	body := `{"name":"secretive","source":"oci","reference":"microsandbox/python","env":[{"key":"PLAIN","value":"plain-value-of-env"}],"network":{"secrets":{"entries":[
		{"env_var":"API_KEY","value":"value-of-the-secret","placeholder":"$MSB_API_KEY","allowed_hosts":[{"type":"exact","value":"api.example.com"},{"type":"wildcard","value":"*.example.org"}],"substitution":{"headers":true}}]}}}`
	s.e2bCall(t, 501, "can't have secrets", "POST", url+"/v1/sandboxes", body, bearer...)
	answers := s.e2bCall(t, 201, `"status":"running"`, "POST", url+"/v1/sandboxes?start=true", body, bearer...)
	answers += s.e2bCall(t, 200, "", "GET", url+"/v1/sandboxes/by-name/secretive", "", bearer...)
	c := s.with(key)
	defer c.Close()
	sb, err := c.Get(t.Context(), "secretive")
	if err != nil {
		t.Fatal(err)
	}
	run, err := sandpit.Shell(t.Context(), sb, "echo $API_KEY ${#PLAIN}")
	if err != nil || !strings.HasPrefix(string(run.Stdout), "sandpit") || !strings.HasSuffix(string(run.Stdout), " 18\n") {
		t.Errorf("the variables are %q, %v", run.Stdout, err)
	}
	info, err := sb.Info(t.Context())
	want := []sandpit.SecretUse{{Name: "env.API_KEY", Hosts: []string{"api.example.com:443", "*.example.org:443"}}}
	if diff := gocmp.Diff(want, info.Secrets); err != nil || diff != "" {
		t.Errorf("the secrets are %v\n%s", err, diff)
	}
	s.grep(t, answers, "value-of-the-secret", "plain-value-of-env")
}

// Requests that no client sends get an error in the form that clients read, and nobody gets at the
// sandbox of another key.
func TestMicrosandboxBadInput(t *testing.T) {
	s := newServed(t)
	url, key := s.withMicrosandbox()
	call := func(status int, text, method, path, body string, headers ...string) string {
		t.Helper()
		return s.e2bCall(t, status, text, method, url+path, body, headers...)
	}
	mine := []string{"Authorization", "Bearer " + key}
	other := []string{"Authorization", "Bearer " + s.keyOf("other", "")}

	call(401, `{"error":{"code":"unauthenticated"`, "GET", "/v1/sandboxes", "")
	call(401, `{"error":{"code":"unauthenticated"`, "GET", "/v1/sandboxes", "", "Authorization", "Bearer msb_x")
	call(200, `{"data":[],"has_more":false,"next_cursor":null}`, "GET", "/v1/sandboxes", "", mine...)
	call(200, `{"data":[],`, "GET", "/v1/sandboxes", "", "Proxy-Authorization", key, "Authorization", "Bearer x")
	call(404, `{"error":{"code":"sandbox_not_found"`, "GET", "/v1/sandboxes/by-name/nonesuch", "", mine...)
	call(404, `{"error":{"code":"sandbox_not_found"`, "GET", "/v1/sandboxes/by-name/..", "", mine...)
	call(404, `{"error":{"code":"sandbox_not_found"`, "GET", "/v1/sandboxes/by-name/%2e%2e%2fx", "", mine...)
	call(404, `{"error":{"code":"sandbox_not_found"`, "GET", "/v1/sandboxes/nonesuch", "", other...)
	call(404, `{"error":{"code":"sandbox_not_found"`, "DELETE", "/v1/sandboxes/nonesuch", "", other...)
	call(404, `{"error":{"code":"no_route"`, "GET", "/v9/sandboxes", "", mine...)
	call(400, `{"error":{"code":"invalid_request"`, "GET", "/v1/sandboxes?limit=-1", "", mine...)
	call(400, `{"error":{"code":"invalid_request"`, "GET", "/v1/sandboxes?labels=x", "", mine...)

	create := func(status int, text, more string) {
		t.Helper()
		call(status, text, "POST", "/v1/sandboxes?start=true", `{"name":"bad","source":"oci","reference":"microsandbox/python"`+more+`}`, mine...)
	}
	for _, more := range []string{ // unknown fields of what must not be dropped
		`,"network":{"x":1}`, `,"network":{"policy":{"default_egress":"deny","rules":[{"x":1}]}}`, `,"network":{"secrets":{"entries":[{"x":1}]}}`,
		`,"network":{"policy":{"default_egress":"deny","rules":[{"direction":"egress","action":"allow","destination":{"x":1}}]}}`,
		`,"resources":{"x":1}`, `,"rlimits":[{"x":1}]`, `,"mounts":[{"type":"tmpfs","guest":"/x","x":1}]`,
	} {
		create(400, `unknown field \"x\"`, more)
	}
	for more, text := range map[string]string{
		`,"resources":{"memory_mib":-1}`:                                                       "",
		`,"resources":{"memory_mib":1e30}`:                                                     "",
		`,"lifecycle":{"max_duration_secs":0}`:                                                 "max_duration_secs",
		`,"lifecycle":{"idle_timeout_secs":-1}`:                                                "idle_timeout_secs",
		`,"pull_policy":"x"`:                                                                   "pull_policy",
		`,"security_profile":"x"`:                                                              "security_profile",
		`,"patches":[{"type":"text","path":"x"}]`:                                              "not absolute",
		`,"patches":[{"type":"text","path":"/a/../x"}]`:                                        "has ..",
		`,"patches":[{"type":"file","path":"/a","content":[256]}]`:                             "neither text nor bytes",
		`,"patches":[{"type":"append","path":"/nonesuch","content":"x"}]`:                      "the patch append of /nonesuch",
		`,"patches":[{"type":"text","path":"/etc/passwd","content":"x"}]`:                      "file already exists",
		`,"network":{"policy":{"default_egress":"x","rules":[]}}`:                              "default_egress",
		`,"network":{"secrets":{"entries":[{"env_var":"K","substitution":{"headers":true}}]}}`: "no value",
		`,"name":"../x"`:  "",
		`,"name":5`:       "",
		`,"reference":""`: "reference",
		`,"env":[{"key":"A=B\u0000","value":"x"}]`: "",
		`,"image":5`:                    "",
		`,"reference":"no such image!"`: "",
	} {
		create(400, text, more)
	}
	for more, text := range map[string]string{
		`,"source":"bind","path":"/"`:                                           "bind",
		`,"source":"disk_snapshot"`:                                             "disk_snapshot",
		`,"image":{"type":"bind","path":"/"}`:                                   "bind",
		`,"slug":"x"`:                                                           "slug",
		`,"registry":{"mode":"inline","username":"u","password":"p"}`:           "registry credentials",
		`,"init":{"cmd":"auto"}`:                                                "init",
		`,"mounts":[{"type":"bind","host":"/","guest":"/x"}]`:                   "bind",
		`,"mounts":[{"type":"named","name":"v","guest":"/x"}]`:                  "named",
		`,"mounts":[{"type":"tmpfs","guest":"/x","options":{"readonly":true}}]`: "readonly",
		`,"patches":[{"type":"copy_file","src":"/etc/shadow","dst":"/x"}]`:      "copy_file",
		`,"network":{"policy":{"default_egress":"deny","rules":[{"direction":"egress","action":"allow","destination":{"group":"host"}}]}}`:  "host",
		`,"network":{"secrets":{"entries":[{"env_var":"K","value":"v","substitution":{"headers":true,"body":true}}]}}`:                      "bodies",
		`,"network":{"secrets":{"entries":[{"env_var":"K","value":"v","substitution":{"headers":true},"allowed_hosts":[{"type":"any"}]}]}}`: "any",
	} {
		create(501, text, more)
	}
	for limit, text := range map[string]string{
		`"x","soft":1,"hard":1`: `the rlimit \"x\" is not known`, `"cpu","soft":2,"hard":1`: "the soft rlimit cpu is above the hard one",
		`"core","soft":2,"hard":2`: "the rlimit core is too high", `"nice","soft":0,"hard":1`: "the rlimit nice is too high", `"rtprio","soft":1,"hard":1`: "the rlimit rtprio is too high",
		`"memlock","soft":0,"hard":18446744073709551615`: "the rlimit memlock is too high", `"cpu","soft":0,"hard":18446744073709551614`: "the rlimit cpu is out of range",
		`"cpu","soft":-1,"hard":-1`: `\"soft\" must be a whole number in range`, `"cpu","soft":1,"hard":1},{"resource":"cpu","soft":1,"hard":1`: "the rlimit cpu is given twice",
	} {
		create(400, text, `,"rlimits":[{"resource":`+limit+`}]`)
	}
	call(413, `"invalid_request"`, "POST", "/v1/sandboxes", `{"x":"`+strings.Repeat("x", 17<<20)+`"}`, mine...)
	call(200, `{"data":[],`, "GET", "/v1/sandboxes", "", mine...)

	answer := call(201, `"status":"running"`, "POST", "/v1/sandboxes?start=true", `{"name":"mine","image":{"type":"oci","reference":"microsandbox/python"},"unknown":1}`, mine...)
	var made struct{ ID string }
	if err := json.Unmarshal([]byte(answer), &made); err != nil {
		t.Fatal(err)
	}
	call(409, `"name_already_exists"`, "POST", "/v1/sandboxes", `{"name":"mine","source":"oci","reference":"microsandbox/python"}`, mine...)
	for _, path := range []string{made.ID, "by-name/mine", "by-name/" + made.ID, "mine"} {
		at := "/v1/sandboxes/" + path
		call(404, `"sandbox_not_found"`, "GET", at, "", other...)
		call(404, `"sandbox_not_found"`, "POST", at+"/stop", "{}", other...)
		call(404, `"sandbox_not_found"`, "POST", at+"/start", "{}", other...)
		call(404, `"sandbox_not_found"`, "DELETE", at, "", other...)
	}
	call(200, `"name":"mine"`, "GET", "/v1/sandboxes/"+made.ID, "", mine...)
	call(200, `"name":"mine"`, "GET", "/v1/sandboxes/by-name/mine", "", mine...)
	call(404, `"sandbox_not_found"`, "GET", "/v1/sandboxes/mine", "", mine...)
	call(404, `"sandbox_not_found"`, "GET", "/v1/sandboxes/by-name/"+made.ID, "", mine...)
	call(405, `"method_not_allowed"`, "DELETE", "/v1/sandboxes", "", mine...)
	call(200, `"image":{"type":"oci","reference":"microsandbox/python"}`, "GET", "/v1/sandboxes/by-name/mine", "", append(mine, "User-Agent", "microsandbox-sdk/0.6.18")...)
	call(200, `"source":"oci","reference":"microsandbox/python"`, "GET", "/v1/sandboxes/by-name/mine", "", append(mine, "User-Agent", "microsandbox-sdk/0.7.11")...)
	call(200, `"status":"stopped"`, "POST", "/v1/sandboxes/by-name/mine/stop", "", mine...)
	call(200, `"status":"running"`, "POST", "/v1/sandboxes/by-name/mine/start", "{}", mine...)
	call(200, `{"message":`, "DELETE", "/v1/sandboxes/by-name/mine", "", mine...)
	call(201, `"ephemeral":true`, "POST", "/v1/sandboxes?start=true", `{"name":"short","source":"oci","reference":"microsandbox/python","lifecycle":{"ephemeral":true}}`, mine...)
	call(200, `"status":"stopped"`, "POST", "/v1/sandboxes/by-name/short/stop", "", mine...)
	call(200, `"status":"stopped"`, "GET", "/v1/sandboxes/by-name/short", "", mine...)
	call(404, `"sandbox_not_found"`, "GET", "/v1/sandboxes/by-name/short", "", other...)
	call(404, `"sandbox_not_found"`, "DELETE", "/v1/sandboxes/by-name/short", "", mine...)
	call(200, `{"data":[],`, "GET", "/v1/sandboxes", "", mine...)

	if _, page, _ := s.get("GET", "http://sandpit/metrics", "", ""); !strings.Contains(page, `sandpit_ignored_fields_total{operation="microsandbox.createSandbox"} `) {
		t.Errorf("the metrics lack the ignored fields:\n%s", page)
	}
}

// Limits of resources hold in each program of a sandbox, which may have others, and scripts are found by their names.
func TestMicrosandboxRlimitsAndScripts(t *testing.T) {
	s := newServed(t)
	url, key := s.withMicrosandbox()
	body := `{"name":"limited","source":"oci","reference":"microsandbox/python","rlimits":[{"resource":"nofile","soft":99,"hard":99},{"resource":"nproc","soft":140,"hard":144},{"resource":"core","soft":0,"hard":18446744073709551615},
			{"resource":"fsize","soft":1000000,"hard":18446744073709551615},{"resource":"stack","soft":4194304,"hard":8388608}],
		"env":[{"key":"PATH","value":"/tmp/own:/usr/bin:/bin"}],"runtime":{"scripts":{"hello":"#!/bin/sh\necho hello $1\n"},"user":"nobody"}}`
	s.e2bCall(t, 201, `"status":"running"`, "POST", url+"/v1/sandboxes?start=true", body, "Authorization", "Bearer "+key)
	c := s.with(key)
	defer c.Close()
	sb, err := c.Get(t.Context(), "limited")
	if err != nil {
		t.Fatal(err)
	}
	if info, err := sb.Info(t.Context()); err != nil || info.Limits.NoFile != 99 {
		t.Errorf("the limits are %+v, %v", info.Limits, err)
	}
	a := agent(t, url, key, sb.ID())
	for env, want := range map[string]string{"A=b": "/.msb/scripts:/tmp/own:/usr/bin:/bin", "PATH=/bin": "/.msb/scripts:/bin"} {
		out, errs, _ := a.shell("hello you; echo $PATH; ulimit -n", msi{"env": []string{env}, "rlimits": []msi{{"resource": "core", "soft": 0, "hard": 0}}})
		if out != "hello you\n"+want+"\n99\n" {
			t.Errorf("%q: %q %q", env, out, errs)
		}
	}
	if out, errs, _ := a.shell("/usr/local/bin/sudo sh -c 'ulimit -n; ulimit -Hs; ulimit -f'", msi{}); out != "99\n8192\n1953\n" {
		t.Errorf("the limits of a command of sudo are %q %q", out, errs)
	}
	out, errs, _ := a.shell("cat /proc/self/limits", msi{"rlimits": []msi{{"resource": "stack", "soft": 1 << 20, "hard": uint64(math.MaxUint64)}, {"resource": "cpu", "soft": 50, "hard": 60}}})
	for _, want := range []string{
		"Max open files 99 99", "Max processes 140 144", "Max file size 1000000 unlimited", "Max stack size 1048576 unlimited", "Max cpu time 50 60",
	} {
		if !strings.Contains(strings.Join(strings.Fields(out), " "), want) {
			t.Errorf("no %s in %s%s", want, out, errs)
		}
	}
	if data, _ := a.rest(a.start("core.exec.request", msi{"cmd": "hello", "args": []string{"again"}})); data["core.exec.stdout"] != "hello again\n" {
		t.Errorf("%q", data)
	}
}

// The log is followed from its beginning, or from after the entry that the client has seen last.
func TestMicrosandboxLogs(t *testing.T) {
	s := newServed(t)
	url, key := s.withMicrosandbox()
	bearer := []string{"Authorization", "Bearer " + key}
	answer := s.e2bCall(t, 201, "", "POST", url+"/v1/sandboxes?start=true", `{"name":"logged","source":"oci","reference":"microsandbox/python"}`, bearer...)
	var made struct{ ID string }
	if err := json.Unmarshal([]byte(answer), &made); err != nil {
		t.Fatal(err)
	}
	c := s.with(key)
	defer c.Close()
	sb, err := c.Get(t.Context(), "logged")
	if err != nil {
		t.Fatal(err)
	}
	for _, script := range []string{"echo one", "printf '\\377\\n' >&2", "echo three"} {
		if _, err := sandpit.Shell(t.Context(), sb, script); err != nil {
			t.Fatal(err)
		}
	}
	// follow returns what comes until a text, and the cursors of the entries.
	follow := func(until, query, after string) (text string, cursors []string) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, url+"/v1/sandboxes/"+made.ID+"/logs"+query, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set(bearer[0], bearer[1])
		r.Header.Set("Last-Event-ID", after)
		resp, err := s.http().Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		lines := bufio.NewScanner(resp.Body)
		for lines.Scan() && !strings.Contains(text, until) {
			text += lines.Text() + "\n"
			if id, ok := strings.CutPrefix(lines.Text(), "id: "); ok {
				cursors = append(cursors, id)
			}
		}
		if !strings.Contains(text, until) {
			t.Errorf("the log %s ended before %s: %q, %v", query, until, text, lines.Err())
		}
		return text, cursors
	}
	text, cursors := follow(`"three\n"`, "", "")
	for _, want := range []string{"event: log\ndata: {\"source\":\"stdout\",\"ts\":\"2", `"text":"one\n"`, `{"source":"stderr","ts":"2`, `"text":"` + "\uFFFD" + `\n"`} {
		if !strings.Contains(text, want) {
			t.Errorf("the log lacks %s: %q", want, text)
		}
	}
	if text, _ := follow(`"three\n"`, "?sources=stdout,output", "AA=="); strings.Contains(text, "stderr") || !strings.Contains(text, "one") {
		t.Errorf("the log of stdout is %q", text)
	}
	if text, _ := follow(`"three\n"`, "", cursors[1]); strings.Contains(text, "one") || strings.Contains(text, "stderr") {
		t.Errorf("the log after the second entry is %q", text)
	}
	logs := url + "/v1/sandboxes/" + made.ID + "/logs"
	s.e2bCall(t, 400, `"invalid_request"`, "GET", logs+"?sources=x", "", bearer...)
	s.e2bCall(t, 400, `"invalid_request"`, "GET", logs, "", append(bearer, "Last-Event-ID", "5")...)
	s.e2bCall(t, 404, `"sandbox_not_found"`, "GET", logs, "", "Authorization", "Bearer "+s.keyOf("other", ""))
	for _, path := range []string{"/v1/volumes", "/v1/volumes/default", "/v1/snapshots", "/v1/snapshots/by-name/x"} {
		s.e2bCall(t, 501, `{"error":{"code":"unsupported"`, "GET", url+path, "", bearer...)
	}
}

// A log that is followed ends with its sandbox, after all that it has.
func TestMicrosandboxLogsEnd(t *testing.T) {
	s := newServed(t)
	url, key := s.withMicrosandbox()
	c := s.with(key)
	defer c.Close()
	for name, end := range map[string]func(sandpit.Sandbox) error{
		"stopped": func(sb sandpit.Sandbox) error { return sb.(sandpit.Lifecycle).Stop(t.Context(), 0) },
		"removed": func(sb sandpit.Sandbox) error { return sb.Remove(t.Context()) },
		"expired": func(sb sandpit.Sandbox) error {
			return sb.(sandpit.Lifecycle).SetLifetime(t.Context(), sandpit.Lifetime{Life: time.Second, OnExpiry: sandpit.ExpiryStop})
		},
	} {
		t.Run(name, func(t *testing.T) {
			answer := s.e2bCall(t, 201, "", "POST", url+"/v1/sandboxes?start=true", `{"name":"`+name+`","source":"oci","reference":"microsandbox/python"}`, "Authorization", "Bearer "+key)
			var made struct{ ID string }
			if err := json.Unmarshal([]byte(answer), &made); err != nil {
				t.Fatal(err)
			}
			sb, err := c.Get(t.Context(), made.ID)
			if err != nil {
				t.Fatal(err)
			}
			// follow returns all of the log once it has ended.
			follow := func(first func()) string {
				t.Helper()
				ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience)
				defer cancel()
				r, err := http.NewRequestWithContext(ctx, http.MethodGet, url+"/v1/sandboxes/"+made.ID+"/logs", nil)
				if err != nil {
					t.Fatal(err)
				}
				r.Header.Set("Authorization", "Bearer "+key)
				resp, err := s.http().Do(r)
				if err != nil {
					t.Fatal(err)
				}
				defer resp.Body.Close()
				first()
				all, err := io.ReadAll(resp.Body)
				if err != nil {
					t.Errorf("the log does not end: %v", err)
				}
				return string(all)
			}
			text := follow(func() {
				if _, err := sandpit.Shell(t.Context(), sb, "echo the last words"); err != nil {
					t.Error(err)
				}
				if err := end(sb); err != nil {
					t.Error(err)
				}
			})
			if !strings.Contains(text, "the last words") || !strings.Contains(text, "\nevent: end\n") {
				t.Errorf("the log is %q", text)
			}
			if name == "removed" {
				return
			}
			if text := follow(func() {}); !strings.Contains(text, "the last words") || !strings.Contains(text, "\nevent: end\n") {
				t.Errorf("the log of one that has ended is %q", text)
			}
		})
	}
}

// oneUser is a driver whose sandboxes have one user, as those of an ordinary user without subordinate IDs.
type oneUser struct{ *linux.Driver }

func (d oneUser) Probe(ctx context.Context) driver.Capabilities {
	c := d.Driver.Probe(ctx)
	c.Features = maps.Clone(c.Features)
	delete(c.Features, feature.Users)
	return c
}

// A sandbox of an ordinary user has egress also where it can't have root inside.
func TestMicrosandboxOneUser(t *testing.T) {
	s := newServed(t)
	at := testkit.Address(t)
	s.settings.Listen = append(s.settings.Listen, server.Listen{Address: server.Address{Network: "tcp", Host: at}, Service: microsandbox.Name})
	s.change = func(o *server.Options) {
		o.Driver, o.Dialects, o.Network = oneUser{o.Driver.(*linux.Driver)}, []dialect.Dialect{microsandbox.New()}, network.InProcess{}
	}
	s.start()
	key := s.makeKey(v1.NewKey{Namespace: "microsandbox", Format: "microsandbox"}).Secret
	s.e2bCall(t, 201, `"status":"running"`, "POST", "http://"+at+"/v1/sandboxes?start=true", `{"name":"a","image":{"type":"oci","reference":"host"},"runtime":{"user":"nobody"}}`, "Authorization", "Bearer "+key)
	c := s.with(key)
	defer c.Close()
	sb, err := c.Get(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	if e, err := sb.Egress(t.Context()); err != nil || e.Preset != sandpit.EgressPublic {
		t.Errorf("its egress is %+v, %v", e, err)
	}
}
