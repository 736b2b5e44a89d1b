package unixsock_test

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/testkit"
	"github.com/sandpit-dev/sandpit/internal/unixsock"
)

func TestMain(m *testing.M) { os.Exit(testkit.Main(m)) }

// makeDir makes a directory with a short path and the mode and owner.
func makeDir(t *testing.T, mode fs.FileMode, uid int) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "sp")
	if err == nil {
		t.Cleanup(func() { _ = os.RemoveAll(dir) })
		err = errors.Join(os.Chmod(dir, mode), os.Chown(dir, uid, -1))
	}
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// A connection is made only to a program of this user, of root, or of the owner of the
// socket's directory.
func TestStrangersAreRefused(t *testing.T) {
	testkit.NeedRoot(t, "to act as other users")
	const user, other = 12345, 12346
	for name, tt := range map[string]struct {
		mode            fs.FileMode
		owner, listener int
		refused         bool
	}{
		"our own":                           {0o700, 0, 0, false},
		"another's, in a sticky directory":  {fs.ModeSticky | 0o777, 0, user, true},
		"the owner's of the directory":      {0o700, user, user, false},
		"another's, in a user's directory":  {fs.ModeSticky | 0o777, user, other, true},
		"root's, in a directory of another": {0o700, user, 0, false},
	} {
		path := filepath.Join(makeDir(t, tt.mode, tt.owner), "server.sock")
		testkit.ListenAs(t, tt.listener, path)
		conn, err := unixsock.Dial(t.Context(), path)
		switch {
		case err == nil && !tt.refused:
			_ = conn.Close()
		case err == nil || !tt.refused:
			t.Errorf("%s: refused %v, got %v", name, tt.refused, err)
		case !errors.Is(err, sandpit.ErrForbidden) || !strings.Contains(err.Error(), "connecting to "+path+": user 1234") || sandpit.Hint(err) == "":
			t.Errorf("%s: got %v", name, err)
		}
	}
}

// Paths that are longer than the kernel takes can be dialled. Errors name them.
func TestLongPaths(t *testing.T) {
	dir := filepath.Join(makeDir(t, 0o700, os.Geteuid()), strings.Repeat("d", 200))
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "server.sock")
	if _, err := unixsock.Dial(t.Context(), path); !errors.Is(err, fs.ErrNotExist) || !strings.HasPrefix(err.Error(), "connecting to "+path+": ") || strings.Contains(err.Error(), "/proc/") {
		t.Errorf("a missing socket: %v", err)
	}
	short, release, err := unixsock.Short(path)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", short)
	release()
	if err != nil {
		t.Fatal(err)
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	conn, err := unixsock.Dial(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	_ = conn.Close()
	_ = l.Close()
	if _, err := unixsock.Dial(t.Context(), path); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("a socket without a listener: %v", err)
	}
	over, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := unixsock.Dial(over, path); !errors.Is(err, context.Canceled) {
		t.Errorf("a context that has ended: %v", err)
	}
}
