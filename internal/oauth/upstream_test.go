package oauth_test

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"testing"

	"github.com/sandpit-dev/sandpit/internal/oauth"
	"github.com/sandpit-dev/sandpit/internal/secret"
	"github.com/sandpit-dev/sandpit/internal/upstream"
	"github.com/sandpit-dev/sandpit/internal/upstream/upstreamtest"
)

// TestRenewThroughProxy checks that a provider is reached by the operator's proxy.
func TestRenewThroughProxy(t *testing.T) {
	provider := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(`{"access_token":"an-access-token","token_type":"Bearer"}`))
	}))
	t.Cleanup(provider.Close)
	u, err := url.Parse(provider.URL)
	if err != nil {
		t.Fatal(err)
	}
	p := upstreamtest.Start(t, "socks5")
	way, err := upstream.New(upstream.Settings{Proxy: p.URL.String()})
	if err != nil {
		t.Fatal(err)
	}
	app := oauth.App{OAuth: secret.OAuth{ClientID: "app", Token: "http://provider.test:" + u.Port() + "/token"}, Way: way}
	got, err := app.Renew(t.Context(), "a-refresh-token")
	if err != nil || got.Access != "an-access-token" {
		t.Errorf("%v", err)
	}
	if asked := p.Asked(); !slices.Equal(asked, []string{"provider.test"}) {
		t.Errorf("the proxy was asked for %q", asked)
	}
}
