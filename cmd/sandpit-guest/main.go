// A guest does not look at cgroups to choose how many processors to use, nor
// look again every few seconds: that costs start time and wakes an idle
// sandbox.
//
//go:debug containermaxprocs=0
//go:debug updatemaxprocs=0

// Command sandpit-guest is the first process of every sandbox. It is started
// by sandpit, not by people: see docs/guest-protocol.md.
package main

import (
	"os"

	"github.com/sandpit-dev/sandpit/internal/guest/server"
)

func main() { os.Exit(server.Main(os.Args)) }
