package network

import (
	"io"
	"net"
	"os"
	"sync"
	"testing"

	"gvisor.dev/gvisor/pkg/tcpip/header"

	"github.com/sandpit-dev/sandpit"
)

// Downloads end although packets on the way in are lost: some of each first eight, and the end of
// the stream twice.
func TestLostPackets(t *testing.T) {
	const block, blocks = passSize, 8
	const size = blocks*block + 973
	a := listen(t, func(c net.Conn) { _, _ = c.Write(make([]byte, size)) })
	in := join(t, good(sandpit.EgressBounds{}))
	type packet struct {
		port     uint16 // inside
		sequence uint32 // number of its first byte
	}
	lose := make(map[packet]int) // how often
	var patterns []int           // of the blocks that are lost
	for pattern := range 1 << blocks {
		if pattern%9 == 0 || os.Getenv("SANDPIT_TEST_LONG") != "" {
			patterns = append(patterns, pattern)
		}
	}
	begun := 0
	in.only(func(p []byte) bool {
		if header.IPv4(p).TransportProtocol() != header.TCPProtocolNumber {
			return true
		}
		tcp := header.TCP(header.IPv4(p).Payload())
		id := packet{tcp.DestinationPort(), tcp.SequenceNumber()}
		switch {
		case tcp.Flags().Contains(header.TCPFlagSyn):
			end := packet{id.port, id.sequence + 1 + size}
			if _, again := lose[end]; !again {
				for i := range uint32(blocks) {
					lose[packet{id.port, id.sequence + 1 + i*block}] = patterns[begun] >> i & 1
				}
				lose[end] = 2
				begun++
			}
			return true
		case len(tcp.Payload()) == 0 && !tcp.Flags().Contains(header.TCPFlagFin):
			return true
		}
		lose[id]--
		return lose[id] < 0
	})
	var work sync.WaitGroup
	defer work.Wait()
	most := make(chan struct{}, 64)
	for range patterns {
		most <- struct{}{}
		c := in.must(at("good.test", a))
		work.Go(func() {
			defer func() { c.Close(); <-most }()
			if n, err := io.Copy(io.Discard, c); err != nil || n != size {
				t.Errorf("%d bytes have come, not %d: %v", n, size, err)
			}
		})
	}
}
