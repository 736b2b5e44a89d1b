package linux_test

import (
	"debug/elf"
	"slices"
	"testing"

	"github.com/sandpit-dev/sandpit/internal/driver"
	"github.com/sandpit-dev/sandpit/internal/driver/drivertest"
	"github.com/sandpit-dev/sandpit/internal/guest/embedded"
	"github.com/sandpit-dev/sandpit/internal/testkit"
	"github.com/sandpit-dev/sandpit/sandpittest"
)

func factory() drivertest.Factory {
	return drivertest.Factory{
		New:       func(*testing.T) driver.Driver { return newDriver() },
		Images:    images(),
		KillGuest: killGuest,
		KillBlank: killBlank,
		Unchanged: unchanged,
		Client:    sandpittest.Options{Local: true, Skip: skipped()},
	}
}

// TestDriver runs every promise of drivers and clients.
func TestDriver(t *testing.T) {
	testkit.NeedWorkingHost(t)
	drivertest.Suite(t, factory())
}

// skipped are properties that this build of the test binary can't have.
func skipped() map[string]string {
	if embedded.Guest() != nil {
		return nil
	}
	f, err := elf.Open("/proc/self/exe")
	if err != nil {
		return nil
	}
	defer f.Close()
	if slices.ContainsFunc(f.Progs, func(p *elf.Prog) bool { return p.Type == elf.PT_INTERP }) {
		return map[string]string{
			"Mounts/a directory is an image": "the guest is this test binary, which needs a C library: build with -tags guestembed, or with CGO_ENABLED=0",
		}
	}
	return nil
}
