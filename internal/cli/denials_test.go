package cli

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sandpit-dev/sandpit"
)

// Learning yields one rule for each destination that was reached, in order.
func TestLearned(t *testing.T) {
	allowed := sandpit.EgressDecision{Allowed: true}
	flows := []sandpit.Flow{
		{Protocol: "tcp", Host: "b.test", Port: 443, Address: "192.0.2.1:443", EgressDecision: allowed},
		{Protocol: "tcp", Host: "a.test", Port: 80, EgressDecision: allowed, Error: "refused"},
		{Protocol: "tcp", Host: "b.test", Port: 443, Address: "192.0.2.2:443", EgressDecision: allowed, Open: true},
		{Protocol: "tcp", Address: "[2001:db8::1]:22", Port: 22, EgressDecision: allowed},
		{Protocol: "udp", Host: "a.test", Port: 53, EgressDecision: allowed},
		{Protocol: "ping", Host: "a.test", EgressDecision: allowed},
		{Protocol: "dns", Host: "c.test", EgressDecision: allowed},
		{Protocol: "tcp", Host: "d.test", Port: 443},
	}
	want := []string{"[2001:db8::1]:22", "a.test:80", "b.test:443", "ping:a.test", "udp:a.test:53"}
	if diff := cmp.Diff(want, Learned(flows)); diff != "" {
		t.Error(diff)
	}
	if got := Learned(nil); got == nil || len(got) != 0 {
		t.Errorf("of nothing: %v", got)
	}
}
