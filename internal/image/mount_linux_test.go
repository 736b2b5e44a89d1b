package image_test

import (
	"fmt"
	"syscall"
	"testing"
)

// mountSmall mounts a tmpfs of a number of bytes until the test ends.
func mountSmall(t *testing.T, dir string, size int) {
	t.Helper()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprintf("size=%d", size)); err != nil {
		t.Skipf("needs to mount a small file system: %v", err)
	}
	t.Cleanup(func() { _ = syscall.Unmount(dir, syscall.MNT_DETACH) })
}
