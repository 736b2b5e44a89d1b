package server

import (
	"os"
	"os/signal"
	"syscall"
)

// ignoreSignals makes the guest deaf to every signal that a process in the
// sandbox can send it. As pid 1 it is spared only those that it handles not at
// all, and the Go runtime handles nearly all of them.
func ignoreSignals() {
	for n := 1; n <= 64; n++ {
		switch s := syscall.Signal(n); s {
		case syscall.SIGKILL, syscall.SIGSTOP, syscall.SIGCHLD, syscall.SIGURG, syscall.SIGPROF, 32, 33:
			// The last four are the runtime's and harmless: preemption, profiling, and C's.
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
