package testkit

import (
	"errors"
	"syscall"
	"testing"
)

// Tmpfs mounts a tmpfs at a directory until the test ends. It skips the test if this
// user may not mount.
func Tmpfs(t testing.TB, dir string, flags uintptr, data string) {
	t.Helper()
	NeedRoot(t, "to mount a file system")
	err := syscall.Mount("tmpfs", dir, "tmpfs", flags, data)
	if errors.Is(err, syscall.EPERM) || errors.Is(err, syscall.EACCES) {
		Need(t, "the right to mount", err)
	}
	if err != nil {
		t.Fatalf("mounting a tmpfs: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil && !errors.Is(err, syscall.EINVAL) {
			t.Errorf("unmounting %s: %v", dir, err)
		}
	})
}
