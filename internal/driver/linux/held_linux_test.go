package linux_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/engine"
	"github.com/sandpit-dev/sandpit/internal/testkit"
)

// probeHoldPipe takes the lock of the pipe that is its standard input and sleeps in the
// kernel with it.
func probeHoldPipe([]string) map[string]string {
	fmt.Println("ready")
	return hold(0, "input")
}

// hold takes the lock of a pipe and sleeps in the kernel with it. What is read from a
// pipe for input is moved to a socket that is full; what is written to one for output
// is to come from a socket that is empty. A terminal is stopped and written to.
func hold(fd int, kind string) map[string]string {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	must(err)
	for kind == "input" && err == nil {
		err = unix.Sendto(pair[0], make([]byte, 4096), unix.MSG_DONTWAIT, nil)
	}
	if kind == "terminal" {
		must(unix.IoctlSetInt(fd, unix.TCXONC, unix.TCOOFF))
	}
	for err = unix.EINTR; err == unix.EINTR; {
		switch kind {
		case "input":
			_, err = unix.Splice(fd, nil, pair[0], nil, 1<<16, 0)
		case "output":
			_, err = unix.Splice(pair[0], nil, fd, nil, 1<<16, 0)
		case "terminal":
			_, err = unix.Write(fd, make([]byte, 1<<16))
		}
	}
	return map[string]string{"holding": errName(err)}
}

// probeGive passes one of its descriptors to who listens on a socket, and does not end.
func probeGive(args []string) map[string]string {
	fmt.Println("ready")
	c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: args[0], Net: "unix"})
	must(err)
	fd, err := strconv.Atoi(args[1])
	must(err)
	_, _, err = c.WriteMsgUnix([]byte{0}, unix.UnixRights(fd), nil)
	must(err)
	for {
		time.Sleep(time.Hour)
	}
}

// probeHoldGiven holds what probeGive passes, of a process that it is not below.
func probeHoldGiven(args []string) map[string]string {
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: args[0], Net: "unix"})
	must(err)
	fmt.Println("ready")
	c, err := l.AcceptUnix()
	must(err)
	fds := received(c)
	must(c.Close())
	return hold(fds[0], args[1])
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

// startReady starts a probe and returns when it has said that it is ready. One that ends
// at its timeout before that, because the machine is busy, is started again with a longer one.
func startReady(t *testing.T, sb sandpit.Sandbox, cmd sandpit.Command, name string, args ...string) sandpit.Process {
	t.Helper()
	r, w := io.Pipe()
	defer r.Close()
	cmd.Argv, cmd.Stdout = append([]string{"/probe", "probe:" + name}, args...), w
	p, err := sb.Start(t.Context(), cmd)
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		_, err := p.Wait(t.Context())
		w.CloseWithError(err)
	}()
	line, err := bufio.NewReader(r).ReadString('\n')
	if strings.TrimSpace(line) != "ready" {
		if res, err := p.Wait(t.Context()); err == nil && res.TimedOut && cmd.Timeout < guard {
			cmd.Timeout *= 4
			return startReady(t, sb, cmd, name, args...)
		}
		t.Fatalf("the probe says %q, %v", line, err)
	}
	return p
}

// A stream of a process that a program holds, of which the process is not an ancestor,
// is the matter of that process alone. It ends at its timeout; others, the files and
// the list of processes go on; and its sandbox can be removed.
func TestAttackL13sHeldStreams(t *testing.T) {
	testkit.NeedFull(t, "it waits for twenty seconds")
	asEach(t, func(t *testing.T, _ sandpit.Client, user string) {
		for kind, fd := range map[string]string{"input": "0", "output": "1", "terminal": "1"} {
			t.Run(kind, func(t *testing.T) {
				t.Cleanup(unchanged(t))
				e := impatient(t, newDriver(), engine.Patience{})
				endAfterwards(t)
				before := descendants(os.Getpid())
				sb := box(t, e, sandpit.Spec{User: user})
				startReady(t, sb, sandpit.Command{}, "hold-given", "/tmp/s", kind)
				cmd := sandpit.Command{Timeout: 3 * time.Second, Stdin: true}
				if kind == "terminal" {
					cmd.Terminal = &sandpit.TerminalSize{Rows: 24, Cols: 80}
				}
				p := startReady(t, sb, cmd, "give", "/tmp/s", fd)
				go func() {
					for err := error(nil); err == nil; time.Sleep(time.Millisecond) {
						_, err = p.Stdin().Write([]byte("a line\n"))
					}
				}()
				res, err := p.Wait(t.Context())
				if err != nil || !res.TimedOut {
					t.Fatalf("it ended with %+v, %v; want a timeout", res, err)
				}
				if kind != "terminal" {
					eventually(t, "the guest waits in the kernel", func() bool {
						return slices.ContainsFunc(descendants(os.Getpid()), func(pid int) bool {
							return !slices.Contains(before, pid) && isGuest(pid) && waitsForGood(pid)
						})
					})
				}
				if out := sh(t, sb, "echo well"); string(out.Stdout) != "well\n" {
					t.Errorf("another process ended with %+v", out)
				}
				if _, err := sb.Files().Write(t.Context(), "/tmp/file", strings.NewReader("text"), sandpit.WriteOptions{}); err != nil {
					t.Error(err)
				}
				if info, err := sb.Files().Stat(t.Context(), "/tmp/file"); err != nil || info.Size != 4 {
					t.Errorf("the file is %+v, %v", info, err)
				}
				if _, err := sb.(sandpit.ProcessKeeper).Processes(t.Context()); err != nil {
					t.Error(err)
				}
				if err := sb.Remove(t.Context()); err != nil {
					t.Error(err)
				}
			})
		}
	})
}
