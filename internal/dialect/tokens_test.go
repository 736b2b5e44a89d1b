package dialect_test

import (
	"bytes"
	"context"
	"errors"
	"testing"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/dialect"
	"github.com/sandpit-dev/sandpit/internal/gate"
)

// holder knows the keys k1, which is an administrator's, and k2.
func holder(_ context.Context, key string) (gate.Caller, error) {
	if key != "k1" && key != "k2" {
		return gate.Caller{}, sandpit.ErrNotFound
	}
	return gate.Caller{Name: "ann", Key: key, Namespace: "n", Admin: key == "k1"}, nil
}

var secret = bytes.Repeat([]byte{7}, 32)

// A token is of one dialect, key, sandbox and server.
func TestTokens(t *testing.T) {
	tokens := dialect.NewTokens("toy", secret, holder)
	token, who, err := tokens.Of(t.Context(), "k1", "box")
	if err != nil || who != (gate.Caller{Name: "ann", Key: "k1", Namespace: "n"}) {
		t.Fatalf("%+v %v", who, err)
	}
	sandbox, by, err := tokens.Verify(t.Context(), token)
	if sandbox != "box" || by != who || err != nil {
		t.Errorf("%s %+v %v", sandbox, by, err)
	}
	for name, other := range map[string]*dialect.Tokens{
		"another dialect": dialect.NewTokens("top", secret, holder),
		"another server":  dialect.NewTokens("toy", bytes.Repeat([]byte{8}, 32), holder),
		"a revoked key":   dialect.NewTokens("toy", secret, func(context.Context, string) (gate.Caller, error) { return gate.Caller{}, sandpit.ErrForbidden }),
	} {
		if sandbox, by, err := other.Verify(t.Context(), token); !errors.Is(err, dialect.ErrTokenEnded) || sandbox != "" || by != (gate.Caller{}) {
			t.Errorf("%s: %s %+v %v", name, sandbox, by, err)
		}
	}
	for _, key := range []string{"", "k3"} {
		if token, _, err := tokens.Of(t.Context(), key, "box"); token != "" || !errors.Is(err, dialect.ErrTokenEnded) {
			t.Errorf("of %q: %s %v", key, token, err)
		}
	}
}

// Nothing but the token of a key and sandbox is valid.
func FuzzTokens(f *testing.F) {
	tokens := dialect.NewTokens("toy", secret, holder)
	token, _, err := tokens.Of(f.Context(), "k1", "box")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(token)
	f.Add("dt___")
	f.Add("dt_k2_box_" + token[len("dt_k1_box_"):])
	f.Fuzz(func(t *testing.T, text string) {
		sandbox, who, err := tokens.Verify(t.Context(), text)
		if err != nil {
			if !errors.Is(err, dialect.ErrTokenEnded) {
				t.Error(err)
			}
			return
		}
		if again, _, err := tokens.Of(t.Context(), who.Key, sandbox); again != text || err != nil {
			t.Errorf("%q is valid, and that of its key %s and sandbox %s is %q, %v", text, who.Key, sandbox, again, err)
		}
	})
}
