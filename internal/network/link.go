package network

import (
	"errors"
	"net/netip"
	"os"
	"sync/atomic"
	"syscall"

	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/stack"

	"github.com/sandpit-dev/sandpit/internal/driver"
	"github.com/sandpit-dev/sandpit/internal/netaddr"
)

// link is the end of a sandbox's interface: each read of its file is an IP packet, and so is
// each write, behind a struct virtio_net_hdr if the file is like that: see driver.Linker. A waiting
// link holds no buffer and no thread.
type link struct {
	file   *os.File
	raw    syscall.RawConn
	header int // bytes in front of each packet: virtioSize, or 0

	accept func([]byte) bool // packets; others are dropped

	dispatcher atomic.Pointer[stack.NetworkDispatcher]
	done       chan struct{} // closed when nothing is read any more
	err        error         // why; valid once done is closed
}

// newLink takes over file, which is non-blocking.
func newLink(file *os.File, accept func([]byte) bool) (*link, error) {
	raw, err := file.SyscallConn()
	if err != nil {
		return nil, err
	}
	header, err := driver.PacketHeader(raw)
	if err != nil {
		return nil, err
	}
	return &link{file: file, raw: raw, header: header, accept: accept, done: make(chan struct{})}, nil
}

// receive passes packets on to the stack until the file is closed.
func (l *link) receive() {
	defer close(l.done)
	for {
		var view *buffer.View
		var failed error
		err := l.raw.Read(func(fd uintptr) bool {
			buf := packets.Get().(*[virtioSize + netaddr.MTU]byte)
			defer packets.Put(buf)
			n, err := readDescriptor(fd, buf[:])
			switch {
			case err == syscall.EAGAIN:
				return false
			case err != nil:
				failed = err
			case n == 0:
				failed = os.ErrClosed // the other end of a socket
			case n > l.header:
				view = buffer.NewViewWithData(buf[l.header:n])
			}
			return true
		})
		if err = errors.Join(err, failed); err != nil {
			l.err = err
			return
		}
		if view != nil {
			l.deliver(view)
		}
	}
}

// deliver passes a packet on to the stack, which checks it.
func (l *link) deliver(view *buffer.View) {
	d := l.dispatcher.Load()
	if d == nil || !l.accept(view.AsSlice()) {
		view.Release()
		return
	}
	var protocol tcpip.NetworkProtocolNumber
	switch header.IPVersion(view.AsSlice()) {
	case header.IPv4Version:
		protocol = header.IPv4ProtocolNumber
	case header.IPv6Version:
		protocol = header.IPv6ProtocolNumber
	default:
		view.Release()
		return
	}
	pkt := stack.NewPacketBuffer(stack.PacketBufferOptions{Payload: buffer.MakeWithView(view)})
	(*d).DeliverNetworkPacket(protocol, pkt)
	pkt.DecRef()
}

// WritePackets sends packets. What the sandbox does not take is lost, as on any network.
func (l *link) WritePackets(list stack.PacketBufferList) (int, tcpip.Error) {
	n := 0
	for _, pkt := range list.AsSlice() {
		var head [virtioSize]byte
		putVirtioHeader(&head, pkt)
		if _, err := l.send(append([][]byte{head[:l.header]}, pkt.AsSlices()...)...); err != nil {
			return n, &tcpip.ErrClosedForSend{}
		}
		n++
	}
	return n, nil
}

// write sends a packet that has all of its sums. It returns less than its length if it is lost.
func (l *link) write(b []byte) (int, error) {
	var head [virtioSize]byte
	n, err := l.send(head[:l.header], b)
	return n - l.header, err
}

// send sends a packet with the header in front of it. An error means that the link is closed.
func (l *link) send(pieces ...[]byte) (n int, err error) {
	err = l.raw.Control(func(fd uintptr) { n, _ = writeDescriptor(fd, pieces...) })
	return n, err
}

// Attach connects the link to a stack, or with nil disconnects it.
func (l *link) Attach(d stack.NetworkDispatcher) {
	if d == nil {
		l.dispatcher.Store(nil)
		return
	}
	l.dispatcher.Store(&d)
}

// IsAttached reports whether the link is connected to a stack.
func (l *link) IsAttached() bool { return l.dispatcher.Load() != nil }

// MTU returns the size of the largest packet in bytes.
func (*link) MTU() uint32 { return netaddr.MTU }

// SetMTU does nothing: the MTU is the same for every sandbox.
func (*link) SetMTU(uint32) {}

// Capabilities says that packets from inside need no check of their sums: the kernel of this machine has
// made them, or says that it has not.
func (*link) Capabilities() stack.LinkEndpointCapabilities {
	return stack.CapabilityRXChecksumOffload
}

// MaxHeaderLength returns 0: there is no link header.
func (*link) MaxHeaderLength() uint16 { return 0 }

// LinkAddress returns no address.
func (*link) LinkAddress() tcpip.LinkAddress { return "" }

// SetLinkAddress does nothing.
func (*link) SetLinkAddress(tcpip.LinkAddress) {}

// ARPHardwareType says that there is no ARP.
func (*link) ARPHardwareType() header.ARPHardwareType { return header.ARPHardwareNone }

// AddHeader does nothing.
func (*link) AddHeader(*stack.PacketBuffer) {}

// ParseHeader does nothing.
func (*link) ParseHeader(*stack.PacketBuffer) bool { return true }

// SetOnCloseAction does nothing.
func (*link) SetOnCloseAction(func()) {}

// Wait returns when nothing is read any more.
func (l *link) Wait() { <-l.done }

// Close closes the file, which ends receive.
func (l *link) Close() { _ = l.file.Close() }

// fromInside reports whether a packet is one that the sandbox has a reason to send: a whole one of
// TCP, UDP or ICMP, from its own address to a single host, without options and extension headers. The
// stack would put fragments together, join groups, and answer echo requests and other sources.
func fromInside(b []byte) bool {
	var protocol tcpip.TransportProtocolNumber
	var from, to netip.Addr
	switch header.IPVersion(b) {
	case header.IPv4Version:
		ip := header.IPv4(b)
		if len(b) < header.IPv4MinimumSize || ip.HeaderLength() != header.IPv4MinimumSize || ip.More() || ip.FragmentOffset() != 0 {
			return false
		}
		protocol = ip.TransportProtocol()
		from, to = netip.AddrFrom4(ip.SourceAddress().As4()), netip.AddrFrom4(ip.DestinationAddress().As4())
	case header.IPv6Version:
		if len(b) < header.IPv6MinimumSize {
			return false
		}
		ip := header.IPv6(b)
		protocol = tcpip.TransportProtocolNumber(ip.NextHeader())
		from, to = netip.AddrFrom16(ip.SourceAddress().As16()), netip.AddrFrom16(ip.DestinationAddress().As16())
	default:
		return false
	}
	return (protocol == header.TCPProtocolNumber || protocol == header.UDPProtocolNumber || protocol == header.ICMPv4ProtocolNumber && from.Is4() || protocol == header.ICMPv6ProtocolNumber && from.Is6()) &&
		(from == netaddr.Inside4().Addr() || from == netaddr.Inside6().Addr()) &&
		!to.IsUnspecified() && !to.IsLoopback() && !to.IsMulticast() && to != netip.AddrFrom4([4]byte{255, 255, 255, 255})
}
