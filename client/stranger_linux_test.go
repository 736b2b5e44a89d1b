package client

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/testkit"
)

// A client sends nothing to another user's program that listens in a directory where
// everybody may create files.
func TestStrangersGetNoRequests(t *testing.T) {
	dir := t.TempDir()
	if err := errors.Join(os.Chmod(filepath.Dir(dir), 0o755), os.Chmod(dir, os.ModeSticky|0o777)); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "server.sock")
	testkit.ListenAs(t, 12345, path)
	c, err := New(Options{Address: "unix://" + path})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_, err = c.List(t.Context(), sandpit.ListQuery{})
	if !errors.Is(err, sandpit.ErrForbidden) || !strings.Contains(err.Error(), path+": user 12345 listens there") || !strings.Contains(sandpit.Hint(err), "who created the socket") {
		t.Errorf("got %v, with the hint %q", err, sandpit.Hint(err))
	}
	if _, err := c.upgrade(t.Context(), "/v1/x", "tcp"); !errors.Is(err, sandpit.ErrForbidden) {
		t.Errorf("an upgraded connection: %v", err)
	}
}
