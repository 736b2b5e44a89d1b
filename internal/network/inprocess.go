package network

import (
	"context"
	"net/netip"
	"os"
	"slices"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/authority"
	"github.com/sandpit-dev/sandpit/internal/egress"
	"github.com/sandpit-dev/sandpit/internal/engine"
	"github.com/sandpit-dev/sandpit/internal/fault"
	"github.com/sandpit-dev/sandpit/internal/upstream"
)

// InProcess gives sandboxes their networks in this process.
type InProcess struct {
	Way *upstream.Way // by which connections are made; nil: directly
}

var _ engine.Network = InProcess{}

// Join makes the network of a sandbox. See engine.Network.
func (h InProcess) Join(_ context.Context, file *os.File, t engine.Terms) (engine.Joined, error) {
	n, err := New(file, t, h.Way, nil, NewSockets())
	if err != nil {
		return nil, err
	}
	return joined{n}, nil
}

// Authority makes the authority of a sandbox. See engine.Network.
func (h InProcess) Authority(t engine.Terms) (ca, own, operators []byte, err error) {
	operators = h.Way.Settings().Roots
	rules, err := egress.Compile(t.Egress)
	if err != nil || len(t.Secrets) == 0 && rules.AboutRequests() == "" {
		return nil, nil, operators, err
	}
	ca, err = authority.New()
	return ca, authority.Certificate(ca), operators, err
}

// Own returns the addresses of this machine that e names. See engine.Network.
func (h InProcess) Own(e sandpit.Egress) ([]netip.Addr, error) {
	rules, err := egress.Compile(e)
	if err != nil {
		return nil, err
	}
	servers, err := egress.Servers(e.DNS)
	if err != nil {
		return nil, err
	}
	if len(servers) == 0 && !rules.MentionsAny() {
		return nil, nil // asking the kernel takes longer than all else here
	}
	own, err := machineAddresses()
	return slices.DeleteFunc(own, func(a netip.Addr) bool {
		return !rules.Mentions(a) && !slices.ContainsFunc(servers, func(s netip.AddrPort) bool { return s.Addr() == a })
	}), err
}

// Excess checks e. See engine.Network.
func (h InProcess) Excess(e sandpit.Egress, allowed, addresses []string) (part, what string, err error) {
	if err := h.refuseUncarried(e); err != nil {
		return "", "", err
	}
	if err := egress.RefuseLoopback(e); err != nil {
		return "", "", err
	}
	part, what, err = egress.Excess(e, allowed, addresses)
	if part != "" || err != nil || len(allowed)+len(addresses) == 0 {
		return part, what, err
	}
	own, err := machineAddresses()
	if err != nil {
		return "", "", err
	}
	return excessOwn(e, allowed, addresses, own)
}

// Narrows compares rules. See engine.Network.
func (h InProcess) Narrows(e, was sandpit.Egress) bool { return egress.Narrows(e, was) }

// Within splits rules. See engine.Network.
func (h InProcess) Within(rules, allowed []string) (within, others []string, err error) {
	return egress.Within(rules, allowed)
}

// excessOwn is egress.Excess for what names addresses of this machine. Presets, and public
// addresses in general, do not: a service here may trust callers from here.
func excessOwn(e sandpit.Egress, allowed, addresses []string, own []netip.Addr) (part, what string, err error) {
	isOwn := func(a netip.Addr) bool { return slices.Contains(own, a) }
	var named sandpit.Egress
	for _, text := range e.Allow {
		rules, err := egress.ParseRule(text)
		if err != nil {
			return "", "", err
		}
		if slices.ContainsFunc(rules, func(r egress.Rule) bool { return r.Host == "" && slices.ContainsFunc(own, r.Prefix.Contains) }) {
			named.Allow = append(named.Allow, text)
		}
	}
	for _, text := range e.Resolve {
		if _, a, err := egress.ParseResolve(text); err != nil {
			return "", "", err
		} else if isOwn(a) {
			named.Resolve = append(named.Resolve, text)
		}
	}
	for _, text := range e.DNS {
		if servers, err := egress.Servers([]string{text}); err != nil {
			return "", "", err
		} else if isOwn(servers[0].Addr()) {
			named.DNS = append(named.DNS, text)
		}
	}
	general := func(text string) bool {
		return text == egress.PublicAddresses || text == string(sandpit.EgressAll)
	}
	return egress.Excess(named, slices.DeleteFunc(slices.Clone(allowed), general), slices.DeleteFunc(slices.Clone(addresses), general))
}

// Decide says whether t allows a destination, and whether it may be dialled if it is an address. See
// engine.Network.
func (h InProcess) Decide(t engine.Terms, destination string) (sandpit.EgressDecision, error) {
	rules, err := egress.Compile(t.Egress)
	if err != nil {
		return sandpit.EgressDecision{}, err
	}
	to, err := egress.ParseDestination(destination)
	if err != nil {
		return sandpit.EgressDecision{}, err
	}
	d := rules.Decide(to)
	set := &ruleset{rules: rules, resolver: newResolver(t, rules, nil, h.Way), way: h.Way}
	if why := set.uncarried(to); d.Allowed && why != "" {
		return sandpit.EgressDecision{Why: why}, nil
	}
	if !d.Allowed || to.Host != "" {
		return d, nil
	}
	if verdict := set.dialable(to, to.Addr); !verdict.Allowed {
		return verdict, nil
	}
	return d, nil
}

// joined is a Network as the engine uses it.
type joined struct{ *Network }

// Set changes what the sandbox may reach. See engine.Joined.
func (j joined) Set(_ context.Context, t engine.Terms) error {
	if j.ctx.Err() != nil {
		return errLeft
	}
	return j.Network.Set(t)
}

// Log returns the last connections. See engine.Joined.
func (j joined) Log(context.Context) (sandpit.EgressLog, error) {
	if j.ctx.Err() != nil {
		return sandpit.EgressLog{}, errLeft
	}
	return j.flows.log(), nil
}

var errLeft = fault.Errorf(sandpit.ErrClosed, "the sandbox has no network any more")

// Close ends the network. See engine.Joined.
func (j joined) Close() error {
	j.Network.Close()
	return nil
}
