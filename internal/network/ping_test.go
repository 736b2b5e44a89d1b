package network

import (
	"context"
	"encoding/binary"
	"net"
	"net/netip"
	"testing"

	"gvisor.dev/gvisor/pkg/tcpip/header"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/netaddr"
)

// An answer to an echo request is taken once, if it has the number and the size of the request, and that
// is among the last ones.
func TestEchoAnswers(t *testing.T) {
	e := &echoSocket{to: netaddr.Gateway4()}
	for i := range uint16(maxOutstanding + 1) {
		e.asked(echoRequest{i, 10})
	}
	for _, c := range []struct {
		answer echoRequest
		want   bool
	}{{echoRequest{0, 10}, false}, {echoRequest{1, 10}, true}, {echoRequest{1, 10}, false}, {echoRequest{2, 11}, false}, {echoRequest{2, 10}, true}, {echoRequest{maxOutstanding, 10}, true}, {echoRequest{maxOutstanding + 1, 10}, false}} {
		if got := e.answered(c.answer); got != c.want {
			t.Errorf("the answer %+v is taken: %t", c.answer, got)
		}
	}
}

// A flood of echo requests makes no more exchanges than the sandbox may have connections: others are denied,
// as connections are. Requests of an exchange above the rate are lost, which is not a denial.
func TestFloodOfEchoRequests(t *testing.T) {
	const most = 5
	silent := func(ctx context.Context, _ bool) (net.PacketConn, error) { // whether this machine may ping or not
		<-ctx.Done()
		return nil, ctx.Err()
	}
	terms := granted(t, sandpit.Egress{Allow: []string{"ping:192.0.2.0/24"}, Bounds: sandpit.EgressBounds{Connections: most}})
	in := joinAs(t, terms, nil, silent, NewSockets(), waits{})
	request := []byte{8, 0, 0, 0, 0, 0, 0, 0}
	ping := func(to netip.Addr, ident uint16) {
		binary.BigEndian.PutUint16(request[4:], ident)
		in.raw(packet4(netaddr.Inside4().Addr(), to, header.ICMPv4ProtocolNumber, request))
	}
	to := netip.MustParseAddr("192.0.2.1")
	for range 3 * echoRate {
		ping(to, 1)
	}
	ping(to.Next().Next(), 1) // after the others
	in.wait("all have arrived", func() bool { return len(in.net.Log().Flows) == 2 })
	if n := in.net.Traffic().Denials; n != 0 {
		t.Errorf("%d requests that a rule allows count as denials", n)
	}
	for i := range uint16(3 * echoRate) {
		ping(to, i)
	}
	in.wait("others are denied", func() bool { return in.net.Traffic().Denials == 3*echoRate-most+1 })
	in.net.pings.mu.Lock()
	live := len(in.net.pings.live)
	in.net.pings.mu.Unlock()
	if why := in.denied("ping:192.0.2.1"); live != most || why != errConnections.Error() {
		t.Errorf("%d exchanges are open, and others are denied because %q", live, why)
	}
}

// Echo requests of an open exchange are passed on, and are not denied, while other packets are refused too quickly.
func TestEchoRequestsBesideRefusals(t *testing.T) {
	silent := func(ctx context.Context, _ bool) (net.PacketConn, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	in := joinAs(t, granted(t, sandpit.Egress{Allow: []string{"ping:192.0.2.0/24"}}), nil, silent, NewSockets(), waits{})
	request := []byte{8, 0, 0, 0, 0, 0, 0, 0}
	ping := func(ident uint16) {
		binary.BigEndian.PutUint16(request[4:], ident)
		in.raw(packet4(netaddr.Inside4().Addr(), netip.MustParseAddr("192.0.2.1"), header.ICMPv4ProtocolNumber, request))
	}
	ping(1)
	in.wait("the exchange", func() bool { return len(in.net.Log().Flows) == 1 })
	in.net.refusals.SetLimit(1e-9)
	in.net.refusals.SetBurst(0)
	const open, others = 10, 3
	for range open {
		ping(1)
	}
	for range others {
		ping(2)
	}
	in.wait("the denial of others", func() bool { return in.net.Traffic().Denials >= others })
	in.net.pings.mu.Lock()
	waiting := len(in.net.pings.live[echoKey{netip.MustParseAddr("192.0.2.1"), 1}].sent.waiting)
	in.net.pings.mu.Unlock()
	if n := in.net.Traffic().Denials; n != others || waiting != 1+open {
		t.Errorf("%d requests count as denials, and %d of the open exchange wait to be sent", n, waiting)
	}
}
