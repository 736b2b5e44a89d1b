package seccomp

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit/internal/testkit"
)

// The tests against the kernel run in children of the test binary, which put
// the filter on themselves. childEnv holds what the child is to do.
const childEnv = "SANDPIT_SECCOMP_TEST"

func TestMain(m *testing.M) {
	if what := os.Getenv(childEnv); what != "" {
		os.Unsetenv(childEnv)
		if err := child(what); err != nil {
			fmt.Fprintln(os.Stderr, "child:", err)
			os.Exit(99)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func child(what string) error {
	what, bare := strings.CutSuffix(what, " without")
	if !bare {
		if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
			return err
		}
		if err := Install(Filter()); err != nil {
			return err
		}
	}
	switch what {
	case "exec":
		path, err := exec.LookPath(os.Args[1])
		if err != nil {
			return err
		}
		return unix.Exec(path, os.Args[1:], os.Environ())
	case "mount calls":
		if err := install(sockFilter(MountProgram(runtime.GOARCH)), keyHigh<<32|seccompSetModeFilter, keyLow<<32|seccompFilterFlagTSYNC); err != nil {
			return err
		}
		got := map[string]int{}
		for _, c := range mountCalls() {
			got[c.name] = int(c.do())
		}
		return json.NewEncoder(os.Stdout).Encode(got)
	case "calls":
		got := map[string]int{}
		for _, c := range calls() {
			got[c.name] = int(c.do())
		}
		return json.NewEncoder(os.Stdout).Encode(got)
	case "threads":
		return threads()
	}
	if f := foreign[what]; f != nil {
		f()
		return nil
	}
	return fmt.Errorf("unknown test %q", what)
}

// command runs a child, with arguments for "exec".
func command(t testing.TB, what string, args ...string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self, args...)
	cmd.Env = append(os.Environ(), childEnv+"="+what)
	return cmd
}

// output runs a command that must succeed.
func output(t testing.TB, cmd *exec.Cmd) string {
	t.Helper()
	var out, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &stderr
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v: %v\n%s%s", cmd.Args[1:], err, out.Bytes(), stderr.Bytes())
	}
	return out.String()
}

// call is a system call made under the filter, and the errno that it must end
// with. The arguments of all that are refused are such that the kernel itself
// would refuse them with another errno, or do no harm, should the filter fail.
type call struct {
	id   string // in the catalogue of attacks
	name string
	nr   uintptr
	args [6]uintptr
	want syscall.Errno
}

func (c call) do() syscall.Errno {
	_, _, errno := syscall.Syscall6(c.nr, c.args[0], c.args[1], c.args[2], c.args[3], c.args[4], c.args[5])
	return errno
}

const bad = ^uintptr(0) // as a descriptor EBADF, as a pointer EFAULT, else mostly EINVAL

func calls() []call {
	const high = 1 << 32
	badArgs := [6]uintptr{bad, bad, bad, bad, bad, bad}
	var cs []call
	add := func(id, name string, nr uintptr, want syscall.Errno, args ...uintptr) {
		c := call{id: id, name: name, nr: nr, want: want, args: badArgs}
		copy(c.args[:], args)
		cs = append(cs, c)
	}

	// B1
	for _, f := range []struct {
		name   string
		family uintptr
	}{
		{"AF_ALG", unix.AF_ALG},
		{"AF_VSOCK", unix.AF_VSOCK},
		{"AF_PACKET", unix.AF_PACKET},
		{"AF_XDP", unix.AF_XDP},
		{"AF_KCM", unix.AF_KCM},
		{"AF_RDS", unix.AF_RDS},
		{"AF_TIPC", unix.AF_TIPC},
		{"AF_CAN", unix.AF_CAN},
		{"AF_BLUETOOTH", unix.AF_BLUETOOTH},
		{"AF_KEY", unix.AF_KEY},
		{"AF_AX25", unix.AF_AX25},
		{"AF_QIPCRTR", unix.AF_QIPCRTR},
		{"AF_SMC", unix.AF_SMC},
		{"AF_NFC", unix.AF_NFC},
		{"AF_PPPOX", unix.AF_PPPOX},
		{"AF_LLC", unix.AF_LLC},
		{"family 0", 0},
	} {
		for _, typ := range []uintptr{unix.SOCK_STREAM, unix.SOCK_DGRAM, unix.SOCK_RAW, unix.SOCK_SEQPACKET} {
			name := fmt.Sprintf("socket %s %d", f.name, typ)
			add("B1", name, unix.SYS_SOCKET, unix.EAFNOSUPPORT, f.family, typ|unix.SOCK_CLOEXEC, 0)
			add("B1", name+" high bits", unix.SYS_SOCKET, unix.EAFNOSUPPORT, f.family|high, typ, 0)
		}
		add("B1", "socketpair "+f.name, unix.SYS_SOCKETPAIR, unix.EAFNOSUPPORT, f.family, unix.SOCK_STREAM, 0, 0)
	}
	for _, family := range []uintptr{unix.AF_INET, unix.AF_INET6} {
		add("F1", fmt.Sprintf("raw socket %d", family), unix.SYS_SOCKET, unix.EPERM, family, unix.SOCK_RAW, unix.IPPROTO_ICMP)
		add("F1", fmt.Sprintf("raw socket with flags %d", family), unix.SYS_SOCKET, unix.EPERM, family, unix.SOCK_RAW|unix.SOCK_CLOEXEC|high, unix.IPPROTO_RAW)
		add("F1", fmt.Sprintf("packet socket %d", family), unix.SYS_SOCKET, unix.EPERM, family, unix.SOCK_PACKET, 0)
		add("F1", fmt.Sprintf("SCTP %d", family), unix.SYS_SOCKET, unix.EPROTONOSUPPORT, family, unix.SOCK_STREAM, unix.IPPROTO_SCTP)
		add("F1", fmt.Sprintf("SCTP packets %d", family), unix.SYS_SOCKET, unix.EPERM, family, unix.SOCK_SEQPACKET, unix.IPPROTO_SCTP)
		add("F1", fmt.Sprintf("MPTCP %d", family), unix.SYS_SOCKET, unix.EPROTONOSUPPORT, family, unix.SOCK_STREAM, unix.IPPROTO_MPTCP)
		add("F1", fmt.Sprintf("DCCP %d", family), unix.SYS_SOCKET, unix.EPERM, family, unix.SOCK_DCCP, unix.IPPROTO_DCCP)
		add("F1", fmt.Sprintf("UDP-Lite %d", family), unix.SYS_SOCKET, unix.EPROTONOSUPPORT, family, unix.SOCK_DGRAM, unix.IPPROTO_UDPLITE)
		add("F1", fmt.Sprintf("L2TP %d", family), unix.SYS_SOCKET, unix.EPROTONOSUPPORT, family, unix.SOCK_DGRAM, unix.IPPROTO_L2TP)
		add("F1", fmt.Sprintf("ping stream %d", family), unix.SYS_SOCKET, unix.EPROTONOSUPPORT, family, unix.SOCK_STREAM, unix.IPPROTO_ICMP)
	}
	add("F1", "ping of the other family", unix.SYS_SOCKET, unix.EPROTONOSUPPORT, unix.AF_INET, unix.SOCK_DGRAM, unix.IPPROTO_ICMPV6)
	add("F1", "ping of the other family, 6", unix.SYS_SOCKET, unix.EPROTONOSUPPORT, unix.AF_INET6, unix.SOCK_DGRAM, unix.IPPROTO_ICMP)
	for _, proto := range []uintptr{unix.NETLINK_AUDIT, unix.NETLINK_NETFILTER, unix.NETLINK_XFRM, unix.NETLINK_GENERIC, unix.NETLINK_CRYPTO, unix.NETLINK_SOCK_DIAG, unix.NETLINK_KOBJECT_UEVENT} {
		add("B1", fmt.Sprintf("netlink %d", proto), unix.SYS_SOCKET, unix.EPROTONOSUPPORT, unix.AF_NETLINK, unix.SOCK_RAW, proto)
	}

	// B3
	add("B3", "io_uring_setup", unix.SYS_IO_URING_SETUP, unix.EPERM)
	add("B3", "io_uring_enter", unix.SYS_IO_URING_ENTER, unix.EPERM)
	add("B3", "io_uring_register", unix.SYS_IO_URING_REGISTER, unix.EPERM)
	add("B3", "userfaultfd", unix.SYS_USERFAULTFD, unix.EPERM)
	add("B3", "bpf", unix.SYS_BPF, unix.EPERM)
	add("B3", "perf_event_open", unix.SYS_PERF_EVENT_OPEN, unix.EPERM)
	add("B3", "keyctl", unix.SYS_KEYCTL, unix.EPERM)
	add("B3", "add_key", unix.SYS_ADD_KEY, unix.EPERM)
	add("B3", "request_key", unix.SYS_REQUEST_KEY, unix.EPERM)
	add("B3", "kexec_load", unix.SYS_KEXEC_LOAD, unix.EPERM)
	add("B3", "kexec_file_load", unix.SYS_KEXEC_FILE_LOAD, unix.EPERM)
	add("B3", "init_module", unix.SYS_INIT_MODULE, unix.EPERM)
	add("B3", "finit_module", unix.SYS_FINIT_MODULE, unix.EPERM)
	add("B3", "delete_module", unix.SYS_DELETE_MODULE, unix.EPERM)
	add("B3", "open_by_handle_at", unix.SYS_OPEN_BY_HANDLE_AT, unix.EPERM)
	add("B3", "name_to_handle_at", unix.SYS_NAME_TO_HANDLE_AT, unix.EPERM)
	add("B3", "mount", unix.SYS_MOUNT, unix.EPERM)
	add("B3", "umount2", unix.SYS_UMOUNT2, unix.EPERM)
	add("B3", "fsopen", unix.SYS_FSOPEN, unix.EPERM)
	add("B3", "fsconfig", unix.SYS_FSCONFIG, unix.EPERM)
	add("B3", "fsmount", unix.SYS_FSMOUNT, unix.EPERM)
	add("B3", "fspick", unix.SYS_FSPICK, unix.EPERM)
	add("B3", "move_mount", unix.SYS_MOVE_MOUNT, unix.EPERM)
	add("B3", "open_tree", unix.SYS_OPEN_TREE, unix.EPERM)
	add("B3", "open_tree_attr", unix.SYS_OPEN_TREE_ATTR, unix.EPERM)
	add("B3", "mount_setattr", unix.SYS_MOUNT_SETATTR, unix.EPERM)
	add("B3", "pivot_root", unix.SYS_PIVOT_ROOT, unix.EPERM)
	add("B3", "chroot", unix.SYS_CHROOT, unix.EPERM)
	add("B3", "setns", unix.SYS_SETNS, unix.EPERM)
	for _, ns := range []struct {
		name string
		flag uintptr
	}{
		{"NEWUSER", unix.CLONE_NEWUSER},
		{"NEWNS", unix.CLONE_NEWNS},
		{"NEWNET", unix.CLONE_NEWNET},
		{"NEWPID", unix.CLONE_NEWPID},
		{"NEWIPC", unix.CLONE_NEWIPC},
		{"NEWUTS", unix.CLONE_NEWUTS},
		{"NEWCGROUP", unix.CLONE_NEWCGROUP},
		{"NEWTIME", unix.CLONE_NEWTIME},
	} {
		add("B3", "unshare "+ns.name, unix.SYS_UNSHARE, unix.EPERM, ns.flag)
		if ns.flag == unix.CLONE_NEWTIME {
			continue // in clone that is part of the exit signal
		}
		// With CLONE_THREAD but not CLONE_SIGHAND the kernel itself says EINVAL.
		add("B3", "clone "+ns.name, unix.SYS_CLONE, unix.EPERM, ns.flag|unix.CLONE_THREAD, 0, 0, 0, 0)
		add("B3", "clone high bits "+ns.name, unix.SYS_CLONE, unix.EPERM, ns.flag|unix.CLONE_THREAD|high, 0, 0, 0, 0)
	}
	add("B3", "clone3", unix.SYS_CLONE3, unix.ENOSYS)
	add("B3", "lookup_dcookie", unix.SYS_LOOKUP_DCOOKIE, unix.EPERM)
	add("B3", "quotactl", unix.SYS_QUOTACTL, unix.EPERM)
	add("B3", "quotactl_fd", unix.SYS_QUOTACTL_FD, unix.EPERM)
	add("B3", "acct", unix.SYS_ACCT, unix.EPERM)
	add("B3", "swapon", unix.SYS_SWAPON, unix.EPERM)
	add("B3", "swapoff", unix.SYS_SWAPOFF, unix.EPERM)
	add("B3", "reboot", unix.SYS_REBOOT, unix.EPERM)
	add("B3", "process_vm_readv", unix.SYS_PROCESS_VM_READV, unix.EPERM)
	add("B3", "process_vm_writev", unix.SYS_PROCESS_VM_WRITEV, unix.EPERM)
	add("B3", "personality ADDR_NO_RANDOMIZE", unix.SYS_PERSONALITY, unix.EPERM, 0x0040000)
	add("B3", "personality high bits", unix.SYS_PERSONALITY, unix.EPERM, 0x0040000|high)
	add("B3", "kcmp", unix.SYS_KCMP, unix.EPERM)
	add("B3", "vmsplice", unix.SYS_VMSPLICE, unix.EPERM)
	add("A11", "pidfd_getfd", unix.SYS_PIDFD_GETFD, unix.EPERM)
	add("A11", "process_madvise", unix.SYS_PROCESS_MADVISE, unix.EPERM)
	add("B3", "fanotify_init", unix.SYS_FANOTIFY_INIT, unix.EPERM)
	add("D5", "settimeofday", unix.SYS_SETTIMEOFDAY, unix.EPERM)
	add("D5", "clock_settime", unix.SYS_CLOCK_SETTIME, unix.EPERM)
	add("D5", "adjtimex", unix.SYS_ADJTIMEX, unix.EPERM)
	add("D5", "clock_adjtime", unix.SYS_CLOCK_ADJTIME, unix.EPERM)
	add("B9", "syslog", unix.SYS_SYSLOG, unix.EPERM)
	add("B3", "sethostname", unix.SYS_SETHOSTNAME, unix.EPERM)
	add("B3", "mbind", unix.SYS_MBIND, unix.EPERM)
	add("B3", "move_pages", unix.SYS_MOVE_PAGES, unix.EPERM)
	add("C6", "io_setup", unix.SYS_IO_SETUP, unix.ENOSYS)
	add("B3", "PR_SET_MM", unix.SYS_PRCTL, unix.EPERM, unix.PR_SET_MM)
	add("D3", "prlimit of another", unix.SYS_PRLIMIT64, unix.EPERM, 1, unix.RLIMIT_NOFILE, 0, 0)
	add("D3", "prlimit of oneself by number", unix.SYS_PRLIMIT64, unix.EPERM, uintptr(os.Getpid())|high, unix.RLIMIT_NOFILE, 0, 0)
	// L10: the limit of core files can be read and not be changed. The pointers are bad.
	add("L10", "setrlimit of core files", unix.SYS_SETRLIMIT, 0, unix.RLIMIT_CORE, 1)
	add("L10", "setrlimit of files", unix.SYS_SETRLIMIT, unix.EFAULT, unix.RLIMIT_NOFILE, 1)
	add("L10", "prlimit of core files", unix.SYS_PRLIMIT64, 0, 0, unix.RLIMIT_CORE, 1, 0)
	add("L10", "prlimit of core files at an address with a low half of 0", unix.SYS_PRLIMIT64, 0, high, unix.RLIMIT_CORE|high, high, 0)
	add("L10", "prlimit of core files, for the old", unix.SYS_PRLIMIT64, unix.EPERM, 0, unix.RLIMIT_CORE, 1, 1)
	add("L10", "the limit of core files", unix.SYS_PRLIMIT64, unix.EFAULT, 0, unix.RLIMIT_CORE, 0, 1)
	add("C3", "PR_SCHED_CORE", unix.SYS_PRCTL, unix.EPERM, unix.PR_SCHED_CORE)

	// L3: memory of the machine for filters. The pointers of all are bad.
	for _, op := range []uintptr{unix.SECCOMP_SET_MODE_STRICT, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_GET_ACTION_AVAIL, unix.SECCOMP_GET_NOTIF_SIZES} {
		for _, flags := range []uintptr{
			0, unix.SECCOMP_FILTER_FLAG_TSYNC, unix.SECCOMP_FILTER_FLAG_LOG, unix.SECCOMP_FILTER_FLAG_NEW_LISTENER,
			keyHigh<<32 | unix.SECCOMP_FILTER_FLAG_TSYNC, keyLow | unix.SECCOMP_FILTER_FLAG_TSYNC,
		} {
			add("L3", fmt.Sprintf("seccomp %d, flags %#x", op, flags), unix.SYS_SECCOMP, unix.ENOSYS, op, flags)
		}
		add("L3", fmt.Sprintf("seccomp %d with half a key", op), unix.SYS_SECCOMP, unix.ENOSYS, op|keyHigh<<32, 0)
	}
	for _, up := range []uintptr{0, 1, 1 << 31} {
		add("L3", fmt.Sprintf("PR_SET_SECCOMP, %#x in the high half", up), unix.SYS_PRCTL, unix.EINVAL, unix.PR_SET_SECCOMP|up<<32, unix.SECCOMP_MODE_FILTER)
		for name, option := range map[string]uintptr{
			"SO_ATTACH_FILTER": unix.SO_ATTACH_FILTER, "SO_ATTACH_BPF": unix.SO_ATTACH_BPF,
			"SO_ATTACH_REUSEPORT_CBPF": unix.SO_ATTACH_REUSEPORT_CBPF, "SO_ATTACH_REUSEPORT_EBPF": unix.SO_ATTACH_REUSEPORT_EBPF,
		} {
			add("L3", fmt.Sprintf("%s with %#x in the high half", name, up), unix.SYS_SETSOCKOPT, unix.ENOPROTOOPT, bad, unix.SOL_SOCKET|up<<32, option|up<<32)
		}
	}
	add("L3", "PR_GET_SECCOMP", unix.SYS_PRCTL, unix.EINVAL, unix.PR_GET_SECCOMP)

	// L10: what no program that is known needs.
	for name, cmd := range map[string]uintptr{"F_SETLEASE": unix.F_SETLEASE, "F_NOTIFY": unix.F_NOTIFY, "F_SETDELEG": fSetDeleg} {
		add("L10q", name, unix.SYS_FCNTL, unix.EINVAL, bad, cmd)
		add("L10q", name+" high bits", unix.SYS_FCNTL, unix.EINVAL, bad, cmd|high)
	}
	add("L10r", "MSG_OOB by sendto", unix.SYS_SENDTO, unix.EOPNOTSUPP, bad, bad, 1, unix.MSG_OOB|unix.MSG_NOSIGNAL)
	add("L10r", "MSG_OOB by sendmsg", unix.SYS_SENDMSG, unix.EOPNOTSUPP, bad, bad, unix.MSG_OOB|high)
	add("L10r", "MSG_OOB by sendmmsg", unix.SYS_SENDMMSG, unix.EOPNOTSUPP, bad, bad, 1, unix.MSG_OOB)
	for _, policy := range []uintptr{unix.SCHED_FIFO, unix.SCHED_RR, unix.SCHED_DEADLINE, unix.SCHED_EXT, unix.SCHED_FIFO | schedResetOnFork} {
		add("L10s", fmt.Sprintf("sched_setscheduler %#x", policy), unix.SYS_SCHED_SETSCHEDULER, unix.EPERM, 0, policy)
		add("L10s", fmt.Sprintf("sched_setscheduler %#x high bits", policy), unix.SYS_SCHED_SETSCHEDULER, unix.EPERM, 0, policy|high)
	}
	add("L10s", "sched_setattr", unix.SYS_SCHED_SETATTR, unix.EPERM)
	add("L10p", "syncfs", unix.SYS_SYNCFS, unix.ENOSYS)

	// B4, on no descriptor at all, which the kernel itself answers with EBADF.
	for _, r := range []struct {
		name string
		cmd  uintptr
	}{{"TIOCSTI", unix.TIOCSTI}, {"TIOCLINUX", tiocLINUX}, {"TIOCSETD", unix.TIOCSETD}} {
		for _, up := range []uintptr{0, 1, 1 << 31, 0xFFFFFFFF} {
			add("B4", fmt.Sprintf("%s with %#x in the high half", r.name, up), unix.SYS_IOCTL, unix.EPERM, bad, r.cmd|up<<32)
		}
	}

	// B8
	null, _ := unix.BytePtrFromString("nonexistent/device")
	for name, mode := range map[string]uintptr{"character": unix.S_IFCHR, "block": unix.S_IFBLK} {
		add("B8", "mknodat "+name, unix.SYS_MKNODAT, unix.EPERM, bad, uintptr(unsafe.Pointer(null)), mode|0o666, 0x103)
		add("B8", "mknodat high bits "+name, unix.SYS_MKNODAT, unix.EPERM, bad, uintptr(unsafe.Pointer(null)), mode|0o666|high|1<<16, 0x103)
	}

	// C2: pages of the one pool for the host.
	add("C2", "mmap huge", unix.SYS_MMAP, unix.ENOMEM, 0, 1<<21, 0, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_HUGETLB, bad, 0)
	add("C2", "memfd_create huge", unix.SYS_MEMFD_CREATE, unix.ENOMEM, bad, unix.MFD_HUGETLB)
	add("C2", "shmget huge", unix.SYS_SHMGET, unix.ENOMEM, 0, 0, shmHugeTLB)

	// Numbers that are not there, and the one that does nothing.
	for _, nr := range []uintptr{500, 1023, 4096, 1<<30 - 1, 0xFFFFFFFF} {
		add("B3", fmt.Sprintf("number %d", nr), nr, unix.ENOSYS)
	}
	add("C4", "sync", unix.SYS_SYNC, 0)

	// What must work, or fail for no reason of the filter's.
	add("", "personality query", unix.SYS_PERSONALITY, 0, 0xFFFFFFFF)
	add("", "local socket", unix.SYS_SOCKET, 0, unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	add("", "TCP socket", unix.SYS_SOCKET, 0, unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_NONBLOCK, unix.IPPROTO_TCP)
	add("", "UDP socket", unix.SYS_SOCKET, 0, unix.AF_INET, unix.SOCK_DGRAM, 0)
	add("", "route netlink", unix.SYS_SOCKET, 0, unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	add("", "TIOCGWINSZ", unix.SYS_IOCTL, unix.EBADF, bad, unix.TIOCGWINSZ)
	add("", "ptrace", unix.SYS_PTRACE, unix.ESRCH, unix.PTRACE_ATTACH, 1<<22+1, 0, 0)
	add("", "mknodat pipe", unix.SYS_MKNODAT, unix.EBADF, bad, uintptr(unsafe.Pointer(&[]byte("x\x00")[0])), unix.S_IFIFO|0o600, 0)
	add("", "execveat", unix.SYS_EXECVEAT, unix.EFAULT)
	add("", "openat2", unix.SYS_OPENAT2, unix.E2BIG, bad, bad, bad, 1<<20)
	add("", "pidfd_open", unix.SYS_PIDFD_OPEN, unix.EINVAL)
	add("", "SO_REUSEPORT", unix.SYS_SETSOCKOPT, unix.EBADF, bad, unix.SOL_SOCKET, unix.SO_REUSEPORT)
	add("", "TCP option 26", unix.SYS_SETSOCKOPT, unix.EBADF, bad, unix.IPPROTO_TCP, unix.SO_ATTACH_FILTER)
	add("", "F_GETLEASE", unix.SYS_FCNTL, unix.EBADF, bad, unix.F_GETLEASE)
	add("", "sendto", unix.SYS_SENDTO, unix.EBADF, bad, 0, 0, unix.MSG_NOSIGNAL, 0, 0)
	add("", "SCHED_BATCH", unix.SYS_SCHED_SETSCHEDULER, unix.EFAULT, 0, unix.SCHED_BATCH|schedResetOnFork)
	add("", "chmod 4755", unix.SYS_FCHMODAT, unix.EBADF, bad, uintptr(unsafe.Pointer(null)), 0o4755)
	return append(cs, callsOfArch()...)
}

// mountCalls are made under both filters.
func mountCalls() []call {
	const high = 1 << 32
	var cs []call
	name, _ := unix.BytePtrFromString("nonexistent/file")
	path := uintptr(unsafe.Pointer(name))
	// A call with a place for a mode, and what it answers to one that is harmless.
	add := func(what string, nr uintptr, harmless syscall.Errno, at int, args ...uintptr) {
		for _, m := range []struct {
			mode uintptr
			want syscall.Errno
		}{
			{0o755, harmless},
			{0o1777, harmless},
			{0o4755, unix.EPERM},
			{0o2755, unix.EPERM},
			{0o6000, unix.EPERM},
			{0o4000 | high, unix.EPERM},
			{0o102755 | 1<<63, unix.EPERM},
		} {
			c := call{id: "L2", name: fmt.Sprintf("%s %#o", what, m.mode), nr: nr, want: m.want, args: [6]uintptr{bad, bad, bad, bad, bad, bad}}
			copy(c.args[:], args)
			c.args[at] = m.mode
			cs = append(cs, c)
		}
	}
	add("fchmod", unix.SYS_FCHMOD, unix.EBADF, 1)
	add("fchmodat", unix.SYS_FCHMODAT, unix.EBADF, 2, bad, path)
	add("fchmodat2", unix.SYS_FCHMODAT2, unix.EINVAL, 2)
	add("openat to make", unix.SYS_OPENAT, unix.EBADF, 3, bad, path, unix.O_CREAT|unix.O_WRONLY)
	add("openat of no name", unix.SYS_OPENAT, unix.EBADF, 3, bad, path, unix.O_TMPFILE|unix.O_RDWR)
	add("mknodat", unix.SYS_MKNODAT, unix.EPERM, 2) // of no kind, as which the number of 0o102755 passes
	for i := range cs {
		if strings.HasPrefix(cs[i].name, "mknodat") {
			cs[i].args[1], cs[i].args[2] = path, cs[i].args[2]&^unix.S_IFMT|unix.S_IFREG
			if cs[i].args[2]&0o6000 == 0 {
				cs[i].want = unix.EBADF
			}
		}
	}
	cs = append(cs,
		call{"L2", "openat2", unix.SYS_OPENAT2, [6]uintptr{bad, bad, bad, 1 << 20}, unix.ENOSYS},
		call{"", "openat to read, with a mode that is ignored", unix.SYS_OPENAT, [6]uintptr{bad, path, unix.O_RDONLY, 0o6777}, unix.EBADF},
		call{"L3", "seccomp with the key that was used", unix.SYS_SECCOMP, [6]uintptr{keyHigh<<32 | seccompSetModeFilter, keyLow<<32 | seccompFilterFlagTSYNC, bad}, unix.ENOSYS},
		call{"B3", "mount", unix.SYS_MOUNT, [6]uintptr{bad, bad, bad, bad, bad}, unix.EPERM},
	)
	return append(cs, mountCallsOfArch()...)
}

// TestMountCalls makes every call that sets a mode, under the filter of
// sandboxes with a writable mount.
func TestMountCalls(t *testing.T) {
	var got map[string]int
	if err := json.Unmarshal([]byte(output(t, command(t, "mount calls"))), &got); err != nil {
		t.Fatal(err)
	}
	for _, c := range mountCalls() {
		if errno := syscall.Errno(got[c.name]); errno != c.want {
			t.Errorf("%s %s: got %v (%d), want %v (%d)", c.id, c.name, errno, errno, c.want, c.want)
		}
	}
}

// TestCalls makes every call that the catalogue names, under the filter.
func TestCalls(t *testing.T) {
	var got, without map[string]int
	if err := json.Unmarshal([]byte(output(t, command(t, "calls"))), &got); err != nil {
		t.Fatal(err)
	}
	for _, c := range calls() {
		if errno := syscall.Errno(got[c.name]); errno != c.want {
			t.Errorf("%s %s: got %v (%d), want %v (%d)", c.id, c.name, errno, errno, c.want, c.want)
		}
	}
	// The same without the filter, to know that the table proves something: an
	// error that the kernel gives by itself shows nothing about the filter.
	if os.Geteuid() != 0 {
		return // then EPERM is the kernel's own answer to much of this
	}
	if err := json.Unmarshal([]byte(output(t, command(t, "calls without"))), &without); err != nil {
		t.Fatal(err)
	}
	same := 0
	for _, c := range calls() {
		if c.id != "" && syscall.Errno(without[c.name]) == c.want {
			same++
		}
	}
	t.Logf("%d calls, of which the kernel here answers %d like this by itself", len(got), same)
	if same > len(got)/2 {
		t.Error("the table proves too little")
	}
}

// threads checks that every thread has the filter and no_new_privs, those from
// before it and those from after.
func threads() error {
	hold := make(chan bool)
	for range 8 {
		go func() {
			runtime.LockOSThread()
			<-hold
		}()
	}
	defer close(hold)
	out, err := exec.Command("cat", "/proc/self/status").Output() // and across fork and exec
	if err != nil {
		return err
	}
	all, err := filepath.Glob("/proc/self/task/*/status")
	if err != nil || len(all) < 2 {
		return fmt.Errorf("finding threads: %v %v", all, err)
	}
	statuses := []string{string(out)}
	for _, name := range all {
		b, err := os.ReadFile(name)
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
			continue
		} else if err != nil {
			return err
		}
		statuses = append(statuses, string(b))
	}
	for _, s := range statuses {
		if f := strings.Fields(s); !has(f, "Seccomp:", "2") || !has(f, "NoNewPrivs:", "1") {
			return fmt.Errorf("a thread without filter:\n%s", s)
		}
	}
	// None is stacked on it but with the key, and then only one.
	all1 := []unix.SockFilter{{Code: opRet, K: uint32(Allow)}}
	if err := Install(all1); !errors.Is(err, unix.ENOSYS) {
		return fmt.Errorf("a second filter: %v", err)
	}
	op, flags := KeyedLoad(keyHigh<<32 | keyLow)
	if err := install(sockFilter(MountProgram(runtime.GOARCH)), op, flags); err != nil {
		return err
	}
	if err := install(all1, op, flags); !errors.Is(err, unix.ENOSYS) {
		return fmt.Errorf("a third filter: %v", err)
	}
	if err := unix.Acct(""); !errors.Is(err, unix.EPERM) {
		return fmt.Errorf("acct after a second filter: %v", err)
	}
	return nil
}

func has(fields []string, key, value string) bool {
	i := slices.Index(fields, key)
	return i >= 0 && i+1 < len(fields) && fields[i+1] == value
}

func TestThreads(t *testing.T) { output(t, command(t, "threads")) }

// TestForeignCalls makes calls by other conventions than the native one.
func TestForeignCalls(t *testing.T) {
	for name := range foreign {
		t.Run(name, func(t *testing.T) {
			testkit.Need(t, "a kernel with such calls", command(t, name+" without").Run())
			err := command(t, name).Run()
			if exit, ok := errors.AsType[*exec.ExitError](err); !ok || exit.Sys().(syscall.WaitStatus).Signal() != unix.SIGSYS {
				t.Errorf("got %v, want death by SIGSYS", err)
			}
		})
	}
}

func TestInstallNothing(t *testing.T) {
	if err := Install(nil); !errors.Is(err, unix.EINVAL) {
		t.Errorf("got %v, want EINVAL: no filter must never pass for one", err)
	}
}

func TestEncode(t *testing.T) {
	f := Filter()
	if f == nil {
		testkit.Lacks(t, "a policy for "+runtime.GOARCH)
	}
	want := unsafe.Slice((*byte)(unsafe.Pointer(&f[0])), len(f)*int(unsafe.Sizeof(f[0])))
	if !bytes.Equal(Encode(Program(runtime.GOARCH)), want) {
		t.Error("the bytes are not those of the kernel's struct")
	}
}
