// Package unixsock connects to the unix sockets of servers. Their paths may be longer than
// the kernel takes, and a connection is refused if the wrong user listens there.
package unixsock

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/fault"
)

// maxPath is the longest path that every system takes, in bytes: sun_path holds 108 on Linux
// (unix(7)) and 104 on Darwin, with a NUL at the end.
const maxPath = 103

// Short returns a name by which a socket can be bound or dialled, however long its path is.
// It is valid until release is called. Where there is no /proc, the name of a long path
// does not work.
func Short(path string) (short string, release func(), err error) {
	if len(path) <= maxPath {
		return path, func() {}, nil
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return "", nil, err
	}
	return "/proc/self/fd/" + strconv.Itoa(int(dir.Fd())) + "/" + filepath.Base(path), func() { _ = dir.Close() }, nil
}

// Dial connects to a socket. The listener must be a program of this user, of root, or of the
// owner of the socket's directory; otherwise the error matches sandpit.ErrForbidden. In a
// directory such as /tmp, where others may create files, this keeps a client from sending
// its requests to a stranger. The kernel noted the user when the program began to listen
// (SO_PEERCRED, unix(7)). On systems other than Linux the user is not checked.
func Dial(ctx context.Context, path string) (*net.UnixConn, error) {
	short, release, err := Short(path)
	if err != nil {
		return nil, err
	}
	defer release()
	conn, err := new(net.Dialer).DialContext(ctx, "unix", short)
	if err != nil {
		var op *net.OpError
		if errors.As(err, &op) {
			err = op.Err // without the short name
		}
		return nil, fmt.Errorf("connecting to %s: %w", path, err)
	}
	c := conn.(*net.UnixConn)
	if err := checkListener(c, filepath.Dir(path)); err != nil {
		_ = c.Close()
		return nil, fmt.Errorf("connecting to %s: %w", path, err)
	}
	return c, nil
}

// errStranger is the error of a socket on which a user listens who may not.
func errStranger(uid uint32) error {
	return sandpit.WithHint(fault.Errorf(sandpit.ErrForbidden, "user %d listens there, and is neither you, root nor the owner of the directory", uid),
		"check who created the socket and remove it, or use a directory in which only you can create files")
}
