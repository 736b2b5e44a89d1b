package engine

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
)

// Files of a layer that are not regular are refused without being opened, which the kernel would report.
func TestOnlyRegularFilesOfALayerAreOpened(t *testing.T) {
	dir := t.TempDir()
	watch, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(watch)
	opened := func() bool {
		n, err := unix.Read(watch, make([]byte, 4096))
		if err != nil && !errors.Is(err, unix.EAGAIN) {
			t.Fatal(err)
		}
		return n > 0
	}
	for name, make := range map[string]func(string) error{
		"regular": func(p string) error { return os.WriteFile(p, []byte("content"), 0o600) },
		"fifo":    func(p string) error { return unix.Mkfifo(p, 0o600) },
		"device":  func(p string) error { return unix.Mknod(p, unix.S_IFCHR|0o600, 0) }, // one that anybody can make, without a driver
	} {
		at := filepath.Join(dir, name)
		if err := make(at); err != nil {
			t.Fatal(err)
		}
		if _, err := unix.InotifyAddWatch(watch, at, unix.IN_OPEN); err != nil {
			t.Fatal(err)
		}
		data, err := readInLayer(dir, name)
		if regular := name == "regular"; regular != (string(data) == "content") || regular == errors.Is(err, sandpit.ErrInvalid) || regular != opened() {
			t.Errorf("%s: %q, %v", name, data, err)
		}
	}
}
