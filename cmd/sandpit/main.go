// This program does not look at cgroups to choose how many processors to use,
// nor look again every few seconds: that is 0.2 ms of every start.
//
//go:debug containermaxprocs=0
//go:debug updatemaxprocs=0

// Command sandpit makes sandboxes, runs programs in them and throws them away.
package main

import (
	"context"
	"os"
	"path/filepath"

	"github.com/sandpit-dev/sandpit/internal/cli"
	"github.com/sandpit-dev/sandpit/internal/config"
	"github.com/sandpit-dev/sandpit/internal/image"
	"github.com/sandpit-dev/sandpit/internal/image/fetch"
)

// version is set by the linker in released builds.
var version string

func main() {
	if other := otherPart(os.Args); other != nil {
		os.Exit(other())
	}
	app := &cli.App{
		Stdin:        os.Stdin,
		Stdout:       os.Stdout,
		Stderr:       os.Stderr,
		Environ:      os.Environ(),
		SystemConfig: config.SystemFile,
		Version:      version,
		NewClient:    newClient,
		Drivers:      drivers,
		OpenImages:   openImages,
	}
	os.Exit(app.Report(app.Run(context.Background(), os.Args[1:])))
}

// openImages opens the image store that is kept in the data directory.
func openImages(home string) *image.Store {
	return image.Open(filepath.Join(home, "images"), image.Options{
		Fetcher: fetch.New(fetch.Options{UserAgent: "sandpit/" + version}),
	})
}
