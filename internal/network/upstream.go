package network

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/egress"
	"github.com/sandpit-dev/sandpit/internal/engine"
	"github.com/sandpit-dev/sandpit/internal/fault"
)

// onlyTCP is why something can't go through the upstream proxy.
const onlyTCP = "the upstream proxy carries TCP only"

// proxied reports whether connections to a destination, as it was asked for, go through the upstream
// proxy.
func (s *ruleset) proxied(to egress.Destination) bool {
	host := to.Host
	if host == "" {
		host = to.Addr.String()
	}
	return s.way.Proxies(host, to.Port)
}

// byName reports whether the upstream proxy gets the name of an allowed destination, and resolves it.
// Nobody here sees the addresses then. So it gets only names that a rule vouches for, and none as
// long as addresses are denied.
func (s *ruleset) byName(to egress.Destination) bool {
	return to.Protocol == egress.TCP && to.Host != "" && s.proxied(to) && len(s.rules.Addresses(to.Host)) == 0 && s.rules.MustResolve(to) == ""
}

// lookup returns the addresses of a destination's name.
func (s *ruleset) lookup(ctx context.Context, to egress.Destination) ([]netip.Addr, error) {
	addrs, err := s.resolver.lookup(ctx, to.Host)
	if err != nil && s.proxied(to) {
		return nil, fault.Errorf(sandpit.ErrUnavailable, "it is resolved here and not by the upstream proxy, because %s; allow its name to change that: %w", s.rules.MustResolve(to), err)
	}
	return addrs, err
}

// uncarried says why a destination can't be reached, or "".
func (s *ruleset) uncarried(to egress.Destination) string {
	if to.Protocol == egress.TCP {
		return ""
	}
	addrs := s.rules.Addresses(to.Host)
	if to.Host == "" {
		addrs = []netip.Addr{to.Addr}
	}
	if !s.proxied(to) || slices.ContainsFunc(addrs, func(a netip.Addr) bool { return s.direct(to, a) }) {
		return ""
	}
	return onlyTCP
}

// direct reports whether an address of a destination is connected to without the upstream proxy. Those of
// this machine and its links are other machines' at the proxy.
func (s *ruleset) direct(to egress.Destination, a netip.Addr) bool {
	if !s.proxied(to) || !s.way.Proxies(a.String(), to.Port) || a.IsLinkLocalUnicast() {
		return true
	}
	own, err := s.resolver.ownAddresses()
	return err == nil && slices.Contains(own, a)
}

// connect connects to an address of a destination, which may be dialled.
func (s *ruleset) connect(ctx context.Context, network string, to egress.Destination, a netip.Addr, timeout time.Duration) (net.Conn, error) {
	address := netip.AddrPortFrom(a, to.Port).String()
	switch {
	case s.direct(to, a):
		return (&net.Dialer{Timeout: timeout}).DialContext(ctx, network, address)
	case to.Protocol != egress.TCP:
		return nil, fault.Errorf(sandpit.ErrUnsupported, "%s: %s", to, onlyTCP)
	}
	return s.way.Dial(ctx, address)
}

// refuseUncarried refuses rules that allow what the upstream proxy does not carry.
func (h InProcess) refuseUncarried(e sandpit.Egress) error {
	rules, err := egress.Compile(e)
	if err != nil {
		return err
	}
	set := &ruleset{rules: rules, resolver: newResolver(engine.Terms{}, rules, nil, h.Way), way: h.Way}
	for _, text := range e.Allow {
		parsed, err := egress.ParseRule(text)
		if err != nil {
			return err
		}
		for _, r := range parsed {
			to := egress.Destination{Protocol: r.Protocol, Host: r.Host, Addr: r.Prefix.Addr(), Port: r.Port}
			if r.Wildcard {
				to.Host = "*." + to.Host
			}
			if why := set.uncarried(to); why != "" {
				return sandpit.WithHint(fault.Errorf(sandpit.ErrUnsupported, "rule %q: %s", fault.Clip(text), why),
					"omit it, or ask the operator to name the host in no-proxy, so that it is reached directly")
			}
		}
	}
	return nil
}
