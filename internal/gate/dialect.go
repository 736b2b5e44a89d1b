package gate

import (
	"context"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/sandpit-dev/sandpit/internal/errcode"
)

// Dialect is a wire API that stands behind a gate. Gate.Handler serves it. It must not be
// changed afterwards, and its functions are called from many goroutines.
type Dialect struct {
	// Routes are the requests that it knows by their method and path.
	Routes []Route

	// Pick returns the route of a request that its path does not decide, before Routes
	// are looked at, or nil. Pick itself may be nil.
	Pick func(*http.Request) *Route

	// OwnHost reports whether a host name (see HostName), which is not one of the
	// server's, belongs to the dialect. nil: none does.
	OwnHost func(name string) bool

	// Credential returns the key of a request, or "". shared says that it is in a
	// header that programs behind the server may use for keys of their own
	// (see Route.Passes).
	Credential func(*http.Request) (secret string, shared bool)

	// Challenge is the value of the header WWW-Authenticate of requests without a valid
	// key. Empty: the header is not sent.
	Challenge string

	// KeyHint says how to send a key, for requests without one.
	KeyHint string

	// PathHint is for requests that no route takes.
	PathHint string

	// Fail writes an error as the answer. Status, Retry-After and the like are decided:
	// see Failure.
	Fail func(*Call, Failure)

	// AllowHeaders and ExposeHeaders are lists of headers for pages of Options.Origins:
	// those that they may send, and those of answers that they may read.
	AllowHeaders, ExposeHeaders string
}

// Route is one operation of a dialect.
type Route struct {
	Method, Path string // as http.ServeMux has them; empty for a route of Dialect.Pick

	// ID names the operation in the audit, metrics and traces. It is unique among
	// the dialects of a gate.
	ID string

	Open    bool // no key is needed
	Admin   bool // for administrators only
	Guarded bool // recorded in the audit before it is done

	// Vital requests end something or take rights away. They are carried out also when
	// the audit is full or the key has used up its share of it, and entered later.
	Vital bool

	// Late says that the handler calls Call.Intend itself, once it knows more. Otherwise
	// the gate does so for a guarded request before it calls the handler.
	Late bool

	// Passes says that the request is passed on to a program that may have keys
	// of its own. A user of the unix socket, who needs no key, may then send one that is
	// not valid here in a shared header.
	Passes bool

	// Target returns the sandbox that a request names, and Detail what it is
	// about beside that, both for the audit. nil: nothing.
	Target, Detail func(*http.Request) string

	// Handle carries the request out. It answers, or returns an error for Dialect.Fail.
	Handle func(*Call) error
}

// service serves a dialect.
type service struct {
	gate    *Gate
	dialect *Dialect
	mux     *http.ServeMux
	methods []string // of all routes, in the order in which they are named to clients
}

// Handler returns the handler of a dialect. It may be served on any server that
// Gate.Configure has set up.
func (g *Gate) Handler(d Dialect) http.Handler {
	s := &service{gate: g, dialect: &d, mux: http.NewServeMux()}
	for _, method := range [...]string{http.MethodGet, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete} {
		if slices.ContainsFunc(d.Routes, func(r Route) bool { return r.Method == method }) {
			s.methods = append(s.methods, method)
		}
	}
	for i := range d.Routes {
		route := &d.Routes[i]
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

// ServeHTTP answers a request.
func (s *service) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	g := s.gate
	c := &Call{gate: g, service: s, R: r, Ctx: r.Context(), ID: NewRequestID(), began: time.Now()}
	c.W = &Writer{ResponseWriter: w, call: c}
	c.W.renew()
	w.Header().Set("X-Request-Id", c.ID)
	if !g.enter() {
		w.Header().Set("Connection", "close")
		c.Fail(&Refusal{Status: http.StatusServiceUnavailable, Code: errcode.Draining, Message: "the server is shutting down", Hint: "try again in a moment", After: time.Second})
		return
	}
	defer g.leave()
	ctx, cancel := context.WithCancelCause(r.Context())
	c.Ctx, c.Cancel = ctx, cancel
	defer cancel(nil)
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
		if route := s.dialect.Pick(r); route != nil {
			c.serve(route)
			return
		}
	}
	if oddPath(r.URL.EscapedPath()) {
		c.lost(nil)
		return
	}
	s.mux.ServeHTTP(c.W, r)
}

// oddPath reports whether a path is one that http.ServeMux answers by itself, with
// a redirect in HTML: that of CONNECT and *, and one with "//", "." or "..".
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
func (s *service) allowed(r *http.Request, path string) (all []string) {
	for _, method := range s.methods {
		probe := &http.Request{Method: method, URL: &url.URL{Path: path}, Host: r.Host}
		if _, pattern := s.mux.Handler(probe); pattern != "/" && pattern != "" {
			all = append(all, method)
		}
	}
	return all
}

// lost answers a request for which there is no route. r is nil if its path is not a
// valid one.
func (c *Call) lost(r *http.Request) {
	var allowed []string
	if r != nil {
		allowed = c.service.allowed(r, r.URL.Path)
	}
	if len(allowed) > 0 {
		c.W.Header().Set("Allow", strings.Join(allowed, ", "))
		c.Fail(&Refusal{Status: http.StatusMethodNotAllowed, Code: errcode.MethodNotAllowed, Message: "this path does not support the method " + r.Method, Hint: "use " + strings.Join(allowed, " or ")})
		return
	}
	hint := c.service.dialect.PathHint
	if r != nil && strings.HasSuffix(r.URL.Path, "/") && len(c.service.allowed(r, strings.TrimSuffix(r.URL.Path, "/"))) > 0 {
		hint = "remove the trailing slash"
	}
	c.Fail(&Refusal{Status: http.StatusNotFound, Code: errcode.NoRoute, Message: "the path does not exist", Hint: hint})
}
