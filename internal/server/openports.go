package server

import (
	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/fault"
	"github.com/sandpit-dev/sandpit/internal/gate"
)

// Requests to open ports have one of these in place of the ID of a preview.
const (
	openOnLoopback = "open-loopback"
	openEverywhere = "open"
)

// openPort is dialect.Server.OpenPort.
func (b *backend) openPort(owner gate.Caller, loopback bool) (gate.Caller, error) {
	p, err := b.policyOf(owner)
	if err != nil {
		return gate.Caller{}, fault.Errorf(sandpit.ErrForbidden, "open ports: %w", err)
	}
	if err := p.AllowOpenPort(loopback); err != nil {
		return gate.Caller{}, err
	}
	if owner.Admin, owner.Preview = false, openEverywhere; loopback {
		owner.Preview = openOnLoopback
	}
	return owner, nil
}

// endOpenPorts ends what clients without a key do at ports that the present policies do not open.
func (b *backend) endOpenPorts(g *gate.Gate) {
	g.EndPreviews(func(c gate.Caller) bool {
		if c.Preview != openOnLoopback && c.Preview != openEverywhere {
			return false
		}
		_, err := b.openPort(c, c.Preview == openOnLoopback)
		return err != nil
	})
}
