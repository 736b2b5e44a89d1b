package network

import (
	"io"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
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
