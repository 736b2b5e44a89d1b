package gate

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/sandpit-dev/sandpit/internal/errcode"
)

// Dialect is a wire API behind a gate. Gate.Handler serves it. It must not change afterwards.
// Its functions are called from many goroutines.
type Dialect struct {
	// Routes are the operations, by method and path, and those of Pick.
	Routes []Route

	// Pick returns the ID of the route of a request that is decided by something else than
	// its path, or "". It takes precedence over paths. A nil Pick picks nothing.
	Pick func(*http.Request) (id string)

	// OwnHost reports whether the dialect serves a host name (see HostName) that is not
	// one of the server's. A nil OwnHost reports false.
	OwnHost func(name string) bool

	// Credential returns the key in a request, or "". shared says that it comes from a
	// header that programs in sandboxes may use for keys of their own (see Route.Passes).
	Credential func(*http.Request) (secret string, shared bool)

	// Nested returns the namespace, nested in that of the caller, which a request is about, or "".
	// A handler may set Caller.Nested later, if the body says it. A nil Nested returns "".
	Nested func(*http.Request) (string, error)

	// Challenge is the header WWW-Authenticate in answers to requests without a valid key.
	// If it is empty, the header is not sent.
	Challenge string

	// KeyHint is the hint for requests without a key. It says how to send one.
	KeyHint string

	// PathHint is the hint for requests to unknown paths.
	PathHint string

	// Rate and Burst are bounds of a key in this dialect, in place of those of Limits, for clients that make more
	// requests for the same work. They are counted apart. 0: those of Limits, shared with other dialects.
	Rate  float64 // requests per second
	Burst int     // requests at once

	// Fail writes an error as the answer. The gate has set Retry-After and other common
	// headers.
	Fail func(*Call, Failure)

	// AllowHeaders and ExposeHeaders list the request headers that pages of Options.Origins
	// may send, and the response headers that they may read.
	AllowHeaders, ExposeHeaders string
}

// Route is one operation of a dialect.
type Route struct {
	Method, Path string // as http.ServeMux has them; empty for a route of Dialect.Pick

	// ID names the operation in the audit, metrics and traces. It is unique among the
	// dialects of a gate, which Gate.Handler checks.
	ID string

	Open    bool // no key is needed
	Admin   bool // for administrators only
	Guarded bool // recorded in the audit before it is done

	// Vital operations end something or revoke rights. They are carried out even if the
	// audit is full, or the key has used up its share of it, and recorded later.
	Vital bool

	// VitalIf reports whether a call of a route that is not vital is, by its body. The gate asks when it would refuse the
	// call otherwise. Call.Peek reads the body for it. It may be nil.
	VitalIf func(*Call) bool

	// SelfAudited says that the handler of a guarded operation calls Call.Intend itself, when it
	// knows more. Otherwise the gate does so before it calls the handler. Unless the operation
	// is vital, a handler that forgets this answers 500.
	SelfAudited bool

	// Passes says that requests are forwarded to a program that may have keys of its
	// own. Peers of the unix socket, which need no key, may then send a key of that
	// program in a shared header.
	Passes bool

	// Ticketed says that a ticket may stand for the key (see Call.NewTicket). Only streams
	// that GET requests open are.
	Ticketed bool

	// Proof returns who makes a request that shows a right of its own in place of a key, such
	// as a preview, and whether it does. It removes the proof from the request, also after it
	// returned an error. It may be nil.
	Proof func(*Call) (who Caller, ok bool, err error)

	// Target returns the sandbox that a request names, and Detail what else it is about,
	// both for the audit. They may be nil.
	Target, Detail func(*http.Request) string

	// Handle carries out the request. It answers, or returns an error, which the gate gives to
	// Dialect.Fail.
	Handle func(*Call) error
}

// service serves a dialect.
type service struct {
	gate    *Gate
	dialect *Dialect
	mux     *http.ServeMux
	routes  map[string]*Route // by pattern
	picked  map[string]*Route // those without a path, by ID
	methods []string          // of all routes, in the order in which they are named to clients
}

// Handler returns the handler of a dialect. Serve it on servers that Configure has set up.
// It panics if the dialect has no Credential or Fail, if the ID of a route is used twice in
// the dialects of the gate, or if a route is Ticketed that is not for GET.
func (g *Gate) Handler(d Dialect) http.Handler {
	if d.Credential == nil || d.Fail == nil {
		panic("gate: a dialect without Credential or Fail")
	}
	s := &service{gate: g, dialect: &d, mux: http.NewServeMux(), routes: map[string]*Route{}, picked: map[string]*Route{}}
	for _, method := range [...]string{http.MethodGet, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete} {
		if slices.ContainsFunc(d.Routes, func(r Route) bool { return r.Method == method }) {
			s.methods = append(s.methods, method)
		}
	}
	for i := range d.Routes {
		route := &d.Routes[i]
		g.claim(route.ID)
		if route.Ticketed && route.Method != http.MethodGet {
			panic("gate: a ticket can't stand for the key of " + route.ID)
		}
		if route.Path == "" {
			s.picked[route.ID] = route
			continue
		}
		s.routes[route.Method+" "+route.Path] = route
		s.mux.HandleFunc(route.Method+" "+route.Path, func(w http.ResponseWriter, r *http.Request) {
			c := w.(*Writer).call
			c.R = r
			c.serve(route)
		})
	}
	s.mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		w.(*Writer).call.lost(r)
	})
	return s
}

// claim notes that a route has an ID. It panics if another one has it.
func (g *Gate) claim(id string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.ids[id] || id == "" {
		panic(fmt.Sprintf("gate: two routes have the ID %q, or it is empty", id))
	}
	g.ids[id] = true
}

// ServeHTTP answers a request.
func (s *service) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	g := s.gate
	c := &Call{gate: g, service: s, control: http.NewResponseController(w), R: r, Ctx: r.Context(), ID: NewRequestID(), began: time.Now()}
	c.W = &Writer{ResponseWriter: w, call: c}
	if r.ProtoMajor == 1 {
		c.W.renew() // the connection may have the deadline of an earlier request
	}
	w.Header().Set("X-Request-Id", c.ID)
	if !g.enter() {
		w.Header().Set("Connection", "close")
		c.Fail(&Refusal{Code: errcode.Draining, Message: "the server is shutting down", Hint: "try again in a moment", After: time.Second})
		return
	}
	defer g.leave()
	c.Ctx, c.Cancel = context.WithCancelCause(r.Context())
	defer func() { c.Cancel(nil) }() // which OutliveClient replaces
	stop := context.AfterFunc(g.all, func() { c.breakOff(ErrDraining) })
	defer stop()
	defer c.finish()
	c.traced()
	if err := c.guard(); err != nil {
		c.Fail(err)
		return
	}
	if c.answered() { // a preflight
		return
	}
	if s.dialect.Pick != nil {
		if id := s.dialect.Pick(r); id != "" {
			c.serve(s.picked[id])
			return
		}
	}
	if oddPath(r.URL.EscapedPath()) {
		c.lost(nil)
		return
	}
	s.mux.ServeHTTP(c.W, r)
}

// oddPath reports whether http.ServeMux would answer a path by itself, with a redirect in
// HTML: paths of CONNECT and *, and paths with "//", "." or "..".
func oddPath(escaped string) bool {
	rest, ok := strings.CutPrefix(escaped, "/")
	for ok && rest != "" {
		var part string
		part, rest, ok = strings.Cut(rest, "/")
		if part == "" || part == "." || part == ".." {
			return true
		}
	}
	return !strings.HasPrefix(escaped, "/")
}

// allowed returns the methods for which there is a route to a path.
func (s *service) allowed(r *http.Request, path *url.URL) (all []string) {
	for _, method := range s.methods {
		probe := &http.Request{Method: method, URL: path, Host: r.Host}
		if _, pattern := s.mux.Handler(probe); pattern != "/" && pattern != "" {
			all = append(all, method)
		}
	}
	return all
}

// lost answers a request without a route. r is nil if its path is not valid.
func (c *Call) lost(r *http.Request) {
	var allowed []string
	if r != nil {
		allowed = c.service.allowed(r, r.URL)
	}
	if len(allowed) > 0 {
		c.W.Header().Set("Allow", strings.Join(allowed, ", "))
		c.Fail(&Refusal{Code: errcode.MethodNotAllowed, Message: "this path does not support the method " + r.Method, Hint: "use " + strings.Join(allowed, " or ")})
		return
	}
	hint := c.service.dialect.PathHint
	if r != nil && strings.HasSuffix(r.URL.EscapedPath(), "/") {
		bare := &url.URL{Path: strings.TrimSuffix(r.URL.Path, "/"), RawPath: strings.TrimSuffix(r.URL.RawPath, "/")}
		if len(c.service.allowed(r, bare)) > 0 {
			hint = "remove the trailing slash"
		}
	}
	c.Fail(&Refusal{Code: errcode.NoRoute, Message: "the path does not exist", Hint: hint})
}
