//go:build !linux && !launcher

package main

import (
	"context"
	"fmt"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/client"
	"github.com/sandpit-dev/sandpit/internal/cli"
	"github.com/sandpit-dev/sandpit/internal/fault"
)

// addServer gives the command line the client of a server: one can't be run here.
func addServer(app *cli.App) {
	app.Connect = func(_ context.Context, opt cli.ConnectOptions) (sandpit.Client, bool, error) {
		if opt.Address == "" {
			return nil, false, sandpit.WithHint(fault.Errorf(sandpit.ErrUnsupported, "starting a server: servers run only on Linux"), "set SANDPIT_SERVER and SANDPIT_KEY to use a server on another machine")
		}
		c, err := client.New(client.Options{Address: opt.Address, Key: opt.Key, Namespace: opt.Nested, UserAgent: "sandpit/" + version})
		return c, false, err
	}
	app.Serve = func(context.Context, cli.ServeOptions) error {
		return sandpit.WithHint(fmt.Errorf("serving: %w", sandpit.ErrUnsupported), "run it on Linux")
	}
	app.VerifyAudit = func(context.Context, string, cli.AuditEntry) (string, error) {
		return "", fmt.Errorf("verifying the audit log: %w", sandpit.ErrUnsupported)
	}
}
