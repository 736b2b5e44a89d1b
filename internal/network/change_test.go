package network

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"sync/atomic"
	"testing"

	"github.com/sandpit-dev/sandpit"
)

// A connection that is being made while the rules change goes by the new ones.
func TestSetWhileDialling(t *testing.T) {
	a := listen(t, echo)
	var hold atomic.Bool
	asked, release := make(chan struct{}), make(chan struct{})
	s := serveNamesOutside(t, func(string, int) []string {
		if hold.CompareAndSwap(true, false) {
			close(asked)
			<-release
		}
		return []string{"127.0.0.1"}
	})
	e := sandpit.Egress{Allow: []string{at("moved.test", a), "127.0.0.1"}, DNS: []string{s.addr}}
	in := join(t, e)
	addr, err := in.lookup("moved.test")
	if err != nil {
		t.Fatal(err)
	}
	if err := in.net.Set(granted(t, e)); err != nil { // which forgets the answer
		t.Fatal(err)
	}
	hold.Store(true)
	ended := make(chan error, 1)
	go func() {
		c, err := in.dialAddr(netip.AddrPortFrom(addr, a.Port()))
		if err == nil {
			defer c.Close()
			err = roundTrip(c)
		}
		ended <- err
	}()
	<-asked
	e.Allow = e.Allow[:1] // the name, whose address is not public
	err = in.net.Set(granted(t, e))
	close(release)
	if err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err == nil {
		t.Error("a connection that the new rules do not allow was made")
	}
}

// Connections that a kept HTTP connection makes later go by the rules of now, and end when new
// ones do not allow them.
func TestSetWhileHTTPIsKept(t *testing.T) {
	serve := func(l net.Listener, once bool, each func(), ended func()) {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			each()
			for r := bufio.NewReader(c); ; {
				if _, err := http.ReadRequest(r); err != nil {
					break
				}
				_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
				if once {
					break
				}
			}
			c.Close()
			ended()
		}
	}
	first, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := first.Addr().(*net.TCPAddr).Port
	second, err := net.Listen("tcp", fmt.Sprintf("127.0.0.2:%d", port))
	if err != nil {
		t.Fatal(err)
	}
	var reached atomic.Int64
	closed, done := make(chan struct{}, 16), make(chan struct{}, 2)
	go func() { serve(first, true, func() {}, func() {}); done <- struct{}{} }()
	go func() {
		serve(second, false, func() { reached.Add(1) }, func() { closed <- struct{}{} })
		done <- struct{}{}
	}()
	t.Cleanup(func() { first.Close(); second.Close(); <-done; <-done })

	var moved atomic.Bool
	s := serveNamesOutside(t, func(string, int) []string {
		if moved.Load() {
			return []string{"127.0.0.2"}
		}
		return []string{"127.0.0.1"}
	})
	host := fmt.Sprintf("moved.test:%d", port)
	e := sandpit.Egress{Allow: []string{host, "127.0.0.1", "127.0.0.2"}, DNS: []string{s.addr}}
	in := join(t, e)
	c := in.must(host)
	get := func() int { return request(t, c, "GET / HTTP/1.1\r\nHost: "+host+"\r\n\r\n") }
	if got := get(); got != http.StatusOK {
		t.Fatalf("the first request is answered with %d", got)
	}
	moved.Store(true)
	if err := in.net.Set(granted(t, e)); err != nil { // which forgets the answer
		t.Fatal(err)
	}
	in.wait("a request to the second address", func() bool { return get() == http.StatusOK && reached.Load() == 1 })
	e.Allow = e.Allow[:2]
	if err := in.net.Set(granted(t, e)); err != nil {
		t.Fatal(err)
	}
	<-closed
	if got := get(); got != http.StatusBadGateway {
		t.Errorf("a request to an address that is denied now is answered with %d", got)
	}
	if reached.Load() != 1 {
		t.Error("an address that is denied now was dialled")
	}
}
