package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"sync"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/audit"
	"github.com/sandpit-dev/sandpit/internal/engine"
	"github.com/sandpit-dev/sandpit/internal/fault"
	"github.com/sandpit-dev/sandpit/internal/gate"
	"github.com/sandpit-dev/sandpit/internal/oauth"
	"github.com/sandpit-dev/sandpit/internal/secret"
	"github.com/sandpit-dev/sandpit/internal/state"
	"github.com/sandpit-dev/sandpit/internal/upstream"
)

const (
	renewPause = 30 * time.Second // between renewals of a secret, whoever asks for them; doubled by each that fails
	renewLong  = 16 * time.Minute // the longest pause
	renewLook  = time.Minute      // between looks for secrets that are due
	renewTime  = time.Minute      // that one may take, with all sandboxes that use it

	// of one namespace: secrets whose renewals are remembered, as many as it can store. Others begin once the
	// pause of one of these is over, so that names that come and go are not renewed more often than others.
	renewNames = 256
	renewWaits = 64 // requests of one namespace's sandboxes that wait for renewals
)

// actionRenew is the action of an entry about a renewal.
const actionRenew = "secret.renew"

// A renewer renews the values of secrets that logins have brought: before they expire, and when an origin refuses
// them. Each is renewed once for all that ask. All methods are safe for concurrent use.
type renewer struct {
	store    *state.Store
	services secret.Services
	engine   *engine.Engine // set before it is used
	journal  *audit.Log
	log      *slog.Logger
	way      *upstream.Way // to providers

	wake chan struct{} // something may be due
	work sync.WaitGroup
	ctx  context.Context
	end  context.CancelFunc

	mu      sync.Mutex
	closed  bool                          // guarded by mu
	runs    map[string]map[string]*renews // by namespace and name, guarded by mu
	turns   turns                         // guarded by mu
	waiting map[string]int                // requests, by namespace, guarded by mu
}

// renews are the renewals of one secret.
type renews struct {
	busy  bool          // one runs, or waits for its turn
	done  chan struct{} // closed at the end of the latest; nil: there was none
	last  time.Time     // when that began
	fails int           // failures in a row, since the login
}

// over reports whether nothing needs to be remembered.
func (r *renews) over() bool { return !r.busy && time.Since(r.last) > r.pause() }

// pause is the time from the beginning of a renewal to that of the next.
func (r *renews) pause() time.Duration {
	pause := renewPause
	for range r.fails {
		if pause *= 2; pause >= renewLong {
			return renewLong
		}
	}
	return pause
}

func newRenewer(s *server) *renewer {
	r := &renewer{
		store: s.state, services: s.known, journal: s.journal, log: s.opt.Log, way: s.opt.Way,
		wake: make(chan struct{}, 1), runs: map[string]map[string]*renews{}, turns: newTurns(), waiting: map[string]int{},
	}
	r.ctx, r.end = context.WithCancel(context.Background())
	return r
}

// start begins to look for secrets that are due, until close.
func (r *renewer) start() {
	r.work.Go(func() {
		for {
			next := r.look()
			select {
			case <-r.ctx.Done():
				return
			case <-r.wake:
			case <-time.After(next):
			}
		}
	})
}

// close ends what runs. It is idempotent.
func (r *renewer) close() {
	r.mu.Lock()
	r.closed, r.turns.waiting = true, nil
	r.mu.Unlock()
	r.end()
	r.work.Wait()
}

// stored renews a secret that was stored when it is due. What a run that has begun for the former one gets is
// not stored; and the next begins a pause after it, however often the secret is stored.
func (r *renewer) stored(x secret.Secret) {
	r.mu.Lock()
	if run := r.runs[x.Namespace][x.Name]; run != nil {
		run.fails = 0
	}
	r.mu.Unlock()
	r.lookSoon()
}

func (r *renewer) lookSoon() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// look renews what is due, and returns when to look again.
func (r *renewer) look() time.Duration {
	all, err := r.store.Logins(r.ctx)
	if err != nil {
		if r.ctx.Err() == nil {
			r.log.Warn("secrets of logins can't be renewed", "error", err)
		}
		return renewLook
	}
	next := renewLook
	type key struct{ namespace, name string }
	known := map[key]bool{}
	for _, x := range all {
		known[key{x.Namespace, x.Name}] = true
		due := x.Due()
		if due.IsZero() {
			continue
		}
		if wait := time.Until(due); wait > 0 {
			next = min(next, wait)
			continue
		}
		_, wait := r.begin(x)
		next = min(next, max(wait, time.Second))
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for namespace, runs := range r.runs {
		for name, run := range runs {
			if !known[key{namespace, name}] && run.over() { // it was removed
				delete(runs, name)
			}
		}
		if len(runs) == 0 {
			delete(r.runs, namespace)
		}
	}
	return next
}

// begin renews a secret in its turn, unless that was begun less than a pause ago. It returns what is closed at
// the end of the latest renewal, or nil if there was none, and how long no other begins.
func (r *renewer) begin(x secret.Secret) (done <-chan struct{}, wait time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	runs := r.runs[x.Namespace]
	run := runs[x.Name]
	switch {
	case run == nil && len(runs) >= renewNames:
		maps.DeleteFunc(runs, func(_ string, run *renews) bool { return run.over() })
		if len(runs) >= renewNames {
			return nil, time.Second
		}
	case run == nil:
	case run.busy || r.closed:
		return run.done, renewPause
	default:
		if wait := time.Until(run.last.Add(run.pause())); wait > 0 {
			return run.done, wait
		}
	}
	if r.closed {
		return nil, renewPause
	}
	if runs == nil {
		runs = map[string]*renews{}
		r.runs[x.Namespace] = runs
	}
	if run == nil {
		run = &renews{}
		runs[x.Name] = run
	}
	run.busy, run.done = true, make(chan struct{})
	r.turns.add(turn{share{x.Service, x.Namespace}, func() {
		run.last = time.Now()
		r.work.Go(func() { r.run(x, run) })
	}})
	return run.done, renewPause
}

// run renews a secret whose turn it is.
func (r *renewer) run(x secret.Secret, run *renews) {
	err := r.renew(x.Namespace, x.Name)
	r.mu.Lock()
	defer r.mu.Unlock()
	if run.fails++; err == nil {
		run.fails = 0
	}
	run.busy = false
	close(run.done)
	r.turns.end(share{x.Service, x.Namespace})
	r.lookSoon() // at what was stored meanwhile
}

// refused renews a secret that an origin has refused, and waits for that. The namespace is that of the sandbox.
func (r *renewer) refused(ctx context.Context, namespace string, x secret.Secret) error {
	if x.Login == nil || !x.Login.Renewable || x.Login.Over {
		return fault.Errorf(sandpit.ErrState, "the secret %q can't be renewed", x.Name)
	}
	if !r.mayWait(namespace, 1) {
		return fault.Errorf(sandpit.ErrExhausted, "too many requests wait for secrets to be renewed")
	}
	defer r.mayWait(namespace, -1)
	done, _ := r.begin(x)
	if done == nil {
		return fault.Errorf(sandpit.ErrUnavailable, "no secret of the namespace can be renewed now")
	}
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-r.ctx.Done():
		return fault.Errorf(sandpit.ErrUnavailable, "the server is ending")
	}
}

// mayWait counts requests of a namespace that wait, unless they are too many.
func (r *renewer) mayWait(namespace string, n int) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.waiting[namespace]+n > renewWaits {
		return false
	}
	if r.waiting[namespace] += n; r.waiting[namespace] == 0 {
		delete(r.waiting, namespace)
	}
	return true
}

// renew renews a secret, and says how that ended.
func (r *renewer) renew(namespace, name string) error {
	ctx, cancel := context.WithTimeout(r.ctx, renewTime)
	defer cancel()
	err := r.ask(ctx, namespace, name)
	if r.ctx.Err() != nil {
		return err
	}
	entry := audit.Record{Time: time.Now(), RequestID: gate.NewRequestID(), Phase: audit.PhaseEnd, Action: actionRenew, Namespace: namespace, Allowed: err == nil, Detail: "secret " + name}
	if err != nil {
		r.log.Warn("a secret could not be renewed", "secret", name, "namespace", namespace, "error", err)
		entry.Detail += ": " + err.Error()
	}
	if _, err := r.journal.Append(r.ctx, entry); err != nil {
		r.log.Warn("the audit log lacks the renewal of a secret", "secret", name, "error", err)
	}
	return err
}

// ask gets a new value of a secret from its provider, stores it, and puts it in force. No error has a value.
func (r *renewer) ask(ctx context.Context, namespace, name string) error {
	x, err := r.store.Secret(ctx, namespace, name)
	if errors.Is(err, sandpit.ErrNotFound) {
		return nil // it was removed
	}
	if err != nil {
		return err
	}
	if x.Login == nil || x.Grant == nil || x.Grant.RefreshToken == "" {
		return nil // it was replaced
	}
	was := x.RotatedAt
	got, asked := r.fromProvider(ctx, x)
	if asked != nil && r.ctx.Err() != nil {
		return asked
	}
	if asked == nil {
		x, asked = renewed(x, got)
	}
	if asked != nil {
		login := *x.Login
		login.Failed, login.Over = fault.Clip(asked.Error()), errors.Is(asked, sandpit.ErrForbidden)
		x.Login = &login
	}
	stored, err := r.store.RenewSecret(context.WithoutCancel(ctx), x, was) // the former refresh token may be void
	if err == nil && stored && asked == nil {
		err = r.engine.SecretChanged(ctx, namespace, name)
	}
	return errors.Join(asked, err)
}

// renewed returns a secret with new tokens. With an error, it has at most the refresh token.
func renewed(x secret.Secret, got oauth.Tokens) (secret.Secret, error) {
	grant := *x.Grant
	if got.Refresh != "" {
		grant.RefreshToken = got.Refresh
	}
	next := x
	next.Grant, next.Login = &grant, &secret.Login{ExpiresAt: got.ExpiresAt, Renewable: true}
	next.Value, next.RotatedAt = got.Access, time.Now().UTC()
	err := next.Check()
	if err == nil {
		return next, nil
	}
	kept := x
	if kept.Grant = &grant; kept.Check() == nil {
		x = kept
	}
	return x, fmt.Errorf("what the provider gave: %w", err)
}

func (r *renewer) fromProvider(ctx context.Context, x secret.Secret) (oauth.Tokens, error) {
	service, _ := r.services.Find(x.Service)
	if service.OAuth == nil {
		return oauth.Tokens{}, noLogin(x.Service)
	}
	app := oauth.App{OAuth: *service.OAuth, ClientSecret: x.Grant.ClientSecret, Way: r.way}
	if x.Grant.ClientID != "" {
		app.ClientID = x.Grant.ClientID
	}
	return app.Renew(ctx, x.Grant.RefreshToken)
}

// noLogin refuses a login to a service.
func noLogin(service string) error {
	return sandpit.WithHint(fmt.Errorf("a login: %w", fault.Errorf(sandpit.ErrUnsupported, "nothing is known of how to log in to the service %q", fault.Clip(service))),
		"run 'sandpit secret set' with a key of the service, or describe its OAuth in the services of server.yaml")
}
