package sysprog

import (
	"os"
	"slices"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// maxWatchPaths is how many directories a watcher can remove.
const maxWatchPaths = 16

// maxWatchPath is the longest path of one, with its final NUL.
const maxWatchPath = 384

// Cleanup says what a watcher does when its owner has died.
type Cleanup struct {
	// KillFile is a v2 cgroup.kill file. Without one nothing kills what the process of
	// WatchPidFD leaves: it may wait in the kernel for that, and has a second to kill it.
	KillFile string
	Dirs     []string // removed in this order, retried while they are busy
	Shared   []string // removed then, each tried once: others may be in them
}

type watchState struct {
	alive int32 // descriptor whose end of file says that the owner has died
	own   int32 // how many of dirs are waited for
	n     int32
	pidfd int32
	tries int32
	buf   [1]byte
	pause [2]int64 // struct timespec
	grace [2]int64 // the same
	death unix.PollFd
	kill  [maxWatchPath]byte
	dirs  [maxWatchPaths][maxWatchPath]byte

	message unix.Msghdr // of the next message, which fills buf and control
	vector  unix.Iovec
	control struct {
		head unix.Cmsghdr
		fd   int32
	}
}

// Watch makes a process that waits for the end of the connection alive, one end of a pair
// of stream sockets, and then does the cleanup. The owner keeps the only other end, and may
// send what to kill first (WatchPidFD) or that nothing is left to do (EndWatch). The
// process has no other descriptors, blocks all signals that can be blocked, and is in its
// own session.
//
// It fails if the cleanup has too many or too long paths.
func Watch(what Cleanup, alive int) (Child, error) {
	dirs := slices.Concat(what.Dirs, what.Shared)
	if len(dirs) > maxWatchPaths || len(what.KillFile) >= maxWatchPath {
		return Child{}, syscall.ENAMETOOLONG
	}
	s, region, err := newState()
	if err != nil {
		return Child{}, err
	}
	s.kind = kindWatch
	w := &s.watch
	w.alive, w.pidfd, w.own, w.n = int32(alive), -1, int32(len(what.Dirs)), int32(len(dirs))
	w.pause[1] = firstWatchPause
	w.vector.Base = &w.buf[0]
	w.vector.SetLen(len(w.buf))
	w.message.Iov = &w.vector
	w.message.SetIovlen(1)
	w.message.Control = (*byte)(unsafe.Pointer(&w.control))
	copy(w.kill[:], what.KillFile)
	for i, d := range dirs {
		if len(d) >= maxWatchPath {
			_ = unix.Munmap(region)
			return Child{}, syscall.ENAMETOOLONG
		}
		copy(w.dirs[i][:], d)
	}
	c, err := clone(s, region, 0, -1)
	if err != nil {
		_ = unix.Munmap(region)
	}
	return c, err
}

// What an owner says to its watcher.
const (
	watchKill = 'k' // with a pidfd
	watchEnd  = 'e'
)

// WatchPidFD tells a watcher, through the owner's end of its connection, which process to
// kill first. It is for a watcher that is made before the process. A descriptor always
// means the same process, even if its number is reused.
func WatchPidFD(conn, pidfd int) error {
	return tellWatcher(conn, watchKill, unix.UnixRights(pidfd))
}

// EndWatch ends a watcher without a cleanup. An error says that it has died before.
func EndWatch(conn int) error { return tellWatcher(conn, watchEnd, nil) }

func tellWatcher(conn int, what byte, rights []byte) error {
	for {
		err := unix.Sendmsg(conn, []byte{what}, rights, nil, unix.MSG_NOSIGNAL|unix.MSG_DONTWAIT)
		if err != unix.EINTR {
			return os.NewSyscallError("sendmsg", err)
		}
	}
}

// How long a busy directory is waited for: the pauses double from 1 ms to 64 ms,
// and there are about as many as make a minute in all.
const (
	firstWatchPause = 1e6
	lastWatchPause  = 64e6
	watchTries      = 1000
)

//go:nosplit
//go:norace
//go:nocheckptr
func (w *watchState) run() {
	syscall.RawSyscall(unix.SYS_SETSID, 0, 0, 0)
	closeRange(0, w.alive-1)
	closeRange(w.alive+1, -1)
	for {
		w.message.Controllen = uint64(unsafe.Sizeof(w.control))
		n, _, errno := syscall.RawSyscall(unix.SYS_RECVMSG, uintptr(w.alive), uintptr(unsafe.Pointer(&w.message)), 0)
		if errno == syscall.EINTR {
			continue
		}
		if errno != 0 || n == 0 {
			break
		}
		if w.buf[0] == watchEnd {
			return
		}
		if c := &w.control; w.message.Controllen >= unix.SizeofCmsghdr+4 && c.head.Level == unix.SOL_SOCKET && c.head.Type == unix.SCM_RIGHTS {
			w.pidfd = c.fd
		}
	}
	if w.pidfd >= 0 {
		if w.kill[0] == 0 {
			w.death.Fd, w.death.Events, w.grace[0] = w.pidfd, unix.POLLIN, 1
			syscall.RawSyscall6(unix.SYS_PPOLL, uintptr(unsafe.Pointer(&w.death)), 1, uintptr(unsafe.Pointer(&w.grace)), 0, 0, 0)
		}
		syscall.RawSyscall6(unix.SYS_PIDFD_SEND_SIGNAL, uintptr(w.pidfd), uintptr(syscall.SIGKILL), 0, 0, 0, 0)
	}
	if w.kill[0] != 0 {
		fd, _, errno := syscall.RawSyscall6(unix.SYS_OPENAT, atFDCWD, uintptr(unsafe.Pointer(&w.kill[0])), unix.O_WRONLY|unix.O_CLOEXEC, 0, 0, 0)
		if errno == 0 {
			w.buf[0] = '1'
			syscall.RawSyscall(unix.SYS_WRITE, fd, uintptr(unsafe.Pointer(&w.buf[0])), 1)
			syscall.RawSyscall(unix.SYS_CLOSE, fd, 0, 0)
		}
	}
	for i := int32(0); i < w.n && i < maxWatchPaths; i++ {
		for ; w.tries < watchTries; w.tries++ {
			_, _, errno := syscall.RawSyscall(unix.SYS_UNLINKAT, atFDCWD, uintptr(unsafe.Pointer(&w.dirs[i][0])), unix.AT_REMOVEDIR)
			if i >= w.own || errno != syscall.EBUSY && errno != syscall.EINTR {
				break
			}
			syscall.RawSyscall(unix.SYS_NANOSLEEP, uintptr(unsafe.Pointer(&w.pause[0])), 0, 0)
			if w.pause[1] < lastWatchPause {
				w.pause[1] *= 2
			}
		}
	}
}

// atFDCWD is AT_FDCWD as an argument.
const atFDCWD = ^uintptr(99)

// closeRange closes descriptors; last may be -1 for all that follow.
//
//go:nosplit
//go:norace
func closeRange(first, last int32) {
	if first <= last || last == -1 && first > 0 {
		syscall.RawSyscall(unix.SYS_CLOSE_RANGE, uintptr(first), uintptr(uint32(last)), 0)
	}
}
