package testkit

import (
	"net"
	"runtime"
	"syscall"
	"testing"
)

// ListenAs returns a unix socket on which another user listens, for root. The user must be
// allowed to create the file. It is closed at the end of the test.
func ListenAs(t testing.TB, uid int, path string) net.Listener {
	t.Helper()
	NeedRoot(t, "to listen as another user")
	// The credentials are those of a thread, which comes back as root.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	const same = ^uintptr(0)
	become := func(uid int) {
		if _, _, errno := syscall.RawSyscall(syscall.SYS_SETRESUID, same, uintptr(uid), same); errno != 0 {
			t.Fatalf("becoming user %d: %v", uid, errno)
		}
	}
	become(uid)
	l, err := net.Listen("unix", path)
	become(0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}
