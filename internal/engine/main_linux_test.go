package engine_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/driver/linux"
	"github.com/sandpit-dev/sandpit/internal/engine"
	"github.com/sandpit-dev/sandpit/internal/guest/embedded"
	"github.com/sandpit-dev/sandpit/internal/guest/server"
	"github.com/sandpit-dev/sandpit/internal/image"
	"github.com/sandpit-dev/sandpit/internal/image/fetch"
	"github.com/sandpit-dev/sandpit/internal/policy"
	"github.com/sandpit-dev/sandpit/internal/testkit"
)

// TestMain makes the test binary the guest, too.
func TestMain(m *testing.M) {
	if filepath.Base(os.Args[0]) == linux.GuestName {
		prepareBare()
		os.Exit(server.Main(os.Args))
	}
	if dir := os.Getenv(victimDir); dir != "" {
		os.Exit(victim(dir))
	}
	os.Exit(testkit.Main(m))
}

// newEngine returns an engine with a store of its own.
func newEngine(t *testing.T) *engine.Engine {
	t.Helper()
	images, guests := engine.Home(t.TempDir())
	e := engine.New(engine.Options{
		Driver: linux.New(linux.Options{Dir: guests, Guest: embedded.Guest()}),
		Images: image.Open(images, image.Options{NoSync: true, Fetcher: fetch.New(fetch.Options{})}),
		Policy: policy.Default(),
	})
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
	return e
}

// needGuest skips without an embedded guest: one that this test binary would be
// itself may be linked with a C library that the image lacks.
func needGuest(t *testing.T) {
	t.Helper()
	testkit.NeedGuest(t, embedded.Guest())
}

// create makes a sandbox, or skips where none can be made.
func create(t *testing.T, c sandpit.Client, spec sandpit.Spec) sandpit.Sandbox {
	t.Helper()
	sb, err := c.Create(t.Context(), spec)
	testkit.Made(t, err)
	return sb
}

// shell runs a script and returns what it wrote, both streams together.
func shell(t *testing.T, sb sandpit.Sandbox, script string) (string, sandpit.Result) {
	t.Helper()
	out, err := sandpit.Shell(t.Context(), sb, "exec 2>&1\n"+script)
	if err != nil {
		t.Fatal(err)
	}
	return string(out.Stdout), out.Result
}
