// Package network gives the sandboxes of package local a network, as far as their Egress says.
//
//	stack, err := network.New(network.Options{})
//	if err != nil { ... }
//	c, err := local.New(local.Options{Guest: guest, Network: stack})
//	sb, err := c.Create(ctx, sandpit.Spec{Egress: sandpit.Egress{Allow: []string{"pypi.org:443"}}})
//
// It is a package of its own because a TCP/IP stack makes a program larger. The stacks of all
// sandboxes run in this process.
package network

import (
	"net/netip"

	"github.com/sandpit-dev/sandpit/internal/network"
	"github.com/sandpit-dev/sandpit/internal/upstream"
	"github.com/sandpit-dev/sandpit/local"
)

// Options are how connections leave this machine. The zero Options mean directly.
type Options struct {
	// Proxy is the proxy that connections go through: http://, https:// or
	// socks5://[USER:PASSWORD@]HOST[:PORT]. NoProxy are hosts that are connected to
	// directly, separated by commas, in the form of the variable NO_PROXY.
	Proxy, NoProxy string

	// CABundle is a file of certificates in PEM that are trusted beside this machine's, also
	// by programs in sandboxes.
	CABundle string

	// DNS are the name servers for sandboxes that name none. Default: this machine's.
	DNS []netip.AddrPort
}

// New returns what local.Options.Network takes. Errors match sandpit.ErrInvalid.
func New(opt Options) (local.Network, error) {
	roots, err := upstream.ReadRoots(opt.CABundle)
	if err != nil {
		return nil, err
	}
	way, err := upstream.New(upstream.Settings{Proxy: opt.Proxy, NoProxy: opt.NoProxy, Roots: roots, DNS: opt.DNS})
	if err != nil {
		return nil, err
	}
	return network.InProcess{Way: way}, nil
}
