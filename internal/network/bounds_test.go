package network

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/netip"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/dns/dnsmessage"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/header"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/egress"
	"github.com/sandpit-dev/sandpit/internal/engine"
	"github.com/sandpit-dev/sandpit/internal/netaddr"
)

// good allows good.test, which is this machine.
func good(b sandpit.EgressBounds) sandpit.Egress {
	return sandpit.Egress{Allow: []string{"good.test", "udp:good.test"}, Resolve: []string{"good.test:127.0.0.1"}, Bounds: b}
}

func heap() uint64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// Ten thousand connections that are never completed take a bounded number of goroutines and
// bounded memory, and new ones work afterwards.
func TestAttackC7HalfOpenConnections(t *testing.T) {
	a := listen(t, echo)
	in := join(t, good(sandpit.EgressBounds{Connections: 1 << 20, NewConnections: 1 << 20}))
	name, err := in.lookup("good.test")
	if err != nil {
		t.Fatal(err)
	}
	goroutines, memory := runtime.NumGoroutine(), heap()
	in.only(func([]byte) bool { return false })
	for i := range 10_000 {
		in.raw(syn(uint16(1024+i), netip.AddrPortFrom(name, a.Port())))
		if i%1000 == 0 {
			if n := runtime.NumGoroutine() - goroutines; n > 4*inFlight { // the origin's are among them
				t.Fatalf("%d goroutines after %d connections", n, i)
			}
		}
	}
	in.wait("the last half-open connections", func() bool { return len(in.net.stack.RegisteredEndpoints()) > inFlight/2 })
	if n := len(in.net.stack.RegisteredEndpoints()); n > inFlight+10 {
		t.Errorf("the stack has %d connections", n)
	}
	if grown := int64(heap()) - int64(memory); grown > 32<<20 {
		t.Errorf("they take %d bytes", grown)
	}
	in.only(nil) // whose resets end them
	in.wait("a new connection", func() bool {
		c, err := in.dialAddr(netip.AddrPortFrom(name, a.Port()))
		if err != nil {
			return false
		}
		defer c.Close()
		return roundTrip(c) == nil
	})
}

// A sandbox that does not read holds back the origin, and what it does not read is bounded.
func TestAttackC7SlowReaders(t *testing.T) {
	a := listen(t, func(c net.Conn) {
		for b := make([]byte, 64<<10); ; {
			if _, err := c.Write(b); err != nil {
				return
			}
		}
	})
	in := join(t, good(sandpit.EgressBounds{}))
	const count = 20
	for range count {
		c := in.must(at("good.test", a))
		if _, err := io.WriteString(c, "\x00"); err != nil {
			t.Fatal(err)
		}
	}
	var last int64
	in.wait("an end of what is moved", func() bool {
		time.Sleep(200 * time.Millisecond)
		was := last
		last = in.net.flows.traffic().Received
		return last == was && last > 0
	})
	// What both stacks hold, of which the second is inside, and what is on its way.
	if most := int64(buffers + count*(minBuffer+maxBuffer+3*netaddr.MTU)); last > most {
		t.Errorf("%d bytes were moved, that nobody has read; at most %d are held", last, most)
	}
}

// A few connections have large buffers, and however many there are share a bounded sum.
func TestBuffersAreShared(t *testing.T) {
	var b bounds
	const count = 5000
	b.set(sandpit.EgressBounds{Connections: count, NewConnections: count})
	for range 2 { // what is released is given again
		var sum int64
		var released []func()
		for i := range count {
			size, release, err := b.admit()
			if err != nil {
				t.Fatal(err)
			}
			released = append(released, release)
			if sum += size; size < minBuffer || size > maxBuffer || i < 8 && size != maxBuffer {
				t.Fatalf("connection %d has buffers of %d bytes", i, size)
			}
		}
		if sum > buffers+count*minBuffer {
			t.Errorf("%d bytes were given in all", sum)
		}
		for _, release := range released {
			release()
		}
	}
}

// A connection counts until the sandbox has taken what was sent to it.
func TestAttackC7ConnectionsThatEndUnread(t *testing.T) {
	const size = 100_000
	a := listen(t, func(c net.Conn) {
		if _, err := c.Read(make([]byte, 1)); err == nil {
			_, _ = c.Write(make([]byte, size))
		}
	})
	in := join(t, good(sandpit.EgressBounds{Connections: 1}))
	c := in.must(at("good.test", a))
	port := uint16(c.LocalAddr().(*net.TCPAddr).Port)
	in.only(func(p []byte) bool { // it takes nothing more of this connection
		return header.IPv4(p).TransportProtocol() != header.TCPProtocolNumber || header.TCP(header.IPv4(p).Payload()).DestinationPort() != port
	})
	if _, err := c.Write([]byte{0}); err != nil {
		t.Fatal(err)
	}
	if err := c.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	in.wait("the end of the connection outside", func() bool {
		flows := in.net.Log().Flows
		return len(flows) == 1 && !flows[0].Open && flows[0].Received == size
	})
	in.refuses(at("good.test", a), at("good.test", a), errConnections.Error())
	in.only(nil)
	if n, err := io.Copy(io.Discard, c); n != size || err != nil {
		t.Errorf("the sandbox got %d bytes, %v", n, err)
	}
	in.wait("the place of the connection", func() bool {
		c, err := in.dial(at("good.test", a))
		if err == nil {
			c.Close()
		}
		return err == nil
	})
}

func TestBounds(t *testing.T) {
	a := listen(t, echo)
	t.Run("connections", func(t *testing.T) {
		in := join(t, good(sandpit.EgressBounds{Connections: 3}))
		first := in.must(at("good.test", a))
		for range 2 {
			in.must(at("good.test", a))
		}
		in.refuses(at("good.test", a), at("good.test", a), errConnections.Error())
		first.Close()
		in.wait("the place of the first", func() bool { _, err := in.dial(at("good.test", a)); return err == nil })
	})
	t.Run("new connections", func(t *testing.T) {
		in := join(t, good(sandpit.EgressBounds{NewConnections: 1}))
		in.wait("a refusal", func() bool {
			c, err := in.dial(at("good.test", a))
			if err == nil {
				c.Close()
			}
			return err != nil
		})
		if why := in.denied(at("good.test", a)); why != errTooFast.Error() {
			t.Errorf("the reason is %q", why)
		}
	})
	for name, b := range map[string]sandpit.EgressBounds{"sent": {Sent: 100_000}, "received": {Received: 100_000}} {
		t.Run(name, func(t *testing.T) {
			origin := make(chan error, 1)
			a := listen(t, func(c net.Conn) {
				_, err := io.Copy(c, c)
				origin <- err
			})
			in := join(t, good(b))
			c := in.must(at("good.test", a))
			var ended, reset atomic.Bool
			in.only(func(p []byte) bool {
				if ip := header.IPv4(p); ip.TransportProtocol() == header.TCPProtocolNumber {
					flags := header.TCP(ip.Payload()).Flags()
					ended.Store(ended.Load() || flags.Contains(header.TCPFlagFin))
					reset.Store(reset.Load() || flags.Contains(header.TCPFlagRst))
				}
				return true
			})
			go func() { _, _ = io.Copy(c, bytes.NewReader(make([]byte, 10<<20))) }()
			_, _ = io.Copy(io.Discard, c)
			if ended.Load() || !reset.Load() {
				t.Errorf("the sandbox sees a clean end: %t, a reset: %t", ended.Load(), reset.Load())
			}
			if err := <-origin; err == nil {
				t.Error("the origin sees a clean end")
			}
			in.wait("the denial", func() bool { return in.denied(at("good.test", a)) == errTraffic.Error() })
			in.refuses(at("good.test", a), at("good.test", a), errTraffic.Error())
			if moved := in.net.flows.traffic(); b.Sent > 0 && moved.Sent > b.Sent || b.Received > 0 && moved.Received > b.Received {
				t.Errorf("%+v was moved, beyond the bound", moved)
			}
		})
	}
	for name, used := range map[string]engine.Traffic{"sent before": {Sent: 100}, "received before": {Received: 100}} {
		t.Run(name, func(t *testing.T) {
			in := join(t, good(sandpit.EgressBounds{Sent: 100, Received: 100}))
			in.net.Resume(used)
			in.refuses(at("good.test", a), at("good.test", a), errTraffic.Error())
		})
	}
	sends := func(size int) netip.AddrPort {
		return listen(t, func(c net.Conn) {
			_, _ = io.ReadFull(c, make([]byte, 1))
			_, _ = c.Write(make([]byte, size))
			_, _ = io.Copy(io.Discard, c)
		})
	}
	t.Run("received at once", func(t *testing.T) {
		a := sends(3 << 20)
		in := join(t, good(sandpit.EgressBounds{Received: 1 << 20}))
		c := in.must(at("good.test", a))
		_, _ = io.WriteString(c, "\x00")
		if n, err := io.Copy(io.Discard, c); n > 1<<20 || err == nil {
			t.Errorf("%d bytes arrived, %v", n, err)
		}
		in.wait("the denial", func() bool { return in.denied(at("good.test", a)) == errTraffic.Error() })
	})
	t.Run("bandwidth of what is received at once", func(t *testing.T) {
		const size = 512 << 10
		a := sends(size)
		in := join(t, good(sandpit.EgressBounds{Bandwidth: 1 << 20}))
		c := in.must(at("good.test", a))
		began := time.Now()
		_, _ = io.WriteString(c, "\x00")
		if _, err := io.ReadFull(c, make([]byte, size)); err != nil {
			t.Fatal(err)
		}
		if took, least := time.Since(began), time.Second*(size-2*burst)/(1<<20); took < least {
			t.Errorf("%d bytes took %s; want %s at least", size, took, least)
		}
	})
	t.Run("bandwidth", func(t *testing.T) {
		in := join(t, good(sandpit.EgressBounds{Bandwidth: 1 << 20}))
		c := in.must(at("good.test", a))
		const size = 512 << 10
		began := time.Now()
		go func() { _, _ = io.Copy(c, bytes.NewReader(make([]byte, size))) }()
		if _, err := io.ReadFull(c, make([]byte, size)); err != nil {
			t.Fatal(err)
		}
		if took, least := time.Since(began), time.Second*(size-2*burst)/(1<<20); took < least {
			t.Errorf("%d bytes took %s; want %s at least", size, took, least)
		}
	})
}

// A change ends connections that are no longer allowed, by their name or by the address that
// was dialled, and leaves others open.
func TestSetWhileConnectionsAreOpen(t *testing.T) {
	a := listen(t, echo)
	e := sandpit.Egress{Allow: []string{"a.test", "b.test", "c.test"}, Resolve: []string{"a.test:127.0.0.1", "b.test:127.0.0.1", "c.test:127.0.0.2"}}
	l, err := net.Listen("tcp", netip.AddrPortFrom(netip.MustParseAddr("127.0.0.2"), a.Port()).String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	in := join(t, e)
	conns := map[string]*gonet.TCPConn{}
	for _, name := range []string{"a.test", "b.test"} {
		conns[name] = in.must(at(name, a))
		if err := roundTrip(conns[name]); err != nil {
			t.Fatal(err)
		}
	}
	conns["c.test"] = in.must(at("c.test", a))
	e.Deny = []string{"a.test", "127.0.0.2"}
	if err := in.net.Set(granted(t, e)); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"a.test", "c.test"} {
		if _, err := conns[name].Read(make([]byte, 1)); err == nil || isTimeout(err) {
			t.Errorf("the connection to %s: %v", name, err)
		}
	}
	if err := roundTrip(conns["b.test"]); err != nil {
		t.Errorf("a connection that is still allowed: %v", err)
	}
	if err := in.net.Set(engine.Terms{Egress: sandpit.Egress{Allow: []string{"*"}}}); !errors.Is(err, sandpit.ErrInvalid) {
		t.Errorf("rules that are not valid: %v", err)
	}
	if err := roundTrip(conns["b.test"]); err != nil {
		t.Errorf("after a change that was refused: %v", err)
	}
}

func TestUDP(t *testing.T) {
	outside, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for buf := make([]byte, 64<<10); ; {
			n, from, err := outside.ReadFrom(buf)
			if err != nil {
				return
			}
			_, _ = outside.WriteTo(buf[:n], from)
		}
	}()
	t.Cleanup(func() { outside.Close(); <-done })
	in := join(t, good(sandpit.EgressBounds{Connections: 2}))
	name, err := in.lookup("good.test")
	if err != nil {
		t.Fatal(err)
	}
	to, protocol := full(netip.AddrPortFrom(name, outside.LocalAddr().(*net.UDPAddr).AddrPort().Port()))
	for i := range 3 {
		conn, err := gonet.DialUDP(in.stack, nil, &to, protocol)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if i == 2 { // above the bound
			in.packets()
			_, _ = conn.Write([]byte("x"))
			var got [][]byte
			in.wait("an answer", func() bool { got = append(got, in.packets()...); return len(got) > 0 })
			if !isUnreachable(got[0]) {
				t.Errorf("the answer is %x", got[0])
			}
			continue
		}
		_ = conn.SetDeadline(time.Now().Add(patience))
		for _, size := range []int{1, 1400, 9000} {
			if _, err := conn.Write(bytes.Repeat([]byte{'x'}, size)); err != nil {
				t.Fatal(err)
			}
			if n, err := conn.Read(make([]byte, 64<<10)); n != size || err != nil {
				t.Fatalf("%d bytes came back as %d, %v", size, n, err)
			}
		}
	}
}

// A change of the rules gives a sandbox no more connections or bandwidth than without it.
func TestChangesKeepBounds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // time stands still while this goroutine runs
		var b bounds
		max := sandpit.EgressBounds{NewConnections: 10, Bandwidth: burst}
		b.set(max)
		connections := 0
		for range 100 {
			if _, release, err := b.admit(); err == nil {
				release()
				connections++
			}
			b.set(max)
		}
		max.NewConnections = 20
		b.set(max)
		if _, _, err := b.admit(); connections != 20 || !errors.Is(err, errTooFast) {
			t.Errorf("%d connections at once, then %v", connections, err)
		}
		var all flows
		f := all.begin(egress.Destination{Protocol: egress.TCP, Host: "good.test", Port: 1})
		began := time.Now()
		for range 5 {
			if err := b.count(t.Context(), f, burst, burst); err != nil {
				t.Fatal(err)
			}
			b.set(max)
		}
		if took := time.Since(began); took != 4*time.Second {
			t.Errorf("5 bursts took %s", took)
		}
		if _, release, err := b.admit(); err != nil {
			t.Error(err)
		} else {
			release()
		}
	})
}

// An exchange of datagrams ends when there were none for udpIdle.
func TestIdleExchange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		in, sandbox := net.Pipe()
		out, origin := net.Pipe()
		defer sandbox.Close()
		defer origin.Close()
		n := &Network{ctx: context.Background()}
		n.bounds.set(sandpit.EgressBounds{})
		ended := make(chan error, 1)
		began := time.Now()
		go func() {
			ended <- n.exchange(in, n.take(in), out, n.flows.begin(egress.Destination{Protocol: egress.UDP, Host: "good.test", Port: 1}), udpIdle)
		}()
		for range 3 {
			time.Sleep(udpIdle - time.Second)
			if _, err := sandbox.Write([]byte("x")); err != nil {
				t.Fatal(err)
			}
			if _, err := origin.Read(make([]byte, 9)); err != nil {
				t.Fatal(err)
			}
		}
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if took := time.Since(began); took != 4*udpIdle-3*time.Second {
			t.Errorf("it ended after %s", took)
		}
	})
}

// askTCP asks over a connection, in pieces.
func askTCP(c net.Conn, name string) (*dnsmessage.Message, error) {
	q, err := packQuestion(name, dnsmessage.TypeAAAA)
	if err != nil {
		return nil, err
	}
	for _, b := range binary.BigEndian.AppendUint16(nil, uint16(len(q))) {
		if _, err := c.Write([]byte{b}); err != nil {
			return nil, err
		}
	}
	if _, err := c.Write(q); err != nil {
		return nil, err
	}
	var size [2]byte
	if _, err := io.ReadFull(c, size[:]); err != nil {
		return nil, err
	}
	b := make([]byte, binary.BigEndian.Uint16(size[:]))
	if _, err := io.ReadFull(c, b); err != nil {
		return nil, err
	}
	var msg dnsmessage.Message
	return &msg, msg.Unpack(b)
}

func TestNamesOverTCP(t *testing.T) {
	in := join(t, good(sandpit.EgressBounds{}))
	server := netip.AddrPortFrom(netaddr.Gateway4(), dnsPort).String()
	c := in.must(server)
	for range 3 {
		msg, err := askTCP(c, "good.test")
		if err != nil || len(msg.Answers) != 1 {
			t.Fatalf("%+v, %v", msg, err)
		}
		a, ok := msg.Answers[0].Body.(*dnsmessage.AAAAResource)
		if !ok || !netaddr.Names6().Contains(netip.AddrFrom16(a.AAAA)) {
			t.Errorf("the answer is %+v", msg.Answers[0])
		}
	}
	if msg, err := askTCP(c, "other.test"); err != nil || msg.RCode != dnsmessage.RCodeNameError {
		t.Errorf("a name that is not allowed: %+v, %v", msg, err)
	}
	for range dnsTCP - 1 {
		in.must(server)
	}
	if c, err := in.dial(server); err == nil {
		c.Close()
		t.Error("more connections to the name server are open than it serves")
	}
}

// A name server outside that fails is in the log, and the sandbox learns at once that it failed.
func TestNameServerThatFails(t *testing.T) {
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	conn.Close() // nobody listens there any more
	in := join(t, sandpit.Egress{Allow: []string{"good.test"}, DNS: []string{conn.LocalAddr().String()}})
	msg, err := in.ask("good.test", dnsmessage.TypeA)
	if err != nil || msg.RCode != dnsmessage.RCodeServerFailure {
		t.Errorf("%+v, %v", msg, err)
	}
	flows := in.net.Log().Flows
	if len(flows) == 0 || flows[0].Host != "good.test" || flows[0].Protocol != protocolDNS || !flows[0].Allowed || flows[0].Error == "" {
		t.Errorf("the log has %+v", flows)
	}
}

// An allowed name that does not exist is in the log, once for both questions of a lookup, and so is one about
// which the name servers are silent. Programs inside get an answer.
func TestNamesThatFail(t *testing.T) {
	t.Parallel()
	server := serveNamesOutside(t, func(string, int) []string { return nil })
	silent, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	for _, c := range []struct {
		server string
		code   dnsmessage.RCode
		why    string
	}{
		{server.addr, dnsmessage.RCodeNameError, "lookup good.test: no such host"},
		{silent.LocalAddr().String(), dnsmessage.RCodeServerFailure, "lookup good.test: no name server answered in time"},
	} {
		in := join(t, sandpit.Egress{Allow: []string{"good.test"}, DNS: []string{c.server}})
		to, protocol := full(netip.AddrPortFrom(netaddr.Gateway4(), dnsPort))
		conn, err := gonet.DialUDP(in.stack, nil, &to, protocol)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		_ = conn.SetDeadline(time.Now().Add(patience))
		for _, kind := range []dnsmessage.Type{dnsmessage.TypeA, dnsmessage.TypeAAAA} {
			if msg, err := question(conn, "good.test", kind); err != nil || msg.RCode != c.code {
				t.Errorf("%s: %+v, %v", c.why, msg, err)
			}
		}
		if flows := in.net.Log().Flows; len(flows) != 1 || !flows[0].Allowed || flows[0].Error != c.why {
			t.Errorf("the log has %+v", flows)
		}
	}
}

// What is no question has no effect, and a message with two has an error.
func TestBadQuestions(t *testing.T) {
	in := join(t, good(sandpit.EgressBounds{}))
	q, err := packQuestion("good.test", dnsmessage.TypeA)
	if err != nil {
		t.Fatal(err)
	}
	s := in.net.nameServer
	var codes []dnsmessage.RCode
	reply := func(b []byte) {
		var msg dnsmessage.Message
		if err := msg.Unpack(b); err != nil {
			t.Error(err)
		}
		codes = append(codes, msg.RCode)
	}
	for i := range q {
		s.answer(q[:i], reply)
	}
	two := append(bytes.Clone(q), q[12:]...)
	two[5] = 2
	s.answer(two, reply)
	update := bytes.Clone(q)
	update[2] |= 5 << 3
	s.answer(update, reply)
	other := bytes.Clone(q)
	other[len(other)-1] = 3 // CHAOS
	s.answer(other, reply)
	long, err := packQuestion(strings.Repeat(strings.Repeat("a", 63)+".", 3)+strings.Repeat("a", 59), dnsmessage.TypeA)
	if err != nil {
		t.Fatal(err)
	}
	s.answer(long, reply)
	for _, code := range codes {
		if code != dnsmessage.RCodeFormatError && code != dnsmessage.RCodeNameError {
			t.Errorf("a bad question is answered with %s", code)
		}
	}
	if len(codes) < 4 {
		t.Errorf("there are %d answers", len(codes))
	}
	answer := bytes.Clone(q)
	answer[2] |= 0x80
	if s.answer(answer, reply) {
		t.Error("an answer is answered")
	}
}

func FuzzQuestion(f *testing.F) {
	q, err := packQuestion("good.test", dnsmessage.TypeA)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(q)
	in := join(f, good(sandpit.EgressBounds{}))
	f.Fuzz(func(t *testing.T, q []byte) {
		replies := make(chan []byte, 9)
		if in.net.nameServer.answer(q, func(b []byte) { replies <- b }) {
			<-replies
		}
		if len(replies) != 0 {
			t.Error("a question has two answers")
		}
	})
}

// FuzzPacket sends any packets; the stack has to stay alive.
func FuzzPacket(f *testing.F) {
	f.Add(syn(1, netip.MustParseAddrPort("1.2.3.4:5")))
	f.Add(packet6(netaddr.Inside6().Addr(), netaddr.Gateway6(), 17, make([]byte, 20)))
	in := join(f, good(sandpit.EgressBounds{}))
	f.Fuzz(func(_ *testing.T, p []byte) {
		if len(p) > 0 && len(p) <= netaddr.MTU {
			_, _ = in.link.write(p)
		}
	})
}
