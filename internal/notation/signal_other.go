//go:build unix && !linux

package notation

import "syscall"

// linuxSignal returns the number that a sandbox, which runs on Linux, knows a
// signal by (signal(7)); the numbers of other systems differ. It is 0 for a
// signal that Linux does not have.
func linuxSignal(sig syscall.Signal) int {
	switch sig {
	case syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGILL, syscall.SIGTRAP, syscall.SIGABRT,
		syscall.SIGFPE, syscall.SIGKILL, syscall.SIGSEGV, syscall.SIGPIPE, syscall.SIGALRM, syscall.SIGTERM:
		return int(sig) // the same everywhere
	case syscall.SIGBUS:
		return 7
	case syscall.SIGUSR1:
		return 10
	case syscall.SIGUSR2:
		return 12
	case syscall.SIGCHLD:
		return 17
	case syscall.SIGCONT:
		return 18
	case syscall.SIGSTOP:
		return 19
	case syscall.SIGTSTP:
		return 20
	case syscall.SIGTTIN:
		return 21
	case syscall.SIGTTOU:
		return 22
	case syscall.SIGURG:
		return 23
	case syscall.SIGXCPU:
		return 24
	case syscall.SIGXFSZ:
		return 25
	case syscall.SIGVTALRM:
		return 26
	case syscall.SIGPROF:
		return 27
	case syscall.SIGWINCH:
		return 28
	case syscall.SIGIO:
		return 29
	case syscall.SIGSYS:
		return 31
	}
	return 0
}
