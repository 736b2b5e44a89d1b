package linux_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/engine"
)

// probeHoldPipe takes the lock of the pipe that is its standard input and sleeps in the
// kernel with it: it moves what comes from the pipe to a socket that is full.
func probeHoldPipe([]string) map[string]string {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return map[string]string{"socketpair": errName(err)}
	}
	for err == nil {
		err = unix.Sendto(pair[0], make([]byte, 4096), unix.MSG_DONTWAIT, nil)
	}
	fmt.Println("ready")
	for err = unix.EINTR; err == unix.EINTR; {
		_, err = unix.Splice(0, nil, pair[0], nil, 1<<16, 0)
	}
	return map[string]string{"splice": errName(err)}
}

// waitsForGood reports whether a thread of a process waits in the kernel and no signal
// ends that.
func waitsForGood(pid int) bool {
	tasks, _ := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	return slices.ContainsFunc(tasks, func(task os.DirEntry) bool {
		data, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%s/stat", pid, task.Name()))
		_, rest, _ := strings.Cut(string(data), ") ")
		return strings.HasPrefix(rest, "D")
	})
}

// A starter starts programs in a sandbox: a client or its guest.
type starter interface {
	Start(ctx context.Context, cmd sandpit.Command) (sandpit.Process, error)
}

// holdGuest has a program in a sandbox that this process has made hold the lock of a
// pipe that the guest writes to. It returns when the guest waits for that.
func holdGuest(ctx context.Context, in starter, cmd sandpit.Command) (guest int, p sandpit.Process, err error) {
	r, w := io.Pipe()
	cmd.Argv, cmd.Stdin, cmd.Stdout = []string{"/probe", "probe:hold-pipe"}, true, w
	if p, err = in.Start(ctx, cmd); err != nil {
		return 0, nil, err
	}
	var line [6]byte
	_, err = io.ReadFull(r, line[:])
	_ = r.Close()
	if err != nil || string(line[:]) != "ready\n" {
		return 0, nil, fmt.Errorf("the probe says %q, %w", line, err)
	}
	go func() {
		for err := error(nil); err == nil; {
			_, err = p.Stdin().Write([]byte("a line\n"))
			time.Sleep(time.Millisecond)
		}
	}()
	for end := time.Now().Add(guard); time.Now().Before(end); time.Sleep(time.Millisecond) {
		for _, pid := range descendants(os.Getpid()) {
			if isGuest(pid) && waitsForGood(pid) {
				return pid, p, nil
			}
		}
	}
	return 0, p, errors.New("the guest does not come to wait for the pipe")
}

// endAfterwards kills everything that this process has started since, when the test
// ends: nothing that waits in the kernel may outlive it.
func endAfterwards(t *testing.T) {
	before := descendants(os.Getpid())
	t.Cleanup(func() {
		for _, pid := range descendants(os.Getpid()) {
			if !slices.Contains(before, pid) {
				_ = unix.Kill(pid, unix.SIGKILL)
			}
		}
	})
}

// A program that holds the lock of a pipe to the guest ends with its sandbox, and the
// sandbox with it: neither is the removal stuck, nor does anything outlive it.
func TestAttackL13rHeldPipe(t *testing.T) {
	asEach(t, func(t *testing.T, _ sandpit.Client, user string) {
		for _, by := range []string{"removed", "closed", "failed"} {
			t.Run(by, func(t *testing.T) {
				t.Cleanup(unchanged(t))
				e := impatient(t, newDriver(), engine.Patience{})
				endAfterwards(t)
				sb := box(t, e, sandpit.Spec{User: user})
				guest, _, err := holdGuest(t.Context(), sb, sandpit.Command{})
				if err != nil {
					t.Fatal(err)
				}
				if by == "closed" {
					if err := e.Close(); err != nil {
						t.Error(err)
					}
					return
				}
				if by == "failed" { // the guest dies of something else, as of a full process limit
					if err := unix.Kill(guest, unix.SIGKILL); err != nil {
						t.Fatal(err)
					}
				}
				if err := sb.Remove(t.Context()); err != nil {
					t.Error(err)
				}
			})
		}
	})
}
