package linux

import (
	"os"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit/internal/testkit"
)

const netDevHead = "Inter-|   Receive                                                |  Transmit\n" +
	" face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed\n"

// The figures of a network are those of all its interfaces but the loopback.
func TestTraffic(t *testing.T) {
	for text, want := range map[string]traffic{
		"": {},
		"    lo: 9000 8 0 0 0 0 0 0 9000 8 0 0 0 0 0 0\n":                                                       {},
		"    lo: 9 8 0 0 0 0 0 0 9 8 0 0 0 0 0 0\n  eth0:100 2 0 0 0 0 0 0      300    4 0 0 0 0 0 0\n":         {100, 2, 300, 4},
		"  eth0: 1 2 0 0 0 0 0 0 3 4 0 0 0 0 0 0\n  eth1: 10 20 0 0 0 0 0 0 30 40 0 0 0 0 0 0\n":                {11, 22, 33, 44},
		"  eth0: 18446744073709551615 2 0 0 0 0 0 0 3 4 0 0 0 0 0 0\n  eth1: 5 2 0 0 0 0 0 0 3 4 0 0 0 0 0 0\n": {1<<63 - 1, 4, 6, 8},
		"  eth0: 1 2 0 0 0 0 0 0 3 4 0 0 0 0 0 0":                                                               {1, 2, 3, 4},
	} {
		if got, err := parseNetDev([]byte(netDevHead + text)); err != nil || got != want {
			t.Errorf("%q is %v, %v, want %v", text, got, err, want)
		}
	}
	for _, text := range []string{"eth0 1 2 3\n", "eth0: 1 2\n", "eth0: 1 2 0 0 0 0 0 0 x 4 0\n", "eth0: -1 2 0 0 0 0 0 0 1 4 0\n"} {
		if got, err := parseNetDev([]byte(netDevHead + text)); err == nil {
			t.Errorf("%q is %v", text, got)
		}
	}
}

// What the kernel says of a namespace of its own with one interface is what was
// sent there.
func TestTrafficOfAnInterface(t *testing.T) {
	// The thread may be the main one, which does not end, and whose namespaces are
	// the process's to others: it goes back.
	runtime.LockOSThread()
	host, err := unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(host)
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		runtime.UnlockOSThread()
		testkit.Need(t, "root to make a network namespace", err)
	}
	defer func() {
		if err := unix.Setns(host, unix.CLONE_NEWNET); err != nil {
			t.Errorf("going back: %v", err)
			return
		}
		runtime.UnlockOSThread()
	}()
	const self = "/proc/thread-self/net/dev"
	if got := networkUse(self); got != (traffic{}) {
		t.Errorf("a namespace without interfaces has %v", got)
	}
	tun, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC, 0)
	testkit.Need(t, "/dev/net/tun", err)
	defer unix.Close(tun)
	req, err := unix.NewIfreq("tried0")
	if err != nil {
		t.Fatal(err)
	}
	req.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI)
	testkit.Need(t, "root to make an interface", unix.IoctlIfreq(tun, unix.TUNSETIFF, req))
	sock, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(sock)
	req.SetUint16(unix.IFF_UP)
	if err := unix.IoctlIfreq(sock, unix.SIOCSIFFLAGS, req); err != nil {
		t.Fatal(err)
	}
	before := networkUse(self)
	packet := make([]byte, 100)
	packet[0] = 0x45 // IPv4, and else nothing that anybody would take
	for range 3 {
		if _, err := unix.Write(tun, packet); err != nil {
			t.Fatal(err)
		}
	}
	got := networkUse(self)
	if got.rxBytes-before.rxBytes != 300 || got.rxPackets-before.rxPackets != 3 {
		t.Errorf("before 3 packets of 100 bytes %v, afterwards %v", before, got)
	}
}

// What is not there, or is too much, has no figures.
func TestTrafficUnknown(t *testing.T) {
	name := t.TempDir() + "/dev"
	if got := networkUse(name); got != noTraffic() {
		t.Errorf("without a file it is %v", got)
	}
	if err := os.WriteFile(name, []byte(netDevHead+strings.Repeat("  eth0: 1 2 0 0 0 0 0 0 3 4 0 0 0 0 0 0\n", 5000)), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := networkUse(name); got != noTraffic() {
		t.Errorf("of a long file it is %v", got)
	}
	if disk, files := scratchUse(t.TempDir() + "/none"); disk != -1 || files != -1 {
		t.Errorf("without a root it is %d, %d", disk, files)
	}
}
