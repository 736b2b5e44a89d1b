package engine_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/engine"
	"github.com/sandpit-dev/sandpit/internal/policy"
)

// asked counts how often rules are read.
type asked struct {
	told
	times atomic.Int32
}

func (n *asked) Excess(e sandpit.Egress, allowed, addresses []string) (string, string, error) {
	n.times.Add(1)
	return n.told.Excess(e, allowed, addresses)
}

func (n *asked) Within(rules, allowed []string) (within, others []string, err error) {
	n.times.Add(1)
	return n.told.Within(rules, allowed)
}

// boundTo are secrets that are bound to some hosts.
type boundTo struct {
	storedSecrets
	hosts func(name string) []string
}

func (s *boundTo) FindSecret(_ context.Context, _ string, use sandpit.Secret) (engine.FoundSecret, error) {
	return engine.FoundSecret{Variables: []string{strings.ToUpper(use.Name)}, Hosts: s.hosts(use.Name), Value: "stored"}, nil
}

func numbered(format string, n int) []string {
	all := make([]string, n)
	for i := range all {
		all[i] = fmt.Sprintf(format, i)
	}
	return all
}

// However many rules a policy, a caller and secrets have, they are read a few times for one request. More than a
// sandbox may have are refused before they are compared with those that it has.
func TestRulesAreReadOnce(t *testing.T) {
	srv, n := newSurvivor(t), &asked{}
	secrets := &boundTo{hosts: func(name string) []string { return []string{name + ".test:443"} }}
	e := srv.open(t, func(o *engine.Options) {
		withSecrets(srv, &n.told, nil)(o)
		o.Network, o.Secrets = n, secrets
	})
	p := policy.ServerDefault()
	p.Rules.Secrets = []string{"*"}
	p.Rules.Deny = numbered("denied%d.test", 900)
	spec := sandpit.Spec{Name: "box", User: "root", WorkDir: "/"}
	for _, name := range numbered("s%d", 32) {
		spec.Secrets = append(spec.Secrets, sandpit.Secret{Name: name})
	}
	sb, err := e.As("", p).Create(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	few := func(about string) {
		t.Helper()
		if times := n.times.Swap(0); times > 10 {
			t.Errorf("%s reads rules %d times", about, times)
		}
	}
	n.times.Store(0)
	box := sb.(sandpit.Egresser)
	if err := box.SetEgress(t.Context(), sandpit.Egress{Allow: append(numbered("a%d.test", 80), "denied1.test", "denied2.test")}); !errors.Is(err, sandpit.ErrForbidden) || !strings.Contains(err.Error(), `"denied1.test"`) {
		t.Errorf("denied rules: %v", err)
	}
	few("a change that is denied")
	if err := box.SetEgress(t.Context(), sandpit.Egress{Allow: numbered("a%d.test", 80)}); err != nil {
		t.Error(err)
	}
	few("a change")

	secrets.hosts = func(name string) []string { return numbered("h%d."+name+".test:443", 64) }
	if err := e.SecretChanged(t.Context(), "", "s0"); err != nil {
		t.Error(err)
	}
	few("a change of a secret")
	if d, err := box.CheckEgress(t.Context(), "h0.s0.test:443"); err != nil || !d.Allowed {
		t.Errorf("%+v, %v", d, err)
	}
	few("a check")

	many := make([]string, 400_000) // compared with each other, they would take minutes
	for i := range many {
		many[i] = fmt.Sprint(i, ".test")
	}
	for about, change := range map[string]sandpit.EgressRules{"rules": {Allow: many}, "denials": {Deny: many}} {
		if err := box.ChangeEgress(t.Context(), sandpit.EgressChange{Add: change, Remove: change}); !errors.Is(err, sandpit.ErrInvalid) {
			t.Errorf("too many %s: %v", about, err)
		}
	}
	if err := e.Remove(t.Context(), "box"); err != nil {
		t.Error(err)
	}
}

// A sandbox whose secrets get more hosts than it has room for reaches the others, and says which it lacks. Its own
// rules come first.
func TestHostsOfSecretsWithoutRoom(t *testing.T) {
	srv, n := newSurvivor(t), &told{}
	secrets := &boundTo{hosts: func(name string) []string { return []string{name + ".test:443"} }}
	e := srv.open(t, func(o *engine.Options) {
		withSecrets(srv, n, nil)(o)
		o.Secrets = secrets
	})
	spec := sandpit.Spec{Name: "box"}
	for _, name := range numbered("s%d", 32) {
		spec.Secrets = append(spec.Secrets, sandpit.Secret{Name: name})
	}
	made(t, e, spec)
	sb := boxOf(t, e)
	box := sb.(sandpit.Egresser)
	secrets.hosts = func(name string) []string { return numbered("h%d."+name+".test:443", 64) }
	for _, use := range spec.Secrets {
		if err := e.SecretChanged(t.Context(), "", use.Name); err != nil {
			t.Fatal(err)
		}
	}
	check := func(destination string, want bool) {
		t.Helper()
		if d, err := box.CheckEgress(t.Context(), destination); err != nil || d.Allowed != want {
			t.Errorf("%s: %+v, %v", destination, d, err)
		}
	}
	gap := func(want string) {
		t.Helper()
		info, err := sb.Info(t.Context())
		if err != nil || !slices.ContainsFunc(info.NotEnforced, func(g sandpit.Gap) bool {
			return g.What == "secret-hosts" && strings.Contains(g.Why, want) && len(g.Why) < 1000 && g.Fix != ""
		}) {
			t.Errorf("the gaps are %+v, %v, want %q", info.NotEnforced, err, want)
		}
	}
	check("h63.s15.test:443", true)
	check("h0.s16.test:443", false)
	gap("h7.s16.test:443, and 1016 more")

	own := sandpit.EgressRules{Allow: numbered("own%d.test", 1000), Deny: []string{"h0.s0.test"}}
	if err := box.ChangeEgress(t.Context(), sandpit.EgressChange{Add: own}); err != nil {
		t.Fatal(err)
	}
	check("own999.test:1", true)
	check("h0.s0.test:443", false)
	check("h22.s0.test:443", true)
	check("h23.s0.test:443", false)
	gap("and 2017 more")
	if err := e.Remove(t.Context(), "box"); err != nil {
		t.Error(err)
	}
}

// A sandbox whose TLS is intercepted says so if the certificates of its image can't be read.
func TestImageRootsThatCantBeRead(t *testing.T) {
	srv := newSurvivor(t)
	e := srv.open(t, withSecrets(srv, &told{}, nil))
	dir, bundle := t.TempDir(), "/etc/ssl/certs/ca-certificates.crt"
	if err := os.MkdirAll(filepath.Dir(dir+bundle), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(dir+bundle, make([]byte, 1<<20+1), 0o644); err != nil {
		t.Fatal(err)
	}
	for image, want := range map[string]bool{"dir:" + dir: true, "host": false} {
		sb, err := e.Create(t.Context(), sandpit.Spec{Image: image, User: "root", WorkDir: "/", Egress: sandpit.Egress{Allow: []string{"GET:https://good.test/*"}}})
		if err != nil {
			t.Fatal(err)
		}
		info, err := sb.Info(t.Context())
		if has := slices.ContainsFunc(info.NotEnforced, func(g sandpit.Gap) bool {
			return g.What == "image-roots" && strings.Contains(g.Why, bundle) && g.Fix != ""
		}); err != nil || has != want {
			t.Errorf("%s: the gaps are %+v, %v", image, info.NotEnforced, err)
		}
	}
}
