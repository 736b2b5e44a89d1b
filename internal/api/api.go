package api

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/api/codec"
	v1 "github.com/sandpit-dev/sandpit/internal/api/v1"
	"github.com/sandpit-dev/sandpit/internal/errcode"
	"github.com/sandpit-dev/sandpit/internal/fault"
	"github.com/sandpit-dev/sandpit/internal/gate"
	"github.com/sandpit-dev/sandpit/internal/mcp"
	"github.com/sandpit-dev/sandpit/internal/notation"
	"github.com/sandpit-dev/sandpit/internal/portproxy"
	"github.com/sandpit-dev/sandpit/internal/preview"
)

// Options configure the API. Those without a default must be set.
type Options struct {
	Gate        *gate.Gate // behind which it stands
	Backend     Backend
	Keys        Keys
	Policies    Policies
	Audit       AuditReader
	Idempotency Idempotency
	Webhooks    Webhooks
	Secrets     Secrets
	Previews    *preview.Book

	// Version is the server's own.
	Version string

	// Domains are under which <port>-<id>.<domain> leads to a sandbox. Default
	// "localhost", whose every name is loopback in browsers (RFC 6761).
	Domains []string

	// Web returns the scheme and port at which browsers reach the first domain, for previews of
	// callers at a unix socket, or why there is none. Default: there is none.
	Web func() (scheme, port string, err error)

	// Dialects returns the wire APIs of other projects that the server serves, for a caller that has called it by a
	// host name, or by "" at a unix socket. Default: there are none.
	Dialects func(host string) []v1.Dialect

	// ComeBack is how long a foreground command with an Idempotency-Key goes on after its
	// last caller has left. Default: a minute.
	ComeBack time.Duration

	// Connections counts those of the server, for the metrics. Default: nothing.
	Connections func() Connections
}

// Connections are the numbers of a server's connections.
type Connections struct {
	Strangers int    // without a valid key
	Keys      int    // of callers with a key
	Peers     int    // of users of the unix socket
	Dropped   uint64 // since the start, for others
}

// API is Sandpit's own dialect: /v1, and the ports of sandboxes. Its methods are safe for
// concurrent use.
type API struct {
	opts    Options
	gate    *gate.Gate
	domains []string
	metrics *metrics
	proxy   *portproxy.Proxy
	mcp     *mcp.Handler
	awaited awaited

	previews *preview.Book
}

// New returns the API.
func New(opts Options) *API {
	if opts.Connections == nil {
		opts.Connections = func() Connections { return Connections{} }
	}
	if opts.Web == nil {
		opts.Web = func() (string, string, error) {
			return "", "", fault.Errorf(sandpit.ErrUnsupported, "the server has no TCP address that a browser can use")
		}
	}
	if opts.ComeBack == 0 {
		opts.ComeBack = comeBackTime
	}
	if opts.Domains == nil {
		opts.Domains = []string{"localhost"}
	}
	a := &API{opts: opts, gate: opts.Gate, metrics: newMetrics(), previews: opts.Previews}
	for _, d := range opts.Domains {
		a.domains = append(a.domains, gate.HostName(d))
	}
	a.mcp = mcp.NewHandler(opts.Version, opts.Gate.Log())
	context.AfterFunc(opts.Gate.Live(), a.mcp.Close)
	a.proxy = portproxy.New(portproxy.Options{Gate: opts.Gate, HasKey: opts.Keys.In, KeyHeaders: []string{headerKey, headerAuthorization}, Own: ownHeaders})
	return a
}

// Dialect returns the API as gate.Gate.Handler serves it.
func (a *API) Dialect() gate.Dialect {
	d := gate.Dialect{
		Pick: func(r *http.Request) string {
			if _, ok := a.target(r); ok {
				return passingID
			}
			return ""
		},
		OwnHost: func(name string) bool {
			_, _, ok := portOfHost(name, a.domains)
			return ok
		},
		Credential: credential,
		Nested:     nested,
		Challenge:  `Bearer realm="sandpit"`,
		KeyHint:    "send the header Authorization: Bearer KEY, or set SANDPIT_KEY for the command line; sandpit key create makes one",
		PathHint:   "see /docs",
		Fail: func(c *gate.Call, f gate.Failure) {
			if a.failPreview(c, &f) {
				return
			}
			body, _ := json.Marshal(codec.Error(f)) // of strings, which never fails
			codec.Write(c.W, f.Status, append(body, '\n'))
		},
		AllowHeaders:  "Accept, Authorization, Content-Type, Idempotency-Key, Last-Event-ID, Mcp-Method, Mcp-Name, Mcp-Protocol-Version, Mcp-Session-Id, Range, X-Sandpit-Key, X-Sandpit-Namespace, X-Sandpit-Port, X-Sandpit-Sandbox",
		ExposeHeaders: "X-Request-Id, Retry-After, Location, Idempotent-Replayed, X-Sandpit-Mode, Content-Range, Mcp-Session-Id",
	}
	for _, route := range append(Routes(), runRoute()) {
		d.Routes = append(d.Routes, a.behind(&route))
	}
	passing := a.behind(proxyRoute())
	passing.Passes = true
	passing.Proof = a.provePreview
	passing.Target = func(r *http.Request) string {
		to, _ := a.target(r)
		return to.sandbox
	}
	d.Routes = append(d.Routes, passing)
	d.Routes = append(d.Routes, a.mcpRoutes()...)
	return d
}

// behind returns a route as the gate has it.
func (a *API) behind(route *Route) gate.Route {
	return gate.Route{
		Method: route.Method, Path: route.Path, ID: route.ID,
		Open: route.Open, Admin: route.Admin, Guarded: route.Guarded, Vital: route.Vital, VitalIf: route.vitalIf, Ticketed: route.Ticket, SelfAudited: true,
		Target: func(r *http.Request) string { return r.PathValue("sb") }, Detail: subject,
		Handle: func(gc *gate.Call) error {
			c := &call{Call: gc, api: a, route: route}
			if err := c.check(); errors.Is(err, errReplayed) {
				return nil
			} else if err != nil {
				return c.settle(c.Untouched(err))
			}
			if err := c.settle(c.unsure(route.handle(c))); !errors.Is(err, errReplayed) {
				return err
			}
			return nil
		},
	}
}

// Headers in which a key may come. The second is for requests that are passed
// on to a sandbox, which then get to keep their own Authorization.
const (
	headerAuthorization = "Authorization"
	headerKey           = "X-Sandpit-Key"
)

// credential is for gate.Dialect.Credential.
func credential(r *http.Request) (secret string, shared bool) {
	if k := r.Header.Get(headerKey); k != "" {
		return k, false
	}
	scheme, key, _ := strings.Cut(r.Header.Get(headerAuthorization), " ")
	if key = strings.TrimSpace(key); !strings.EqualFold(scheme, "Bearer") || key == "" {
		return "", false
	}
	return key, true
}

// headerNamespace has the nested namespace that a request is about.
const headerNamespace = "X-Sandpit-Namespace"

// nested is for gate.Dialect.Nested.
func nested(r *http.Request) (string, error) {
	values := r.Header.Values(headerNamespace)
	if len(values) == 0 {
		return "", nil
	}
	if name := values[0]; len(values) == 1 && (name == sandpit.AllNamespaces || notation.IsName(name)) {
		return name, nil
	}
	return "", sandpit.WithHint(gate.Invalid(headerNamespace+" is not the name of a namespace", ""), notation.NameHint+"; or send "+sandpit.AllNamespaces+" to list those of all")
}

// check refuses what no handler has to look at, and has the audit keep what is about to be
// done, unless the handler knows more of that.
func (c *call) check() error {
	if c.route.Open {
		return nil
	}
	if c.route.ID != passingID {
		if enc := c.R.Header.Get("Content-Encoding"); enc != "" && !strings.EqualFold(enc, "identity") {
			return &gate.Refusal{Code: errcode.UnsupportedMedia, Message: "compressed bodies are not supported", Hint: "send the body uncompressed"}
		}
		if len(c.route.Query) == 0 && c.R.URL.RawQuery != "" {
			if err := c.query().err; err != nil { // of the others their handlers see to that
				return err
			}
		}
	}
	if c.route.In != nil || c.route.selfAudited {
		return nil
	}
	return c.Intend(c.Detail)
}
