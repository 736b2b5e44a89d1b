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

func secretRoutes() []Route {
	const tag = "Secrets"
	const path = "/v1/secrets/{secret}"
	const live = "Sandboxes that use the secret are affected at once, but not the environment of those that have its value."
	return []Route{
		{Method: http.MethodPut, Path: path, ID: "setSecret", Tag: tag, Summary: "Store or replace a secret", Text: "No response contains the value. " + live, Query: []Param{scopeParam()}, In: v1.NewSecret{}, Status: http.StatusOK, Out: v1.Secret{}, Guarded: true, Fails: []string{errcode.QuotaExceeded, errcode.State, errcode.Unsupported}, handle: fromJSON(setSecret)},
		{Method: http.MethodPut, Path: path + "/value", ID: "rotateSecret", Tag: tag, Summary: "Replace the value of a secret", Text: live, Query: []Param{scopeParam(), sandboxParam()}, In: v1.SecretValue{}, Status: http.StatusOK, Out: v1.Secret{}, Guarded: true, Fails: []string{errcode.State}, handle: fromJSON(rotateSecret)},
		{Method: http.MethodGet, Path: "/v1/secrets", ID: "listSecrets", Tag: tag, Summary: "List secrets", Text: "Those of the caller's namespace, and those of the server; or those that are a sandbox's own.", Query: pageParams(sandboxParam(), Param{Name: "service", Type: "string", Doc: "Only those of this service"}), Status: http.StatusOK, Out: v1.SecretList{}, Fails: []string{errcode.NotFound}, handle: listOf(listSecrets, secretPosition, func(part []v1.Secret, next string) v1.SecretList { return v1.SecretList{Secrets: part, Next: next} })},
		{Method: http.MethodDelete, Path: path, ID: "removeSecret", Tag: tag, Summary: "Remove a secret", Text: live, Query: []Param{scopeParam(), sandboxParam()}, Status: http.StatusNoContent, Guarded: true, Vital: true, Fails: []string{errcode.State}, handle: only(removeSecret)},
		{Method: http.MethodGet, Path: "/v1/services", ID: "listServices", Tag: tag, Summary: "List the services whose hosts and variables are known", Query: pageParams(), Status: http.StatusOK, Out: v1.ServiceList{}, handle: listOf(listServices, servicePosition, func(part []v1.Service, next string) v1.ServiceList { return v1.ServiceList{Services: part, Next: next} })},
	}
}

// Scopes of secrets.
const (
	scopeNamespace = "namespace"
	scopeServer    = "server"
)

func scopeParam() Param {
	return Param{Name: "scope", Type: "string", Enum: []string{scopeNamespace, scopeServer}, Doc: "Whose secret it is: the caller's namespace (default), or the server, whose secrets all namespaces may use and only administrators change"}
}

func sandboxParam() Param {
	return Param{Name: "sandbox", Type: "string", Doc: "ID or name of a sandbox whose own secret is meant, which it was created with"}
}

// SecretScope says whose secret is meant; zero: the namespace's of the caller.
type SecretScope struct {
	Server  bool
	Sandbox string // ID or name
}

// Secrets manages the secrets that sandboxes may use. shared means those of the server, which the API
// allows to administrators only.
type Secrets interface {
	SetSecret(ctx context.Context, c gate.Caller, shared bool, name string, s v1.NewSecret) (v1.Secret, error)
	RotateSecret(ctx context.Context, c gate.Caller, in SecretScope, name, value string) (v1.Secret, error)
	ListSecrets(ctx context.Context, c gate.Caller, sandbox string) ([]v1.Secret, error)
	DeleteSecret(ctx context.Context, c gate.Caller, in SecretScope, name string) error
	Services() []v1.Service
}

// scope returns whose secret the call is about, and refuses it if that is not the caller's to change.
func (c *call) scope() (in SecretScope, err error) {
	q := c.query()
	in = SecretScope{Server: q.text("scope") == scopeServer, Sandbox: q.text("sandbox")}
	switch {
	case q.err != nil:
		return in, q.err
	case in.Sandbox != "" && c.R.URL.Query().Has("scope"):
		return in, gate.Invalid("scope and sandbox can't be combined", "leave out the scope")
	case in.Server && !c.Caller.Admin:
		return in, sandpit.WithHint(&gate.Refusal{Code: errcode.Forbidden, Message: "secrets of the server are for administrators"}, "leave out the scope to use the namespace's own")
	}
	return in, nil
}

func setSecret(c *call, in *v1.NewSecret) (v1.Secret, error) {
	of, err := c.scope()
	if err != nil {
		return v1.Secret{}, c.Untouched(err)
	}
	return c.api.opts.Secrets.SetSecret(c.Ctx, c.Caller, of.Server, c.R.PathValue("secret"), *in)
}

func rotateSecret(c *call, in *v1.SecretValue) (v1.Secret, error) {
	of, err := c.scope()
	if err != nil {
		return v1.Secret{}, c.Untouched(err)
	}
	return c.api.opts.Secrets.RotateSecret(c.Ctx, c.Caller, of, c.R.PathValue("secret"), in.Value)
}

func listSecrets(c *call) ([]v1.Secret, error) {
	q := c.query()
	all, err := c.api.opts.Secrets.ListSecrets(c.Ctx, c.Caller, q.text("sandbox"))
	service := q.text("service")
	if err != nil || service == "" {
		return all, err
	}
	var of []v1.Secret
	for _, s := range all {
		if s.Service == service {
			of = append(of, s)
		}
	}
	return of, nil
}

func secretPosition(s v1.Secret) string { return s.Name + " " + s.Scope }

func removeSecret(c *call) error {
	of, err := c.scope()
	if err != nil {
		return c.Untouched(err)
	}
	err = c.api.opts.Secrets.DeleteSecret(c.Ctx, c.Caller, of, c.R.PathValue("secret"))
	if errors.Is(err, sandpit.ErrNotFound) {
		return c.Untouched(err)
	}
	return err
}

func listServices(c *call) ([]v1.Service, error) { return c.api.opts.Secrets.Services(), nil }

func servicePosition(s v1.Service) string { return s.Name }
