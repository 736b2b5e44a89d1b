package server

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// peerUID returns the user at the other end of a unix socket, as the kernel
// noted it when that end connected (SO_PEERCRED, unix(7)). The error is
// errElsewhere unless the program at that end is shown to be in the user and
// pid namespaces of this one: the uid alone does not tell, because the programs
// of a sandbox may have the uid of the user who made it.
func peerUID(conn *net.UnixConn) (uint32, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return 0, fmt.Errorf("identifying the peer: %w", err)
	}
	var cred *unix.Ucred
	pidfd := -1
	var failed error
	err = raw.Control(func(fd uintptr) {
		if cred, failed = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); failed != nil {
			return
		}
		pidfd, failed = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_PEERPIDFD)
	})
	if err == nil && errors.Is(failed, unix.ENOPROTOOPT) && cred.Pid > 0 {
		// Before Linux 6.5. The process may have ended since it connected, and
		// another may have its pid: docs/THREAT_MODEL.md.
		pidfd, failed = unix.PidfdOpen(int(cred.Pid), 0)
	}
	if err = errors.Join(err, failed); err != nil {
		return 0, fmt.Errorf("identifying the peer: %w (%w)", err, errElsewhere)
	}
	defer unix.Close(pidfd)
	if err := besideUs(pidfd); err != nil {
		return 0, fmt.Errorf("identifying the peer: %w (%w)", err, errElsewhere)
	}
	return cred.Uid, nil
}

// besideUs returns nil if a process is shown to be in this process's user and pid
// namespaces.
func besideUs(pidfd int) error {
	pid, err := pidBesideUs(pidfd)
	if err != nil {
		return err
	}
	proc := "/proc/" + strconv.Itoa(pid)
	same, err := sameUsers(proc)
	if err != nil {
		return err
	}
	if !same {
		return errors.New("it is in another user namespace")
	}
	// What was looked at was this process if it still has its pid.
	_, err = pidBesideUs(pidfd)
	return err
}

// pidBesideUs returns the pid of a process that has not ended and is in the pid
// namespace of this program's /proc. A descriptor's "NSpid" lists the pids of
// its process from that namespace inwards, and is 0 or -1 if it has none there
// (kernel/fork.c, fs/pidfs.c: pidfd_show_fdinfo).
func pidBesideUs(pidfd int) (int, error) {
	data, err := os.ReadFile("/proc/self/fdinfo/" + strconv.Itoa(pidfd))
	if err != nil {
		return 0, err
	}
	for line := range bytes.Lines(data) {
		rest, ok := bytes.CutPrefix(line, []byte("NSpid:"))
		if !ok {
			continue
		}
		pids := bytes.Fields(rest)
		if len(pids) != 1 {
			return 0, errors.New("it is in another pid namespace")
		}
		pid, err := strconv.Atoi(string(pids[0]))
		if err != nil || pid <= 0 {
			return 0, errors.New("it has exited, or is in another pid namespace")
		}
		return pid, nil
	}
	return 0, errors.New("/proc does not show its pid")
}

// sameUsers reports whether the process with a directory in /proc is in the
// user namespace of this program.
func sameUsers(proc string) (bool, error) {
	theirs, err := os.Stat(proc + "/ns/user")
	if errors.Is(err, fs.ErrPermission) {
		// It is root's, or is not dumpable. Everyone may read its id maps, unless
		// /proc has the option hidepid. No sandbox with the maps of its maker is
		// in its maker's pid namespace.
		return sameMaps(proc)
	}
	if err != nil {
		return false, err
	}
	ours, err := os.Stat("/proc/self/ns/user")
	return err == nil && os.SameFile(theirs, ours), err
}

// sameMaps reports whether a process has the same id maps as this program.
func sameMaps(proc string) (bool, error) {
	for _, name := range [...]string{"/uid_map", "/gid_map"} {
		theirs, err := os.ReadFile(proc + name)
		if err != nil {
			return false, err
		}
		ours, err := os.ReadFile("/proc/self" + name)
		if err != nil || !bytes.Equal(theirs, ours) {
			return false, err
		}
	}
	return true, nil
}
