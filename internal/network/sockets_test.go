package network

import (
	"bufio"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/egress"
	"github.com/sandpit-dev/sandpit/internal/upstream"
)

// joinShared makes networks with the same Sockets.
func joinShared(t *testing.T, sockets *Sockets) (a, b *inside) {
	t.Helper()
	way, err := upstream.New(upstream.Settings{})
	if err != nil {
		t.Fatal(err)
	}
	terms := granted(t, good(sandpit.EgressBounds{Connections: 1 << 10, NewConnections: 1 << 10}))
	w := waits{head: headTimeout, hold: holdTime}
	return joinAs(t, terms, way, nil, sockets, w), joinAs(t, terms, way, nil, sockets, w)
}

// held returns the connections, with those in TIME_WAIT, that a network has.
func (in *inside) held() (files, ports int) {
	s := in.net.sockets.of
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.used {
		ports += p.by[in.net.sockets]
	}
	return s.open.by[in.net.sockets], ports
}

// opened opens connections until one fails, and returns how many there are.
func (in *inside) opened(t *testing.T, to string) (all []net.Conn) {
	t.Helper()
	for range 100 {
		c, err := in.dial(to)
		if err == nil {
			err = roundTrip(c)
		}
		if err != nil {
			break
		}
		all = append(all, c)
	}
	return all
}

// A network that takes all the descriptors and local ports it can get leaves some to others, and what it does
// not get counts as failed, not as denied.
func TestSocketsAreShared(t *testing.T) {
	a := at("good.test", listen(t, echo))
	for name, s := range map[string]*Sockets{
		"descriptors": {files: 14, ports: 1000}, // of which the interfaces have two
		"ports":       {files: 1000, ports: 12},
	} {
		t.Run(name, func(t *testing.T) {
			one, two := joinShared(t, s)
			first := one.opened(t, a)
			if len(first) != 6 {
				t.Fatalf("the first network has %d connections", len(first))
			}
			log := one.net.Log()
			if len(log.Denials) > 0 || !slices.ContainsFunc(log.Flows, func(f sandpit.Flow) bool { return f.Allowed && strings.Contains(f.Error, "all sandboxes share") }) {
				t.Errorf("the connection that failed is logged as %+v", log)
			}
			if second := two.opened(t, a); len(second) != 3 {
				t.Errorf("the second network has %d connections", len(second))
			}
			for _, c := range first {
				abort(c)
			}
			one.wait("the end of all connections", func() bool { files, _ := one.held(); return files == 0 })
		})
	}
}

// A connection that the sandbox ends first has its local port for another minute, and one that its origin ends
// first has not.
func TestPortsInTimeWait(t *testing.T) {
	s := &Sockets{files: 1000, ports: 8, reuse: "0"}
	in, _ := joinShared(t, s)
	ends := at("good.test", listen(t, func(c net.Conn) { _, _ = io.ReadFull(c, make([]byte, 2)) }))
	for range 20 {
		c := in.must(ends)
		if _, err := c.Write([]byte("x\n")); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadAll(c); err != nil {
			t.Fatal(err)
		}
		c.Close()
		in.wait("the end of the connection, and of the use of its port", func() bool { files, ports := in.held(); return files+ports == 0 })
	}
	stays := at("good.test", listen(t, echo))
	for i := range 4 {
		c := in.must(stays)
		if err := roundTrip(c); err != nil {
			t.Fatal(err)
		}
		c.Close()
		in.wait("the end of the connection", func() bool { files, _ := in.held(); return files == 0 })
		if _, ports := in.held(); ports != i+1 {
			t.Fatalf("%d ports are held after %d connections", ports, i+1)
		}
	}
	if c, err := in.dial(stays); err == nil {
		err = roundTrip(c)
		if err == nil {
			t.Error("a connection without a free port was made")
		}
	}
	if err := roundTrip(in.must(at("good.test", listen(t, echo)))); err != nil {
		t.Errorf("to another port: %v", err)
	}
	if s.reuse = "1"; s.lingers(in.net.rules.Load().rules.Addresses("good.test")[0]) != time.Second {
		t.Error("ports that Linux uses again are held for a minute")
	}
}

// A connection through an upstream proxy has its local port for another minute only if this side ends it first.
func TestPortsOfProxies(t *testing.T) {
	proxy := listen(t, func(c net.Conn) { // sends what its destination says with its own answer, and ends
		if _, err := http.ReadRequest(bufio.NewReader(c)); err == nil {
			_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\n\r\nx\n")
		}
	})
	way, err := upstream.New(upstream.Settings{Proxy: "http://" + proxy.String()})
	if err != nil {
		t.Fatal(err)
	}
	early := func() (net.Conn, error) { return way.Dial(t.Context(), "good.test:1") }
	for name, dial := range map[string]func() (net.Conn, error){
		"early bytes": early,
		"TLS": func() (net.Conn, error) {
			c, err := early()
			return tls.Client(c, &tls.Config{ServerName: "proxy.test"}), err
		},
	} {
		s := &Sockets{files: 10, ports: 10, reuse: "0"}
		one := s.join()
		c, err := one.dial(egress.TCP, netip.AddrPort{}, dial)
		if err != nil {
			t.Fatal(err)
		}
		for end := time.Now().Add(patience); !c.(*otherSocket).atEnd(); time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("%s: the end of the proxy is not seen", name)
			}
		}
		c.Close()
		if len(s.used) != 0 {
			t.Errorf("%s: a port is held after the proxy has ended the connection", name)
		}
	}

	patient := listen(t, func(c net.Conn) { // sends early bytes, too, and ends second
		r := bufio.NewReader(c)
		if _, err := http.ReadRequest(r); err == nil {
			_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\n\r\nx\n")
			_, _ = io.Copy(io.Discard, r)
		}
	})
	if way, err = upstream.New(upstream.Settings{Proxy: "http://" + patient.String()}); err != nil {
		t.Fatal(err)
	}
	s := &Sockets{files: 10, ports: 10, reuse: "0"}
	c, err := s.join().dial(egress.TCP, netip.AddrPort{}, early)
	if err != nil {
		t.Fatal(err)
	}
	closeWrite(c)
	if text, err := io.ReadAll(c); string(text) != "x\n" || err != nil {
		t.Errorf("%q, %v", text, err)
	}
	c.Close()
	if len(s.used) != 1 {
		t.Error("no port is held after this side has ended the connection first")
	}
}

// Places are given back whatever becomes of the connection.
func TestPlacesAreGivenBack(t *testing.T) {
	s := &Sockets{files: 4, ports: 4}
	one := s.join()
	for range 10 {
		if _, err := one.dial(egress.UDP, destination{}.addr, func() (net.Conn, error) { return nil, io.ErrUnexpectedEOF }); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Fatal(err)
		}
	}
	for range 10 {
		c, err := one.dial(egress.UDP, destination{}.addr, func() (net.Conn, error) { return net.Dial("udp", "127.0.0.1:9") })
		if err != nil {
			t.Fatal(err)
		}
		c.Close()
		c.Close()
	}
	one.leave()
	if s.open.all != 0 || len(s.open.by)+len(s.used) != 0 {
		t.Errorf("%+v is left", s)
	}
}

// The limits of this machine leave some of both.
func TestLimitsOfSockets(t *testing.T) {
	if s := NewSockets(); s.files < 1 || s.ports < 1 || s.ports >= 1<<16 {
		t.Errorf("%d descriptors and %d ports", s.files, s.ports)
	}
}
