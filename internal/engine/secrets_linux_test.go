package engine_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/engine"
	"github.com/sandpit-dev/sandpit/internal/ledger"
	"github.com/sandpit-dev/sandpit/internal/policy"
	"github.com/sandpit-dev/sandpit/internal/testkit"
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

// slow is a network in which changes wait until they are let through.
type slow struct {
	told
	through chan struct{} // closed: all are

	mu        sync.Mutex
	now, most int
	sets      int
	of        map[string]int // that change now, by the first secret
	both      bool           // two of one namespace changed at once
}

type slowJoined struct {
	engine.Joined
	network *slow
}

func (n *slow) Join(ctx context.Context, file *os.File, t engine.Terms) (engine.Joined, error) {
	j, err := n.told.Join(ctx, file, t)
	return slowJoined{j, n}, err
}

func (j slowJoined) Set(_ context.Context, t engine.Terms) error {
	n, namespace := j.network, t.Secrets[0].Placeholder[:1]
	n.mu.Lock()
	n.sets++
	n.now++
	n.most = max(n.most, n.now)
	n.of[namespace]++
	n.both = n.both || n.of[namespace] > 1
	n.mu.Unlock()
	<-n.through
	n.mu.Lock()
	defer n.mu.Unlock()
	n.now--
	n.of[namespace]--
	return nil
}

// countedSecrets count how often each is looked for, and have placeholders that begin with their namespace.
type countedSecrets struct {
	mu    sync.Mutex
	found map[string]int
	value func() string
}

func (s *countedSecrets) FindSecret(_ context.Context, namespace string, use sandpit.Secret) (engine.FoundSecret, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.found[use.Name]++
	return engine.FoundSecret{Variables: []string{strings.ToUpper(use.Name)}, Hosts: []string{"own.test:443"}, Prefix: namespace, Value: s.value()}, nil
}

func (*countedSecrets) RenewSecret(context.Context, string, string) error { return nil }

// However many secrets change at once, few sandboxes change at once, one of each namespace. Changes that come before
// that of a sandbox begins are made with it, and other secrets of the sandbox are not looked for.
func TestChangesOfSecretsAreBounded(t *testing.T) {
	srv := newSurvivor(t)
	n := &slow{through: make(chan struct{}), of: map[string]int{}}
	secrets := &countedSecrets{found: map[string]int{}, value: func() string { return "stored" }}
	e := srv.open(t, func(o *engine.Options) {
		withSecrets(srv, &n.told, nil)(o)
		o.Network, o.Secrets = n, secrets
	})
	p := policy.ServerDefault()
	p.Rules.Secrets = []string{"*"}
	const spaces, boxes, names = 6, 3, 20
	for i := range spaces {
		for range boxes {
			spec := sandpit.Spec{User: "root", WorkDir: "/"}
			for _, name := range numbered("s%d", names+1) {
				spec.Secrets = append(spec.Secrets, sandpit.Secret{Name: name})
			}
			if _, err := e.As(fmt.Sprint(i), p).Create(t.Context(), spec); err != nil {
				t.Fatal(err)
			}
		}
	}
	secrets.mu.Lock()
	clear(secrets.found)
	secrets.mu.Unlock()
	first := make(chan error, 1)
	go func() { first <- e.SecretChanged(t.Context(), "", "s0") }()
	testkit.Until(t, "some change", func() bool {
		n.mu.Lock()
		defer n.mu.Unlock()
		return n.now == 4
	})
	left, leave := context.WithCancel(t.Context())
	leave()
	for _, name := range numbered("s%d", names) {
		_ = e.SecretChanged(left, "", name) // it is made all the same
	}
	close(n.through)
	if err := errors.Join(<-first, e.SecretChanged(t.Context(), "", "s1")); err != nil {
		t.Error(err)
	}
	if n.most != 4 || n.both {
		t.Errorf("%d sandboxes change at once, two of one namespace: %v", n.most, n.both)
	}
	if n.sets > 3*spaces*boxes || n.sets < spaces*boxes { // for the first, for all that came then, and for the last
		t.Errorf("%d changes of %d sandboxes for %d secrets", n.sets, spaces*boxes, names)
	}
	for name, times := range secrets.found {
		if times > 3*spaces*boxes || name == fmt.Sprint("s", names) {
			t.Errorf("%s is looked for %d times", name, times)
		}
	}
	for _, s := range e.Sandboxes() {
		if err := s.Remove(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

// Stored secrets are charged to the sandboxes that use them, with their copies, also when they grow later and after an
// adoption. Where there is no room, the sandbox reaches nothing.
func TestStoredSecretsAreCharged(t *testing.T) {
	const size = 20_000
	srv, n, book := newSurvivor(t), &told{}, ledger.New(ledger.Bounds{Sandbox: 400_000})
	var value atomic.Value
	value.Store("small")
	with := func(o *engine.Options) {
		withSecrets(srv, n, book)(o)
		o.Secrets = &countedSecrets{found: map[string]int{}, value: func() string { return value.Load().(string) }}
	}
	e := srv.open(t, with)
	made(t, e, sandpit.Spec{Name: "box", Secrets: []sandpit.Secret{{Name: "a"}, {Name: "b"}}})
	first := book.Used()
	grow := func(n int) error {
		value.Store(strings.Repeat("x", n))
		return errors.Join(e.SecretChanged(t.Context(), "", "a"), e.SecretChanged(t.Context(), "", "b"))
	}
	if err := grow(size); err != nil || book.Used() < first+2*3*size-100 {
		t.Errorf("%d bytes are charged after %d, %v", book.Used(), first, err)
	}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	grown := book.Used()
	book = ledger.New(ledger.Bounds{Sandbox: 400_000})
	e, _ = adopt(t, srv, with)
	if book.Used() < 2*3*size {
		t.Errorf("%d bytes are charged after an adoption, %d before", book.Used(), grown)
	}
	if err := grow(5 * size); !errors.Is(err, sandpit.ErrQuota) {
		t.Errorf("without room: %v", err)
	}
	sb := boxOf(t, e)
	if info, err := sb.Info(t.Context()); err != nil || !slices.ContainsFunc(info.NotEnforced, func(g sandpit.Gap) bool { return strings.Contains(g.Why, "reaches nothing") }) {
		t.Errorf("the gaps are %+v, %v", info.NotEnforced, err)
	}
	if err := sb.(sandpit.Egresser).SetEgress(t.Context(), sandpit.Egress{}); !errors.Is(err, sandpit.ErrQuota) {
		t.Errorf("a new network without room: %v", err)
	}
	if err := grow(10); err != nil || book.Used() > first+1000 {
		t.Errorf("%d bytes are charged, first there were %d, %v", book.Used(), first, err)
	}
	if err := sb.(sandpit.Egresser).SetEgress(t.Context(), sandpit.Egress{}); err != nil {
		t.Errorf("with room: %v", err)
	}
	err := e.Remove(t.Context(), "box")
	e.ForgetEvents()
	if err != nil || book.Used() != 0 {
		t.Errorf("%d bytes are charged for nothing, %v", book.Used(), err)
	}
}
