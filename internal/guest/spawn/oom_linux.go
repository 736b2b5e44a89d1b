package spawn

import (
	"bytes"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// raiseOOMScore makes the kernel choose the program before the guest.
//
// The program can't do it itself: until it is executed it shares the guest's
// memory, which is not dumpable, and its files in /proc are nobody's. Nor may
// the guest write the score before then: one score written is the score of all
// that share a memory, so it would be the guest's too, and the guest has no
// right to lower it again. That a program has been executed is told a moment
// before it has a memory of its own, and on a busy machine the moment is long.
// So the score is written when the kernel says that the exec is complete.
//
// All files are opened below one descriptor, which means the one process,
// whoever has its number later.
func raiseOOMScore(pid, adj int) {
	dir, err := unix.Open("/proc/"+strconv.Itoa(pid), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return // it has ended already, or there is no /proc
	}
	defer unix.Close(dir)
	if !awaitExec(dir) {
		return
	}
	// Whose files they are is settled a moment later. Until then the kernel holds
	// the lock of an exec (exec_update_lock), for which who opens this file waits,
	// whether he may or not.
	if fd, err := unix.Openat(dir, "maps", unix.O_RDONLY|unix.O_CLOEXEC, 0); err == nil {
		unix.Close(fd)
	}
	fd, err := unix.Openat(dir, "oom_score_adj", unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return // of a program that its user may not read they are root's, who may not be in here
	}
	_, _ = unix.Write(fd, strconv.AppendInt(nil, int64(adj), 10))
	unix.Close(fd)
}

const (
	firstExecPause = 20 * time.Microsecond
	lastExecPause  = 10 * time.Millisecond
	execTries      = 1000
)

// awaitExec waits until the process with the directory dir in /proc has
// executed a program and shares no memory with who has made it. It is false
// when the process has ended, or can't be looked at, or executes nothing for
// seconds: then it is another one, which was given the number of one that has
// ended.
func awaitExec(dir int) bool {
	fd, err := unix.Openat(dir, "stat", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	var buf [512]byte
	pause := firstExecPause
	for range execTries {
		n, err := unix.Pread(fd, buf[:], 0)
		if err != nil {
			return false
		}
		executed, ok := execComplete(buf[:n])
		if executed || !ok {
			return executed
		}
		time.Sleep(pause)
		pause = min(2*pause, lastExecPause)
	}
	return false
}

// forkNoExec is PF_FORKNOEXEC of linux/sched.h: "forked but didn't exec". It is
// taken away in an exec after the old memory has been given up.
const forkNoExec = 0x40

// execComplete reads a process's stat file (proc_pid_stat(5)). ok is false
// when that is none, or of a process that has ended.
func execComplete(stat []byte) (executed, ok bool) {
	// pid (name) state ppid pgrp session tty tpgid flags, and more; a name may
	// hold anything.
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	if len(fields) < 7 || fields[0][0] == 'Z' || fields[0][0] == 'X' {
		return false, false
	}
	flags, err := strconv.ParseUint(string(fields[6]), 10, 32)
	return err == nil && flags&forkNoExec == 0, err == nil
}
