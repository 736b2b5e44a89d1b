package state_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/state"
	"github.com/sandpit-dev/sandpit/internal/testkit"
)

// A state that belongs to somebody else is not believed.
func TestPlantedState(t *testing.T) {
	testkit.NeedRoot(t, "to give a directory away")
	dir := filepath.Join(t.TempDir(), "state")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(dir, 12345, 12345); err != nil {
		t.Fatal(err)
	}
	store, err := state.Open(t.Context(), dir)
	if err == nil {
		_ = store.Close()
	}
	if !errors.Is(err, sandpit.ErrForbidden) || !strings.Contains(err.Error(), dir) {
		t.Errorf("opening it: %v", err)
	}
}
