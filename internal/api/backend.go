package api

import (
	"context"
	"crypto/sha256"
	"time"

	"github.com/sandpit-dev/sandpit"
	v1 "github.com/sandpit-dev/sandpit/internal/api/v1"
	"github.com/sandpit-dev/sandpit/internal/gate"
)

// Backend is what the API serves. A caller of one namespace must never see
// anything of another. It gets sandpit.ErrNotFound instead.
type Backend interface {
	// Client returns the sandboxes as a caller sees them. It is called for each
	// request, so that a changed policy applies from the next request on.
	Client(c gate.Caller) sandpit.Client

	// CreateMarked is Create of Client for a request that may be repeated. The sandbox keeps the
	// mark, from its first record on. Marked finds it again, or returns ErrNotFound.
	CreateMarked(ctx context.Context, c gate.Caller, spec sandpit.Spec, mark string) (sandpit.Sandbox, error)
	Marked(c gate.Caller, mark string) (sandpit.Sandbox, error)

	// RemoveSelected is Remove of Client for a sandbox that a query has selected, by its ID. It
	// reports whether the query still does: otherwise nothing is removed.
	RemoveSelected(ctx context.Context, c gate.Caller, id string, q sandpit.ListQuery) (selected bool, err error)

	// Namespaces returns the namespaces that have sandboxes, with their number.
	Namespaces() map[string]int

	// AllowPreview returns how long a preview lasts that a caller requests for the given
	// time; 0: as long as usual. The error says that the caller may have none, or not for so
	// long.
	AllowPreview(c gate.Caller, life time.Duration) (time.Duration, error)

	// Capabilities returns what this machine can do.
	Capabilities(ctx context.Context) (v1.Capabilities, error)

	// Images returns the images that a caller may use and see.
	Images(ctx context.Context, c gate.Caller) ([]v1.Image, error)

	// PullImage fetches an image in the way of Spec.Pull.
	PullImage(ctx context.Context, c gate.Caller, image string, pull sandpit.PullPolicy) (v1.Image, error)

	// TagImage gives an image that the caller's namespace has saved, NAME or NAME:TAG without "saved:", other names,
	// which other images lose. It returns the digest.
	TagImage(ctx context.Context, c gate.Caller, name string, names []string) (digest string, err error)

	// RemoveImage removes an image from the store. It returns ErrState while the image
	// is in use.
	RemoveImage(ctx context.Context, c gate.Caller, image string) error

	// Stuck returns the number of stuck operations. blocked reports that there are too
	// many to create more sandboxes. Stuck never waits.
	Stuck() (n int, blocked bool)

	// Stats returns what /metrics shows, with at most the given number of sandboxes.
	Stats(ctx context.Context, sandboxes int) (Stats, error)
}

// Stats summarises all namespaces.
type Stats struct {
	States    map[sandpit.State]int // number of sandboxes
	Pool      map[string]int        // number of pre-made parts, by kind; may be nil
	Waiting   int                   // callers that wait for capacity to create a sandbox
	Stuck     int                   // stuck operations
	Traffic   map[string]Traffic    // by namespace
	Sandboxes []Usage               // not all, if there are more than requested
}

// Traffic is what sandboxes did on the network.
type Traffic struct{ Connections, Denials, Sent, Received int64 }

// Usage is the present resource usage of a sandbox.
type Usage struct {
	ID, Namespace string
	Limits        sandpit.Limits
	sandpit.Metrics
}

// Idempotency stores the responses to requests that may be repeated. Its rules are
// those of state.Store.
type Idempotency interface {
	// Begin reserves a key for 24 hours. It returns nil for a new key: carry the
	// request out, then call Finish, or Abandon if the key may be used again. The same
	// applies to an Earlier that is not Answered. Begin returns ErrState while the same
	// request is in progress, and ErrInvalid for another request with the key.
	Begin(ctx context.Context, r Repeatable) (*Earlier, error)
	Finish(ctx context.Context, namespace, key, resource string, status int, response []byte) error
	Abandon(ctx context.Context, namespace, key string) error
}

// Repeatable is a request that may be repeated.
type Repeatable struct {
	Namespace string
	Key       string
	Hash      [sha256.Size]byte // of the request
	Resource  string            // the mark of the sandbox that it creates; empty: nothing that is known yet
}

// Earlier is an earlier request with the same key.
type Earlier struct {
	Resource string // as Begin or Finish was told
	Answered bool   // false: the server died during the request
	Status   int
	Response []byte // nil if it was too long to store
}
