//go:build !launcher

package main

import (
	"context"
	"path/filepath"

	"github.com/sandpit-dev/sandpit/internal/cli"
	"github.com/sandpit-dev/sandpit/internal/cli/commands"
	"github.com/sandpit-dev/sandpit/internal/image"
	"github.com/sandpit-dev/sandpit/internal/image/fetch"
	"github.com/sandpit-dev/sandpit/internal/secret"
)

// carryOut carries out a command line and returns the exit code.
func carryOut(app *cli.App, args []string) int {
	addServer(app)
	app.ReadSecret = secret.Read
	return app.Report(commands.Run(context.Background(), app, args))
}

// openImages opens the image store that is kept in the data directory.
func openImages(home string) *image.Store {
	return image.Open(filepath.Join(home, "images"), image.Options{
		Fetcher: fetch.New(fetch.Options{UserAgent: "sandpit/" + version}),
	})
}
