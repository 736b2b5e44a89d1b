//go:build !linux

package main

import (
	"fmt"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/cli"
	"github.com/sandpit-dev/sandpit/internal/driver"
)

// ownGuest returns nil: there is no guest.
func ownGuest([]string) func() int { return nil }

// networkProcess returns nil: there are no sandboxes.
func networkProcess([]string) func() int { return nil }

// newClient says that sandboxes are made on Linux only.
func newClient(cli.ClientOptions) (sandpit.Client, error) {
	return nil, sandpit.WithHint(fmt.Errorf("creating sandboxes: %w", sandpit.ErrUnsupported), "run Sandpit on Linux, or set SANDPIT_SERVER to a server that does")
}

// drivers returns none.
func drivers(string) []driver.Driver { return nil }
