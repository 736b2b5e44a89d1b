package api

import (
	"context"
	"crypto/sha256"

	"github.com/sandpit-dev/sandpit"
	v1 "github.com/sandpit-dev/sandpit/internal/api/v1"
	"github.com/sandpit-dev/sandpit/internal/gate"
)

// Backend is what the API serves. A caller of one namespace must never see
// anything of another: what is not his is sandpit.ErrNotFound.
type Backend interface {
	// Client returns the sandboxes as a caller sees them. It is called for each
	// request, so that a changed policy holds for the next one.
	Client(c gate.Caller) sandpit.Client

	// Capabilities says what this machine can do.
	Capabilities(ctx context.Context) (v1.Capabilities, error)

	// Images lists the images that a caller may see.
	Images(ctx context.Context, c gate.Caller) ([]v1.Image, error)

	// PullImage fetches an image, as Spec.Pull says.
	PullImage(ctx context.Context, c gate.Caller, image string, pull sandpit.PullPolicy) (v1.Image, error)

	// RemoveImage removes an image from the store. ErrState while it is used.
	RemoveImage(ctx context.Context, c gate.Caller, image string) error

	// Stuck returns how many operations are stuck. blocked says that there are so many
	// that no sandbox is made any more. It never waits.
	Stuck() (n int, blocked bool)

	// Stats is what /metrics shows, with at most so many sandboxes.
	Stats(ctx context.Context, sandboxes int) (Stats, error)
}

// Stats is what goes on in all namespaces.
type Stats struct {
	States    map[sandpit.State]int // sandboxes in each
	Pool      map[string]int        // parts held ready, by kind; may be nil
	Waiting   int                   // callers who wait for room to make a sandbox
	Stuck     int                   // operations that hang
	Sandboxes []Usage               // some of them, when there are more than asked for
}

// Usage is what a sandbox uses now.
type Usage struct {
	ID, Namespace string
	Limits        sandpit.Limits
	sandpit.Metrics
}

// Idempotency keeps the answers to requests that may be sent again. Its rules
// are those of state.Store.
type Idempotency interface {
	// Begin takes a key for 24 hours. It returns nil for one that is new: carry
	// the request out, then call Finish, or Abandon if the key may be used
	// again. The same holds for an Earlier that was not answered. ErrState
	// while the same request is being carried out, ErrInvalid for another
	// request with the key.
	Begin(ctx context.Context, r Repeatable) (*Earlier, error)
	Finish(ctx context.Context, namespace, key string, status int, response []byte) error
	Abandon(ctx context.Context, namespace, key string) error
}

// Repeatable is a request that may be sent again.
type Repeatable struct {
	Namespace string
	Key       string
	Hash      [sha256.Size]byte // of what is asked
	Resource  string            // the name of the sandbox that it makes
}

// Earlier is an earlier request with the same key.
type Earlier struct {
	Resource string
	Answered bool // if not, the server died on it
	Status   int
	Response []byte // nil if it was too long to be kept
}
