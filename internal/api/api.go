package api

import (
	"context"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/sandpit-dev/sandpit/internal/errcode"
	"github.com/sandpit-dev/sandpit/internal/otlp"
)

// Options are what the API works with. Those without a default must be set.
type Options struct {
	Backend     Backend
	Keys        Keys
	Policies    Policies
	Audit       Auditor
	Idempotency Idempotency
	Webhooks    Webhooks

	// DataDir is where the server keeps its files. Errors that name it are told to
	// administrators alone. Empty: none.
	DataDir string

	// Version is the server's own.
	Version string

	// Hosts are the names and addresses, without a port, under which the server
	// is asked for, beside those of loopback: the names of its certificate.
	Hosts []string

	// Domains are under which <port>-<id>.<domain> leads to a sandbox. Default
	// "localhost", whose every name is loopback in browsers (RFC 6761).
	Domains []string

	// Origins are the web pages that may use the API from a browser, as the
	// header Origin names them: "https://example.com". Default none.
	Origins []string

	Limits Limits

	// Connections counts those of the server, for the metrics. Default: nothing.
	Connections func() Connections

	// Log is told of what fails in the server itself. Default: nobody.
	Log *slog.Logger

	// Tracer receives a span of each request; nil: none is made.
	Tracer *otlp.Exporter
}

// Connections are how many connections a server has.
type Connections struct {
	Strangers int    // without a valid key
	Keys      int    // of callers with a key
	Peers     int    // of users of the unix socket
	Dropped   uint64 // since the start, for others
}

// API is the handler of all requests.
type API struct {
	opts    Options
	mux     *http.ServeMux
	guard   guard
	limiter limiter
	metrics *metrics
	proxy   *proxy

	// live ends what only follows: events, logs, attached output. all ends
	// everything that goes on.
	live, all       context.Context
	endLive, endAll context.CancelFunc

	mu       sync.Mutex
	draining bool          // guarded by mu
	open     int           // requests under way; guarded by mu
	idle     chan struct{} // closed when the last one ends while draining; guarded by mu
}

// New returns the API. Close it.
func New(opts Options) *API {
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	if opts.Connections == nil {
		opts.Connections = func() Connections { return Connections{} }
	}
	opts.Limits = opts.Limits.withDefaults()
	a := &API{opts: opts, mux: http.NewServeMux(), guard: newGuard(opts), idle: make(chan struct{})}
	a.limiter.init(opts.Limits)
	a.metrics = newMetrics()
	a.proxy = newProxy(a)
	a.live, a.endLive = context.WithCancel(context.Background())
	a.all, a.endAll = context.WithCancel(context.Background())
	for _, route := range append(Routes(), runRoute()) {
		a.mux.HandleFunc(route.Method+" "+route.Path, func(w http.ResponseWriter, r *http.Request) {
			c := w.(*response).call
			c.r, c.route, c.vital = r, &route, route.Vital
			c.serve()
		})
	}
	a.mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		w.(*response).call.lost(r)
	})
	return a
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

// ServeHTTP answers a request.
func (a *API) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c := &call{api: a, r: r, ctx: r.Context(), id: newRequestID(), began: time.Now()}
	c.w = &response{ResponseWriter: w, call: c}
	c.w.renew()
	w.Header().Set("X-Request-Id", c.id)
	if !a.enter() {
		w.Header().Set("Connection", "close")
		c.fail(&refusal{status: http.StatusServiceUnavailable, code: errcode.Draining, message: "the server is about to end", hint: "try again in a moment", after: time.Second})
		return
	}
	defer a.leave()
	ctx, cancel := context.WithCancelCause(r.Context())
	c.ctx, c.cancel = ctx, cancel
	defer cancel(nil)
	stop := context.AfterFunc(a.all, func() { c.breakOff(errDraining) })
	defer stop()
	defer c.finish()
	c.traced()
	if err := a.guard.check(c); err != nil {
		c.fail(err)
		return
	}
	if c.answered() { // a preflight
		return
	}
	if target, ok := a.proxy.target(r); ok {
		c.route, c.forward = proxyRoute(), target
		c.serve()
		return
	}
	if oddPath(r.URL.EscapedPath()) {
		c.lost(nil)
		return
	}
	a.mux.ServeHTTP(c.w, r)
}

func (a *API) enter() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.draining {
		return false
	}
	a.open++
	return true
}

func (a *API) leave() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.open--; a.open == 0 && a.draining {
		close(a.idle)
	}
}

// Close ends the API: new requests are refused, what only follows is ended,
// and what is being done goes on until ctx ends. It returns the error of ctx
// when something had to be broken off.
func (a *API) Close(ctx context.Context) error {
	a.mu.Lock()
	if !a.draining {
		a.draining = true
		if a.open == 0 {
			close(a.idle)
		}
	}
	a.mu.Unlock()
	a.endLive()
	var err error
	select {
	case <-a.idle:
	case <-ctx.Done():
		err = ctx.Err()
		a.endAll()
		timer := time.NewTimer(lastWords)
		defer timer.Stop()
		select {
		case <-a.idle:
		case <-timer.C:
		}
	}
	a.endAll()
	a.proxy.close()
	return err
}

// Bounds of a server.
const (
	maxHeader     = 32 << 10          // bytes of all headers of a request
	headerTime    = 10 * time.Second  // in which they must have come
	idleTime      = 120 * time.Second // of a connection between two requests
	maxHTTP2      = 250               // streams of one connection at once
	http2Inactive = 30 * time.Second  // after which a connection is asked whether it lives
)

// Configure sets the bounds of a server that has the API as its handler. HTTP/2
// is spoken over TLS alone.
func (a *API) Configure(s *http.Server) {
	s.Handler = a
	s.MaxHeaderBytes = maxHeader
	s.ReadHeaderTimeout = headerTime
	s.IdleTimeout = idleTime
	s.HTTP2 = &http.HTTP2Config{
		MaxConcurrentStreams: maxHTTP2,
		SendPingTimeout:      http2Inactive,
		PingTimeout:          http2Inactive / 2,
		WriteByteTimeout:     http2Inactive,
	}
	s.ErrorLog = slog.NewLogLogger(a.opts.Log.Handler(), slog.LevelDebug)
}
