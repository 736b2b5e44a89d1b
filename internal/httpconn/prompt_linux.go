package httpconn

import (
	"net"
	"syscall"
)

// acknowledge acknowledges at once what has arrived. The kernel else waits up to 40 ms for data to send with it.
func acknowledge(c net.Conn) {
	tcp, ok := c.(*net.TCPConn)
	if !ok {
		return
	}
	if raw, err := tcp.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) { _ = syscall.SetsockoptInt(int(fd), syscall.IPPROTO_TCP, syscall.TCP_QUICKACK, 1) }) // if not, it comes later
	}
}
