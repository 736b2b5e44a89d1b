package sysprog

import (
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit/internal/testkit"
)

// A function of Go may keep its arguments above its frame, in the frame of its
// caller. A child's first function has none: what is above its stack is
// somebody else's memory, unless the assembly leaves room. Here nothing is
// there, so that a child that goes beyond its stack dies.
func TestNothingIsWrittenAboveTheStack(t *testing.T) {
	guarded := func(t *testing.T, kind kind) (*state, []byte) {
		t.Helper()
		b, err := unix.Mmap(-1, 0, regionSize+unix.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = unix.Munmap(b) })
		if err := unix.Mprotect(b[regionSize:], unix.PROT_NONE); err != nil {
			t.Fatal(err)
		}
		s, region, err := newState()
		if err != nil {
			t.Fatal(err)
		}
		entry := s.entry
		if err := unix.Munmap(region); err != nil {
			t.Fatal(err)
		}
		s = (*state)(unsafe.Pointer(&b[0]))
		s.entry, s.kind, s.prog.report = entry, kind, -1
		return s, b[:regionSize]
	}
	wait := func(t *testing.T, pid int) {
		t.Helper()
		var ws syscall.WaitStatus
		for {
			if _, err := syscall.Wait4(pid, &ws, 0, nil); err != syscall.EINTR {
				break
			}
		}
		if ws != 0 {
			t.Errorf("the child ended with status %#x", ws)
		}
	}
	t.Run("clone", func(t *testing.T) {
		s, region := guarded(t, kindFork)
		c, err := clone(s, region, 0, -1)
		if err != nil {
			t.Fatal(err)
		}
		wait(t, c.PID)
	})
	t.Run("clone3", func(t *testing.T) {
		s, region := guarded(t, kindFork)
		args := cloneArgs{exitSignal: uint64(syscall.SIGCHLD), flags: unix.CLONE_VM, stack: uint64(uintptr(unsafe.Pointer(&region[0]))), stackSize: regionSize}
		pid := int(doClone(s, 0, 0, &args))
		if pid == -int(unix.ENOSYS) {
			testkit.Lacks(t, "a kernel with clone3")
		}
		if pid < 0 {
			t.Fatal(syscall.Errno(-pid))
		}
		wait(t, pid)
	})
}
