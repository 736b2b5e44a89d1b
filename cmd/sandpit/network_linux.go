//go:build !launcher

package main

import (
	"net/netip"

	"github.com/sandpit-dev/sandpit/internal/cli"
	"github.com/sandpit-dev/sandpit/internal/engine"
	"github.com/sandpit-dev/sandpit/internal/network"
	"github.com/sandpit-dev/sandpit/internal/network/apart"
	"github.com/sandpit-dev/sandpit/internal/upstream"
)

// sandboxNetwork returns what the interfaces of sandboxes lead to.
func sandboxNetwork(u cli.Upstream) (engine.Network, error) {
	way, err := wayOf(u, nil)
	return network.InProcess{Way: way}, err
}

// wayOf reads how connections leave this machine.
func wayOf(u cli.Upstream, dns []netip.AddrPort) (*upstream.Way, error) {
	roots, err := upstream.ReadRoots(u.CABundle)
	if err != nil {
		return nil, err
	}
	return upstream.New(upstream.Settings{Proxy: u.Proxy, NoProxy: u.NoProxy, Roots: roots, DNS: dns})
}

// networkProcess lets this program keep the networks of a server's sandboxes.
func networkProcess(args []string) func() int {
	if apart.IsProcess(args) {
		return apart.Process
	}
	return nil
}
