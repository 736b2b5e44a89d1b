//go:build !launcher

package main

import (
	"github.com/sandpit-dev/sandpit/internal/engine"
	"github.com/sandpit-dev/sandpit/internal/network"
)

// sandboxNetwork returns what the interfaces of sandboxes lead to.
func sandboxNetwork() engine.Network { return network.Here{} }
