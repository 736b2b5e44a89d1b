// Package intercept reads the requests in connections of sandboxes, also inside of TLS. It decides about each,
// puts secrets in place of their placeholders, and takes the values out of what comes back.
//
//	program ─ TLS of the sandbox's authority ─ Server ─ TLS that the origin proves ─ origin
//
// Bodies, WebSockets and answers stream through: no more is held back than what may be the beginning of
// a placeholder or a value. Requests that have to be read whole are bounded in all, for each sandbox.
package intercept

import (
	"context"
	"crypto/x509"
	"errors"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/egress"
	"github.com/sandpit-dev/sandpit/internal/engine"
	"github.com/sandpit-dev/sandpit/internal/fault"
)

// Terms are what an engine.Terms says about requests. They are immutable.
type Terms struct {
	TLS *TLS // nil: no TLS ends here

	rules   *egress.Rules
	secrets secrets
	renew   func(ctx context.Context, name string) error // engine.Terms.Renew
}

// Compile compiles the part of terms that is about requests. Origins prove their names by trusted;
// nil: by the authorities of this machine. The Terms before, if any, have the former secrets, whose
// values do not come back either. Errors match sandpit.ErrInvalid or sandpit.ErrUnsupported.
func Compile(t engine.Terms, rules *egress.Rules, trusted *x509.CertPool, was *Terms) (*Terms, error) {
	if rule := rules.AboutRequests(); rule != "" && t.CA == nil {
		return nil, sandpit.WithHint(fault.Errorf(sandpit.ErrUnsupported, "rule %q is about requests, and TLS of this sandbox is not intercepted", fault.Clip(rule)),
			"create the sandbox with such a rule: its programs have to trust certificates that are made for it")
	}
	if len(t.Secrets) > 0 && t.CA == nil {
		return nil, fault.Errorf(sandpit.ErrUnsupported, "secret %q can't be put into requests: TLS of this sandbox is not intercepted", t.Secrets[0].Name)
	}
	if was == nil {
		was = new(Terms)
	}
	now := &Terms{rules: rules, renew: t.Renew}
	var err error
	if now.secrets, err = compileSecrets(t.Secrets); err != nil || t.CA == nil {
		return now, err
	}
	now.secrets = now.secrets.with(was.secrets)
	now.TLS, err = newTLS(t.CA, trusted, was.TLS)
	return now, err
}

// About reports whether one of the secrets is for a destination.
func (t *Terms) About(to egress.Destination) bool { return t.secrets.about(to) }

// Changed returns ErrSecretChanged if a secret for a destination was replaced or removed, and else nil.
func (t *Terms) Changed(now *Terms, to egress.Destination) error {
	if t.secrets.changed(now.secrets, to) {
		return ErrSecretChanged
	}
	return nil
}

// ErrSecretChanged is why a WebSocket ends.
var ErrSecretChanged = errors.New("a secret for its destination was replaced or removed")

// Server serves the connections of one sandbox. All methods are safe for concurrent use.
type Server struct {
	ctx   context.Context     // ends all connections
	terms func() *Terms       // of now
	head  time.Duration       // for a request's header, from its first bytes
	start func(func())        // starts a function, which ends with ctx
	held  *semaphore.Weighted // bytes: see maxHeld

	mu      sync.Mutex
	streams int // of HTTP/2 that connections may have; guarded by mu
	unread  int // bytes of their responses that may be unread; guarded by mu
}

// NewServer returns a server whose connections end with ctx, at the latest. Its terms are what terms returns at
// the time. A request's header may take as long as head, from its first bytes. Functions that end with ctx are
// started by start.
func NewServer(ctx context.Context, terms func() *Terms, head time.Duration, start func(func())) *Server {
	return &Server{ctx: ctx, terms: terms, head: head, start: start, held: semaphore.NewWeighted(maxHeld)}
}
