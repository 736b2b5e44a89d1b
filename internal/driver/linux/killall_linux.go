package linux

import (
	"errors"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// A guest that was killed is not dead while a thread of it waits in the kernel for
// something that a program of its sandbox holds, such as the lock of a pipe. The
// kernel kills the others of a pid namespace only when its first process is dead. So
// both would wait for each other.
const (
	endQuickly   = 100 * time.Millisecond // until the others are killed too
	killAllAgain = 5 * time.Second        // the longest until that is repeated
)

// awaitEnd waits until the guest, which was killed, has ended. If that takes long, it
// kills all other processes of the sandbox, on which the guest may wait.
func (i *instance) awaitEnd() {
	for pause := endQuickly; ; pause = min(2*pause, killAllAgain) {
		timer := time.NewTimer(pause)
		select {
		case <-i.done:
			timer.Stop()
			return
		case <-timer.C:
		}
		// An error changes nothing: it is tried again as long as the guest is there.
		if i.group != nil {
			_ = i.group.Kill()
		} else {
			i.killNamespace()
		}
	}
}

// maxKillScans bounds how often killNamespace looks at all processes of the machine.
const maxKillScans = 16

// killNamespace sends SIGKILL to every process of the sandbox's pid namespace, where no
// cgroup has them together. It looks again until it finds none that it has not killed.
func (i *instance) killNamespace() {
	space := pidNamespace(i.child.PID)
	if unix.PidfdSendSignal(i.child.PidFD, 0, nil, 0) != nil || space == "" || space == pidNamespace(os.Getpid()) {
		return // the guest has ended, and its number may be of another process
	}
	killed := map[int]bool{}
	for range maxKillScans {
		before := len(killed)
		proc, err := os.Open("/proc")
		if err != nil {
			return
		}
		names, _ := proc.Readdirnames(-1)
		_ = proc.Close()
		for _, name := range slices.Backward(names) { // what was forked last is the first to be gone
			pid, err := strconv.Atoi(name)
			if err == nil && !killed[pid] && killInside(pid, space) {
				killed[pid] = true
			}
		}
		if len(killed) == before {
			return
		}
	}
}

// killInside kills a process if it is in a pid namespace, and reports whether it was.
func killInside(pid int, space string) bool {
	if pidNamespace(pid) != space {
		return false
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	// Asked again: fd is of the process that has the number now.
	return pidNamespace(pid) == space && unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0) == nil
}

// pidNamespace names the pid namespace of a process, or returns "". Of a thread that is
// dead the kernel tells that to root only: then another thread is asked.
func pidNamespace(pid int) string {
	dir := "/proc/" + strconv.Itoa(pid)
	name, err := os.Readlink(dir + "/ns/pid")
	if errors.Is(err, fs.ErrPermission) {
		threads, _ := os.ReadDir(dir + "/task")
		for i := 0; name == "" && i < len(threads); i++ {
			name, _ = os.Readlink(dir + "/task/" + threads[i].Name() + "/ns/pid")
		}
	}
	return name
}
