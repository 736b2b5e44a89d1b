package server_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/driver/linux"
	"github.com/sandpit-dev/sandpit/internal/feature"
	"github.com/sandpit-dev/sandpit/internal/network"
	"github.com/sandpit-dev/sandpit/internal/server"
	"github.com/sandpit-dev/sandpit/internal/testkit"
)

// A key's policy bounds the egress of new sandboxes and of changes. Refusals name the rule, and
// leave everything as it was.
func TestPolicyBoundsEgress(t *testing.T) {
	t.Parallel()
	if !linux.New(linux.Options{}).Probe(t.Context()).Features[feature.Egress] {
		testkit.Lacks(t, "egress")
	}
	s := newServed(t)
	s.change = func(opt *server.Options) { opt.Network = network.Here{} }
	s.policy("policies:\n  default: {egress: [registries, '*.example.com:443'], deny: [bad.example.com], maximum: {connections: 9}}\n")
	s.overTCP()
	s.start()
	c := s.tls(s.keyOf("team", ""))
	defer c.Close()
	sb, err := c.Create(t.Context(), sandpit.Spec{Name: "box", Egress: sandpit.Egress{Allow: []string{"a.example.com:443"}}})
	if err != nil {
		testkit.Made(t, err)
	}
	want := sandpit.Egress{Allow: []string{"a.example.com:443"}, Deny: []string{"bad.example.com"}, Bounds: sandpit.EgressBounds{Connections: 9}}
	same := func() {
		t.Helper()
		e, err := sb.Egress(t.Context())
		if err != nil || !slices.Equal(e.Allow, want.Allow) || !slices.Equal(e.Deny, want.Deny) || e.Bounds != want.Bounds {
			t.Errorf("got %+v, %v", e, err)
		}
	}
	same()
	for rule, e := range map[string]sandpit.Egress{
		"default.egress":              {Preset: sandpit.EgressPublic},
		"default.resolve":             {Allow: []string{"a.example.com:443"}, Resolve: []string{"a.example.com:127.0.0.1"}},
		"default.maximum.connections": {Allow: []string{"a.example.com:443"}, Bounds: sandpit.EgressBounds{Connections: 10}},
	} {
		if _, err := c.Create(t.Context(), sandpit.Spec{Egress: e}); !errors.Is(err, sandpit.ErrForbidden) || !strings.Contains(err.Error(), rule) || sandpit.Hint(err) == "" {
			t.Errorf("creating by %s: %v", rule, err)
		}
		if err := sb.SetEgress(t.Context(), e); !errors.Is(err, sandpit.ErrForbidden) || !strings.Contains(err.Error(), rule) {
			t.Errorf("changing by %s: %v", rule, err)
		}
	}
	same()
	if page, err := c.List(t.Context(), sandpit.ListQuery{}); err != nil || len(page.Sandboxes) != 1 {
		t.Errorf("left behind: %+v, %v", page, err)
	}
	if err := sb.SetEgress(t.Context(), sandpit.Egress{Preset: sandpit.EgressLearn}); err != nil {
		t.Error(err)
	}
	for destination, allowed := range map[string]bool{"pypi.org:443": true, "b.example.com:443": true, "bad.example.com:443": false, "other.test": false} {
		if d, err := sb.CheckEgress(t.Context(), destination); err != nil || d.Allowed != allowed {
			t.Errorf("learning: %s: %+v, %v", destination, d, err)
		}
	}
}
