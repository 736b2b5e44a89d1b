package seccomp

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// dockerAllows are the system calls of amd64 and arm64 that Docker's default
// profile allows to a container without added capabilities, wholly or by
// argument: default.json of the Go module github.com/moby/profiles/seccomp
// v0.2.3 (2026-05-06), without the names that 32-bit and other machines have.
const dockerAllows = `
	accept accept4 access adjtimex alarm arch_prctl bind brk cachestat capget capset chdir chmod chown
	chroot clock_adjtime clock_getres clock_gettime clock_nanosleep clone close close_range connect
	copy_file_range creat dup dup2 dup3 epoll_create epoll_create1 epoll_ctl epoll_ctl_old epoll_pwait
	epoll_pwait2 epoll_wait epoll_wait_old eventfd eventfd2 execve execveat exit exit_group faccessat
	faccessat2 fadvise64 fallocate fanotify_mark fchdir fchmod fchmodat fchmodat2 fchown fchownat fcntl
	fdatasync fgetxattr flistxattr flock fork fremovexattr fsetxattr fstat fstatfs fsync ftruncate
	futex futex_requeue futex_wait futex_waitv futex_wake futimesat get_robust_list get_thread_area
	getcpu getcwd getdents getdents64 getegid geteuid getgid getgroups getitimer getpeername getpgid
	getpgrp getpid getppid getpriority getrandom getresgid getresuid getrlimit getrusage getsid
	getsockname getsockopt gettid gettimeofday getuid getxattr getxattrat inotify_add_watch
	inotify_init inotify_init1 inotify_rm_watch io_cancel io_destroy io_getevents io_pgetevents
	io_setup io_submit ioctl ioprio_get ioprio_set kill landlock_add_rule landlock_create_ruleset
	landlock_restrict_self lchown lgetxattr link linkat listen listmount listxattr listxattrat
	llistxattr lremovexattr lseek lsetxattr lstat madvise map_shadow_stack membarrier memfd_create
	memfd_secret mincore mkdir mkdirat mknod mknodat mlock mlock2 mlockall mmap modify_ldt mprotect
	mq_getsetattr mq_notify mq_open mq_timedreceive mq_timedsend mq_unlink mremap mseal msgctl msgget
	msgrcv msgsnd msync munlock munlockall munmap name_to_handle_at nanosleep newfstatat open openat
	openat2 pause personality pidfd_open pidfd_send_signal pipe pipe2 pkey_alloc pkey_free
	pkey_mprotect poll ppoll prctl pread64 preadv preadv2 prlimit64 process_mrelease process_vm_readv
	process_vm_writev pselect6 ptrace pwrite64 pwritev pwritev2 read readahead readlink readlinkat
	readv recvfrom recvmmsg recvmsg remap_file_pages removexattr removexattrat rename renameat
	renameat2 restart_syscall rmdir rseq rt_sigaction rt_sigpending rt_sigprocmask rt_sigqueueinfo
	rt_sigreturn rt_sigsuspend rt_sigtimedwait rt_tgsigqueueinfo sched_get_priority_max
	sched_get_priority_min sched_getaffinity sched_getattr sched_getparam sched_getscheduler
	sched_rr_get_interval sched_setaffinity sched_setattr sched_setparam sched_setscheduler sched_yield
	seccomp select semctl semget semop semtimedop sendfile sendmmsg sendmsg sendto set_robust_list
	set_thread_area set_tid_address setfsgid setfsuid setgid setgroups setitimer setpgid setpriority
	setregid setresgid setresuid setreuid setrlimit setsid setsockopt setuid setxattr setxattrat shmat
	shmctl shmdt shmget shutdown sigaltstack signalfd signalfd4 socket socketpair splice stat statfs
	statmount statx symlink symlinkat sync sync_file_range syncfs sysinfo tee tgkill time timer_create
	timer_delete timer_getoverrun timer_gettime timer_settime timerfd_create timerfd_gettime
	timerfd_settime times tkill truncate umask uname unlink unlinkat uretprobe utime utimensat utimes
	vfork vmsplice wait4 waitid write writev
`

// unlikeDocker has the reason for each call about which the policy differs from
// that profile.
var unlikeDocker = map[string]string{
	// Not allowed here, because a call reaches what all sandboxes share.
	"adjtimex":           "reads and sets the clock; reading it is refused too, as no program was found that needs it",
	"clock_adjtime":      "as adjtimex",
	"sync":               "succeeds without effect: it writes out the dirty pages of the whole host",
	"syncfs":             "as sync, for the file system of a mount; it fails, because who asks for it relies on the result",
	"io_setup":           "contexts are counted against one number of the host, which one call can use up; databases go on without",
	"io_destroy":         "as io_setup",
	"io_getevents":       "as io_setup",
	"io_pgetevents":      "as io_setup",
	"io_submit":          "as io_setup",
	"io_cancel":          "as io_setup",
	"memfd_secret":       "memory that the host can neither reclaim nor move; no program was found that needs it",
	"cachestat":          "tells what others have read of a shared layer",
	"seccomp":            "only with the key of the owner: filters take memory that all of the machine share",
	"setsockopt":         "no filters on sockets, for the same reason",
	"fcntl":              "no leases, delegations and F_NOTIFY: they hold up or watch others that open the same file",
	"mmap":               "no huge pages: they are one pool for the host, and no limit of memory counts them",
	"memfd_create":       "as mmap",
	"shmget":             "as mmap",
	"sched_setscheduler": "no real-time policies, whatever limit was inherited",
	"sched_setattr":      "deadlines and frequencies, with the policy in memory",

	// Not allowed here, because a call has a record of holes and no named program needs it.
	"vmsplice":         "pages that are changed while they are in a pipe",
	"modify_ldt":       "16-bit segments; only old versions of Wine and DOSEMU use it",
	"sendto":           "no MSG_OOB: on unix sockets it was CVE-2025-38236, and only telnet, rlogin and ftp use it on others",
	"sendmsg":          "as sendto",
	"sendmmsg":         "as sendto",
	"socket":           "four families, and of them TCP, UDP and routes: a socket of any other loads a kernel module. Docker refuses AF_ALG and AF_VSOCK, and filters by family alone",
	"socketpair":       "unix sockets only",
	"remap_file_pages": "emulated by the kernel, and without a user",
	"personality":      "to ask and to reset. Docker allows the machine to be called 32-bit, and Linux 2.6",
	"clone":            "as in Docker: no new namespaces",

	// Not allowed here, because a call reaches around walls.
	"chroot":            "Docker allows it to root by CAP_SYS_CHROOT, which root here does not have",
	"name_to_handle_at": "numbers of files, which lead around paths",
	"process_vm_readv":  "debuggers have ptrace, which strace falls back to",
	"process_vm_writev": "as process_vm_readv",
	"process_mrelease":  "for killers of processes that are out of memory, which are on the host",
	"fanotify_mark":     "of no use without fanotify_init, which Docker refuses too",
	"statmount":         "tells of mounts; programs go on with /proc/self/mountinfo",
	"listmount":         "as statmount",
	"ioctl":             "no typing into terminals, no line disciplines",
	"prctl":             "no PR_SET_MM, PR_SCHED_CORE and PR_SET_SECCOMP",
	"prlimit64":         "of the caller alone, or root inside changes the limits of the guest; not of core files",
	"setrlimit":         "not of core files, or the host's core handler starts",
	"mknod":             "no devices. Docker leaves that to the cgroup of devices",
	"mknodat":           "as mknod",

	// Not there on 64-bit machines.
	"epoll_ctl_old":   "never implemented",
	"epoll_wait_old":  "never implemented",
	"get_thread_area": "of 32-bit programs",
	"set_thread_area": "of 32-bit programs",

	// Allowed here, and newer than the list of Docker.
	"uprobe":           "made by the kernel in a process that the host probes; elsewhere it is SIGILL",
	"rseq_slice_yield": "gives the rest of a time slice back",
}

// TestDockersList: the policy is that of Docker but for what has a reason.
func TestDockersList(t *testing.T) {
	docker := map[string]bool{}
	for name := range strings.FieldsSeq(dockerAllows) {
		docker[name] = true
	}
	p := newPolicy()
	known := map[string]bool{}
	var differ, reasons []string
	for _, a := range Archs() {
		for _, name := range a.names {
			if name != "" && !known[name] && (p.decide(name) == decision(Allow)) != docker[name] {
				differ = append(differ, name)
			}
			known[name] = true
		}
	}
	for name, reason := range unlikeDocker {
		reasons = append(reasons, name)
		if strings.TrimSpace(reason) == "" {
			t.Errorf("%s differs without a reason", name)
		}
	}
	slices.Sort(differ)
	slices.Sort(reasons)
	if diff := cmp.Diff(reasons, differ); diff != "" {
		t.Errorf("differences (-with a reason +there are):\n%s", diff)
	}
	for name := range docker {
		if !known[name] {
			t.Errorf("%s is not a system call", name)
		}
	}
}
