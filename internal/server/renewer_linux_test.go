package server_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
	v1 "github.com/sandpit-dev/sandpit/internal/api/v1"
	"github.com/sandpit-dev/sandpit/internal/engine"
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

// restart starts the server with another service.
func (l *loggedIn) restart(x secret.Service) {
	l.t.Helper()
	if err := l.stop(); err != nil {
		l.t.Fatal(err)
	}
	l.settings.Services = append(l.settings.Services, x)
	l.start()
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

// state returns what the list says of a secret.
func (l *loggedIn) state(name string) v1.LoginState {
	l.t.Helper()
	var list v1.SecretList
	_, text, _ := l.get("GET", "http://sandpit/v1/secrets", l.key, "")
	err := json.Unmarshal([]byte(text), &list)
	i := slices.IndexFunc(list.Secrets, func(x v1.Secret) bool { return x.Name == name && x.Login != nil })
	if err != nil || i < 0 {
		l.t.Fatalf("the list is %s", text)
	}
	return *list.Secrets[i].Login
}

// value returns the value that a sandbox uses.
func (l *loggedIn) value(i int) string {
	terms, _ := l.network.of(i)
	value := string(terms.Secrets[0].Value)
	l.tokens = append(l.tokens, value)
	return value
}

func (l *loggedIn) sandbox(name string) sandpit.Sandbox {
	c := l.with(l.key)
	l.t.Cleanup(func() { c.Close() })
	spec := small(name)
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
	testkit.Until(t, "the token is renewed before it expires", func() bool { return l.value(0) != first.Access })
	if s := l.state("own"); !l.provider.Valid(l.value(0)) || !s.Renewable || s.Failed != "" || s.ExpiresAt == nil || time.Until(*s.ExpiresAt) < time.Minute {
		t.Errorf("the login is %+v", s)
	}

	// A token that was revoked is renewed once for all that notice, and by a refresh token of before only.
	second := l.login("second", time.Hour)
	l.sandbox("second")
	l.provider.Revoke()
	before := l.provider.Renewals()
	terms, _ := l.network.of(1)
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() {
			if err := terms.Renew(t.Context(), "second"); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if n := l.provider.Renewals() - before; n != 1 || l.value(1) == second.Access || !l.provider.Valid(l.value(1)) {
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
	if s := l.state("own"); !s.Renewable {
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
	begun := time.Now()
	if err := terms.Renew(t.Context(), "own"); err != nil {
		t.Error(err)
	}
	if s := l.state("own"); !strings.Contains(s.Failed, "503") || s.Over || !s.Renewable {
		t.Errorf("while the provider is down the login is %+v", s)
	}
	l.provider.SetDown(false)

	l.login("own", time.Hour)
	if s := l.state("own"); s.Failed != "" {
		t.Errorf("a new login is %+v", s)
	}
	if err := terms.Renew(t.Context(), "own"); err != nil || l.provider.Renewals() != 0 && time.Since(begun) < 30*time.Second {
		t.Errorf("%d renewals in the pause after one that failed, %v", l.provider.Renewals(), err)
	}

	got := l.login("second", time.Hour)
	l.sandbox("second")
	terms, _ = l.network.of(1)
	l.provider.Forget(t.Context(), got.Refresh)
	if err := terms.Renew(t.Context(), "second"); err != nil {
		t.Error(err)
	}
	if s := l.state("second"); s.Failed != "the provider refuses: invalid_grant" || !s.Over {
		t.Errorf("after a refusal the login is %+v", s)
	}
	if err := terms.Renew(t.Context(), "second"); err == nil {
		t.Error("the provider is asked again")
	}
	if _, journal, _ := l.get("GET", "http://sandpit/v1/audit?limit=1000", "", ""); !strings.Contains(journal, "secret second: the provider refuses: invalid_grant") || !strings.Contains(l.log.String(), "invalid_grant") {
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

// hanging is a provider that answers once it is released, and counts who asks.
type hanging struct {
	*httptest.Server
	release func() // idempotent

	mu     sync.Mutex
	asked  map[string]int // refresh tokens
	answer string
}

func newHanging(t *testing.T) *hanging {
	released := make(chan struct{})
	h := &hanging{release: sync.OnceFunc(func() { close(released) }), asked: map[string]int{}, answer: `{"access_token":"renewed","token_type":"Bearer","expires_in":3600}`}
	h.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		token := r.FormValue("refresh_token")
		h.mu.Lock()
		h.asked[token]++
		answer := h.answer
		h.mu.Unlock()
		select {
		case <-released:
		case <-r.Context().Done():
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, answer)
	}))
	t.Cleanup(h.Close)
	t.Cleanup(h.release) // before Close, which waits
	return h
}

// of returns how often refresh tokens with a prefix came.
func (h *hanging) of(prefix string) (n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for token, times := range h.asked {
		if strings.HasPrefix(token, prefix) {
			n += times
		}
	}
	return n
}

func (h *hanging) service(name string) secret.Service {
	return secret.Service{Name: name, Hosts: []string{name + ".example"}, Variables: []string{"T"}, OAuth: &secret.OAuth{Authorize: h.URL, Token: h.URL, ClientID: "x"}}
}

// due stores a login that has to be renewed at once.
func (l *loggedIn) due(key, name, service, refresh string) {
	l.t.Helper()
	body := fmt.Sprintf(`{"value":"initial","service":%q,"login":{"refresh_token":%q,"expires_at":"2001-01-01T00:00:00Z"}}`, service, refresh)
	if status, text, _ := l.get("PUT", "http://sandpit/v1/secrets/"+name, key, body); status != 200 {
		l.t.Fatalf("storing a login: %d %s", status, text)
	}
}

// renewed waits until a login is.
func (l *loggedIn) renewed(key, name string) {
	l.t.Helper()
	testkit.Until(l.t, "the login "+name+" is renewed", func() bool {
		var list v1.SecretList
		_, text, _ := l.get("GET", "http://sandpit/v1/secrets", key, "")
		return json.Unmarshal([]byte(text), &list) == nil && slices.ContainsFunc(list.Secrets, func(x v1.Secret) bool {
			return x.Name == name && x.Login != nil && x.Login.ExpiresAt != nil && x.Login.ExpiresAt.After(time.Now())
		})
	})
}

// However often a login is stored, its provider is asked once in a pause: also for names that come and go, and when
// it answers again after a while.
func TestLoginsStoredOften(t *testing.T) {
	t.Parallel()
	l, h := newLoggedIn(t), newHanging(t)
	l.restart(h.service("hangs"))
	const owner = "" // the server's own user, whose requests have no rate
	begun := time.Now()
	l.due(owner, "one", "hangs", "one")
	testkit.Until(t, "the provider is asked", func() bool { return h.of("one") == 1 })
	const times, names = 60, 300
	for i := range times {
		l.due(owner, "one", "hangs", fmt.Sprint("one", i))
	}
	h.release()
	for i := range names {
		name := fmt.Sprint("n", i)
		l.due(owner, name, "hangs", "name")
		if status, text, _ := l.get("DELETE", "http://sandpit/v1/secrets/"+name, owner, ""); status != 204 && status != 200 {
			t.Fatal(status, text)
		}
	}
	other := l.keyOf("b", "default")
	l.due(other, "last", "hangs", "last")
	l.renewed(other, "last") // in a turn after those
	pauses := int(time.Since(begun)/(30*time.Second)) + 1
	if n := h.of("one"); n > pauses {
		t.Errorf("%d renewals in %d pauses", n, pauses)
	}
	if n := h.of("name"); n > 256*pauses {
		t.Errorf("%d renewals of %d names", n, names)
	}
}

// A provider that does not answer holds up its own renewals only, and a namespace with many of these not those of
// others. Requests that wait for them do not take the places of those of another namespace.
func TestHangingProvider(t *testing.T) {
	t.Parallel()
	l, h := newLoggedIn(t), newHanging(t)
	l.restart(h.service("hangs"))
	begun := time.Now() // each is waited for for 30 s
	for i := range 40 {
		l.due(l.key, fmt.Sprint("many", i), "hangs", fmt.Sprint("a", i))
	}
	testkit.Until(t, "the provider is asked", func() bool { return h.of("a") >= 4 })
	other := l.keyOf("b", "default")
	l.due(other, "same", "hangs", "b")
	testkit.Until(t, "the other namespace has its turn", func() bool { return h.of("b") == 1 })

	l.login("own", 2*time.Second)
	testkit.Until(t, "a login at another service is renewed", func() bool { return l.provider.Renewals() == 1 })
	if n, times := h.of("a"), 1+int(time.Since(begun)/(30*time.Second)); n > 4*times {
		t.Errorf("%d of one namespace were asked for, 4 at once", n)
	}

	const last = "many39" // which waits the longest for its turn
	l.sandbox(last)
	c := l.with(other)
	defer c.Close()
	spec := small("same")
	spec.Secrets = []sandpit.Secret{{Name: "same"}}
	createOf(t, c, spec)
	terms := func(name string) engine.Terms {
		for i := range 2 {
			if terms, _ := l.network.of(i); terms.Secrets[0].Name == name {
				return terms
			}
		}
		t.Fatalf("no sandbox has %s", name)
		return engine.Terms{}
	}
	many, same := terms(last), terms("same")
	const waiting = 100
	ended := make(chan error, waiting+1)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for range waiting {
		go func() { ended <- many.Renew(ctx, last) }()
	}
	for range waiting - 64 {
		if err := <-ended; !errors.Is(err, sandpit.ErrExhausted) {
			t.Errorf("one request of too many: %v", err)
		}
	}
	go func() { ended <- same.Renew(ctx, "same") }()
	h.release()
	for range 64 + 1 {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
	l.renewed(l.key, last)
}

// What a provider gives and can't be stored is told as every failure is. A new refresh token is kept all the same.
func TestUnusableTokensAreTold(t *testing.T) {
	t.Parallel()
	l, h := newLoggedIn(t), newHanging(t)
	l.restart(h.service("hangs"))
	h.release()
	for name, c := range map[string]struct{ answer, want string }{
		"line":  {`{"access_token":"a\r\nb","refresh_token":"next","token_type":"Bearer","expires_in":3600}`, "control characters"},
		"large": {`{"access_token":"fine","refresh_token":"` + strings.Repeat("x", secret.MaxValue+1) + `","token_type":"Bearer","expires_in":3600}`, "longer than"},
	} {
		h.mu.Lock()
		h.answer = c.answer
		h.mu.Unlock()
		l.due(l.key, name, "hangs", "first-"+name)
		testkit.Until(t, "the failure is told", func() bool { return l.state(name).Failed != "" })
		if s := l.state(name); !strings.Contains(s.Failed, c.want) || s.Over || !s.Renewable || strings.Contains(s.Failed, "next") {
			t.Errorf("%s: the login is %+v", name, s)
		}
		if status, text, _ := l.get("DELETE", "http://sandpit/v1/secrets/"+name, l.key, ""); status != 200 && status != 204 {
			t.Error(status, text)
		}
	}
}
