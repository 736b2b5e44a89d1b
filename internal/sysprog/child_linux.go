package sysprog

import (
	"os"
	"runtime"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A child made by this package shares the memory of its parent until it execs
// (CLONE_VM without CLONE_THREAD), and runs on a small stack of its own.
// Copying the page tables of a Go program, and the page faults that follow in
// parent and child, would cost more than everything else that the child does.
//
// What this asks of the code that runs in a child: only functions marked
// nosplit, no allocation, no pointer written (the collector would not see it),
// no signal handler: every signal is blocked before the child is made, and
// stays so until the child has put the handlers back (ResetSignals).

// The runtime's own hooks around fork, as package syscall uses them: they
// block signals, and preemption, in the parent.
//
//go:linkname beforeFork syscall.runtime_BeforeFork
func beforeFork()

//go:linkname afterFork syscall.runtime_AfterFork
func afterFork()

// The runtime's own hooks around a system call that may take long, as package
// syscall uses them. With them a goroutine that the kernel blocks holds up neither the
// others nor the garbage collector.
//
//go:linkname entersyscall runtime.entersyscall
func entersyscall()

//go:linkname exitsyscall runtime.exitsyscall
func exitsyscall()

//go:noescape
func rawClone(flags, stack uintptr, s *state) (r uintptr)

//go:noescape
func rawClone3(args *cloneArgs, size uintptr, s *state) (r uintptr)

//go:noescape
func rawVfork(flags uintptr) (r uintptr)

// cloneArgs is struct clone_args of clone3(2), up to cgroup (Linux 5.7).
type cloneArgs struct {
	flags, pidFD, childTID, parentTID, exitSignal, stack, stackSize, tls, setTID, setTIDSize, cgroup uint64
}

// regionSize holds the state of a child and its stack. The linker proves that
// nosplit functions use no more than 800 bytes of stack.
const regionSize = 32 << 10

// At least half of a region is stack, with room for what is below it.
const _ = uint(regionSize/2 - unsafe.Sizeof(state{}))

// state is what a child works in. It lies in memory of its own, outside the
// heap, at the low end of the child's stack, because a child may live on when
// the parent has forgotten it.
type state struct {
	pidfd int32 // first: rawClone passes its address
	kind  kind
	entry uintptr // second word: the address of childMain's code

	below uint32 // fork: see ForkOptions.Below
	table uint32 // see takeTable

	prog   machine // fork: the program. supervise: what the helper does first
	record [ReportSize]byte

	child, settle machine // supervise
	status        int32
	start         StartRecord
	exit          ExitRecord

	watch watchState

	wstatus int32
}

type kind int32

const (
	kindFork kind = iota
	kindSupervise
	kindWatch
)

// Child is a child process that this package has made.
type Child struct {
	PID   int
	PidFD int // -1 unless asked for; the caller closes it

	regions [][]byte
	program *Program // what it runs: its own memory is not looked at by the collector
}

// Release frees the memory of the child, and of a child that it has spawned. Call it once
// both have ended or have executed a program. Until then the programs of Fork are kept from
// garbage collection.
func (c *Child) Release() {
	runtime.KeepAlive(c.program)
	c.program = nil
	for _, r := range c.regions {
		_ = unix.Munmap(r)
	}
	c.regions = nil
}

// newState maps a region and returns its two ends.
func newState() (*state, []byte, error) {
	b, err := unix.Mmap(-1, 0, regionSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil, nil, os.NewSyscallError("mmap", err)
	}
	s := (*state)(unsafe.Pointer(&b[0]))
	main := childMain
	s.entry = **(**uintptr)(unsafe.Pointer(&main)) // a func value points to a word with the code's address
	return s, b, nil
}

// clone starts a child on s. In an error's case the region is the caller's to free.
func clone(s *state, region []byte, flags uintptr, cgroup int) (Child, error) {
	s.pidfd = -1
	stack := uintptr(unsafe.Pointer(&region[0])) + regionSize
	flags |= unix.CLONE_VM
	var args cloneArgs
	if cgroup >= 0 {
		args = cloneArgs{
			flags: uint64(flags | unix.CLONE_INTO_CGROUP), pidFD: uint64(uintptr(unsafe.Pointer(&s.pidfd))),
			exitSignal: uint64(syscall.SIGCHLD), stack: uint64(stack - regionSize), stackSize: regionSize, cgroup: uint64(cgroup),
		}
	}
	r := doClone(s, flags, stack, &args)
	if errno := syscall.Errno(-r); int(r) < 0 {
		return Child{PidFD: -1}, os.NewSyscallError("clone", errno)
	}
	return Child{PID: int(r), PidFD: int(s.pidfd), regions: [][]byte{region}}, nil
}

// doClone is nosplit because nothing may grow the stack between entersyscall and
// exitsyscall.
//
//go:noinline
//go:norace
//go:nosplit
func doClone(s *state, flags, stack uintptr, args *cloneArgs) (r uintptr) {
	entersyscall()
	beforeFork()
	if args.flags != 0 {
		r = rawClone3(args, unsafe.Sizeof(*args), s)
	} else {
		r = rawClone(flags|uintptr(syscall.SIGCHLD), stack, s)
	}
	afterFork()
	exitsyscall()
	return r
}

// childMain is the life of a child, called by the assembly on the new stack.
//
//go:nosplit
//go:norace
//go:nocheckptr
func childMain(s *state) {
	switch s.kind {
	case kindSupervise:
		s.supervise()
	case kindWatch:
		s.watch.run()
	default:
		if s.below != 0 {
			if errno := s.takeTable(); errno != 0 {
				s.prog.failed, s.prog.errno = tableStep, int32(errno)
				s.fail()
			}
		}
		if !s.prog.run() {
			s.fail()
		}
	}
	exit(0)
}

// fail reports what has failed, and ends.
//
//go:nosplit
//go:norace
func (s *state) fail() {
	if s.prog.report >= 0 {
		put32(&s.record, 0, reportMagic)
		put32(&s.record, 4, uint32(s.prog.failed))
		put32(&s.record, 8, uint32(s.prog.errno))
		syscall.RawSyscall(unix.SYS_WRITE, uintptr(s.prog.report), uintptr(unsafe.Pointer(&s.record[0])), ReportSize)
	}
	exit(125)
}

//go:nosplit
//go:norace
func exit(code uintptr) {
	for {
		syscall.RawSyscall(unix.SYS_EXIT_GROUP, code, 0, 0)
	}
}

//go:nosplit
//go:norace
func put32(b *[ReportSize]byte, i int, v uint32) {
	b[i&15], b[(i+1)&15], b[(i+2)&15], b[(i+3)&15] = byte(v), byte(v>>8), byte(v>>16), byte(v>>24)
}

// ResetSignals adds steps that give every signal its default action and unblock all
// signals, as a program expects.
func (p *Program) ResetSignals() {
	const what = "resetting signals"
	def := p.Bytes(make([]byte, 32)) // struct sigaction: SIG_DFL, no flags, empty mask
	all := ^uint64(0) &^ (1<<0 | 1<<syscall.SIGKILL | 1<<syscall.SIGSTOP)
	p.Call(what, unix.SYS_RT_SIGACTION, Int(0), def, Int(0), Int(8)).Each(0, all)
	p.Call(what, unix.SYS_RT_SIGACTION, Int(64), def, Int(0), Int(8)) // the one that has no bit
	p.Call("unblocking signals", unix.SYS_RT_SIGPROCMASK, Int(unix.SIG_SETMASK), p.Bytes(make([]byte, 8)), Int(0), Int(8))
}
