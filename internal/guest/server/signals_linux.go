package server

import (
	"os"
	"os/signal"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ignoreSignals makes the guest deaf to every signal that a process in the
// sandbox can send it. As pid 1 it is spared only those that it handles not at
// all, and the Go runtime handles nearly all of them. Nor does the kernel always
// spare it those: if the first thread blocks a signal when it arrives, as it does
// while it makes a thread, another thread gets the signal, and its default action
// ends the program.
func ignoreSignals() {
	for n := 1; n <= 64; n++ {
		switch s := syscall.Signal(n); s {
		case syscall.SIGKILL, syscall.SIGSTOP, syscall.SIGCHLD, syscall.SIGURG, syscall.SIGPROF:
			// The first two don't reach pid 1 from inside. The others are handled by
			// the runtime, and harmless: preemption and profiling.
		case 32, 33, 34:
			// The C libraries' own, which the runtime leaves alone. There is none here.
			action := [4]uint64{1} // struct sigaction: SIG_IGN, no flags, empty mask
			_, _, _ = unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(n), uintptr(unsafe.Pointer(&action)), 0, 8, 0, 0)
		case syscall.SIGSEGV, syscall.SIGBUS, syscall.SIGFPE, syscall.SIGILL, syscall.SIGTRAP, syscall.SIGSYS,
			syscall.SIGABRT, syscall.SIGSTKFLT:
			// These end the program when they come from the kernel, and must go
			// on doing so. Sent by somebody, they come here, and nobody looks.
			signal.Notify(make(chan os.Signal, 1), s)
		default:
			signal.Ignore(s)
		}
	}
}
