package fetch

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/image"
)

func TestRedirectRules(t *testing.T) {
	r := &registrySource{}
	for _, c := range []struct {
		from, to string
		ok, auth bool
	}{
		{"https://a.example/x", "https://a.example/y", true, true},
		{"https://a.example/x", "https://sub.a.example/y", true, false},
		{"https://a.example/x", "https://a.example:8443/y", true, false},
		{"https://a.example/x", "https://b.example/y", true, false},
		{"https://a.example/x", "http://a.example/y", false, false},
		{"http://a.example/x", "https://a.example/y", true, true},
		{"http://a.example/x", "http://b.example/y", true, false},
		{"http://a.example/x", "ftp://b.example/y", false, false},
	} {
		req := func(s string) *http.Request {
			u, err := url.Parse(s)
			if err != nil {
				t.Fatal(err)
			}
			return &http.Request{URL: u, Header: http.Header{"Authorization": {"secret"}, "Referer": {s}}}
		}
		to := req(c.to)
		err := r.checkRedirect(to, []*http.Request{req(c.from)})
		if (err == nil) != c.ok || err != nil && !errors.Is(err, sandpit.ErrForbidden) {
			t.Errorf("%s to %s: %v", c.from, c.to, err)
		}
		if got := to.Header.Get("Authorization") != ""; err == nil && got != c.auth {
			t.Errorf("%s to %s: credentials go along: %v, want %v", c.from, c.to, got, c.auth)
		}
		if err == nil && to.Header.Get("Referer") != "" {
			t.Errorf("%s to %s: the address we come from is told", c.from, c.to)
		}
	}
}

// Through TLS and back, as a hostile registry would have it: neither a blob nor
// a token is got without TLS.
func TestTLSIsNotLeft(t *testing.T) {
	plain := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		t.Error("asked without TLS")
		_, _ = w.Write([]byte(`{"token":"x"}`))
	}))
	defer plain.Close()
	for name, h := range map[string]http.HandlerFunc{
		"redirect": func(w http.ResponseWriter, req *http.Request) {
			http.Redirect(w, req, plain.URL+req.URL.Path, http.StatusTemporaryRedirect)
		},
		"token": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("WWW-Authenticate", `Bearer realm="`+plain.URL+`/token"`)
			w.WriteHeader(http.StatusUnauthorized)
		},
	} {
		t.Run(name, func(t *testing.T) {
			srv := httptest.NewTLSServer(h)
			defer srv.Close()
			f := New(Options{Getenv: func(string) string { return "" }})
			ref, err := image.ParseReference(strings.TrimPrefix(srv.URL, "https://") + "/x:1")
			if err != nil {
				t.Fatal(err)
			}
			src, err := f.registry(ref, image.AcquireOptions{})
			if err != nil {
				t.Fatal(err)
			}
			defer src.Close()
			src.client.Transport = srv.Client().Transport // which trusts it
			if _, _, err := src.Root(t.Context()); !errors.Is(err, sandpit.ErrForbidden) {
				t.Errorf("the error is %v", err)
			}
		})
	}
}

func TestParseChallenge(t *testing.T) {
	for in, want := range map[string]map[string]string{
		`Bearer realm="https://a/t?x=1,2",service="s",scope="a,b"`: {"": "bearer", "realm": "https://a/t?x=1,2", "service": "s", "scope": "a,b"},
		`basic Realm="a \"b\""`:     {"": "basic", "realm": `a "b"`},
		`Bearer realm=x, service=y`: {"": "bearer", "realm": "x", "service": "y"},
		`Negotiate`:                 {"": "negotiate"},
		`Bearer realm="cut`:         {"": "bearer", "realm": "cut"},
	} {
		scheme, got := parseChallenge(in)
		got[""] = scheme
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", in, diff)
		}
	}
}
