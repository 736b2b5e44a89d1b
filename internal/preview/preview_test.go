package preview

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
)

// A token is of use for its sandbox and port, until its preview ends.
func TestTokens(t *testing.T) {
	b := New()
	soon := time.Now().Add(time.Hour)
	p, token, err := b.Add(Preview{Sandbox: "sb1", Port: 80, Namespace: "a", Key: "k", ExpiresAt: soon})
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
	_, foreign, _ := New().Add(p)
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
	b.Remove(p.Sandbox, p.ID)
	b.Remove(p.Sandbox, p.ID)
	if _, ok := b.Verify(token, "sb1", 80); ok || len(b.List("sb1")) != 0 {
		t.Error("it is there after its end")
	}
	_, token, _ = b.Add(Preview{Sandbox: "sb1", Port: 80, Namespace: "a", Key: "k", ExpiresAt: soon})
	_, other, _ := b.Add(Preview{Sandbox: "sb1", Port: 80, Namespace: "a", Key: "l", ExpiresAt: soon})
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
	_, late, _ := b.Add(Preview{Sandbox: "sb1", Port: 80, Namespace: "a", ExpiresAt: time.Now()})
	if _, ok := b.Verify(late, "sb1", 80); ok {
		t.Error("it is taken although its time is over")
	}
}

// Previews are bounded, and those that have ended make room.
func TestBound(t *testing.T) {
	b := New()
	add := func(namespace string, until time.Time) error {
		_, _, err := b.Add(Preview{Sandbox: "sb", Port: 1, Namespace: namespace, ExpiresAt: until})
		return err
	}
	now, soon := time.Now(), time.Now().Add(time.Hour)
	for range maxOfNamespace {
		if err := add("a", now); err != nil {
			t.Fatal(err)
		}
	}
	for i := range maxOfAll {
		if err := add(fmt.Sprintf("n%d", i/maxOfNamespace), soon); err != nil {
			t.Fatal(err)
		}
	}
	if err := add("n0", soon); !errors.Is(err, sandpit.ErrQuota) {
		t.Errorf("of a namespace: %v", err)
	}
	if err := add("a", soon); !errors.Is(err, sandpit.ErrExhausted) || errors.Is(err, sandpit.ErrQuota) {
		t.Errorf("of all: %v", err)
	}
}
