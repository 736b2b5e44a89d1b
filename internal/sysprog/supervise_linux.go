package sysprog

import (
	"runtime"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Records that a helper writes, in order, to its status descriptor, in the
// machine's byte order: a StartRecord always, and an ExitRecord if the start
// succeeded. Each is written by one write.
type (
	// StartRecord says whether the program was executed.
	StartRecord struct {
		PID    int32 // of the program; 0 when it was not started
		Failed int32 // 0, FailedPrepare, FailedChild or FailedFork
		Step   int32
		Errno  int32
		Denied int32 // 1: an earlier step had an ignored EACCES
	}

	// ExitRecord says how it ended.
	ExitRecord struct {
		Status int32
		_      int32
		Usage  syscall.Rusage
	}
)

// The values of StartRecord.Failed.
const (
	FailedPrepare = 1
	FailedChild   = 2
	FailedFork    = 3
)

// Supervise makes a helper process that runs the program prepare, starts a
// child that runs the program child, which ends with an exec, runs settle to
// close what only the child needs, and then reaps: its own child and, if
// prepare has made it a child subreaper, everything that descends from that
// child and has lost its parent. So all that a program ever starts, however it
// detaches itself, stays below its helper. When nothing is left the helper
// exits.
//
// The helper writes its records to the descriptor status, which prepare must
// leave open. The programs must stay reachable until the StartRecord has been
// read. The caller reaps the helper, and then calls Release.
func Supervise(prepare, child, settle *Program, status int) (Child, error) {
	s, region, err := newState()
	if err != nil {
		return Child{}, err
	}
	s.kind, s.status = kindSupervise, int32(status)
	s.prog.steps, s.child.steps, s.settle.steps = prepare.steps, child.steps, settle.steps
	c, err := clone(s, region, 0, -1)
	if err != nil {
		_ = unix.Munmap(region)
	}
	runtime.KeepAlive(prepare)
	runtime.KeepAlive(child)
	runtime.KeepAlive(settle)
	return c, err
}

// supervise is the life of a helper. It does not return.
//
//go:nosplit
//go:norace
//go:nocheckptr
func (s *state) supervise() {
	if !s.prog.run() {
		s.start.Failed, s.start.Step, s.start.Errno = FailedPrepare, s.prog.failed, s.prog.errno
		s.write(unsafe.Pointer(&s.start), unsafe.Sizeof(s.start))
		exit(1)
	}
	s.child.failed = -1
	pid := s.vfork()
	if pid < 0 {
		s.start.Failed, s.start.Errno = FailedFork, int32(-pid)
	} else if s.child.failed >= 0 {
		s.start.Failed, s.start.Step, s.start.Errno = FailedChild, s.child.failed, s.child.errno
		s.start.Denied = s.child.denied
	} else {
		s.start.PID = int32(pid)
	}
	s.settle.run()
	s.write(unsafe.Pointer(&s.start), unsafe.Sizeof(s.start))
	for {
		r, _, errno := syscall.RawSyscall6(unix.SYS_WAIT4, ^uintptr(0), uintptr(unsafe.Pointer(&s.wstatus)),
			0, uintptr(unsafe.Pointer(&s.exit.Usage)), 0, 0)
		if errno == syscall.EINTR {
			continue
		}
		if errno != 0 {
			exit(0)
		}
		if s.wstatus&0xff == stopped {
			s.letGo(r, uintptr(s.wstatus>>8)&0xff)
			continue
		}
		if s.start.PID != 0 && int32(r) == s.start.PID {
			s.exit.Status = s.wstatus
			s.write(unsafe.Pointer(&s.exit), unsafe.Sizeof(s.exit))
			syscall.RawSyscall(unix.SYS_CLOSE, uintptr(s.status), 0, 0)
			s.start.PID = 0
		}
	}
}

// stopped is the low byte of a wait status of what has not ended but stopped
// (WIFSTOPPED of wait(2)).
const stopped = 0x7f

// letGo ends the tracing of a thread that has stopped, and passes on the signal
// that it has stopped for. The helper is told of the stops of those only whose
// tracer it is, which is what a child asks for by PTRACE_TRACEME: nobody else
// would ever let it go on. The SIGTRAP of an exec is for a tracer's eyes only,
// and would kill the program.
//
//go:nosplit
//go:norace
func (s *state) letGo(tid, sig uintptr) {
	if sig == uintptr(syscall.SIGTRAP) {
		sig = 0
	}
	syscall.RawSyscall6(unix.SYS_PTRACE, unix.PTRACE_DETACH, tid, 0, sig, 0, 0)
}

// vfork starts the child, which shares this memory and this stack until it
// execs, so that the caller sees in s.child whether a step failed. It returns
// the pid or -errno. The child never returns from this frame, and the parent
// leaves it at once, as vfork demands.
//
//go:noinline
//go:nosplit
//go:norace
//go:nocheckptr
func (s *state) vfork() int {
	r := rawVfork(unix.CLONE_VM | unix.CLONE_VFORK | uintptr(syscall.SIGCHLD))
	if r == 0 {
		s.child.run()
		exit(127)
	}
	return int(r)
}

//go:nosplit
//go:norace
func (s *state) write(p unsafe.Pointer, n uintptr) {
	for {
		_, _, errno := syscall.RawSyscall(unix.SYS_WRITE, uintptr(s.status), uintptr(p), n)
		if errno != syscall.EINTR {
			return
		}
	}
}
