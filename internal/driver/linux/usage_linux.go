package linux

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/driver"
)

// Stats asks the kernel alone, and nobody in the sandbox: the cgroups, and of
// the first process its root file system and its network namespace. So it costs
// a frozen sandbox nothing, and nobody in it can lie.
func (i *instance) Stats(context.Context) (sandpit.Metrics, error) {
	m := sandpit.UnknownMetrics()
	if err := i.owned(); err != nil {
		return m, err
	}
	if i.group != nil {
		var err error
		if m, err = i.group.Stats(); err != nil {
			return m, err
		}
	}
	disk, files, net := i.look()
	m.Disk, m.Files = disk, files
	m.RxBytes, m.RxPackets, m.TxBytes, m.TxPackets = net.rxBytes, net.rxPackets, net.txBytes, net.txPackets
	return m, nil
}

// OOMKills reads only the number of out-of-memory kills. See driver.OOMCounter.
func (i *instance) OOMKills() (int64, error) {
	if i.group == nil {
		return -1, i.owned()
	}
	return i.group.OOMKills()
}

// PidsRefused reads only the number of refused processes. See driver.OOMCounter.
func (i *instance) PidsRefused() (int64, error) {
	if i.group == nil {
		return -1, i.owned()
	}
	return i.group.PidsRefused()
}

var _ driver.OOMCounter = (*instance)(nil)

// traffic is the traffic of network interfaces.
type traffic struct{ rxBytes, rxPackets, txBytes, txPackets int64 }

func noTraffic() traffic { return traffic{-1, -1, -1, -1} }

// look reads what /proc tells of the first process, of whom it is known
// afterwards that it lives, and so was the one that was read of.
func (i *instance) look() (disk, files int64, net traffic) {
	disk, files, net = -1, -1, noTraffic()
	raw, err := i.pidfd.SyscallConn()
	if err != nil {
		return disk, files, net
	}
	_ = raw.Control(func(fd uintptr) {
		proc := "/proc/" + strconv.Itoa(i.child.PID)
		d, f := scratchUse(proc + "/root")
		n := networkUse(proc + "/net/dev")
		if unix.PidfdSendSignal(int(fd), 0, nil, 0) == nil {
			disk, files, net = d, f, n
		}
	})
	return disk, files, net
}

// scratchUse returns how many bytes and inodes of a sandbox's own file system
// are in use: its root is an overlay, which answers for its upper layer, in which
// lies all that the sandbox may write. That is a tmpfs, which rounds its limit up to whole
// pages: a full one has at least the limit in use. Nothing of the sandbox's is looked up.
func scratchUse(root string) (disk, files int64) {
	var st unix.Statfs_t
	if err := unix.Statfs(root, &st); err != nil || st.Type != unix.OVERLAYFS_SUPER_MAGIC {
		return -1, -1
	}
	return int64(st.Blocks-st.Bfree) * int64(st.Bsize), int64(st.Files - st.Ffree)
}

// maxNetDev bounds what is read of /proc/PID/net/dev: a line of it has about
// 130 bytes.
const maxNetDev = 64 << 10

// networkUse sums up what the interfaces of a network namespace have carried,
// but for its loopback.
func networkUse(name string) traffic {
	fd, err := unix.Open(name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return noTraffic()
	}
	defer unix.Close(fd)
	buf := make([]byte, 2<<10)
	for at := 0; ; {
		n, err := unix.Read(fd, buf[at:])
		switch {
		case err == unix.EINTR:
			continue
		case err != nil || at+n == maxNetDev:
			return noTraffic()
		case n == 0:
			t, err := parseNetDev(buf[:at])
			if err != nil {
				return noTraffic()
			}
			return t
		}
		if at += n; at == len(buf) {
			buf = append(buf, make([]byte, len(buf))...)
		}
	}
}

// parseNetDev reads the text of /proc/PID/net/dev, proc_pid_net(5): two lines of
// headings, then a line for each interface with 8 figures of what it has
// received and 8 of what it has sent, of each first bytes and packets.
func parseNetDev(text []byte) (t traffic, err error) {
	for n := 0; len(text) > 0; n++ {
		var line []byte
		line, text, _ = bytes.Cut(text, []byte{'\n'})
		if n < 2 {
			continue
		}
		name, rest, ok := bytes.Cut(line, []byte{':'})
		figures := bytes.Fields(rest)
		if !ok || len(figures) < 10 {
			return t, fmt.Errorf("reading network statistics: a line with %d values", len(figures))
		}
		if string(bytes.TrimSpace(name)) == "lo" {
			continue
		}
		for i, to := range map[int]*int64{0: &t.rxBytes, 1: &t.rxPackets, 8: &t.txBytes, 9: &t.txPackets} {
			v, err := strconv.ParseUint(string(figures[i]), 10, 64)
			if err != nil {
				return t, fmt.Errorf("reading network statistics: %w", err)
			}
			*to += int64(min(v, uint64(math.MaxInt64-*to)))
		}
	}
	return t, nil
}
