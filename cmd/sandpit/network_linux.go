//go:build !launcher

package main

import (
	"github.com/sandpit-dev/sandpit/internal/engine"
	"github.com/sandpit-dev/sandpit/internal/network"
	"github.com/sandpit-dev/sandpit/internal/network/apart"
)

// sandboxNetwork returns what the interfaces of sandboxes lead to.
func sandboxNetwork() engine.Network { return network.Here{} }

// networkProcess lets this program keep the networks of a server's sandboxes.
func networkProcess(args []string) func() int {
	if apart.IsProcess(args) {
		return apart.Process
	}
	return nil
}
