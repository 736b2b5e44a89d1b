package state

import (
	"context"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/engine"
	"github.com/sandpit-dev/sandpit/internal/groupcommit"
	"github.com/sandpit-dev/sandpit/internal/keys"
)

// TestWhatWaitsForTheDisk holds which writes a power cut can't undo.
func TestWhatWaitsForTheDisk(t *testing.T) {
	s, err := Open(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	ctx := t.Context()
	record := func(state sandpit.State) engine.Record {
		return engine.Record{ID: "id", Name: "name", State: state, CreatedAt: time.Now()}
	}
	for _, step := range []struct {
		name  string
		write func(context.Context) error
		waits bool
	}{
		{"a key", func(ctx context.Context) error { return s.PutKey(ctx, keys.Stored{Key: keys.Key{Prefix: "aaaaaaaa"}}) }, true},
		{"a request begins", func(ctx context.Context) error {
			_, err := s.BeginRepeatable(ctx, Repeatable{Namespace: "n", Key: "k"})
			return err
		}, false},
		{"a sandbox is being made", func(ctx context.Context) error { return s.PutSandbox(ctx, record(sandpit.StateCreating)) }, false},
		{"a sandbox is there", func(ctx context.Context) error { return s.PutSandbox(ctx, record(sandpit.StateRunning)) }, true},
		{"a request is answered", func(ctx context.Context) error { return s.FinishRepeatable(ctx, "n", "k", "", 201, nil) }, false},
		{"a revocation", func(ctx context.Context) error { return s.RevokeKey(ctx, "aaaaaaaa", time.Now()) }, true},
		{"a sandbox is gone", func(ctx context.Context) error { return s.DeleteSandbox(ctx, "id") }, true},
	} {
		if err := step.write(ctx); err != nil {
			t.Fatalf("%s: %v", step.name, err)
		}
		// PRAGMA synchronous is 1 for NORMAL and 2 for FULL.
		var mode int
		if err := s.tx.conn.QueryRowContext(ctx, "PRAGMA synchronous").Scan(&mode); err != nil {
			t.Fatal(err)
		}
		if want := map[bool]int{false: 1, true: 2}[step.waits]; mode != want {
			t.Errorf("%s: synchronous was %d, want %d", step.name, mode, want)
		}
	}
	// Together with one that waits, all do.
	nothing := func(*tx) error { return nil }
	for _, lazy := range []bool{true, false} {
		s.commit([]*groupcommit.Item[write]{{Value: write{fn: nothing, lazy: true}}, {Value: write{fn: nothing, lazy: lazy}}})
		if s.lazy != lazy {
			t.Errorf("a write that may be undone, beside one that may: %v: synchronous is NORMAL: %v", lazy, s.lazy)
		}
	}
}
