// Package gate guards every HTTP handler of a server. It decides which requests are admitted,
// bounds their cost, and records them.
//
// A server has one Gate. Several dialects can stand behind it: each has routes, a place
// where the caller's key is, and a form of errors of its own. They share keys, limits, the
// audit and all counters.
//
// A request passes these steps, in this order. Each of them may refuse it: the bounds of
// the HTTP server (Gate.Configure), its host and origin (guard.go), who its caller is
// (caller.go), rates and the share of the audit (limits.go, summary.go), whether the
// caller may use the route at all (Route.Admin), and its entry in the audit (audit.go).
// Then the handler of the route runs.
package gate

import (
	"context"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/sandpit-dev/sandpit/internal/audit"
	"github.com/sandpit-dev/sandpit/internal/otlp"
)

// Options configure a gate. Those without a default must be set.
type Options struct {
	Keys  Verifier
	Audit Auditor

	// DataDir is where the server keeps its files. Only administrators may read errors that
	// name it. Empty: none.
	DataDir string

	// Hosts are the names and addresses, without a port, that the server accepts in the
	// Host header, besides those of loopback.
	Hosts []string

	// Origins are the origins of web pages that may use the server, such as
	// "https://example.com", exactly as browsers send them. Default: none.
	Origins []string

	Limits Limits

	// Log receives what fails in the server itself. Default: nothing is logged.
	Log *slog.Logger

	// Tracer receives a span for each request. Default: no spans are made.
	Tracer *otlp.Exporter
}

// Verifier verifies keys.
type Verifier interface {
	// Verify returns the owner of a key. It compares in constant time. Errors that match
	// ErrForbidden, ErrNotFound or ErrInvalid say that the key is not valid.
	Verify(ctx context.Context, secret string) (Caller, error)
}

// Auditor keeps the audit.
type Auditor interface {
	// Append adds an entry, and returns how many bytes of the audit it takes once it is
	// kept for good. After an error the entry is not kept, and what it is about
	// must not be done. A vital entry may use room that is reserved on a full disk.
	Append(ctx context.Context, e audit.Record) (size int, err error)
}

// Gate lets requests in. Its methods are safe for concurrent use.
type Gate struct {
	opts    Options
	guard   guard
	limiter limiter
	metrics *metrics
	tickets tickets

	// live ends when the gate drains, all when it breaks off what is still in progress.
	live, all       context.Context
	endLive, endAll context.CancelFunc

	mu       sync.Mutex
	ids      map[string]bool // of all routes; guarded by mu
	draining bool            // guarded by mu
	open     int             // requests in progress; guarded by mu
	idle     chan struct{}   // closed when the last one ends while draining; guarded by mu
}

// New returns a gate. Close it.
func New(opts Options) *Gate {
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	opts.Limits = opts.Limits.withDefaults()
	g := &Gate{opts: opts, guard: newGuard(opts), metrics: newMetrics(), idle: make(chan struct{}), ids: map[string]bool{}}
	g.limiter.init(opts.Limits)
	g.live, g.endLive = context.WithCancel(context.Background())
	g.all, g.endAll = context.WithCancel(context.Background())
	return g
}

// Limits returns the limits in force.
func (g *Gate) Limits() Limits { return g.opts.Limits }

// Log returns the log for what fails in the server itself.
func (g *Gate) Log() *slog.Logger { return g.opts.Log }

// Live returns a context that ends when the gate begins to drain. Calls that only follow
// something, such as events or logs, must end then.
func (g *Gate) Live() context.Context { return g.live }

// enter counts a request in, unless the gate is draining.
func (g *Gate) enter() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.draining {
		return false
	}
	g.open++
	return true
}

func (g *Gate) leave() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.open--; g.open == 0 && g.draining {
		close(g.idle)
	}
}

// DrainIdle begins to drain the gate if no request is in progress, and reports whether it does.
func (g *Gate) DrainIdle() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.open == 0 {
		g.drain()
	}
	return g.draining
}

// drain refuses new requests from now on. Precondition: g.mu is held.
func (g *Gate) drain() {
	if g.draining {
		return
	}
	g.draining = true
	if g.open == 0 {
		close(g.idle)
	}
}

// Close drains the gate. It refuses new requests, ends Live, and waits for calls in progress
// until ctx ends. Then it breaks off the others, and returns the error of ctx.
func (g *Gate) Close(ctx context.Context) error {
	g.mu.Lock()
	g.drain()
	g.mu.Unlock()
	g.endLive()
	var err error
	select {
	case <-g.idle:
	case <-ctx.Done():
		err = ctx.Err()
		g.endAll()
		timer := time.NewTimer(2 * LastWords)
		defer timer.Stop()
		select {
		case <-g.idle:
		case <-timer.C:
		}
	}
	g.endAll()
	return err
}

// Bounds of a server.
const (
	maxHeader     = 32 << 10          // bytes of all headers of a request
	idleTime      = 120 * time.Second // of a connection between two requests
	maxHTTP2      = 250               // streams of one connection at once
	http2Inactive = 30 * time.Second  // after which a connection is asked whether it lives
)

// HeaderTime is the time in which the headers of a request must have come.
const HeaderTime = 10 * time.Second

// Configure sets the handler and the bounds of an HTTP server. HTTP/2 is spoken over TLS
// alone.
func (g *Gate) Configure(s *http.Server, h http.Handler) {
	s.Handler = h
	s.MaxHeaderBytes = maxHeader
	s.ReadHeaderTimeout = HeaderTime
	s.IdleTimeout = idleTime
	s.HTTP2 = &http.HTTP2Config{
		MaxConcurrentStreams: maxHTTP2,
		SendPingTimeout:      http2Inactive,
		PingTimeout:          http2Inactive / 2,
		WriteByteTimeout:     http2Inactive,
	}
	s.ErrorLog = slog.NewLogLogger(g.opts.Log.Handler(), slog.LevelDebug)
}
