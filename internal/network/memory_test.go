package network

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/waiter"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/intercept"
	"github.com/sandpit-dev/sandpit/internal/netaddr"
)

// The head of a request is read up to a bound.
func TestLongRequestHeads(t *testing.T) {
	a := serveHTTP(t, func(http.ResponseWriter, *http.Request) {})
	in := join(t, good(sandpit.EgressBounds{}))
	for size, allowed := range map[int]bool{intercept.MaxHead / 2: true, 2 * intercept.MaxHead: false} {
		head := "GET / HTTP/1.1\r\nHost: good.test\r\n" + strings.Repeat("A: b\r\n", size/len("A: b\r\n")) + "\r\n"
		if got := request(t, in.must(at("good.test", a)), head); (got == http.StatusOK) != allowed {
			t.Errorf("a head of %d bytes is answered with %d", size, got)
		}
	}
}

// The head of a response is read up to a bound.
func TestLongResponseHeads(t *testing.T) {
	var size atomic.Int64
	a := listen(t, func(c net.Conn) {
		if _, err := http.ReadRequest(bufio.NewReader(c)); err == nil {
			_, _ = fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nConnection: close\r\n%s\r\n", strings.Repeat("A: b\r\n", int(size.Load())/len("A: b\r\n")))
		}
	})
	in := join(t, good(sandpit.EgressBounds{}))
	for bytes, want := range map[int]int{intercept.MaxResponseHead / 2: http.StatusOK, 2 * intercept.MaxResponseHead: http.StatusBadGateway} {
		size.Store(int64(bytes))
		if got := request(t, in.must(at("good.test", a)), "GET / HTTP/1.1\r\nHost: good.test\r\n\r\n"); got != want {
			t.Errorf("a head of %d bytes gives %d, not %d", bytes, got, want)
		}
	}
}

// What origins send over HTTP/2 and the sandbox does not read is bounded.
func TestUnreadStreams(t *testing.T) {
	var sent atomic.Int64
	o := newOrigin(t, true, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		for b := make([]byte, 16<<10); ; {
			n, err := w.Write(b)
			sent.Add(int64(n))
			if err != nil {
				return
			}
		}
	}))
	in := joinOn(t, o.terms(t, nil, "GET:https://good.test:PORT/*"))
	authority := fmt.Sprintf("good.test:%d", o.port)
	const connections, streams = 40, 20
	for range connections {
		c := tls.Client(in.must(authority), &tls.Config{ServerName: "good.test", InsecureSkipVerify: true, NextProtos: []string{"h2"}})
		defer c.NetConn().Close()
		if _, err := io.WriteString(c, http2.ClientPreface); err != nil {
			t.Fatal(err)
		}
		f := http2.NewFramer(c, c)
		if err := f.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0}); err != nil {
			t.Fatal(err)
		}
		for i := range streams {
			var head bytes.Buffer
			e := hpack.NewEncoder(&head)
			for _, field := range [][2]string{{":method", "GET"}, {":scheme", "https"}, {":authority", authority}, {":path", "/x"}} {
				_ = e.WriteField(hpack.HeaderField{Name: field[0], Value: field[1]})
			}
			if err := f.WriteHeaders(http2.HeadersFrameParam{StreamID: uint32(2*i + 1), BlockFragment: head.Bytes(), EndStream: true, EndHeaders: true}); err != nil {
				t.Fatal(err)
			}
		}
	}
	var last int64
	in.wait("an end of what is sent", func() bool {
		time.Sleep(200 * time.Millisecond)
		was := last
		last = sent.Load()
		return last == was && last > 0
	})
	if most := int64(intercept.AllUnread + connections*(64<<10+streams*32<<10)); last > most { // some of a stream is on its way
		t.Errorf("%d bytes were sent that nobody has read; at most %d are held", last, most)
	}
}

// Refusals above a rate are not answered, but counted, and end nothing else.
func TestFloodOfRefusals(t *testing.T) {
	a := listen(t, echo)
	in := join(t, good(sandpit.EgressBounds{}))
	open := in.must(at("good.test", a))
	const flood, answered = 2000, 10
	in.net.refusals.SetLimit(1e-9)
	in.net.refusals.SetBurst(answered)
	in.packets()
	denied := netip.MustParseAddrPort("203.0.113.9:80")
	for i := range flood {
		if i == answered {
			in.wait("the first refusals", func() bool { return in.net.Traffic().Denials == answered })
		}
		in.raw(syn(uint16(1024+i), denied))
	}
	in.wait("the count of the flood", func() bool { return in.net.Traffic().Denials == flood })
	if n := len(in.net.Log().Flows); n != answered+1 {
		t.Errorf("the log has %d connections, of which one is allowed and %d are refused one by one", n, answered)
	}
	if n := len(in.packets()); n > 2*answered { // resets, and whatever was late
		t.Errorf("%d refusals were answered", n)
	}
	if err := roundTrip(open); err != nil {
		t.Errorf("an open connection: %v", err)
	}
	in.net.refusals.SetBurst(refusalRate)
	in.net.refusals.SetLimit(refusalRate)
	in.wait("a new connection", func() bool {
		c, err := in.dial(at("good.test", a))
		if err == nil {
			c.Close()
		}
		return err == nil
	})
}

// Datagrams that wait while a name is resolved are bounded in number, also if they are empty.
func TestDatagramsThatWait(t *testing.T) {
	outside, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	empty, last := 0, make(chan struct{})
	go func() {
		defer close(last)
		for buf := make([]byte, 9); ; empty++ {
			if n, _, err := outside.ReadFrom(buf); n > 0 || err != nil {
				return
			}
		}
	}()
	t.Cleanup(func() { outside.Close(); <-last })
	var hold atomic.Bool
	asked, release := make(chan struct{}), make(chan struct{})
	s := serveNamesOutside(t, func(string, int) []string {
		if hold.CompareAndSwap(true, false) {
			close(asked)
			<-release
		}
		return []string{"127.0.0.1"}
	})
	e := sandpit.Egress{Allow: []string{"udp:slow.test", "udp:127.0.0.1"}, DNS: []string{s.addr}}
	in := join(t, e)
	addr, err := in.lookup("slow.test")
	if err != nil {
		t.Fatal(err)
	}
	if err := in.net.Set(granted(t, e)); err != nil { // which forgets the answer
		t.Fatal(err)
	}
	hold.Store(true)
	to, protocol := full(netip.AddrPortFrom(addr, outside.LocalAddr().(*net.UDPAddr).AddrPort().Port()))
	conn, err := gonet.DialUDP(in.stack, nil, &to, protocol)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	const sent = 50 * maxWaiting
	received := in.net.stack.Stats().UDP.PacketsReceived
	before := received.Value()
	udp := header.UDP(make([]byte, header.UDPMinimumSize))
	udp.Encode(&header.UDPFields{SrcPort: conn.LocalAddr().(*net.UDPAddr).AddrPort().Port(), DstPort: to.Port, Length: header.UDPMinimumSize})
	for range sent {
		in.raw(packet4(netaddr.Inside4().Addr(), addr, header.UDPProtocolNumber, udp))
	}
	<-asked
	in.wait("the datagrams", func() bool { return received.Value() >= before+sent })
	in.wait("an empty queue", func() bool {
		for _, ep := range in.net.stack.RegisteredEndpoints() {
			if ep, ok := ep.(tcpip.Endpoint); ok && ep.Readiness(waiter.ReadableEvents) != 0 {
				return false
			}
		}
		return true
	})
	close(release)
	in.wait("the last datagram", func() bool {
		_, _ = conn.Write([]byte("x"))
		select {
		case <-last:
			return true
		default:
			return false
		}
	})
	if empty > maxWaiting {
		t.Errorf("%d empty datagrams were kept, of at most %d", empty, maxWaiting)
	}
}
