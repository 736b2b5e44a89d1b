package sysprog

import (
	"math/bits"
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

// arg returns the value of argument i of a step.
//
//go:nosplit
//go:norace
//go:nocheckptr
func (m *machine) arg(s *step, i int) uintptr {
	switch s.kinds[i] {
	case argReg:
		return m.regs[s.vals[i]&(Registers-1)]
	case argMem32:
		return uintptr(*(*int32)(*(*unsafe.Pointer)(unsafe.Pointer(&s.vals[i]))))
	}
	return s.vals[i]
}

// ignores reports whether a step tolerates an error.
//
//go:nosplit
//go:norace
func (s *step) ignores(errno syscall.Errno) bool {
	for j := 0; j < maxIgnore; j++ {
		if s.ignore[j] == uint16(errno) {
			return true
		}
	}
	return false
}

// run walks the steps and returns true when all have succeeded. A step that
// execs does not return when it succeeds.
//
//go:nosplit
//go:norace
//go:nocheckptr
func (m *machine) run() bool {
	m.failed = -1
	steps := m.steps // where a pointer may be written: on the stack of the child
	for i := uint(0); i < uint(len(steps)); i++ {
		s := &steps[i]
		switch s.op {
		case opStore:
			*(*int32)(*(*unsafe.Pointer)(unsafe.Pointer(&s.vals[1]))) = int32(m.arg(s, 0))
			continue
		case opReport:
			m.report = int32(s.vals[0])
			continue
		case opFork:
			r := rawClone(unix.CLONE_VM|unix.CLONE_FS|uintptr(syscall.SIGCHLD), s.fork.stack, (*state)(*(*unsafe.Pointer)(unsafe.Pointer(&s.fork.state))))
			if int(r) < 0 {
				m.failed, m.errno = int32(i)+m.base, int32(-r)
				return false
			}
			continue
		case opGoOn:
			steps = (*Program)(*(*unsafe.Pointer)(unsafe.Pointer(&s.vals[0]))).steps
			m.base += continuedStep
			i = ^uint(0) // the first is next
			continue
		}
		// Eight, so that an index of three bits needs no check.
		args := [8]uintptr{m.arg(s, 0), m.arg(s, 1), m.arg(s, 2), m.arg(s, 3), m.arg(s, 4), m.arg(s, 5)}
		for left := s.each; ; {
			if left != 0 {
				args[s.eachArg&7] = uintptr(bits.TrailingZeros64(left))
			}
			r, _, errno := syscall.RawSyscall6(s.nr, args[0], args[1], args[2], args[3], args[4], args[5])
			if errno == syscall.EINTR {
				continue
			}
			switch {
			case errno != 0 && !s.ignores(errno):
				m.failed, m.errno = int32(i)+m.base, int32(errno)
				return false
			case errno != 0:
				if errno == syscall.EACCES {
					m.denied = 1
				}
				r = ^uintptr(0)
			case s.hasWant && r != s.want:
				m.failed, m.errno = int32(i)+m.base, int32(syscall.EPIPE)
				return false
			}
			if s.hasTo {
				m.regs[s.to&(Registers-1)] = r
			}
			if left &= left - 1; left == 0 {
				if errno != 0 {
					i += uint(s.skip)
				}
				break
			}
		}
	}
	return true
}
