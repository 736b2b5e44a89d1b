package network_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/testkit"
	"github.com/sandpit-dev/sandpit/local"
	"github.com/sandpit-dev/sandpit/local/network"
)

var guest local.IsGuest

func TestMain(m *testing.M) {
	guest = local.Guest()
	os.Exit(m.Run())
}

// With a network, a sandbox reaches what its Egress allows, and without one such a Spec is refused.
func TestEgress(t *testing.T) {
	origin := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "hello") }))
	defer origin.Close()
	_, port, _ := strings.Cut(strings.TrimPrefix(origin.URL, "http://"), ":")
	spec := sandpit.Spec{Egress: sandpit.Egress{Allow: []string{"good.test:" + port}, Resolve: []string{"good.test:127.0.0.1"}}}
	stack, err := network.New(network.Options{})
	if err != nil {
		t.Fatal(err)
	}
	client := func(n local.Network) sandpit.Client {
		c, err := local.New(local.Options{Guest: guest, Home: t.TempDir(), Network: n})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := c.Close(); err != nil {
				t.Error(err)
			}
		})
		return c
	}
	if _, err := client(nil).Create(t.Context(), spec); !errors.Is(err, sandpit.ErrUnsupported) || !strings.Contains(sandpit.Hint(err), "local/network") {
		t.Errorf("without a network: %v (hint: %s)", err, sandpit.Hint(err))
	}
	c := client(stack)
	testkit.NeedTUN(t)
	sb, err := c.Create(t.Context(), spec)
	testkit.Made(t, err)
	defer func() { _ = sb.Remove(context.Background()) }()
	for url, want := range map[string]string{"http://good.test:" + port: "hello", "http://bad.test:" + port: ""} {
		out, err := sandpit.Exec(t.Context(), sb, "curl", "-s", "-m", "20", url)
		if err != nil || string(out.Stdout) != want {
			t.Errorf("%s: %q, %v", url, out.Stdout, err)
		}
	}
	for _, bad := range []network.Options{{Proxy: "ftp://x"}, {CABundle: "/nowhere"}} {
		if _, err := network.New(bad); !errors.Is(err, sandpit.ErrInvalid) {
			t.Errorf("%+v: %v", bad, err)
		}
	}
}
