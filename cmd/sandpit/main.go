// Command sandpit makes sandboxes, runs programs in them and throws them away.
package main

import (
	"context"
	"os"

	"github.com/sandpit-dev/sandpit/internal/cli"
	"github.com/sandpit-dev/sandpit/internal/config"
)

// version is set by the linker in released builds.
var version string

func main() {
	if other := otherPart(os.Args); other != nil {
		other()
		return
	}
	app := newApp()
	os.Exit(app.Report(app.Run(context.Background(), os.Args[1:])))
}

// newApp puts the program together.
func newApp() *cli.App {
	return &cli.App{
		Stdin:        os.Stdin,
		Stdout:       os.Stdout,
		Stderr:       os.Stderr,
		Environ:      os.Environ(),
		SystemConfig: config.SystemFile,
		Version:      version,
		NewClient:    newClient,
		Drivers:      drivers,
	}
}
