package unixsock

import (
	"fmt"
	"net"
	"os"
	"syscall"
)

// listener returns who began to listen at the other end.
func listener(conn *net.UnixConn) (*syscall.Ucred, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, err
	}
	var cred *syscall.Ucred
	var failed error
	if err := raw.Control(func(fd uintptr) {
		cred, failed = syscall.GetsockoptUcred(int(fd), syscall.SOL_SOCKET, syscall.SO_PEERCRED)
	}); err != nil {
		return nil, err
	}
	if failed != nil {
		return nil, fmt.Errorf("finding out who listens there: %w", failed)
	}
	return cred, nil
}

// Listener returns the id of the process that began to listen at the other end: perhaps not the server, but
// a service manager that has passed its socket on. It is 0 if that is not known.
func Listener(conn *net.UnixConn) int {
	cred, err := listener(conn)
	if err != nil {
		return 0
	}
	return int(cred.Pid)
}

// checkListener returns an error unless the user at the other end may listen in a directory.
func checkListener(conn *net.UnixConn, dir string) error {
	cred, err := listener(conn)
	if err != nil {
		return err
	}
	if cred.Uid == 0 || int(cred.Uid) == os.Geteuid() {
		return nil
	}
	if info, err := os.Stat(dir); err == nil && info.Sys().(*syscall.Stat_t).Uid == cred.Uid {
		return nil
	}
	return errStranger(cred.Uid)
}
