package preview

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
)

// kept is a store, which fails if it is broken.
type kept struct {
	all    map[string]Preview
	broken bool
}

func (k *kept) PutPreview(_ context.Context, p Preview) error {
	if k.broken {
		return sandpit.ErrUnavailable
	}
	k.all[p.ID] = p
	return nil
}

func (k *kept) DeletePreview(_ context.Context, id string) error {
	if k.broken {
		return sandpit.ErrUnavailable
	}
	delete(k.all, id)
	return nil
}

func book(secret string) (*Book, *kept) {
	k := &kept{all: map[string]Preview{}}
	return New([]byte(secret), k, nil), k
}

// A token is of use for its sandbox and port, until its preview ends.
func TestTokens(t *testing.T) {
	b, _ := book("secret")
	soon := time.Now().Add(time.Hour)
	add := func(p Preview) (Preview, string, error) { return b.Add(t.Context(), p) }
	p, token, err := add(Preview{Sandbox: "sb1", Port: 80, Namespace: "a", Key: "k", ExpiresAt: soon})
	if err != nil || !isToken(token) || !In("x pv_ "+token+"?") || In(token[:len(token)-1]) {
		t.Fatalf("%q %v", token, err)
	}
	if got, ok := b.Verify(token, "sb1", 80); !ok || got != p {
		t.Errorf("%+v", got)
	}
	flip := func(i int) string {
		c := byte('a')
		if token[i] == c {
			c = 'b'
		}
		return token[:i] + string(c) + token[i+1:]
	}
	foreign := scheme + p.ID + "_" + New([]byte("another"), nil, nil).sign(p)
	for name, try := range map[string]struct {
		token, sandbox string
		port           uint16
	}{
		"another port": {token, "sb1", 81}, "another sandbox": {token, "sb2", 80}, "none": {"", "sb1", 80},
		"another signature": {flip(tokenLen - 2), "sb1", 80}, "another preview": {flip(5), "sb1", 80},
		"of another server": {foreign, "sb1", 80}, "cut": {token[:tokenLen-1], "sb1", 80}, "longer": {token + "a", "sb1", 80},
		"upper case": {strings.ToUpper(token), "sb1", 80},
	} {
		if _, ok := b.Verify(try.token, try.sandbox, try.port); ok {
			t.Errorf("%s is taken", name)
		}
	}
	if got, err := b.Revoke(p.Sandbox, p.ID); err != nil || got.ID != p.ID || b.Save(t.Context(), got) != nil {
		t.Errorf("%+v, %v", got, err)
	}
	if _, err := b.Revoke(p.Sandbox, p.ID); !errors.Is(err, sandpit.ErrNotFound) {
		t.Error(err)
	}
	if _, ok := b.Verify(token, "sb1", 80); ok || len(b.List("sb1")) != 0 {
		t.Error("it is there after its end")
	}
	_, token, _ = add(Preview{Sandbox: "sb1", Port: 80, Namespace: "a", Key: "k", ExpiresAt: soon})
	_, other, _ := add(Preview{Sandbox: "sb1", Port: 80, Namespace: "a", Key: "l", ExpiresAt: soon})
	b.RemoveKey("k")
	_, gone := b.Verify(token, "sb1", 80)
	if _, ok := b.Verify(other, "sb1", 80); gone || !ok {
		t.Errorf("after the end of the key: %v, of another one: %v", gone, ok)
	}
	b.RemoveSandbox("sb2")
	if _, ok := b.Verify(other, "sb1", 80); !ok {
		t.Error("it ended with another sandbox")
	}
	b.RemoveSandbox("sb1")
	if _, ok := b.Verify(other, "sb1", 80); ok || b.all != 0 || len(b.held) != 0 || len(b.count) != 0 {
		t.Errorf("after the end of the sandbox: %v, %+v", ok, b)
	}
	_, late, _ := add(Preview{Sandbox: "sb1", Port: 80, Namespace: "a", ExpiresAt: time.Now()})
	if _, ok := b.Verify(late, "sb1", 80); ok {
		t.Error("it is taken although its time is over")
	}
}

// Previews are bounded, and those that have ended make room.
func TestBound(t *testing.T) {
	b, _ := book("secret")
	add := func(namespace string, until time.Time) error {
		_, _, err := b.Add(t.Context(), Preview{Sandbox: "sb", Port: 1, Namespace: namespace, ExpiresAt: until})
		return err
	}
	now, soon := time.Now(), time.Now().Add(time.Hour)
	for range maxOfNamespace {
		if err := add("a", now); err != nil {
			t.Fatal(err)
		}
	}
	var err error
	for range maxOfNamespace {
		if err = add("a", soon); err != nil {
			t.Fatal(err)
		}
	}
	if err = add("a", soon); !errors.Is(err, sandpit.ErrQuota) {
		t.Errorf("of a namespace: %v", err)
	}
	for i := range 20 { // of which each takes what it gets
		for n := 0; ; n++ {
			if err = add(fmt.Sprintf("n%d", i), soon); err == nil {
				continue
			}
			if n < 300 {
				t.Errorf("namespace %d has only %d: %v", i, n, err)
			}
			break
		}
	}
	if !errors.Is(err, sandpit.ErrExhausted) || errors.Is(err, sandpit.ErrQuota) || b.all >= maxOfAll {
		t.Errorf("%d of all: %v", b.all, err)
	}
}

// The next server has what the store has, with the same tokens. What the store could not be told is
// undone, or tried again.
func TestStored(t *testing.T) {
	b, k := book("secret")
	add := func() (Preview, string) {
		t.Helper()
		p, token, err := b.Add(t.Context(), Preview{Sandbox: "sb", Port: 80, Namespace: "a", ExpiresAt: time.Now().Add(time.Hour)})
		if err != nil {
			t.Fatal(err)
		}
		return p, token
	}
	one, token := add()
	next := New([]byte("secret"), k, slices.Collect(maps.Values(k.all)))
	if got, ok := next.Verify(token, "sb", 80); !ok || got != one || next.all != 1 {
		t.Errorf("the next server has %+v", got)
	}
	if _, ok := New([]byte("another"), k, []Preview{one}).Verify(token, "sb", 80); ok {
		t.Error("it is taken with another secret")
	}
	k.broken = true
	if _, _, err := b.Add(t.Context(), Preview{Sandbox: "sb", ExpiresAt: one.ExpiresAt}); !errors.Is(err, sandpit.ErrUnavailable) || b.all != 1 {
		t.Errorf("adding: %v, %d are there", err, b.all)
	}
	revoke := func() error {
		p, err := b.Revoke("sb", one.ID)
		if err != nil {
			return err
		}
		return b.Save(t.Context(), p)
	}
	if err := revoke(); !errors.Is(err, sandpit.ErrUnavailable) {
		t.Errorf("revoking: %v", err)
	}
	if n, err := b.Settle(t.Context()); n != 0 || !errors.Is(err, sandpit.ErrUnavailable) {
		t.Errorf("settling: %d, %v", n, err)
	}
	if err := revoke(); !errors.Is(err, sandpit.ErrUnavailable) {
		t.Errorf("revoking again: %v", err)
	}
	if _, ok := b.Verify(token, "sb", 80); ok || len(b.List("sb")) != 0 {
		t.Error("it is there after its end")
	}
	k.broken = false
	if n, err := b.Settle(t.Context()); n != 1 || err != nil || len(k.all) != 0 || b.all != 0 {
		t.Errorf("settling: %d, %v, stored are %v", n, err, k.all)
	}
	if err := revoke(); !errors.Is(err, sandpit.ErrNotFound) {
		t.Errorf("revoking at last: %v", err)
	}
	if n, err := b.Settle(t.Context()); n != 0 || err != nil {
		t.Errorf("settling: %d, %v", n, err)
	}
}
