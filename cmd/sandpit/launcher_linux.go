//go:build launcher

package main

import (
	"context"
	"os"
	"path/filepath"
	"unsafe"

	"github.com/sandpit-dev/sandpit/internal/cli"
	"github.com/sandpit-dev/sandpit/internal/engine"
	"github.com/sandpit-dev/sandpit/internal/fullprogram"
	"github.com/sandpit-dev/sandpit/internal/guest/embedded"
	"github.com/sandpit-dev/sandpit/internal/image"
)

// carryOut carries out a command line, or becomes the full program to do so,
// and returns the exit code.
func carryOut(app *cli.App, args []string) int {
	ok, err := app.Launch(context.Background(), args)
	if !ok {
		program := unsafe.Slice(unsafe.StringData(fullProgram), len(fullProgram))
		err = fullprogram.Program{Bytes: program, Name: embedded.Digest(program)}.Exec(app.DataDir(), os.Args, app.Environ)
	}
	return app.Report(err)
}

// openImages opens the image store that is kept in the data directory, without
// what brings in images.
func openImages(home string) *image.Store {
	return image.Open(filepath.Join(home, "images"), image.Options{})
}

// sandboxNetwork returns nil: Launch leaves a command line that needs a network to the full
// program.
func sandboxNetwork(cli.Upstream) (engine.Network, error) { return nil, nil }

// networkProcess returns nil: only servers start that process, and they are full programs.
func networkProcess([]string) func() int { return nil }
