package network

import (
	"context"
	"encoding/binary"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"golang.org/x/net/icmp"
	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"
	"golang.org/x/time/rate"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/egress"
	"github.com/sandpit-dev/sandpit/internal/netaddr"
)

// ICMP echo (RFC 792, RFC 4443) does not reach the stack. The requests that one socket inside sends to
// one address are an exchange like that of UDP, for which this process has an ICMP socket of the kind
// that needs no right. An answer is passed on only if it was asked for.

// Bounds of echo requests.
const (
	echoIdle       = 10 * time.Second // an exchange ends this long after its last packet
	echoRate       = 100              // requests per second of a sandbox, and at once, that are passed on; others are lost
	maxEcho        = 2048             // bytes of data; larger ones are lost
	maxOutstanding = 64               // requests of an exchange that are not answered; older ones are given up
)

// pings has the exchanges of a sandbox. It is safe for concurrent use.
type pings struct {
	rate *rate.Limiter

	mu   *sync.Mutex
	live map[echoKey]*pinger // guarded by mu
}

type echoKey struct {
	to    netip.Addr // as the sandbox knows it
	ident uint16
}

func newPings() pings {
	return pings{rate: rate.NewLimiter(echoRate, echoRate), mu: new(sync.Mutex), live: map[echoKey]*pinger{}}
}

// ping takes a packet if it is one of ICMP. Of these, only echo requests have an effect.
func (n *Network) ping(packet []byte) bool {
	var key echoKey
	var message []byte
	switch header.IPVersion(packet) {
	case header.IPv4Version:
		ip := header.IPv4(packet)
		if ip.TransportProtocol() != header.ICMPv4ProtocolNumber {
			return false
		}
		if !ip.IsValid(len(packet)) {
			return true
		}
		message, key.to = ip.Payload(), netip.AddrFrom4(ip.DestinationAddress().As4())
	default:
		ip := header.IPv6(packet)
		if tcpip.TransportProtocolNumber(ip.NextHeader()) != header.ICMPv6ProtocolNumber {
			return false
		}
		if !ip.IsValid(len(packet)) {
			return true
		}
		message, key.to = ip.Payload(), netip.AddrFrom16(ip.DestinationAddress().As16())
	}
	request := byte(header.ICMPv4Echo)
	if key.to.Is6() {
		request = byte(header.ICMPv6EchoRequest)
	}
	if len(message) < echoHeader || len(message) > echoHeader+maxEcho || message[0] != request || message[1] != 0 {
		return true
	}
	key.ident = binary.BigEndian.Uint16(message[4:])
	n.pings.mu.Lock()
	p := n.pings.live[key]
	n.pings.mu.Unlock()
	if p == nil {
		if n.refusals.Tokens() < 1 { // as of other protocols: see unlessFlooded
			n.flows.dropped()
			return true
		}
		if p = n.beginPing(key); p == nil {
			n.refusals.Allow()
			n.link.reply(key.to, unreachable(key.to, packet))
			return true
		}
	}
	if n.pings.rate.Allow() { // else it is lost, which is not a denial: a rule allows it
		p.send(message[6:])
	}
	return true
}

// echoHeader is the size of the header of a request: type, code, sum, identifier, number.
const echoHeader = 8

// beginPing decides about the first request of an exchange. It returns nil if that is refused.
func (n *Network) beginPing(key echoKey) *pinger {
	to, ok := n.destination(egress.Ping, key.to, 0)
	f := n.flows.begin(to)
	set := n.rules.Load()
	d := set.rules.Decide(to)
	if !ok {
		d.Allowed, d.Why = false, "the address "+key.to.String()+" was not given to a name"
	}
	if f.decide(d); !d.Allowed {
		f.finish(nil)
		return nil
	}
	_, release, err := n.bounds.admit()
	if err != nil {
		f.decide(sandpit.EgressDecision{Why: err.Error()})
		f.finish(nil)
		return nil
	}
	p := &pinger{net: n, key: key, sent: backlog{waiting: make(chan []byte, maxWaiting)}}
	n.pings.mu.Lock()
	n.pings.live[key] = p
	n.pings.mu.Unlock()
	n.work.Go(func() {
		defer release()
		defer n.names.hold(to.Host)()
		defer p.Close()
		dialler := &dialler{rules: &n.rules, set: set, to: to, flow: f, network: "ping", listenEcho: n.listenEcho}
		out, err := dialler.dial(n.ctx)
		if err != nil {
			f.finish(err)
			return
		}
		defer out.Close()
		if n.open(f, func() { p.Close(); out.Close() }) {
			f.finish(n.exchange(p, &p.sent, out, f, echoIdle))
		}
	})
	return p
}

// pinger is the sandbox's end of an exchange. A datagram is the number of a request, and its data.
type pinger struct {
	net.Conn // of which nothing else is used

	net *Network
	key echoKey

	mu     sync.Mutex
	closed bool // guarded by mu
	sent   backlog
}

// send passes a request on.
func (p *pinger) send(datagram []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.closed {
		p.sent.add(datagram)
	}
}

// SetReadDeadline does nothing: that of the other end is enough.
func (*pinger) SetReadDeadline(time.Time) error { return nil }

// Write answers a request.
func (p *pinger) Write(datagram []byte) (int, error) {
	message := make([]byte, echoHeader-2, echoHeader+maxEcho)
	if p.key.to.Is6() {
		message[0] = byte(header.ICMPv6EchoReply)
	} // that of IPv4 is 0
	binary.BigEndian.PutUint16(message[4:], p.key.ident)
	p.net.link.reply(p.key.to, append(message, datagram...))
	return len(datagram), nil
}

// Close ends the exchange.
func (p *pinger) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil
	}
	p.closed = true
	p.sent.err = net.ErrClosed
	close(p.sent.waiting)
	p.net.pings.mu.Lock()
	defer p.net.pings.mu.Unlock()
	delete(p.net.pings.live, p.key)
	return nil
}

// reply sends an ICMP message to the sandbox, which lacks its sum.
func (l *link) reply(from netip.Addr, message []byte) {
	if from.Is4() {
		b := append(make([]byte, header.IPv4MinimumSize, header.IPv4MinimumSize+len(message)), message...)
		ip := header.IPv4(b)
		ip.Encode(&header.IPv4Fields{
			TotalLength: uint16(len(b)), TTL: 64, Protocol: uint8(header.ICMPv4ProtocolNumber), //nolint:gosec // see maxEcho
			SrcAddr: tcpipAddr(from), DstAddr: tcpipAddr(netaddr.Inside4().Addr()),
		})
		ip.SetChecksum(^ip.CalculateChecksum())
		m := header.ICMPv4(ip.Payload())
		m.SetChecksum(header.ICMPv4Checksum(m, 0))
		_, _ = l.write(b)
		return
	}
	b := append(make([]byte, header.IPv6MinimumSize, header.IPv6MinimumSize+len(message)), message...)
	ip, to := header.IPv6(b), tcpipAddr(netaddr.Inside6().Addr())
	ip.Encode(&header.IPv6Fields{
		PayloadLength: uint16(len(message)), TransportProtocol: header.ICMPv6ProtocolNumber, HopLimit: 64, //nolint:gosec // see maxEcho
		SrcAddr: tcpipAddr(from), DstAddr: to,
	})
	m := header.ICMPv6(ip.Payload())
	m.SetChecksum(header.ICMPv6Checksum(header.ICMPv6ChecksumParams{Header: m, Src: tcpipAddr(from), Dst: to}))
	_, _ = l.write(b)
}

// unreachable is the message that a packet was refused: communication administratively prohibited
// (RFC 1812, section 5.2.7.1; RFC 4443, section 3.1).
func unreachable(to netip.Addr, packet []byte) []byte {
	message := []byte{byte(header.ICMPv4DstUnreachable), 13, 0, 0, 0, 0, 0, 0}
	if to.Is6() {
		message[0], message[1] = byte(header.ICMPv6DstUnreachable), 1
	}
	return append(message, packet[:min(len(packet), header.IPv6MinimumSize+echoHeader)]...)
}

// ListenEcho opens an ICMP socket for echo requests over IPv4 or IPv6, of the kind that needs no right: see the
// socket type SOCK_DGRAM in icmp(7), and its ping_group_range.
type ListenEcho func(ctx context.Context, ipv6 bool) (net.PacketConn, error)

// listenEcho is the ListenEcho of a process whose group may open such sockets.
func listenEcho(_ context.Context, ipv6 bool) (net.PacketConn, error) {
	if ipv6 {
		return icmp.ListenPacket("udp6", "::")
	}
	return icmp.ListenPacket("udp4", "0.0.0.0")
}

// echoSocket is an ICMP socket for one address.
type echoSocket struct {
	net.PacketConn
	to netip.Addr

	mu          sync.Mutex
	outstanding []echoRequest // oldest first, guarded by mu
}

// echoRequest is one that was not answered yet.
type echoRequest struct {
	number uint16
	size   int
}

// RemoteAddr returns the address.
func (e *echoSocket) RemoteAddr() net.Addr { return &net.UDPAddr{IP: e.to.AsSlice()} }

// Write sends a request. The kernel chooses its identifier.
func (e *echoSocket) Write(datagram []byte) (int, error) {
	m := icmp.Message{Type: ipv4.ICMPTypeEcho, Body: &icmp.Echo{Seq: int(binary.BigEndian.Uint16(datagram)), Data: datagram[2:]}}
	if e.to.Is6() {
		m.Type = ipv6.ICMPTypeEchoRequest
	}
	b, err := m.Marshal(nil)
	if err != nil {
		return 0, err
	}
	e.asked(echoRequest{binary.BigEndian.Uint16(datagram), len(datagram)})
	if _, err = e.WriteTo(b, e.RemoteAddr()); err != nil {
		return 0, err
	}
	return len(datagram), nil
}

// Read reads the answer to a request.
func (e *echoSocket) Read(b []byte) (int, error) {
	for {
		n, from, err := e.ReadFrom(b)
		if err != nil {
			return 0, err
		}
		reply := byte(ipv4.ICMPTypeEchoReply)
		if e.to.Is6() {
			reply = byte(ipv6.ICMPTypeEchoReply)
		}
		a, ok := from.(*net.UDPAddr)
		if !ok || n < echoHeader || b[0] != reply || a.AddrPort().Addr().Unmap() != e.to {
			continue
		}
		datagram := b[6:n]
		if e.answered(echoRequest{binary.BigEndian.Uint16(datagram), len(datagram)}) {
			return copy(b, datagram), nil
		}
	}
}

// asked notes a request.
func (e *echoSocket) asked(r echoRequest) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.outstanding) == maxOutstanding {
		e.outstanding = slices.Delete(e.outstanding, 0, 1)
	}
	e.outstanding = append(e.outstanding, r)
}

// answered reports whether a request was outstanding, which it no longer is.
func (e *echoSocket) answered(r echoRequest) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	i := slices.Index(e.outstanding, r)
	if i < 0 {
		return false
	}
	e.outstanding = slices.Delete(e.outstanding, i, i+1)
	return true
}

var _ net.Conn = (*echoSocket)(nil)
