package network

import (
	"context"
	"os"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/authority"
	"github.com/sandpit-dev/sandpit/internal/egress"
	"github.com/sandpit-dev/sandpit/internal/engine"
)

// Here gives sandboxes their networks in this process.
type Here struct{}

var _ engine.Network = Here{}

// Join makes the network of a sandbox. See engine.Network.
func (Here) Join(_ context.Context, file *os.File, t engine.Terms) (engine.Joined, error) {
	n, err := New(file, t)
	if err != nil {
		return nil, err
	}
	return joined{n}, nil
}

// Authority makes the authority of a sandbox. See engine.Network.
func (Here) Authority(t engine.Terms) (ca, certificate []byte, err error) {
	rules, err := egress.Compile(t.Egress)
	if err != nil || len(t.Secrets) == 0 && rules.AboutRequests() == "" {
		return nil, nil, err
	}
	ca, err = authority.New()
	return ca, authority.Certificate(ca), err
}

// Beyond checks e. See engine.Network.
func (Here) Beyond(e sandpit.Egress, allowed, addresses []string) (part, what string, err error) {
	return egress.Beyond(e, allowed, addresses)
}

// Decide says whether e allows a destination. See engine.Network.
func (Here) Decide(e sandpit.Egress, destination string) (sandpit.EgressDecision, error) {
	return egress.Decide(e, destination)
}

// joined is a Network as the engine uses it.
type joined struct{ *Network }

// Set changes what the sandbox may reach. See engine.Joined.
func (j joined) Set(_ context.Context, t engine.Terms) error { return j.Network.Set(t) }

// Log returns the last connections. See engine.Joined.
func (j joined) Log(context.Context) (sandpit.EgressLog, error) { return j.flows.log(), nil }

// Close ends the network. See engine.Joined.
func (j joined) Close() error {
	j.Network.Close()
	return nil
}
