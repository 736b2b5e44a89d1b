// Package seccomp has the list of system calls that a sandbox may make, and compiles it to the
// classic BPF program that the kernel runs before each of them.
//
// There is one filter for everything inside: it is installed on the guest just
// before the guest is executed as the first process, and inherited from there
// by every process, through fork, thread and exec alike. Nothing inside can remove it or add
// others, with one exception: the guest of a sandbox with a writable mount loads MountProgram
// before it does anything else, by a key that only its owner has. That takes 0.1 ms for such a
// sandbox and nothing for others. The alternatives were to load the whole filter when a blank is
// bound, two kinds of blanks, or a filter on which every program may stack another. So a sandbox
// uses at most two filters of the machine's memory, whatever its programs do.
//
// # Decisions
//
// The policy (policy.go) names every known system call of Linux, and a test checks that, so that a
// new call needs a decision. A call is allowed, allowed by its arguments, refused with EPERM, or
// answered with ENOSYS where programs probe for it and have another way. Unknown numbers are
// answered with ENOSYS, too, as a C library expects of an older kernel.
//
// Calls of another architecture's convention kill the process: int 0x80 and
// 32-bit programs on amd64, 32-bit programs on arm64, and the x32 numbers on
// amd64. A second table of system calls would be a second policy that could be wrong.
//
// # Arguments
//
// Every argument looked at is one of which the kernel itself uses the low 32
// bits or fewer, and so only these are compared, but for the key. A check of all 64 bits is
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

import (
	"encoding/binary"
	"slices"
)

// An Arch is an architecture with a policy.
type Arch struct {
	// Name is the architecture as GOARCH has it.
	Name string

	// Audit is its AUDIT_ARCH_* constant (include/uapi/linux/audit.h).
	Audit uint32

	names []string // by number; "" where there is no system call
	x32   bool     // numbers from 1<<30 are a convention of its own
}

// Archs returns the architectures with a policy.
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

// The key of a compiled filter, until WithKey sets another: numbers that no
// system call and no constant of the policy has.
const keyHigh, keyLow = 0x9D1F6A37, 0xC4E82B95

// WithKey returns the program with a key: a process that knows it may load one more filter,
// by KeyedLoad. The key must be random, and is for one sandbox.
func WithKey(program []Instruction, key uint64) []Instruction {
	keyed := slices.Clone(program)
	for i := range keyed {
		switch keyed[i].K {
		case keyHigh:
			keyed[i].K = uint32(key >> 32)
		case keyLow:
			keyed[i].K = uint32(key)
		}
	}
	return keyed
}

// KeyedLoad returns the first two arguments of the system call seccomp(2) that
// loads a filter for all threads, with a key.
func KeyedLoad(key uint64) (operation, flags uint64) {
	return key>>32<<32 | seccompSetModeFilter, key<<32 | seccompFilterFlagTSYNC
}

// Program returns the compiled filter of an architecture, named as in GOARCH, or nil if
// there is none. Don't change it. WithKey makes it loadable.
func Program(goarch string) []Instruction {
	switch goarch {
	case "amd64":
		return amd64Program[:]
	case "arm64":
		return arm64Program[:]
	}
	return nil
}

// MountProgram returns the compiled second filter, for a sandbox with a writable mount. It
// refuses modes that are dangerous to the host.
func MountProgram(goarch string) []Instruction {
	switch goarch {
	case "amd64":
		return amd64MountProgram[:]
	case "arm64":
		return arm64MountProgram[:]
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
