package server

import (
	"fmt"
	"net"

	"golang.org/x/sys/unix"
)

// peerUID returns the user at the other end of a unix socket, as the kernel
// noted it when that end connected (SO_PEERCRED, unix(7)).
func peerUID(conn *net.UnixConn) (uint32, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return 0, fmt.Errorf("asking who is connected: %w", err)
	}
	var cred *unix.Ucred
	var failed error
	err = raw.Control(func(fd uintptr) {
		cred, failed = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	})
	if err == nil {
		err = failed
	}
	if err != nil {
		return 0, fmt.Errorf("asking who is connected: %w", err)
	}
	return cred.Uid, nil
}
