package sysprog

import (
	"encoding/binary"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ForkOptions configure a child.
type ForkOptions struct {
	Flags  uintptr // CLONE_NEW* flags; the exit signal is SIGCHLD
	PidFD  bool    // return a pidfd
	Cgroup int     // descriptor of a v2 cgroup to be born in, or -1

	// Report is a descriptor in the child for the report of a failed step: ReportSize
	// bytes that DecodeReport reads. -1: none.
	Report int

	// Below, unless it is 0, makes the child copy only descriptors below this number.
	// Copying a long table and closing most of it takes longer than everything else; this
	// does not depend on its length. Fork returns when the child has a table of its own.
	Below int
}

// ReportSize is the size of a failure report in bytes. (16, of which 12 are
// used: put32 relies on a power of two to need no bounds check.)
const ReportSize = 16

const reportMagic = 0x53504652

// Fork makes a child that runs the program and exits with 0 at its end; a program therefore
// usually ends with an exec. The child has a copy of this process's descriptors (see
// ForkOptions.Below), and all its signals are blocked.
//
// The program, and everything that it points to, must not change until the child has
// executed another program or has ended; then call Release. (The result of Continue must
// not change from the moment that it describes.) A failure in the child is reported over
// opt.Report, not here.
func (p *Program) Fork(opt ForkOptions) (Child, error) {
	s, region, err := newState()
	if err != nil {
		return Child{PidFD: -1}, err
	}
	regions := [][]byte{region}
	s.kind, s.prog.steps, s.prog.report = kindFork, p.steps, int32(opt.Report)
	for i := range p.steps {
		if f := p.steps[i].fork; f != nil {
			s2, region2, err := newState()
			if err != nil {
				(&Child{regions: regions}).Release()
				return Child{PidFD: -1}, err
			}
			s2.kind, s2.prog.steps, s2.prog.report, s2.prog.base = kindFork, f.program.steps, f.report, spawnedStep
			f.state = uintptr(unsafe.Pointer(s2))
			f.stack = f.state + regionSize
			regions = append(regions, region2)
		}
	}
	flags := opt.Flags
	if opt.PidFD {
		flags |= unix.CLONE_PIDFD
	}
	if s.below = uint32(opt.Below); s.below != 0 {
		flags |= unix.CLONE_FILES
	}
	c, err := clone(s, region, flags, opt.Cgroup)
	c.regions, c.program = regions, p
	if err != nil {
		c.Release()
		return c, err
	}
	if s.below != 0 {
		awaitTable(s, c.PID)
	}
	return c, nil
}

// tableStep is the number in a report of what comes before the first step.
const tableStep = 1<<18 - 1

// table says what the child has done about its descriptors.
const (
	tableShared = iota // it shares those of its maker
	tableOwn           // it has its own
)

// takeTable gives the child the lower part of the table that it has shared so
// far, and says so to its maker. (CLOSE_RANGE_UNSHARE of close_range(2), Linux
// 5.9: what would be closed is not even copied.)
//
//go:nosplit
//go:norace
func (s *state) takeTable() syscall.Errno {
	_, _, errno := syscall.RawSyscall(unix.SYS_CLOSE_RANGE, uintptr(s.below), uintptr(^uint32(0)), unix.CLOSE_RANGE_UNSHARE)
	if errno == 0 {
		s.table = tableOwn // not by package atomic, which is the race detector's when there is one
		syscall.RawSyscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(&s.table)), futexWakePrivate, 1, 0, 0, 0)
	}
	return errno
}

// Operations of futex(2).
const (
	futexWaitPrivate = 0 | 128
	futexWakePrivate = 1 | 128
)

// awaitTable waits until the child has a table of its own or has ended, and with
// that has given up the one that it shared.
func awaitTable(s *state, pid int) {
	for atomic.LoadUint32(&s.table) == tableShared {
		// A child that was killed wakes nobody.
		patience := unix.NsecToTimespec(int64(10 * time.Millisecond))
		_, _, _ = unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(&s.table)), futexWaitPrivate, tableShared, uintptr(unsafe.Pointer(&patience)), 0, 0)
		var info unix.Siginfo
		err := unix.Waitid(unix.P_PID, pid, &info, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil)
		if err == nil && info.Signo != 0 || err == unix.ECHILD {
			return
		}
	}
}

// DecodeReport reads a failure report. ok is false if b is not one.
func (p *Program) DecodeReport(b []byte) (err *StepError, ok bool) {
	if len(b) != ReportSize || binary.LittleEndian.Uint32(b) != reportMagic {
		return nil, false
	}
	i := int(int32(binary.LittleEndian.Uint32(b[4:])))
	errno := syscall.Errno(binary.LittleEndian.Uint32(b[8:]))
	if i == tableStep {
		return &StepError{What: "copying descriptors", Step: i, Errno: errno}, true
	}
	if i >= spawnedStep && p.spawned != nil {
		p, i = p.spawned, i-spawnedStep
	}
	for i >= continuedStep && p.next != nil {
		p, i = p.next, i-continuedStep
	}
	return &StepError{What: p.Name(i), Step: i, Errno: errno}, true
}
