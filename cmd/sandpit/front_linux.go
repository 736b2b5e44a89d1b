//go:build front

package main

import (
	"context"
	"os"
	"path/filepath"
	"unsafe"

	"github.com/sandpit-dev/sandpit/internal/cli"
	"github.com/sandpit-dev/sandpit/internal/guest/embedded"
	"github.com/sandpit-dev/sandpit/internal/image"
	"github.com/sandpit-dev/sandpit/internal/whole"
)

// carryOut carries out a command line, or becomes the whole program to do so,
// and returns the exit code.
func carryOut(app *cli.App, args []string) int {
	ok, err := app.Front(context.Background(), args)
	if !ok {
		program := unsafe.Slice(unsafe.StringData(wholeProgram), len(wholeProgram))
		err = whole.Program{Bytes: program, Name: embedded.Digest(program)}.Exec(app.DataDir(), os.Args, app.Environ)
	}
	return app.Report(err)
}

// openImages opens the image store that is kept in the data directory, without
// what brings in images.
func openImages(home string) *image.Store {
	return image.Open(filepath.Join(home, "images"), image.Options{})
}
