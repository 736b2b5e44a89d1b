package rpc

import (
	_ "embed" // what a client is told
	"encoding/json"
	"fmt"
	"net/http"
	"strings"

	"github.com/sandpit-dev/sandpit/internal/errcode"
	"github.com/sandpit-dev/sandpit/internal/gate"
)

// The Model Context Protocol (modelcontextprotocol.io/specification) over HTTP, without sessions and streams: each message
// of the client is a request, and its answer is the answer of that request.

// mcpVersions are the versions of the protocol in which tools and prompts are as here, the newest first.
func mcpVersions() []string { return []string{"2025-06-18", "2025-03-26", "2024-11-05"} }

//go:embed tools.json
var toolsJSON string

//go:embed prompts.json
var promptsJSON string

// serveMCP answers a message.
func serveMCP(c *call, in *request) error {
	if in.Method == "tools/call" {
		return c.callTool(in)
	}
	if err := c.Intend(fmt.Sprintf("%.80s", in.Method)); err != nil {
		return err
	}
	switch {
	case in.Method == "initialize":
		return c.initialize(in)
	case in.Method == "ping":
		return c.answer(http.StatusOK, response{Result: struct{}{}, ID: in.ID})
	case in.Method == "tools/list":
		return c.answer(http.StatusOK, response{Result: json.RawMessage(toolsJSON), ID: in.ID})
	case in.Method == "prompts/list":
		return c.answer(http.StatusOK, response{Result: json.RawMessage(promptsJSON), ID: in.ID})
	case in.Method == "prompts/get":
		return c.getPrompt(in)
	case strings.HasPrefix(in.Method, "notifications/"):
		c.W.WriteHeader(http.StatusAccepted)
		return nil
	}
	return c.fault(http.StatusOK, in.ID, codeNoMethod, fmt.Sprintf("MCP method error: Resource not found: MCP method '%s' not found", in.Method))
}

// initialize agrees on a version.
func (c *call) initialize(in *request) error {
	var asked struct {
		Version string `json:"protocolVersion"`
	}
	_ = json.Unmarshal(in.Params, &asked) // the oldest version is spoken with everybody
	all := mcpVersions()
	version := all[len(all)-1]
	for _, one := range all {
		if one == asked.Version {
			version = one
		}
	}
	no := map[string]bool{"listChanged": false}
	return c.answer(http.StatusOK, response{ID: in.ID, Result: map[string]any{
		"protocolVersion": version,
		"capabilities":    map[string]any{"tools": no, "prompts": no},
		"serverInfo":      map[string]string{"name": "microsandbox-server", "version": c.api.Version},
	}})
}

// getPrompt returns a text for a model.
func (c *call) getPrompt(in *request) error {
	var asked struct {
		Name      string `json:"name"`
		Arguments struct {
			Sandbox   string `json:"sandbox_name"`
			Namespace string `json:"namespace"`
		} `json:"arguments"`
	}
	if err := parse(in.Params, &asked); err != nil {
		return c.fault(http.StatusOK, in.ID, codeInvalidParams, err.Error())
	}
	kind, image, name := "", "", ""
	switch asked.Name {
	case "create_python_sandbox":
		kind, image, name = "Python", "microsandbox/python", "python-sandbox"
	case "create_node_sandbox":
		kind, image, name = "Node.js", "microsandbox/node", "node-sandbox"
	default:
		return c.fault(http.StatusOK, in.ID, codeInvalidParams, fmt.Sprintf("Prompt '%s' not found", asked.Name))
	}
	if asked.Arguments.Sandbox != "" {
		name = asked.Arguments.Sandbox
	}
	namespace := asked.Arguments.Namespace
	if namespace == "" {
		namespace = "default"
	}
	text := fmt.Sprintf("Start a %s sandbox with the tool sandbox_start: name %q, namespace %q, image %s, 512 MiB of memory and 1 CPU. Then run code in it with the tool sandbox_run_code, and stop it with the tool sandbox_stop when the work is done.", kind, name, namespace, image)
	return c.answer(http.StatusOK, response{ID: in.ID, Result: map[string]any{
		"description": "Start a " + kind + " sandbox",
		"messages":    []any{map[string]any{"role": "user", "content": content(text)}},
	}})
}

// content returns a text as content of the protocol.
func content(text string) map[string]string { return map[string]string{"type": "text", "text": text} }

// toolMethods returns the operations behind the tools.
func toolMethods() map[string]string {
	return map[string]string{
		"sandbox_start":       "sandbox.start",
		"sandbox_stop":        "sandbox.stop",
		"sandbox_run_code":    "sandbox.repl.run",
		"sandbox_run_command": "sandbox.command.run",
		"sandbox_get_metrics": "sandbox.metrics.get",
	}
}

// callTool runs an operation. The model sees its error as the result of the tool.
func (c *call) callTool(in *request) error {
	var asked struct {
		Name      string          `json:"name"`
		Arguments json.RawMessage `json:"arguments"`
	}
	err := parse(in.Params, &asked)
	name, ok := toolMethods()[asked.Name]
	if err == nil && !ok {
		err = gate.Invalid(fmt.Sprintf("Tool '%s' not found", asked.Name), "")
	}
	if err != nil {
		if err := c.Intend("tools/call"); err != nil { // the status of the answer is that of a success
			return err
		}
		return c.Untouched(c.fault(http.StatusOK, in.ID, codeInvalidParams, err.Error()))
	}
	var text string
	result, err := methods()[name].call(c, name, asked.Arguments)
	if err != nil {
		f := c.Describe(err)
		c.NoteOutcome(f.Status, f.Code, err)
		switch {
		case f.Code == errcode.Canceled || c.BrokenOff() != nil:
			return err
		case c.EntersLater() || c.Intended():
		default: // it was not valid, or can't be recorded
			if errIntend := c.Intend(name); errIntend != nil {
				return errIntend
			}
		}
		text = "Error: " + f.Text()
	} else {
		pretty, err := json.MarshalIndent(result, "", "  ")
		if err != nil {
			return err
		}
		text = string(pretty)
	}
	out := map[string]any{"content": []any{content(text)}}
	if err != nil {
		out["isError"] = true
	}
	return c.answer(http.StatusOK, response{Result: out, ID: in.ID})
}
