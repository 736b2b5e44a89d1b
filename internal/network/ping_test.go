package network

import (
	"encoding/binary"
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

// A flood of echo requests makes no more exchanges than the sandbox may have connections, and is
// dropped above the rate.
func TestFloodOfEchoRequests(t *testing.T) {
	const most = 5
	in := join(t, sandpit.Egress{Allow: []string{"ping:192.0.2.0/24"}, Bounds: sandpit.EgressBounds{Connections: most}})
	var release []func()
	for range most { // whether this machine may ping or not
		r, err := in.net.bounds.admit()
		if err != nil {
			t.Fatal(err)
		}
		release = append(release, r)
	}
	request := []byte{8, 0, 0, 0, 0, 0, 0, 0}
	for i := range uint16(3 * echoRate) {
		binary.BigEndian.PutUint16(request[4:], i)
		in.raw(packet4(netaddr.Inside4().Addr(), netaddr.Inside4().Masked().Addr().Next(), header.ICMPv4ProtocolNumber, request))
	}
	in.wait("all are counted", func() bool { return in.net.Traffic().Denials == 3*echoRate })
	in.net.pings.mu.Lock()
	live := len(in.net.pings.live)
	in.net.pings.mu.Unlock()
	log := in.net.Log()
	if live != 0 || len(log.Flows) > 2*echoRate {
		t.Errorf("%d exchanges are open, and %d are in the log", live, len(log.Flows))
	}
	for _, r := range release {
		r()
	}
}
