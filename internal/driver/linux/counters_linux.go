package linux

import (
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit/internal/sysprog"
)

// The kernel counts some things by user instead of by process or cgroup. What
// a user has in a user namespace also counts for the user who owns the
// namespace, in the namespace above (kernel/ucount.c): inotify instances and
// watches, pending signals with POSIX timers, bytes of message queues, locked
// memory, processes. So a sandbox whose namespace is owned by a host user of its
// own shares none of these counters. Where there is no such user, a sandbox is
// given a part of what its owner may have.
//
// Other counters belong to the user alone, in whichever namespace (struct
// user_struct): descriptors in flight between processes, watches of epoll, pages of
// pipes, and memory pinned for sending. They are apart where the users inside are
// nobody on the host. Keys have quotas of that kind, too, and asynchronous I/O has
// one number for the whole host: the filter of system calls refuses both. What is
// left for the whole host is in docs/THREAT_MODEL.md.

// The quotas of a sandbox with its own counters.
const (
	maxPendingSignals = 4096      // and POSIX timers
	maxQueueBytes     = 800 << 10 // of message queues; the kernel's default
)

// share is the part of its owner's quota that one sandbox may have, if all sandboxes of an
// owner are counted together. All of them together may have half.
const share = 4

// quotas bound the per-user counters of a sandbox.
type quotas struct {
	signals, queues quota
	sysctls         []sysctl // of its user namespace
}

// quota is a resource limit.
type quota struct {
	resource int
	each     uint64 // of a user inside
	together uint64 // of all users inside, and all else that is counted with them
}

// sysctl is a file below /proc/sys/user, and what is written to it.
type sysctl struct{ name, value string }

// findQuotas returns the quotas. own says that the counters are the sandbox's own.
func findQuotas(own bool) quotas {
	q := quotas{
		signals: newQuota(unix.RLIMIT_SIGPENDING, maxPendingSignals, own),
		queues:  newQuota(unix.RLIMIT_MSGQUEUE, maxQueueBytes, own),
		// Behind the filter of system calls. Other namespaces take a capability
		// that nobody has outside of a new user namespace.
		sysctls: []sysctl{{"max_user_namespaces", "0"}},
	}
	if own {
		return q // the host's limit for a user is the sandbox's
	}
	for _, name := range []string{"max_inotify_instances", "max_inotify_watches"} {
		data, err := os.ReadFile("/proc/sys/user/" + name)
		if err != nil {
			continue // a kernel without inotify
		}
		if n, err := strconv.ParseInt(strings.TrimSpace(string(data)), 10, 64); err == nil {
			q.sysctls = append(q.sysctls, sysctl{name, strconv.FormatInt(n/share, 10)})
		}
	}
	return q
}

func newQuota(resource int, limit uint64, own bool) quota {
	var lim unix.Rlimit
	if err := unix.Getrlimit(resource, &lim); err != nil {
		lim.Cur = limit
	}
	if own {
		n := min(limit, lim.Cur)
		return quota{resource, n, n}
	}
	// Without a limit there is nothing to have a part of: then as much as is usual.
	has := lim.Cur
	if has == unix.RLIM_INFINITY {
		has = share * limit
	}
	return quota{resource, min(limit, has/share), has / 2}
}

// rlimits are the resource limits of a sandbox, both soft and hard.
func (q *quotas) rlimits() []rlimit {
	return []rlimit{
		{"core files", unix.RLIMIT_CORE, noCore},
		{"locked memory", unix.RLIMIT_MEMLOCK, 64 << 10},
		{"pending signals", q.signals.resource, q.signals.each},
		{"message queues", q.queues.resource, q.queues.each},
		// No priority above the default, even if the caller has one.
		{"priorities", unix.RLIMIT_NICE, 0},
		{"real-time priorities", unix.RLIMIT_RTPRIO, 0},
	}
}

// noCore is the limit of core files. It is too little for any file, and keeps
// the kernel from starting the program to which the host may have core files
// piped, as root outside (core_pattern of core(5)). With any other limit,
// 0 among them, that is started.
const noCore = 1

// raiseCore gives a child a hard limit of noCore, if it has less from this
// program, which it can't raise itself: that takes root. Else Probe lists it.
func raiseCore(pid int) {
	var lim unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_CORE, &lim); err == nil && lim.Max < noCore {
		_ = unix.Prlimit(pid, unix.RLIMIT_CORE, &unix.Rlimit{Cur: noCore, Max: noCore}, nil)
	}
}

// coreHandlerRuns reports whether a core handler would run, because the limit can't be
// raised.
func coreHandlerRuns(h *host) bool {
	var lim unix.Rlimit
	if h.privileged && hasCapability(unix.CAP_SYS_RESOURCE) || unix.Getrlimit(unix.RLIMIT_CORE, &lim) != nil || lim.Max >= noCore {
		return false
	}
	pattern, err := os.ReadFile("/proc/sys/kernel/core_pattern")
	return err == nil && strings.HasPrefix(string(pattern), "|")
}

type rlimit struct {
	what     string
	resource int
	value    uint64
}

// counted calls f, which makes a user namespace, so that the namespace holds
// what all its users have together to the quotas.
//
// The kernel takes that from the limits of the caller of clone(2) at that moment
// (create_user_ns of kernel/user_namespace.c), and never again: limits that the
// child gives itself, or is given, hold each of its processes alone. A child that
// lowers its own and then calls unshare(2) would not be the first process of its
// process id namespace; it takes one process more per sandbox, which makes the
// first one in its place. That leaves this program alone (CLONE_PARENT), but was
// measured to take 0.05 ms more than what is done here. So this program's own limits are lower meanwhile, of
// all its threads. Package syscall starts no other child then; see the comment of
// package local about the rest.
func (q *quotas) counted(low *lowered, f func() error) error {
	syscall.ForkLock.RLock()
	unlock := sync.OnceFunc(syscall.ForkLock.RUnlock)
	// A clone that the kernel holds up for good does not keep this program from
	// starting others.
	timer := time.AfterFunc(threadPatience, unlock)
	defer func() {
		timer.Stop()
		unlock()
	}()
	low.enter(q)
	defer low.leave()
	return f()
}

// lowered are the limits of this program that are lower while a namespace is made. Those of
// a stuck one stay so.
type lowered struct {
	mu    sync.Mutex
	users int                 // guarded by mu
	was   map[int]unix.Rlimit // by resource; guarded by mu
}

func (l *lowered) enter(q *quotas) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.users++
	for _, to := range []quota{q.signals, q.queues} {
		var was unix.Rlimit
		if err := unix.Getrlimit(to.resource, &was); err != nil || was.Cur <= to.together {
			continue
		}
		if err := unix.Setrlimit(to.resource, &unix.Rlimit{Cur: to.together, Max: was.Max}); err != nil {
			continue
		}
		if l.was == nil {
			l.was = map[int]unix.Rlimit{}
		}
		if _, ok := l.was[to.resource]; !ok {
			l.was[to.resource] = was
		}
	}
}

func (l *lowered) leave() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.users--; l.users > 0 {
		return
	}
	for resource, was := range l.was {
		_ = unix.Setrlimit(resource, &was) // no more than before: not refused
	}
	clear(l.was)
}

// asUser calls f on this thread, to which the caller is locked, with another
// effective user id but the same capabilities: a user namespace belongs to the
// effective user who makes it. uid 0 means no other.
func asUser(uid uint32, f func() error) error {
	if uid == 0 {
		return f()
	}
	const same = ^uintptr(0)
	// A change of user takes away both of these.
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var caps [2]unix.CapUserData
	if err := unix.Capget(&hdr, &caps[0]); err != nil {
		return os.NewSyscallError("capget", err)
	}
	var deathSignal int32
	if err := unix.Prctl(unix.PR_GET_PDEATHSIG, uintptr(unsafe.Pointer(&deathSignal)), 0, 0, 0); err != nil {
		return os.NewSyscallError("prctl", err)
	}
	// Not by package unix, which would change all threads.
	if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, same, uintptr(uid), same); errno != 0 {
		return os.NewSyscallError("setresuid", errno)
	}
	// To files it stays root: those of the host are opened by the child.
	_, _, _ = unix.RawSyscall(unix.SYS_SETFSUID, 0, 0, 0)
	err := os.NewSyscallError("capset", unix.Capset(&hdr, &caps[0]))
	if err == nil {
		err = f()
	}
	// The real user is still root, so only a lack of memory makes this fail.
	for {
		if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, same, 0, same); errno == 0 {
			break
		}
	}
	_ = unix.Capset(&hdr, &caps[0]) // no more than it has now
	if deathSignal != 0 {
		_ = unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(deathSignal), 0, 0, 0)
	}
	return err
}

// writeSysctls writes to files of the user namespace, while /proc/sys is not sealed.
func (c *compiler) writeSysctls(sysctls ...sysctl) {
	for _, s := range sysctls {
		what := "setting " + s.name
		// Kernels may lack one.
		fd := c.p.Call(what, unix.SYS_OPENAT, sysprog.Int(unix.AT_FDCWD), c.p.Str("proc/sys/user/"+s.name), sysprog.Int(unix.O_WRONLY|unix.O_CLOEXEC), sysprog.Int(0)).Ignore(unix.ENOENT).SkipAfterIgnored(2).Result()
		c.p.Call(what, unix.SYS_WRITE, sysprog.From(fd), c.p.Bytes([]byte(s.value)), sysprog.Int(len(s.value))).Want(uintptr(len(s.value)))
		c.p.Call(what, unix.SYS_CLOSE, sysprog.From(fd))
		c.p.Free(fd)
	}
}
