package image_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/image"
	"github.com/sandpit-dev/sandpit/internal/image/imagetest"
	"github.com/sandpit-dev/sandpit/internal/testkit"
)

// mountSmall mounts a tmpfs of a number of bytes until the test ends.
func mountSmall(t *testing.T, dir string, size int) {
	t.Helper()
	testkit.Tmpfs(t, dir, 0, fmt.Sprintf("size=%d,mode=0700", size))
}

func TestPullOntoAFullDisk(t *testing.T) {
	testkit.NeedRoot(t, "to mount a small file system")
	dir := filepath.Join(t.TempDir(), "images")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	mountSmall(t, dir, 1<<20)
	reg := imagetest.Registry(t, imagetest.RegistryOptions{})
	ref := reg.Push(t, "x:1", randomImage(t, 3<<20, 2))
	s := image.Open(dir, image.Options{Fetcher: fetcher(nil)})
	_, err := s.Acquire(t.Context(), ref, plainHTTP)
	wantError(t, err, sandpit.ErrExhausted, true)
	wantEmpty(t, s)
}
