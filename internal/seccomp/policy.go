package seccomp

// policy is a decision for every system call by name.
type policy struct {
	calls map[string]decision
	other Action // the decision about names that are not in calls
}

// decide returns the decision about a system call.
func (p policy) decide(name string) decision {
	if d, ok := p.calls[name]; ok {
		return d
	}
	return p.other
}

// lookup returns the decision about a number, known or not.
func (p policy) lookup(a Arch, nr uint32) decision {
	switch {
	case int64(nr) < int64(len(a.names)) && a.names[nr] != "":
		return p.decide(a.names[nr])
	case a.x32 && nr >= x32Bit && nr != ^uint32(0):
		return Kill
	}
	// Also for -1, which on amd64 is not an x32 number but what a tracer puts
	// in place of a call that is to be skipped.
	return p.other
}

// x32Bit is __X32_SYSCALL_BIT (arch/x86/include/uapi/asm/unistd.h).
const x32Bit = 1 << 30

// group is a set of system calls with one decision and the reason for it.
type group struct {
	then  decision
	calls []string
}

// newPolicy returns the policy of every sandbox. A call that is in no group does
// not exist as far as programs inside can tell.
func newPolicy() policy { return policyOf(groups(), fail(eNOSYS)) }

// newMountPolicy returns what is refused besides where the host can be written.
func newMountPolicy() policy { return policyOf(mountGroups(), Allow) }

func policyOf(groups []group, other Action) policy {
	p := policy{calls: make(map[string]decision, 512), other: other}
	for _, g := range groups {
		for _, c := range g.calls {
			p.calls[c] = g.then
		}
	}
	return p
}

// mountGroups is the policy of a second filter, for sandboxes with a writable
// mount, or one that shows sockets: no file or directory of the host gets a
// set-user-id or set-group-id bit.
//
// Inside such a file is dead, because all mounts are nosuid. On the host it is a
// program that runs with the rights of its owner: root, or the person who made
// the sandbox. A read-only mount does not keep them off: over a socket in it
// another sandbox can pass a descriptor that was opened for writing. Other
// sandboxes can't get one, and package managers inside set these bits. What is a
// directory a filter can't tell.
//
// mkdir and mkdirat are not listed: the kernel itself drops the two bits of
// their mode. openat2 has its mode in memory, where a filter can't look;
// programs go on with openat, as on a kernel before Linux 5.6.
func mountGroups() []group {
	return []group{
		{noSetID(1), []string{"chmod", "fchmod", "creat", "mknod"}},
		{noSetID(2), []string{"fchmodat", "fchmodat2", "mknodat"}},
		{ifCreating(1, noSetID(2)), []string{"open"}},
		{ifCreating(2, noSetID(3)), []string{"openat"}},
		{fail(eNOSYS), []string{"openat2"}},
		// The key of the first filter has been used.
		{fail(eNOSYS), []string{"seccomp"}},
	}
}

// groups is the policy. What is allowed comes first, then what is allowed by
// argument, then what is refused. Every name stands once.
//
// What programs of every day need was taken from what glibc, musl, Go, Python,
// V8 and the JVM call; it lies within what container engines have allowed by
// default for years, less what the reasons below say. Every call about which it
// differs from Docker's list is in docker_test.go, with the reason.
func groups() []group {
	return []group{
		// Files by descriptor, path and directory; all are bounded by the mounts
		// and the ordinary permission checks.
		{Allow, []string{
			"read", "write", "readv", "writev", "pread64", "pwrite64", "preadv", "pwritev", "preadv2", "pwritev2",
			"open", "openat", "openat2", "creat", "close", "close_range", "lseek", "flock",
			"dup", "dup2", "dup3", "pipe", "pipe2",
			"stat", "fstat", "lstat", "newfstatat", "statx", "statfs", "fstatfs",
			"access", "faccessat", "faccessat2", "readlink", "readlinkat",
			"getdents", "getdents64", "getcwd", "chdir", "fchdir",
			"rename", "renameat", "renameat2", "mkdir", "mkdirat", "rmdir",
			"link", "linkat", "unlink", "unlinkat", "symlink", "symlinkat",
			"chmod", "fchmod", "fchmodat", "fchmodat2", "chown", "fchown", "lchown", "fchownat", "umask",
			"utime", "utimes", "futimesat", "utimensat",
			"truncate", "ftruncate", "fallocate", "fadvise64", "readahead",
			"fsync", "fdatasync", "sync_file_range",
			"sendfile", "splice", "tee", "copy_file_range",
			"setxattr", "lsetxattr", "fsetxattr", "getxattr", "lgetxattr", "fgetxattr",
			"listxattr", "llistxattr", "flistxattr", "removexattr", "lremovexattr", "fremovexattr",
			"setxattrat", "getxattrat", "listxattrat", "removexattrat",
			"inotify_init", "inotify_init1", "inotify_add_watch", "inotify_rm_watch",
		}},

		// Waiting for descriptors, and the descriptors that are only for that.
		{Allow, []string{
			"poll", "ppoll", "select", "pselect6",
			"epoll_create", "epoll_create1", "epoll_ctl", "epoll_wait", "epoll_pwait", "epoll_pwait2",
			"eventfd", "eventfd2", "signalfd", "signalfd4",
			"timerfd_create", "timerfd_settime", "timerfd_gettime",
		}},

		// Sockets, once they exist: see socket below.
		{Allow, []string{
			"connect", "accept", "accept4", "bind", "listen", "shutdown",
			"recvfrom", "recvmsg", "recvmmsg", "getsockname", "getpeername", "getsockopt",
		}},

		// Memory.
		{Allow, []string{
			"mprotect", "munmap", "mremap", "brk", "madvise", "mincore", "msync", "mseal",
			"mlock", "mlock2", "munlock", "mlockall", "munlockall",
			"pkey_mprotect", "pkey_alloc", "pkey_free", "map_shadow_stack", "membarrier",
		}},

		// Processes, threads, signals. ptrace is in here for gdb, lldb, strace and
		// LeakSanitizer, which stops its own process with it: the kernel allows it
		// among processes of one user with no more rights than the tracer has, the
		// filter is asked again for what a tracer changes, and the guest can't be
		// traced because it is not dumpable.
		{Allow, []string{
			"fork", "vfork", "execve", "execveat", "exit", "exit_group", "wait4", "waitid",
			"getpid", "getppid", "gettid", "getpgrp", "getpgid", "setpgid", "getsid", "setsid",
			"kill", "tkill", "tgkill", "pidfd_open", "pidfd_send_signal", "ptrace",
			"rt_sigaction", "rt_sigprocmask", "rt_sigreturn", "rt_sigpending", "rt_sigsuspend",
			"rt_sigtimedwait", "rt_sigqueueinfo", "rt_tgsigqueueinfo", "sigaltstack", "pause", "restart_syscall",
			"futex", "futex_waitv", "futex_wake", "futex_wait", "futex_requeue",
			"set_robust_list", "get_robust_list", "set_tid_address", "rseq", "rseq_slice_yield", "arch_prctl",
			"getcpu", "sched_yield", "sched_setaffinity", "sched_getaffinity",
			"sched_setparam", "sched_getparam", "sched_getscheduler", "sched_getattr",
			"sched_get_priority_max", "sched_get_priority_min", "sched_rr_get_interval",
			"getpriority", "setpriority", "ioprio_set", "ioprio_get",
			"getrlimit", "getrusage", "times", "sysinfo", "uname",
			// Called by the kernel's own trampoline in a process that the host's
			// administrator probes; anywhere else it does nothing but SIGILL.
			"uretprobe", "uprobe",
		}},

		// Identity. The guest needs these to become the user that a process is to
		// run as; all others have no capability to use them with.
		{Allow, []string{
			"getuid", "geteuid", "getgid", "getegid", "getgroups", "getresuid", "getresgid",
			"setuid", "setgid", "setreuid", "setregid", "setresuid", "setresgid", "setgroups",
			"setfsuid", "setfsgid", "capget", "capset",
		}},

		// More walls from inside, for programs that sandbox themselves. Rulesets are
		// memory of the sandbox, and at most 16 are stacked. Filters are not: see
		// stacked below.
		{Allow, []string{
			"landlock_create_ruleset", "landlock_add_rule", "landlock_restrict_self",
		}},

		// Reading time, and timers.
		{Allow, []string{
			"time", "gettimeofday", "clock_gettime", "clock_getres", "nanosleep", "clock_nanosleep",
			"alarm", "getitimer", "setitimer",
			"timer_create", "timer_settime", "timer_gettime", "timer_getoverrun", "timer_delete",
			"getrandom",
		}},

		// System V and POSIX IPC, which lives in the sandbox's own namespace.
		{Allow, []string{
			"shmat", "shmctl", "shmdt", "semget", "semop", "semctl", "semtimedop",
			"msgget", "msgsnd", "msgrcv", "msgctl",
			"mq_open", "mq_unlink", "mq_timedsend", "mq_timedreceive", "mq_notify", "mq_getsetattr",
		}},

		// By argument: arguments.go.
		{socket(), []string{"socket"}},
		{socketpair(), []string{"socketpair"}},
		{ioctl(), []string{"ioctl"}},
		{clone(), []string{"clone"}},
		{personality(), []string{"personality"}},
		{prctl(), []string{"prctl"}},
		{prlimit(), []string{"prlimit64"}},
		{setrlimit(), []string{"setrlimit"}},
		{fcntl(), []string{"fcntl"}},
		{setsockopt(), []string{"setsockopt"}},
		{noBits(3, msgOOB, fail(eOPNOTSUPP)), []string{"sendto", "sendmmsg"}},
		{noBits(2, msgOOB, fail(eOPNOTSUPP)), []string{"sendmsg"}},
		{scheduler(), []string{"sched_setscheduler"}},
		{stacked(), []string{"seccomp"}},
		{mknod(1), []string{"mknod"}},
		{mknod(2), []string{"mknodat"}},
		{noBits(3, mapHugeTLB, fail(eNOMEM)), []string{"mmap"}},
		{noBits(1, mfdHugeTLB, fail(eNOMEM)), []string{"memfd_create"}},
		{noBits(2, shmHugeTLB, fail(eNOMEM)), []string{"shmget"}},

		// sync(2) writes out the dirty pages of the whole host, and so lets one
		// sandbox slow down all others ("Houdini's Escape", Gao and others, CCS 2019).
		// It has no result to tell by, so it succeeds and does nothing. syncfs is the
		// same for the whole file system of a mount. It has a result, and who asks for
		// it relies on that: it fails as on a kernel without it, and programs go on
		// with fsync and fdatasync, which do what they say.
		{fail(0), []string{"sync"}},
		{fail(eNOSYS), []string{"syncfs"}},

		// Deadlines and guarantees of processor frequency, which are at the cost of
		// neighbours; the policy is in memory. chrt uses it for deadlines alone.
		{fail(ePERM), []string{"sched_setattr"}},

		// New namespaces and mounts: the largest part of the kernel that an
		// ordinary user could reach.
		{fail(ePERM), []string{
			"unshare", "setns", "chroot", "pivot_root",
			"mount", "umount2", "fsopen", "fsconfig", "fsmount", "fspick", "move_mount",
			"open_tree", "open_tree_attr", "mount_setattr",
		}},

		// Kernel machinery with a history of holes and no use for programs inside.
		{fail(ePERM), []string{
			"bpf", "perf_event_open", "userfaultfd",
			"io_uring_setup", "io_uring_enter", "io_uring_register",
			"add_key", "request_key", "keyctl",
			"fanotify_init", "fanotify_mark", "vmsplice", "modify_ldt",
		}},

		// Ways around paths (open_by_handle_at) and into other processes. Debuggers
		// have ptrace, which strace falls back to.
		{fail(ePERM), []string{
			"name_to_handle_at", "open_by_handle_at",
			"process_vm_readv", "process_vm_writev", "process_madvise", "pidfd_getfd", "kcmp",
		}},

		// The machine's: its code, clock, disks, log, name, ports, memory policy.
		{fail(ePERM), []string{
			"kexec_load", "kexec_file_load", "init_module", "finit_module", "delete_module",
			"settimeofday", "clock_settime", "adjtimex", "clock_adjtime",
			"acct", "quotactl", "quotactl_fd", "swapon", "swapoff", "reboot", "syslog", "vhangup",
			"sethostname", "setdomainname", "iopl", "ioperm", "lookup_dcookie",
			"mbind", "set_mempolicy", "get_mempolicy", "set_mempolicy_home_node", "migrate_pages", "move_pages",
		}},

		// Probed for, with another way to go on. clone3 has its flags in memory,
		// where a filter can't look; C libraries go on with clone.
		{fail(eNOSYS), []string{"clone3"}},

		// Contexts of asynchronous I/O are counted against one number for the whole
		// host (fs.aio-max-nr), which a single io_setup can use up. Databases go on
		// with ordinary I/O.
		{fail(eNOSYS), []string{
			"io_setup", "io_destroy", "io_getevents", "io_submit", "io_cancel", "io_pgetevents",
		}},

		// New, and not yet needed by programs, which go on without: news of the page
		// cache that sandboxes share, of mounts and of namespaces; memory that the
		// host can't reclaim.
		{fail(eNOSYS), []string{
			"cachestat", "statmount", "listmount", "listns", "memfd_secret", "process_mrelease",
			"lsm_get_self_attr", "lsm_set_self_attr", "lsm_list_modules", "file_getattr", "file_setattr",
		}},

		// Gone, or never there, or without a user left.
		{fail(eNOSYS), []string{
			"_sysctl", "afs_syscall", "create_module", "epoll_ctl_old", "epoll_wait_old",
			"get_kernel_syms", "get_thread_area", "getpmsg", "nfsservctl", "putpmsg", "query_module",
			"remap_file_pages", "security", "set_thread_area", "sysfs", "tuxcall", "uselib", "ustat", "vserver",
		}},
	}
}
