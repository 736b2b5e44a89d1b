package driver

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// PacketHeaderSize is the size in bytes of struct virtio_net_hdr of linux/virtio_net.h.
const PacketHeaderSize = 10

// PacketHeader returns the size in bytes of what is in front of each packet of a Linker's file:
// PacketHeaderSize, or 0.
func PacketHeader(file syscall.RawConn) int {
	var req unix.Ifreq
	var err error
	failed := file.Control(func(fd uintptr) { err = unix.IoctlIfreq(int(fd), unix.TUNGETIFF, &req) })
	if failed != nil || err != nil || req.Uint16()&unix.IFF_VNET_HDR == 0 {
		return 0
	}
	return PacketHeaderSize
}
