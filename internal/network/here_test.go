package network

import (
	"net/netip"
	"testing"

	"github.com/sandpit-dev/sandpit"
)

// A policy that allows public addresses does not allow those of this machine, unless it names them.
func TestOwnAddressesAreNamed(t *testing.T) {
	own := []netip.Addr{netip.MustParseAddr("1.2.3.4"), netip.MustParseAddr("2606:4700::1"), netip.MustParseAddr("10.0.0.1")}
	public := []string{"public"}
	for _, c := range []struct {
		asked              sandpit.Egress
		allowed, addresses []string
		part               string
	}{
		{sandpit.Egress{Preset: "public", Allow: []string{"a.test", "1.2.3.5", "git-hosts"}, Resolve: []string{"a.test:1.2.3.5"}, DNS: []string{"9.9.9.9"}}, public, public, ""},
		{sandpit.Egress{Allow: []string{"1.2.3.4:22"}}, public, public, "egress"},
		{sandpit.Egress{Allow: []string{"1.2.3.0/24"}}, public, public, "egress"},
		{sandpit.Egress{Allow: []string{"[2606:4700::1]:22"}}, public, public, "egress"},
		{sandpit.Egress{Allow: []string{"10.0.0.0/8"}}, []string{"all"}, public, "egress"},
		{sandpit.Egress{Allow: []string{"10.0.0.2"}}, []string{"all"}, public, ""},
		{sandpit.Egress{Allow: []string{"1.2.3.4:22"}}, []string{"public", "1.2.3.4:22"}, public, ""},
		{sandpit.Egress{Resolve: []string{"a.test:1.2.3.4"}}, public, public, "resolve"},
		{sandpit.Egress{Resolve: []string{"a.test:1.2.3.4"}}, public, []string{"public", "1.2.3.4"}, ""},
		{sandpit.Egress{DNS: []string{"1.2.3.4"}}, public, public, "dns"},
	} {
		if part, what, err := beyondOwn(c.asked, c.allowed, c.addresses, own); part != c.part || err != nil {
			t.Errorf("%+v with %v, %v: %q, %q, %v", c.asked, c.allowed, c.addresses, part, what, err)
		}
	}
}

// An address of this machine is not reported as allowed, unless a rule names it.
func TestOwnAddressesAreReportedAsDenied(t *testing.T) {
	own, err := machineAddresses()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range own {
		if d, err := (Here{}).Decide(sandpit.Egress{Preset: sandpit.EgressAll}, netip.AddrPortFrom(a, 80).String()); err != nil || d.Allowed {
			t.Errorf("%s: %+v, %v", a, d, err)
		}
	}
	d, err := Here{}.Decide(sandpit.Egress{Allow: []string{"127.0.0.1"}}, "127.0.0.1:80")
	if err != nil || !d.Allowed {
		t.Errorf("127.0.0.1: %+v, %v", d, err)
	}
}
