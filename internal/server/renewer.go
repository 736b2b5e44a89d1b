package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
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
	renewsMost = 8                // at once
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

	wake   chan struct{} // a login is new
	places chan struct{} // of those that run
	work   sync.WaitGroup
	ctx    context.Context
	end    context.CancelFunc

	mu     sync.Mutex
	closed bool               // guarded by mu
	runs   map[string]*renews // by the names of namespace and secret, guarded by mu
}

// renews are the renewals of one secret.
type renews struct {
	done  chan struct{} // closed at the end of the latest
	last  time.Time     // when that began
	fails int           // failures in a row
}

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
		store: s.state, services: s.services, journal: s.journal, log: s.opt.Log, way: s.opt.Way,
		wake: make(chan struct{}, 1), places: make(chan struct{}, renewsMost), runs: map[string]*renews{},
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
	r.closed = true
	r.mu.Unlock()
	r.end()
	r.work.Wait()
}

// stored begins anew with a secret that was stored.
func (r *renewer) stored(x secret.Secret) {
	r.mu.Lock()
	delete(r.runs, renewKey(x))
	r.mu.Unlock()
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
	known := map[string]bool{}
	for _, x := range all {
		known[renewKey(x)] = true
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
	for key, run := range r.runs { // of secrets that were removed
		if !known[key] && time.Since(run.last) > run.pause() {
			delete(r.runs, key)
		}
	}
	return next
}

func renewKey(x secret.Secret) string { return x.Namespace + "/" + x.Name }

// begin renews a secret, unless that was begun less than a pause ago. It returns what is closed at the end
// of the latest renewal, and how long no other begins.
func (r *renewer) begin(x secret.Secret) (done <-chan struct{}, wait time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	run := r.runs[renewKey(x)]
	if run == nil {
		run = &renews{}
		r.runs[renewKey(x)] = run
	}
	if wait := time.Until(run.last.Add(run.pause())); wait > 0 || r.closed {
		return run.done, wait
	}
	ended := make(chan struct{})
	run.done, run.last = ended, time.Now()
	r.work.Go(func() {
		defer close(ended)
		select {
		case r.places <- struct{}{}:
			defer func() { <-r.places }()
			err := r.renew(x.Namespace, x.Name)
			r.mu.Lock()
			defer r.mu.Unlock()
			if run.fails++; err == nil {
				run.fails = 0
			}
		case <-r.ctx.Done():
		}
	})
	return ended, run.pause()
}

// refused renews a secret that an origin has refused, and waits for that.
func (r *renewer) refused(ctx context.Context, x secret.Secret) error {
	if x.Login == nil || !x.Login.Renewable || x.Login.Over {
		return fault.Errorf(sandpit.ErrState, "the secret %q can't be renewed", x.Name)
	}
	done, _ := r.begin(x)
	if done == nil {
		return fault.Errorf(sandpit.ErrUnavailable, "the server is ending")
	}
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
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
	was, login := x.RotatedAt, *x.Login
	got, asked := r.fromProvider(ctx, x)
	if asked != nil {
		if r.ctx.Err() != nil {
			return asked
		}
		login.Failed, login.Over = fault.Clip(asked.Error()), errors.Is(asked, sandpit.ErrForbidden)
	} else {
		login = secret.Login{ExpiresAt: got.ExpiresAt, Renewable: true}
		x.Value, x.RotatedAt = got.Access, time.Now().UTC()
		if got.Refresh != "" {
			x.Grant.RefreshToken = got.Refresh
		}
		if err := x.Check(); err != nil {
			return err
		}
	}
	x.Login = &login
	renewed, err := r.store.RenewSecret(context.WithoutCancel(ctx), x, was) // the former refresh token may be void
	if err == nil && renewed && asked == nil {
		err = r.engine.SecretChanged(ctx, namespace, name)
	}
	return errors.Join(asked, err)
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
