package seccomp

// Constants of the kernel's user interface, by the file in include/uapi that
// defines them. All are the same on amd64 and arm64.
const (
	// linux/socket.h, linux/net.h, linux/in.h, linux/netlink.h
	afUnix, afInet, afInet6, afNetlink = 1, 2, 10, 16
	sockStream, sockDgram              = 1, 2
	sockTypeMask                       = 0xF // the rest of the type are flags
	ipprotoTCP, ipprotoUDP             = 6, 17
	ipprotoICMP, ipprotoICMPv6         = 1, 58
	netlinkRoute                       = 0

	// asm-generic/ioctls.h
	tiocSTI, tiocLINUX, tiocSETD = 0x5412, 0x541C, 0x5423

	// linux/if_tun.h
	tunGetIff = 0x800454D2

	// asm-generic/ioctls.h
	fionread = 0x541B

	// linux/sched.h: THREAD; NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET.
	// NEWTIME lies where clone has the exit signal and is for clone3 alone.
	cloneThread = 0x00010000
	cloneNew    = 0x00020000 | 0x02000000 | 0x04000000 | 0x08000000 | 0x10000000 | 0x20000000 | 0x40000000

	// linux/prctl.h
	prGetSeccomp, prSetSeccomp = 21, 22
	prSetMM, prSchedCore       = 35, 62
	prSetVMA                   = 0x53564D41

	// linux/seccomp.h
	seccompSetModeFilter, seccompFilterFlagTSYNC = 1, 1

	// asm-generic/socket.h, linux/socket.h
	solSocket                                    = 1
	soAttachFilter, soAttachBPF                  = 26, 50
	soAttachReusePortCBPF, soAttachReusePortEBPF = 51, 52
	soReuseAddr, soBroadcast                     = 2, 6
	soKeepAlive, soLinger                        = 9, 13
	msgOOB                                       = 1

	// linux/in6.h, linux/tcp.h
	ipprotoIPv6, ipv6V6Only               = 41, 26
	tcpNoDelay                            = 1
	tcpKeepIdle, tcpKeepIntvl, tcpKeepCnt = 4, 5, 6

	// linux/fcntl.h, asm-generic/fcntl.h
	fSetLease, fNotify, fSetDeleg          = 1024, 1026, 1040
	fDupFD, fGetFD, fSetFD, fGetFL, fSetFL = 0, 1, 2, 3, 4
	fDupFDCloexec                          = 1030
	oCreat, oTmpfile                       = 0o100, 0o20000000
	oAccMode, oTrunc, oAsync               = 0o3, 0o1000, 0o20000

	// linux/sched.h
	schedOther, schedBatch, schedIdle = 0, 3, 5
	schedResetOnFork                  = 0x40000000

	// asm-generic/resource.h
	rlimitCore = 4

	// linux/stat.h
	sIFMT, sIFIFO, sIFREG, sIFSOCK = 0xF000, 0x1000, 0x8000, 0xC000
	sISUID, sISGID                 = 0o4000, 0o2000

	// asm-generic/mman-common.h, linux/memfd.h, linux/shm.h
	mapHugeTLB, mfdHugeTLB, shmHugeTLB = 0x40000, 0x4, 0x800
)

// noBits allows a call unless one of the bits is set in an argument.
//
// It keeps programs off huge pages that the host's administrator has reserved:
// they are one pool for all, and the memory limit does not count them. The
// error is the one of an empty pool, which programs that try are ready for.
func noBits(arg int, bits uint32, refused Action) decision {
	return choice{arg: arg, mask: bits, cases: []oneOf{{[]uint32{0}, Allow}}, other: refused}
}

// socket(family, type, protocol): local, IPv4 and IPv6 sockets for streams and
// datagrams over TCP, UDP and ICMP, and netlink to read addresses and routes, as C
// libraries do. Creating any other loads kernel modules by itself: AF_ALG wrote
// to the shared page cache (CVE-2026-31431), and SCTP, DCCP, MPTCP, L2TP, RDS,
// TIPC have records of their own. Errors are those of a kernel built without,
// which is what programs that try are ready for (Go tries MPTCP, su and useradd
// try the audit netlink); raw sockets fail as without the capability.
//
// Datagrams of ICMP are echo requests, and nothing else (net/ipv4/ping.c). The filter is loaded
// before it is known whether a rule of egress allows those. So it admits their sockets, which the
// network namespace refuses by EACCES until its net.ipv4.ping_group_range, closed from the start,
// is opened by the driver (driver.Linker). The kernel makes that check before anything else with
// such a socket, and they load no module: the protocols are parts of IPv4 and IPv6.
func socket() decision {
	inet := func(icmp uint32) decision {
		return choice{
			arg: 1, mask: sockTypeMask,
			cases: []oneOf{
				{[]uint32{sockStream}, protocol(0, ipprotoTCP)},
				{[]uint32{sockDgram}, protocol(0, ipprotoUDP, icmp)},
			},
			other: fail(ePERM),
		}
	}
	return choice{
		arg: 0,
		cases: []oneOf{
			{[]uint32{afUnix}, Allow},
			{[]uint32{afInet}, inet(ipprotoICMP)},
			{[]uint32{afInet6}, inet(ipprotoICMPv6)},
			{[]uint32{afNetlink}, protocol(netlinkRoute)},
		},
		other: fail(eAFNOSUPPORT),
	}
}

// protocol allows some protocols, the third argument of socket.
func protocol(allowed ...uint32) decision {
	return choice{arg: 2, cases: []oneOf{{allowed, Allow}}, other: fail(ePROTONOSUPPORT)}
}

// socketpair(family, type, protocol): the kernel makes pairs of local sockets
// and of TIPC ones only.
func socketpair() decision {
	return choice{arg: 0, cases: []oneOf{{[]uint32{afUnix}, Allow}}, other: fail(eAFNOSUPPORT)}
}

// ioctl(fd, request, …): TIOCSTI and TIOCLINUX type into the terminal that a
// sandbox shares with its caller (CVE-2017-5226, CVE-2023-1523); TIOCSETD loads
// line disciplines, modules with a record of their own (CVE-2017-2636).
func ioctl() decision {
	return choice{
		arg:   1,
		cases: []oneOf{{[]uint32{tiocSTI, tiocLINUX, tiocSETD}, fail(ePERM)}},
		other: Allow,
	}
}

// clone(flags, …): no new namespace. The order of arguments is the same on
// amd64 and arm64 as far as this one goes.
func clone() decision { return noBits(0, cloneNew, fail(ePERM)) }

// personality(persona): to ask (0xffffffff) and to reset. No ADDR_NO_RANDOMIZE:
// debuggers say that they can't and go on.
func personality() decision {
	return choice{arg: 0, cases: []oneOf{{[]uint32{0, 0xFFFFFFFF}, Allow}}, other: fail(ePERM)}
}

// prctl(option, …): PR_SET_MM rewrites what /proc says of a process.
// PR_SCHED_CORE keeps others off the sibling of a processor that runs the
// caller, which is the neighbour's time to lose. PR_SET_SECCOMP is the other way
// to stack a filter, see stacked.
func prctl() decision {
	return choice{
		arg: 0,
		cases: []oneOf{
			{[]uint32{prSetMM, prSchedCore}, fail(ePERM)},
			{[]uint32{prGetSeccomp, prSetSeccomp}, fail(eINVAL)},
		},
		other: Allow,
	}
}

// stacked refuses seccomp(operation, flags, args): programs inside can load no filters
// of their own.
//
// The compiled code of all filters of the machine shares one limit
// (net.core.bpf_jit_limit), which no cgroup counts against: a sandbox that fills
// it keeps everybody from loading any, this program included. Programs get the
// answer of a kernel built without seccomp, here and from prctl. sshd, man,
// Firefox, PRoot, Wine, and tools of systemd go on without, as on such a kernel.
// Chromium and bubblewrap need namespaces first, and have to be told to go
// without a sandbox of their own (--no-sandbox). Those that insist on a filter
// fail, and say so: file of Arch Linux without --no-sandbox, Codex unless its
// sandbox is turned off, nested container engines.
//
// The exception is the owner of the sandbox, which lets the guest load
// MountProgram by a key: 64 random bits in the halves of the arguments that the
// kernel ignores.
func stacked() decision {
	return choice{
		arg: 0, high: true,
		cases: []oneOf{{[]uint32{keyHigh}, choice{
			arg: 1, high: true,
			cases: []oneOf{{[]uint32{keyLow}, Allow}},
			other: fail(eNOSYS),
		}}},
		other: fail(eNOSYS),
	}
}

// setsockopt(fd, level, name, …): no filters on sockets, which take the memory
// that stacked is about. Programs get the answer of a kernel without them and
// receive what they would have filtered out: DHCP clients and packet dumpers,
// which have no packet sockets here, and servers that spread connections over
// processes by a program.
func setsockopt() decision {
	filters := choice{
		arg:   2,
		cases: []oneOf{{[]uint32{soAttachFilter, soAttachBPF, soAttachReusePortCBPF, soAttachReusePortEBPF}, fail(eNOPROTOOPT)}},
		other: Allow,
	}
	return choice{arg: 1, cases: []oneOf{{[]uint32{solSocket}, filters}}, other: Allow}
}

// fcntl(fd, command, …): no leases, delegations and notifications of
// directories, by which a sandbox holds up or watches others that open the same
// file. They fail as on a file system that has none. Samba, which uses them, goes
// on without.
func fcntl() decision {
	return choice{arg: 1, cases: []oneOf{{[]uint32{fSetLease, fNotify, fSetDeleg}, fail(eINVAL)}}, other: Allow}
}

// scheduler allows sched_setscheduler(pid, policy, …) the policies that share
// the processor: no real-time ones, and none that other programs implement
// (SCHED_EXT). They fail as without the right to them.
func scheduler() decision {
	return choice{
		arg: 1, mask: ^uint32(schedResetOnFork),
		cases: []oneOf{{[]uint32{schedOther, schedBatch, schedIdle}, Allow}},
		other: fail(ePERM),
	}
}

// noSetID refuses a mode, an argument, with the set-user-id or set-group-id bit.
func noSetID(arg int) decision { return noBits(arg, sISUID|sISGID, fail(ePERM)) }

// ifCreating decides about an open that may create a file, by its flags. The
// mode of any other is ignored, and may be anything.
func ifCreating(flags int, then decision) decision {
	return choice{arg: flags, mask: oCreat | oTmpfile, cases: []oneOf{{[]uint32{0}, Allow}}, other: then}
}

// prlimit64(pid, resource, …): of the caller alone, which C libraries do by pid
// 0, and so do shells, prlimit(1) with a command, and Python. Root inside may
// change the limits of every process of its uid, the guest and its helpers
// among them: a guest that may open no more files serves nobody. A thread of
// the guest is named by its own number, so that it would not do to refuse pid 1.
// Who names itself by its number, such as psutil, is refused, too.
//
// The limit of core files stays as it is, see setrlimit; it can be read. Where
// the old one is asked for at the same time, there is nobody to write it.
func prlimit() decision {
	changed := choice{arg: 3, cases: []oneOf{{[]uint32{0}, fail(0)}}, other: fail(ePERM)}
	core := choice{
		arg: 2, high: true,
		cases: []oneOf{{[]uint32{0}, choice{arg: 2, cases: []oneOf{{[]uint32{0}, Allow}}, other: changed}}},
		other: changed,
	}
	own := choice{arg: 1, cases: []oneOf{{[]uint32{rlimitCore}, core}}, other: Allow}
	return choice{arg: 0, cases: []oneOf{{[]uint32{0}, own}}, other: fail(ePERM)}
}

// setrlimit(resource, …): not of core files. The sandbox is given a limit of 1,
// with which the kernel does not start the program that the host may pipe core
// files to, as root outside. With a limit of 0 it does. Programs that want no
// core files, as agents for keys and passwords do, are told that they have what
// they want.
func setrlimit() decision {
	return choice{arg: 0, cases: []oneOf{{[]uint32{rlimitCore}, fail(0)}}, other: Allow}
}

// mknod(path, mode, dev): regular files, named pipes and sockets; no devices.
// 0 stands for a regular file.
func mknod(arg int) decision {
	return choice{
		arg: arg, mask: sIFMT,
		cases: []oneOf{{[]uint32{0, sIFREG, sIFIFO, sIFSOCK}, Allow}},
		other: fail(ePERM),
	}
}
