package seccomp

import (
	"fmt"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// native returns the architecture of this program, and whether there is a
// policy for it.
func native() (Arch, bool) {
	for _, a := range Archs() {
		if a.Name == runtime.GOARCH {
			return a, true
		}
	}
	return Arch{}, false
}

// Filter returns the compiled filter of this architecture. It is nil where
// there is no policy for the architecture: then there must be no sandbox.
func Filter() []unix.SockFilter { return sockFilter(Program(runtime.GOARCH)) }

func sockFilter(p []Instruction) []unix.SockFilter {
	if p == nil {
		return nil
	}
	f := make([]unix.SockFilter, len(p))
	for i, in := range p {
		f[i] = unix.SockFilter{Code: in.Code, Jt: in.Jt, Jf: in.Jf, K: in.K}
	}
	return f
}

// Install puts a filter on all threads of this process, for good. It needs
// no_new_privs (prctl PR_SET_NO_NEW_PRIVS) to be set on the calling thread, or
// CAP_SYS_ADMIN in its user namespace.
func Install(filter []unix.SockFilter) error {
	return install(filter, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC)
}

// install is Install with the first two arguments of seccomp(2).
func install(filter []unix.SockFilter, operation, flags uint64) error {
	if len(filter) == 0 {
		return fmt.Errorf("installing seccomp filter: %w", unix.EINVAL)
	}
	prog := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	r, _, errno := unix.Syscall(unix.SYS_SECCOMP, uintptr(operation), uintptr(flags),
		uintptr(unsafe.Pointer(&prog)))
	runtime.KeepAlive(filter)
	switch {
	case errno != 0:
		return fmt.Errorf("installing seccomp filter: %w", errno)
	case r != 0: // a thread that has a filter of its own
		return fmt.Errorf("installing seccomp filter: thread %d has another one", r)
	}
	return nil
}
