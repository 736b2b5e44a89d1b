//go:build linux

// Package sysprog runs prepared lists of system calls in a process that has
// just been forked, without the Go runtime.
//
// A forked copy of a Go program has one thread and a runtime that does not
// know it: it may not allocate, grow its stack, take a lock or be scheduled.
// Setting up a sandbox between fork and exec needs a hundred system calls, so
// they are put together beforehand, as data, by ordinary Go code that can be
// read and tested; the child only walks the list. A second exec of a helper
// program, the usual way out, costs a millisecond; this costs nothing.
//
// A Program is a list of steps. A step is a system call whose arguments are
// numbers, pointers to bytes prepared beforehand, or results of earlier steps
// held in registers. The first step that fails ends the child, and its number
// and errno reach the parent, which knows the step by name.
package sysprog

import (
	"encoding/binary"
	"strconv"
	"syscall"
	"unsafe"
)

// Registers is how many results a program may hold at once.
const Registers = 256

// A Reg holds the result of a step for later ones.
type Reg uint8

// Arg is an argument of a system call.
type Arg struct {
	kind argKind
	val  uintptr
}

type argKind uint8

const (
	argValue argKind = iota // val itself
	argReg                  // the register val
	argMem32                // the int32 at address val
)

// Int is a number.
func Int[T ~int | ~int32 | ~int64 | ~uint | ~uint32 | ~uint64 | ~uintptr | ~uint16](n T) Arg {
	return Arg{argValue, uintptr(n)}
}

// From is the result held in a register.
func From(r Reg) Arg { return Arg{argReg, uintptr(r)} }

// maxIgnore is how many errnos one step may tolerate.
const maxIgnore = 4

type step struct {
	nr      uintptr
	args    [6]Arg
	ignore  [maxIgnore]syscall.Errno
	want    uintptr // with hasWant: the only good result
	to      Reg
	hasTo   bool
	hasWant bool
	store   bool // not a call: writes register args[0] to address args[1]
	report  bool // not a call: failures go to descriptor args[0] from here on
	fork    *fork
	skip    int // after an ignored error, skip this many steps more
}

// A Program is a list of system calls. Build it, then run it with Fork. It
// must not be changed while a child is being made from it; it may be run again.
type Program struct {
	steps []step
	names []string
	keep  []any // what steps point to
	regs  int   // registers used so far
	free  []Reg // of these, to be used again

	spawned *Program // what a Spawn step runs
}

// Step is a step just added, for its options.
type Step struct {
	p *Program
	i int
}

// Call adds a system call. What says what it is for, as a gerund phrase that
// an error can begin with: "mounting /proc".
func (p *Program) Call(what string, nr uintptr, args ...Arg) Step {
	s := step{nr: nr}
	if len(args) > len(s.args) {
		panic("sysprog: too many arguments for " + what)
	}
	copy(s.args[:], args)
	p.steps = append(p.steps, s)
	p.names = append(p.names, what)
	return Step{p, len(p.steps) - 1}
}

// Store32 adds a step that writes the register r, as 32 bits, to b at offset.
func (p *Program) Store32(r Reg, b []byte, offset int) {
	_ = b[offset+3]
	p.keep = append(p.keep, b)
	p.steps = append(p.steps, step{store: true, args: [6]Arg{From(r), {argValue, uintptr(unsafe.Pointer(&b[offset]))}}})
	p.names = append(p.names, "storing a result")
}

// ReportVia makes failures of later steps be written to another descriptor.
func (p *Program) ReportVia(fd int) {
	p.steps = append(p.steps, step{report: true, args: [6]Arg{Int(fd)}})
	p.names = append(p.names, "choosing where to report")
}

// Spawn adds a step that makes another child, which runs q beside the steps
// that follow, with a copy of the descriptors as they are then. Its failures
// go to the descriptor report, or nowhere if that is -1.
//
// A program has at most one such step, and q none.
func (p *Program) Spawn(what string, q *Program, report int) {
	p.steps = append(p.steps, step{fork: &fork{program: q, report: int32(report)}})
	p.names = append(p.names, what)
	p.spawned = q
}

// fork is the part of a Spawn step that is not an argument.
type fork struct {
	program *Program
	report  int32
	state   uintptr // of the child; set when the program is run
	stack   uintptr
}

// spawnedStep is added to the number of a step of a spawned program in a report.
const spawnedStep = 1 << 20

// Result keeps the result of the step in a new register.
func (s Step) Result() Reg {
	st := &s.p.steps[s.i]
	if n := len(s.p.free); n > 0 {
		st.to, st.hasTo = s.p.free[n-1], true
		s.p.free = s.p.free[:n-1]
		return st.to
	}
	if s.p.regs == Registers {
		panic("sysprog: out of registers")
	}
	r := Reg(s.p.regs)
	s.p.regs++
	st.to, st.hasTo = r, true
	return r
}

// Free lets a register be used again: no step added later means its old result.
func (p *Program) Free(r Reg) { p.free = append(p.free, r) }

// Into keeps the result of the step in a register that is used again.
func (s Step) Into(r Reg) Step {
	st := &s.p.steps[s.i]
	st.to, st.hasTo = r, true
	return s
}

// Ignore lets the program go on after these errors.
func (s Step) Ignore(errnos ...syscall.Errno) Step {
	st := &s.p.steps[s.i]
	n := 0
	for n < maxIgnore && st.ignore[n] != 0 {
		n++
	}
	if n+len(errnos) > maxIgnore {
		panic("sysprog: too many ignored errors for " + s.p.names[s.i])
	}
	copy(st.ignore[n:], errnos)
	return s
}

// SkipAfterIgnored skips the next n steps when the step failed with an ignored error.
func (s Step) SkipAfterIgnored(n int) Step {
	s.p.steps[s.i].skip = n
	return s
}

// Want makes any result but n a failure, reported as EPIPE: for a read of a
// known size from a peer that may have gone.
func (s Step) Want(n uintptr) Step {
	st := &s.p.steps[s.i]
	st.want, st.hasWant = n, true
	return s
}

// Str is a pointer to a copy of s that ends with NUL. It panics if s holds a
// NUL: callers refuse such names before they come here.
func (p *Program) Str(s string) Arg {
	b, err := syscall.BytePtrFromString(s)
	if err != nil {
		panic("sysprog: NUL in " + strconv.Quote(s))
	}
	p.keep = append(p.keep, b)
	return Arg{argValue, uintptr(unsafe.Pointer(b))}
}

// Bytes is a pointer to b itself, which must not be empty.
func (p *Program) Bytes(b []byte) Arg {
	p.keep = append(p.keep, b)
	return Arg{argValue, uintptr(unsafe.Pointer(&b[0]))}
}

// Strs is a pointer to an array of pointers to copies of the strings, with a
// final NULL, as execve takes. It is an error if one holds a NUL.
func (p *Program) Strs(ss []string) (Arg, error) {
	ptrs, err := syscall.SlicePtrFromStrings(ss)
	if err != nil {
		return Arg{}, err
	}
	p.keep = append(p.keep, ptrs)
	return Arg{argValue, uintptr(unsafe.Pointer(&ptrs[0]))}, nil
}

// Mem32 is the int32 found in b at offset when the step runs, for example a
// descriptor that an earlier recvmsg step received.
func (p *Program) Mem32(b []byte, offset int) Arg {
	_ = b[offset+3]
	p.keep = append(p.keep, b)
	return Arg{argMem32, uintptr(unsafe.Pointer(&b[offset]))}
}

// PutPointer writes the address of target into b at offset, in the machine's
// byte order: for structures of system calls that hold pointers.
func (p *Program) PutPointer(b []byte, offset int, target []byte) {
	p.keep = append(p.keep, b, target)
	binary.NativeEndian.PutUint64(b[offset:], uint64(uintptr(unsafe.Pointer(&target[0]))))
}

// Keep keeps v, which steps point into, from being collected.
func (p *Program) Keep(v any) { p.keep = append(p.keep, v) }

// Len returns the number of steps.
func (p *Program) Len() int { return len(p.steps) }

// Name returns what step i is for.
func (p *Program) Name(i int) string {
	if i < 0 || i >= len(p.names) {
		return "step " + strconv.Itoa(i)
	}
	return p.names[i]
}

// A StepError is the failure of one step in a child.
type StepError struct {
	What  string // of the step
	Step  int
	Errno syscall.Errno
}

// Error returns "what: errno text".
func (e *StepError) Error() string { return e.What + ": " + e.Errno.Error() }

// Unwrap returns the errno.
func (e *StepError) Unwrap() error { return e.Errno }
