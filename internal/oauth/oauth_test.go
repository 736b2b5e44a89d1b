package oauth_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"strings"
	"testing"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/oauth"
	"github.com/sandpit-dev/sandpit/internal/oauth/oauthtest"
	"github.com/sandpit-dev/sandpit/internal/secret"
	"github.com/sandpit-dev/sandpit/internal/testkit"
)

func TestMain(m *testing.M) { os.Exit(testkit.Main(m)) }

// TestLogin logs in both ways. The tokens are valid, and are renewed with refresh tokens that are valid once.
func TestLogin(t *testing.T) {
	p := oauthtest.New(t)
	app := oauth.App{OAuth: p.OAuth()}
	for about, login := range map[string]func() (oauth.Tokens, error){
		"a browser": func() (oauth.Tokens, error) {
			return app.Browser(t.Context(), func(address string) {
				go func() {
					if status, text, err := p.Visit(t.Context(), address); status != 200 || err != nil {
						t.Errorf("the browser ends at %d %s, %v", status, text, err)
					}
				}()
			})
		},
		"a device code": func() (oauth.Tokens, error) {
			return app.Device(t.Context(), func(_, code string) {
				if err := p.CompleteDeviceAuthorization(t.Context(), code, "id2"); err != nil {
					t.Error(err)
				}
			})
		},
	} {
		got, err := login()
		if err != nil {
			t.Fatalf("%s: %v", about, err)
		}
		if !p.Valid(got.Access) || got.Refresh == "" || got.ExpiresAt.IsZero() {
			t.Fatalf("%s: the tokens are not valid until %s", about, got.ExpiresAt)
		}
		next, err := app.Renew(t.Context(), got.Refresh)
		if err != nil || !p.Valid(next.Access) || next.Access == got.Access || next.Refresh == got.Refresh {
			t.Errorf("%s: renewing: %v", about, err)
		}
		if _, err := app.Renew(t.Context(), got.Refresh); !errors.Is(err, sandpit.ErrForbidden) || strings.Contains(err.Error(), got.Refresh) {
			t.Errorf("%s: the former refresh token: %v", about, err)
		}
	}
	p.SetDown(true)
	if _, err := app.Renew(t.Context(), "a-refresh-token"); !errors.Is(err, sandpit.ErrUnavailable) {
		t.Errorf("a provider that is down: %v", err)
	}
}

// TestHostileRedirect sends all but the right redirect to a login: it goes on waiting.
func TestHostileRedirect(t *testing.T) {
	p := oauthtest.New(t)
	app := oauth.App{OAuth: p.OAuth()}
	get := func(address string) int {
		status, _, err := p.Visit(t.Context(), address)
		if err != nil {
			t.Error(err)
		}
		return status
	}
	_, err := app.Browser(t.Context(), func(address string) {
		u, err := url.Parse(address)
		if err != nil {
			t.Error(err)
			return
		}
		q := u.Query()
		back, state := q.Get("redirect_uri"), q.Get("state")
		if q.Get("code_challenge_method") != "S256" || len(q.Get("code_challenge")) != 43 || len(state) < 26 {
			t.Errorf("the URL is %s", address)
		}
		for about, to := range map[string]string{
			"no state":             back + "?code=x",
			"another state":        back + "?code=x&state=x",
			"an error of others":   back + "?error=access_denied&state=x",
			"neither code nor err": back + "?state=" + state,
			"both":                 back + "?code=x&error=access_denied&state=" + state,
		} {
			if status := get(to); status != http.StatusBadRequest {
				t.Errorf("%s: %d", about, status)
			}
		}
		if status := get(strings.Replace(back, "/callback", "/other", 1) + "?code=x&state=" + state); status != http.StatusNotFound {
			t.Errorf("another path: %d", status)
		}
		go get(back + "?error=access_denied&error_description=token-of-somebody&state=" + state)
	})
	if !errors.Is(err, sandpit.ErrForbidden) || !strings.Contains(err.Error(), "access_denied") || strings.Contains(err.Error(), "somebody") {
		t.Errorf("a refusal: %v", err)
	}
	// A code of another login fails PKCE.
	_, err = app.Browser(t.Context(), func(address string) {
		u, _ := url.Parse(address)
		q := u.Query()
		q.Set("code_challenge", strings.Repeat("x", 43))
		u.RawQuery = q.Encode()
		go get(u.String())
	})
	if !errors.Is(err, sandpit.ErrForbidden) {
		t.Errorf("another challenge: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	if _, err = app.Browser(ctx, func(string) { cancel() }); !errors.Is(err, context.Canceled) {
		t.Errorf("an interrupt: %v", err)
	}
}

// TestHostileProvider checks what a provider can do to this side: nothing of its answer is in an error, and it
// sends tokens nowhere else.
func TestHostileProvider(t *testing.T) {
	const token = "the-refresh-token"
	elsewhere := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("a redirect was followed") }))
	t.Cleanup(elsewhere.Close)
	for about, answer := range map[string]http.HandlerFunc{
		"a redirect": func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, elsewhere.URL, http.StatusTemporaryRedirect)
		},
		"an echo": func(w http.ResponseWriter, r *http.Request) { http.Error(w, r.PostFormValue("refresh_token"), 400) },
		"an echo as code": func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(400)
			_, _ = w.Write([]byte(`{"error":"` + r.PostFormValue("refresh_token") + `"}`))
		},
		"not JSON": func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_, _ = w.Write([]byte(r.PostFormValue("refresh_token")))
		},
		"another type": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_, _ = w.Write([]byte(`{"access_token":"x","token_type":"mac"}`))
		},
		"nothing": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_, _ = w.Write([]byte(`{}`))
		},
		"a long token": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_, _ = w.Write([]byte(`{"token_type":"bearer","access_token":"` + strings.Repeat("x", secret.MaxValue+1) + `"}`))
		},
	} {
		server := httptest.NewServer(answer)
		app := oauth.App{OAuth: secret.OAuth{Token: server.URL, ClientID: "x"}}
		if _, err := app.Renew(t.Context(), token); err == nil || strings.Contains(err.Error(), token) || len(err.Error()) > 300 {
			t.Errorf("%s: %v", about, err)
		}
		server.Close()
	}
}
