package fetch

import (
	"net/netip"
	"testing"
)

func TestIsPublic(t *testing.T) {
	for text, want := range map[string]bool{
		"1.1.1.1": true, "93.184.216.34": true, "172.15.0.1": true, "172.32.0.1": true, "100.63.255.255": true, "223.255.255.255": true,
		"2606:4700:4700::1111": true, "2a00:1450:4001::1": true, "::ffff:1.1.1.1": true,
		"10.0.0.1": false, "172.16.0.1": false, "172.31.255.255": false, "192.168.1.1": false, "127.0.0.1": false, "127.9.9.9": false,
		"0.0.0.0": false, "0.1.2.3": false, "169.254.169.254": false, "100.64.0.1": false, "100.100.100.200": false, "168.63.129.16": false,
		"192.0.0.192": false, "198.18.0.1": false, "224.0.0.1": false, "255.255.255.255": false, "240.0.0.1": false,
		"::": false, "::1": false, "::ffff:10.0.0.1": false, "::ffff:169.254.169.254": false, "::10.0.0.1": false, "64:ff9b::a00:1": false,
		"64:ff9b:1::1": false, "fe80::1": false, "fc00::1": false, "fd00:ec2::254": false, "ff02::1": false, "2002:a00:1::": false,
		"2001:db8::1": false, "2001::1": false, "fec0::1": false, "100::1": false,
	} {
		if got := isPublic(netip.MustParseAddr(text)); got != want {
			t.Errorf("isPublic(%s) is %v", text, got)
		}
	}
}
