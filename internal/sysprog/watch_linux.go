package sysprog

import (
	"encoding/binary"
	"os"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// maxWatchPaths is how many directories a watcher can remove.
const maxWatchPaths = 16

// maxWatchPath is the longest path of one, with its final NUL.
const maxWatchPath = 384

// Cleanup is what a watcher does when its owner has died.
type Cleanup struct {
	PidFD    int      // of a process that is killed first, or -1
	KillFile string   // a v2 cgroup.kill file, or empty
	Dirs     []string // removed in this order, retried while they are busy
}

type watchState struct {
	alive int32 // descriptor whose end of file says that the owner has died
	n     int32
	pidfd int32
	tries int32
	buf   [8]byte
	pause [2]int64
	kill  [maxWatchPath]byte
	dirs  [maxWatchPaths][maxWatchPath]byte
}

// Watch makes a process that waits until the descriptor alive, the reading
// end of a pipe, comes to its end, and then does the cleanup. The owner keeps
// the only writing end. A byte written to it makes the watcher leave without
// doing anything; WatchPID names a process that is killed first. The process has no other descriptors, blocks all signals
// that can be blocked, and is in a session of its own.
//
// It fails when the cleanup has too many or too long paths.
func Watch(what Cleanup, alive int) (Child, error) {
	if len(what.Dirs) > maxWatchPaths || len(what.KillFile) >= maxWatchPath {
		return Child{}, syscall.ENAMETOOLONG
	}
	s, region, err := newState()
	if err != nil {
		return Child{}, err
	}
	s.kind = kindWatch
	w := &s.watch
	w.alive, w.pidfd, w.n = int32(alive), int32(what.PidFD), int32(len(what.Dirs))
	w.pause[1] = 1e6 // 1 ms
	copy(w.kill[:], what.KillFile)
	for i, d := range what.Dirs {
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

// pidSize is the size of what WatchPID writes, in bytes.
const pidSize = 4

// WatchPID tells a watcher, by the writing end of its pipe, of a child of its
// owner that is killed first. The child must not have been reaped. It is for
// a watcher that is made before what it watches.
func WatchPID(pipe, pid int) error {
	_, err := unix.Write(pipe, binary.NativeEndian.AppendUint32(nil, uint32(pid)))
	return os.NewSyscallError("write", err)
}

// watchTries bounds how long a busy directory is waited for: 10 s in all.
const watchTries = 10000

//go:nosplit
//go:norace
//go:nocheckptr
func (w *watchState) run() {
	syscall.RawSyscall(unix.SYS_SETSID, 0, 0, 0)
	lo, hi := w.alive, w.pidfd
	if hi < 0 {
		hi = lo
	}
	if lo > hi {
		lo, hi = hi, lo
	}
	closeRange(0, lo-1)
	closeRange(lo+1, hi-1)
	closeRange(hi+1, -1)
	for {
		n, _, errno := syscall.RawSyscall(unix.SYS_READ, uintptr(w.alive), uintptr(unsafe.Pointer(&w.buf[0])), pidSize)
		if errno == syscall.EINTR {
			continue
		}
		if n == pidSize {
			// Still a child of the owner, if only as a zombie: nobody else has its number.
			fd, _, errno := syscall.RawSyscall(unix.SYS_PIDFD_OPEN, uintptr(*(*int32)(unsafe.Pointer(&w.buf[0]))), 0, 0)
			if errno == 0 {
				w.pidfd = int32(fd)
			}
			continue
		}
		if n == 1 {
			return
		}
		break
	}
	if w.pidfd >= 0 {
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
			if errno != syscall.EBUSY && errno != syscall.EINTR {
				break
			}
			syscall.RawSyscall(unix.SYS_NANOSLEEP, uintptr(unsafe.Pointer(&w.pause[0])), 0, 0)
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
