package network

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv6"
	"gvisor.dev/gvisor/pkg/tcpip/stack"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/engine"
	"github.com/sandpit-dev/sandpit/internal/netaddr"
	"github.com/sandpit-dev/sandpit/internal/upstream"
)

// patience is how long a test waits for what has to happen.
const patience = 20 * time.Second

// inside is a sandbox as a Network sees it: another stack, whose packets go through a socket.
type inside struct {
	t     testing.TB
	net   *Network
	stack *stack.Stack
	link  *link

	mu   sync.Mutex
	seen [][]byte            // packets that came from outside, guarded by mu
	take func(p []byte) bool // which of them the stack inside gets; nil: all; guarded by mu
}

// join makes a Network and what is inside of it.
func join(t testing.TB, e sandpit.Egress) *inside {
	t.Helper()
	return joinOn(t, granted(t, e))
}

// granted are terms that allow what e says, as it is now.
func granted(t testing.TB, e sandpit.Egress) engine.Terms {
	t.Helper()
	own, err := InProcess{}.Own(e)
	if err != nil {
		t.Fatal(err)
	}
	return engine.Terms{Egress: e, Own: own}
}

// joinOn makes a Network that trusts the origins of tests.
func joinOn(t testing.TB, terms engine.Terms) *inside {
	t.Helper()
	return joinWaiting(t, terms, waits{head: headTimeout, hold: holdTime})
}

func joinWaiting(t testing.TB, terms engine.Terms, w waits) *inside {
	t.Helper()
	way, err := upstream.New(upstream.Settings{Roots: originRoots()})
	if err != nil {
		t.Fatal(err)
	}
	return joinAs(t, terms, way, nil, NewSockets(), w)
}

// joinBy makes a Network whose connections are made by way.
func joinBy(t testing.TB, terms engine.Terms, way *upstream.Way) *inside {
	t.Helper()
	return joinAs(t, terms, way, nil, NewSockets(), waits{head: headTimeout, hold: holdTime})
}

func joinAs(t testing.TB, terms engine.Terms, way *upstream.Way, echo ListenEcho, sockets *Sockets, w waits) *inside {
	t.Helper()
	ends, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_SEQPACKET|syscall.SOCK_NONBLOCK|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	n, err := newNetwork(os.NewFile(uintptr(ends[0]), "outside"), terms, way, echo, sockets, w)
	if err != nil {
		syscall.Close(ends[1])
		t.Fatal(err)
	}
	in := &inside{t: t, net: n}
	l, err := newLink(os.NewFile(uintptr(ends[1]), "inside"), in.note)
	if err != nil {
		t.Fatal(err)
	}
	s, err := newStack(l)
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range []struct {
		prefix   netip.Prefix
		protocol tcpip.NetworkProtocolNumber
		gateway  netip.Addr
	}{{netaddr.Inside4(), ipv4.ProtocolNumber, netaddr.Gateway4()}, {netaddr.Inside6(), ipv6.ProtocolNumber, netaddr.Gateway6()}} {
		if err := s.RemoveAddress(nic, tcpipAddr(a.gateway)); err != nil {
			t.Fatal(err)
		}
		if err := s.AddProtocolAddress(nic, tcpip.ProtocolAddress{Protocol: a.protocol, AddressWithPrefix: tcpipAddr(a.prefix.Addr()).WithPrefix()}, stack.AddressProperties{}); err != nil {
			t.Fatal(err)
		}
	}
	s.SetPromiscuousMode(nic, false)
	in.stack, in.link = s, l
	go l.receive()
	t.Cleanup(func() {
		n.Close()
		l.Close()
		l.Wait()
		s.Destroy()
	})
	return in
}

// note notes a packet from outside, and reports whether the stack inside gets it.
func (in *inside) note(p []byte) bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	if len(in.seen) < 1000 {
		in.seen = append(in.seen, bytes.Clone(p))
	}
	return in.take == nil || in.take(p)
}

// only lets the stack inside get some packets only.
func (in *inside) only(take func(p []byte) bool) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.take = take
}

// packets returns those that have come from outside since the last call.
func (in *inside) packets() [][]byte {
	in.mu.Lock()
	defer in.mu.Unlock()
	seen := in.seen
	in.seen = nil
	return seen
}

func full(a netip.AddrPort) (tcpip.FullAddress, tcpip.NetworkProtocolNumber) {
	protocol := header.IPv4ProtocolNumber
	if a.Addr().Is6() {
		protocol = header.IPv6ProtocolNumber
	}
	return tcpip.FullAddress{NIC: nic, Addr: tcpipAddr(a.Addr()), Port: a.Port()}, protocol
}

// dialAddr connects to an address.
func (in *inside) dialAddr(a netip.AddrPort) (*gonet.TCPConn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	to, protocol := full(a)
	return gonet.DialContextTCP(ctx, in.stack, to, protocol)
}

// dial connects to HOST:PORT, as a program does: it resolves the name first.
func (in *inside) dial(hostport string) (*gonet.TCPConn, error) {
	host, port, err := net.SplitHostPort(hostport)
	if err != nil {
		return nil, err
	}
	a, err := netip.ParseAddr(host)
	if err != nil {
		if a, err = in.lookup(host); err != nil {
			return nil, err
		}
	}
	return in.dialAddr(netip.MustParseAddrPort(net.JoinHostPort(a.String(), port)))
}

// must connects, or fails the test.
func (in *inside) must(hostport string) *gonet.TCPConn {
	in.t.Helper()
	c, err := in.dial(hostport)
	if err != nil {
		in.t.Fatalf("connecting to %s: %v", hostport, err)
	}
	in.t.Cleanup(func() { c.Close() })
	_ = c.SetDeadline(time.Now().Add(patience))
	return c
}

// lookup asks the name server inside for the IPv4 address of a name.
func (in *inside) lookup(name string) (netip.Addr, error) {
	msg, err := in.ask(name, dnsmessage.TypeA)
	if err != nil {
		return netip.Addr{}, err
	}
	for _, a := range msg.Answers {
		if a, ok := a.Body.(*dnsmessage.AResource); ok {
			return netip.AddrFrom4(a.A), nil
		}
	}
	return netip.Addr{}, fmt.Errorf("looking up %s: %s", name, msg.RCode)
}

// ask asks the name server inside over UDP.
func (in *inside) ask(name string, kind dnsmessage.Type) (*dnsmessage.Message, error) {
	to, protocol := full(netip.AddrPortFrom(netaddr.Gateway4(), dnsPort))
	conn, err := gonet.DialUDP(in.stack, nil, &to, protocol)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	for end := time.Now().Add(patience); ; {
		_ = conn.SetDeadline(time.Now().Add(time.Second)) // what is above the rate has no answer
		if msg, err := question(conn, name, kind); err == nil || !isTimeout(err) || time.Now().After(end) {
			return msg, err
		}
	}
}

// question asks over a connection of datagrams.
func question(conn net.Conn, name string, kind dnsmessage.Type) (*dnsmessage.Message, error) {
	q, err := packQuestion(name, kind)
	if err != nil {
		return nil, err
	}
	if _, err := conn.Write(q); err != nil {
		return nil, err
	}
	buf := make([]byte, 64<<10)
	size, err := conn.Read(buf)
	if err != nil {
		return nil, err
	}
	var msg dnsmessage.Message
	return &msg, msg.Unpack(buf[:size])
}

func packQuestion(name string, kind dnsmessage.Type) ([]byte, error) {
	n, err := dnsmessage.NewName(strings.TrimSuffix(name, ".") + ".")
	if err != nil {
		return nil, err
	}
	msg := dnsmessage.Message{
		Header:    dnsmessage.Header{ID: 7, RecursionDesired: true},
		Questions: []dnsmessage.Question{{Name: n, Type: kind, Class: dnsmessage.ClassINET}},
	}
	return msg.Pack()
}

// wait fails the test if something does not come about.
func (in *inside) wait(what string, done func() bool) {
	in.t.Helper()
	for end := time.Now().Add(patience); !done(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			in.t.Fatalf("%s did not come about", what)
		}
	}
}

// denied returns whether a destination was denied, and why.
func (in *inside) denied(destination string) (why string) {
	for _, d := range in.net.Log().Denials {
		if d.Destination == destination {
			return d.Why
		}
	}
	return ""
}

// refuses fails the test unless a connection is refused at once and noted, and nothing is dialled.
func (in *inside) refuses(hostport, destination, why string) {
	in.t.Helper()
	c, err := in.dial(hostport)
	if err == nil {
		c.Close()
		in.t.Fatalf("%s can be reached", hostport)
	}
	if errors.Is(err, context.DeadlineExceeded) {
		in.t.Errorf("%s is not refused but silent", hostport)
	}
	in.wait("the denial of "+destination, func() bool { return in.denied(destination) != "" })
	if got := in.denied(destination); !strings.Contains(got, why) {
		in.t.Errorf("%s was denied, as %q; want %q", destination, got, why)
	}
}

// listen serves each connection on an address of this machine, until the test ends, and returns
// the address.
func listen(t testing.TB, serve func(net.Conn)) netip.AddrPort {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var work sync.WaitGroup
	var mu sync.Mutex
	var open []net.Conn
	work.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			open = append(open, c)
			mu.Unlock()
			work.Go(func() {
				defer c.Close()
				serve(c)
			})
		}
	})
	t.Cleanup(func() {
		l.Close()
		mu.Lock()
		for _, c := range open {
			c.Close()
		}
		mu.Unlock()
		work.Wait()
	})
	return l.Addr().(*net.TCPAddr).AddrPort()
}

// echo sends back what comes.
func echo(c net.Conn) { _, _ = io.Copy(c, c) }

// roundTrip sends a line and expects it back.
func roundTrip(c net.Conn) error {
	if _, err := io.WriteString(c, "hello\n"); err != nil {
		return err
	}
	line, err := bufio.NewReader(c).ReadString('\n')
	if err == nil && line != "hello\n" {
		err = fmt.Errorf("%q came back", line)
	}
	return err
}

func at(name string, a netip.AddrPort) string { return fmt.Sprintf("%s:%d", name, a.Port()) }

// raw sends a packet as it is.
func (in *inside) raw(p []byte) {
	in.t.Helper()
	for {
		size, err := in.link.write(p)
		if err != nil {
			in.t.Fatal(err)
		}
		if size == len(p) { // else the interface is full
			return
		}
		runtime.Gosched()
	}
}

// packet4 makes a packet of IPv4.
func packet4(from, to netip.Addr, protocol tcpip.TransportProtocolNumber, payload []byte) []byte {
	p := append(make([]byte, header.IPv4MinimumSize), payload...)
	ip := header.IPv4(p)
	ip.Encode(&header.IPv4Fields{TotalLength: uint16(len(p)), TTL: 64, Protocol: uint8(protocol), SrcAddr: tcpipAddr(from), DstAddr: tcpipAddr(to)})
	ip.SetChecksum(^ip.CalculateChecksum())
	return p
}

// packet6 makes a packet of IPv6.
func packet6(from, to netip.Addr, protocol tcpip.TransportProtocolNumber, payload []byte) []byte {
	p := append(make([]byte, header.IPv6MinimumSize), payload...)
	header.IPv6(p).Encode(&header.IPv6Fields{PayloadLength: uint16(len(payload)), TransportProtocol: protocol, HopLimit: 64, SrcAddr: tcpipAddr(from), DstAddr: tcpipAddr(to)})
	return p
}

// syn makes the first packet of a connection.
func syn(from uint16, to netip.AddrPort) []byte {
	src := netaddr.Inside4().Addr()
	tcp := header.TCP(make([]byte, header.TCPMinimumSize))
	tcp.Encode(&header.TCPFields{SrcPort: from, DstPort: to.Port(), SeqNum: 1, DataOffset: header.TCPMinimumSize, Flags: header.TCPFlagSyn, WindowSize: 65535})
	sum := header.PseudoHeaderChecksum(header.TCPProtocolNumber, tcpipAddr(src), tcpipAddr(to.Addr()), uint16(len(tcp)))
	tcp.SetChecksum(^tcp.CalculateChecksum(sum))
	return packet4(src, to.Addr(), header.TCPProtocolNumber, tcp)
}
