// Package seccomp holds the list of system calls that a sandbox may make, and
// compiles it to the classic BPF program that the kernel runs before each of
// them.
//
// There is one filter for everything inside: it is installed on the guest just
// before the guest is executed as the first process, and inherited from there
// by every process, through fork, thread and exec alike. Nothing inside can
// take it off; a program may stack stricter filters of its own upon it.
//
// # What it answers
//
// The policy (policy.go) names every system call of Linux that this program
// knows, and a test holds it to that, so that a call newly known is a decision
// to be made and never one made by default. A call is allowed, allowed by its
// arguments, refused with EPERM, or answered with ENOSYS where programs probe
// for it and have another way. So are all numbers that are not known, which is
// what a C library expects of a kernel older than itself.
//
// Calls of another architecture's convention kill the process: int 0x80 and
// 32-bit programs on amd64, 32-bit programs on arm64, and the x32 numbers on
// amd64. A second table of system calls would be a second policy to get wrong.
//
// # Arguments
//
// Every argument looked at is one of which the kernel itself uses the low 32
// bits or fewer, and so only these are compared. A check of all 64 bits is
// the classic hole: the kernel takes ioctl(fd, 1<<32|TIOCSTI) for TIOCSTI.
// Memory behind pointers can't be looked at, which is why clone3 is not there.
//
// # Cost
//
// Since Linux 5.11 the kernel emulates a filter at load for every number there
// is, to learn which calls it always allows and then skip it for those. A load
// therefore costs the sum of all paths, and a chain of comparisons is many
// times slower than a tree. The compiled programs are kept as generated Go
// data (programs.go), so that using the filter costs no time at all.
package seccomp

//go:generate go run ./internal/gen numbers
//go:generate go run ./internal/gen programs

import "encoding/binary"

// An Arch is an architecture that there is a policy for.
type Arch struct {
	// Name is the architecture as GOARCH has it.
	Name string

	// Audit is its AUDIT_ARCH_* constant (include/uapi/linux/audit.h).
	Audit uint32

	names []string // by number; "" where there is no system call
	x32   bool     // numbers from 1<<30 are a convention of its own
}

// Archs returns the architectures that there is a policy for.
func Archs() []Arch {
	return []Arch{
		{Name: "amd64", Audit: 0xC000003E, names: amd64Names[:], x32: true},
		{Name: "arm64", Audit: 0xC00000B7, names: arm64Names[:]},
	}
}

// An Instruction is one of classic BPF, laid out as struct sock_filter
// (include/uapi/linux/filter.h).
type Instruction struct {
	Code   uint16
	Jt, Jf uint8
	K      uint32
}

// Program returns the compiled filter of the architecture named as GOARCH has
// it, or nil if there is none. Don't change what is returned.
func Program(goarch string) []Instruction {
	switch goarch {
	case "amd64":
		return amd64Program[:]
	case "arm64":
		return arm64Program[:]
	}
	return nil
}

// Encode returns a program in the native byte order, as an array of struct
// sock_filter.
func Encode(program []Instruction) []byte {
	b := make([]byte, 0, 8*len(program))
	for _, in := range program {
		b = binary.NativeEndian.AppendUint16(b, in.Code)
		b = append(b, in.Jt, in.Jf)
		b = binary.NativeEndian.AppendUint32(b, in.K)
	}
	return b
}
