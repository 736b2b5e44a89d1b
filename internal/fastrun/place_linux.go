package fastrun

import (
	"errors"
	"fmt"
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// Place identifies the environment of a program: its user, its user and mount namespaces,
// and its root directory. Paths mean the same to two programs in one place. A server
// declines clients of other places.
func Place() (string, error) {
	var user, mount, root unix.Stat_t
	err := errors.Join(unix.Stat("/proc/self/ns/user", &user), unix.Stat("/proc/self/ns/mnt", &mount), unix.Stat("/", &root))
	if err != nil {
		return "", fmt.Errorf("finding the namespaces of this program: %w", err)
	}
	return fmt.Sprintf("%d.%x.%x.%x.%x", os.Geteuid(), user.Ino, mount.Ino, root.Dev, root.Ino), nil
}

// ours reports whether the other end of a connection is a program of this
// user, as the kernel noted it when that end began to listen (SO_PEERCRED,
// unix(7)).
func ours(conn *net.UnixConn) bool {
	raw, err := conn.SyscallConn()
	if err != nil {
		return false
	}
	same := false
	err = raw.Control(func(fd uintptr) {
		cred, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
		same = err == nil && int(cred.Uid) == os.Geteuid()
	})
	return err == nil && same
}
