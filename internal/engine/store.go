package engine

import (
	"context"
	"encoding/json"
	"time"

	"github.com/sandpit-dev/sandpit"
)

// Record is what is kept of a sandbox, so that another engine can take it over.
type Record struct {
	ID        string
	Namespace string // whose it is; names are unique in it
	Name      string
	State     sandpit.State
	CreatedAt time.Time

	// Data is the engine's own: spec, limits, expiry, image and the driver's
	// handle, with a version.
	Data json.RawMessage

	// Secret is what nobody may read who has the store's files alone: the environment
	// that the sandbox was made with. Nil: there is none, or it is lost.
	Secret json.RawMessage
}

// A Store keeps the records of an engine's sandboxes. Every call is durable
// when it returns. All methods may be called from many goroutines at once.
type Store interface {
	// PutSandbox writes a record, or replaces that of the same ID. ErrExists
	// when another sandbox of the namespace has the name.
	PutSandbox(ctx context.Context, r Record) error

	// DeleteSandbox removes a record. One that is not there is no error.
	DeleteSandbox(ctx context.Context, id string) error

	// Sandboxes returns all records, oldest first.
	Sandboxes(ctx context.Context) ([]Record, error)
}
