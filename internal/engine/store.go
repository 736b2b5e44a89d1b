package engine

import (
	"context"
	"encoding/json"
	"time"

	"github.com/sandpit-dev/sandpit"
)

// Record is what a Store keeps about a sandbox, so that another engine can adopt it.
type Record struct {
	ID        string
	Namespace string // the owner; names are unique in it
	Name      string // in a nested namespace NESTED/NAME
	State     sandpit.State
	CreatedAt time.Time

	// Data is private to the engine: spec, limits, expiry, image and the driver's handle,
	// with a version.
	Data json.RawMessage

	// Secret is the environment that the sandbox was made with, and its own secrets. The store's
	// files alone must not reveal it. It is nil if there is none or it is lost.
	Secret json.RawMessage

	// NewSecret says that a Secret which the store has may be another one. Without it, a store need
	// not replace that.
	NewSecret bool
}

// A Store keeps the records of an engine's sandboxes. Every call is durable when it
// returns. All methods are safe for concurrent use.
type Store interface {
	// PutSandbox writes a record, or replaces the one with the same ID. It returns
	// ErrExists if another sandbox of the namespace has the name.
	PutSandbox(ctx context.Context, r Record) error

	// DeleteSandbox removes a record. Deleting a missing one is a no-op.
	DeleteSandbox(ctx context.Context, id string) error

	// Sandboxes returns all records, oldest first.
	Sandboxes(ctx context.Context) ([]Record, error)
}
