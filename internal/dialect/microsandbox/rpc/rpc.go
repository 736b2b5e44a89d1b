// Package rpc serves the API of microsandbox's JSON-RPC server, which its Python SDK 0.1.8 and its JavaScript SDK
// 0.1.1 speak, and that of the MCP server at the same address.
//
// A request is one JSON-RPC 2.0 call; batches are refused. Clients read the text of every answer that is
// not a success, so errors say what failed. Their forms differ by what is wrong: a body that is not JSON gets
// plain text, a method that does not exist an error of JSON-RPC, and all else a message with a number.
//
// Sandboxes belong to a namespace, which is nested in that of the caller's key. A namespace needs not be created.
// The claim "namespace" of a key is not looked at: whatever namespace a caller names, it is its own.
//
// A sandbox is its definition: it has the configuration of its start, which the next start without an image
// uses again, and its files. Clients can only stop sandboxes and never remove them. Therefore the
// sandboxes that were stopped last are kept, and earlier ones are removed (sandboxes.go).
//
// Facts about the protocol are from the public SDKs and the requests that they send.
package rpc

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"mime"
	"net/http"
	"strings"

	"github.com/sandpit-dev/sandpit/internal/api/codec"
	"github.com/sandpit-dev/sandpit/internal/dialect"
	"github.com/sandpit-dev/sandpit/internal/errcode"
	"github.com/sandpit-dev/sandpit/internal/gate"
)

// Paths of the API.
const (
	pathHealth = "/api/v1/health"
	pathRPC    = "/api/v1/rpc"
	pathMCP    = "/mcp"
)

// Has reports whether a path is one of this API.
func Has(path string) bool {
	switch strings.TrimSuffix(path, "/") {
	case pathHealth, pathRPC, pathMCP:
		return true
	}
	return false
}

// Routes returns the operations. Those with a key are also there with a slash at the end of the path. Their IDs lack
// the name of the dialect.
func Routes(s dialect.Server) []gate.Route {
	a := &api{s}
	dialect.WarnOfData[state](s, dialectName)
	routes := []gate.Route{
		{Method: http.MethodGet, Path: pathHealth, ID: "rpcHealth", Open: true, Handle: health},
		{Method: http.MethodPost, Path: pathRPC, ID: "rpc", Guarded: true, VitalIf: vitalRPC, SelfAudited: true, Handle: a.handle(serveRPC)},
		{Method: http.MethodPost, Path: pathMCP, ID: "mcp", Guarded: true, VitalIf: vitalMCP, SelfAudited: true, Handle: a.handle(serveMCP)},
	}
	for _, r := range routes[1:] {
		r.Path += "/{$}"
		r.ID += "WithSlash"
		routes = append(routes, r)
	}
	return routes
}

// api serves the calls of a server.
type api struct{ dialect.Server }

// call is one call on its way.
type call struct {
	*gate.Call
	api *api
}

// handle returns a handler that reads the call first.
func (a *api) handle(serve func(*call, *request) error) func(*gate.Call) error {
	return func(c *gate.Call) error {
		one := &call{c, a}
		in, err := one.read()
		if err != nil || in == nil {
			return c.Untouched(err)
		}
		return serve(one, in)
	}
}

// vitalRPC reports whether a call ends a sandbox, as its method says.
func vitalRPC(c *gate.Call) bool {
	var in request
	return json.Unmarshal(c.Peek(), &in) == nil && methods()[in.Method].vital
}

// vitalMCP is vitalRPC for calls of tools.
func vitalMCP(c *gate.Call) bool {
	var in struct {
		Method string `json:"method"`
		Params struct {
			Name string `json:"name"`
		} `json:"params"`
	}
	return json.Unmarshal(c.Peek(), &in) == nil && in.Method == "tools/call" && methods()[toolMethods()[in.Params.Name]].vital
}

// health answers that the server serves.
func health(c *gate.Call) error {
	codec.Write(c.W, http.StatusOK, []byte(`{"message":"Service is healthy"}`))
	return nil
}

// request is a call of JSON-RPC 2.0.
type request struct {
	Version string          `json:"jsonrpc"`
	Method  string          `json:"method"`
	Params  json.RawMessage `json:"params"`
	ID      json.RawMessage `json:"id"` // any JSON; missing: a notification
}

// maxBody bounds requests, in bytes.
const maxBody = 2 << 20

// read reads the call. It returns nil if it has answered.
func (c *call) read() (*request, error) {
	kind, _, err := mime.ParseMediaType(c.R.Header.Get("Content-Type"))
	if err != nil || kind != "application/json" && !strings.HasSuffix(kind, "+json") {
		return nil, c.plain(http.StatusUnsupportedMediaType, errcode.UnsupportedMedia, "Expected request with `Content-Type: application/json`")
	}
	var buf bytes.Buffer
	if err := c.ReadAll(&buf, c.Body(maxBody, codec.BodyTime)); err != nil {
		var refused *gate.Refusal
		if errors.As(err, &refused) && refused.Code == errcode.TooLarge {
			return nil, c.plain(http.StatusRequestEntityTooLarge, errcode.TooLarge, fmt.Sprintf("Failed to buffer the request body: it has more than %d MB", maxBody>>20))
		}
		return nil, err
	}
	data := bytes.TrimSpace(buf.Bytes())
	if len(data) > 0 && data[0] == '[' {
		return nil, c.fault(http.StatusBadRequest, nil, codeInvalidRequest, "batches of requests are not supported: send one request at a time")
	}
	if err := codec.HoldObject(c.Call, data); err != nil {
		return nil, err
	}
	in := new(request)
	if err := json.Unmarshal(data, in); err != nil {
		var wrong *json.UnmarshalTypeError
		if errors.As(err, &wrong) {
			return nil, c.plain(http.StatusUnprocessableEntity, errcode.Invalid, "Failed to deserialize the JSON body into the target type: "+codec.Readable(err))
		}
		return nil, c.plain(http.StatusBadRequest, errcode.Invalid, "Failed to parse the request body as JSON: "+codec.Readable(err))
	}
	if in.Version != "2.0" {
		return nil, c.fault(http.StatusBadRequest, in.ID, codeInvalidRequest, "Invalid or missing jsonrpc version field")
	}
	return in, nil
}

// plain answers with text.
func (c *call) plain(status int, code, text string) error {
	c.NoteOutcome(status, code, nil)
	c.W.Header().Set("Content-Type", "text/plain; charset=utf-8")
	c.W.WriteHeader(status)
	_, _ = c.W.Write([]byte(text)) // the client may have left
	return nil
}

// Codes of errors of JSON-RPC 2.0 (jsonrpc.org/specification, 5.1).
const (
	codeInvalidRequest = -32600
	codeNoMethod       = -32601
	codeInvalidParams  = -32602
	codeInternal       = -32603
)

// response is an answer of JSON-RPC. Clients take an answer that has the field "error", even null, for an error.
type response struct {
	Version string          `json:"jsonrpc"`
	Result  any             `json:"result,omitempty"`
	Error   *rpcError       `json:"error,omitempty"`
	ID      json.RawMessage `json:"id,omitempty"`
}

type rpcError struct {
	Code    int    `json:"code"`
	Message string `json:"message"`
}

// fault answers with an error of JSON-RPC.
func (c *call) fault(status int, id json.RawMessage, code int, message string) error {
	c.NoteOutcome(status, errcode.Invalid, nil)
	return c.answer(status, response{Error: &rpcError{code, gate.Bounded(message)}, ID: id})
}

// answer sends an answer of JSON-RPC.
func (c *call) answer(status int, r response) error {
	r.Version = "2.0"
	body, err := json.Marshal(r)
	if err != nil {
		return err
	}
	codec.Write(c.W, status, body)
	return nil
}

// serveRPC answers a call of the API.
func serveRPC(c *call, in *request) error {
	m, ok := methods()[in.Method]
	if !ok {
		return c.Untouched(c.fault(http.StatusNotFound, in.ID, codeNoMethod, "Method not found: "+in.Method))
	}
	result, err := m.call(c, in.Method, in.Params)
	if err != nil {
		return err
	}
	return c.answer(http.StatusOK, response{Result: result, ID: in.ID})
}

// method is an operation on sandboxes.
type method struct {
	vital bool
	call  func(c *call, name string, params json.RawMessage) (result any, err error)
}

// methods returns the operations by their names. Early SDKs have another name for one.
func methods() map[string]method {
	return map[string]method{
		"sandbox.start":           of(startSandbox),
		"sandbox.stop":            vital(of(stopSandbox)),
		"sandbox.metrics.get":     of(getMetrics),
		"sandbox.repl.run":        of(runCode),
		"sandbox.command.run":     of(runCommand),
		"sandbox.command.execute": of(runCommand),
	}
}

func vital(m method) method {
	m.vital = true
	return m
}

// params are the parameters of an operation.
type params interface {
	// check refuses what is not valid.
	check() error

	// where returns the namespace and the sandbox, which may be empty.
	where() (namespace, sandbox string)

	// about says for the audit what the call does.
	about() string
}

// of returns the operation that f carries out, with parameters of the type P.
func of[P any, Q interface {
	*P
	params
}](f func(*call, *P) (any, error),
) method {
	var m method
	m.call = func(c *call, name string, data json.RawMessage) (any, error) {
		in := Q(new(P))
		if err := parse(data, in); err != nil {
			return nil, c.Untouched(err)
		}
		c.Ignore(dialect.Unknown(data, in))
		if err := in.check(); err != nil {
			return nil, c.Untouched(err)
		}
		c.Vital = methods()[name].vital
		c.Caller.Nested, c.Target = in.where()
		if err := c.Intend(strings.TrimSpace(strings.TrimPrefix(name, "sandbox.") + " " + in.about())); err != nil {
			return nil, err
		}
		return f(c, (*P)(in))
	}
	return m
}

// parse reads parameters. Fields that are not known are ignored, as microsandbox does.
func parse(data json.RawMessage, v any) error {
	if len(data) == 0 || data[0] != '{' {
		return gate.Invalid("the parameters must be an object", "")
	}
	if err := json.Unmarshal(data, v); err != nil {
		return gate.Invalid("the parameters are not valid: "+codec.Readable(err), "")
	}
	return nil
}

// Numbers of errors that are not of JSON-RPC.
const (
	errorCredentials = 1001
	errorToken       = 1004
	errorInput       = 2001
	errorAccess      = 3001
	errorNotFound    = 4001
	errorInternal    = 5002
)

// Fail is gate.Dialect.Fail for the paths of this API.
func Fail(c *gate.Call, f gate.Failure) {
	status, number := f.Status, errorInternal
	switch f.Code {
	case errcode.Unauthenticated:
		number = errorCredentials
		if c.R.Header.Get("Authorization") != "" || c.R.Header.Get("Proxy-Authorization") != "" {
			number = errorToken
		}
	case errcode.StartFailed, errcode.Timeout:
		status = http.StatusInternalServerError // as clients expect of commands
	default:
		switch status {
		case http.StatusBadRequest:
			number = errorInput
		case http.StatusForbidden:
			number = errorAccess
		case http.StatusNotFound:
			number = errorNotFound
		}
	}
	body, _ := json.Marshal(struct { // of a string and a number, which never fails
		Error string `json:"error"`
		Code  int    `json:"code"`
	}{f.Text(), number})
	codec.Write(c.W, status, body)
}
