package apart

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit/internal/landlock"
	"github.com/sandpit-dev/sandpit/internal/seccomp"
)

// confine gives up what the process does not need, and returns what it could not give up.
func confine() (gaps []string, err error) {
	// Nobody reads secrets from its memory: no core dump, no ptrace, no /proc/PID/mem.
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return nil, fmt.Errorf("becoming undumpable: %w", err)
	}
	_ = unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{})
	limitMemory()
	limitThreads(0)
	if os.Geteuid() == 0 {
		if err := errors.Join(syscall.Setgroups(nil), syscall.Setgid(nobody), syscall.Setuid(nobody)); err != nil {
			gaps = append(gaps, fmt.Sprintf("it stays root: becoming user %d: %v", nobody, err)) // as in a user namespace that lacks it
		}
	}
	head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var caps [2]unix.CapUserData
	if err := unix.Capget(&head, &caps[0]); err != nil {
		return nil, fmt.Errorf("reading the capabilities: %w", err)
	}
	if left := uint64(caps[1].Permitted)<<32 | uint64(caps[0].Permitted); left != 0 {
		gaps = append(gaps, fmt.Sprintf("it keeps the capabilities %#x", left))
	}
	if err := restrictFiles(everyThread); err != nil {
		gaps = append(gaps, fmt.Sprintf("it can read what its user can: %v", err))
	}
	if err := restrictCalls(); err != nil {
		gaps = append(gaps, fmt.Sprintf("it can make all system calls: %v", err))
	}
	return gaps, nil
}

// everyThread makes a system call in every thread. A program that was built with cgo can't do that.
func everyThread(call, arg uintptr) error {
	_, _, errno := syscall.AllThreadsSyscall(call, arg, 0, 0)
	if errno == unix.ENOTSUP {
		return errors.New("this program was built with cgo")
	}
	if errno != 0 {
		return errno
	}
	return nil
}

// restrictFiles leaves the process the files of readable, to read; no_new_privs has to be set. Descriptors
// that it has or gets stay as they are.
func restrictFiles(restrict func(call, arg uintptr) error) error {
	abi, err := landlock.Probe()
	if err != nil {
		return err
	}
	attr := landlock.RulesetAttr(landlock.OwnAccess(abi) | landlock.Execute)
	ruleset, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, uintptr(unsafe.Pointer(&attr[0])), uintptr(len(attr)), 0)
	if errno != 0 {
		return os.NewSyscallError("landlock_create_ruleset", errno)
	}
	defer unix.Close(int(ruleset))
	for _, path := range readable() {
		fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
		if err != nil { // most exist on some distributions only
			continue
		}
		for _, access := range []landlock.Access{landlock.ReadFile | landlock.ReadDir, landlock.ReadFile} {
			rule := landlock.PathBeneath(access)
			binary.NativeEndian.PutUint32(rule[landlock.ParentFD:], uint32(fd))
			_, _, errno = unix.Syscall6(unix.SYS_LANDLOCK_ADD_RULE, ruleset, landlock.RulePathBeneath, uintptr(unsafe.Pointer(&rule[0])), 0, 0, 0)
			if errno != unix.EINVAL { // as for a file
				break
			}
		}
		unix.Close(fd)
		if errno != 0 {
			return os.NewSyscallError("landlock_add_rule", errno)
		}
	}
	return restrict(unix.SYS_LANDLOCK_RESTRICT_SELF, ruleset)
}

// readable returns what Go's resolver and crypto/x509 read while the process runs. /etc is there as a whole, because
// files in it are replaced, and their rules with them. Where /etc/resolv.conf leads later, see nameServers.
func readable() []string {
	paths := []string{
		"/etc",
		"/usr/share/ca-certificates", "/usr/local/share/ca-certificates", // to which links of /etc/ssl/certs lead
	}
	for _, file := range []string{
		"/etc/resolv.conf", "/etc/hosts", "/etc/nsswitch.conf",
		// See root_linux.go of crypto/x509.
		"/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/ca-bundle.pem", "/etc/pki/tls/cacert.pem", "/etc/ssl/cert.pem",
	} {
		at, err := filepath.EvalSymlinks(file)
		if err != nil || strings.HasPrefix(at, "/etc/") {
			continue
		}
		if dir := filepath.Dir(at); dir != "/" {
			at = dir
		}
		paths = append(paths, at)
	}
	if file := os.Getenv("SSL_CERT_FILE"); file != "" {
		paths = append(paths, file)
	}
	return append(paths, filepath.SplitList(os.Getenv("SSL_CERT_DIR"))...)
}

// restrictCalls refuses system calls that the process does not need; no_new_privs has to be set.
func restrictCalls() error {
	program := seccomp.Encode(seccomp.NetworkProgram(runtime.GOARCH, uint32(os.Getpid()))) //nolint:gosec // pids are positive
	if len(program) == 0 {
		return fmt.Errorf("no seccomp policy exists for %s", runtime.GOARCH)
	}
	filter := unix.SockFprog{Len: uint16(len(program) / 8), Filter: (*unix.SockFilter)(unsafe.Pointer(&program[0]))} //nolint:gosec // a few hundred
	r, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC, uintptr(unsafe.Pointer(&filter)))
	runtime.KeepAlive(program)
	if errno != 0 {
		return os.NewSyscallError("seccomp", errno)
	}
	if r != 0 {
		return fmt.Errorf("seccomp: thread %d has a filter of its own", r)
	}
	return nil
}
