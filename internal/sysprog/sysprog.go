//go:build linux

// Package sysprog runs prepared lists of system calls in a process that has
// just been forked, without the Go runtime.
//
// A forked copy of a Go program has one thread and a runtime that does not
// know it: it may not allocate, grow its stack, take a lock or be scheduled.
// Setting up a sandbox between fork and exec needs a hundred system calls, so
// they are put together beforehand, as data, by ordinary Go code that can be
// read and tested. The child walks the list on a small stack of its own, and shares its
// parent's memory (CLONE_VM). The usual alternatives cost more: a second exec costs about
// a millisecond, as much as the whole set-up, and C is a second language in the most
// delicate place.
//
// A helper of the guest made with CLONE_VM makes each start take 1.2 times as long as fork
// and exec alone; with a plain fork it was 2.0 times (go test -bench . ./internal/guest/spawn).
//
// A Program is a list of steps. A step is a system call whose arguments are
// numbers, pointers to bytes prepared beforehand, or results of earlier steps
// held in registers. The first step that fails ends the child, and its number
// and errno reach the parent, which knows the step by name.
package sysprog

import (
	"encoding/binary"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"unsafe"
)

// Registers is the number of results that a program may hold at a time.
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

// Int returns a number as an argument.
func Int[T ~int | ~int32 | ~int64 | ~uint | ~uint32 | ~uint64 | ~uintptr | ~uint16](n T) Arg {
	return Arg{argValue, uintptr(n)}
}

// From returns the result in a register as an argument.
func From(r Reg) Arg { return Arg{argReg, uintptr(r)} }

// maxIgnore is how many errnos one step may tolerate.
const maxIgnore = 4

// step is small because there are hundreds, in memory that nobody has touched yet.
type step struct {
	nr      uintptr
	vals    [6]uintptr // of the arguments
	want    uintptr    // with hasWant: the only good result
	each    uint64     // unless 0: the call is made for every bit, whose number is argument eachArg
	fork    *fork      // of opFork
	ignore  [maxIgnore]uint16
	kinds   [6]argKind // of the arguments
	skip    uint16     // after an ignored error, skip this many steps more
	op      op
	eachArg uint8
	to      Reg
	hasTo   bool
	hasWant bool
}

// op is what a step does.
type op uint8

const (
	opCall   op = iota // a system call
	opStore            // argument 0 is written to the address that is argument 1
	opReport           // failures go to the descriptor that is argument 0 from here on
	opFork             // see Spawn
	opGoOn             // see Continue
)

func (s *step) setArgs(args ...Arg) {
	for i, a := range args {
		s.vals[i], s.kinds[i] = a.val, a.kind
	}
}

// A Program is a list of system calls. Build it, then run it with Fork. It must not change
// while a child is being made from it. It may run several times.
type Program struct {
	steps []step
	names []string
	keep  []unsafe.Pointer // what steps point to
	text  []byte           // room for Str, never moved
	regs  int              // registers used so far
	free  []Reg            // of these, to be used again

	spawned *Program // what a Spawn step runs
	next    *Program // what a Continue step goes on with
}

// Step is a step of a program, for its options.
type Step struct {
	p *Program
	i int
}

// Call adds a system call. what describes its purpose as a gerund phrase that can begin an
// error: "mounting /proc".
func (p *Program) Call(what string, nr uintptr, args ...Arg) Step {
	s := step{nr: nr}
	if len(args) > len(s.vals) {
		panic("sysprog: too many arguments for " + what)
	}
	s.setArgs(args...)
	return p.add(what, s)
}

func (p *Program) add(what string, s step) Step {
	p.steps = append(p.steps, s)
	p.names = append(p.names, what)
	return Step{p, len(p.steps) - 1}
}

// Grow makes room for n more steps.
func (p *Program) Grow(n int) {
	p.steps, p.names, p.keep = slices.Grow(p.steps, n), slices.Grow(p.names, n), slices.Grow(p.keep, 2*n)
}

// Store32 adds a step that writes a, as 32 bits, to b at offset.
func (p *Program) Store32(a Arg, b []byte, offset int) {
	_ = b[offset+3]
	s := step{op: opStore}
	s.setArgs(a, p.Bytes(b[offset:]))
	p.add("storing a result", s)
}

// ReportVia sends failures of later steps to another descriptor.
func (p *Program) ReportVia(fd int) {
	s := step{op: opReport}
	s.setArgs(Int(fd))
	p.add("choosing where to report", s)
}

// Spawn adds a step that makes another child, which runs q beside the steps
// that follow, with a copy of the descriptors as they are then. The two share
// root, working directory and umask, also when one executes a program. The
// failures of q go to the descriptor report, or nowhere if that is -1.
//
// A program has at most one such step, and q none.
func (p *Program) Spawn(what string, q *Program, report int) {
	p.add(what, step{op: opFork, fork: &fork{program: q, report: int32(report)}})
	p.spawned = q
}

// Continue ends p with a step at which the child goes on with the program that
// is returned, which begins with the registers of p as they are then. That
// program may be put together while the child runs p: the child looks at it
// only when it comes to this step. So p must wait before it, for a message for
// example, which is sent when the program is complete; from then on it must
// not be changed.
//
// A program has at most one such step, as its last, and the program that
// follows has no Spawn step. At most maxContinued programs follow each other.
func (p *Program) Continue() *Program {
	q := &Program{regs: p.regs, free: slices.Clone(p.free)}
	s := step{op: opGoOn}
	s.setArgs(Arg{argValue, uintptr(unsafe.Pointer(q))})
	p.add("going on", s)
	p.next = q
	return q
}

// continuedStep is added to the number of a step of a program that follows
// another in a report, once for each that it follows.
const continuedStep = spawnedStep / (maxContinued + 1)

const maxContinued = 3

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

// Into keeps the result of the step in a given register.
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
	for i, e := range errnos {
		st.ignore[n+i] = uint16(e)
	}
	return s
}

// SkipAfterIgnored skips the next n steps when the step failed with an ignored error.
func (s Step) SkipAfterIgnored(n int) Step {
	s.p.steps[s.i].skip = uint16(n)
	return s
}

// Each makes the call once for every bit of set, from the lowest on, with the bit's number
// as the argument arg, which counts from 0. An empty set is a mistake: it makes a single
// call with the argument as it is.
func (s Step) Each(arg int, set uint64) Step {
	if set == 0 {
		panic("sysprog: nothing to do for " + s.p.names[s.i])
	}
	st := &s.p.steps[s.i]
	st.eachArg, st.each = uint8(arg), set
	return s
}

// Want makes any result except n a failure, reported as EPIPE: for a read of a known size
// from a peer that may have gone.
func (s Step) Want(n uintptr) Step {
	st := &s.p.steps[s.i]
	st.want, st.hasWant = n, true
	return s
}

// Str returns a pointer to a NUL-terminated copy of s. It panics if s holds a NUL: callers
// must refuse such names.
func (p *Program) Str(s string) Arg {
	if strings.IndexByte(s, 0) >= 0 {
		panic("sysprog: NUL in " + strconv.Quote(s))
	}
	if n := len(s) + 1; n > cap(p.text)-len(p.text) {
		p.text = make([]byte, 0, max(n, textChunk))
		p.keep = append(p.keep, unsafe.Pointer(unsafe.SliceData(p.text)))
	}
	at := len(p.text)
	p.text = append(append(p.text, s...), 0)
	return Arg{argValue, uintptr(unsafe.Pointer(&p.text[at]))}
}

// textChunk is how many bytes of strings are allocated together.
const textChunk = 1 << 10

// Bytes returns a pointer to b itself, which must not be empty.
func (p *Program) Bytes(b []byte) Arg {
	p.keep = append(p.keep, unsafe.Pointer(&b[0]))
	return Arg{argValue, uintptr(unsafe.Pointer(&b[0]))}
}

// Strs returns a pointer to an array of pointers to copies of the strings, with a final
// NULL, as execve takes it. It is an error if one holds a NUL.
func (p *Program) Strs(ss []string) (Arg, error) {
	ptrs, err := syscall.SlicePtrFromStrings(ss)
	if err != nil {
		return Arg{}, err
	}
	p.keep = append(p.keep, unsafe.Pointer(&ptrs[0]))
	return Arg{argValue, uintptr(unsafe.Pointer(&ptrs[0]))}, nil
}

// Mem32 returns the int32 in b at offset when the step runs, for example a descriptor that
// an earlier recvmsg step received.
func (p *Program) Mem32(b []byte, offset int) Arg {
	_ = b[offset+3]
	a := p.Bytes(b[offset:])
	a.kind = argMem32
	return a
}

// PutPointer writes the address of target into b at offset, in the machine's
// byte order: for structures of system calls that hold pointers.
func (p *Program) PutPointer(b []byte, offset int, target []byte) {
	p.Bytes(b)
	binary.NativeEndian.PutUint64(b[offset:], uint64(p.Bytes(target).val))
}

// Name returns the description of step i.
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
