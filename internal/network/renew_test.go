package network

import (
	"context"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/sandpit-dev/sandpit/internal/engine"
	"github.com/sandpit-dev/sandpit/internal/testkit"
)

// TestRefusedSecretsAreRenewed has an origin refuse a value with 401: the request is sent again with a new one if
// that is safe, and else the next one has it.
func TestRefusedSecretsAreRenewed(t *testing.T) {
	both(t, func(t *testing.T, inside, outside bool) {
		const fresh = "the-renewed-value"
		var never, strict atomic.Bool
		var requests atomic.Int32
		o := newOrigin(t, outside, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			requests.Add(1)
			body, _ := io.ReadAll(r.Body)
			if never.Load() || strict.Load() && !strings.HasSuffix(r.Header.Get("Authorization"), fresh) {
				http.Error(w, "who is that with "+r.Header.Get("Authorization"), http.StatusUnauthorized)
				return
			}
			_, _ = w.Write(append([]byte("got "), body...))
		}))
		secretOf := func(value string) []engine.Secret {
			return []engine.Secret{{Name: "token", Placeholder: placeholder, Value: []byte(value), Hosts: []string{o.host("good.test")}, Renewable: true}}
		}
		terms := o.terms(t, secretOf("the-former-value"), "good.test:PORT")
		var b *sandboxed
		var renewals atomic.Int32
		var inForce atomic.Value
		set := func(value string) {
			next := terms
			next.Secrets = secretOf(value)
			if err := b.Set(next); err != nil {
				t.Error(err)
			}
			inForce.Store(value)
		}
		terms.Renew = func(_ context.Context, name string) error {
			if renewals.Add(1); name != "token" {
				t.Errorf("%q is renewed", name)
			}
			if !never.Load() {
				set(fresh)
			}
			return nil
		}
		b = newSandboxed(t, terms)
		c := b.client("good.test", o.port, inside)
		try := func(about string, body io.Reader, want int, tries, renewed int32) {
			t.Helper()
			requests.Store(0)
			renewals.Store(0)
			method := "GET"
			if body != nil {
				method = "POST"
			}
			status, text := do(t, c, method, o.url("/"), body, "Authorization", "Bearer "+placeholder)
			if status != want || requests.Load() != tries || strings.Contains(text, "former") {
				t.Errorf("%s: %d %q after %d requests", about, status, text, requests.Load())
			}
			if status == 200 && body != nil && text != "got a body" {
				t.Errorf("%s: %q", about, text)
			}
			if got := renewals.Load(); renewed >= 0 && got != renewed {
				t.Errorf("%s: %d renewals", about, got)
			}
		}
		strict.Store(true)
		try("without a body", nil, 200, 2, 1)
		try("with the new value", nil, 200, 1, 0)
		set("the-former-value")
		try("with a body", strings.NewReader("a body"), 200, 2, 1)
		set("the-former-value")
		try("with a stream", io.MultiReader(strings.NewReader("a body")), 401, 1, -1)
		testkit.Until(t, "the next value", func() bool { return inForce.Load() == fresh })
		try("after a stream", io.MultiReader(strings.NewReader("a body")), 200, 1, 0)
		never.Store(true)
		try("an origin that always refuses", nil, 401, 1, 1)
		if status, _ := do(t, c, "GET", o.url("/"), nil); status != 401 || renewals.Load() != 1 {
			t.Errorf("without the placeholder: %d, %d renewals", status, renewals.Load())
		}
	})
}
