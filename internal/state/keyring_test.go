package state

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/sandpit-dev/sandpit"
)

// TestNoKeyring opens a state with a keyring where there is none: it is refused, and the file keeps the key.
func TestNoKeyring(t *testing.T) {
	t.Setenv(busVariable, "unix:path="+filepath.Join(t.TempDir(), "none"))
	dir := filepath.Join(t.TempDir(), "state")
	s, err := Open(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, fileSeal)
	before, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := OpenWithKeyring(t.Context(), dir); !errors.Is(err, sandpit.ErrUnavailable) || sandpit.Hint(err) == "" {
		t.Errorf("without a keyring: %v", err)
	}
	if after, err := os.ReadFile(file); err != nil || string(after) != string(before) {
		t.Errorf("the file has changed: %v", err)
	}
	if err := os.WriteFile(file, []byte(inKeyring), 0o600); err != nil {
		t.Fatal(err)
	}
	for about, open := range map[string]func() (*Store, error){
		"file":    func() (*Store, error) { return Open(t.Context(), dir) },
		"keyring": func() (*Store, error) { return OpenWithKeyring(t.Context(), dir) },
	} {
		if _, err := open(); !errors.Is(err, sandpit.ErrUnavailable) {
			t.Errorf("a key in the keyring, %s: %v", about, err)
		}
	}
}
