package api

import (
	"context"
	"net/http"

	v1 "github.com/sandpit-dev/sandpit/internal/api/v1"
	"github.com/sandpit-dev/sandpit/internal/gate"
)

func policyRoutes() []Route {
	const tag = "Server"
	return []Route{
		{Method: http.MethodGet, Path: "/v1/policy", ID: "getPolicy", Tag: tag, Summary: "Get the caller's policy", Status: http.StatusOK, Out: v1.NamedPolicy{}, handle: asJSON(getPolicy)},
	}
}

// Policies returns policies.
type Policies interface {
	// Policy returns the policy of a caller.
	Policy(ctx context.Context, c gate.Caller) (v1.NamedPolicy, error)

	// KeyPolicy returns the policy of the key with a public prefix, or ErrNotFound.
	KeyPolicy(ctx context.Context, id string) (v1.NamedPolicy, error)
}

func getPolicy(c *call) (v1.NamedPolicy, error) {
	return c.api.opts.Policies.Policy(c.Ctx, c.Caller)
}
