package main

import (
	"os"
	"path/filepath"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/cli"
	"github.com/sandpit-dev/sandpit/internal/datadir"
	"github.com/sandpit-dev/sandpit/internal/driver"
	"github.com/sandpit-dev/sandpit/internal/driver/linux"
	"github.com/sandpit-dev/sandpit/internal/engine"
	"github.com/sandpit-dev/sandpit/internal/guest/embedded"
	"github.com/sandpit-dev/sandpit/internal/policy"
)

// newClient opens the engine on this machine's kernel.
func newClient(opt cli.ClientOptions) (sandpit.Client, error) {
	network, err := sandboxNetwork(opt.Upstream)
	if err != nil {
		return nil, err
	}
	return engine.New(engine.Options{
		Driver:  newDriver(opt.Home),
		Images:  openImages(opt.Home),
		Policy:  policy.Default(),
		Acquire: opt.Acquire,
		Trace:   opt.Trace,
		Network: network,
	}), nil
}

// drivers returns the drivers that sandpit doctor looks at.
func drivers(home string) []driver.Driver { return []driver.Driver{newDriver(home)} }

func newDriver(home string) *linux.Driver {
	guest := embedded.Guest()
	return linux.New(linux.Options{
		Dir:         filepath.Join(home, "guest"),
		Guest:       guest,
		GuestDigest: embedded.Digest(guest),
		KeepDir:     filepath.Join(home, "run"),

		Private:         datadir.Private(home, os.LookupEnv),
		PrivateOfOthers: datadir.OfOthers,
	})
}
