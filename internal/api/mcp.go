package api

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/api/codec"
	"github.com/sandpit-dev/sandpit/internal/errcode"
	"github.com/sandpit-dev/sandpit/internal/gate"
	"github.com/sandpit-dev/sandpit/internal/mcp"
)

// pathMCP is where the Model Context Protocol is served. It is no part of the reference of /v1, as its methods are not.
const pathMCP = "/mcp"

// mcpRoutes are those of streamable HTTP. A message that ends something is vital: others must not be able to prevent it.
func (a *API) mcpRoutes() []gate.Route {
	return []gate.Route{
		{Method: http.MethodPost, Path: pathMCP, ID: "mcp", Guarded: true, SelfAudited: true, VitalIf: endsSomething, Handle: a.serveMCP},
		{Method: http.MethodDelete, Path: pathMCP, ID: "endMCP", Guarded: true, Vital: true, Handle: a.endMCP},
	}
}

func endsSomething(c *gate.Call) bool {
	s, err := mcp.Describe(c.Peek())
	return err == nil && s.Vital
}

// serveMCP answers a message.
func (a *API) serveMCP(gc *gate.Call) error {
	c := &call{Call: gc, api: a}
	var body bytes.Buffer
	if err := c.ReadAll(&body, c.Body(codec.MaxBody, codec.BodyTime)); err != nil {
		return c.Untouched(err)
	}
	subject, err := mcp.Describe(body.Bytes())
	if err != nil {
		return c.Untouched(err)
	}
	if err := codec.HoldObject(gc, body.Bytes()); err != nil {
		return c.Untouched(err)
	}
	if subject.Memory > 0 {
		if err := c.HoldMore(gate.InMemory, subject.Memory); err != nil {
			return c.Untouched(err)
		}
		if err := c.OpenStream(); err != nil {
			return c.Untouched(err)
		}
	}
	c.Target, c.Vital = subject.Sandbox, subject.Vital
	if err := gc.Intend(subject.Detail); err != nil {
		return err
	}
	r := c.R.WithContext(c.Ctx)
	r.Body = io.NopCloser(&body)
	return c.passMCP(r)
}

// endMCP ends a session.
func (a *API) endMCP(gc *gate.Call) error {
	c := &call{Call: gc, api: a}
	return c.passMCP(c.R.WithContext(c.Ctx))
}

// passMCP has a request answered.
func (c *call) passMCP(r *http.Request) error {
	identity := "key " + c.Caller.Key
	if c.Caller.Key == "" {
		identity = c.Caller.Name
	}
	work := &mcp.Request{Host: mcpHost{c}, Identity: identity}
	if err := c.api.mcp.Serve(c.W, r, work); err != nil {
		return c.Untouched(err)
	}
	if code := work.Code(); code != "" {
		c.NoteOutcome(errcode.Status(code), code, nil)
	}
	return nil
}

// mcpHost is what the caller of a request may use. It is used by the goroutines of the request's work, while the handler of the
// request waits.
type mcpHost struct{ c *call }

// Open implements mcp.Host.
func (h mcpHost) Open(context.Context) (sandpit.Client, error) {
	return h.c.api.opts.Backend.Client(h.c.Caller), nil
}

// Policy implements mcp.Host.
func (h mcpHost) Policy(ctx context.Context) (json.RawMessage, error) {
	p, err := h.c.api.opts.Policies.Policy(ctx, h.c.Caller)
	if err != nil {
		return nil, err
	}
	return json.Marshal(p)
}

// Forward implements mcp.Host. It creates a preview.
func (h mcpHost) Forward(ctx context.Context, sb sandpit.Sandbox, port uint16) (address, note string, err error) {
	plan, base, err := h.c.planPreview(ctx, sb, port, 0)
	if err != nil {
		return "", "", err
	}
	p, err := h.c.addPreview(ctx, plan, base)
	if err != nil {
		return "", "", err
	}
	return p.URL, "Everybody who has this URL can open it in a browser, until " + p.ExpiresAt.Format(time.RFC3339) + " or the sandbox is removed.", nil
}
