package linux

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/cgroup"
	"github.com/sandpit-dev/sandpit/internal/driver"
	"github.com/sandpit-dev/sandpit/internal/fault"
	"github.com/sandpit-dev/sandpit/internal/feature"
)

// instance is a sandbox of this driver.
type instance struct {
	creation
	pidfd *os.File
	done  chan struct{}

	adopted bool // made by another process

	status syscall.WaitStatus // of the guest that was reaped, once done is closed

	mu     sync.Mutex
	closed bool // guarded by mu: no more Dial
	left   bool // guarded by mu: its end is ignored

	destroy    sync.Once
	destroyErr error
}

// newInstance returns the instance of a sandbox, adopted if another process has
// made it.
func newInstance(c *creation, adopted bool) *instance {
	i := &instance{creation: *c, adopted: adopted, done: make(chan struct{})}
	_ = unix.SetNonblock(c.child.PidFD, true)
	i.pidfd = os.NewFile(uintptr(c.child.PidFD), "guest")
	go i.wait()
	return i
}

// wait waits for the guest's death and reaps it, unless another process must. It costs no
// thread: a pidfd can be polled.
func (i *instance) wait() {
	defer i.end()
	raw, err := i.pidfd.SyscallConn()
	if i.adopted {
		if err == nil {
			// Leave, which closes it, looks like death, but the instance is no longer used.
			_ = raw.Read(func(fd uintptr) bool {
				ready := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
				n, err := unix.Poll(ready, 0)
				return n > 0 || err != nil && err != unix.EINTR
			})
		}
		return
	}
	if err == nil {
		err = raw.Read(func(fd uintptr) bool {
			pid, err := syscall.Wait4(i.child.PID, &i.status, syscall.WNOHANG, nil)
			return err == syscall.ECHILD || pid == i.child.PID
		})
	}
	if err != nil {
		i.status = reap(i.child.PID)
	}
	i.child.Release()
	i.thread.release()
}

// end notes that the guest has ended. If the instance was left, it closes the pidfd, which
// Destroy would do otherwise.
func (i *instance) end() {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.left {
		i.pidfd.Close()
	}
	if i.holdsFDs {
		i.driver.reserved.drop()
	}
	close(i.done)
}

func (i *instance) Handle() driver.Handle {
	return driver.Handle{Version: driver.HandleVersion, Driver: Name, ID: i.id, State: i.state()}
}

var _ driver.Lacking = (*instance)(nil)

// Lacks names the filter against set-id bits and the Landlock ruleset, which came with it, and the overlay of a directory of
// the host. See driver.Lacking.
func (i *instance) Lacks() (gaps []sandpit.Gap) {
	if !i.noSetID {
		gaps = append(gaps, sandpit.Gap{
			What: feature.GapSetID,
			Why:  "an earlier version of Sandpit created this sandbox: if it has a mount that is writable or shows sockets, programs in it can create set-user-id files on the host, and help another sandbox to replace what is mounted read-only inside its writable mount",
			Fix:  "remove it and create it again; stopping and starting it does not help",
		})
	}
	if i.asIs != "" {
		gaps = append(gaps, shownAsIs(i.asIs))
	}
	return gaps
}

var _ driver.Keeper = (*instance)(nil)

// Keep makes a sandbox that was made with Plan.KeepLater outlive this process. See driver.Keeper.
func (i *instance) Keep(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	i.doing(ctx, "keep")
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.closed {
		return dialError(i.id, unix.EPIPE)
	}
	return i.keep()
}

var _ driver.Limiter = (*instance)(nil)

// SetLimits changes limits of the cgroup. See driver.Limiter.
func (i *instance) SetLimits(ctx context.Context, limits sandpit.Limits) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := i.owned(); err != nil {
		return err
	}
	change := cgroup.Limits{Memory: limits.Memory, CPUs: limits.CPUs, Pids: limits.Pids}
	switch {
	case limits != sandpit.Limits{Memory: limits.Memory, CPUs: limits.CPUs, Pids: limits.Pids}:
		return fault.Errorf(sandpit.ErrUnsupported, "changing the limits of sandbox %s: only memory, cpus and pids can be changed", i.id)
	case change == (cgroup.Limits{}):
		return nil
	case i.group == nil:
		return fault.Errorf(sandpit.ErrUnsupported, "changing the limits of sandbox %s: it has no cgroup", i.id)
	}
	return i.group.Change(change)
}

// Dial gives the guest one end of a new socket pair, or, when it was made by
// another process, connects to the socket on which it listens.
func (i *instance) Dial(ctx context.Context) (net.Conn, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if i.adopted {
		return i.dialPersistent()
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.closed {
		return nil, dialError(i.id, unix.EPIPE)
	}
	return dialGuest(i.id, i.socks[0])
}

// dialGuest gives the guest of a sandbox one end of a new socket pair by the
// socket over which it gets its connections.
func dialGuest(id string, bootstrap int) (net.Conn, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("socketpair", err)
	}
	err = send(bootstrap, connMessage, fds[1:])
	unix.Close(fds[1])
	if err != nil {
		unix.Close(fds[0])
		return nil, dialError(id, err)
	}
	f := os.NewFile(uintptr(fds[0]), "guest")
	defer f.Close()
	conn, err := net.FileConn(f)
	if err != nil {
		return nil, fmt.Errorf("dialling the guest of %s: %w", id, err)
	}
	return conn, nil
}

// dialError explains why dialling a guest failed.
func dialError(id string, err error) error {
	kind := sandpit.ErrClosed
	if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.ETOOMANYREFS) {
		kind = sandpit.ErrExhausted // it takes none of those that wait for it
	}
	return fmt.Errorf("dialling the guest of %s: %w (%w)", id, kind, err)
}

func (i *instance) Done() <-chan struct{} { return i.done }

// Destroy kills the first process of the sandbox's pid namespace, with which
// the kernel kills all others, and the mount and network namespaces go. If that
// process does not end quickly, Destroy kills the others too.
func (i *instance) Destroy(ctx context.Context) error {
	i.destroy.Do(func() {
		i.mu.Lock()
		i.closed = true
		i.mu.Unlock()
		i.progress = driver.ProgressOf(ctx)
		i.destroyErr = i.tearDown()
	})
	return i.destroyErr
}

// tearDown releases everything that it can, even if a part fails.
func (i *instance) tearDown() error {
	_ = i.at("kill")
	leave := i.driver.ending.enter()
	killed := unix.PidfdSendSignal(i.child.PidFD, unix.SIGKILL, nil, 0)
	if killed == nil || killed == unix.ESRCH {
		killed = nil
		i.awaitEnd()
	} else {
		killed = fmt.Errorf("killing sandbox %s: %w", i.id, killed)
	}
	leave()
	// A guest that was not killed sees its end of the sockets, and ends itself;
	// and what is still in a cgroup is killed with that.
	i.closeSockets()
	var removed error
	if i.group != nil {
		_ = i.at("remove-cgroup")
		removed = i.group.Remove()
	}
	_ = i.at("forget")
	i.stopWatcher(killed == nil && removed == nil)
	forgotten := i.forgetPersistent()
	i.pidfd.Close()
	i.ids.close()
	return errors.Join(killed, removed, forgotten)
}
