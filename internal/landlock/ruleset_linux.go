package landlock

import (
	"errors"
	"fmt"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
)

// ABI returns the version of the kernel's Landlock, or 0 if there is none. Use
// it from MinABI on only.
func ABI() int {
	abi, _ := Probe()
	return abi
}

// Probe returns the version of the kernel's Landlock. The error says why there
// is none, matches sandpit.ErrUnsupported, and has a hint.
func Probe() (abi int, err error) {
	n, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION)
	switch errno {
	case 0:
		return int(n), nil
	case unix.EOPNOTSUPP:
		return 0, sandpit.WithHint(fmt.Errorf("landlock is switched off in this kernel: %w", sandpit.ErrUnsupported),
			"boot with lsm=landlock,… on the kernel's command line")
	case unix.ENOSYS:
		return 0, sandpit.WithHint(fmt.Errorf("this kernel has no Landlock: %w", sandpit.ErrUnsupported),
			"use Linux 5.19 or newer, built with CONFIG_SECURITY_LANDLOCK")
	}
	// Such as EPERM from a seccomp filter of a container around this process.
	return 0, sandpit.WithHint(fmt.Errorf("asking for Landlock: %w: %w", errno, sandpit.ErrUnsupported),
		"allow the landlock system calls in the seccomp profile of the container around")
}

// NewRuleset makes a ruleset under which only the given paths, files or
// directories, may be written. The caller closes the descriptor. The error
// matches sandpit.ErrUnsupported where there is no Landlock of MinABI.
func NewRuleset(writable []string) (fd int, err error) {
	abi, err := Probe()
	if err != nil {
		return -1, err
	}
	if abi < MinABI {
		return -1, sandpit.WithHint(fmt.Errorf("version %d of Landlock, want %d: %w", abi, MinABI, sandpit.ErrUnsupported),
			"use Linux 5.19 or newer")
	}
	attr := RulesetAttr(abi)
	r, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, uintptr(unsafe.Pointer(&attr[0])), uintptr(len(attr)), 0)
	if errno != 0 {
		return -1, fmt.Errorf("creating Landlock ruleset: %w", errno)
	}
	fd = int(r)
	for _, path := range writable {
		if err := addRule(fd, abi, path); err != nil {
			unix.Close(fd)
			return -1, fmt.Errorf("adding Landlock rule for %s: %w", path, err)
		}
	}
	return fd, nil
}

func addRule(ruleset, abi int, path string) error {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	access := FileAccess(abi)
	if st.Mode&unix.S_IFMT == unix.S_IFDIR {
		access = WriteAccess(abi)
	}
	rule := PathBeneath(access)
	*(*int32)(unsafe.Pointer(&rule[ParentFD])) = int32(fd)
	_, _, errno := unix.Syscall6(unix.SYS_LANDLOCK_ADD_RULE, uintptr(ruleset), RulePathBeneath, uintptr(unsafe.Pointer(&rule[0])), 0, 0, 0)
	runtime.KeepAlive(rule)
	if errno != 0 {
		return errno
	}
	return nil
}

// RestrictSelf puts a ruleset on the calling thread, and on the processes and
// threads that it makes, for good. The caller has locked its goroutine to the
// thread, and has set no_new_privs on it or has CAP_SYS_ADMIN.
func RestrictSelf(fd int) error {
	_, _, errno := unix.Syscall(unix.SYS_LANDLOCK_RESTRICT_SELF, uintptr(fd), 0, 0)
	switch {
	case errors.Is(errno, unix.EPERM):
		return fmt.Errorf("restricting by Landlock without no_new_privs: %w", errno)
	case errno != 0:
		return fmt.Errorf("restricting by Landlock: %w", errno)
	}
	return nil
}
