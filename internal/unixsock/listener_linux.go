package unixsock

import (
	"fmt"
	"net"
	"os"
	"syscall"
)

// checkListener returns an error unless the user at the other end may listen in a directory.
func checkListener(conn *net.UnixConn, dir string) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	var cred *syscall.Ucred
	var failed error
	if err := raw.Control(func(fd uintptr) {
		cred, failed = syscall.GetsockoptUcred(int(fd), syscall.SOL_SOCKET, syscall.SO_PEERCRED)
	}); err != nil {
		return err
	}
	if failed != nil {
		return fmt.Errorf("finding out who listens there: %w", failed)
	}
	if cred.Uid == 0 || int(cred.Uid) == os.Geteuid() {
		return nil
	}
	if info, err := os.Stat(dir); err == nil && info.Sys().(*syscall.Stat_t).Uid == cred.Uid {
		return nil
	}
	return errStranger(cred.Uid)
}
