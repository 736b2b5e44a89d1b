package netaddr

import (
	"net/netip"
	"testing"
)

func TestIsPublic(t *testing.T) {
	for _, text := range []string{
		"1.1.1.1", "93.184.216.34", "100.63.255.255", "100.128.0.1", "172.15.0.1", "172.32.0.1", "192.0.1.1", "198.20.0.1", "223.255.255.255",
		"2606:4700::1111", "2001:4860:4860::8888", "2a00:1450:4001::1", "::ffff:1.1.1.1", "2001:200::1",
	} {
		if !IsPublic(netip.MustParseAddr(text)) {
			t.Errorf("%s is not public", text)
		}
	}
	for _, text := range []string{
		"0.0.0.0", "0.1.2.3", "10.0.0.1", "100.64.0.1", "100.100.100.200", "127.0.0.1", "127.255.0.1", "169.254.169.254", "172.16.0.1", "172.31.255.255",
		"192.0.0.1", "192.0.0.192", "192.0.2.1", "192.88.99.1", "192.168.0.1", "198.18.0.1", "198.19.255.255", "198.51.100.1", "203.0.113.1", "224.0.0.1",
		"240.0.0.1", "255.255.255.255", "168.63.129.16",
		"::", "::1", "::127.0.0.1", "::10.0.0.1", "::ffff:10.0.0.1", "::ffff:a9fe:a9fe", "64:ff9b::a00:1", "64:ff9b:1::1", "100::1", "fc00::1",
		"fd00:ec2::254", "fe80::1", "fe80::1%eth0", "2606:4700::1111%eth0", "ff02::1", "fec0::1", "5f00::1", "2001::1", "2001:10::1", "2001:db8::1",
		"2002:a00:1::1", "3fff::1",
	} {
		if IsPublic(netip.MustParseAddr(text)) {
			t.Errorf("%s is public", text)
		}
	}
	if IsPublic(netip.Addr{}) {
		t.Error("the zero address is public")
	}
}

func TestIsLocal(t *testing.T) {
	for text, want := range map[string]bool{
		"127.0.0.1": true, "::1": true, "::ffff:127.0.0.1": true, "169.254.169.254": true, "fe80::1": true, "0.0.0.0": true, "::": true, "ff02::1": true,
		"10.0.0.1": false, "fd00::1": false, "1.1.1.1": false, "2606:4700::1111": false,
	} {
		if got := IsLocal(netip.MustParseAddr(text)); got != want {
			t.Errorf("IsLocal(%s) is %v", text, got)
		}
	}
}

func TestNetworks(t *testing.T) {
	for text, want := range map[string][2]bool{ // public, private
		"1.1.1.0/24": {true, false}, "0.0.0.0/0": {false, false}, "100.0.0.0/8": {false, false},
		"10.0.0.0/8": {false, true}, "10.0.0.0/7": {false, false}, "192.168.1.0/24": {false, true}, "172.16.0.0/11": {false, false},
		"2606:4700::/32": {true, false}, "::/0": {false, false}, "fd12::/16": {false, true}, "fd00:ec2::/32": {false, false}, "fc00::/7": {false, false},
		"fd00:ec2::23/128": {false, false}, "fd20:ce::254/128": {false, false}, "fd20::/16": {false, false}, "fd00:c1::a9fe:a9fe/128": {false, false}, "fd00:42::42/128": {false, false},
	} {
		p := netip.MustParsePrefix(text)
		if IsPublicNet(p) != want[0] || IsPrivateNet(p) != want[1] {
			t.Errorf("%s: public %v, private %v", p, IsPublicNet(p), IsPrivateNet(p))
		}
	}
	if got := Last(netip.MustParsePrefix("10.1.2.0/23")); got != netip.MustParseAddr("10.1.3.255") {
		t.Errorf("the last address is %s", got)
	}
}
