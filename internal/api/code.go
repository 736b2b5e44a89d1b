package api

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"sync"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/api/codec"
	"github.com/sandpit-dev/sandpit/internal/api/stream"
	v1 "github.com/sandpit-dev/sandpit/internal/api/v1"
	"github.com/sandpit-dev/sandpit/internal/errcode"
	"github.com/sandpit-dev/sandpit/internal/gate"
)

func codeRoutes() []Route {
	const (
		tag      = "Code"
		contexts = oneSandbox + "/contexts"
		one      = contexts + "/{context}"
	)
	return []Route{
		{
			Method: http.MethodPost, Path: oneSandbox + "/code", ID: "runCode", Tag: tag, Summary: "Run code in a context, which keeps its state", EndsWithClient: true, IgnoresIdempotency: true,
			Text: "Runs in one context wait for each other, those in several are parallel. Code that fails is not an error of the request: see error, ended and timed_out in the response. If the client disconnects, the run is interrupted, and after 2 seconds its interpreter killed. By default the response is JSON, sent when the run has ended. If Accept asks for server-sent events, output is streamed, which may be of any size, after an event waiting if other runs come first. The image needs the interpreter and nothing else: python3 of version 3.8 or later, or node of version 18 or later; for TypeScript node of version 22.13 or later, or the package typescript; bash; Rscript for R.",
			In:   v1.Code{}, Status: http.StatusOK, Out: v1.CodeRun{}, Other: []string{stream.Events}, Feed: codeFeed(), Guarded: true, Fails: []string{errcode.StartFailed}, handle: runCode,
		},
		{Method: http.MethodPost, Path: contexts, ID: "createContext", Tag: tag, Summary: "Create a context and start its interpreter", In: v1.NewContext{}, Status: http.StatusCreated, Out: v1.CodeContext{}, Guarded: true, Fails: []string{errcode.StartFailed}, handle: fromJSON(createContext)},
		{Method: http.MethodGet, Path: contexts, ID: "listContexts", Tag: tag, Summary: "List the contexts of a sandbox", Query: pageParams(), Status: http.StatusOK, Out: v1.ContextList{}, handle: listOf(listContexts, contextPosition, contextPage)},
		{Method: http.MethodDelete, Path: one, ID: "removeContext", Tag: tag, Summary: "Remove a context and kill its interpreter", Status: http.StatusNoContent, Guarded: true, Vital: true, handle: onContext(sandpit.Sandbox.RemoveContext)},
		{Method: http.MethodPost, Path: one + "/restart", ID: "restartContext", Tag: tag, Summary: "Kill the interpreter of a context; the next run starts a new one", Status: http.StatusNoContent, Guarded: true, handle: onContext(sandpit.Sandbox.RestartContext)},
		{Method: http.MethodPost, Path: one + "/interrupt", ID: "interruptContext", Tag: tag, Summary: "Interrupt the present run of a context", Text: "As Ctrl-C does: the state is kept. If there is no run, it does nothing.", Status: http.StatusNoContent, Guarded: true, handle: onContext(sandpit.Sandbox.InterruptContext)},
	}
}

func createContext(c *call, in *v1.NewContext) (v1.CodeContext, error) {
	spec, err := in.Sandpit()
	if err != nil {
		return v1.CodeContext{}, err
	}
	sb, err := c.sandbox()
	if err != nil {
		return v1.CodeContext{}, err
	}
	made, err := sb.CreateContext(c.Ctx, spec)
	return v1.FromCodeContext(made), err
}

func listContexts(c *call) ([]sandpit.CodeContext, error) {
	sb, err := c.sandbox()
	if err != nil {
		return nil, err
	}
	return sb.Contexts(c.Ctx)
}

func contextPosition(c sandpit.CodeContext) string { return byTime(c.CreatedAt, c.ID) }

func contextPage(part []sandpit.CodeContext, next string) v1.ContextList {
	out := v1.ContextList{Contexts: []v1.CodeContext{}, Next: next}
	for _, c := range part {
		out.Contexts = append(out.Contexts, v1.FromCodeContext(c))
	}
	return out
}

// onContext makes a handler of a method that does something with the context of the path.
func onContext(do func(sb sandpit.Sandbox, ctx context.Context, id string) error) func(*call) error {
	return only(func(c *call) error {
		if err := c.Intend(subject(c.R)); err != nil {
			return err
		}
		sb, err := c.sandbox()
		if err != nil {
			return err
		}
		return do(sb, c.Ctx, c.R.PathValue("context"))
	})
}

// openAfter is the time after which the stream of a run begins that has not said anything, so that
// the client knows that it waits. Until then an error has a status of its own.
const openAfter = 5 * time.Second

// runCode runs code and answers as Accept asks for.
func runCode(c *call) error {
	in := new(v1.Code)
	if err := codec.Read(c.Call, in, codec.MaxBody, c.compare); err != nil {
		return c.Untouched(err)
	}
	if err := c.intendFor(in); err != nil {
		return err
	}
	if err := c.OpenStream(); err != nil {
		return err
	}
	code, err := in.Sandpit()
	if err != nil {
		return err
	}
	sb, err := c.sandbox()
	if err != nil {
		return err
	}
	if c.prefers(jsonType, stream.Events) == jsonType {
		return c.codeWhole(sb, code)
	}
	s := stream.NewResponse(c.Call, stream.Events)
	defer s.Close()
	defer time.AfterFunc(openAfter, s.Open).Stop()
	stdout, stderr := stream.Output(s)
	code.Stdout, code.Stderr = opening{s, stdout}, opening{s, stderr}
	send := func(kind byte, v any) {
		var payload bytes.Buffer
		encoder := json.NewEncoder(&payload)
		encoder.SetEscapeHTML(false) // a value must not become longer: see interpreter.costOf
		if encoder.Encode(v) == nil {
			s.Open()
			_ = s.Frame(kind, bytes.TrimSuffix(payload.Bytes(), []byte("\n")))
		}
	}
	code.Waits = func(runs int) { send(v1.FrameWaiting, v1.CodeWaiting{Runs: runs}) }
	code.Output = func(o sandpit.CodeOutput) { send(v1.FrameOutput, v1.FromCodeOutput(o)) }
	res, err := sb.RunCode(c.Ctx, code)
	if err != nil && !s.Opened() {
		return err
	}
	s.Open()
	s.FinishCode(res, err)
	return nil
}

// opening is an output that opens its stream.
type opening struct {
	s  *stream.Response
	to interface{ Write(b []byte) (int, error) }
}

// Write sends output.
func (o opening) Write(b []byte) (int, error) {
	o.s.Open()
	return o.to.Write(b)
}

// errCodeOutput ends a run whose output can't be held.
var errCodeOutput error = &gate.Refusal{Code: errcode.OutputTooLarge, Message: "the run was interrupted because its output needs more of the server's memory than is left", Hint: "stream the output with the header Accept: text/event-stream"}

// codeWhole runs code and answers when it has ended.
func (c *call) codeWhole(sb sandpit.Sandbox, code sandpit.Code) error {
	out := v1.CodeRun{Outputs: []v1.CodeOutput{}}
	var mu sync.Mutex
	var stdout, stderr []byte
	size, truncated := int64(0), false
	// room reports whether n more bytes fit into the answer. Precondition: mu is held.
	room := func(n int) bool {
		size += int64(n)
		if truncated = truncated || size > sandpit.DefaultCapture; truncated {
			return false
		}
		if size > gate.FreeBody && c.Hold(gate.InMemory, gate.HeldByte*size) != nil {
			c.Cancel(errCodeOutput)
			return false
		}
		return true
	}
	collect := func(into *[]byte) writer {
		return func(b []byte) {
			mu.Lock()
			defer mu.Unlock()
			if room(len(b)) {
				*into = append(*into, b...)
			}
		}
	}
	code.Stdout, code.Stderr = collect(&stdout), collect(&stderr)
	code.Output = func(o sandpit.CodeOutput) {
		v := v1.FromCodeOutput(o)
		payload, err := json.Marshal(v)
		mu.Lock()
		defer mu.Unlock()
		if err == nil && room(len(payload)) {
			out.Outputs = append(out.Outputs, v)
		}
	}
	res, err := sb.RunCode(c.Ctx, code)
	if err != nil {
		return err
	}
	mu.Lock()
	defer mu.Unlock()
	res.Truncated = res.Truncated || truncated
	out.CodeResult = v1.FromCodeResult(res)
	out.SetOutput(stdout, stderr)
	return codec.Answer(c.Call, http.StatusOK, out)
}

// writer is an io.Writer that never fails.
type writer func([]byte)

// Write takes b.
func (w writer) Write(b []byte) (int, error) {
	w(b)
	return len(b), nil
}
