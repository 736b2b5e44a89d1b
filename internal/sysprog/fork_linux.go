package sysprog

import (
	"encoding/binary"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ForkOptions say how a child is made.
type ForkOptions struct {
	Flags  uintptr // CLONE_NEW* flags; the exit signal is SIGCHLD
	PidFD  bool    // return a pidfd
	Cgroup int     // descriptor of a v2 cgroup to be born in, or -1

	// Report is a descriptor in the child to which a failed step is written:
	// ReportSize bytes that DecodeReport reads. -1: none.
	Report int
}

// ReportSize is the size of a failure report in bytes. (16, of which 12 are
// used: put32 relies on a power of two to need no bounds check.)
const ReportSize = 16

const reportMagic = 0x53504652

// Fork makes a child that runs the program and, if that comes to its end,
// exits with 0; a program therefore usually ends with an exec. The child has a
// copy of this process's descriptors, and all its signals are blocked.
//
// The program, and all that it points to, must stay unchanged until the child
// has executed another program or has ended; Release is to be called then.
// (What Continue has returned must stay unchanged from the moment it describes.) A
// failure in the child is reported over opt.Report, not here.
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
	c, err := clone(s, region, flags, opt.Cgroup)
	c.regions, c.program = regions, p
	if err != nil {
		c.Release()
	}
	return c, err
}

// DecodeReport reads a failure report. ok is false when b is not one.
func (p *Program) DecodeReport(b []byte) (err *StepError, ok bool) {
	if len(b) != ReportSize || binary.LittleEndian.Uint32(b) != reportMagic {
		return nil, false
	}
	i := int(int32(binary.LittleEndian.Uint32(b[4:])))
	if i >= spawnedStep && p.spawned != nil {
		p, i = p.spawned, i-spawnedStep
	}
	if i >= continuedStep && p.next != nil {
		p, i = p.next, i-continuedStep
	}
	return &StepError{What: p.Name(i), Step: i, Errno: syscall.Errno(binary.LittleEndian.Uint32(b[8:]))}, true
}
