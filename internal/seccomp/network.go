package seccomp

import "slices"

// networkGroups is the policy of the process that keeps the networks of sandboxes: what a Go program needs that dials,
// and reads packets and configuration. All other calls fail as on a kernel without them. The process parses what
// hostile programs and origins send, so that most of the kernel is out of reach of one that was taken over.
//
// It starts no program, opens no file for writing, listens nowhere, and signals no other process. It
// opens only sockets for TCP and UDP; and netlink, to read this machine's addresses.
func networkGroups() []group {
	return []group{
		// Descriptors.
		{Allow, []string{
			"read", "write", "readv", "writev", "pread64", "close", "close_range", "lseek", "dup", "dup3", "pipe2", "splice",
			"fstat", "newfstatat", "statx", "stat", "lstat", "getdents64", "readlink", "readlinkat", "getcwd",
			"epoll_create1", "epoll_ctl", "epoll_wait", "epoll_pwait", "epoll_pwait2", "eventfd2", "poll", "ppoll", "select", "pselect6",
		}},
		{readOnly(1), []string{"open"}},
		{readOnly(2), []string{"openat"}},
		{describeFile(), []string{"fcntl"}},
		{describe(), []string{"ioctl"}},

		// Sockets. Bind is how Go finds out which versions of IP there are.
		{networkSocket(), []string{"socket"}},
		{tuneSocket(), []string{"setsockopt"}},
		{Allow, []string{
			"connect", "bind", "shutdown", "getsockname", "getpeername", "getsockopt",
			"sendto", "sendmsg", "sendmmsg", "recvfrom", "recvmsg", "recvmmsg",
		}},

		// Memory, threads, signals, time.
		{noBits(3, mapHugeTLB, fail(eNOMEM)), []string{"mmap"}},
		{Allow, []string{
			"mprotect", "munmap", "mremap", "brk", "madvise", "mincore", "membarrier",
			"futex", "futex_wait", "futex_wake", "futex_waitv", "futex_requeue", "set_robust_list", "get_robust_list", "set_tid_address", "rseq",
			"rt_sigaction", "rt_sigprocmask", "rt_sigreturn", "rt_sigpending", "rt_sigsuspend", "rt_sigtimedwait", "sigaltstack", "restart_syscall",
			"exit", "exit_group", "getpid", "getppid", "gettid", "sched_yield", "sched_getaffinity", "getcpu", "arch_prctl",
			"getuid", "geteuid", "getgid", "getegid", "getrlimit", "getrusage", "times", "sysinfo", "uname",
			"clock_gettime", "clock_getres", "gettimeofday", "time", "nanosleep", "clock_nanosleep",
			"timer_create", "timer_settime", "timer_gettime", "timer_delete", "setitimer", "getrandom",
		}},
		{thread(), []string{"clone"}},
		{nameMemory(), []string{"prctl"}},
		{ownThread(), []string{"tgkill"}},
	}
}

func newNetworkPolicy() policy { return policyOf(networkGroups(), fail(eNOSYS)) }

// CompileNetwork compiles the policy of NetworkProgram.
func CompileNetwork(a Arch) []Instruction { return newNetworkPolicy().compile(a) }

// NetworkProgram returns the compiled filter of the process pid that keeps the networks of sandboxes, for an
// architecture, named as in GOARCH, or nil if there is none.
func NetworkProgram(goarch string, pid uint32) []Instruction {
	var program []Instruction
	switch goarch {
	case "amd64":
		program = slices.Clone(amd64NetworkProgram[:])
	case "arm64":
		program = slices.Clone(arm64NetworkProgram[:])
	}
	for i := range program {
		if program[i].K == keyLow {
			program[i].K = pid
		}
	}
	return program
}

// readOnly allows to open what exists, for reading.
func readOnly(flags int) decision { return noBits(flags, oAccMode|oCreat|oTrunc|oTmpfile, fail(ePERM)) }

// describeFile allows fcntl(fd, command, …) to duplicate descriptors, and to read and set their flags. It can't ask for
// signals when a file is ready (F_SETOWN, F_SETSIG, O_ASYNC): the kernel would send any signal to any process of the user.
func describeFile() decision {
	return choice{
		arg: 1,
		cases: []oneOf{
			{[]uint32{fDupFD, fDupFDCloexec, fGetFD, fSetFD, fGetFL}, Allow},
			{[]uint32{fSetFL}, noBits(2, oAsync, fail(ePERM))},
		},
		other: fail(ePERM),
	}
}

// tuneSocket allows setsockopt(fd, level, name, …) what Go's package net sets. Other options reach parts of the kernel that
// the process does not need, such as TLS (TCP_ULP) and IPsec (UDP_ENCAP).
func tuneSocket() decision {
	only := func(names ...uint32) decision {
		return choice{arg: 2, cases: []oneOf{{names, Allow}}, other: fail(eNOPROTOOPT)}
	}
	return choice{
		arg: 1,
		cases: []oneOf{
			{[]uint32{solSocket}, only(soReuseAddr, soBroadcast, soKeepAlive, soLinger)},
			{[]uint32{ipprotoTCP}, only(tcpNoDelay, tcpKeepIdle, tcpKeepIntvl, tcpKeepCnt)},
			{[]uint32{ipprotoIPv6}, only(ipv6V6Only)},
		},
		other: fail(eNOPROTOOPT),
	}
}

// networkSocket is socket, less local sockets and ICMP: the server opens those.
func networkSocket() decision {
	inet := choice{
		arg: 1, mask: sockTypeMask,
		cases: []oneOf{
			{[]uint32{sockStream}, protocol(0, ipprotoTCP)},
			{[]uint32{sockDgram}, protocol(0, ipprotoUDP)},
		},
		other: fail(ePERM),
	}
	return choice{
		arg: 0,
		cases: []oneOf{
			{[]uint32{afInet, afInet6}, inet},
			{[]uint32{afNetlink}, protocol(netlinkRoute)},
		},
		other: fail(eAFNOSUPPORT),
	}
}

// thread allows clone(flags, …) to make threads, and no process or namespace.
func thread() decision {
	return choice{arg: 0, mask: cloneThread | cloneNew, cases: []oneOf{{[]uint32{cloneThread}, Allow}}, other: fail(ePERM)}
}

// describe allows ioctl to find out what comes before each packet of a TUN device, and how many bytes a connection has
// received.
func describe() decision {
	return choice{arg: 1, cases: []oneOf{{[]uint32{tunGetIff, fionread}, Allow}}, other: fail(ePERM)}
}

// nameMemory allows prctl to name memory, as Go does.
func nameMemory() decision {
	return choice{arg: 0, cases: []oneOf{{[]uint32{prSetVMA}, Allow}}, other: fail(eINVAL)}
}

// ownThread allows tgkill(pid, …) for the process itself, whose number NetworkProgram puts in place of keyLow.
func ownThread() decision {
	return choice{arg: 0, cases: []oneOf{{[]uint32{keyLow}, Allow}}, other: fail(ePERM)}
}
