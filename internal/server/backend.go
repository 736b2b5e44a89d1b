package server

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/api"
	v1 "github.com/sandpit-dev/sandpit/internal/api/v1"
	"github.com/sandpit-dev/sandpit/internal/audit"
	"github.com/sandpit-dev/sandpit/internal/dialect"
	"github.com/sandpit-dev/sandpit/internal/driver"
	"github.com/sandpit-dev/sandpit/internal/engine"
	"github.com/sandpit-dev/sandpit/internal/fault"
	"github.com/sandpit-dev/sandpit/internal/feature"
	"github.com/sandpit-dev/sandpit/internal/gate"
	"github.com/sandpit-dev/sandpit/internal/image"
	"github.com/sandpit-dev/sandpit/internal/keys"
	"github.com/sandpit-dev/sandpit/internal/policy"
	"github.com/sandpit-dev/sandpit/internal/policy/file"
)

// localNamespace is the namespace of the server's own user, at its unix socket.
const localNamespace = image.LocalNamespace

// backend is the engine as the API serves it.
type backend struct {
	engine   *engine.Engine
	driver   driver.Driver
	images   *image.Store
	acquire  image.AcquireOptions // but for what a caller says
	egress   bool                 // sandboxes can have it, as far as this program goes
	policies *file.Live
	journal  *audit.Log
	runs
}

// policyOf returns the present policy of a caller. The server's own user may do what that
// user may do without a server.
func (b *backend) policyOf(c gate.Caller) (policy.Policy, error) {
	if c.Key == "" {
		return policy.Default(), nil
	}
	return b.policies.Policy(c.Policy)
}

// Client is api.Backend.Client.
func (b *backend) Client(c gate.Caller) sandpit.Client { return b.tenant(c) }

func (b *backend) tenant(c gate.Caller) *engine.Tenant {
	p, err := b.policyOf(c)
	if err != nil {
		return b.engine.As(c.Namespace, policy.ServerDefault()).In(c.Nested).WithoutPolicy(err)
	}
	return b.engine.As(c.Namespace, p).In(c.Nested)
}

// AllowPreview is api.Backend.AllowPreview, by the caller's present policy.
func (b *backend) AllowPreview(c gate.Caller, life time.Duration) (time.Duration, error) {
	p, err := b.policyOf(c)
	if err != nil {
		return 0, fault.Errorf(sandpit.ErrForbidden, "previews: %w", err)
	}
	return p.AllowPreview(life)
}

// onceDialect keeps the marks of sandboxes.
const onceDialect = "once"

// CreateMarked creates a sandbox that can be found again. See api.Backend.
func (b *backend) CreateMarked(ctx context.Context, c gate.Caller, spec sandpit.Spec, mark string) (sandpit.Sandbox, error) {
	return b.tenant(c).CreateFor(ctx, spec, onceDialect, json.RawMessage(strconv.Quote(mark)))
}

// Marked finds a sandbox by its mark. See api.Backend.
func (b *backend) Marked(c gate.Caller, mark string) (sandpit.Sandbox, error) {
	// Nothing is changed with it, also by callers without a policy.
	return b.engine.As(c.Namespace, policy.ServerDefault()).In(c.Nested).FindFor(onceDialect, json.RawMessage(strconv.Quote(mark)))
}

// RemoveSelected removes a sandbox if it is selected. See api.Backend.
func (b *backend) RemoveSelected(ctx context.Context, c gate.Caller, id string, q sandpit.ListQuery) (selected bool, err error) {
	// Callers without a policy may remove what they have.
	return b.engine.As(c.Namespace, policy.ServerDefault()).In(c.Nested).RemoveSelected(ctx, id, q)
}

func (b *backend) Capabilities(ctx context.Context) (v1.Capabilities, error) {
	caps := b.driver.Probe(ctx)
	out := v1.Capabilities{Driver: b.driver.Name(), Enforced: map[string]bool{}, Changeable: map[string]bool{}, Features: features}
	for _, f := range feature.All() {
		out.Enforced[string(f)] = caps.Features[f]
	}
	for _, f := range feature.Changeable() {
		out.Changeable[string(f)] = caps.Changeable[f]
	}
	for _, g := range caps.Gaps {
		out.Gaps = append(out.Gaps, v1.Gap(g))
	}
	for _, f := range [...]feature.Feature{feature.Egress, feature.Ping} {
		if b.egress {
			break
		}
		name := string(f)
		out.Features = slices.DeleteFunc(slices.Clone(out.Features), func(f string) bool { return f == name })
		out.Enforced[name] = false
		if caps.Features[f] { // else its gap is there
			out.Gaps = append(out.Gaps, v1.Gap{What: name, Why: "this program gives sandboxes no network", Fix: "use the program sandpit as the server"})
		}
	}
	return out, nil
}

// has is dialect.Server.Features.
func (b *backend) has(ctx context.Context) feature.Set {
	have := b.driver.Probe(ctx).Features
	if !b.egress {
		have = maps.Clone(have)
		delete(have, feature.Egress)
	}
	return have
}

// features are the parts of the API, for clients of more than one version.
var features = []string{"sandboxes", "processes", "terminals", "files", "ports", "egress", "ping", "previews", "logs", "events", "webhooks", "lifetimes", "pause", "stop", "keys", "audit", "images", "secrets"}

// Images lists the images that a caller's policy names, and all to administrators. Other
// callers are not told when an image was pulled, and whether others use it.
func (b *backend) Images(ctx context.Context, c gate.Caller) ([]v1.Image, error) {
	p, err := b.policyOf(c)
	if err != nil {
		return nil, err
	}
	list, err := b.images.List(ctx)
	if err != nil {
		return nil, err
	}
	var out []v1.Image
	if p.Shows("host") {
		out = append(out, v1.Image{Reference: "host"})
	}
	for _, s := range list {
		switch i := imageOf(s); {
		case s.Saved && s.Owner == c.Namespace:
			if s.Name != "" {
				i.Reference = sandpit.SavedImages + strings.TrimPrefix(s.FullName, sandpit.SavedImages+s.Owner+"/")
			}
			out = append(out, i)
		case c.Admin:
			if s.Saved {
				i.Reference = cmp.Or(s.FullName, s.Digest)
			}
			out = append(out, i)
		case s.Saved:
		case p.Shows(i.Reference):
			out = append(out, ownView(i, s))
		}
	}
	return out, nil
}

// saved is dialect.Server.Saved.
func (b *backend) saved(ctx context.Context, c gate.Caller) (map[string]dialect.SavedImage, error) {
	list, err := b.images.List(ctx)
	if err != nil {
		return nil, err
	}
	out := map[string]dialect.SavedImage{}
	for _, s := range list {
		if name, ok := strings.CutPrefix(s.FullName, sandpit.SavedImages+c.Namespace+"/"); ok && s.Saved && s.Owner == c.Namespace {
			out[name] = dialect.SavedImage{Digest: s.Digest, Named: s.Stored}
		}
	}
	return out, nil
}

// removeSaved is dialect.Server.RemoveSaved.
func (b *backend) removeSaved(ctx context.Context, c gate.Caller, name string) error {
	_, err := b.images.RemoveSaved(ctx, sandpit.SavedImages+name, c.Namespace)
	return err
}

// built is dialect.Server.Built.
func (b *backend) built(c gate.Caller, key string) (ref string, err error) {
	return b.images.SavedWith(c.Namespace, engine.BuildLabel, key)
}

// TagImage is dialect.Server.TagSaved, too.
func (b *backend) TagImage(ctx context.Context, c gate.Caller, name string, names []string) (digest string, err error) {
	p, err := b.policyOf(c)
	if err == nil {
		_, err = p.AllowSaving()
	}
	if err != nil {
		return "", fmt.Errorf("naming the saved image %q: %w", name, err)
	}
	return b.images.TagSaved(ctx, c.Namespace, name, names)
}

// ownView removes from the description of an image what tells about other callers.
func ownView(i v1.Image, s image.Summary) v1.Image {
	i.CreatedAt, i.InUse = s.Created, false
	return i
}

func imageOf(s image.Summary) v1.Image {
	name := s.Name
	if name == "" {
		name = s.Digest
	}
	return v1.Image{Reference: name, Digest: s.Digest, Size: s.Unpacked, CreatedAt: s.Stored, InUse: s.InUse}
}

func (b *backend) PullImage(ctx context.Context, c gate.Caller, name string, pull sandpit.PullPolicy) (v1.Image, error) {
	p, err := b.policyOf(c)
	if err == nil {
		err = p.AllowImage(name)
	}
	if err != nil {
		return v1.Image{}, err
	}
	if pull == "" {
		pull = sandpit.PullAlways
	}
	acquire := b.acquire
	acquire.Pull, acquire.PublicOnly, acquire.Owner = pull, !p.Vouches(name), c.Namespace
	s, err := b.engine.As(c.Namespace, p).Pull(ctx, name, acquire)
	if err != nil {
		return v1.Image{}, err
	}
	out := imageOf(s)
	out.Reference = name
	if !c.Admin {
		out = ownView(out, s)
	}
	return out, nil
}

func (b *backend) RemoveImage(ctx context.Context, c gate.Caller, name string) error {
	saved := strings.HasPrefix(name, sandpit.SavedImages)
	var err error
	switch {
	case saved && !(c.Admin && strings.Contains(name, "/")):
		_, err = b.images.RemoveSaved(ctx, name, c.Namespace)
	case c.Admin:
		_, err = b.images.Remove(ctx, name)
	case image.ValidDigest(name): // of a saved one that has lost its name
		_, err = b.images.RemoveSaved(ctx, name, c.Namespace)
	default:
		err = fault.Errorf(sandpit.ErrForbidden, "removing image %s: only administrators may do this", name)
	}
	return err
}

// Namespaces returns the namespaces that have sandboxes.
func (b *backend) Namespaces() map[string]int { return b.engine.Namespaces() }

// Stuck returns the number of stuck operations.
func (b *backend) Stuck() (n int, blocked bool) {
	n = b.engine.StuckCount() + b.runs.engine.StuckCount()
	if b.journal.Hangs() {
		n++
	}
	return n, b.engine.Blocked()
}

// statsWait bounds the wait for the metrics of one sandbox when those of all are requested.
// A sandbox without an answer is left out.
const statsWait = time.Second

// Stats counts sandboxes of all namespaces.
func (b *backend) Stats(ctx context.Context, limit int) (api.Stats, error) {
	all := b.engine.Sandboxes()
	pool := b.engine.PoolStats()
	stuck, _ := b.Stuck()
	stats := api.Stats{States: map[sandpit.State]int{}, Pool: map[string]int{"ready": pool.Ready, "held": pool.Held}, Waiting: b.engine.Waiting(), Stuck: stuck, Traffic: map[string]api.Traffic{}}
	for namespace, t := range b.engine.Traffic() {
		stats.Traffic[namespace] = api.Traffic(t)
	}
	for _, sb := range all {
		info, err := sb.Info(ctx)
		if err != nil {
			if errors.Is(err, sandpit.ErrClosed) || errors.Is(err, sandpit.ErrNotFound) {
				continue // it has just gone
			}
			return stats, err
		}
		stats.States[info.State]++
		if len(stats.Sandboxes) >= limit || info.State != sandpit.StateRunning {
			continue
		}
		once, cancel := context.WithTimeout(ctx, statsWait)
		m, err := sb.Metrics(once)
		cancel()
		if err != nil {
			continue
		}
		stats.Sandboxes = append(stats.Sandboxes, api.Usage{ID: info.ID, Namespace: sb.Namespace(), Limits: info.Limits, Metrics: m})
	}
	slices.SortFunc(stats.Sandboxes, func(x, y api.Usage) int { return strings.Compare(x.ID, y.ID) })
	return stats, nil
}

// policyShower shows policies.
type policyShower struct {
	*backend
	ring *keys.Ring
}

func (s policyShower) Policy(_ context.Context, c gate.Caller) (v1.NamedPolicy, error) {
	p, err := s.policyOf(c)
	if err != nil {
		return v1.NamedPolicy{}, err
	}
	name := c.Policy
	if c.Key == "" {
		name = localNamespace
	}
	return showPolicy(name, p)
}

// KeyPolicy returns the policy of a key, also of one that has ended.
func (s policyShower) KeyPolicy(_ context.Context, id string) (v1.NamedPolicy, error) {
	key, err := s.ring.Get(id)
	if err != nil {
		return v1.NamedPolicy{}, err
	}
	p, err := s.policies.Policy(key.Policy)
	if err != nil {
		return v1.NamedPolicy{}, err
	}
	return showPolicy(key.Policy, p)
}
