package imagetest_test

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/sandpit-dev/sandpit/internal/image"
	"github.com/sandpit-dev/sandpit/internal/image/fetch"
	"github.com/sandpit-dev/sandpit/internal/image/imagetest"
)

// The image of Debian is one that Sandpit can use.
func TestDebian(t *testing.T) {
	archive := imagetest.Debian(t)
	s := image.Open(filepath.Join(t.TempDir(), "images"), image.Options{NoSync: true, Fetcher: fetch.New(fetch.Options{})})
	l, err := s.Acquire(t.Context(), "oci-archive:"+archive, image.AcquireOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Release()
	c := l.Rootfs().Config
	if len(c.Cmd) != 1 || c.Cmd[0] != "python3" || c.WorkingDir != "/srv" || !strings.HasPrefix(c.Env[0], "PATH=") {
		t.Errorf("config is %+v", c)
	}
}
