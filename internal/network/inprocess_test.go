package network

import (
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/network/networktest"
)

func TestNetworkInThisProcess(t *testing.T) { networktest.Test(t, InProcess{}) }

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
		if part, what, err := excessOwn(c.asked, c.allowed, c.addresses, own); part != c.part || err != nil {
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
		if d, err := (InProcess{}).Decide(granted(t, sandpit.Egress{Preset: sandpit.EgressAll}), netip.AddrPortFrom(a, 80).String()); err != nil || d.Allowed {
			t.Errorf("%s: %+v, %v", a, d, err)
		}
	}
	d, err := InProcess{}.Decide(granted(t, sandpit.Egress{Allow: []string{"127.0.0.1"}}), "127.0.0.1:80")
	if err != nil || !d.Allowed {
		t.Errorf("127.0.0.1: %+v, %v", d, err)
	}
}

// An address that becomes this machine's after the rules were granted is not reached, although they name
// it: neither by address, nor by name, nor as a name server.
func TestLaterOwnAddressesAreNotReached(t *testing.T) {
	origin := listen(t, echo)
	server := serveNamesOutside(t, func(string, int) []string { return []string{"127.0.0.1"} })
	for _, e := range []sandpit.Egress{
		{Allow: []string{"127.0.0.0/8", "good.test"}, Resolve: []string{"good.test:127.0.0.1"}},
		{Allow: []string{"127.0.0.0/8", "good.test", "other.test"}, DNS: []string{server.addr}},
	} {
		terms := granted(t, e)
		if len(terms.Own) != 1 {
			t.Fatalf("%+v names %v", e, terms.Own)
		}
		in := joinOn(t, terms)
		if err := roundTrip(in.must(at("good.test", origin))); err != nil {
			t.Fatal(err)
		}
		terms.Own = nil // it came later
		if err := in.net.Set(terms); err != nil {
			t.Fatal(err)
		}
		const why = "has become this machine's own"
		if d, err := (InProcess{}).Decide(terms, origin.String()); err != nil || d.Allowed || !strings.Contains(d.Why, why) {
			t.Errorf("%+v, %v", d, err)
		}
		if len(e.DNS) == 0 {
			in.refuses(at("good.test", origin), at("good.test", origin), why)
			continue
		}
		before := len(server.questions())
		if _, err := in.net.rules.Load().resolver.lookup(t.Context(), "other.test"); err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("the name server: %v", err)
		}
		if len(server.questions()) != before {
			t.Error("a name server was asked")
		}
	}
	if terms := granted(t, sandpit.Egress{Preset: sandpit.EgressAll, Allow: []string{"good.test"}}); len(terms.Own) > 0 {
		t.Errorf("a name and a preset name %v", terms.Own)
	}
}

// Errors of lookups do not name the operator's name servers.
func TestLookupErrorsHideNameServers(t *testing.T) {
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed := conn.LocalAddr().String()
	conn.Close()
	e := sandpit.Egress{Allow: []string{"good.test"}, DNS: []string{closed}}
	in := join(t, e)
	if _, err := in.dial("good.test:80"); err == nil {
		t.Fatal("a name without addresses can be reached")
	}
	var failed string
	in.wait("a failed lookup", func() bool {
		for _, f := range in.net.Log().Flows {
			failed += f.Error
		}
		return failed != ""
	})
	if strings.Contains(failed, "127.0.0.1") || !strings.Contains(failed, "good.test: connection refused") {
		t.Error(failed)
	}
}

// With name servers that the operator or the caller has named, /etc/hosts does not answer.
func TestHostsFileIsNotAnswer(t *testing.T) {
	server := serveNamesOutside(t, func(string, int) []string { return []string{"192.0.2.1"} })
	in := join(t, sandpit.Egress{Allow: []string{"good.test"}, DNS: []string{server.addr}})
	for _, name := range []string{"localhost", "good.test"} {
		addrs, err := in.net.rules.Load().resolver.lookup(t.Context(), name)
		for _, a := range addrs {
			if a.IsLoopback() {
				t.Errorf("%s: %v", name, addrs)
			}
		}
		if name == "good.test" && err != nil {
			t.Error(err)
		}
	}
}
