package server_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/server"
	"github.com/sandpit-dev/sandpit/internal/testkit"
)

// Another user's program in the place of the server is refused by name. No server is started.
func TestStrangerInTheServersPlace(t *testing.T) {
	home := t.TempDir()
	if err := errors.Join(os.Chmod(filepath.Dir(home), 0o755), os.Chmod(home, os.ModeSticky|0o777)); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(home, "server.sock")
	testkit.ListenAs(t, 12345, path)
	started, err := server.Background{Home: home, Program: "/nowhere"}.Ensure(t.Context())
	if started || !errors.Is(err, sandpit.ErrForbidden) || !strings.Contains(err.Error(), path+": user 12345 listens there") || sandpit.Hint(err) == "" {
		t.Errorf("started %v, got %v", started, err)
	}
}
