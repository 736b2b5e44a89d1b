package linux

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/fault"
	"github.com/sandpit-dev/sandpit/internal/feature"
	"github.com/sandpit-dev/sandpit/internal/sysprog"
)

// pingGroups is the sysctl with the first and the last group of those that may open ICMP sockets, for
// IPv6, too (Documentation/networking/ip-sysctl.rst). A new network namespace has noGroups.
const (
	pingGroups = "/proc/sys/net/ipv4/ping_group_range"
	noGroups   = "1 0"
)

const (
	openingPing = "opening " + pingGroups
	writingPing = "writing " + pingGroups
)

// withoutPing returns the gap of a machine where rules that allow ICMP echo can't be kept, or nil: AllowPing has to
// work, and this process has to be able to open the sockets with which sandboxes' requests are sent on.
func withoutPing(egress bool) *sandpit.Gap {
	gap := func(why, fix string) *sandpit.Gap {
		return &sandpit.Gap{What: string(feature.Ping), Why: why, Fix: fix}
	}
	if !egress {
		return gap("sandboxes have no egress", "first fix egress (above)")
	}
	var at unix.Statfs_t
	if err := unix.Statfs(pingGroups, &at); err != nil {
		return gap(pingGroups+" can't be used: "+err.Error(), "use a kernel with ICMP sockets")
	}
	if at.Flags&unix.ST_RDONLY != 0 {
		return gap("/proc/sys is mounted read-only, so ICMP sockets can't be opened to a sandbox", fixProcSys)
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, unix.IPPROTO_ICMP)
	if err == nil {
		unix.Close(fd)
		return nil
	}
	group := os.Getegid()
	return gap(fmt.Sprintf("group %d may not send ICMP echo requests on this machine: %v", group, err),
		fmt.Sprintf("run 'sysctl -w net.ipv4.ping_group_range=\"%d %d\"' as root, or omit rules with ping:", group, group))
}

// fixProcSys is what to do about a read-only /proc/sys.
const fixProcSys = "start the container with a writable /proc/sys (--privileged), or omit rules with ping:"

// AllowPing lets all groups of the sandbox, or none, open ICMP sockets. See driver.Linker.
func (i *instance) AllowPing(ctx context.Context, allow bool) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := i.owned(); err != nil {
		return err
	}
	i.doing(ctx, "ping")
	dumpable, leave := processDumpable.enter()
	defer leave()
	groups := []byte(noGroups)
	var err error
	if allow {
		groups, err = groupsOf(i.child.PID)
	}
	if err == nil {
		_, err = i.enter(ctx, func(sandbox, socket int) *sysprog.Program {
			p := enterSteps(sandbox, dumpable)
			// Of the network namespace that the child is in, but by the host's path: the sandbox's own is read-only.
			file := p.Call(openingPing, unix.SYS_OPENAT, sysprog.Int(unix.AT_FDCWD), p.Str(pingGroups), sysprog.Int(unix.O_WRONLY|unix.O_CLOEXEC), sysprog.Int(0)).Result()
			p.Call(writingPing, unix.SYS_WRITE, sysprog.From(file), p.Bytes(groups), sysprog.Int(len(groups))).Want(uintptr(len(groups)))
			p.Call("answering", unix.SYS_WRITE, sysprog.Int(socket), p.Bytes([]byte{goMessage}), sysprog.Int(1)).Want(1)
			return p
		})
	}
	if err == nil {
		return nil
	}
	err = i.explainLink(err)
	var step *sysprog.StepError
	switch {
	case !errors.As(err, &step):
	case step.What == writingPing && step.Errno == unix.EINVAL && !allow:
		// The kernel wants groups of the user namespace, which has only one: both ends are that group.
		err = sandpit.WithHint(fault.Kind{Err: err, Kind: sandpit.ErrUnsupported}, "give this user more groups in /etc/subgid")
	case step.What == openingPing:
		err = sandpit.WithHint(fault.Kind{Err: err, Kind: sandpit.ErrUnsupported}, fixProcSys)
	}
	return fmt.Errorf("changing the ping_group_range of %s: %w", i.id, err)
}

// groupsOf returns the range, by the numbers inside, that holds all groups of a process's user
// namespace: the kernel compares those outside.
func groupsOf(pid int) ([]byte, error) {
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/gid_map", pid))
	if errors.Is(err, os.ErrNotExist) {
		return nil, unix.ESRCH
	}
	if err != nil {
		return nil, err
	}
	lowest, highest := uint64(math.MaxUint64), uint64(0)
	var low, high uint64
	for r := bytes.NewReader(maps); ; {
		var inside, outside, count uint64
		if _, err := fmt.Fscanln(r, &inside, &outside, &count); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, fmt.Errorf("reading the groups of process %d: %w", pid, err)
		}
		if outside < lowest {
			lowest, low = outside, inside
		}
		if last := outside + count - 1; last >= highest {
			highest, high = last, inside+count-1
		}
	}
	return fmt.Appendf(nil, "%d %d", low, high), nil
}
