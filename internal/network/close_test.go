package network

import (
	"errors"
	"io"
	"net"
	"runtime"
	"syscall"
	"testing"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip/checksum"
	"gvisor.dev/gvisor/pkg/tcpip/header"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/netaddr"
)

// syn sends the first packet of a connection from a port that nobody listens on, so that it
// stays half open: the peer's stack would answer the second with a reset.
func (in *inside) syn(from uint16, to net.Addr) {
	in.t.Helper()
	dst := to.(*net.TCPAddr).AddrPort()
	p := make([]byte, header.IPv4MinimumSize+header.TCPMinimumSize)
	ip := header.IPv4(p)
	ip.Encode(&header.IPv4Fields{TotalLength: uint16(len(p)), TTL: 64, Protocol: uint8(header.TCPProtocolNumber), SrcAddr: tcpipAddr(netaddr.Inside4().Addr()), DstAddr: tcpipAddr(dst.Addr())})
	ip.SetChecksum(^ip.CalculateChecksum())
	tcp := header.TCP(p[header.IPv4MinimumSize:])
	tcp.Encode(&header.TCPFields{SrcPort: from, DstPort: dst.Port(), SeqNum: 1, DataOffset: header.TCPMinimumSize, Flags: header.TCPFlagSyn, WindowSize: 65535})
	sum := header.PseudoHeaderChecksum(header.TCPProtocolNumber, ip.SourceAddress(), ip.DestinationAddress(), uint16(len(tcp)))
	tcp.SetChecksum(^tcp.CalculateChecksum(checksum.Checksum(tcp.Payload(), sum)))
	in.raw(p)
}

// raw sends a packet as it is.
func (in *inside) raw(p []byte) {
	in.t.Helper()
	for {
		_, err := in.link.write(p)
		if err == nil {
			return
		}
		if !errors.Is(err, syscall.EAGAIN) {
			in.t.Fatal(err)
		}
		runtime.Gosched()
	}
}

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
	in.link.file.SetReadDeadline(time.Now()) // nobody answers any more
	for i := range 100 {
		in.syn(uint16(20000+i), &net.TCPAddr{IP: a.AsSlice(), Port: int(silent.Port())})
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
