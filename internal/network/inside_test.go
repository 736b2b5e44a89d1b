package network

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
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
)

// patience is how long a test waits for what has to happen.
const patience = 20 * time.Second

// inside is a sandbox as a Network sees it: another stack, whose packets go through a socket.
type inside struct {
	t     testing.TB
	net   *Network
	stack *stack.Stack
	link  *link
}

// join makes a Network and what is inside of it.
func join(t testing.TB, e sandpit.Egress) *inside {
	t.Helper()
	return joinOn(t, engine.Terms{Egress: e})
}

func joinOn(t testing.TB, terms engine.Terms) *inside {
	t.Helper()
	ends, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_SEQPACKET|syscall.SOCK_NONBLOCK|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	n, err := New(os.NewFile(uintptr(ends[0]), "outside"), terms)
	if err != nil {
		syscall.Close(ends[1])
		t.Fatal(err)
	}
	l, err := newLink(os.NewFile(uintptr(ends[1]), "inside"), func([]byte) bool { return true })
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
	in := &inside{t: t, net: n, stack: s, link: l}
	go l.receive()
	t.Cleanup(func() {
		n.Close()
		l.Close()
		l.Wait()
		s.Destroy()
	})
	return in
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
	_ = conn.SetDeadline(time.Now().Add(patience))
	return question(conn, name, kind)
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
