package server_test

import (
	"errors"
	"io/fs"
	"path/filepath"
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
	s.change = func(opt *server.Options) { opt.Network = network.InProcess{} }
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
	learns := func(want bool) {
		t.Helper()
		if log, err := sb.EgressLog(t.Context()); err != nil || log.Learns != want {
			t.Errorf("that it learns is %v, %v", log.Learns, err)
		}
	}
	learns(true)
	if err := sb.ChangeEgress(t.Context(), sandpit.EgressChange{Add: sandpit.EgressRules{Deny: []string{"other.test"}}}); err != nil {
		t.Error(err)
	}
	s.stop()
	s.start()
	learns(true) // although the policy has replaced the preset
	if err := sb.ChangeEgress(t.Context(), sandpit.EgressChange{Preset: sandpit.EgressNone}); err != nil {
		t.Error(err)
	}
	learns(false)
}

// What can't be asked for is refused in one line, with what to do, and leaves nothing behind: also
// no directory of a sandbox. A running sandbox keeps what it has.
func TestBadEgressLeavesNothing(t *testing.T) {
	t.Parallel()
	if !linux.New(linux.Options{}).Probe(t.Context()).Features[feature.Egress] {
		testkit.Lacks(t, "egress")
	}
	s := newServed(t)
	s.change = func(opt *server.Options) { opt.Network = network.InProcess{} }
	s.policy("policies:\n  default: {egress: [registries, '*.example.com'], resolve: [192.0.2.0/24], secrets: ['*']}\n")
	s.overTCP()
	s.start()
	key := s.keyOf("team", "")
	if status, answer, _ := s.get("PUT", "http://sandpit/v1/secrets/loose", key, `{"value":"a-value-without-hosts"}`); status != 200 {
		t.Fatal(answer)
	}
	c := s.tls(key)
	defer c.Close()
	made := func() (names []string) {
		t.Helper()
		if err := filepath.WalkDir(s.home, func(path string, d fs.DirEntry, err error) error {
			if err == nil && d.IsDir() {
				names = append(names, path)
			}
			return err
		}); err != nil {
			t.Fatal(err)
		}
		return names
	}
	empty := made()
	kept := sandpit.Egress{Allow: []string{"kept.example.com:443"}}
	sb, err := c.Create(t.Context(), sandpit.Spec{Name: "kept", Egress: kept})
	if err != nil {
		testkit.Made(t, err)
	}
	before := made()
	if slices.Equal(before, empty) {
		t.Fatal("a sandbox is not seen in the data directory")
	}
	of := func(e sandpit.Egress) sandpit.Spec { return sandpit.Spec{Egress: e} }
	for what, bad := range map[string]struct {
		spec sandpit.Spec
		kind error
		says string
	}{
		"a malformed rule":                {of(sandpit.Egress{Allow: []string{"http://a.example.com/"}}), sandpit.ErrInvalid, "write a.example.com:80"},
		"an unknown set":                  {of(sandpit.Egress{Allow: []string{"package-registry"}}), sandpit.ErrInvalid, "no such set"},
		"an unknown preset":               {of(sandpit.Egress{Preset: "most"}), sandpit.ErrInvalid, "most"},
		"a public suffix":                 {of(sandpit.Egress{Allow: []string{"*.co.uk"}}), sandpit.ErrInvalid, "public suffix"},
		"a rule that the policy forbids":  {of(sandpit.Egress{Allow: []string{"other.test"}}), sandpit.ErrForbidden, "default.egress"},
		"resolving what policy forbids":   {of(sandpit.Egress{Allow: kept.Allow, Resolve: []string{"kept.example.com:10.0.0.1"}}), sandpit.ErrForbidden, "default.resolve"},
		"a malformed resolution":          {of(sandpit.Egress{Allow: kept.Allow, Resolve: []string{"kept.example.com"}}), sandpit.ErrInvalid, "write HOST:ADDRESS"},
		"a malformed name server":         {of(sandpit.Egress{Allow: kept.Allow, DNS: []string{"localhost"}}), sandpit.ErrInvalid, "name server"},
		"an unknown secret or service":    {sandpit.Spec{Secrets: []sandpit.Secret{{Name: "nosuch"}}}, sandpit.ErrNotFound, "nosuch"},
		"a secret without hosts":          {sandpit.Spec{Secrets: []sandpit.Secret{{Name: "loose"}}}, sandpit.ErrInvalid, "host"},
		"a secret for a malformed host":   {sandpit.Spec{Secrets: []sandpit.Secret{{Name: "loose", Hosts: []string{"a b"}}}}, sandpit.ErrInvalid, "a b"},
		"a secret that policy can't have": {sandpit.Spec{Secrets: []sandpit.Secret{{Name: "loose", Hosts: []string{"other.test"}}}}, sandpit.ErrForbidden, "other.test"},
	} {
		t.Run(what, func(t *testing.T) {
			check := func(err error) {
				t.Helper()
				if !errors.Is(err, bad.kind) || !strings.Contains(err.Error(), bad.says) || strings.Contains(err.Error(), "\n") || sandpit.Hint(err) == "" && !strings.Contains(err.Error(), ": write ") {
					t.Errorf("%v (hint: %s)", err, sandpit.Hint(err))
				}
			}
			_, err := c.Create(t.Context(), bad.spec)
			check(err)
			if !bad.spec.Egress.IsZero() {
				check(sb.SetEgress(t.Context(), bad.spec.Egress))
			}
			if now := made(); !slices.Equal(now, before) {
				t.Errorf("there is %v, and was %v", now, before)
			}
		})
	}
	if page, err := c.List(t.Context(), sandpit.ListQuery{}); err != nil || len(page.Sandboxes) != 1 {
		t.Errorf("left behind: %+v, %v", page, err)
	}
	if e, err := sb.Egress(t.Context()); err != nil || !slices.Equal(e.Allow, kept.Allow) {
		t.Errorf("the sandbox has %+v, %v", e, err)
	}
}
