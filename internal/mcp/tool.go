package mcp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/google/jsonschema-go/jsonschema"
	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/errcode"
	"github.com/sandpit-dev/sandpit/internal/fault"
)

// Groups of tools.
const (
	groupSandboxes = "sandboxes"
	groupCommands  = "commands"
	groupFiles     = "files"
	groupProcesses = "processes"
	groupPorts     = "ports"
	groupPolicy    = "policy"
)

// tool describes a tool. Its text is for the model.
type tool struct {
	name, group string
	title       string
	text        string

	readOnly    bool // it changes nothing
	destructive bool // it may destroy what is there
	idempotent  bool // a second call with the same arguments changes nothing more
	openWorld   bool // what it starts may reach the network

	// with are the names of tools and groups whose results it reads on. It is offered with each of them.
	with []string

	// tune changes the schema that follows from the type of the arguments. It may be nil.
	tune func(*jsonschema.Schema)
}

// registry adds the tools that are offered to a server. Without a server it only lists them.
type registry struct {
	opt    Options
	server *sdk.Server
	tools  []tool
}

// addAll adds all tools, in the order in which clients list them to people, and returns those that are offered.
func (r *registry) addAll() []tool {
	r.addSandboxes()
	r.addCommands()
	r.addCode()
	r.addFiles()
	r.addProcesses()
	r.addPorts()
	r.addPolicy()
	return r.tools
}

// offers reports whether a tool is offered.
func (r *registry) offers(t tool) bool {
	if r.opt.ReadOnly {
		return t.readOnly && r.named(t.name, t.group)
	}
	return r.named(t.name, t.group) || r.named(t.with...)
}

// named reports whether the options name one of some tools and groups.
func (r *registry) named(names ...string) bool {
	return len(r.opt.Tools) == 0 || slices.ContainsFunc(names, func(name string) bool { return slices.Contains(r.opt.Tools, name) })
}

// has reports whether a tool of this name is offered.
func (r *registry) has(name string) bool {
	offered := (&registry{opt: r.opt}).addAll()
	return slices.ContainsFunc(offered, func(t tool) bool { return t.name == name })
}

// only returns the sentences of a text that name no tool that is not offered.
func (r *registry) only(text string) string {
	var b strings.Builder
	for line := range strings.SplitAfterSeq(text, "\n") {
		for sentence := range strings.SplitAfterSeq(line, ". ") {
			if !slices.ContainsFunc(new(registry).addAll(), func(t tool) bool { return strings.Contains(sentence, t.name) && !r.has(t.name) }) {
				b.WriteString(sentence)
			}
		}
	}
	return strings.TrimSpace(b.String())
}

// failed returns an error as the result of a tool.
func (r *registry) failed(err error) *sdk.CallToolResult {
	return failure(errcode.Of(err), err.Error(), r.only(sandpit.Hint(err)))
}

// call is one call of a tool.
type call struct {
	*registry
	req    *sdk.CallToolRequest
	host   Host
	client sandpit.Client
}

// sandbox returns the sandbox that an argument names.
func (c *call) sandbox(ctx context.Context, name string) (sandpit.Sandbox, error) {
	sb, err := c.client.Get(ctx, name)
	if errors.Is(err, sandpit.ErrNotFound) {
		return nil, sandpit.WithHint(err, "call list_sandboxes to see which there are"+c.where("create_sandbox", ", or create_sandbox"))
	}
	return sb, err
}

// where returns a text that names a tool, or "" if that is not offered.
func (c *call) where(tool, text string) string {
	if c.has(tool) {
		return text
	}
	return ""
}

// add adds a tool that do carries out, with arguments of the type In.
func add[In any](r *registry, t tool, do func(ctx context.Context, c *call, in In) (*answer, error)) {
	if !r.offers(t) {
		return
	}
	r.tools = append(r.tools, t)
	if r.server == nil {
		return
	}
	schema, err := jsonschema.For[In](nil)
	if err != nil {
		panic("mcp: the arguments of " + t.name + ": " + err.Error())
	}
	if t.tune != nil {
		t.tune(schema)
	}
	sdk.AddTool(r.server, &sdk.Tool{
		Name: t.name, Title: t.title, Description: r.only(t.text), InputSchema: schema,
		Annotations: &sdk.ToolAnnotations{Title: t.title, ReadOnlyHint: t.readOnly, DestructiveHint: &t.destructive, IdempotentHint: t.idempotent, OpenWorldHint: &t.openWorld},
	}, func(ctx context.Context, req *sdk.CallToolRequest, in In) (*sdk.CallToolResult, any, error) {
		if text := nul(reflect.ValueOf(in)); text != "" {
			return failure(errcode.Invalid, "the argument "+text+" has a NUL byte", ""), nil, nil
		}
		a, err := r.carryOut(ctx, req, func(c *call) (*answer, error) { return do(ctx, c, in) })
		if err != nil {
			return r.failed(err), nil, nil
		}
		return a.result(), nil, nil
	})
}

// nul returns the name of a text argument with a NUL byte, which no name, path or command can have, or "". Only
// contents may have them.
func nul(in reflect.Value) string {
	for i := range in.NumField() {
		name, _, _ := strings.Cut(in.Type().Field(i).Tag.Get("json"), ",")
		switch name {
		case "content", "stdin", "old", "new":
			continue
		}
		if f := in.Field(i); f.Kind() == reflect.String && strings.ContainsRune(f.String(), 0) {
			return name
		}
	}
	return ""
}

// carryOut carries out a call of a tool.
func (r *registry) carryOut(ctx context.Context, req *sdk.CallToolRequest, do func(*call) (*answer, error)) (*answer, error) {
	host := hostOf(ctx)
	client, err := host.Open(ctx)
	if err != nil {
		return nil, err
	}
	defer client.Close()
	return do(&call{registry: r, req: req, host: host, client: client})
}

type hostKey struct{}

// withHost returns a context for requests to a host.
func withHost(ctx context.Context, h Host) context.Context {
	return context.WithValue(ctx, hostKey{}, h)
}

// hostOf returns the host of a request.
func hostOf(ctx context.Context) Host { return ctx.Value(hostKey{}).(Host) }

// maxMessage bounds an error for the model, in bytes.
const maxMessage = 4 << 10

func failure(code, message, hint string) *sdk.CallToolResult {
	message = clean(message)
	if len(message) > maxMessage {
		message = clean(message[:maxMessage]) + "…"
	}
	text := message
	said := map[string]string{"code": code, "message": message}
	if hint != "" {
		text += "\nhint: " + hint
		said["hint"] = hint
	}
	return &sdk.CallToolResult{IsError: true, Content: []sdk.Content{&sdk.TextContent{Text: text}}, StructuredContent: said}
}

// budget is the maximum size of the text of a result, in bytes. Models read some three bytes in a token, and clients
// refuse results of some 25,000 tokens.
const budget = 32 << 10

// answer is the result of a tool.
type answer struct {
	text  strings.Builder
	parts []sdk.Content // after the text
}

// say returns an answer with a text.
func say(format string, args ...any) *answer {
	a := new(answer)
	a.addf(format, args...)
	return a
}

func (a *answer) addf(format string, args ...any) { fmt.Fprintf(&a.text, format, args...) }

// block adds content under a title, which ends with a new line.
func (a *answer) block(title, content string) {
	a.addf("--- %s ---\n%s", title, content)
	if !strings.HasSuffix(content, "\n") {
		a.addf("\n")
	}
}

// link points to a resource.
func (a *answer) link(uri, name, mime string) {
	a.parts = append(a.parts, &sdk.ResourceLink{URI: uri, Name: name, MIMEType: mime})
}

func (a *answer) result() *sdk.CallToolResult {
	content := []sdk.Content{&sdk.TextContent{Text: strings.TrimSuffix(clean(a.text.String()), "\n")}}
	return &sdk.CallToolResult{Content: append(content, a.parts...)}
}

// property returns the schema of an argument, to change it.
func property(s *jsonschema.Schema, name string) *jsonschema.Schema {
	p := s.Properties[name]
	if p == nil {
		panic("mcp: there is no argument " + name)
	}
	return p
}

// oneOf restricts a text argument.
func oneOf(s *jsonschema.Schema, name string, values ...string) {
	p := property(s, name)
	p.Enum = nil
	for _, v := range values {
		p.Enum = append(p.Enum, v)
	}
}

// between restricts a number.
func between(s *jsonschema.Schema, name string, least, most float64) {
	p := property(s, name)
	p.Minimum, p.Maximum = &least, &most
}

// badArgument refuses an argument for what a schema can't express.
func badArgument(name, format string, args ...any) error {
	return fault.Invalidf("the argument %s: %s", name, fmt.Sprintf(format, args...))
}

// resourceError returns the error of a resource as one of JSON-RPC. Its data has the code, as results of tools have it.
func (r *registry) resourceError(err error) error {
	res := r.failed(err)
	data, _ := json.Marshal(res.StructuredContent) // of strings, which never fails
	code := int64(jsonrpc.CodeInternalError)
	if s := errcode.Status(errcode.Of(err)); s >= 400 && s < 500 {
		code = jsonrpc.CodeInvalidParams
	}
	return &jsonrpc.Error{Code: code, Message: clean(err.Error()), Data: data}
}
