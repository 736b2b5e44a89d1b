package landlock

import (
	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/fault"
)

// Probe returns the version of the kernel's Landlock, which is at least MinABI. The error
// says why there is none, matches sandpit.ErrUnsupported, and has a hint.
func Probe() (abi int, err error) {
	n, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION)
	return version(int(n), errno)
}

// version is what the answer n or errno of the kernel means.
func version(n int, errno unix.Errno) (int, error) {
	switch {
	case errno == 0 && n >= MinABI:
		return n, nil
	case errno == 0:
		return 0, sandpit.WithHint(fault.Errorf(sandpit.ErrUnsupported, "this kernel has Landlock version %d, but version %d is needed", n, MinABI),
			"use Linux 5.19 or newer")
	case errno == unix.EOPNOTSUPP:
		return 0, sandpit.WithHint(fault.Errorf(sandpit.ErrUnsupported, "this kernel has Landlock disabled"),
			"add landlock to the lsm= list on the kernel's command line")
	case errno == unix.ENOSYS:
		return 0, sandpit.WithHint(fault.Errorf(sandpit.ErrUnsupported, "this kernel has no Landlock"),
			"use Linux 5.19 or newer, built with CONFIG_SECURITY_LANDLOCK")
	}
	// Such as EPERM from a seccomp filter of a container around this process.
	return 0, sandpit.WithHint(fault.Errorf(sandpit.ErrUnsupported, "detecting Landlock: %w", errno),
		"allow the landlock system calls in the seccomp profile of the container")
}
