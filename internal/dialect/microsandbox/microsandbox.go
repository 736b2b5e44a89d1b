// Package microsandbox serves the APIs of microsandbox, so that its clients can use Sandpit unmodified.
//
// There are three APIs, whose paths differ: that of the cloud, which all present clients can speak (package cloud), the agent
// channel of a sandbox, which the clients of the cloud use inside of it (package agent), and the JSON-RPC server of older clients
// (package rpc). All are served at the same address, with the same keys, and on the same sandboxes. Namespaces of the JSON-RPC server are nested in that of the caller's key.
//
// This package joins what each API has: routes, and the form of its errors.
package microsandbox

import (
	"net/http"
	"strings"

	"github.com/sandpit-dev/sandpit/internal/dialect"
	"github.com/sandpit-dev/sandpit/internal/dialect/microsandbox/agent"
	"github.com/sandpit-dev/sandpit/internal/dialect/microsandbox/cloud"
	"github.com/sandpit-dev/sandpit/internal/dialect/microsandbox/rpc"
	"github.com/sandpit-dev/sandpit/internal/gate"
	"github.com/sandpit-dev/sandpit/internal/keys"
)

// Name is the name of the service.
const Name = "microsandbox"

// New returns the dialect.
func New() dialect.Dialect {
	return dialect.Dialect{
		Name: Name, Title: "microsandbox", KeyFormat: keys.Microsandbox, Settings: settings, New: serve,
		Error: cloud.Error,
	}
}

// settings are those of clients of both APIs, each of which ignores those of the other.
func settings(url string) []dialect.Setting {
	return []dialect.Setting{
		{Name: "MSB_BACKEND", Value: "cloud"},
		{Name: "MSB_API_URL", Value: url},
		{Name: "MSB_SERVER_URL", Value: url},
		{Name: "MSB_API_KEY", Key: true},
	}
}

// api is one of the APIs.
type api struct {
	routes []gate.Route // with IDs to which the name of the dialect is added
	has    func(path string) bool
	fail   func(*gate.Call, gate.Failure)
}

// serve returns the dialect as the gate of a server has it.
func serve(s dialect.Server) gate.Dialect {
	apis := []api{
		{routes: agent.Routes(s, Name), has: func(string) bool { return false }}, // its errors are those of the cloud
		{rpc.Routes(s), rpc.Has, rpc.Fail},
		{cloud.Routes(s), func(string) bool { return true }, cloud.Fail}, // the last one
	}
	d := gate.Dialect{
		Credential: credential,
		KeyHint:    "set MSB_API_KEY to a key of this server; sandpit key create makes one",
		PathHint:   "this server has no such call of microsandbox's APIs",

		AllowHeaders: "Authorization, Accept, Content-Type, Mcp-Protocol-Version",
		Pick: func(r *http.Request) string {
			id := cloud.Pick(r)
			if id != "" {
				id = Name + "." + id
			}
			return id
		},
		Fail: func(c *gate.Call, f gate.Failure) {
			for _, a := range apis {
				if a.has(c.R.URL.Path) {
					a.fail(c, f)
					return
				}
			}
		},
	}
	for _, a := range apis {
		for _, r := range a.routes {
			r.ID = Name + "." + r.ID
			d.Routes = append(d.Routes, r)
		}
	}
	return d
}

// credential is gate.Dialect.Credential. Clients of both APIs send their key as a bearer token; those of the
// JSON-RPC server may send it bare, and in the header for proxies, which comes first.
func credential(r *http.Request) (secret string, shared bool) {
	value := r.Header.Get("Proxy-Authorization")
	if value == "" {
		value = r.Header.Get("Authorization")
	}
	if scheme, rest, ok := strings.Cut(value, " "); ok && strings.EqualFold(scheme, "Bearer") {
		value = rest
	}
	return strings.TrimSpace(value), false
}
