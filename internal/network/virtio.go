package network

import (
	"encoding/binary"

	"gvisor.dev/gvisor/pkg/tcpip/stack"

	"github.com/sandpit-dev/sandpit/internal/driver"
	"github.com/sandpit-dev/sandpit/internal/netaddr"
)

// virtioSize is the size in bytes of struct virtio_net_hdr: flags, the kind of the segments, the size of
// the headers and of a segment, where the sum begins, and where it is (Virtio 1.3, section 5.1.6).
const virtioSize = driver.PacketHeaderSize

// Values of struct virtio_net_hdr.
const (
	virtioNeedsSum = 1
	virtioTCP4     = 1
	virtioTCP6     = 4
)

// putVirtioHeader says what the kernel has to do with a packet to the sandbox. The sum of a TCP
// segment is made only if it ever leaves the machine, and one that is larger than the sandbox
// has asked for counts as several.
func putVirtioHeader(b *[virtioSize]byte, pkt *stack.PacketBuffer) {
	gso := pkt.GSOOptions
	if gso.Type == stack.GSONone {
		return
	}
	b[0] = virtioNeedsSum
	binary.NativeEndian.PutUint16(b[2:], uint16(pkt.HeaderSize())) //nolint:gosec // less than 200
	binary.NativeEndian.PutUint16(b[6:], gso.L3HdrLen)
	binary.NativeEndian.PutUint16(b[8:], gso.CsumOffset)
	if pkt.Data().Size() <= int(gso.MSS) {
		return
	}
	b[1] = virtioTCP4
	if gso.Type == stack.GSOTCPv6 {
		b[1] = virtioTCP6
	}
	binary.NativeEndian.PutUint16(b[4:], gso.MSS)
}

// SupportedGSO says whether packets may be as putVirtioHeader describes them.
func (l *link) SupportedGSO() stack.SupportedGSO {
	if l.header > 0 {
		return stack.HostGSOSupported
	}
	return stack.GSONotSupported
}

// GSOMaxSize returns what the size in bytes of a packet is less than.
func (*link) GSOMaxSize() uint32 { return netaddr.MTU + 1 }
