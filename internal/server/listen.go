package server

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/fault"
	"github.com/sandpit-dev/sandpit/internal/unixsock"
)

// listen opens a listener. A unix socket has mode 0600, in a directory that is made with
// mode 0700. A socket file without a listener is replaced.
func listen(ctx context.Context, a Address) (net.Listener, error) {
	if a.Network != "unix" {
		l, err := new(net.ListenConfig).Listen(ctx, "tcp", a.Host)
		if errors.Is(err, syscall.EADDRINUSE) {
			return nil, sandpit.WithHint(fmt.Errorf("listening on %s: %w", a, withoutAddress(err)), "choose another port: another program uses this one")
		}
		if err != nil {
			return nil, fmt.Errorf("listening on %s: %w", a, withoutAddress(err))
		}
		return l, nil
	}
	if err := os.MkdirAll(filepath.Dir(a.Host), 0o700); err != nil {
		return nil, fmt.Errorf("listening on %s: %w", a, err)
	}
	short, release, err := unixsock.Short(a.Host)
	if err != nil {
		return nil, fmt.Errorf("listening on %s: %w", a, err)
	}
	defer release()
	if conn, err := net.Dial("unix", short); err == nil {
		_ = conn.Close()
		return nil, sandpit.WithHint(fault.Errorf(sandpit.ErrExists, "listening on %s: another server uses it", a), "stop that server, or choose another address")
	}
	if info, err := os.Lstat(a.Host); err == nil {
		if info.Mode().Type() != os.ModeSocket {
			return nil, sandpit.WithHint(fault.Errorf(sandpit.ErrExists, "listening on %s: the file exists and is not a socket", a), "listen elsewhere")
		}
		if err := os.Remove(a.Host); err != nil {
			return nil, fmt.Errorf("listening on %s: %w", a, err)
		}
	}
	// Linux makes the file with the mode that the socket has before it is bound
	// (net/unix/af_unix.c): nobody can connect in between. A umask would be one
	// for the whole program, and for what it does elsewhere at this moment.
	private := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		return c.Control(func(fd uintptr) { _ = unix.Fchmod(int(fd), 0o600) })
	}}
	l, err := private.Listen(ctx, "unix", short)
	if err == nil {
		err = os.Chmod(a.Host, 0o600)
	}
	if err != nil {
		return nil, fmt.Errorf("listening on %s: %w", a, withoutAddress(err))
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false) // under its short name it could not be found
	return &unixListener{Listener: l, path: a.Host}, nil
}

// withoutAddress returns the cause of an error of listening, which names the address itself.
func withoutAddress(err error) error {
	if op, ok := errors.AsType[*net.OpError](err); ok {
		return op.Err
	}
	return err
}

// unixListener removes its file when it is closed.
type unixListener struct {
	net.Listener
	path string
}

func (l *unixListener) Close() error {
	_ = os.Remove(l.path)
	return l.Listener.Close()
}

// dial connects to a server. Of a unix socket unixsock.Dial checks who listens there.
func (a Address) dial(ctx context.Context) (net.Conn, error) {
	if a.Network == "unix" {
		return unixsock.Dial(ctx, a.Host)
	}
	return new(net.Dialer).DialContext(ctx, a.Network, a.Host)
}

// activated returns the listeners that the service manager has opened for this program
// (sd_listen_fds_with_names(3)), with their names as the services, and removes the variables from
// the environment of its children.
func activated(lookup func(string) (string, bool)) ([]listener, error) {
	const first = 3 // SD_LISTEN_FDS_START
	pid, ok := lookup("LISTEN_PID")
	if !ok || pid != strconv.Itoa(os.Getpid()) {
		return nil, nil
	}
	text, _ := lookup("LISTEN_FDS")
	n, err := strconv.Atoi(text)
	if err != nil || n < 0 || n > 64 {
		return nil, fault.Errorf(sandpit.ErrInvalid, "inheriting the sockets of the service manager: LISTEN_FDS is %q", text)
	}
	text, _ = lookup("LISTEN_FDNAMES")
	names := append(strings.Split(text, ":"), make([]string, n)...)
	for _, name := range [...]string{"LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"} {
		_ = os.Unsetenv(name)
	}
	var all []listener
	for fd := first; fd < first+n; fd++ {
		unix.CloseOnExec(fd)
		file := os.NewFile(uintptr(fd), "socket "+strconv.Itoa(fd)+" of the service manager")
		l, err := net.FileListener(file)
		_ = file.Close()
		if err != nil {
			for _, l := range all {
				_ = l.Close()
			}
			return nil, fmt.Errorf("inheriting the sockets of the service manager: descriptor %d: %w", fd, err)
		}
		if u, ok := l.(*net.UnixListener); ok {
			u.SetUnlinkOnClose(false) // it belongs to the service manager
		}
		all = append(all, listener{l, names[fd-first]})
	}
	return all, nil
}
