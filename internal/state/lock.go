package state

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/fault"
)

// dying is the time to wait for the lock of a dead process. A child that it was just
// starting has its descriptors, and so the lock, until it notices the death or executes
// something else: moments, on an idle machine.
const dying = 10 * time.Second

// takeLock takes the lock of a directory, which ends with this process. The file names the
// holder.
func takeLock(ctx context.Context, file, dir string) (_ *os.File, err error) {
	f, err := os.OpenFile(file, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			f.Close()
		}
	}()
	for end := time.Now().Add(dying); ; {
		err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			break
		}
		if pid := holder(f); !isDead(pid) || time.Now().After(end) {
			return nil, lockedError(dir, pid)
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(5 * time.Millisecond):
		}
	}
	if err != nil {
		return nil, fmt.Errorf("locking %s: %w", file, err)
	}
	// Who has it is for people: on a full disk it stays unsaid.
	if err := f.Truncate(0); err == nil {
		_, _ = f.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
	}
	return f, nil
}

// holder is the process that a lock's file names, or 0.
func holder(f *os.File) int {
	var text [32]byte
	n, _ := f.ReadAt(text[:], 0)
	pid, err := strconv.Atoi(strings.TrimSpace(string(text[:n])))
	if err != nil || pid < 0 {
		return 0
	}
	return pid
}

// Holder returns the process that uses the state in a directory, as far as its lock says, or 0.
func Holder(dir string) int {
	f, err := os.Open(filepath.Join(dir, fileLock))
	if err != nil {
		return 0
	}
	defer f.Close()
	return holder(f)
}

// isDead reports whether a process is known to have ended.
func isDead(pid int) bool {
	return pid > 0 && errors.Is(syscall.Kill(pid, 0), syscall.ESRCH)
}

// ErrInUse is the error if another server has the lock of the directory. It matches
// sandpit.ErrState.
var ErrInUse error = inUseError{}

type inUseError struct{}

func (inUseError) Error() string        { return sandpit.ErrState.Error() }
func (inUseError) Is(target error) bool { return target == sandpit.ErrState }

func lockedError(dir string, pid int) error {
	who, stop := "another server", "stop that server"
	if pid > 0 {
		who, stop = fmt.Sprintf("another server, process %d,", pid), fmt.Sprintf("run 'kill %d'", pid)
	}
	return sandpit.WithHint(fault.Errorf(ErrInUse, "opening the state in %s: %s uses it", dir, who),
		stop+" first (its sandboxes keep running), or set SANDPIT_HOME to another directory")
}

// dropLock releases a lock. Closing it is not enough: a child that this process is just
// starting may have the descriptor, too, until it executes something else.
func dropLock(f *os.File) error {
	return errors.Join(syscall.Flock(int(f.Fd()), syscall.LOCK_UN), f.Close())
}
