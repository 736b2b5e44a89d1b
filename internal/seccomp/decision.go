package seccomp

import "strconv"

// An Action is a filter's decision about a system call: a SECCOMP_RET_* value
// (include/uapi/linux/seccomp.h).
type Action uint32

// The actions that are not errors.
const (
	Allow Action = 0x7FFF0000 // SECCOMP_RET_ALLOW
	Kill  Action = 0x80000000 // SECCOMP_RET_KILL_PROCESS: death of the whole process by SIGSYS
)

// An errno of Linux, the same on all architectures here, also where this
// program is not running on Linux.
type errno uint16

const (
	ePERM           errno = 1
	eNOMEM          errno = 12
	eINVAL          errno = 22
	eNOSYS          errno = 38
	eNOPROTOOPT     errno = 92
	ePROTONOSUPPORT errno = 93
	eOPNOTSUPP      errno = 95
	eAFNOSUPPORT    errno = 97
)

// fail makes a system call end with an error instead of being done, or, with
// 0, succeed without being done.
func fail(e errno) Action { return 0x00050000 | Action(e) } // SECCOMP_RET_ERRNO

// String returns the action as Table shows it.
func (a Action) String() string {
	switch a {
	case Allow:
		return "allow"
	case Kill:
		return "kill"
	case fail(0):
		return "no effect"
	case fail(ePERM):
		return "EPERM"
	case fail(eNOMEM):
		return "ENOMEM"
	case fail(eINVAL):
		return "EINVAL"
	case fail(eNOSYS):
		return "ENOSYS"
	case fail(eNOPROTOOPT):
		return "ENOPROTOOPT"
	case fail(ePROTONOSUPPORT):
		return "EPROTONOSUPPORT"
	case fail(eOPNOTSUPP):
		return "EOPNOTSUPP"
	case fail(eAFNOSUPPORT):
		return "EAFNOSUPPORT"
	}
	return "0x" + strconv.FormatUint(uint64(a), 16)
}

// A decision about a system call: an Action, or a choice by an argument.
type decision interface {
	// evaluate is the meaning of the decision. Compiled code is tested against it.
	evaluate(args *[6]uint64) Action
}

func (a Action) evaluate(*[6]uint64) Action { return a }

// choice decides by the low 32 bits of an argument, or by the high ones, masked.
type choice struct {
	arg   int
	high  bool
	mask  uint32 // 0 stands for all bits
	cases []oneOf
	other decision
}

// oneOf is the decision for some values.
type oneOf struct {
	values []uint32
	then   decision
}

func (c choice) bits() uint32 {
	if c.mask == 0 {
		return ^uint32(0)
	}
	return c.mask
}

func (c choice) evaluate(args *[6]uint64) Action {
	half := args[c.arg]
	if c.high {
		half >>= 32
	}
	v := uint32(half) & c.bits()
	for _, o := range c.cases {
		for _, w := range o.values {
			if v == w {
				return o.then.evaluate(args)
			}
		}
	}
	return c.other.evaluate(args)
}
