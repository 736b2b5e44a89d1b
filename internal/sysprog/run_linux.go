package sysprog

import (
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// machine is what a child needs to walk a program. All memory is prepared by
// the parent.
type machine struct {
	steps []step
	regs  [Registers]uintptr

	// Where and why it stopped. failed is the step's number, or -1.
	failed int32
	errno  int32

	// denied is 1 when a step has failed with an EACCES that was ignored: of
	// several execs tried in turn, a program that is there but may not be
	// executed says more than one that is missing.
	denied int32

	base   int32 // added to the number of a step that failed
	report int32 // descriptor to which a failure is written, or -1
}

// arg returns the value of an argument.
//
//go:nosplit
//go:norace
//go:nocheckptr
func (m *machine) arg(a *Arg) uintptr {
	switch a.kind {
	case argReg:
		return m.regs[a.val&(Registers-1)]
	case argMem32:
		return uintptr(*(*int32)(*(*unsafe.Pointer)(unsafe.Pointer(&a.val))))
	}
	return a.val
}

// run walks the steps and returns true when all have succeeded. A step that
// execs does not return when it succeeds.
//
//go:nosplit
//go:norace
//go:nocheckptr
func (m *machine) run() bool {
	m.failed = -1
	for i := 0; i < len(m.steps); i++ {
		s := &m.steps[i]
		if s.store {
			*(*int32)(*(*unsafe.Pointer)(unsafe.Pointer(&s.args[1].val))) = int32(m.arg(&s.args[0]))
			continue
		}
		if s.report {
			m.report = int32(s.args[0].val)
			continue
		}
		if s.fork != nil {
			r := rawClone(unix.CLONE_VM|uintptr(syscall.SIGCHLD), s.fork.stack, (*state)(*(*unsafe.Pointer)(unsafe.Pointer(&s.fork.state))))
			if int(r) < 0 {
				m.failed, m.errno = int32(i)+m.base, int32(-r)
				return false
			}
			continue
		}
		r, _, errno := syscall.RawSyscall6(s.nr,
			m.arg(&s.args[0]), m.arg(&s.args[1]), m.arg(&s.args[2]),
			m.arg(&s.args[3]), m.arg(&s.args[4]), m.arg(&s.args[5]))
		if errno == syscall.EINTR {
			i--
			continue
		}
		if errno != 0 {
			ignored := false
			for j := 0; j < maxIgnore; j++ {
				if s.ignore[j] == errno {
					ignored = true
					if errno == syscall.EACCES {
						m.denied = 1
					}
				}
			}
			if !ignored {
				m.failed, m.errno = int32(i)+m.base, int32(errno)
				return false
			}
			r = ^uintptr(0)
			i += s.skip
		} else if s.hasWant && r != s.want {
			m.failed, m.errno = int32(i)+m.base, int32(syscall.EPIPE)
			return false
		}
		if s.hasTo {
			m.regs[s.to&(Registers-1)] = r
		}
	}
	return true
}
