package state

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"syscall"

	"github.com/sandpit-dev/sandpit"
)

// takeLock takes the lock of a directory, which ends with this process. The
// file says who has it.
func takeLock(file, dir string) (_ *os.File, err error) {
	f, err := os.OpenFile(file, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			f.Close()
		}
	}()
	err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		who := "another server"
		text, _ := io.ReadAll(io.LimitReader(f, 32))
		if pid, err := strconv.Atoi(strings.TrimSpace(string(text))); err == nil && pid > 0 {
			who = fmt.Sprintf("another server, process %d,", pid)
		}
		return nil, sandpit.WithHint(fmt.Errorf("opening the state in %s: %s uses it: %w", dir, who, sandpit.ErrState),
			"stop that one first, or give this one a directory of its own with SANDPIT_HOME")
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
