package server_test

import (
	"slices"
	"testing"

	v1 "github.com/sandpit-dev/sandpit/internal/api/v1"
	"github.com/sandpit-dev/sandpit/internal/driver/linux"
	"github.com/sandpit-dev/sandpit/internal/feature"
	"github.com/sandpit-dev/sandpit/internal/network"
	"github.com/sandpit-dev/sandpit/internal/server"
)

// A server tells every feature of its driver, and each limit that a change may set.
func TestCapabilities(t *testing.T) {
	t.Parallel()
	s := newServed(t)
	s.change = func(opt *server.Options) { opt.Network = network.InProcess{} }
	s.start()
	var got v1.Capabilities
	c := s.unix()
	defer c.Close()
	if err := c.Call(t.Context(), "GET", "/v1/capabilities", nil, &got); err != nil {
		t.Fatal(err)
	}
	want := linux.New(linux.Options{}).Probe(t.Context())
	for _, f := range feature.All() {
		if is, ok := got.Enforced[string(f)]; !ok || is != want.Features[f] {
			t.Errorf("enforced %s: %v, %v", f, is, ok)
		}
	}
	for _, f := range feature.Changeable() {
		if is, ok := got.Changeable[string(f)]; !ok || is != want.Changeable[f] {
			t.Errorf("changeable %s: %v, %v", f, is, ok)
		}
	}
	if len(got.Enforced) != len(feature.All()) || len(got.Changeable) != len(feature.Changeable()) {
		t.Errorf("got %+v", got)
	}
	for _, name := range []string{"egress", "ping"} {
		if !slices.Contains(got.Features, name) {
			t.Errorf("features: %v", got.Features)
		}
	}
}

// A server that has no network for sandboxes does not list egress.
func TestCapabilitiesWithoutNetwork(t *testing.T) {
	t.Parallel()
	s := newServed(t)
	s.start()
	var got v1.Capabilities
	c := s.unix()
	defer c.Close()
	if err := c.Call(t.Context(), "GET", "/v1/capabilities", nil, &got); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"egress", "ping"} {
		gap := slices.ContainsFunc(got.Gaps, func(g v1.Gap) bool { return g.What == name && g.Why != "" && g.Fix != "" })
		if slices.Contains(got.Features, name) || got.Enforced[name] || !gap {
			t.Errorf("%s: %+v", name, got)
		}
	}
}
