package server_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
	v1 "github.com/sandpit-dev/sandpit/internal/api/v1"
	"github.com/sandpit-dev/sandpit/internal/network"
	"github.com/sandpit-dev/sandpit/internal/oauth"
	"github.com/sandpit-dev/sandpit/internal/oauth/oauthtest"
	"github.com/sandpit-dev/sandpit/internal/secret"
	"github.com/sandpit-dev/sandpit/internal/server"
	"github.com/sandpit-dev/sandpit/internal/testkit"
)

// loggedIn is a server with a service at a provider, and tokens of its user.
type loggedIn struct {
	*served
	provider *oauthtest.Provider
	network  *noted
	key      string
	tokens   []string // that nothing may have
}

func newLoggedIn(t *testing.T) *loggedIn {
	t.Helper()
	testkit.NeedRoot(t, "to make the interface of a sandbox")
	l := &loggedIn{served: newServed(t), provider: oauthtest.New(t), network: &noted{Network: network.InProcess{}}}
	how := l.provider.OAuth()
	l.settings.Services = []secret.Service{{Name: "own", Hosts: []string{"own.example"}, Variables: []string{"OWN_TOKEN"}, OAuth: &how}}
	l.change = func(o *server.Options) { o.Network = l.network }
	l.start()
	l.key = l.keyOf("a", "default")
	return l
}

// login logs in and stores the tokens, of which the first lives for a while, and others for an hour.
func (l *loggedIn) login(name string, lifetime time.Duration) oauth.Tokens {
	l.t.Helper()
	l.provider.SetLifetime(lifetime)
	got, err := (&oauth.App{OAuth: l.provider.OAuth()}).Browser(l.t.Context(), func(address string) {
		go func() { _, _, _ = l.provider.Visit(l.t.Context(), address) }()
	})
	if err != nil {
		l.t.Fatal(err)
	}
	l.provider.SetLifetime(time.Hour)
	l.tokens = append(l.tokens, got.Access, got.Refresh)
	body, err := json.Marshal(v1.NewSecret{Value: got.Access, Service: "own", Login: &v1.Login{RefreshToken: got.Refresh, ExpiresAt: &got.ExpiresAt}})
	if err != nil {
		l.t.Fatal(err)
	}
	if status, text, _ := l.get("PUT", "http://sandpit/v1/secrets/"+name, l.key, string(body)); status != 200 || strings.Contains(text, got.Access) || strings.Contains(text, got.Refresh) {
		l.t.Fatalf("storing it: %d %s", status, text)
	}
	return got
}

// state returns what the list says of the only secret.
func (l *loggedIn) state() v1.LoginState {
	l.t.Helper()
	var list v1.SecretList
	_, text, _ := l.get("GET", "http://sandpit/v1/secrets", l.key, "")
	if err := json.Unmarshal([]byte(text), &list); err != nil || len(list.Secrets) != 1 || list.Secrets[0].Login == nil {
		l.t.Fatalf("the list is %s", text)
	}
	return *list.Secrets[0].Login
}

// value returns the value that the first sandbox uses.
func (l *loggedIn) value() string {
	terms, _ := l.network.of(0)
	value := string(terms.Secrets[0].Value)
	l.tokens = append(l.tokens, value)
	return value
}

func (l *loggedIn) sandbox(name string) sandpit.Sandbox {
	c := l.with(l.key)
	l.t.Cleanup(func() { c.Close() })
	spec := small("one")
	spec.Secrets = []sandpit.Secret{{Name: name}}
	return createOf(l.t, c, spec)
}

// leaks looks for tokens.
func (l *loggedIn) leaks() {
	l.t.Helper()
	_, listed, _ := l.get("GET", "http://sandpit/v1/secrets", l.key, "")
	_, journal, _ := l.get("GET", "http://sandpit/v1/audit?limit=1000", "", "")
	l.grep(l.t, listed+journal, l.tokens...)
}

// TestLoginsAreRenewed has tokens expire, and an origin refuse them: the sandbox gets new ones, whoever asks and
// however often.
func TestLoginsAreRenewed(t *testing.T) {
	t.Parallel()
	l := newLoggedIn(t)
	first := l.login("own", 2*time.Second)
	l.sandbox("own")
	testkit.Until(t, "the token is renewed before it expires", func() bool { return l.value() != first.Access })
	if s := l.state(); !l.provider.Valid(l.value()) || !s.Renewable || s.Failed != "" || s.ExpiresAt == nil || time.Until(*s.ExpiresAt) < time.Minute {
		t.Errorf("the login is %+v", s)
	}

	// A token that was revoked is renewed once for all that notice, and by a refresh token of before only.
	second := l.login("own", time.Hour)
	l.provider.Revoke()
	before := l.provider.Renewals()
	terms, _ := l.network.of(0)
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() {
			if err := terms.Renew(t.Context(), "own"); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if n := l.provider.Renewals() - before; n != 1 || l.value() == second.Access || !l.provider.Valid(l.value()) {
		t.Errorf("%d renewals for 20 requests", n)
	}
	if err := terms.Renew(t.Context(), "other"); err == nil {
		t.Error("a secret that the sandbox does not use was renewed")
	}
	if _, journal, _ := l.get("GET", "http://sandpit/v1/audit?limit=1000", "", ""); strings.Count(journal, `"action":"secret.renew"`) != 2 {
		t.Errorf("the audit is %s", journal)
	}

	// The next server goes on.
	if err := l.stop(); err != nil {
		t.Fatal(err)
	}
	l.start()
	if s := l.state(); !s.Renewable {
		t.Errorf("after a restart the login is %+v", s)
	}

	// A value that is set by hand is no login any more.
	if status, text, _ := l.get("PUT", "http://sandpit/v1/secrets/own/value", l.key, `{"value":"by-hand"}`); status != 200 || strings.Contains(text, "login") {
		t.Errorf("rotating it: %d %s", status, text)
	}
	l.leaks()
}

// TestLoginsFail has a provider refuse and be down: the list, the audit and the log say so, without a token.
func TestLoginsFail(t *testing.T) {
	t.Parallel()
	l := newLoggedIn(t)
	l.login("own", time.Hour)
	l.sandbox("own")
	terms, _ := l.network.of(0)
	l.provider.SetDown(true)
	if err := terms.Renew(t.Context(), "own"); err != nil {
		t.Error(err)
	}
	if s := l.state(); !strings.Contains(s.Failed, "503") || s.Over || !s.Renewable {
		t.Errorf("while the provider is down the login is %+v", s)
	}
	l.provider.SetDown(false)

	got := l.login("own", time.Hour)
	if s := l.state(); s.Failed != "" {
		t.Errorf("a new login is %+v", s)
	}
	l.provider.Forget(t.Context(), got.Refresh)
	if err := terms.Renew(t.Context(), "own"); err != nil {
		t.Error(err)
	}
	if s := l.state(); s.Failed != "the provider refuses: invalid_grant" || !s.Over {
		t.Errorf("after a refusal the login is %+v", s)
	}
	if err := terms.Renew(t.Context(), "own"); err == nil {
		t.Error("the provider is asked again")
	}
	if _, journal, _ := l.get("GET", "http://sandpit/v1/audit?limit=1000", "", ""); !strings.Contains(journal, "secret own: the provider refuses: invalid_grant") || !strings.Contains(l.log.String(), "invalid_grant") {
		t.Errorf("the audit is %s", journal)
	}

	for about, body := range map[string]string{
		"a service without OAuth":  `{"value":"x","service":"openai","login":{"refresh_token":"y"}}`,
		"hosts without a service":  `{"value":"x","hosts":["own.example"],"login":{"refresh_token":"y"}}`,
		"a URL of the caller":      `{"value":"x","service":"own","login":{"refresh_token":"y","token":"http://127.0.0.1:1/"}}`,
		"a long refresh token":     `{"value":"x","service":"own","login":{"refresh_token":"` + strings.Repeat("y", secret.MaxValue+1) + `"}}`,
		"a time that is not valid": `{"value":"x","service":"own","login":{"refresh_token":"y","expires_at":"soon"}}`,
	} {
		if status, text, _ := l.get("PUT", "http://sandpit/v1/secrets/bad", l.key, body); status != 400 && status != 422 && status != 501 {
			t.Errorf("%s: %d %s", about, status, fmt.Sprintf("%.300s", text))
		}
	}
	l.leaks()
}
