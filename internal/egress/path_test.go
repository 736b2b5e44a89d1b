package egress_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/egress"
)

func TestPaths(t *testing.T) {
	for raw, want := range map[string][]string{
		"/":              {"/"},
		"/a/b/":          {"/a/b/"},
		"/a%20b;c=d":     {"/a b;c=d"},
		"/@s%2fn":        {"/@s/n", "/@s%2Fn"},
		"/100%25":        {"/100%"},
		"/%e4%bd%a0":     {"/你"},
		"/...":           {"/..."},
		"/a/.git":        {"/a/.git"},
		"":               nil,
		"*":              nil,
		"a":              nil,
		"/a//b":          nil,
		"//a":            nil,
		"/.":             nil,
		"/a/..":          nil,
		"/a/../b":        nil,
		"/a/%2e%2E/b":    nil,
		"/a%2f..%2fb":    nil,
		"/a/..;x=/b":     nil,
		"/a/;/b":         nil,
		"/a/;":           nil,
		`/a\b`:           nil,
		"/a%5cb":         nil,
		"/a%00":          nil,
		"/a%0d%0a":       nil,
		"/%252e%252e/b":  nil,
		"/a%3f":          nil,
		"/a%zz":          nil,
		"/a%":            nil,
		"/a%252fb":       nil,
		"/a/%2f/b":       nil,
		"/a/b%2F":        {"/a/b/", "/a/b%2F"},
		"/a/b%2F%2e%2e/": nil,
	} {
		got, err := egress.Paths(raw)
		if !slices.Equal(got, want) || (err == nil) != (want != nil) || err != nil && !errors.Is(err, sandpit.ErrInvalid) {
			t.Errorf("%q: %q, %v; want %q", raw, got, err, want)
		}
	}
}

// No accepted path has a segment that an origin could resolve, once it is decoded again.
func FuzzPaths(f *testing.F) {
	for _, s := range []string{"/a/b", "/a%2fb", "/%25", "/a/..;/b", "/%2%65"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, raw string) {
		paths, err := egress.Paths(raw)
		if err != nil {
			return
		}
		for _, p := range paths {
			if !strings.HasPrefix(p, "/") || strings.ContainsAny(p, "\\\x00\r\n?#") || strings.Contains(p, "//") || slices.ContainsFunc(strings.Split(p, "/"), func(s string) bool { return s == "." || s == ".." }) {
				t.Errorf("%q is read as %q", raw, p)
			}
		}
	})
}

func TestHosts(t *testing.T) {
	hosts, err := egress.ParseHosts([]string{"a.example.com", "b.example.com:8443", "*.example.org"})
	if err != nil {
		t.Fatal(err)
	}
	for to, want := range map[string]bool{
		"a.example.com:443": true, "a.example.com:1": false, "b.example.com:8443": true, "b.example.com:443": false, "x.example.org:443": true,
		"example.org:443": false, "192.0.2.1:443": false, "udp:a.example.com:443": false, "xa.example.com:443": false,
	} {
		d, err := egress.ParseDestination(to)
		if err != nil || hosts.Contain(d) != want {
			t.Errorf("%s: %t, %v", to, hosts.Contain(d), err)
		}
	}
	for _, bad := range []string{"192.0.2.1", "10.0.0.0/8", "udp:example.com", "GET:https://example.com/", "package-registries", "*.com", ""} {
		if hosts, err := egress.ParseHosts([]string{bad}); !errors.Is(err, sandpit.ErrInvalid) {
			t.Errorf("%q: %v, %v", bad, hosts, err)
		}
	}
}
