package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"path/filepath"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/cli"
	"github.com/sandpit-dev/sandpit/internal/driver"
	"github.com/sandpit-dev/sandpit/internal/driver/linux"
	"github.com/sandpit-dev/sandpit/internal/engine"
	"github.com/sandpit-dev/sandpit/internal/guest/embedded"
	"github.com/sandpit-dev/sandpit/internal/policy"
)

// newClient opens the engine on this machine's kernel.
func newClient(opt cli.ClientOptions) (sandpit.Client, error) {
	return engine.New(engine.Options{
		Driver:  newDriver(opt.Home),
		Images:  openImages(opt.Home),
		Policy:  policy.Default(),
		Acquire: opt.Acquire,
		Trace:   opt.Trace,
	}), nil
}

// drivers returns the drivers that sandpit doctor looks at.
func drivers(home string) []driver.Driver { return []driver.Driver{newDriver(home)} }

func newDriver(home string) *linux.Driver {
	guest := embedded.Guest()
	return linux.New(linux.Options{
		Dir:         filepath.Join(home, "guest"),
		Guest:       guest,
		GuestDigest: digestOf(guest),
		KeepDir:     filepath.Join(home, "run"),
	})
}

// digestOf tells one build of a program from another without reading it whole,
// which would take milliseconds of every start: the first page of a program
// made by Go has its build id, and that a hash of all the rest (see
// cmd/internal/buildid). Empty for a program without one.
func digestOf(program []byte) string {
	head := program[:min(len(program), 4096)]
	if !bytes.Contains(head, []byte("Go\x00\x00")) { // the name of the note that has the build id
		return ""
	}
	sum := sha256.Sum256(binary.LittleEndian.AppendUint64(bytes.Clone(head), uint64(len(program))))
	return hex.EncodeToString(sum[:8])
}
