package engine

import (
	"context"
	"crypto/rand"
	"errors"
	"iter"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/driver"
	"github.com/sandpit-dev/sandpit/internal/image"
	"github.com/sandpit-dev/sandpit/internal/ledger"
	"github.com/sandpit-dev/sandpit/internal/logstore"
	"github.com/sandpit-dev/sandpit/internal/policy"
)

// Options configure an engine.
type Options struct {
	Driver driver.Driver
	Images *image.Store
	Policy policy.Policy // of the engine's own methods; see As for others

	// Store keeps the records of sandboxes, which then outlive the engine. The driver must
	// be a driver.Recoverer. If Store is nil, sandboxes end with the engine.
	Store Store

	// Dir has a directory for each sandbox, with the output of its processes. If it is
	// empty, only the latest output is kept, in memory.
	Dir string

	// LogBytes bounds the log of a sandbox; default 16 MiB on disk.
	LogBytes int64

	// Logs bounds the disk space of the logs below Dir, for each namespace and in all.
	Logs logstore.Bounds

	// Capacity bounds what all sandboxes of an engine may use together. 0 means no bound.
	Capacity Capacity

	// Memory counts what requests leave behind in memory. If it is nil, only each sandbox,
	// and the events of each namespace, are bounded.
	Memory *ledger.Ledger

	// Pool configures the warm pool; none by default.
	Pool Pool

	// Network gives sandboxes egress. If it is nil, a Spec with Egress is refused.
	Network Network

	// Secrets has the secrets that sandboxes may use. If it is nil, a Spec with Secrets is
	// refused.
	Secrets Secrets

	// Patience says how long to wait for operations that may hang.
	Patience Patience

	// Hangs, if set, is called when a task is stuck, and again when it has ended after
	// all. It must not block or call the engine.
	Hangs func(is Stuck, ended bool)

	// NotHeld, if set, is called when a sandbox could not be made ready, at first and about once a minute.
	NotHeld func(Held, error)

	// Observe, if set, is called with every event of every namespace, in order. It must
	// not block or call the engine.
	Observe func(namespace string, ev sandpit.Event)

	// Denied, if set, is called with the denials of a sandbox's egress that it was not called
	// with before: when the sandbox leaves the network, and by TellDenials. It must not block
	// or call the engine.
	Denied func(namespace, sandbox string, d []sandpit.EgressDenial)

	// Acquire has the settings for images, except Pull, which is in the Spec.
	Acquire image.AcquireOptions

	// Trace, if set, receives the time of each step of Create.
	Trace func(step string, took time.Duration)
}

// Engine creates and keeps sandboxes. Its own methods are those of a Tenant of the
// namespace "" with Options.Policy.
type Engine struct {
	opts   Options
	events eventLog
	gate   admission
	ended  endedBroadcasters
	pool   *pool
	shelf  *shelf
	tasks  tasks
	trust  trustCache

	refreshing chan struct{} // places of sandboxes whose secrets change

	mu     sync.Mutex
	closed bool              // guarded by mu
	spaces map[string]*space // by name, guarded by mu
	logs   *logstore.Room    // what all logs may take
	clock  *time.Timer       // of metrics, guarded by mu; nil while there is no sandbox

	traffic   traffic
	unwritten unwritten
}

var _ sandpit.Client = (*Engine)(nil)

// New returns an engine.
func New(opts Options) *Engine {
	if opts.Hangs == nil {
		opts.Hangs = func(Stuck, bool) {}
	}
	if opts.NotHeld == nil {
		opts.NotHeld = func(Held, error) {}
	}
	opts.Patience = opts.Patience.withDefaults()
	e := &Engine{opts: opts, spaces: map[string]*space{}, refreshing: make(chan struct{}, maxRefreshing), logs: logstore.NewRoom(filepath.Dir(opts.Dir), opts.Logs)}
	e.traffic.by = map[string]Traffic{}
	e.gate.capacity = opts.Capacity
	e.pool, e.shelf = newPool(e, opts.Pool), newShelf(e, opts.Pool.Held)
	e.events.observe, e.events.ledger = opts.Observe, opts.Memory
	e.events.first = uint64(time.Now().UnixMicro())
	e.events.last = e.events.first
	return e
}

// NewID returns a new ID: 16 characters of [a-z2-7], 80 random bits.
func NewID() string {
	return strings.ToLower(rand.Text()[:16])
}

func (e *Engine) own() *Tenant { return e.As("", e.opts.Policy) }

// Create makes a sandbox. See sandpit.Client.
func (e *Engine) Create(ctx context.Context, spec sandpit.Spec) (sandpit.Sandbox, error) {
	return e.own().Create(ctx, spec)
}

// Get finds a sandbox. See sandpit.Client.
func (e *Engine) Get(ctx context.Context, idOrName string) (sandpit.Sandbox, error) {
	return e.own().Get(ctx, idOrName)
}

// List returns a page of the sandboxes. See sandpit.Client.
func (e *Engine) List(ctx context.Context, q sandpit.ListQuery) (sandpit.Page, error) {
	return e.own().List(ctx, q)
}

// Remove destroys a sandbox. See sandpit.Client.
func (e *Engine) Remove(ctx context.Context, idOrName string) error {
	return e.own().Remove(ctx, idOrName)
}

// Events returns the events of sandboxes. See sandpit.Watcher.
func (e *Engine) Events(ctx context.Context, q sandpit.EventQuery) iter.Seq2[sandpit.Event, error] {
	return e.own().Events(ctx, q)
}

// Close ends the engine. Without a Store it removes every sandbox; with one it leaves them
// for the next engine to adopt. It waits for nothing longer than Options.Patience says, and
// reports stuck tasks in its error.
func (e *Engine) Close() error {
	e.mu.Lock()
	e.closed = true
	if e.clock != nil {
		e.clock.Stop()
	}
	e.mu.Unlock()
	limit := e.opts.Patience.Close
	ending := []*task{
		e.work("closing the pool", nil, limit, func(context.Context) error {
			e.pool.close()
			return nil
		}),
		e.work("closing the pool of held sandboxes", nil, limit, func(context.Context) error {
			e.shelf.close()
			return nil
		}),
		e.work("closing the records", nil, limit, func(context.Context) error {
			e.unwritten.close()
			return nil
		}),
	}
	var errs []error
	var wg sync.WaitGroup
	var mu sync.Mutex
	for _, s := range e.Sandboxes() {
		if e.opts.Store == nil {
			wg.Go(func() {
				if err := s.destroy(context.Background(), "closed"); err != nil {
					mu.Lock()
					errs = append(errs, err)
					mu.Unlock()
				}
			})
			continue
		}
		ending = append(ending, e.work("leaving", s, limit, func(context.Context) error {
			s.abandon()
			return nil
		}))
	}
	wg.Wait()
	for _, t := range ending {
		errs = append(errs, t.wait(context.Background()))
	}
	for _, t := range e.tasks.list() {
		err := t.stuckError()
		if t.isStuck() && !slices.ContainsFunc(errs, func(told error) bool { return told != nil && told.Error() == err.Error() }) {
			errs = append(errs, err)
		}
	}
	e.events.close()
	return errors.Join(errs...)
}

// Home returns the paths of an installation in a data directory.
func Home(dir string) (images, guests string) {
	return filepath.Join(dir, "images"), filepath.Join(dir, "guest")
}
