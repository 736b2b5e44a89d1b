package engine

import (
	"context"
	"iter"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/fault"
	"github.com/sandpit-dev/sandpit/internal/policy"
)

// Tenant is the engine as one caller sees it: limited to a namespace and a policy. It
// implements sandpit.Client.
type Tenant struct {
	engine    *Engine
	namespace string
	nested    string // the nested namespace, sandpit.AllNamespaces or ""
	policy    policy.Policy
	locked    error         // why it has no policy; nil: it has one
	wait      time.Duration // the longest that creates wait for capacity; 0: that of Capacity
}

var _ sandpit.Client = (*Tenant)(nil)

// As returns the engine as a caller with that namespace and policy sees it. It is cheap:
// call it again after a change of the policy.
func (e *Engine) As(namespace string, p policy.Policy) *Tenant {
	return &Tenant{engine: e, namespace: namespace, policy: p}
}

// WithoutPolicy returns the tenant as a caller whose policy is gone, for the reason why. It may
// use and remove its sandboxes. Creating, changing and extending them fails with an error that
// matches sandpit.ErrForbidden.
func (t *Tenant) WithoutPolicy(why error) *Tenant {
	next := *t
	next.locked = why
	return &next
}

// In returns the tenant as it sees a namespace nested in its own, or with sandpit.AllNamespaces its
// own and all nested ones. A nested namespace has names of its own, and else nothing: it needs not be
// created, and its sandboxes count as the tenant's. "" is the tenant's own, as before In.
func (t *Tenant) In(nested string) *Tenant {
	next := *t
	next.nested = nested
	return &next
}

// Waiting returns the tenant with creates that wait for capacity no longer than most, for clients that
// wait no longer either.
func (t *Tenant) Waiting(most time.Duration) *Tenant {
	next := *t
	next.wait = most
	return &next
}

// sees reports whether lists and events of the tenant have the sandboxes of a nested namespace.
func (t *Tenant) sees(nested string) bool {
	return t.nested == nested || t.nested == sandpit.AllNamespaces
}

// Create makes a sandbox. See sandpit.Client.
func (t *Tenant) Create(ctx context.Context, spec sandpit.Spec) (sandpit.Sandbox, error) {
	s, err := t.engine.create(ctx, t, spec, nil)
	if err != nil {
		return nil, err
	}
	return view{s, t}, nil
}

// Get finds a sandbox. See sandpit.Client.
func (t *Tenant) Get(_ context.Context, idOrName string) (sandpit.Sandbox, error) {
	sb, err := t.Box(idOrName)
	if err != nil {
		return nil, err
	}
	return sb, nil
}

// Box is Get for callers that need a Box.
func (t *Tenant) Box(idOrName string) (Box, error) {
	s, err := t.engine.find(t, idOrName)
	if err != nil {
		return nil, err
	}
	return view{s, t}, nil
}

// AllowSaving returns an error of sandpit.ErrForbidden if the policy lets the tenant save no images.
func (t *Tenant) AllowSaving() error {
	if t.locked != nil {
		return fault.Errorf(sandpit.ErrForbidden, "saving images: %w", t.locked)
	}
	_, err := t.policy.AllowSaving()
	return err
}

// BoxByID is Box for an ID. A name is not found.
func (t *Tenant) BoxByID(id string) (Box, error) { return t.only(id, (*Sandbox).ID) }

// BoxByName is Box for a name. An ID is not found, unless it is the name.
func (t *Tenant) BoxByName(name string) (Box, error) { return t.only(name, (*Sandbox).Name) }

func (t *Tenant) only(text string, of func(*Sandbox) string) (Box, error) {
	s, err := t.engine.find(t, text)
	if err == nil && of(s) != text {
		err = notFound(text)
	}
	if err != nil {
		return nil, err
	}
	return view{s, t}, nil
}

// List returns a page of the sandboxes. See sandpit.Client.
func (t *Tenant) List(_ context.Context, q sandpit.ListQuery) (sandpit.Page, error) {
	return t.engine.list(t, q)
}

// Remove destroys a sandbox. See sandpit.Client.
func (t *Tenant) Remove(ctx context.Context, idOrName string) error {
	s, err := t.engine.find(t, idOrName)
	if err != nil {
		return err
	}
	return s.Remove(ctx)
}

// Events returns the events of the namespace. See sandpit.Watcher.
func (t *Tenant) Events(ctx context.Context, q sandpit.EventQuery) iter.Seq2[sandpit.Event, error] {
	return t.engine.events.listen(ctx, t, q)
}

// Close does nothing, because other tenants use the engine.
func (t *Tenant) Close() error { return nil }

// view is a sandbox as a tenant sees it: the tenant's policy bounds its changes.
type view struct {
	*Sandbox
	tenant *Tenant
}

// Update changes the sandbox. See sandpit.Lifecycle.
func (v view) Update(ctx context.Context, c sandpit.Change) error {
	if why := v.tenant.locked; why != nil {
		return fault.Errorf(sandpit.ErrForbidden, "changing sandbox %q: %w", v.Name(), why)
	}
	return v.update(ctx, c, v.tenant.policy)
}

// SetEgress changes what the sandbox may reach. See sandpit.Egresser.
func (v view) SetEgress(ctx context.Context, e sandpit.Egress) error {
	if why := v.tenant.locked; why != nil {
		return fault.Errorf(sandpit.ErrForbidden, "changing the egress of sandbox %q: %w", v.Name(), why)
	}
	return v.setEgress(ctx, replacing(e), v.tenant.policy)
}

// ChangeEgress changes a part of what the sandbox may reach. See sandpit.Egresser.
func (v view) ChangeEgress(ctx context.Context, c sandpit.EgressChange) error {
	if why := v.tenant.locked; why != nil {
		return fault.Errorf(sandpit.ErrForbidden, "changing the egress of sandbox %q: %w", v.Name(), why)
	}
	return v.setEgress(ctx, applying(c), v.tenant.policy)
}

// SetLifetime changes when the sandbox expires. See sandpit.Lifecycle.
func (v view) SetLifetime(ctx context.Context, life sandpit.Lifetime) error {
	if why := v.tenant.locked; why != nil {
		return fault.Errorf(sandpit.ErrForbidden, "changing the lifetime of sandbox %s: %w", v.Name(), why)
	}
	return v.setLifetime(ctx, life, v.tenant.policy)
}

// Commit saves the changed files as an image. See sandpit.Committer.
func (v view) Commit(ctx context.Context, c sandpit.Commit) (sandpit.SavedImage, error) {
	if why := v.tenant.locked; why != nil {
		return sandpit.SavedImage{}, fault.Errorf(sandpit.ErrForbidden, "saving sandbox %s: %w", v.Name(), why)
	}
	return v.commit(ctx, c, v.tenant.policy)
}

// Restart starts the sandbox. The tenant's present policy decides about one that never ran. See
// sandpit.Lifecycle.
func (v view) Restart(ctx context.Context) error { return v.restart(ctx, v.tenant) }
