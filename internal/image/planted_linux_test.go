package image_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/image"
)

// A store that somebody else has planted is not used, and is named.
func TestPlantedStore(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "images")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if os.Geteuid() == 0 {
		if err := os.Chown(dir, 12345, 12345); err != nil {
			t.Fatal(err)
		}
	} else if err := os.Chmod(dir, 0o777); err != nil { // what an ordinary user can plant
		t.Fatal(err)
	}
	s := image.Open(dir, image.Options{})
	for _, ref := range []string{"host", "debian:12"} {
		if _, err := s.Acquire(t.Context(), ref, image.AcquireOptions{}); !errors.Is(err, sandpit.ErrForbidden) || !strings.Contains(err.Error(), dir) {
			t.Errorf("using %s of it: %v", ref, err)
		}
	}
	if names, _ := os.ReadDir(dir); len(names) > 0 {
		t.Errorf("it was written to: %v", names)
	}
}

// A data directory that others may change is not used either, also if the store in it is
// this user's.
func TestPlantedHome(t *testing.T) {
	home := filepath.Join(t.TempDir(), "home")
	dir := filepath.Join(home, "images")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	s := image.Open(dir, image.Options{})
	lease, err := s.Acquire(t.Context(), "host", image.AcquireOptions{})
	if err != nil {
		t.Fatal(err)
	}
	lease.Release()
	if os.Geteuid() == 0 {
		err = os.Chown(home, 12345, 12345)
	} else {
		err = os.Chmod(home, 0o777)
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Acquire(t.Context(), "host", image.AcquireOptions{}); !errors.Is(err, sandpit.ErrForbidden) || !strings.Contains(err.Error(), home) {
		t.Errorf("using it: %v", err)
	}
}
