package network

import (
	"bufio"
	"errors"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/egress"
	"github.com/sandpit-dev/sandpit/internal/netaddr"
)

// Close ends what goes on, and returns, whatever that is.
func TestClose(t *testing.T) {
	silent := listen(t, func(c net.Conn) { _, _ = io.Copy(io.Discard, c) })
	in := join(t, sandpit.Egress{Allow: []string{at("good.test", silent), "udp:good.test"}, Resolve: []string{"good.test:127.0.0.1"}})
	for range 20 {
		c := in.must(at("good.test", silent))
		if _, err := io.WriteString(c, "GET / HTTP"); err != nil {
			t.Fatal(err)
		}
	}
	a, err := in.lookup("good.test")
	if err != nil {
		t.Fatal(err)
	}
	in.only(func([]byte) bool { return false }) // nobody answers any more
	for i := range 100 {
		in.raw(syn(uint16(20000+i), netip.AddrPortFrom(a, silent.Port())))
	}
	in.wait("the half-open connections", func() bool { return len(in.net.Log().Flows) >= 100 })
	began := time.Now()
	in.net.Close()
	in.net.Close()
	if took := time.Since(began); took > patience/2 {
		t.Errorf("Close took %s", took)
	}
	if l := in.net.Log(); len(l.Flows) == 0 || l.Flows[len(l.Flows)-1].Open {
		t.Errorf("the log after Close: %+v", l.Flows)
	}
}

// A connection that one end resets is reset at the other, too: nobody takes a part for all.
func TestResets(t *testing.T) {
	for name, first := range map[string]string{"as it is": "hello\n", "of HTTP/1.0": "GET / HTTP/1.0\r\nHost: good.test\r\n\r\n"} {
		t.Run("by the origin "+name, func(t *testing.T) {
			taken := make(chan struct{})
			a := listen(t, func(c net.Conn) {
				_, _ = bufio.NewReader(c).ReadString('\n')
				_, _ = io.WriteString(c, "HTTP/1.0 200 OK\r\n\r\na part\n")
				<-taken
				_ = c.(*net.TCPConn).SetLinger(0)
			})
			in := join(t, sandpit.Egress{Allow: []string{at("good.test", a)}, Resolve: []string{"good.test:127.0.0.1"}})
			c := in.must(at("good.test", a))
			if _, err := io.WriteString(c, first); err != nil {
				t.Fatal(err)
			}
			r := bufio.NewReader(c)
			for line := ""; line != "a part\n"; {
				var err error
				if line, err = r.ReadString('\n'); err != nil {
					t.Fatal(err)
				}
			}
			close(taken)
			if b, err := r.ReadByte(); err == nil || errors.Is(err, io.EOF) || isTimeout(err) {
				t.Errorf("the sandbox reads %q, %v", b, err)
			}
			in.wait("the end in the log", func() bool { f := in.net.Log().Flows; return !f[len(f)-1].Open })
			if f := in.net.Log().Flows; name == "as it is" && !strings.Contains(f[len(f)-1].Error, "reset") {
				t.Errorf("the log says %+v", f)
			}
		})
	}
	t.Run("by the sandbox", func(t *testing.T) {
		origin := make(chan error, 1)
		a := listen(t, func(c net.Conn) {
			_, err := io.Copy(c, c)
			origin <- err
		})
		in := join(t, sandpit.Egress{Allow: []string{at("good.test", a)}, Resolve: []string{"good.test:127.0.0.1"}})
		if err := roundTrip(in.must(at("good.test", a))); err != nil {
			t.Fatal(err)
		}
		for _, ep := range in.stack.RegisteredEndpoints() {
			ep.Abort()
		}
		if err := <-origin; err == nil {
			t.Error("the origin sees a clean end")
		}
	})
}

// A connection that the sandbox may no longer have is not ended towards the origin as if all was sent.
func TestEndedConnectionsAreNotWhole(t *testing.T) {
	a := listen(t, echo)
	in := join(t, sandpit.Egress{Allow: []string{at("127.0.0.1", a)}})
	gateway, protocol := full(netip.AddrPortFrom(netaddr.Gateway4(), 9999))
	l, err := gonet.ListenTCP(in.net.stack, gateway, protocol)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := in.dialAddr(netip.AddrPortFrom(netaddr.Gateway4(), 9999))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	inside, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	to := egress.Destination{Protocol: egress.TCP, Addr: a.Addr(), Port: a.Port()}
	d := &dialler{rules: &in.net.rules, set: in.net.rules.Load(), to: to, flow: in.net.flows.begin(to), network: "tcp"}
	conn, err := d.dial(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	out := &outward{Conn: conn, writing: make(chan struct{}), written: make(chan struct{})}
	d.flow.open(func() { // as forward does, except for out
		for _, ep := range in.net.stack.RegisteredEndpoints() {
			ep.Abort()
			if ep, ok := ep.(*tcp.Endpoint); ok {
				_ = ep.LastError() // which the other direction may get, and then this one sees a clean end
			}
		}
	}, func() error { return nil })
	served := make(chan error, 1)
	go func() {
		served <- in.net.serve(&counted{end: &end{TCPConn: inside.(*gonet.TCPConn)}, ctx: t.Context(), flow: d.flow, bounds: &in.net.bounds}, out, d)
	}()
	if _, err := io.WriteString(c, "hello\n"); err != nil {
		t.Fatal(err)
	}
	<-out.writing
	d.flow.cut(errTraffic)
	close(out.written)
	_ = conn.(interface{ CloseRead() error }).CloseRead() // so that the other direction ends, too
	<-served
	if out.ended.Load() {
		t.Error("the origin is told that this was all")
	}
}

// outward notes that its sending direction was ended. Its first Write takes until written.
type outward struct {
	net.Conn
	writing, written chan struct{}
	ended            atomic.Bool
}

func (c *outward) Write(b []byte) (int, error) {
	close(c.writing)
	<-c.written
	return c.Conn.Write(b)
}

func (c *outward) CloseWrite() error {
	c.ended.Store(true)
	return nil
}
