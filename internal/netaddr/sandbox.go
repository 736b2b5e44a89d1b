package netaddr

import "net/netip"

// The addresses of a sandbox's network, which are the same in each. Those of IPv4 are for
// benchmarks (RFC 2544), and so are routed nowhere; those of IPv6 are unique local ones (RFC 4193).

// MTU is the size in bytes of the largest packet: the largest of IP, so that a stream needs few
// of them.
const MTU = 65535

// Inside4 and Inside6 return the addresses of the interface inside, with their networks.
func Inside4() netip.Prefix { return netip.MustParsePrefix("198.18.0.2/16") }

// Inside6 is Inside4 for IPv6.
func Inside6() netip.Prefix { return netip.MustParsePrefix("fd73:616e:6470:1::2/64") }

// Gateway4 and Gateway6 return the addresses of the name server.
func Gateway4() netip.Addr { return netip.MustParseAddr("198.18.0.1") }

// Gateway6 is Gateway4 for IPv6.
func Gateway6() netip.Addr { return netip.MustParseAddr("fd73:616e:6470:1::1") }

// Names4 and Names6 return the networks whose addresses stand for names.
func Names4() netip.Prefix { return netip.MustParsePrefix("198.19.0.0/16") }

// Names6 is Names4 for IPv6.
func Names6() netip.Prefix { return netip.MustParsePrefix("fd73:616e:6470:2::/64") }
