package server_test

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	v1 "github.com/sandpit-dev/sandpit/internal/api/v1"
	"github.com/sandpit-dev/sandpit/internal/testkit"
)

// Clients of microsandbox's JSON-RPC server work unmodified: its SDK, and the reference client of MCP. docs/COMPATIBILITY.md
// has what comes of it.
func TestMicrosandboxRPCClients(t *testing.T) {
	s := newServed(t)
	url, key := s.withMicrosandbox()
	python := testkit.NeedProgram(t, "python3")
	testkit.NeedProgram(t, "node") // which sandboxes of the host's files have, too
	g := newGenerator(t, "microsandbox-rpc-python", []string{"MSB_SERVER_URL=" + url, "MSB_API_KEY=" + key})
	bin := filepath.Join(g.venv(python), "python")
	compatible(t, g.run(bin, "scenario.py"))
	g.quiet(bin, "tools.py")
	g.quiet(bin, "examples.py")
}

// Calls that no client makes get an error in one of the three forms, and nobody gets at the sandbox of another key.
func TestMicrosandboxRPCBadInput(t *testing.T) {
	s := newServed(t)
	s.settings.Origins = []string{"https://page.example"}
	url, key := s.withMicrosandbox()
	bearer := func(key string) []string {
		return []string{"Content-Type", "application/json", "Authorization", "Bearer " + key}
	}
	mine, other := bearer(key), bearer(s.keyOf("other", ""))
	send := func(status int, want, path, body string, headers ...string) string {
		t.Helper()
		return s.e2bCall(t, status, want, "POST", url+path, body, headers...)
	}
	call := func(status int, want, method, params string, headers ...string) {
		t.Helper()
		send(status, want, "/api/v1/rpc", fmt.Sprintf(`{"jsonrpc":"2.0","method":%q,"params":%s,"id":"7"}`, method, params), headers...)
	}

	s.e2bCall(t, 200, `{"message":"Service is healthy"}`, "GET", url+"/api/v1/health", "")
	call(401, `{"error":"the request has no key`, "sandbox.start", "{}")
	call(401, `"code":1001}`, "sandbox.start", "{}", mine[:2]...)
	call(401, `"code":1004}`, "sandbox.start", "{}", bearer("msb_x")...)
	call(404, `"code":4001}`, "sandbox.stop", `{"sandbox":"a","namespace":"n"}`, "Content-Type", "application/json; charset=utf-8", "Proxy-Authorization", key, "Authorization", "x")
	send(415, "Expected request with", "/api/v1/rpc", "{}", append(mine[2:], "Content-Type", "")...)
	send(415, "Expected request with", "/mcp", "{}", append(mine[2:], "Content-Type", "text/plain")...)
	send(413, "2 MB", "/api/v1/rpc", `{"x":"`+strings.Repeat("x", 2<<20)+`"}`, mine...)
	for _, path := range []string{"/api/v1/rpc", "/api/v1/rpc/", "/mcp", "/mcp/"} {
		for _, body := range []string{"", "{", `{"jsonrpc":"2.0"`, `{}{}`, "\xff", "nul"} {
			send(400, "Failed to parse the request body as JSON", path, body, mine...)
		}
		for _, body := range []string{`7`, `"x"`, `{"jsonrpc":2}`, `{"jsonrpc":"2.0","method":{}}`} {
			send(422, "Failed to deserialize the JSON body into the target type", path, body, mine...)
		}
		for _, body := range []string{"[]", `[{"jsonrpc":"2.0"}]`} {
			send(400, `{"jsonrpc":"2.0","error":{"code":-32600,"message":"batches`, path, body, mine...)
		}
		send(400, `{"jsonrpc":"2.0","error":{"code":-32600,"message":"Invalid or missing jsonrpc version field"},"id":[1]}`, path, `{"jsonrpc":"1.0","method":"sandbox.start","id":[1]}`, mine...)
	}
	s.e2bCall(t, 405, `{"error":"this path does not support the method GET`, "GET", url+"/mcp", "", mine...)
	s.e2bCall(t, 405, `"code":5002}`, "GET", url+"/api/v1/rpc", "", mine...)
	s.e2bCall(t, 404, "", "POST", url+"/api/v1/rpc/x", "{}", mine...)
	call(404, `{"jsonrpc":"2.0","error":{"code":-32601,"message":"Method not found: sandbox.x"},"id":"7"}`, "sandbox.x", "{}", mine...)
	call(404, `"Method not found: "`, "", "{}", mine...)

	// Pages need the operator's leave.
	call(403, `{"error":"requests from this Origin are not allowed`, "sandbox.x", "{}", append(mine, "Origin", "https://other.example")...)
	call(404, `-32601`, "sandbox.x", "{}", append(mine, "Origin", "https://page.example")...)
	if status, _, h := s.get("OPTIONS", url+"/mcp", "", "", "Origin", "https://page.example", "Access-Control-Request-Method", "POST"); status != 204 || !strings.Contains(h.Get("Access-Control-Allow-Headers"), "Authorization") {
		t.Errorf("the preflight of an allowed page is answered with %d %v", status, h)
	}

	for _, params := range []string{"null", "[]", "7", `"x"`} {
		call(400, `{"error":"the parameters must be an object","code":2001}`, "sandbox.start", params, mine...)
	}
	at := func(more string) string { return `{"sandbox":"a","namespace":"n"` + more + `}` }
	for params, want := range map[string]string{
		`{}`:                                     "Sandbox name cannot be empty",
		`{"sandbox":"a"}`:                        "Namespace name cannot be empty",
		`{"sandbox":"a","namespace":"*"}`:        "Namespace name can only contain alphanumeric characters, hyphens, or underscores",
		`{"sandbox":"..","namespace":"n"}`:       "Sandbox name can only contain",
		`{"sandbox":"a/b","namespace":"n"}`:      "Sandbox name can only contain",
		`{"sandbox":"a","namespace":"../other"}`: "Namespace name can only contain",
		`{"sandbox":"-a","namespace":"n"}`:       "Sandbox name must start with an alphanumeric character",
		`{"sandbox":"` + strings.Repeat("a", 64) + `","namespace":"n"}`: "Sandbox name cannot exceed 63 characters",
		`{"sandbox":7,"namespace":"n"}`:                                 `\"sandbox\" must be a string`,
		at(""):                                                          "No configuration provided and no existing configuration found for sandbox 'a'",
		at(`,"config":{}`):                                              "Sandbox 'a' not found in existing configuration",
		at(`,"config":{"image":"microsandbox/python","scripts":{"../x":""}}`): `can't be the name of a script`,
		at(`,"config":7`):                                                    "the parameters are not valid",
		at(`,"config":{"memory":-1}`):                                        "the parameters are not valid",
		at(`,"config":{"memory":1.5}`):                                       "the parameters are not valid",
		at(`,"config":{"cpus":256}`):                                         "the parameters are not valid",
		at(`,"config":{"envs":{"a":"b"}}`):                                   "the parameters are not valid",
		at(`,"config":{"image":"microsandbox/python","memory":1}`):           "memory",
		at(`,"config":{"image":"microsandbox/python","envs":["x"]}`):         `x`,
		at(`,"config":{"image":"microsandbox/python","volumes":["a:b"]}`):    "absolute paths",
		at(`,"config":{"image":"microsandbox/python","workdir":"relative"}`): "relative",
	} {
		call(400, want, "sandbox.start", params, mine...)
	}
	for _, field := range []string{`"ports":["80"]`, `"depends_on":["b"]`, `"scope":"none"`, `"network":{}`, `"secrets":[]`, `"rlimits":[]`, `"mounts":[]`, `"resources":{}`} {
		call(501, "not supported by this server", "sandbox.start", at(`,"config":{"image":"microsandbox/python",`+field+`}`), mine...)
	}
	call(403, `"code":3001}`, "sandbox.start", at(`,"config":{"image":"microsandbox/python","volumes":["/etc"]}`), mine...)
	call(404, "nonesuch", "sandbox.start", at(`,"config":{"image":"nonesuch"}`), mine...)

	// Null and unknown fields are as if they were not there.
	call(200, `{"jsonrpc":"2.0","result":"Sandbox a started successfully","id":"7"}`, "sandbox.start", at(`,"config":{"image":"microsandbox/python","memory":256,"volumes":null,"ports":null,"envs":["A=b"],"depends_on":null,"scripts":null,"shell":null,"x":1}`), mine...)
	call(200, `started successfully`, "sandbox.start", at(""), mine...)
	call(200, `{"stream":"stdout","text":"b"}`, "sandbox.command.execute", at(`,"command":"sh","args":["-c","echo $A"]`), mine...)
	call(400, `the parameters are not valid`, "sandbox.command.run", at(`,"command":"true","timeout":-1`), mine...)
	call(200, `"exit_code":0`, "sandbox.command.run", at(`,"command":"true","timeout":18446744073709551615`), mine...)
	call(500, `"code":5002}`, "sandbox.command.run", at(`,"command":"/nonesuch"`), mine...)
	call(400, `"code":2001}`, "sandbox.command.run", at(``), mine...)
	call(400, "language is missing", "sandbox.repl.run", at(`,"code":"1"`), mine...)
	call(400, "cobol", "sandbox.repl.run", at(`,"code":"1","language":"cobol"`), mine...)
	call(200, `"text":"Error: Execution timed out after 2 seconds"}]`, "sandbox.repl.run", at(`,"code":"kept = 1\nwhile True: pass","language":"Python","timeout":2`), mine...)
	call(200, `"output":[{"stream":"stdout","text":"1"}]`, "sandbox.repl.run", at(`,"code":"kept","language":"python","timeout":99999999999999`), mine...)
	call(200, `"running":true`, "sandbox.metrics.get", `{"namespace":"n"}`, mine...)
	call(200, `"name":"a"`, "sandbox.metrics.get", `{"namespace":"*","sandbox":"a"}`, mine...)
	call(200, `{"sandboxes":[]}`, "sandbox.metrics.get", `{"namespace":"*","sandbox":"b"}`, mine...)
	call(404, `"code":4001}`, "sandbox.metrics.get", `{"namespace":"n","sandbox":"b"}`, mine...)

	if _, page, _ := s.get("GET", "http://sandpit/metrics", "", ""); !strings.Contains(page, `sandpit_ignored_fields_total{operation="microsandbox.rpc"} `) {
		t.Error("fields that are ignored are not counted")
	}

	// Another key has namespaces of its own.
	call(200, `{"sandboxes":[]}`, "sandbox.metrics.get", `{"namespace":"*"}`, other...)
	call(200, `{"sandboxes":[]}`, "sandbox.metrics.get", `{"namespace":"n"}`, other...)
	for _, method := range []string{"sandbox.stop", "sandbox.repl.run", "sandbox.command.run"} {
		call(404, `{"error":"Sandbox 'a' not found in namespace 'n'","code":4001}`, method, at(`,"command":"true","language":"python"`), other...)
	}
	call(400, "No configuration provided", "sandbox.start", at(""), other...)

	mcp := func(want, method, params string, headers ...string) {
		t.Helper()
		send(200, want, "/mcp", fmt.Sprintf(`{"jsonrpc":"2.0","method":%q,"params":%s,"id":7}`, method, params), headers...)
	}
	mcp(`"protocolVersion":"2024-11-05"`, "initialize", `{"protocolVersion":"9999-01-01"}`, mine...)
	mcp(`"protocolVersion":"2025-06-18"`, "initialize", `{"protocolVersion":"2025-06-18"}`, mine...)
	mcp(`"result":{}`, "ping", "null", mine...)
	mcp(`"error":{"code":-32601,"message":"MCP method error: Resource not found: MCP method 'x' not found"}`, "x", "{}", mine...)
	for _, params := range []string{"null", "7", "{}", `{"name":7}`, `{"name":"nonesuch"}`} {
		mcp(`"error":{"code":-32602,`, "tools/call", params, mine...)
		mcp(`"error":{"code":-32602,`, "prompts/get", params, mine...)
	}
	for _, arguments := range []string{"null", "7", "[]", "{}", `{"sandbox":{},"namespace":"n"}`, `{"sandbox":"a","namespace":null}`, `{"sandbox":"a","namespace":"n","args":{}}`} {
		for _, tool := range []string{"sandbox_start", "sandbox_run_code", "sandbox_run_command"} {
			if tool != "sandbox_run_command" && strings.Contains(arguments, "args") {
				continue
			}
			mcp(`"isError":true`, "tools/call", fmt.Sprintf(`{"name":%q,"arguments":%s}`, tool, arguments), mine...)
		}
	}
	mcp(`not found in namespace`, "tools/call", `{"name":"sandbox_stop","arguments":{"sandbox":"a","namespace":"n"}}`, other...)
	if got := send(202, "", "/mcp", `{"jsonrpc":"2.0","method":"notifications/initialized"}`, mine...); got != "" {
		t.Errorf("a notification is answered with %q", got)
	}

	// Each call is recorded, with the sandbox and the namespace.
	admin := s.unix()
	defer admin.Close()
	var entries v1.AuditList
	if err := admin.Call(t.Context(), "GET", "/v1/audit?action=microsandbox.rpc&sandbox=a", nil, &entries); err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(entries)
	if err != nil || !strings.Contains(string(text), `command.execute program \"sh\" with 2 arguments`) || !strings.Contains(string(text), `"microsandbox/n"`) {
		t.Errorf("the audit has %s, %v", text, err)
	}
	call(200, `Sandbox a stopped successfully`, "sandbox.stop", at(""), mine...)
	call(200, `"running":false,"cpu_usage":null,"memory_usage":null,"disk_usage":null`, "sandbox.metrics.get", at(""), mine...)
	call(409, `Sandbox 'a' is not running`, "sandbox.command.run", at(`,"command":"true"`), mine...)
}

// A stopped sandbox has its files and configuration, which another one replaces. The sandboxes that were stopped last are kept.
func TestMicrosandboxRPCStopped(t *testing.T) {
	s := newServed(t)
	s.policy("policies: {default: {sandboxes: 9}}\n")
	url, key := s.withMicrosandbox()
	call := func(status int, want, method, params string) string {
		t.Helper()
		body := fmt.Sprintf(`{"jsonrpc":"2.0","method":"sandbox.%s","params":%s,"id":1}`, method, params)
		return s.e2bCall(t, status, want, "POST", url+"/api/v1/rpc", body, "Content-Type", "application/json", "Authorization", key)
	}
	at := func(name, more string) string {
		return fmt.Sprintf(`{"namespace":"n","sandbox":%q%s}`, name, more)
	}
	const made = `,"config":{"image":"microsandbox/python","memory":256,"envs":["A=one"]}`
	sh := func(name, script, want string) {
		t.Helper()
		call(200, `"output":`+want, "command.run", at(name, fmt.Sprintf(`,"command":"sh","args":["-c",%q]`, script)))
	}
	call(200, "", "start", at("a", made))
	sh("a", "echo $A >file", `[]`)
	call(200, "", "repl.run", at("a", `,"code":"kept = 1","language":"python"`))
	scripts := `,"config":{"image":"microsandbox/python","shell":"/bin/bash","scripts":{"start":"echo $0 >>/tmp/began","two":"[[ a = a ]] && echo $1"},"workdir":"/tmp"}`
	call(200, "", "start", at("b", scripts))
	sh("b", "until [ -s began ]; do sleep 0.02; done", `[]`)
	call(200, "", "stop", at("b", ""))
	call(200, "", "start", at("b", scripts))
	sh("b", "until [ $(wc -l <began) = 2 ]; do sleep 0.02; done; uniq began; /.sandbox/scripts/two three; pwd", `[{"stream":"stdout","text":"/.sandbox/scripts/start"},{"stream":"stdout","text":"three"},{"stream":"stdout","text":"/tmp"}]`)
	call(200, "", "stop", at("b", ""))
	call(200, "", "start", at("c", `,"config":{"image":"microsandbox/python","exec":"echo $A >/tmp/exec","envs":["A=b"]}`))
	sh("c", "until [ -s /tmp/exec ]; do sleep 0.02; done; cat /tmp/exec", `[{"stream":"stdout","text":"b"}]`)
	call(200, "", "stop", at("c", ""))
	if err := s.stop(); err != nil {
		t.Fatal(err)
	}
	s.start()
	call(200, `"output":[{"stream":"stdout","text":"1"}]`, "repl.run", at("a", `,"code":"kept","language":"python"`))
	again := func(more, want string) {
		t.Helper()
		call(200, "stopped successfully", "stop", at("a", ""))
		call(200, "started successfully", "start", at("a", more))
		sh("a", "cat file 2>&1; echo $A", want)
	}
	again("", `[{"stream":"stdout","text":"one"},{"stream":"stdout","text":"one"}]`)
	call(200, `"output":[{"stream":"stdout","text":"False"}]`, "repl.run", at("a", `,"code":"'kept' in globals()","language":"python"`))
	again(strings.Replace(made, "256", "300", 1), `[{"stream":"stdout","text":"one"},{"stream":"stdout","text":"one"}]`)
	again(made, `[{"stream":"stdout","text":"one"},{"stream":"stdout","text":"one"}]`)
	again(strings.Replace(made, "one", "two", 1), `[{"stream":"stdout","text":"cat: file: No such file or directory"},{"stream":"stdout","text":"two"}]`)

	call(200, "", "stop", at("a", ""))
	for i := range 9 {
		name := fmt.Sprint("more", i)
		call(200, "", "start", at(name, made))
		call(200, "", "stop", at(name, ""))
		call(200, "", "stop", at(name, ""))
	}
	for _, name := range []string{"a", "more0"} {
		call(404, "not found in namespace 'n'", "stop", at(name, ""))
		call(400, "No configuration provided", "start", at(name, ""))
	}
	for _, name := range []string{"b", "c"} {
		call(404, "", "metrics.get", at(name, ""))
	}
	if list := call(200, "", "metrics.get", `{"namespace":"*"}`); strings.Count(list, `"running":false`) != 8 {
		t.Errorf("the stopped sandboxes are %s", list)
	}

	// Where there is no room for a new one, that which was stopped first gives way.
	for _, name := range []string{"x", "y"} {
		call(200, "", "start", at(name, made))
	}
	list := call(200, "", "metrics.get", `{"namespace":"*"}`)
	if strings.Count(list, `"running":true`) != 2 || strings.Count(list, `"running":false`) != 7 || strings.Contains(list, "more1") {
		t.Errorf("the sandboxes are %s", list)
	}

	// Starts of one sandbox at once make one, while others stop it.
	var all sync.WaitGroup
	for i := range 12 {
		all.Go(func() {
			if i%4 == 3 {
				call(200, "stopped successfully", "stop", at("x", ""))
			} else {
				call(200, "started successfully", "start", at([]string{"x", "p"}[i%2], made))
			}
		})
	}
	all.Wait()
	list = call(200, "", "metrics.get", `{"namespace":"n"}`)
	if strings.Count(list, `"name":"p"`) != 1 || strings.Count(list, `"name":"x"`) != 1 {
		t.Errorf("the sandboxes are %s", list)
	}
}
