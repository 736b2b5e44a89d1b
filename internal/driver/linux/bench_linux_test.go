package linux_test

import (
	"path/filepath"
	"testing"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/driver"
	"github.com/sandpit-dev/sandpit/internal/engine"
	guest "github.com/sandpit-dev/sandpit/internal/guest/client"
)

// BenchmarkCreate makes a sandbox of the host image, greets its guest, and
// removes it: one without mounts, and one with a writable mount, for which the
// guest loads a filter.
func BenchmarkCreate(b *testing.B) {
	b.Run("plain", func(b *testing.B) { benchmarkCreate(b) })
	b.Run("mount", func(b *testing.B) {
		dir, err := filepath.EvalSymlinks(b.TempDir())
		if err != nil {
			b.Fatal(err)
		}
		benchmarkCreate(b, sandpit.Mount{Source: dir, Target: "/x"})
	})
	b.Run("read-only mount", func(b *testing.B) {
		dir, err := filepath.EvalSymlinks(b.TempDir())
		if err != nil {
			b.Fatal(err)
		}
		benchmarkCreate(b, sandpit.Mount{Source: dir, Target: "/x", ReadOnly: true})
	})
}

func benchmarkCreate(b *testing.B, mounts ...sandpit.Mount) {
	d := driverWith(options())
	lease, err := images().Acquire(b.Context(), "host", imageOptions())
	if err != nil {
		b.Fatal(err)
	}
	defer lease.Release()
	plan := driver.Plan{
		Name: "bench", Hostname: "bench", Root: driver.Root{Layers: lease.Rootfs().Layers},
		Limits: sandpit.DefaultLimits(), Enforce: d.Probe(b.Context()).Features, UID: 1000, GID: 1000, Ephemeral: true, Mounts: mounts,
	}
	for _, bind := range lease.Rootfs().Binds {
		plan.Root.Binds = append(plan.Root.Binds, driver.Bind(bind))
	}
	for b.Loop() {
		plan.ID = engine.NewID()
		inst, err := d.Create(b.Context(), plan)
		if err != nil {
			b.Fatal(err)
		}
		conn, err := inst.Dial(b.Context())
		if err != nil {
			b.Fatal(err)
		}
		c, err := guest.New(b.Context(), conn, guest.Options{Config: &guest.Config{User: "1000:1000"}})
		if err != nil {
			b.Fatal(err)
		}
		if err := inst.Destroy(b.Context()); err != nil {
			b.Fatal(err)
		}
		c.Close()
	}
}
