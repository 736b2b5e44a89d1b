package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/api"
	v1 "github.com/sandpit-dev/sandpit/internal/api/v1"
	"github.com/sandpit-dev/sandpit/internal/fault"
	"github.com/sandpit-dev/sandpit/internal/gate"
	"github.com/sandpit-dev/sandpit/internal/keys"
	"github.com/sandpit-dev/sandpit/internal/policy"
	"github.com/sandpit-dev/sandpit/internal/policy/file"
	"github.com/sandpit-dev/sandpit/internal/state"
)

func showPolicy(name string, p policy.Policy) (v1.NamedPolicy, error) {
	data, err := json.Marshal(file.Show(p))
	if err != nil {
		return v1.NamedPolicy{}, fmt.Errorf("showing policy %s: %w", name, err)
	}
	return v1.NamedPolicy{Name: name, Policy: data}, nil
}

// keyring is the server's keys as the API uses them.
type keyring struct {
	ring     *keys.Ring
	policies *file.Live
}

func (k keyring) Verify(_ context.Context, secret string) (gate.Caller, error) {
	key, err := k.ring.Verify(secret)
	if errors.Is(err, keys.ErrUnauthorized) {
		return gate.Caller{}, fault.Kind{Err: err, Kind: sandpit.ErrForbidden}
	}
	if err != nil {
		return gate.Caller{}, err
	}
	return callerOf(key), nil
}

func callerOf(key keys.Key) gate.Caller {
	return gate.Caller{Name: nameOf(key), Key: key.Prefix, Namespace: key.Namespace, Policy: key.Policy, Admin: key.Admin, Expires: key.ExpiresAt}
}

// Holder returns the owner of a key that has not ended.
func (k keyring) Holder(_ context.Context, id string) (gate.Caller, error) {
	key, err := k.ring.Valid(id)
	if err != nil {
		return gate.Caller{}, err
	}
	return callerOf(key), nil
}

func (keyring) In(text string) bool { return keys.In(text) }

func nameOf(k keys.Key) string {
	if k.Label != "" {
		return k.Label
	}
	return k.Prefix
}

func keyOf(k keys.Key) v1.Key {
	out := v1.Key{ID: k.Prefix, Name: k.Label, Namespace: k.Namespace, Policy: k.Policy, Admin: k.Admin, CreatedAt: k.CreatedAt}
	if !k.ExpiresAt.IsZero() {
		out.ExpiresAt = &k.ExpiresAt
	}
	if !k.RevokedAt.IsZero() {
		out.RevokedAt = &k.RevokedAt
	}
	return out
}

func (k keyring) CreateKey(ctx context.Context, _ gate.Caller, n v1.NewKey) (v1.Key, error) {
	want := keys.Key{Namespace: n.Namespace, Policy: n.Policy, Admin: n.Admin, Label: n.Name}
	if want.Policy == "" {
		want.Policy = defaultPolicy
	}
	if all := k.policies.Set().Names(); !slices.Contains(all, want.Policy) {
		return v1.Key{}, sandpit.WithHint(fault.Errorf(sandpit.ErrInvalid, "creating a key: unknown policy %.80q", want.Policy), "use one of: "+strings.Join(all, ", ")+"; or add it to the policy file (policy.yaml)")
	}
	if want.Namespace == "" {
		want.Namespace = "ns-" + newName()
	}
	if n.Expires < 0 || n.Expires > maxExpires {
		return v1.Key{}, sandpit.WithHint(fault.Errorf(sandpit.ErrInvalid, "creating a key: its expiry of %.10g seconds is out of range", n.Expires), "use at most 100 years, or 0 for never")
	}
	if n.Expires > 0 {
		want.ExpiresAt = time.Now().Add(time.Duration(n.Expires * float64(time.Second)))
	}
	format := keys.Format(n.Format)
	if format != keys.Plain && !slices.Contains(keys.Formats(), n.Format) {
		return v1.Key{}, sandpit.WithHint(fault.Errorf(sandpit.ErrInvalid, "creating a key: unknown format %.80q", n.Format), "use "+strings.Join(keys.Formats(), " or ")+", or omit it")
	}
	token, made, err := k.ring.Create(ctx, want)
	if err != nil {
		return v1.Key{}, err
	}
	out := keyOf(made)
	out.Secret = made.Token(token, format)
	return out, nil
}

// maxExpires is the longest expiry of a key, in seconds: a hundred years.
const maxExpires = 100 * 365 * 24 * 60 * 60

// defaultPolicy is the policy of keys that name none.
const defaultPolicy = "default"

func (k keyring) ListKeys(context.Context) ([]v1.Key, error) {
	list := k.ring.List()
	out := make([]v1.Key, len(list))
	for i, key := range list {
		out[i] = keyOf(key)
	}
	return out, nil
}

func (k keyring) RevokeKey(ctx context.Context, id string) error {
	_, err := k.ring.Revoke(ctx, id)
	return err
}

// repeats are requests that may be sent again, as the API uses them.
type repeats struct{ store *state.Store }

func (r repeats) Begin(ctx context.Context, q api.Repeatable) (*api.Earlier, error) {
	earlier, err := r.store.BeginRepeatable(ctx, state.Repeatable(q))
	if err != nil || earlier == nil {
		return nil, err
	}
	return new(api.Earlier(*earlier)), nil
}

func (r repeats) Finish(ctx context.Context, namespace, key, resource string, status int, response []byte) error {
	return r.store.FinishRepeatable(ctx, namespace, key, resource, status, response)
}

func (r repeats) Abandon(ctx context.Context, namespace, key string) error {
	return r.store.AbandonRepeatable(ctx, namespace, key)
}
