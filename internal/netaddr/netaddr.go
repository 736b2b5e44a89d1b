// Package netaddr says which addresses belong to the public internet. A request that
// somebody else controls must not reach anything else: loopback, private networks and
// the metadata services of clouds trust whoever can connect to them.
package netaddr

import (
	"net/netip"
	"slices"
	"sync"
)

// IsLocal reports whether an address is this machine's own, or on one of its links, as the
// metadata services of most clouds are, or not of a single host.
func IsLocal(a netip.Addr) bool {
	a = a.Unmap()
	return a.IsLoopback() || a.IsLinkLocalUnicast() || a.IsUnspecified() || a.IsMulticast()
}

// IsPublic reports whether an address is globally reachable according to the IANA IPv4
// and IPv6 Special-Purpose Address Registries (RFC 6890, RFC 8190), and is not a cloud's
// metadata service. IPv6 addresses that hold an IPv4 address are not public.
func IsPublic(a netip.Addr) bool {
	a = a.Unmap()
	if !a.IsValid() || a.Zone() != "" || a.IsPrivate() || IsLocal(a) || a.Is6() && !globalUnicast().Contains(a) {
		return false
	}
	for _, block := range special() {
		if block.Contains(a) {
			return false
		}
	}
	return true
}

// IsPublicNet reports whether every address of a network is public.
func IsPublicNet(p netip.Prefix) bool {
	if !IsPublic(p.Masked().Addr()) {
		return false
	}
	overlaps := func(block netip.Prefix) bool { return block.Overlaps(p) }
	return !slices.ContainsFunc(special(), overlaps) && !slices.ContainsFunc(private4(), overlaps) && (p.Addr().Is4() || p.Bits() >= globalUnicast().Bits())
}

// private4 are the blocks of IPv4 of which IsLocal and IsPrivate speak (RFC 1122, 1918, 3927,
// 5771). Those of IPv6 lie outside of globalUnicast.
var private4 = sync.OnceValue(func() (all []netip.Prefix) {
	for _, block := range [...]string{"10.0.0.0/8", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.168.0.0/16", "224.0.0.0/4"} {
		all = append(all, netip.MustParsePrefix(block))
	}
	return all
})

// IsPrivate reports whether an address belongs to a private network (RFC 1918, RFC 4193), and
// is not a cloud's metadata service.
func IsPrivate(a netip.Addr) bool {
	a = a.Unmap()
	return a.IsPrivate() && a.Zone() == "" && !slices.ContainsFunc(metadata6(), func(block netip.Prefix) bool { return block.Contains(a) })
}

// IsPrivateNet reports whether every address of a network is private.
func IsPrivateNet(p netip.Prefix) bool {
	return IsPrivate(p.Masked().Addr()) && IsPrivate(Last(p)) && !slices.ContainsFunc(metadata6(), p.Overlaps)
}

// Last returns the last address of a network.
func Last(p netip.Prefix) netip.Addr {
	b := p.Addr().AsSlice()
	for i := p.Bits(); i < len(b)*8; i++ {
		b[i/8] |= 0x80 >> (i % 8)
	}
	a, _ := netip.AddrFromSlice(b)
	return a
}

// metadata6 are metadata services of clouds, and what hands out their credentials, among the
// private addresses of IPv6, as the providers document them.
var metadata6 = sync.OnceValue(func() (all []netip.Prefix) {
	for _, block := range [...]string{
		"fd00:ec2::/32",       // Amazon: instances, time, DNS, and Pod Identity of EKS
		"fd20:ce::/32",        // Google
		"fd00:c1::/32",        // Oracle
		"fd00:42::/32",        // Scaleway
		"fd00:a9fe:a9fe::/48", // Akamai (Linode)
		"fd00:100::/32",       // Alibaba
	} {
		all = append(all, netip.MustParsePrefix(block))
	}
	return all
})

// globalUnicast is the only part of IPv6 from which addresses are assigned (RFC 4291,
// section 2.4, and IANA's registry of IPv6 addresses).
func globalUnicast() netip.Prefix {
	return netip.PrefixFrom(netip.AddrFrom16([16]byte{0: 0x20}), 3)
}

// special are the blocks that are not public beside those of IsLocal, private ones, and
// IPv6 outside of globalUnicast.
var special = sync.OnceValue(func() (all []netip.Prefix) {
	for _, block := range [...]string{
		"0.0.0.0/8",        // this network
		"100.64.0.0/10",    // shared: carriers, and metadata services of some clouds
		"168.63.129.16/32", // Azure's metadata service
		"192.0.0.0/24",     // protocol assignments
		"192.0.2.0/24",     // documentation
		"192.88.99.0/24",   // formerly relays to IPv6 (RFC 7526)
		"198.18.0.0/15",    // benchmarks
		"198.51.100.0/24",  // documentation
		"203.0.113.0/24",   // documentation
		"240.0.0.0/4",      // reserved, and broadcast
		"2001::/23",        // protocol assignments, Teredo among them
		"2001:db8::/32",    // documentation
		"2002::/16",        // 6to4: any IPv4 address
		"3fff::/20",        // documentation
	} {
		all = append(all, netip.MustParsePrefix(block))
	}
	return all
})
