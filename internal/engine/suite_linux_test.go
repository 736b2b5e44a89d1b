package engine_test

import (
	"path/filepath"
	"testing"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/driver/linux"
	"github.com/sandpit-dev/sandpit/internal/engine"
	"github.com/sandpit-dev/sandpit/internal/guest/embedded"
	"github.com/sandpit-dev/sandpit/internal/image"
	"github.com/sandpit-dev/sandpit/internal/network"
	"github.com/sandpit-dev/sandpit/internal/policy"
	"github.com/sandpit-dev/sandpit/internal/testkit"
	"github.com/sandpit-dev/sandpit/sandpittest"
)

// Every promise of a client holds also for a tenant of an engine that keeps its
// sandboxes. Those of Code are tested by TestHeldKeepsEveryPromiseOfCode. The other groups that are left out
// are about what the driver enforces, whoever asks: TestDriver of internal/driver/linux runs them.
func TestTenantKeepsEveryPromise(t *testing.T) {
	needGuest(t)
	testkit.NeedFull(t, "it runs the suite of clients again, which TestDriver runs")
	dir := t.TempDir()
	images, guests := engine.Home(dir)
	d := linux.New(linux.Options{Dir: guests, Guest: embedded.Guest(), KeepDir: filepath.Join(dir, "keep")})
	e := engine.New(engine.Options{
		Driver: d, Images: image.Open(images, image.Options{NoSync: true}), Policy: policy.Default(),
		Store: &mapStore{}, Dir: filepath.Join(dir, "logs"), Network: network.InProcess{},
	})
	t.Cleanup(func() {
		for _, s := range e.Sandboxes() {
			t.Errorf("sandbox %s is left", s.Name())
			_ = s.Remove(t.Context())
		}
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
	const vanish = "a tenant in this process does not vanish"
	sandpittest.Suite(t, func(*testing.T) sandpit.Client { return e.As("tenant", policy.Default()) },
		sandpittest.Options{
			Nested: func(_ *testing.T, namespace string) sandpit.Client {
				return e.As("tenant", policy.Default()).In(namespace)
			},
			Local: true, Shared: true, Features: d.Probe(t.Context()).Features,
			Except: []string{"Kill", "Writing", "Limits", "Code"},
			Skip: map[string]string{
				"Keeper/a foreground process ends with the client that started it": vanish,
				"Keeper/a background process survives the client that started it":  vanish,
			},
		})
}
