package api

import (
	"context"
	"errors"
	"net/http"

	"github.com/sandpit-dev/sandpit"
	v1 "github.com/sandpit-dev/sandpit/internal/api/v1"
	"github.com/sandpit-dev/sandpit/internal/errcode"
	"github.com/sandpit-dev/sandpit/internal/gate"
)

func keyRoutes() []Route {
	const tag = "Keys"
	return []Route{
		{Method: http.MethodPost, Path: "/v1/keys", ID: "createKey", ShowsSecret: true, Tag: tag, Summary: "Create a key", Text: "The response contains the secret, which is not shown again.", In: v1.NewKey{}, Status: http.StatusCreated, Out: v1.Key{}, Admin: true, Guarded: true, Fails: []string{errcode.QuotaExceeded, errcode.NotFound}, handle: fromJSON(createKey)},
		{Method: http.MethodGet, Path: "/v1/keys", ID: "listKeys", Tag: tag, Summary: "List keys", Query: pageParams(), Status: http.StatusOK, Out: v1.KeyList{}, Admin: true, handle: listOf(listKeys, keyPosition, func(part []v1.Key, next string) v1.KeyList { return v1.KeyList{Keys: part, Next: next} })},
		{Method: http.MethodGet, Path: "/v1/keys/{id}/policy", ID: "getKeyPolicy", Tag: tag, Summary: "Get the policy of a key", Status: http.StatusOK, Out: v1.NamedPolicy{}, Admin: true, handle: asJSON(getKeyPolicy)},
		{Method: http.MethodDelete, Path: "/v1/keys/{id}", ID: "revokeKey", Tag: tag, Summary: "Revoke a key", Text: "Requests, streams, sockets and tunnels that use the key are closed. Sandboxes and background processes stay.", Status: http.StatusNoContent, Admin: true, Guarded: true, Vital: true, handle: only(revokeKey)},
	}
}

// Keys manages the keys of callers.
type Keys interface {
	// In reports whether a text contains something in the form of a key, valid or not.
	In(text string) bool

	// Holder returns the owner of a key by its public prefix, or an error if the key has ended.
	Holder(ctx context.Context, id string) (gate.Caller, error)

	CreateKey(ctx context.Context, by gate.Caller, k v1.NewKey) (v1.Key, error)
	ListKeys(ctx context.Context) ([]v1.Key, error)
	RevokeKey(ctx context.Context, id string) error
}

func createKey(c *call, in *v1.NewKey) (v1.Key, error) {
	key, err := c.api.opts.Keys.CreateKey(c.Ctx, c.Caller, *in)
	if err == nil {
		c.Detail += "; key " + key.ID // for the audit
	}
	return key, err
}

func listKeys(c *call) ([]v1.Key, error) { return c.api.opts.Keys.ListKeys(c.Ctx) }

func keyPosition(k v1.Key) string { return byTime(k.CreatedAt, k.ID) }

func getKeyPolicy(c *call) (v1.NamedPolicy, error) {
	return c.api.opts.Policies.KeyPolicy(c.Ctx, c.R.PathValue("id"))
}

func revokeKey(c *call) error {
	id := c.R.PathValue("id")
	err := c.api.opts.Keys.RevokeKey(c.Ctx, id)
	if errors.Is(err, sandpit.ErrNotFound) {
		return c.Untouched(err)
	}
	c.api.previews.RemoveKey(id)
	c.api.gate.Revoke(id, c.Call) // the key is refused even if that can't be stored
	return err
}
