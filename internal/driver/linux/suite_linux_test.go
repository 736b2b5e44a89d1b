package linux_test

import (
	"testing"

	"github.com/sandpit-dev/sandpit/internal/driver"
	"github.com/sandpit-dev/sandpit/internal/driver/drivertest"
	"github.com/sandpit-dev/sandpit/sandpittest"
)

func factory() drivertest.Factory {
	return drivertest.Factory{
		New:       func(*testing.T) driver.Driver { return newDriver() },
		Images:    images(),
		KillGuest: killGuest,
		Unchanged: unchanged,
		Client:    sandpittest.Options{Local: true},
	}
}

// TestDriver runs every promise of drivers and clients.
func TestDriver(t *testing.T) {
	needWorking(t)
	drivertest.Suite(t, factory())
}
