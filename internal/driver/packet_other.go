//go:build !linux

package driver

import "syscall"

// PacketHeaderSize is the size in bytes of struct virtio_net_hdr of linux/virtio_net.h.
const PacketHeaderSize = 10

// PacketHeader returns 0 and no error: only Linux has files with such headers.
func PacketHeader(syscall.RawConn) (int, error) { return 0, nil }
