// This program does not follow the processor limit of its cgroup, which would
// keep files open and a goroutine that looks again every few seconds.
//
//go:debug containermaxprocs=0
//go:debug updatemaxprocs=0

// Command sandpit makes sandboxes, runs programs in them and throws them away.
//
// It is built in two forms. A plain `go install` makes the full program. What
// `make build` makes for Linux is its launcher (tag launcher): the commands that must
// start quickly, and the full program as data, which it executes for any other.
package main

import (
	"fmt"
	"os"
	"syscall"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/cli"
	"github.com/sandpit-dev/sandpit/internal/config"
)

// version is set by the linker in released builds.
var version string

func main() {
	if other := otherPart(os.Args); other != nil {
		os.Exit(other())
	}
	app := &cli.App{
		Stdin:         os.Stdin,
		Stdout:        os.Stdout,
		Stderr:        os.Stderr,
		Environ:       os.Environ(),
		SystemConfig:  config.SystemFile,
		Version:       version,
		NewClient:     newClient,
		Drivers:       drivers,
		FilesInMemory: true, // of package driver/linux
		OpenImages:    openImages,
	}
	if err := checkFiles(); err != nil {
		os.Exit(app.Report(err))
	}
	os.Exit(carryOut(app, os.Args[1:]))
}

// leastFiles is the number of open files that this program needs to find out what it is to do.
// With fewer, the Go runtime may abort it.
const leastFiles = 16

func checkFiles() error {
	var lim syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &lim); err != nil || lim.Cur >= leastFiles {
		return nil //nolint:nilerr // the limit is unknown, and may be high enough
	}
	return sandpit.WithHint(fmt.Errorf("this program may open only %d files", lim.Cur), "raise the limit to at least 64 (ulimit -n)")
}

// otherPart returns what this program is when it is not the command line, by
// the name under which it was started; or nil.
func otherPart(args []string) func() int {
	if cli.IsGuard(args) {
		return cli.GuardTerminal
	}
	if other := networkProcess(args); other != nil {
		return other
	}
	return ownGuest(args)
}
