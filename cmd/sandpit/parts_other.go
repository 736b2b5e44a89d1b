//go:build !linux

package main

import (
	"fmt"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/cli"
	"github.com/sandpit-dev/sandpit/internal/driver"
)

// otherPart returns what this program is when it is not the command line, by
// the name under which it was started; or nil.
func otherPart(args []string) func() int {
	if cli.IsGuard(args) {
		return cli.GuardTerminal
	}
	return nil
}

// newClient says that sandboxes are made on Linux only.
func newClient(cli.ClientOptions) (sandpit.Client, error) {
	return nil, sandpit.WithHint(fmt.Errorf("making sandboxes: %w", sandpit.ErrUnsupported), "run sandpit on Linux")
}

// drivers returns none.
func drivers(string) []driver.Driver { return nil }
