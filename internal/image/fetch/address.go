package fetch

import (
	"net/netip"
	"sync"
)

// isLocal reports whether an address is this machine's, or its cloud's metadata
// service.
func isLocal(ip netip.Addr) bool {
	return ip.IsLoopback() || ip.IsLinkLocalUnicast() || ip.IsUnspecified() || ip.IsMulticast() || ip.IsInterfaceLocalMulticast()
}

// notPublic are the blocks that are not globally reachable, or lead into IPv4
// ones, of the IANA IPv4 and IPv6 Special-Purpose Address Registries (RFC 6890,
// RFC 8190), beside those of isLocal and the private ones; and a metadata
// service that a cloud has put among the public ones.
var notPublic = sync.OnceValue(func() []netip.Prefix {
	var all []netip.Prefix
	for _, block := range [...]string{
		"0.0.0.0/8",        // this network
		"100.64.0.0/10",    // shared: carriers, and some clouds' metadata services
		"168.63.129.16/32", // Azure's metadata service
		"192.0.0.0/24",     // protocol assignments
		"192.0.2.0/24",     // documentation
		"198.18.0.0/15",    // benchmarks
		"198.51.100.0/24",  // documentation
		"203.0.113.0/24",   // documentation
		"240.0.0.0/4",      // reserved, and broadcast
		"::/96",            // IPv4-compatible, deprecated
		"64:ff9b::/96",     // NAT64: any IPv4 address
		"64:ff9b:1::/48",   // NAT64 of this network
		"100::/64",         // discarded
		"2001::/23",        // protocol assignments, Teredo among them
		"2001:db8::/32",    // documentation
		"2002::/16",        // 6to4: any IPv4 address
		"3fff::/20",        // documentation
		"5f00::/16",        // segment routing
		"fec0::/10",        // site local, deprecated
	} {
		all = append(all, netip.MustParsePrefix(block))
	}
	return all
})

// isPublic reports whether an address is one of the public internet.
func isPublic(ip netip.Addr) bool {
	if ip = ip.Unmap(); isLocal(ip) || ip.IsPrivate() {
		return false
	}
	for _, p := range notPublic() {
		if p.Contains(ip) {
			return false
		}
	}
	return true
}
