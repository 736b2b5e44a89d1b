package engine_test

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/engine"
	"github.com/sandpit-dev/sandpit/internal/ledger"
	"github.com/sandpit-dev/sandpit/internal/network"
)

// storedSecrets have a secret of every name.
type storedSecrets struct{}

func (storedSecrets) FindSecret(_ context.Context, _ string, use sandpit.Secret) (engine.FoundSecret, error) {
	rules := []string{"own.test:443"}
	return engine.FoundSecret{Variables: []string{"TOKEN"}, Hosts: rules, Value: cmp.Or(use.Value, "stored")}, nil
}

func (storedSecrets) RenewSecret(context.Context, string, string) error { return nil }

// told is a network that notes the secrets that are in force, and moves nothing.
type told struct {
	network.InProcess
	mu     sync.Mutex
	values []string
}

type toldJoined struct {
	engine.Joined
	network *told
}

func (n *told) Join(_ context.Context, file *os.File, t engine.Terms) (engine.Joined, error) {
	j := toldJoined{network: n}
	return j, errors.Join(j.Set(context.Background(), t), file.Close())
}

func (j toldJoined) Set(_ context.Context, t engine.Terms) error {
	j.network.mu.Lock()
	defer j.network.mu.Unlock()
	j.network.values = nil
	for _, x := range t.Secrets {
		j.network.values = append(j.network.values, string(x.Value))
	}
	return nil
}

func (toldJoined) Traffic() (t engine.Traffic)     { return t }
func (toldJoined) Denials() []sandpit.EgressDenial { return nil }
func (toldJoined) Close() error                    { return nil }

func (n *told) want(t *testing.T, when, want string) {
	t.Helper()
	n.mu.Lock()
	defer n.mu.Unlock()
	if got := strings.Join(n.values, " "); got != want {
		t.Errorf("%s, %q is in force, want %q", when, got, want)
	}
}

// withSecrets changes the options of an engine.
func withSecrets(srv *survivor, n *told, book *ledger.Ledger) func(*engine.Options) {
	return func(o *engine.Options) {
		o.Driver, o.Network, o.Secrets, o.Memory = linking{bare: bare{srv.dir}, enter: func(context.Context) {}}, n, storedSecrets{}, book
	}
}

func boxOf(t *testing.T, e *engine.Engine) engine.Box {
	t.Helper()
	sb, err := e.Get(t.Context(), "box")
	if err != nil {
		t.Fatal(err)
	}
	return sb.(engine.Box)
}

// An own secret is in the sealed part of the record alone, with its latest value, and later engines have it. One
// that is lost is not replaced by a stored one of its name.
func TestOwnSecretsInRecords(t *testing.T) {
	srv, n := newSurvivor(t), &told{}
	with := withSecrets(srv, n, nil)
	e := srv.open(t, with)
	id := made(t, e, sandpit.Spec{Name: "box", Secrets: []sandpit.Secret{{Name: "token", Value: "first-value"}}}).ID()
	n.want(t, "after the creation", "first-value")
	recorded := func(value string) {
		t.Helper()
		r, _ := srv.store.get(id)
		if bytes.Contains(r.Data, []byte("-value")) || !bytes.Contains(r.Secret, []byte(value)) {
			t.Errorf("the record is %s and %s, without %s", r.Data, r.Secret, value)
		}
	}
	recorded("first-value")
	box := boxOf(t, e)
	if m, err := box.Made(); err != nil || m.Own["token"].Value != "first-value" || m.Spec.Secrets[0].Value != "" {
		t.Errorf("it was made with %+v, %v", m, err)
	}

	// What can't be written is not in force.
	srv.store.setFail(sandpit.ErrExhausted)
	if err := box.SetOwnSecret(t.Context(), "token", "lost-value"); !errors.Is(err, sandpit.ErrExhausted) || strings.Contains(err.Error(), "lost-value") {
		t.Errorf("a full disk: %v", err)
	}
	srv.store.setFail(nil)
	n.want(t, "after a write that failed", "first-value")
	if err := box.SetOwnSecret(t.Context(), "none", "any-value"); !errors.Is(err, sandpit.ErrNotFound) {
		t.Errorf("a secret that it does not have: %v", err)
	}
	if err := box.SetOwnSecret(t.Context(), "token", "second-value"); err != nil {
		t.Error(err)
	}
	if err := e.SecretChanged(t.Context(), "", "token"); err != nil {
		t.Error(err)
	}
	n.want(t, "after a rotation", "second-value")
	recorded("second-value")

	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	e, _ = adopt(t, srv, with)
	n.want(t, "after an adoption", "second-value")

	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	r, _ := srv.store.get(id)
	whole, sealed := r.Secret, map[string]json.RawMessage{}
	if err := json.Unmarshal(whole, &sealed); err != nil {
		t.Fatal(err)
	}
	delete(sealed, "own")
	var err error
	if r.Secret, err = json.Marshal(sealed); err != nil {
		t.Fatal(err)
	}
	if err := srv.store.PutSandbox(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	e, _ = adopt(t, srv, with)
	n.want(t, "once it is lost", "")
	if uses, _ := boxOf(t, e).OwnSecrets(); len(uses) != 0 {
		t.Errorf("it still has %v", uses)
	}

	// A removal is kept, too.
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	r.Secret = whole
	if err := srv.store.PutSandbox(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	e, _ = adopt(t, srv, with)
	n.want(t, "once it is there again", "second-value")
	if err := boxOf(t, e).SetOwnSecret(t.Context(), "token", ""); err != nil {
		t.Error(err)
	}
	n.want(t, "after a removal", "")
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	e, _ = adopt(t, srv, with)
	n.want(t, "after a removal and an adoption", "")
	if err := e.Remove(t.Context(), "box"); err != nil {
		t.Error(err)
	}
}

// The namespace is charged for own secrets, when they are brought, changed and found again, and gets all of it back.
func TestOwnSecretsAreCharged(t *testing.T) {
	const size, room = 20_000, 400_000
	srv, n, book := newSurvivor(t), &told{}, ledger.New(ledger.Bounds{Sandbox: room})
	with := withSecrets(srv, n, book)
	e := srv.open(t, with)
	of := func(n int) []sandpit.Secret {
		return []sandpit.Secret{{Name: "token", Value: strings.Repeat("x", n)}}
	}
	if _, err := e.Create(t.Context(), sandpit.Spec{User: "root", WorkDir: "/", Secrets: of(room / 2)}); !errors.Is(err, sandpit.ErrQuota) && !errors.Is(err, sandpit.ErrExhausted) {
		t.Errorf("one that is too large: %v", err)
	}
	made(t, e, sandpit.Spec{Name: "box", Secrets: of(size)})
	first, box := book.Used(), boxOf(t, e)
	if first < 96<<10+3*size { // beside the sandbox itself
		t.Errorf("%d bytes are charged", first)
	}
	set := func(n int) error { return box.SetOwnSecret(t.Context(), "token", strings.Repeat("y", n)) }
	if err := set(2 * size); err != nil || book.Used() < first+3*size-100 { // times in a record lack trailing zeros
		t.Errorf("%d bytes are charged, %v", book.Used(), err)
	}
	if err := set(room); err == nil {
		t.Error("a value that is too large is accepted")
	}
	if err := set(size); err != nil || book.Used() > first+1000 {
		t.Errorf("%d bytes are charged, %v", book.Used(), err)
	}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	book = ledger.New(ledger.Bounds{})
	e, _ = adopt(t, srv, withSecrets(srv, n, book))
	if book.Used() < 2*size {
		t.Errorf("%d bytes are charged after an adoption", book.Used())
	}
	err := e.Remove(t.Context(), "box")
	e.ForgetEvents()
	if err != nil || book.Used() != 0 {
		t.Errorf("%d bytes are charged for nothing, %v", book.Used(), err)
	}
}
