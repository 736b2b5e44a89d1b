package server

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/api"
	v1 "github.com/sandpit-dev/sandpit/internal/api/v1"
	"github.com/sandpit-dev/sandpit/internal/engine"
	"github.com/sandpit-dev/sandpit/internal/fault"
	"github.com/sandpit-dev/sandpit/internal/gate"
	"github.com/sandpit-dev/sandpit/internal/policy"
	"github.com/sandpit-dev/sandpit/internal/policy/file"
	"github.com/sandpit-dev/sandpit/internal/secret"
	"github.com/sandpit-dev/sandpit/internal/state"
)

// foundSecrets are the secrets as the engine uses them.
type foundSecrets struct {
	store      *state.Store
	configured map[string]secret.Secret // of the server, by name; they never change
	services   secret.Services
	renewer    *renewer
}

// FindSecret is engine.Secrets.FindSecret.
func (f foundSecrets) FindSecret(ctx context.Context, namespace string, use sandpit.Secret) (engine.FoundSecret, error) {
	var stored secret.Secret
	var err error
	if use.Value != "" {
		stored, err = f.own(namespace, use)
	} else {
		stored, err = f.find(ctx, namespace, use.Name)
	}
	if err != nil {
		return engine.FoundSecret{}, err
	}
	r, err := stored.Resolve(use)
	return engine.FoundSecret{
		Given: r.Given, Sign: r.Signs(),
		Variables: r.Variables, Hosts: r.Rules(), Prefix: r.Prefix, Query: r.Query, Body: r.Body,
		Value: r.Value, Shared: stored.Namespace == sharedSecrets, Renewable: stored.Login != nil && stored.Login.Renewable && !stored.Login.Over,
	}, err
}

// own returns a sandbox's own secret. A service that has its name says what the use does not.
func (f foundSecrets) own(namespace string, use sandpit.Secret) (secret.Secret, error) {
	service, _ := f.services.Find(use.Name)
	x := secret.Secret{Namespace: namespace, Name: use.Name, Binding: service.Binding(), Value: use.Value}
	if len(use.Hosts) > 0 {
		x.Hosts = use.Hosts
	}
	return x, x.Check()
}

// find returns the secret that a name means in a namespace.
func (f foundSecrets) find(ctx context.Context, namespace, name string) (secret.Secret, error) {
	stored, err := f.store.Secret(ctx, namespace, name)
	if errors.Is(err, sandpit.ErrNotFound) {
		if stored, ok := f.configured[name]; ok {
			return stored, nil
		}
		return f.store.Secret(ctx, sharedSecrets, name)
	}
	return stored, err
}

// RenewSecret is engine.Secrets.RenewSecret.
func (f foundSecrets) RenewSecret(ctx context.Context, namespace, name string) error {
	stored, err := f.find(ctx, namespace, name)
	if err != nil {
		return err
	}
	return f.renewer.refused(ctx, namespace, stored)
}

// sharedSecrets is the namespace of the server's own secrets. No key has it.
const sharedSecrets = ""

// sourcePatience bounds the time that a command may take to write a value.
const sourcePatience = 10 * time.Second

// readSecrets reads the values of the secrets in the settings.
func readSecrets(ctx context.Context, all []ConfiguredSecret, services secret.Services) (map[string]secret.Secret, error) {
	found, now := map[string]secret.Secret{}, time.Now().UTC()
	for _, c := range all {
		failed := func(err error) error { return fmt.Errorf("reading the secret %q of the settings: %w", c.Name, err) }
		binding, err := bindingOf(services, c.Name, v1.NewSecret{Service: c.Service, Hosts: c.Hosts, Variables: c.Variables})
		if err != nil {
			return nil, failed(err)
		}
		once, cancel := context.WithTimeout(ctx, sourcePatience)
		value, err := secret.Read(once, c.From, os.Environ(), os.Stderr)
		cancel()
		if err != nil {
			return nil, failed(err)
		}
		x := secret.Secret{Namespace: sharedSecrets, Name: c.Name, Binding: binding, Value: value, CreatedAt: now, RotatedAt: now}
		if err := x.Check(); err != nil {
			return nil, failed(err)
		}
		found[c.Name] = x
	}
	return found, nil
}

// secrets are the secrets as the API uses them.
type secrets struct {
	foundSecrets
	engine   *engine.Engine
	policies *file.Live
}

// changeable refuses to change a secret of the settings.
func (s secrets) changeable(shared bool, name string) error {
	if _, ok := s.configured[name]; ok && shared {
		return sandpit.WithHint(fault.Errorf(sandpit.ErrState, "the secret %q is in the settings of the server", name), "change it there, and restart the server")
	}
	return nil
}

// storable refuses the value of a secret that the caller could never use.
func (s secrets) storable(c gate.Caller, shared bool, name string) error {
	if shared || c.Key == "" {
		return nil
	}
	p, err := s.policies.Policy(c.Policy)
	if err != nil {
		return err
	}
	return p.AllowSecret(name)
}

func (s secrets) SetSecret(ctx context.Context, c gate.Caller, shared bool, name string, in v1.NewSecret) (v1.Secret, error) {
	failed := func(err error) (v1.Secret, error) { return v1.Secret{}, fmt.Errorf("storing a secret: %w", err) }
	if err := s.changeable(shared, name); err != nil {
		return failed(err)
	}
	binding, err := bindingOf(s.services, name, in)
	if err != nil {
		return failed(err)
	}
	now := time.Now().UTC()
	x := secret.Secret{Namespace: namespaceOf(c, shared), Name: name, Binding: binding, Value: in.Value, CreatedAt: now, RotatedAt: now}
	if l := in.Login; l != nil {
		if service, _ := s.services.Find(binding.Service); service.OAuth == nil {
			return failed(noLogin(binding.Service))
		}
		x.Login = &secret.Login{Renewable: l.RefreshToken != ""}
		if l.ExpiresAt != nil {
			x.Login.ExpiresAt = l.ExpiresAt.UTC()
		}
		x.Grant = &secret.Grant{RefreshToken: l.RefreshToken, ClientID: l.ClientID, ClientSecret: l.ClientSecret}
	}
	if err := x.Check(); err != nil {
		return failed(err)
	}
	if err := s.storable(c, shared, name); err != nil {
		return failed(err)
	}
	stored, err := s.store.PutSecret(ctx, x)
	if err != nil {
		return v1.Secret{}, err
	}
	s.renewer.stored(stored)
	return shownSecret(stored), s.engine.SecretChanged(context.WithoutCancel(ctx), x.Namespace, name)
}

// bindingOf completes what a request says by the service that it names, or that has the name of the secret.
func bindingOf(services secret.Services, name string, in v1.NewSecret) (secret.Binding, error) {
	b := secret.Binding{Service: in.Service}
	if b.Service == "" && len(in.Hosts)+len(in.Variables) == 0 {
		b.Service = name
	}
	service, known := services.Find(b.Service)
	switch {
	case known:
		b = service.Binding()
	case in.Service != "":
		var names []string
		for _, x := range services {
			names = append(names, x.Name)
		}
		return b, sandpit.WithHint(fault.Invalidf("there is no service %q", fault.Clip(in.Service)), "use one of: "+strings.Join(names, ", ")+"; or name hosts")
	default:
		b.Service = ""
	}
	if len(in.Hosts) > 0 {
		b.Hosts = in.Hosts
	}
	if len(in.Variables) > 0 {
		b.Variables = in.Variables
	}
	if in.Query != nil {
		b.Query = *in.Query
	}
	b.Body = in.Body
	return b, nil
}

// boxOf returns a sandbox of the caller, also of one without a policy.
func (s secrets) boxOf(c gate.Caller, sandbox string) (engine.Box, error) {
	return s.engine.As(c.Namespace, policy.ServerDefault()).In(c.Nested).Box(sandbox)
}

// ownSecrets describes the own secrets of a sandbox.
func (s secrets) ownSecrets(ctx context.Context, c gate.Caller, sb engine.Box) ([]v1.Secret, error) {
	info, err := sb.Info(ctx)
	if err != nil {
		return nil, err
	}
	uses, since := sb.OwnSecrets()
	all := make([]v1.Secret, len(uses))
	for i, use := range uses {
		x, _ := s.own(c.Namespace, use) // it was checked with its value
		r, _ := x.Resolve(use)
		all[i] = v1.Secret{
			Name: use.Name, Scope: "sandbox", Service: r.Service, Hosts: r.Hosts, Variables: r.Variables, Query: r.Query, Body: r.Body,
			CreatedAt: info.CreatedAt, RotatedAt: since[i],
		}
	}
	return all, nil
}

func (s secrets) RotateSecret(ctx context.Context, c gate.Caller, in api.SecretScope, name, value string) (v1.Secret, error) {
	if err := secret.CheckValue(value); err != nil {
		return v1.Secret{}, fmt.Errorf("rotating the secret %q: %w", fault.Clip(name), err)
	}
	if in.Sandbox != "" {
		sb, err := s.boxOf(c, in.Sandbox)
		if err == nil {
			err = sb.SetOwnSecret(context.WithoutCancel(ctx), name, value)
		}
		var all []v1.Secret
		if err == nil {
			all, err = s.ownSecrets(ctx, c, sb)
		}
		if err != nil {
			return v1.Secret{}, err
		}
		i := slices.IndexFunc(all, func(x v1.Secret) bool { return x.Name == name })
		if i < 0 {
			return v1.Secret{}, fault.NotFoundf("the secret %q was removed meanwhile", name)
		}
		return all[i], nil
	}
	shared := in.Server
	err := s.changeable(shared, name)
	if err == nil {
		err = s.storable(c, shared, name)
	}
	if err != nil {
		return v1.Secret{}, fmt.Errorf("rotating a secret: %w", err)
	}
	namespace := namespaceOf(c, shared)
	stored, err := s.store.RotateSecret(ctx, namespace, name, value, time.Now())
	if err != nil {
		return v1.Secret{}, err
	}
	return shownSecret(stored), s.engine.SecretChanged(context.WithoutCancel(ctx), namespace, name)
}

func (s secrets) DeleteSecret(ctx context.Context, c gate.Caller, in api.SecretScope, name string) error {
	if in.Sandbox != "" {
		sb, err := s.boxOf(c, in.Sandbox)
		if err != nil {
			return err
		}
		return sb.SetOwnSecret(context.WithoutCancel(ctx), name, "")
	}
	shared := in.Server
	if err := s.changeable(shared, name); err != nil {
		return fmt.Errorf("removing a secret: %w", err)
	}
	namespace := namespaceOf(c, shared)
	if err := s.store.DeleteSecret(ctx, namespace, name); errors.Is(err, sandpit.ErrNotFound) {
		if _, found := s.find(ctx, namespace, name); found == nil && !shared {
			return sandpit.WithHint(fault.NotFoundf("%q is a secret of the server", fault.Clip(name)), "an administrator removes it with --server")
		}
		return sandpit.WithHint(err, "'sandpit secret ls' lists them")
	} else if err != nil {
		return err
	}
	return s.engine.SecretChanged(context.WithoutCancel(ctx), namespace, name)
}

func (s secrets) ListSecrets(ctx context.Context, c gate.Caller, sandbox string) ([]v1.Secret, error) {
	if sandbox != "" {
		sb, err := s.boxOf(c, sandbox)
		if err != nil {
			return nil, err
		}
		return s.ownSecrets(ctx, c, sb)
	}
	var all []v1.Secret
	for _, namespace := range []string{c.Namespace, sharedSecrets} {
		list, err := s.store.SecretsOf(ctx, namespace)
		if err != nil {
			return nil, err
		}
		for _, x := range list {
			if _, hidden := s.configured[x.Name]; !hidden || namespace != sharedSecrets {
				all = append(all, shownSecret(x))
			}
		}
	}
	for _, x := range s.configured {
		all = append(all, shownSecret(x))
	}
	return all, nil
}

// Services is api.Secrets.Services.
func (s secrets) Services() []v1.Service {
	all := make([]v1.Service, len(s.services))
	for i, x := range s.services {
		all[i] = v1.Service{Name: x.Name, Variables: x.Variables, Hosts: x.Hosts, Header: x.Header}
		if x.OAuth != nil {
			o := v1.OAuth(*x.OAuth)
			all[i].OAuth = &o
		}
	}
	return all
}

func namespaceOf(c gate.Caller, shared bool) string {
	if shared {
		return sharedSecrets
	}
	return c.Namespace
}

func shownSecret(x secret.Secret) v1.Secret {
	scope := "namespace"
	if x.Namespace == sharedSecrets {
		scope = "server"
	}
	var login *v1.LoginState
	if l := x.Login; l != nil {
		login = &v1.LoginState{Renewable: l.Renewable, Failed: l.Failed, Over: l.Over}
		if !l.ExpiresAt.IsZero() {
			login.ExpiresAt = &l.ExpiresAt
		}
	}
	return v1.Secret{
		Name: x.Name, Scope: scope, Service: x.Service, Hosts: x.Hosts, Variables: x.Variables, Query: x.Query, Body: x.Body,
		CreatedAt: x.CreatedAt, RotatedAt: x.RotatedAt, Login: login,
	}
}
