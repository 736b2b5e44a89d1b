package egress

import (
	"net/netip"
	"slices"
	"strings"
	"sync"
)

// Ports of name servers: DNS (RFC 1035, section 4.2) and DNS over TLS (RFC 7858, section 3.1).
const (
	dnsPort = 53
	dotPort = 853
)

// isResolver reports whether a destination is a name server for everybody. Presets do not
// allow them, as whoever resolves names elsewhere, over TLS or HTTPS, is not bound by rules
// about names.
func isResolver(d Destination) bool {
	if d.Port == dnsPort || d.Port == dotPort {
		return true
	}
	if d.Host == "" {
		return resolverAddrs()[d.Addr]
	}
	return slices.ContainsFunc(resolverDomains(), func(domain string) bool {
		return d.Host == domain || strings.HasSuffix(d.Host, "."+domain)
	})
}

// resolverDomains are the names of the largest public name servers, as their operators publish
// them. Names below them are theirs, too.
func resolverDomains() []string {
	return []string{
		"cloudflare-dns.com", "one.one.one.one",
		"dns.google", "dns.google.com", "dns64.dns.google",
		"dns.quad9.net", "dns9.quad9.net", "dns10.quad9.net", "dns11.quad9.net", "dns12.quad9.net",
		"dns.opendns.com", "doh.opendns.com", "doh.umbrella.com",
		"adguard-dns.com", "dns.adguard.com", "adguard-dns.io",
		"dns.nextdns.io", "dns.mullvad.net", "doh.cleanbrowsing.org", "freedns.controld.com", "dns.controld.com",
		"doh.dns.sb", "dns.sb", "dns0.eu", "wikimedia-dns.org", "doh.libredns.gr",
		"dns.alidns.com", "doh.pub", "dot.pub", "doh.360.cn",
	}
}

// resolverAddrs are the addresses of the same servers.
var resolverAddrs = sync.OnceValue(func() map[netip.Addr]bool {
	all := map[netip.Addr]bool{}
	for _, a := range [...]string{
		"1.1.1.1", "1.0.0.1", "1.1.1.2", "1.0.0.2", "1.1.1.3", "1.0.0.3",
		"2606:4700:4700::1111", "2606:4700:4700::1001", "2606:4700:4700::64", "2606:4700:4700::6400",
		"8.8.8.8", "8.8.4.4", "2001:4860:4860::8888", "2001:4860:4860::8844", "2001:4860:4860::64", "2001:4860:4860::6464",
		"9.9.9.9", "9.9.9.10", "9.9.9.11", "149.112.112.112", "149.112.112.10", "149.112.112.11", "2620:fe::fe", "2620:fe::9", "2620:fe::10", "2620:fe::11",
		"208.67.222.222", "208.67.220.220", "2620:119:35::35", "2620:119:53::53",
		"94.140.14.14", "94.140.15.15", "94.140.14.15", "94.140.15.16",
		"194.242.2.2", "76.76.2.0", "76.76.10.0", "185.228.168.9", "185.228.169.9", "185.222.222.222", "45.11.45.11", "193.110.81.0", "185.253.5.0",
		"223.5.5.5", "223.6.6.6", "119.29.29.29", "1.12.12.12", "120.53.53.53",
	} {
		all[netip.MustParseAddr(a)] = true
	}
	return all
})
