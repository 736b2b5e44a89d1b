package network

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/header"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/netaddr"
)

// What no rule allows is refused, or dropped without any answer: TCP, UDP, ICMP, other
// protocols, fragments, extension headers, other sources, groups.
func TestAttackF1DenyByDefault(t *testing.T) {
	in := join(t, sandpit.Egress{Allow: []string{"good.test", "*.good.test"}, Resolve: []string{"good.test:127.0.0.1"}})
	for _, a := range []string{"93.184.216.34:80", "10.0.0.1:22", "[2606:4700::1111]:443", "[fd12::1]:80", "198.19.7.7:80", "[fd73:616e:6470:2::707]:80", "[fd73:616e:6470:2:1::1]:80", "198.18.0.1:80", "[fd73:616e:6470:1::1]:22"} {
		in.refuses(a, a, "")
	}
	// UDP is refused with an ICMP error, also to an allowed name, whose rule is about TCP.
	name, err := in.lookup("good.test")
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range []netip.AddrPort{netip.MustParseAddrPort("93.184.216.34:443"), netip.MustParseAddrPort("[2606:4700::1111]:443"), netip.AddrPortFrom(name, 443)} {
		to, protocol := full(a)
		conn, err := gonet.DialUDP(in.stack, nil, &to, protocol)
		if err != nil {
			t.Fatal(err)
		}
		in.packets()
		_, _ = conn.Write([]byte("x"))
		var got [][]byte
		in.wait("an answer from "+a.String(), func() bool { got = append(got, in.packets()...); return len(got) > 0 })
		if !isUnreachable(got[0]) {
			t.Errorf("UDP to %s is answered with %x", a, got[0])
		}
		conn.Close()
	}

	me4, me6 := netaddr.Inside4().Addr(), netaddr.Inside6().Addr()
	gateway4, gateway6 := netaddr.Gateway4(), netaddr.Gateway6()
	echo4 := []byte{8, 0, 0xf7, 0xff, 0, 0, 0, 0}
	echo6 := header.ICMPv6(make([]byte, 8))
	echo6.SetType(header.ICMPv6EchoRequest)
	echo6.SetChecksum(header.ICMPv6Checksum(header.ICMPv6ChecksumParams{Header: echo6, Src: tcpipAddr(me6), Dst: tcpipAddr(gateway6)}))
	fragment := packet4(me4, gateway4, header.UDPProtocolNumber, make([]byte, 16))
	header.IPv4(fragment).SetFlagsFragmentOffset(header.IPv4FlagMoreFragments, 0)
	options := append([]byte{0x46}, packet4(me4, gateway4, header.UDPProtocolNumber, make([]byte, 12))[1:]...)
	answered := syn(1000, netip.AddrPortFrom(gateway4, 99))
	spoofed := packet4(netip.MustParseAddr("198.18.0.3"), gateway4, header.TCPProtocolNumber, answered[header.IPv4MinimumSize:])
	for what, p := range map[string][]byte{
		"echo to the gateway": packet4(me4, gateway4, header.ICMPv4ProtocolNumber, echo4), "echo to another address": packet4(me4, netip.MustParseAddr("1.1.1.1"), header.ICMPv4ProtocolNumber, echo4),
		"echo over IPv6":             packet6(me6, gateway6, header.ICMPv6ProtocolNumber, echo6),
		"echo behind an extension":   packet6(me6, gateway6, 60, append([]byte{58, 0, 1, 4, 0, 0, 0, 0}, echo6...)),
		"an unknown extension":       packet6(me6, gateway6, 60, []byte{200, 0, 0xc2, 4, 0, 0, 0, 0}),
		"an echo reply":              packet4(me4, gateway4, header.ICMPv4ProtocolNumber, []byte{0, 0, 0xff, 0xff, 0, 0, 0, 0}),
		"half an echo request":       packet4(me4, gateway4, header.ICMPv4ProtocolNumber, echo4[:7]),
		"a large echo request":       packet4(me4, gateway4, header.ICMPv4ProtocolNumber, append(bytes.Clone(echo4), make([]byte, maxEcho+1)...)),
		"a redirect":                 packet4(me4, gateway4, header.ICMPv4ProtocolNumber, []byte{5, 1, 0xfa, 0xfe, 0, 0, 0, 0}),
		"a neighbour solicitation":   packet6(me6, gateway6, header.ICMPv6ProtocolNumber, append([]byte{135, 0, 0, 0, 0, 0, 0, 0}, gateway6.AsSlice()...)),
		"a listener query":           packet6(me6, netip.MustParseAddr("ff02::1"), header.ICMPv6ProtocolNumber, make([]byte, 24)),
		"SCTP":                       packet4(me4, gateway4, 132, make([]byte, 32)),
		"an unknown protocol":        packet4(me4, gateway4, 253, make([]byte, 32)),
		"IPv4 in IPv4":               packet4(me4, gateway4, 4, answered),
		"a fragment":                 fragment,
		"options":                    options,
		"another source":             spoofed,
		"a source of the host":       packet4(netip.MustParseAddr("127.0.0.1"), gateway4, header.TCPProtocolNumber, answered[header.IPv4MinimumSize:]),
		"a group":                    packet4(me4, netip.MustParseAddr("224.0.0.251"), header.UDPProtocolNumber, make([]byte, 16)),
		"everybody":                  packet4(me4, netip.MustParseAddr("255.255.255.255"), header.UDPProtocolNumber, make([]byte, 16)),
		"a mapped address":           packet6(me6, netip.MustParseAddr("::ffff:127.0.0.1"), header.TCPProtocolNumber, answered[header.IPv4MinimumSize:]),
		"no packet":                  {0},
		"half a header of IPv4":      {0x45, 0, 0, 20, 0},
		"half a header of IPv6":      {0x60, 0, 0},
		"a length beyond the packet": append([]byte{0x45, 0, 0xff, 0xff}, answered[4:24]...),
	} {
		in.raw(p)
		in.raw(answered) // with a reset
		var got [][]byte
		in.wait("an answer to what follows "+what, func() bool { got = append(got, in.packets()...); return len(got) > 0 })
		if strings.HasPrefix(what, "echo ") && !strings.Contains(what, "extension") { // a reply would be what it asks for
			in.wait("a reset", func() bool { got = append(got, in.packets()...); return len(got) > 1 })
			if !isUnreachable(got[0]) {
				t.Errorf("%s is answered with %x", what, got[0])
			}
			got = got[1:]
		}
		if len(got) != 1 || header.IPv4(got[0]).TransportProtocol() != header.TCPProtocolNumber {
			t.Errorf("%s is answered: %x", what, got)
		}
	}
}

// isUnreachable reports whether a packet says that nobody listens on a port.
func isUnreachable(p []byte) bool {
	if header.IPVersion(p) == header.IPv4Version {
		ip := header.IPv4(p)
		return ip.TransportProtocol() == header.ICMPv4ProtocolNumber && header.ICMPv4(ip.Payload()).Type() == header.ICMPv4DstUnreachable
	}
	ip := header.IPv6(p)
	return tcpip.TransportProtocolNumber(ip.NextHeader()) == header.ICMPv6ProtocolNumber && header.ICMPv6(ip.Payload()).Type() == header.ICMPv6DstUnreachable
}

// publicly allows everything public, and asks a name server of the test.
func publicly(s *nameServerOutside) sandpit.Egress {
	return sandpit.Egress{Preset: sandpit.EgressPublic, Allow: []string{"*.wild.test"}, DNS: []string{s.addr}}
}

// Metadata services are refused by address and by name, whatever the name is and however the
// address is written.
func TestAttackF2MetadataServices(t *testing.T) {
	service := map[string]string{
		"metadata.google.internal": "169.254.169.254", "169.254.169.254.nip.io": "169.254.169.254", "a9fea9fe.wild.test": "169.254.169.254",
		"aws6.wild.test": "fd00:ec2::254", "azure.wild.test": "168.63.129.16", "alibaba.wild.test": "100.100.100.200", "oracle.wild.test": "192.0.0.192",
		"mapped.wild.test": "::ffff:169.254.169.254", "nat64.wild.test": "64:ff9b::a9fe:a9fe", "6to4.wild.test": "2002:a9fe:a9fe::1", "link6.wild.test": "fe80::a9fe:a9fe",
	}
	s := serveNamesOutside(t, func(name string, _ int) []string {
		if a := service[name]; a != "" {
			return []string{a}
		}
		return nil
	})
	for _, preset := range []sandpit.EgressPreset{sandpit.EgressPublic, sandpit.EgressAll, sandpit.EgressLearn} {
		e := publicly(s)
		e.Preset = preset
		e.Allow = append(e.Allow, "0.0.0.0/0", "::/0")
		in := join(t, e)
		for _, a := range []string{"169.254.169.254:80", "[fd00:ec2::254]:80", "168.63.129.16:80", "100.100.100.200:80", "192.0.0.192:80"} {
			in.refuses(a, a, "not public")
		}
		for name := range service {
			in.refuses(name+":80", name+":80", "not public")
		}
		for _, name := range []string{"2852039166", "0xa9fea9fe", "0251.0376.0251.0376", "169.254.43518"} {
			if _, err := in.lookup(name); err == nil {
				t.Errorf("%s has an address", name)
			}
		}
	}
}

// A redirect to a metadata service is another connection, and CONNECT is no way around.
func TestAttackF2RedirectAndConnect(t *testing.T) {
	a := serveHTTP(t, func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "http://169.254.169.254/latest/meta-data/", http.StatusFound)
	})
	in := join(t, sandpit.Egress{Allow: []string{"good.test"}, Resolve: []string{"good.test:127.0.0.1"}})
	client := &http.Client{Transport: &http.Transport{DialContext: func(_ context.Context, _, a string) (net.Conn, error) { return in.dial(a) }, DisableKeepAlives: true}}
	if res, err := client.Get("http://" + at("good.test", a) + "/"); err == nil {
		res.Body.Close()
		t.Error("a redirect leads to the metadata service")
	}
	if why := in.denied("169.254.169.254:80"); why == "" {
		t.Error("the connection after the redirect is not in the log")
	}
	c := in.must(at("good.test", a))
	if got := request(t, c, "CONNECT 169.254.169.254:80 HTTP/1.1\r\nHost: 169.254.169.254:80\r\n\r\n"); got != http.StatusForbidden {
		t.Errorf("CONNECT is answered with %d", got)
	}
}

// This machine and its networks are out of reach, also where private addresses are allowed.
func TestAttackF3ThisMachine(t *testing.T) {
	var reached atomic.Int64
	a := listen(t, func(net.Conn) { reached.Add(1) })
	own, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]string{"loop.wild.test": "127.0.0.1", "loop9.wild.test": "127.9.9.9", "any.wild.test": "0.0.0.0", "loop6.wild.test": "::1", "any6.wild.test": "::", "mapped.wild.test": "::ffff:127.0.0.1"}
	for i, o := range own {
		names[fmt.Sprintf("own%d.wild.test", i)] = netip.MustParsePrefix(o.String()).Addr().String()
	}
	s := serveNamesOutside(t, func(name string, _ int) []string {
		if names[name] == "" {
			return nil
		}
		return []string{names[name]}
	})
	e := publicly(s)
	e.Preset = sandpit.EgressAll
	in := join(t, e)
	for name := range names {
		in.refuses(at(name, a), at(name, a), "")
	}
	for _, o := range own {
		if addr := netip.MustParsePrefix(o.String()).Addr(); !addr.IsLoopback() && !addr.IsLinkLocalUnicast() {
			to := netip.AddrPortFrom(addr, a.Port()).String()
			in.refuses(to, to, "")
		}
	}
	if n := reached.Load(); n != 0 {
		t.Errorf("this machine was reached %d times", n)
	}
}

// The address that a program connects to says which name it means, and nothing else: an allowed
// name in TLS opens no way to another address.
func TestAttackF4AllowedNameForAnotherAddress(t *testing.T) {
	var reached atomic.Int64
	evil := listen(t, func(c net.Conn) { reached.Add(1); echo(c) })
	in := join(t, sandpit.Egress{Allow: []string{"good.test"}, Resolve: []string{"good.test:127.0.0.1", "evil.test:127.0.0.1"}})
	for _, a := range []string{"203.0.113.9:443", "10.0.0.1:443"} {
		if c, err := in.dial(a); err == nil {
			err = tls.Client(c, &tls.Config{ServerName: "good.test", InsecureSkipVerify: true}).Handshake()
			t.Errorf("%s is connected: %v", a, err)
		}
	}
	if _, err := in.dial(at("evil.test", evil)); err == nil {
		t.Error("another name of an allowed address is connected")
	}
	if reached.Load() != 0 {
		t.Error("the origin was reached")
	}
}

// Whoever owns an allowed name can't lead it elsewhere: every address is checked where it is
// dialled.
func TestAttackF5Rebinding(t *testing.T) {
	var good, bad atomic.Int64
	a := listen(t, func(c net.Conn) { good.Add(1); echo(c) })
	l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.2:%d", a.Port()))
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			bad.Add(1)
			c.Close()
		}
	}()
	t.Cleanup(func() { l.Close(); <-done })
	special := map[string][]string{
		"cname.test": {"internal.test", "10.0.0.1"}, "loop.test": {"127.0.0.2"}, "private.test": {"192.168.0.1", "172.16.0.1", "fd12::1"}, "shared.test": {"100.64.0.1"},
		"group.test": {"224.0.0.1", "ff02::1"}, "zero.test": {"0.0.0.0", "::"}, "all.test": {"255.255.255.255"}, "mapped.test": {"::ffff:127.0.0.2"}, "nat64.test": {"64:ff9b::7f00:2"},
		"mixed.test": {"10.0.0.1", "127.0.0.1"},
	}
	s := serveNamesOutside(t, func(name string, count int) []string {
		if name == "rebind.test" {
			return []string{[]string{"127.0.0.1", "127.0.0.2"}[(count-1)%2]}
		}
		return special[name]
	})
	e := sandpit.Egress{DNS: []string{s.addr}, Allow: []string{at("127.0.0.1", a), at("rebind.test", a)}}
	for name := range special {
		e.Allow = append(e.Allow, at(name, a))
	}
	in := join(t, e)
	if err := roundTrip(in.must(at("rebind.test", a))); err != nil {
		t.Fatal(err)
	}
	if err := in.net.Set(granted(t, e)); err != nil { // which forgets the first answer
		t.Fatal(err)
	}
	in.refuses(at("rebind.test", a), at("rebind.test", a), "its address is not public")
	for name := range special {
		if name != "mixed.test" {
			in.refuses(at(name, a), at(name, a), "not public")
		}
	}
	if err := roundTrip(in.must(at("mixed.test", a))); err != nil {
		t.Errorf("a name with an allowed address among others: %v", err)
	}
	if good.Load() != 2 || bad.Load() != 0 {
		t.Errorf("the named address was reached %d times, the other one %d times", good.Load(), bad.Load())
	}
}

// Questions about names that are not allowed leave nothing outside, and neither do other types of
// questions about allowed ones.
func TestAttackF7Tunnels(t *testing.T) {
	s := serveNamesOutside(t, func(string, int) []string { return []string{"93.184.216.34"} })
	in := join(t, sandpit.Egress{Allow: []string{"good.test:443", "*.wild.test:443"}, DNS: []string{s.addr}})
	for _, name := range []string{"c2vjcmv0.evil.test", "evil.test", "test", "good.test.evil.test", strings.Repeat("a", 63) + ".evil.test"} {
		for _, kind := range []dnsmessage.Type{dnsmessage.TypeA, dnsmessage.TypeTXT, 10, 255, dnsmessage.TypeMX, dnsmessage.TypeCNAME, 65} {
			msg, err := in.ask(name, kind)
			if err != nil || msg.RCode != dnsmessage.RCodeNameError || len(msg.Answers) != 0 {
				t.Errorf("%s, type %d: %+v, %v", name, kind, msg, err)
			}
		}
		if in.denied(name) == "" {
			t.Errorf("the question about %s is not in the log", name)
		}
	}
	for _, kind := range []dnsmessage.Type{dnsmessage.TypeTXT, 10, 255, dnsmessage.TypeMX, dnsmessage.TypeCNAME, dnsmessage.TypeNS, dnsmessage.TypeSRV, 65} {
		msg, err := in.ask("good.test", kind)
		if err != nil || msg.RCode != dnsmessage.RCodeSuccess || len(msg.Answers)+len(msg.Additionals)+len(msg.Authorities) != 0 {
			t.Errorf("good.test, type %d: %+v, %v", kind, msg, err)
		}
	}
	for key := range s.questions() {
		if key != "A good.test" && key != "AAAA good.test" {
			t.Errorf("somebody outside was asked for %s", key)
		}
	}
	// Of many questions about names that are allowed, only as many are passed on as the rate
	// allows.
	to, protocol := full(netip.AddrPortFrom(netaddr.Gateway4(), dnsPort))
	conn, err := gonet.DialUDP(in.stack, nil, &to, protocol)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	began := time.Now()
	for i := range 3000 {
		q, err := packQuestion(fmt.Sprintf("data%d.wild.test", i), dnsmessage.TypeA)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = conn.Write(q)
	}
	in.wait("an answer after the flood", func() bool { _, err := in.lookup("good.test"); return err == nil })
	allowed := dnsBurst + int(time.Since(began).Seconds()*dnsRate) + dnsRate
	if n := len(s.questions()); n > 2*allowed {
		t.Errorf("%d questions were passed on, of about %d that are allowed", n, 2*allowed)
	}
	// Other name servers are out of reach, unless a rule names them.
	in = join(t, publicly(s))
	for _, a := range []string{"8.8.8.8:443", "93.184.216.34:853", "93.184.216.34:53", "[2606:4700:4700::1111]:443"} {
		in.refuses(a, a, "name server")
	}
	for _, name := range []string{"dns.google", "cloudflare-dns.com", "mozilla.cloudflare-dns.com"} {
		if _, err := in.lookup(name); err == nil {
			t.Errorf("%s has an address", name)
		}
	}
}

// serveHTTP serves HTTP on an address of this machine.
func serveHTTP(t testing.TB, handler http.HandlerFunc) netip.AddrPort {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: handler, ReadHeaderTimeout: patience}
	done := make(chan struct{})
	go func() { defer close(done); _ = server.Serve(l) }()
	t.Cleanup(func() { server.Close(); <-done })
	return l.Addr().(*net.TCPAddr).AddrPort()
}

// request sends a request as it is, and returns the status of its answer, or 0 if the connection
// ended without any.
func request(t testing.TB, c net.Conn, text string) int {
	t.Helper()
	if _, err := io.WriteString(c, text); err != nil {
		return 0
	}
	res, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		return 0
	}
	defer res.Body.Close()
	_, _ = io.Copy(io.Discard, res.Body)
	return res.StatusCode
}

// The host that a request names is the one of its connection, in every request, however it is
// written.
func TestAttackF8OtherHostsOverHTTP(t *testing.T) {
	var hosts atomic.Pointer[[]string]
	hosts.Store(new([]string))
	a := serveHTTP(t, func(w http.ResponseWriter, r *http.Request) {
		if up := r.Header.Get("Upgrade"); up != "" && up != "websocket" {
			t.Errorf("the origin is offered %s", up)
		}
		all := append(*hosts.Load(), r.Method+" "+r.Host)
		hosts.Store(&all)
		body, _ := io.ReadAll(r.Body)
		fmt.Fprintf(w, "%d", len(body))
	})
	in := join(t, sandpit.Egress{Allow: []string{"good.test"}, Resolve: []string{"good.test:127.0.0.1"}})
	good := at("good.test", a)
	c := in.must(good)
	for range 3 {
		if got := request(t, c, "GET / HTTP/1.1\r\nHost: "+good+"\r\n\r\n"); got != http.StatusOK {
			t.Fatalf("an allowed request is answered with %d", got)
		}
	}
	if got := request(t, c, "GET http://"+good+"?x HTTP/1.1\r\nHost: other.test\r\n\r\n"); got != http.StatusOK {
		t.Errorf("a request for a URL is answered with %d", got)
	}
	if got := request(t, c, "GET / HTTP/1.1\r\nHost: evil.test\r\n\r\n"); got != http.StatusForbidden {
		t.Errorf("another host in a later request is answered with %d", got)
	}
	for _, head := range []string{
		"GET / HTTP/1.1\r\nHost: evil.test\r\n\r\n",
		"GET http://evil.test/ HTTP/1.1\r\nHost: good.test\r\n\r\n",
		"GET x:http://evil.test/p HTTP/1.1\r\nHost: good.test\r\n\r\n",
		"GET http:http://evil.test/p HTTP/1.1\r\nHost: good.test\r\n\r\n",
		"GET x:/p HTTP/1.1\r\nHost: good.test\r\n\r\n",
		"GET ftp://good.test/ HTTP/1.1\r\nHost: good.test\r\n\r\n",
		"GET * HTTP/1.1\r\nHost: good.test\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: good.test:1\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: good.test@evil.test\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: evil.test\x00.good.test\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: good.test\r\nHost: evil.test\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: good.test evil.test\r\n\r\n",
		"GET / HTTP/1.1\r\nHost : evil.test\r\nHost: good.test\r\n\r\n",
		"GET / HTTP/1.1\r\n\r\n",
		"GET / HTTP/1.0\r\n\r\n",
		"GET /\r\n\r\n",
		"FROB / HTTP/1.1\r\nHost: evil.test\r\n\r\n",
		"get / HTTP/1.1\r\nHost: evil.test\r\n\r\n",
		"\r\n\r\nGET / HTTP/1.1\r\nHost: evil.test\r\n\r\n",
		"GET\t/\tHTTP/1.1\r\nHost: evil.test\r\n\r\n",
		"GET / HTTP/1.1\nHost: evil.test\n\n",
		"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: [::1]\r\n\r\n",
		"\x1cGET / HTTP/1.1\r\nHost: evil.test\r\n\r\n",
		"\xa0GET / HTTP/1.1\r\nHost: evil.test\r\n\r\n",
		"GET\x1f/ HTTP/1.1\r\nHost: evil.test\r\n\r\n",
		"CONNECT good.test:443 HTTP/1.1\r\nHost: good.test\r\n\r\n",
		"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
	} {
		if got := request(t, in.must(good), head); got == http.StatusOK {
			t.Errorf("%q is answered", head)
		}
	}
	// In single bytes, each of which arrives alone.
	c = in.must(good)
	for _, b := range []byte("FROB / HTTP/1.1\r\nHost: evil.test\r\n") {
		if _, err := c.Write([]byte{b}); err != nil {
			break
		}
		time.Sleep(time.Millisecond)
	}
	if got := request(t, c, "\r\n"); got == http.StatusOK {
		t.Error("a request in single bytes is answered")
	}
	// Two readers never see two requests in one.
	for _, text := range []string{
		"POST / HTTP/1.1\r\nHost: good.test\r\nContent-Length: 6\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /x HTTP/1.1\r\nHost: evil.test\r\n\r\n",
		"POST / HTTP/1.1\r\nHost: good.test\r\nContent-Length: 0\r\nContent-Length: 40\r\n\r\nGET /x HTTP/1.1\r\nHost: evil.test\r\n\r\n",
		"POST / HTTP/1.1\r\nHost: good.test\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\nGET /x HTTP/1.1\r\nHost: evil.test\r\n\r\n",
		"POST / HTTP/1.1\r\nHost: good.test\r\nTransfer-Encoding : chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\nGET /x HTTP/1.1\r\nHost: evil.test\r\n\r\n",
		"POST / HTTP/1.1\r\nHost: good.test\r\nX: a\r\n Content-Length: 40\r\n\r\nGET /x HTTP/1.1\r\nHost: evil.test\r\n\r\n",
		"POST / HTTP/1.1\nHost: good.test\nContent-Length: 0\n\nGET /x HTTP/1.1\nHost: evil.test\n\n",
		"POST / HTTP/1.1\r\nHost: good.test\r\nTransfer-Encoding: chunked\r\n\r\n1;x=\nGET /x HTTP/1.1\r\nHost: evil.test\r\n\r\n0\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: good.test\r\nConnection: Upgrade\r\nUpgrade: websocket, TLS/1.2\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: good.test\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n\r\n",
	} {
		c := in.must(good)
		_, _ = io.WriteString(c, text)
		_ = c.CloseWrite()
		_, _ = io.Copy(io.Discard, c)
	}
	for _, host := range *hosts.Load() {
		if host != "GET "+good && host != "GET good.test" && host != "POST good.test" {
			t.Errorf("the origin got %s", host)
		}
	}
}

// The name in TLS is that of the connection.
func TestAttackF8OtherNamesInTLS(t *testing.T) {
	var reached atomic.Int64
	a := listen(t, func(c net.Conn) {
		b := make([]byte, 1)
		if n, _ := c.Read(b); n > 0 {
			reached.Add(1)
		}
	})
	in := join(t, sandpit.Egress{Allow: []string{"good.test", at("127.0.0.1", a)}, Deny: []string{"evil.test"}, Resolve: []string{"good.test:127.0.0.1"}})
	for _, name := range []string{"evil.test", "xgood.test", "good.test.evil.test", "a.good.test", "127.0.0.1"} {
		_ = tls.Client(in.must(at("good.test", a)), &tls.Config{ServerName: name, InsecureSkipVerify: true}).Handshake()
		if n := reached.Load(); n != 0 {
			t.Fatalf("the origin got a ClientHello for %s", name)
		}
		c := in.must(at("good.test", a))
		if _, err := c.Write([]byte{0x15, 3, 1, 0, 2, 1, 0x70}); err != nil { // a warning, which Go's servers pass over
			t.Fatal(err)
		}
		_ = tls.Client(c, &tls.Config{ServerName: name, InsecureSkipVerify: true}).Handshake()
		if n := reached.Load(); n != 0 {
			t.Fatalf("the origin got a ClientHello for %s after a warning", name)
		}
	}
	c := in.must(at("good.test", a))
	_, _ = c.Write([]byte{recordHandshake, 3, 1, 0xff, 0xff, 1})
	_ = c.CloseWrite()
	_, _ = io.Copy(io.Discard, c)
	if reached.Load() != 0 {
		t.Error("the origin got half a ClientHello")
	}
	_ = tls.Client(in.must(at("good.test", a)), &tls.Config{ServerName: "GOOD.test", InsecureSkipVerify: true}).Handshake()
	in.wait("a ClientHello for the name itself", func() bool { return reached.Load() == 1 })
}

// A server that speaks first is not delayed, and neither is a client that speaks slowly.
func TestAttackF10ServersThatSpeakFirst(t *testing.T) {
	a := listen(t, func(c net.Conn) {
		if _, err := io.WriteString(c, "220 mail.test ESMTP\r\n"); err == nil {
			echo(c)
		}
	})
	in := join(t, sandpit.Egress{Allow: []string{"good.test"}, Resolve: []string{"good.test:127.0.0.1"}})
	c := in.must(at("good.test", a))
	r := bufio.NewReader(c)
	if line, err := r.ReadString('\n'); err != nil || !strings.HasPrefix(line, "220 ") {
		t.Fatalf("the greeting is %q, %v", line, err)
	}
	for _, text := range []string{"EHLO me\r\n", "\x00\x01", "GET / HTTP/1.1\r\n", "\x16\x03\x01"} {
		if _, err := io.WriteString(c, text); err != nil {
			t.Fatal(err)
		}
		back := make([]byte, len(text))
		if _, err := io.ReadFull(r, back); err != nil || string(back) != text {
			t.Fatalf("%q came back as %q, %v", text, back, err)
		}
	}
}

// A client that waits for an answer to a piece of a line gets one, after a moment. What was passed on
// can't become a request or TLS any more: then the connection ends, and the origin never has a name.
func TestAttackF10PiecesThatWait(t *testing.T) {
	var mu sync.Mutex
	var got []byte
	a := listen(t, func(c net.Conn) {
		for b := make([]byte, 100); ; {
			n, err := c.Read(b)
			if err != nil {
				return
			}
			mu.Lock()
			got = append(got, b[:n]...)
			mu.Unlock()
			_, _ = c.Write(b[:n])
		}
	})
	in := joinWaiting(t, granted(t, sandpit.Egress{Allow: []string{"good.test"}, Resolve: []string{"good.test:127.0.0.1"}}), waits{hold: time.Millisecond})
	echoed := func(c net.Conn, text string) {
		t.Helper()
		if _, err := io.WriteString(c, text); err != nil {
			t.Fatal(err)
		}
		back := make([]byte, len(text))
		if _, err := io.ReadFull(c, back); err != nil || string(back) != text {
			t.Fatalf("%q came back as %q, %v", text, back, err)
		}
	}
	c := in.must(at("good.test", a))
	for _, text := range []string{"P", "I", "NG", " x", "\r\n", "GET / HTTP/1.1\r\n"} {
		echoed(c, text)
	}
	for _, pieces := range [][]string{
		{"G", "ET / HTTP/1.1\r\nHost: bad.test\r\n\r\n"},
		{"\r\n", "GET / HTTP/1.1\r\nHost: bad.test\r\n\r\n"},
		{"F", "ROB /", " HTTP/1.1\r\nHost: bad.test\r\n\r\n"},
		{"\x16", "\x03\x01\x00\x05bad.test"},
		{"A", strings.Repeat("A", peekSize) + "bad.test"},
	} {
		c := in.must(at("good.test", a))
		last := len(pieces) - 1
		for _, text := range pieces[:last] {
			echoed(c, text)
		}
		_, _ = io.WriteString(c, pieces[last])
		if rest, _ := io.ReadAll(c); strings.Contains(string(rest), "bad.test") {
			t.Errorf("%q passed", pieces)
		}
		in.wait("the refusal", func() bool { return strings.Contains(in.denied(at("good.test", a)), "in pieces") })
	}
	mu.Lock()
	defer mu.Unlock()
	if bytes.Contains(got, []byte("bad.test")) {
		t.Errorf("the origin got %q", got)
	}
}

// A request whose header never ends is not waited for, and the origin gets nothing of it.
func TestAttackF10HeadersThatNeverEnd(t *testing.T) {
	a := serveHTTP(t, func(http.ResponseWriter, *http.Request) { t.Error("a request without an end") })
	in := joinWaiting(t, granted(t, sandpit.Egress{Allow: []string{"good.test"}, Resolve: []string{"good.test:127.0.0.1"}}), waits{head: time.Millisecond, hold: holdTime})
	c := in.must(at("good.test", a))
	if _, err := io.WriteString(c, "GET / HTTP/1.1\r\nHost: "+at("good.test", a)+"\r\nX: "); err != nil {
		t.Fatal(err)
	}
	if text, err := io.ReadAll(c); isTimeout(err) { // patience is less than headTimeout
		t.Errorf("the connection stays open\n%s", text)
	}
}

// Proxies of the environment are those of the machine, not of its sandboxes.
func TestAttackF12ProxiesOfTheEnvironment(t *testing.T) {
	var proxied atomic.Int64
	proxy := listen(t, func(net.Conn) { proxied.Add(1) })
	for _, name := range []string{"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"} {
		t.Setenv(name, "http://"+proxy.String())
	}
	var last atomic.Pointer[http.Header]
	a := serveHTTP(t, func(_ http.ResponseWriter, r *http.Request) { h := r.Header.Clone(); last.Store(&h) })
	in := join(t, sandpit.Egress{Allow: []string{"good.test"}, Resolve: []string{"good.test:127.0.0.1"}})
	if got := request(t, in.must(at("good.test", a)), "GET / HTTP/1.1\r\nHost: "+at("good.test", a)+"\r\nX-Mine: 1\r\n\r\n"); got != http.StatusOK {
		t.Fatalf("the answer is %d", got)
	}
	if proxied.Load() != 0 {
		t.Error("a proxy of the environment was used")
	}
	if header := *last.Load(); len(header) != 1 || header.Get("X-Mine") != "1" {
		t.Errorf("the origin got the header %v", header)
	}
}
