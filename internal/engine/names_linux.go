package engine

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
)

// lockName takes a name among the live sandboxes of this user on this machine.
// The name of an abstract socket is freed by the kernel when its holder has
// died, whatever it died of, and leaves no file. ErrExists when it is taken.
func lockName(name string) (release func(), err error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	addr := &unix.SockaddrUnix{Name: fmt.Sprintf("@sandpit-name-%d-%s", os.Geteuid(), name)}
	if err := unix.Bind(fd, addr); err != nil {
		unix.Close(fd)
		if errors.Is(err, unix.EADDRINUSE) {
			return nil, fmt.Errorf("name %s: %w", name, sandpit.ErrExists)
		}
		return nil, fmt.Errorf("taking the name %s: %w", name, err)
	}
	return func() { unix.Close(fd) }, nil
}
