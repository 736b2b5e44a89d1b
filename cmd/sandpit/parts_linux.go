package main

import (
	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/cli"
	"github.com/sandpit-dev/sandpit/internal/driver"
)

// otherPart returns what this program is when it is not the command line, by
// the name under which it was started; or nil.
func otherPart(args []string) func() {
	if cli.IsGuard(args) {
		return cli.GuardTerminal
	}
	return nil
}

func newClient(cli.ClientOptions) (sandpit.Client, error) {
	return nil, sandpit.ErrUnsupported
}

func drivers() []driver.Driver { return nil }
