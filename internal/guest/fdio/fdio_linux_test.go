package fdio

import (
	"io"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// What the kernel doesn't watch is read all the same, in a thread that blocks. It never
// watches regular files, and of others only as many as fs.epoll.max_user_watches says.
func TestFilesThatAreNotWatched(t *testing.T) {
	name := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(name, []byte("content"), 0o600); err != nil {
		t.Fatal(err)
	}
	fd, err := unix.Open(name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	unix.Close(pair[1])
	for _, tt := range []struct {
		fd      int
		watched bool
		want    string
	}{{fd, false, "content"}, {pair[0], true, ""}} {
		f := WaitingFile(tt.fd, "file")
		defer f.Close()
		if got := Watched(f); got != tt.watched {
			t.Errorf("descriptor %d is watched: %v, want %v", tt.fd, got, tt.watched)
		}
		flags, err := unix.FcntlInt(uintptr(tt.fd), unix.F_GETFL, 0)
		if err != nil || (flags&unix.O_NONBLOCK != 0) != tt.watched {
			t.Errorf("descriptor %d has the flags %#x, %v", tt.fd, flags, err)
		}
		if got, err := io.ReadAll(f); err != nil || string(got) != tt.want {
			t.Errorf("got %q, %v; want %q", got, err, tt.want)
		}
	}
}

func TestReadSmall(t *testing.T) {
	dir := t.TempDir()
	large := filepath.Join(dir, "large")
	if err := os.WriteFile(large, make([]byte, 1001), 0o644); err != nil {
		t.Fatal(err)
	}
	fifo := filepath.Join(dir, "fifo")
	if err := unix.Mkfifo(fifo, 0o644); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]error{large: unix.EFBIG, fifo: unix.EINVAL, dir: unix.EINVAL, "/dev/zero": unix.EINVAL, dir + "/none": unix.ENOENT} {
		if _, err := ReadSmall(path, 1000); err != want {
			t.Errorf("%s: got %v, want %v", path, err, want)
		}
	}
	if b, err := ReadSmall(large, 1001); err != nil || len(b) != 1001 {
		t.Errorf("got %d bytes, %v", len(b), err)
	}
}
