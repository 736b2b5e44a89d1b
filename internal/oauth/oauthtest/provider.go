// Package oauthtest provides a real OAuth provider to tests: that of github.com/zitadel/oidc, which checks PKCE,
// gives device codes, and rotates refresh tokens.
package oauthtest

import (
	"context"
	"crypto/sha256"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/zitadel/oidc/v3/example/server/storage"
	"github.com/zitadel/oidc/v3/pkg/oidc"
	"github.com/zitadel/oidc/v3/pkg/op"

	"github.com/sandpit-dev/sandpit/internal/secret"
)

// ClientID is the application that is registered: a native one without a secret.
const ClientID = "native"

// Provider is a provider, with one user, which ends with the test. All methods are safe for concurrent use.
type Provider struct {
	*storage.Storage
	url string

	mu       sync.Mutex
	lifetime time.Duration // of access tokens, guarded by mu
	down     bool          // guarded by mu
	renewals int           // guarded by mu
	last     string        // ID of the latest access token, guarded by mu
}

// New starts a provider.
func New(t testing.TB) *Provider {
	t.Helper()
	var handler http.Handler
	p := &Provider{lifetime: time.Hour}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p.mu.Lock()
		down := p.down
		p.mu.Unlock()
		if down {
			http.Error(w, "out of order", http.StatusServiceUnavailable)
			return
		}
		handler.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	p.url = server.URL
	p.Storage = storage.NewStorageWithClients(storage.NewUserStore(server.URL), map[string]*storage.Client{ClientID: storage.NativeClient(ClientID, "http://127.0.0.1/callback")})
	provider, err := op.NewProvider(&op.Config{
		CryptoKey: sha256.Sum256([]byte("of the test")), CodeMethodS256: true, AuthMethodPost: true, GrantTypeRefreshToken: true,
		DeviceAuthorization: op.DeviceAuthorizationConfig{Lifetime: time.Minute, PollInterval: time.Second, UserFormPath: "/device", UserCode: op.UserCodeBase20},
	}, p, op.StaticIssuer(server.URL), op.WithAllowInsecure(), op.WithLogger(slog.New(slog.DiscardHandler)))
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	callback := op.AuthCallbackURL(provider)
	mux.Handle("/login/username", op.NewIssuerInterceptor(provider.IssuerFromRequest).HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		id := r.FormValue("authRequestID")
		if err := p.CheckUsernamePassword(user, password, id); err != nil {
			http.Error(w, err.Error(), http.StatusForbidden)
			return
		}
		http.Redirect(w, r, callback(r.Context(), id), http.StatusFound)
	}))
	mux.Handle("/", provider)
	handler = mux
	return p
}

// The user, which that package has.
const (
	user     = "test-user2"
	password = "verysecure"
)

// OAuth returns how to log in.
func (p *Provider) OAuth() secret.OAuth {
	return secret.OAuth{
		Authorize: p.url + "/authorize", Token: p.url + "/oauth/token", Device: p.url + "/device_authorization",
		ClientID: ClientID, Scopes: []string{oidc.ScopeOpenID, oidc.ScopeOfflineAccess},
	}
}

// Visit is what the browser of the user does with the URL of a login. It returns the page that it ends at.
func (*Provider) Visit(ctx context.Context, address string) (status int, text string, err error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return 0, "", err
	}
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		return 0, "", err
	}
	defer res.Body.Close()
	page, err := io.ReadAll(res.Body)
	return res.StatusCode, string(page), err
}

// Valid reports whether an access token is.
func (p *Provider) Valid(token string) bool {
	r, err := http.NewRequest(http.MethodGet, p.url+"/userinfo", nil)
	if err != nil {
		return false
	}
	r.Header.Set("Authorization", "Bearer "+token)
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		return false
	}
	res.Body.Close()
	return res.StatusCode == http.StatusOK
}

// Revoke makes the latest access token invalid.
func (p *Provider) Revoke() {
	p.mu.Lock()
	last := p.last
	p.mu.Unlock()
	_ = p.RevokeToken(context.Background(), last, "", ClientID)
}

// Forget makes all tokens of the user invalid.
func (p *Provider) Forget(ctx context.Context, token string) {
	_ = p.RevokeToken(ctx, token, "", ClientID)
}

// SetLifetime sets that of the access tokens that are given from now on.
func (p *Provider) SetLifetime(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lifetime = d
}

// SetDown has the provider answer nothing but errors.
func (p *Provider) SetDown(down bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.down = down
}

// Renewals returns how often tokens were renewed.
func (p *Provider) Renewals() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.renewals
}

// GetClientByClientID is op.Storage's. The application may do everything.
func (p *Provider) GetClientByClientID(ctx context.Context, id string) (op.Client, error) {
	c, err := p.Storage.GetClientByClientID(ctx, id)
	return app{c}, err
}

type app struct{ op.Client }

func (app) GrantTypes() []oidc.GrantType {
	return []oidc.GrantType{oidc.GrantTypeCode, oidc.GrantTypeRefreshToken, oidc.GrantTypeDeviceCode}
}

func (app) DevMode() bool { return true }

// CreateAccessAndRefreshTokens is op.Storage's.
func (p *Provider) CreateAccessAndRefreshTokens(ctx context.Context, r op.TokenRequest, current string) (id, refresh string, expiration time.Time, err error) {
	if d, ok := r.(*op.DeviceAuthorizationState); ok { // of which the storage does not note the application
		r = &storage.AuthRequest{ApplicationID: d.ClientID, UserID: d.Subject, Scopes: d.Scopes}
	}
	id, refresh, expiration, err = p.Storage.CreateAccessAndRefreshTokens(ctx, r, current)
	if err != nil {
		return id, refresh, expiration, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.last = id
	if current != "" {
		p.renewals++
	}
	return id, refresh, time.Now().Add(p.lifetime), nil
}
