package driver

import (
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// PacketHeaderSize is the size in bytes of struct virtio_net_hdr of linux/virtio_net.h.
const PacketHeaderSize = 10

// PacketHeader returns the size in bytes of what is in front of each packet of a Linker's file:
// PacketHeaderSize, or 0. Errors are those of the system.
func PacketHeader(file syscall.RawConn) (int, error) {
	var req unix.Ifreq
	var err error
	if failed := file.Control(func(fd uintptr) { err = unix.IoctlIfreq(int(fd), unix.TUNGETIFF, &req) }); failed != nil {
		return 0, failed
	}
	switch {
	case err == unix.ENOTTY, err == unix.EINVAL: // not an interface
		return 0, nil
	case err != nil:
		return 0, os.NewSyscallError("ioctl TUNGETIFF", err)
	case req.Uint16()&unix.IFF_VNET_HDR == 0:
		return 0, nil
	}
	return PacketHeaderSize, nil
}
