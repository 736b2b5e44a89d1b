package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// mcpStdio starts sandpit mcp and connects the SDK's client to it.
func mcpStdio(t *testing.T, home string, opt *sdk.ClientOptions, args ...string) *mcpClient {
	t.Helper()
	cmd := commandLineAt(t, home, append([]string{"mcp"}, args...)...)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	s, err := sdk.NewClient(&sdk.Implementation{Name: "test", Version: "1"}, opt).Connect(t.Context(), &sdk.CommandTransport{Command: cmd}, nil)
	if err != nil {
		t.Fatalf("connecting: %v, %s", err, &stderr)
	}
	t.Cleanup(func() { s.Close() })
	return &mcpClient{t, s}
}

// mcpClient is a session of the SDK's client.
type mcpClient struct {
	t *testing.T
	*sdk.ClientSession
}

// arguments are those of a tool.
type arguments map[string]any

// try calls a tool, and returns its text and whether that is an error.
func (c *mcpClient) try(tool string, args arguments) (string, bool) {
	c.t.Helper()
	res, err := c.CallTool(c.t.Context(), &sdk.CallToolParams{Name: tool, Arguments: args})
	if err != nil {
		c.t.Fatalf("calling %s: %v", tool, err)
	}
	return textOf(res), res.IsError
}

func textOf(res *sdk.CallToolResult) string {
	var b strings.Builder
	for _, part := range res.Content {
		if text, ok := part.(*sdk.TextContent); ok {
			b.WriteString(text.Text)
		}
	}
	return b.String()
}

// do calls a tool, which must succeed.
func (c *mcpClient) do(tool string, args arguments) string {
	c.t.Helper()
	text, failed := c.try(tool, args)
	if failed {
		c.t.Fatalf("%s fails: %s", tool, text)
	}
	return text
}

// refuses calls a tool, which must fail with a code and a text.
func (c *mcpClient) refuses(tool string, args arguments, code, want string) {
	c.t.Helper()
	res, err := c.CallTool(c.t.Context(), &sdk.CallToolParams{Name: tool, Arguments: args})
	if err != nil {
		c.t.Fatalf("calling %s: %v", tool, err)
	}
	said, _ := res.StructuredContent.(map[string]any)
	if text := textOf(res); !res.IsError || said["code"] != code || !strings.Contains(text, want) {
		c.t.Errorf("%s %v says %v, %q; want the code %s and %q", tool, args, res.StructuredContent, text, code, want)
	}
}

// tools returns the names of the tools that are offered.
func (c *mcpClient) tools() (names []string) {
	c.t.Helper()
	for tool, err := range c.Tools(c.t.Context(), nil) {
		if err != nil {
			c.t.Fatal(err)
		}
		names = append(names, tool.Name)
	}
	slices.Sort(names)
	return names
}

// TestMCPCommands creates a sandbox over standard input and output, runs commands in it and removes it.
func TestMCPCommands(t *testing.T) {
	needSandboxes(t)
	home := shortHome(t)
	t.Cleanup(func() { endServer(t, home) })
	c := mcpStdio(t, home, nil)
	if got := c.do("create_sandbox", arguments{"name": "box", "memory": "256m", "lifetime_seconds": 600}); !strings.Contains(got, "memory 256 MiB") || !strings.Contains(got, "in 10m0s") {
		t.Errorf("it is created as %s", got)
	}
	if got := c.do("list_sandboxes", nil); !strings.HasPrefix(got, "box\trunning\thost") {
		t.Errorf("the list is %s", got)
	}
	got := c.do("run_command", arguments{"sandbox": "box", "command": "cat; echo warning >&2; exit 3", "stdin": "given"})
	if !strings.HasPrefix(got, "exit code 3 after ") || !strings.HasSuffix(got, "\n--- stdout ---\ngiven\n--- stderr ---\nwarning") {
		t.Errorf("the command says %q", got)
	}
	if got := c.do("run_command", arguments{"sandbox": "box", "command": "sleep 1000", "timeout_seconds": 0.2}); !strings.HasPrefix(got, "exit code 124; it was killed because its time was over") {
		t.Errorf("the command with a timeout says %q", got)
	}
	if got := c.do("remove_sandbox", arguments{"sandbox": "box"}); got != `sandbox "box" is removed` {
		t.Errorf("removing says %q", got)
	}
	c.refuses("run_command", arguments{"sandbox": "box", "command": "true"}, "not_found", "hint: call list_sandboxes")
	if out, err := commandLineAt(t, home, "ps", "-q").Output(); err != nil || len(out) != 0 {
		t.Errorf("sandboxes are left: %q, %v", out, err)
	}
}

// TestMCPRefusesByName sends what no schema allows: each gets an error with a code, and the session goes on.
func TestMCPRefusesByName(t *testing.T) {
	needSandboxes(t)
	home := shortHome(t)
	t.Cleanup(func() { endServer(t, home) })
	c := mcpStdio(t, home, nil)
	c.refuses("create_sandbox", arguments{"memory": "much"}, "invalid", "the argument memory")
	c.refuses("create_sandbox", arguments{"mounts": []string{"/:/host"}}, "invalid", "unexpected additional properties")
	c.refuses("create_sandbox", arguments{"network": "all"}, "invalid", "enum")
	c.refuses("create_sandbox", arguments{"allow": []string{"10.0.0.0/8"}}, "forbidden", "only hosts by their names")
	c.refuses("create_sandbox", arguments{"allow": []string{"udp:[fd00::1]:53"}}, "forbidden", "only hosts by their names")
	for _, image := range []string{"dir:/etc", "oci-archive:/a.tar", "docker-archive:/a.tar"} {
		c.refuses("create_sandbox", arguments{"image": image}, "forbidden", "is on the machine of the server")
	}
	c.refuses("create_sandbox", arguments{"cpus": -1}, "invalid", "minimum")
	c.refuses("run_command", arguments{"sandbox": "box"}, "invalid", "required")
	c.refuses("run_command", arguments{"sandbox": 7, "command": "true"}, "invalid", "type")
	c.refuses("run_command", arguments{"sandbox": "b\x00x", "command": "true"}, "invalid", "the argument sandbox has a NUL byte")
	if _, err := c.CallTool(t.Context(), &sdk.CallToolParams{Name: "no_such_tool"}); err == nil || !strings.Contains(err.Error(), "unknown tool") {
		t.Errorf("an unknown tool: %v", err)
	}
	if got := c.do("list_sandboxes", nil); got != "there are no sandboxes" {
		t.Errorf("afterwards there are: %s", got)
	}
}

// TestMCPMessages sends lines that are no messages of the protocol: each gets an error, and nothing hangs.
func TestMCPMessages(t *testing.T) {
	needSandboxes(t)
	home := shortHome(t)
	t.Cleanup(func() { endServer(t, home) })
	cmd := commandLineAt(t, home, "mcp")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	answers := bufio.NewReader(out)
	const hello = `{"jsonrpc":"2.0","id":"hello","method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"test","version":"1"}}}`
	for _, one := range []struct {
		line string
		code int
		id   string
	}{
		{`not JSON`, -32700, "null"},
		{strings.Repeat("x", 17<<20), -32600, "null"},
		{`[{"jsonrpc":"2.0","id":1,"method":"ping"}]`, -32600, "null"},
		{`"text"`, -32600, "null"},
		{`{"jsonrpc":"2.0","id":2}`, -32600, "2"},
		{`{"jsonrpc":"1.0","id":"three","method":"ping"}`, -32600, `"three"`},
		{`{"jsonrpc":"2.0","id":{},"method":"ping"}`, -32600, "null"},
		{hello, 0, `"hello"`},
		{`{"jsonrpc":"2.0","id":4,"method":"no/such"}`, -32601, "4"},
		{`{"jsonrpc":"2.0","id":5,"method":"tools/call","params":[]}`, -32602, "5"},
		{`{"jsonrpc":"2.0","id":6,"method":"tools/call","params":{"name":7}}`, -32602, "6"},
		{`{"jsonrpc":"2.0","id":7,"method":"resources/read","params":{"uri":"file:///etc/passwd"}}`, -32602, "7"},
		{`{"jsonrpc":"2.0","id":8,"method":"ping"}`, 0, "8"},
	} {
		if _, err := fmt.Fprintln(in, one.line); err != nil {
			t.Fatal(err)
		}
		text, err := answers.ReadBytes('\n')
		if err != nil {
			t.Fatal(err)
		}
		var got struct {
			ID    json.RawMessage `json:"id"`
			Error struct {
				Code int `json:"code"`
			} `json:"error"`
		}
		if err := json.Unmarshal(text, &got); err != nil || got.Error.Code != one.code || string(got.ID) != one.id {
			t.Errorf("%.80s is answered by %.200s", one.line, text)
		}
		if one.line == hello {
			fmt.Fprintln(in, `{"jsonrpc":"2.0","method":"notifications/initialized"}`)
		}
	}
	in.Close()
	if rest, err := io.ReadAll(answers); err != nil || len(rest) > 0 {
		t.Errorf("then: %q, %v", rest, err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("at the end of its input it ends with %v", err)
	}
}
