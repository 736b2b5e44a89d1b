package linux_test

import (
	"testing"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/driver"
	"github.com/sandpit-dev/sandpit/internal/engine"
	guest "github.com/sandpit-dev/sandpit/internal/guest/client"
)

// BenchmarkCreate makes a sandbox of the host image, greets its guest, and
// removes it.
func BenchmarkCreate(b *testing.B) {
	d := driverWith(options())
	lease, err := images().Acquire(b.Context(), "host", imageOptions())
	if err != nil {
		b.Fatal(err)
	}
	defer lease.Release()
	plan := driver.Plan{
		Name: "bench", Hostname: "bench", Root: driver.Root{Layers: lease.Rootfs().Layers},
		Limits: sandpit.DefaultLimits(), Enforce: d.Probe(b.Context()).Enforced, UID: 1000, GID: 1000, Ephemeral: true,
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
