// Package engine makes, keeps and removes sandboxes: it resolves what is asked
// for against policy and what the driver can enforce, leases the image, has
// the driver make the place, and speaks to the guest in it.
//
// It is the sandpit.Client for a program that holds its sandboxes itself. They
// end with it.
package engine

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/driver"
	"github.com/sandpit-dev/sandpit/internal/image"
	"github.com/sandpit-dev/sandpit/internal/policy"
)

// Options are what an engine works with.
type Options struct {
	Driver driver.Driver
	Images *image.Store
	Policy policy.Policy

	// Acquire has the settings for images, but for Pull, which a Spec has.
	Acquire image.AcquireOptions

	// Trace, when set, receives the time of each step of Create.
	Trace func(step string, took time.Duration)
}

// Engine implements sandpit.Client in-process.
type Engine struct {
	opts Options

	mu     sync.Mutex
	closed bool                // guarded by mu
	boxes  map[string]*Sandbox // by id, guarded by mu
	names  map[string]string   // name to id, guarded by mu
}

var _ sandpit.Client = (*Engine)(nil)

// New returns an engine. It does nothing yet.
func New(opts Options) *Engine {
	return &Engine{opts: opts, boxes: map[string]*Sandbox{}, names: map[string]string{}}
}

// NewID returns a new identity: 16 characters of [a-z2-7], 80 bits of chance.
func NewID() string {
	return strings.ToLower(rand.Text()[:16])
}

// Create makes a sandbox. See sandpit.Client.
func (e *Engine) Create(ctx context.Context, spec sandpit.Spec) (sandpit.Sandbox, error) {
	mark := time.Now()
	trace := func(step string) {
		if e.opts.Trace != nil {
			now := time.Now()
			e.opts.Trace(step, now.Sub(mark))
			mark = now
		}
	}

	limits, asked, err := policy.Resolve(spec, e.opts.Policy)
	if err != nil {
		return nil, err
	}
	caps := e.opts.Driver.Probe(ctx)
	enforce, gaps, err := resolve(spec, &limits, asked, caps)
	if err != nil {
		return nil, err
	}
	trace("policy")

	acquire := e.opts.Acquire
	acquire.Pull = spec.Pull
	lease, err := e.opts.Images.Acquire(ctx, spec.Image, acquire)
	if err != nil {
		return nil, err
	}
	trace("image")

	sb := &Sandbox{engine: e, lease: lease, id: NewID(), created: time.Now(), gone: make(chan struct{})}
	sb.name = spec.Name
	if sb.name == "" {
		sb.name = sb.id
	}
	if err := e.register(sb, spec.Name != ""); err != nil {
		lease.Release()
		return nil, err
	}
	if err := sb.start(ctx, spec, limits, enforce, gaps, caps, trace); err != nil {
		_ = sb.Remove(context.WithoutCancel(ctx))
		return nil, err
	}
	return sb, nil
}

// resolve decides which limits are enforced. One that was asked for and can't
// be is refused; a default that can't be is a gap.
func resolve(spec sandpit.Spec, limits *sandpit.Limits, asked map[string]bool, caps driver.Capabilities) (enforce map[string]bool, gaps []sandpit.Gap, err error) {
	enforce = map[string]bool{}
	for _, what := range []string{"memory", "cpus", "pids", "disk", "files", "nofile", "output", "life"} {
		if caps.Enforced[what] {
			enforce[what] = true
			continue
		}
		gap := gapFor(what, caps)
		if asked[what] {
			return nil, nil, sandpit.WithHint(fmt.Errorf("limiting %s: %s: %w", what, gap.Why, sandpit.ErrUnsupported), gap.Fix)
		}
		gaps = append(gaps, gap)
	}
	if caps.MaxNoFile > 0 && limits.NoFile > caps.MaxNoFile {
		if asked["nofile"] {
			return nil, nil, sandpit.WithHint(fmt.Errorf("limiting nofile: %d is more than the %d that this program may allow: %w", limits.NoFile, caps.MaxNoFile, sandpit.ErrUnsupported),
				"ask for fewer, or raise the hard limit (ulimit -Hn) before you start this program")
		}
		limits.NoFile = caps.MaxNoFile
	}
	if spec.Write != nil && !caps.Enforced["write-paths"] {
		gap := gapFor("write-paths", caps)
		return nil, nil, sandpit.WithHint(fmt.Errorf("restricting writes: %s: %w", gap.Why, sandpit.ErrUnsupported), gap.Fix)
	}
	return enforce, gaps, nil
}

func gapFor(what string, caps driver.Capabilities) sandpit.Gap {
	i := slices.IndexFunc(caps.Gaps, func(g sandpit.Gap) bool { return g.What == what })
	if i < 0 {
		return sandpit.Gap{What: what, Why: "this driver can't", Fix: "use another driver"}
	}
	return caps.Gaps[i]
}

// register takes the name of a sandbox.
func (e *Engine) register(sb *Sandbox, named bool) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return fmt.Errorf("creating a sandbox: the client is closed: %w", sandpit.ErrState)
	}
	taken := sandpit.WithHint(fmt.Errorf("naming the sandbox %s: a live sandbox has that name: %w", sb.name, sandpit.ErrExists), "choose another name, or none")
	if _, ok := e.names[sb.name]; ok {
		return taken
	}
	if named {
		lock, err := lockName(sb.name)
		if err != nil {
			if errors.Is(err, sandpit.ErrExists) {
				return taken
			}
			return err
		}
		sb.nameLock = lock
	}
	e.boxes[sb.id], e.names[sb.name] = sb, sb.id
	return nil
}

func (e *Engine) forget(sb *Sandbox) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.boxes, sb.id)
	delete(e.names, sb.name)
}

func (e *Engine) find(idOrName string) (*Sandbox, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if id, ok := e.names[idOrName]; ok {
		idOrName = id
	}
	if sb, ok := e.boxes[idOrName]; ok {
		return sb, nil
	}
	return nil, fmt.Errorf("sandbox %q: %w", idOrName, sandpit.ErrNotFound)
}

// Get finds a sandbox. See sandpit.Client.
func (e *Engine) Get(_ context.Context, idOrName string) (sandpit.Sandbox, error) {
	sb, err := e.find(idOrName)
	if err != nil {
		return nil, err
	}
	return sb, nil
}

// List returns the sandboxes of this engine. See sandpit.Client.
func (e *Engine) List(ctx context.Context) ([]sandpit.Info, error) {
	var infos []sandpit.Info
	for _, sb := range e.all() {
		info, err := sb.Info(ctx)
		if err != nil {
			return nil, err
		}
		infos = append(infos, info)
	}
	slices.SortFunc(infos, func(a, b sandpit.Info) int { return a.CreatedAt.Compare(b.CreatedAt) })
	return infos, nil
}

func (e *Engine) all() []*Sandbox {
	e.mu.Lock()
	defer e.mu.Unlock()
	all := make([]*Sandbox, 0, len(e.boxes))
	for _, sb := range e.boxes {
		all = append(all, sb)
	}
	return all
}

// Remove destroys a sandbox. See sandpit.Client.
func (e *Engine) Remove(ctx context.Context, idOrName string) error {
	sb, err := e.find(idOrName)
	if err != nil {
		return err
	}
	return sb.Remove(ctx)
}

// Close removes every sandbox.
func (e *Engine) Close() error {
	e.mu.Lock()
	e.closed = true
	e.mu.Unlock()
	var errs []error
	for _, sb := range e.all() {
		errs = append(errs, sb.Remove(context.Background()))
	}
	return errors.Join(errs...)
}

// Home returns the directories of an installation under a data directory.
func Home(dir string) (images, guests string) {
	return filepath.Join(dir, "images"), filepath.Join(dir, "guest")
}
