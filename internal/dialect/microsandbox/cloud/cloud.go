// Package cloud is the REST API of microsandbox's cloud, which its clients speak when MSB_BACKEND is cloud.
//
// Facts about the protocol are from the public clients (superradcompany/microsandbox), of which the oldest that
// can choose this API is 0.6.9, and the requests that they send.
package cloud

import (
	"encoding/json"
	"net/http"
	"net/url"
	"strings"

	"github.com/sandpit-dev/sandpit/internal/api/codec"
	"github.com/sandpit-dev/sandpit/internal/dialect"
	"github.com/sandpit-dev/sandpit/internal/engine"
	"github.com/sandpit-dev/sandpit/internal/errcode"
	"github.com/sandpit-dev/sandpit/internal/gate"
)

// call is one request on its way.
type call struct {
	*gate.Call
	server *dialect.Server
	ended  *ended
}

// tenant returns the engine as the caller sees it.
func (c *call) tenant() *engine.Tenant { return c.server.Tenant(c.Caller) }

// sandbox finds the sandbox that the request names: by its name where the path says so, and else by its ID.
func (c *call) sandbox() (engine.Box, error) {
	find := c.tenant().BoxByID
	if c.byName() {
		find = c.tenant().BoxByName
	}
	sb, err := find(c.Target)
	if err != nil {
		return nil, c.Untouched(err)
	}
	return sb, nil
}

// byName reports whether the request names the sandbox by its name.
func (c *call) byName() bool { return strings.HasPrefix(c.R.URL.Path, namePath) }

// Routes returns the routes of the API. Their IDs lack the name of the dialect.
func Routes(s dialect.Server) []gate.Route {
	dialect.WarnOfData[state](s, s.Name)
	var all []gate.Route
	gone := new(ended)
	for _, r := range append(sandboxRoutes(), lackingRoutes()...) {
		made := gate.Route{
			Method: r.method, Path: r.path, ID: r.id, Guarded: r.method != http.MethodGet, Vital: r.vital, SelfAudited: r.audited,
			Target: func(r *http.Request) string { return r.PathValue("sandbox") },
			Handle: func(c *gate.Call) error { return r.handle(&call{c, &s, gone}) },
		}
		all = append(all, made)
		if r.named {
			made.Path, made.ID = "", made.ID+byName
			all = append(all, made)
		}
	}
	return all
}

// route is an operation of the API.
type route struct {
	method, path, id string
	named            bool // there is another one for a sandbox by its name; see Pick
	vital            bool
	audited          bool // the handler calls Intend itself
	handle           func(*call) error
}

const (
	onePath  = "/v1/sandboxes/{sandbox}" // of a sandbox by its ID
	byName   = "ByName"                  // the end of IDs of routes for a sandbox by its name
	namePath = "/v1/sandboxes/by-name/"  // what their paths begin with
)

// Pick returns the ID of the route of a request that names a sandbox by its name, or "": http.ServeMux can't tell such
// paths from those with an ID.
func Pick(r *http.Request) (id string) {
	rest, ok := strings.CutPrefix(r.URL.EscapedPath(), namePath)
	name, operation := rest, ""
	if i := strings.IndexByte(rest, '/'); i >= 0 {
		name, operation = rest[:i], rest[i:]
	}
	plain, err := url.PathUnescape(name)
	if !ok || err != nil || name == "" {
		return ""
	}
	for _, route := range sandboxRoutes() {
		if route.named && route.method == r.Method && route.path == onePath+operation {
			r.SetPathValue("sandbox", plain)
			return route.id + byName
		}
	}
	return ""
}

// Fail is gate.Dialect.Fail.
func Fail(c *gate.Call, f gate.Failure) {
	codec.Write(c.W, f.Status, Error(f))
}

// Error returns the body of an error.
func Error(f gate.Failure) []byte {
	type details struct {
		Code      string `json:"code"`
		Message   string `json:"message"`
		RequestID string `json:"request_id,omitempty"`
	}
	body, _ := json.Marshal(struct { // of strings, which never fails
		Error details `json:"error"`
	}{details{code(f.Code), f.Text(), f.RequestID}})
	return body
}

// code returns the code of an error as clients know it. They make typed errors of some, and of others by
// the status.
func code(sandpit string) string {
	switch sandpit {
	case errcode.NotFound, errcode.Closed:
		return "sandbox_not_found"
	case errcode.Exists:
		return "name_already_exists"
	case errcode.Invalid, errcode.TooLarge:
		return "invalid_request"
	}
	return sandpit
}
