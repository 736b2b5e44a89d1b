package apart

import (
	"bytes"
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/engine"
)

// TestChangesAreSmall checks that the process gets what changed of the terms, and that it then has them whole.
func TestChangesAreSmall(t *testing.T) {
	const size = 64 << 10
	secret := func(name string, value byte) engine.Secret {
		return engine.Secret{Name: name, Placeholder: name, Value: bytes.Repeat([]byte{value}, size), Hosts: []string{name + ".test"}}
	}
	was := engine.Terms{
		Egress: sandpit.Egress{Allow: []string{"a.test"}, Resolve: []string{"a.test:10.0.0.1"}}, Own: []netip.Addr{netip.MustParseAddr("10.0.0.1")},
		CA: []byte("ca"), Secrets: []engine.Secret{secret("a", 1), secret("b", 1), secret("c", 1)},
	}
	for about, c := range map[string]struct {
		change func(*engine.Terms)
		values int // that are sent
		rules  bool
	}{
		"nothing":           {func(*engine.Terms) {}, 0, true},
		"a value":           {func(t *engine.Terms) { t.Secrets[1] = secret("b", 2) }, 1, true},
		"hosts":             {func(t *engine.Terms) { t.Secrets[1].Hosts = []string{"d.test"} }, 1, true},
		"one less":          {func(t *engine.Terms) { t.Secrets = t.Secrets[1:] }, 0, true},
		"one more":          {func(t *engine.Terms) { t.Secrets = append(t.Secrets, secret("d", 1)) }, 1, true},
		"the order":         {func(t *engine.Terms) { slices.Reverse(t.Secrets) }, 0, true},
		"none":              {func(t *engine.Terms) { t.Secrets = nil }, 0, true},
		"a rule":            {func(t *engine.Terms) { t.Egress.Allow = []string{"a.test", "b.test"} }, 0, false},
		"no rules":          {func(t *engine.Terms) { t.Egress, t.Own = sandpit.Egress{}, nil }, 0, false},
		"a rule and values": {func(t *engine.Terms) { t.Egress.Deny, t.Secrets[0] = []string{"b.test"}, secret("a", 2) }, 1, false},
	} {
		now := was
		now.Secrets = slices.Clone(was.Secrets)
		c.change(&now)
		sent, s := difference(was, now)
		body, err := encode(&message{Op: opSet, Terms: &sent, Same: s})
		if err != nil || len(sent.Secrets) != c.values || s.Rules != c.rules || len(body) > 1000+c.values*size*3/2 {
			t.Errorf("%s: %d values and %v in %d bytes, %v", about, len(sent.Secrets), s, len(body), err)
		}
		m, err := decode(body[4:])
		if err != nil {
			t.Fatal(err)
		}
		got, err := m.Same.whole(was, *m.Terms)
		if diff := cmp.Diff(now, got, cmpopts.EquateEmpty(), cmpopts.EquateComparable(netip.Addr{})); diff != "" || err != nil {
			t.Errorf("%s: %v, %s", about, err, diff)
		}
	}
	if _, err := (&same{Secrets: []string{"z"}}).whole(was, engine.Terms{}); err == nil {
		t.Error("a secret that neither end has is taken for one that stays")
	}
}
