package linux_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/driver"
	"github.com/sandpit-dev/sandpit/internal/driver/drivertest"
	"github.com/sandpit-dev/sandpit/internal/engine"
	"github.com/sandpit-dev/sandpit/internal/feature"
	"github.com/sandpit-dev/sandpit/internal/netaddr"
	"github.com/sandpit-dev/sandpit/internal/network"
	"github.com/sandpit-dev/sandpit/internal/policy"
	"github.com/sandpit-dev/sandpit/internal/testkit"
)

// withNetwork returns an engine whose sandboxes can have egress, with so many blanks.
func withNetwork(t *testing.T, pool int) *engine.Engine {
	t.Helper()
	testkit.NeedWorkingHost(t)
	d := newDriver()
	if caps := d.Probe(t.Context()); !caps.Features[feature.Egress] {
		i := slices.IndexFunc(caps.Gaps, func(g sandpit.Gap) bool { return g.What == string(feature.Egress) })
		testkit.Lacks(t, "egress: "+caps.Gaps[i].Why)
	}
	e := engine.New(engine.Options{Driver: d, Images: images(), Policy: policy.Default(), Network: network.InProcess{}, Pool: engine.Pool{Size: pool}})
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Errorf("closing: %v", err)
		}
	})
	e.Warm()
	return e
}

// some is an egress, of which nothing is reached.
var some = sandpit.Egress{Allow: []string{"good.test"}}

// Egress adds an interface and its routes to what a process sees and may do, and nothing else:
// no device, no descriptor, no capability.
func TestPostureWithEgress(t *testing.T) {
	for _, pool := range []int{0, 1} {
		e := withNetwork(t, pool)
		mount := t.TempDir()
		for name, spec := range map[string]sandpit.Spec{
			"user": {}, "root": {User: "root"}, "write-paths": {Write: []string{"/work"}}, "read-only": {ReadOnly: true},
			"mounts": {
				Mounts: []sandpit.Mount{{Source: mount, Target: "/rw"}, {Source: mount, Target: "/ro", ReadOnly: true}},
				Tmpfs:  []sandpit.Tmpfs{{Target: "/scratch", Size: 1 << 20}},
			},
		} { // as in TestPosture
			t.Run(fmt.Sprintf("%s, blanks: %d", name, pool), func(t *testing.T) {
				postures := map[bool][]string{}
				for _, with := range []bool{false, true} {
					eventually(t, "there is a blank", func() bool { return e.PoolStats().Ready == pool })
					spec.Hostname = "posture"
					if with {
						spec.Egress = some
					}
					sb, err := e.Create(t.Context(), spec)
					if err != nil {
						t.Fatalf("creating: %v (hint: %s)", err, sandpit.Hint(err))
					}
					p, err := sb.Start(t.Context(), sandpit.Command{Argv: []string{"sleep", "1000"}})
					if err != nil {
						t.Fatal(err)
					}
					guest := guestOf(t, sb.ID())
					noBuilder(t, guest)
					pid := inside(t, guest, p.PID())
					settled(t, pid)
					s := &subject{t: t, pid: pid, id: sb.ID()}
					for line := range strings.Lines(s.posture()) {
						postures[with] = append(postures[with], strings.TrimSpace(line))
					}
					if err := sb.Remove(t.Context()); err != nil {
						t.Error(err)
					}
				}
				var more []string
				for _, line := range postures[true] {
					if i := slices.Index(postures[false], line); i >= 0 {
						postures[false] = slices.Delete(postures[false], i, i+1)
					} else {
						more = append(more, line)
					}
				}
				want := []string{"interface eth0", "route by eth0", "route by eth0"}
				if !slices.Equal(more, want) || len(postures[false]) > 0 {
					t.Errorf("with egress there is also %q, and no longer %q; want %q", more, postures[false], want)
				}
			})
		}
	}
}

// probeInterface tries to change the interface, to go around it, and to make another.
func probeInterface([]string) map[string]string {
	got := map[string]string{}
	for _, path := range []string{"/dev/net/tun", "/dev/net", "/dev/tap0"} {
		fd, err := unix.Open(path, unix.O_RDWR, 0)
		if got["opening "+path] = errName(err); err == nil {
			unix.Close(fd)
		}
	}
	got["making the device"] = errName(unix.Mknod("/tmp/tun", unix.S_IFCHR|0o666, int(unix.Mkdev(10, 200))))
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0)
	if err != nil {
		got["socket"] = errName(err)
		return got
	}
	ioctl := func(what string, request uint, size int, value []byte) {
		b := make([]byte, size)
		copy(b, "eth0")
		copy(b[16:], value)
		got[what] = call(unix.SYS_IOCTL, uintptr(fd), uintptr(request), uintptr(unsafe.Pointer(&b[0])))
	}
	address := func(a ...byte) []byte { return append([]byte{unix.AF_INET, 0, 0, 0}, a...) }
	ioctl("taking it down", unix.SIOCSIFFLAGS, 40, []byte{0, 0})
	ioctl("making it promiscuous", unix.SIOCSIFFLAGS, 40, []byte{0x41, 1})
	ioctl("another address", unix.SIOCSIFADDR, 40, address(10, 0, 0, 1))
	ioctl("another MTU", unix.SIOCSIFMTU, 40, []byte{0xdc, 5})
	ioctl("another name", unix.SIOCSIFNAME, 40, []byte("eth1"))
	ioctl("a longer queue", unix.SIOCSIFTXQLEN, 40, []byte{0, 0, 1, 0})
	ioctl("a tunnel", unix.SIOCDEVPRIVATE+1, 40, nil)
	route := make([]byte, 120)
	copy(route[8:], address(10, 0, 0, 0))
	copy(route[24:], address(127, 0, 0, 1))
	copy(route[40:], address(255, 0, 0, 0))
	route[56] = unix.RTF_UP | unix.RTF_GATEWAY
	got["another route"] = call(unix.SYS_IOCTL, uintptr(fd), unix.SIOCADDRT, uintptr(unsafe.Pointer(&route[0])))
	got["transparent sockets"] = errName(unix.SetsockoptInt(fd, unix.SOL_IP, unix.IP_TRANSPARENT, 1))
	got["marks"] = errName(unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_MARK, 1))
	for kind, name := range map[uint16]string{unix.RTM_NEWLINK: "a new interface", unix.RTM_DELLINK: "removing it", unix.RTM_NEWADDR: "an address by netlink", unix.RTM_NEWROUTE: "a route by netlink", unix.RTM_NEWRULE: "a rule for routes", unix.RTM_NEWQDISC: "a queue"} {
		got[name] = netlink(kind)
	}
	for _, p := range []struct {
		name             string
		family, kind, id int
	}{{"raw IP", unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_RAW}, {"raw ICMP", unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_ICMP}, {"raw IPv6", unix.AF_INET6, unix.SOCK_RAW, unix.IPPROTO_RAW}, {"packets", unix.AF_PACKET, unix.SOCK_RAW, 0x0300}, {"netfilter", unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_NETFILTER}} {
		s, err := unix.Socket(p.family, p.kind, p.id)
		if got[p.name] = errName(err); err == nil {
			unix.Close(s)
		}
	}
	for _, name := range []string{"ipv4/ip_forward", "ipv4/conf/eth0/rp_filter", "ipv4/conf/all/route_localnet", "ipv6/conf/eth0/disable_ipv6", "ipv4/ping_group_range"} {
		f, err := os.OpenFile("/proc/sys/net/"+name, os.O_WRONLY, 0)
		if err == nil {
			_, err = f.WriteString("1")
			f.Close()
		}
		got["sysctl "+name] = errName(err)
	}
	return got
}

// netlink sends a request about the interface, and returns the kernel's answer.
func netlink(kind uint16) string {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_ROUTE)
	if err != nil {
		return errName(err)
	}
	defer unix.Close(fd)
	_ = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 60})
	b := make([]byte, 64)
	binary.NativeEndian.PutUint32(b, uint32(len(b)))
	binary.NativeEndian.PutUint16(b[4:], kind)
	binary.NativeEndian.PutUint16(b[6:], unix.NLM_F_REQUEST|unix.NLM_F_ACK|unix.NLM_F_CREATE)
	if err := unix.Sendto(fd, b, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return errName(err)
	}
	n, _, err := unix.Recvfrom(fd, b, 0)
	if err != nil || n < 20 {
		return errName(err)
	}
	return errName(syscall.Errno(-int32(binary.NativeEndian.Uint32(b[16:]))))
}

// What is inside can't change the interface, its routes or its queue, make another one, or send
// packets without it; root can't either.
func TestAttackEgressInterface(t *testing.T) {
	e := withNetwork(t, 0)
	for _, user := range users {
		t.Run("as "+user, func(t *testing.T) {
			sb := box(t, e, sandpit.Spec{User: user, Egress: some})
			state := func() string {
				// Without the flags of addresses: the kernel is still making sure of one that is new.
				return string(sh(t, sb, "cut -d: -f1 /proc/net/dev; cat /proc/net/route; while read -r a i p s f d; do echo $a $p $s $d; done </proc/net/if_inet6").Stdout)
			}
			before := state()
			if !strings.Contains(before, "eth0") {
				t.Fatalf("there is no interface in %s", before)
			}
			refused(t, tryOut(t, sb, sandpit.Command{}, "interface"), "EPERM", "EACCES", "ENOENT", "EROFS", "EAFNOSUPPORT", "EPROTONOSUPPORT", "ESOCKTNOSUPPORT", "ENOTTY", "ENXIO", "ENOTSUP")
			if after := state(); after != before {
				t.Errorf("the interface or its routes were\n%s, and are\n%s", before, after)
			}
		})
	}
}

// networkOf notes the network namespace of a sandbox, and returns a function that reports
// whether it still exists: the kernel keeps the number that one namespace has in another until
// it is gone (RTM_NEWNSID of rtnetlink(7)).
func networkOf(t *testing.T, guest int) (exists func() bool) {
	t.Helper()
	const newNSID, getNSID, attrNSID, attrFD = 88, 90, 1, 3
	ns, err := os.Open(fmt.Sprintf("/proc/%d/ns/net", guest))
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	s, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(s) })
	if err := unix.SetsockoptTimeval(s, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 60}); err != nil {
		t.Fatal(err)
	}
	ask := func(kind, flags uint16, attributes ...uint32) []byte {
		t.Helper()
		b := make([]byte, 20, 64)
		for i := 0; i < len(attributes); i += 2 {
			b = binary.NativeEndian.AppendUint16(b, 8)
			b = binary.NativeEndian.AppendUint16(b, uint16(attributes[i]))
			b = binary.NativeEndian.AppendUint32(b, attributes[i+1])
		}
		binary.NativeEndian.PutUint32(b, uint32(len(b)))
		binary.NativeEndian.PutUint16(b[4:], kind)
		binary.NativeEndian.PutUint16(b[6:], unix.NLM_F_REQUEST|flags)
		if err := unix.Sendto(s, b, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
			t.Fatal(err)
		}
		var all []byte
		for {
			buf := make([]byte, 1<<16)
			n, _, err := unix.Recvfrom(s, buf, 0)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, buf[:n]...)
			done := flags&unix.NLM_F_DUMP == 0
			for rest := buf[:n]; len(rest) >= 16; rest = rest[min(int(binary.NativeEndian.Uint32(rest)+3)&^3, len(rest)):] {
				done = done || binary.NativeEndian.Uint16(rest[4:]) == unix.NLMSG_DONE
			}
			if done {
				return all
			}
		}
	}
	// numbers are those in an answer.
	numbers := func(answer []byte) (ids []uint32) {
		for len(answer) >= 28 {
			n := binary.NativeEndian.Uint32(answer)
			if binary.NativeEndian.Uint16(answer[4:]) == newNSID && binary.NativeEndian.Uint16(answer[22:]) == attrNSID {
				ids = append(ids, binary.NativeEndian.Uint32(answer[24:]))
			}
			answer = answer[min((n+3)&^3, uint32(len(answer))):]
		}
		return ids
	}
	ask(newNSID, unix.NLM_F_ACK, attrNSID, ^uint32(0), attrFD, uint32(ns.Fd()))
	is := numbers(ask(getNSID, 0, attrFD, uint32(ns.Fd())))
	if len(is) != 1 || is[0] == ^uint32(0) {
		t.Fatalf("the number of its network namespace is %v", is)
	}
	return func() bool { return slices.Contains(numbers(ask(getNSID, unix.NLM_F_DUMP)), is[0]) }
}

// However a sandbox with egress ends, its network namespace goes with it, and with that its
// interface.
func TestLeakOfInterfaces(t *testing.T) {
	testkit.NeedRoot(t, "to number network namespaces")
	e := withNetwork(t, 0)
	lease, err := images().Acquire(t.Context(), "host", imageOptions())
	if err != nil {
		t.Fatal(err)
	}
	defer lease.Release()
	for name, end := range map[string]func(t *testing.T, sb sandpit.Sandbox){
		"removed": func(t *testing.T, sb sandpit.Sandbox) {
			if err := sb.Remove(t.Context()); err != nil {
				t.Error(err)
			}
		},
		"its egress was taken away": func(t *testing.T, sb sandpit.Sandbox) {
			if err := sb.(sandpit.Egresser).SetEgress(t.Context(), sandpit.Egress{}); err != nil {
				t.Error(err)
			}
			if err := sb.Remove(t.Context()); err != nil {
				t.Error(err)
			}
		},
		"its guest was killed": func(t *testing.T, sb sandpit.Sandbox) {
			if err := unix.Kill(guestOf(t, sb.ID()), unix.SIGKILL); err != nil {
				t.Fatal(err)
			}
			eventually(t, "the sandbox is failed", func() bool {
				info, err := sb.Info(t.Context())
				return err == nil && info.State == sandpit.StateFailed
			})
		},
		"changes race with its removal": func(t *testing.T, sb sandpit.Sandbox) {
			done := make(chan struct{})
			go func() {
				defer close(done)
				for sb.(sandpit.Egresser).SetEgress(context.Background(), some) == nil {
				}
			}()
			if err := sb.Remove(t.Context()); err != nil {
				t.Error(err)
			}
			<-done
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Cleanup(unchanged(t))
			for _, spec := range []sandpit.Spec{{Hostname: "posture", Egress: some}, {Hostname: "posture"}} {
				sb, err := e.Create(t.Context(), spec)
				if err != nil {
					t.Fatal(err)
				}
				if err := sb.(sandpit.Egresser).SetEgress(t.Context(), some); err != nil {
					t.Fatal(err)
				}
				exists := networkOf(t, guestOf(t, sb.ID()))
				if !exists() {
					t.Fatal("the namespace is not seen")
				}
				end(t, sb)
				eventually(t, "its network namespace is gone", func() bool { return !exists() })
				_ = sb.Remove(t.Context())
			}
		})
	}
	t.Run("nobody asks for the interface of the plan", func(t *testing.T) {
		t.Cleanup(unchanged(t))
		d := newDriver()
		plan := drivertest.Plan(d, rootOf(lease))
		plan.Link = linkOf(t)
		inst, err := d.Create(t.Context(), plan)
		if err != nil {
			t.Fatal(err)
		}
		exists := networkOf(t, stateOf(t, inst.Handle()).PID)
		if err := inst.Destroy(t.Context()); err != nil {
			t.Fatal(err)
		}
		eventually(t, "its network namespace is gone", func() bool { return !exists() })
	})
	t.Run("the file is closed after Destroy", func(t *testing.T) {
		inst, err := newDriver().Create(t.Context(), drivertest.Plan(newDriver(), rootOf(lease)))
		if err != nil {
			t.Fatal(err)
		}
		f, err := inst.(driver.Linker).Link(t.Context(), testLink())
		if err != nil {
			t.Fatal(err)
		}
		exists := networkOf(t, stateOf(t, inst.Handle()).PID)
		if err := inst.Destroy(t.Context()); err != nil {
			t.Fatal(err)
		}
		if !exists() {
			t.Error("the file does not hold the namespace: then this test shows nothing")
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
		eventually(t, "its network namespace is gone", func() bool { return !exists() })
	})
}

// TestLeakOfFailedLinks: an interface that can't be made whole leaves nothing of a sandbox that is being created, and
// leaves a running one as it was: the next one is made whole.
func TestLeakOfFailedLinks(t *testing.T) {
	testkit.NeedRoot(t, "to number network namespaces")
	_ = withNetwork(t, 0) // or skip
	lease, err := images().Acquire(t.Context(), "host", imageOptions())
	if err != nil {
		t.Fatal(err)
	}
	defer lease.Release()
	steps := map[string]driver.Link{
		"setting the MTU":          {MTU: 1 << 20, IPv4: netaddr.Inside4(), IPv6: netaddr.Inside6()},
		"setting the IPv4 address": {MTU: netaddr.MTU, IPv4: netip.MustParsePrefix("224.0.0.2/16"), IPv6: netaddr.Inside6()},
		"setting the IPv6 address": {MTU: netaddr.MTU, IPv4: netaddr.Inside4(), IPv6: netip.MustParsePrefix("ff02::2/64")},
	}
	if disabled, _ := os.ReadFile("/proc/sys/net/ipv6/conf/default/disable_ipv6"); string(disabled) != "0\n" { // then it can't fail
		delete(steps, "setting the IPv6 address")
	}
	for step, l := range steps {
		t.Run(step, func(t *testing.T) {
			t.Cleanup(unchanged(t))
			d := newDriver()
			plan := drivertest.Plan(d, rootOf(lease))
			plan.Link = &l
			if _, err := d.Create(t.Context(), plan); err == nil || !strings.Contains(err.Error(), step) {
				t.Errorf("creating: %v", err)
			}
			inst, err := d.Create(t.Context(), drivertest.Plan(d, rootOf(lease)))
			if err != nil {
				t.Fatal(err)
			}
			for range 3 {
				if _, err := inst.(driver.Linker).Link(t.Context(), l); err == nil || !strings.Contains(err.Error(), step) {
					t.Errorf("linking: %v", err)
				}
			}
			f, err := inst.(driver.Linker).Link(t.Context(), testLink())
			if err != nil {
				t.Fatal(err)
			}
			pid := stateOf(t, inst.Handle()).PID
			exists := networkOf(t, pid)
			if routes, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/route", pid)); err != nil || strings.Count(string(routes), "eth0") != 2 {
				t.Errorf("the routes are %q, %v", routes, err)
			}
			if err := errors.Join(f.Close(), inst.Destroy(t.Context())); err != nil {
				t.Error(err)
			}
			eventually(t, "its network namespace is gone", func() bool { return !exists() })
		})
	}
}

// linkOf is the interface of a plan, or nil where there are none.
func linkOf(t *testing.T) *driver.Link {
	t.Helper()
	if !newDriver().Probe(t.Context()).Features[feature.Egress] {
		return nil
	}
	l := testLink()
	return &l
}

func testLink() driver.Link {
	return driver.Link{MTU: netaddr.MTU, IPv4: netaddr.Inside4(), IPv6: netaddr.Inside6()}
}

// BenchmarkLink makes the interface of a new sandbox.
func BenchmarkLink(b *testing.B) {
	d := newDriver()
	lease, err := images().Acquire(b.Context(), "host", imageOptions())
	if err != nil {
		b.Fatal(err)
	}
	defer lease.Release()
	for b.Loop() {
		b.StopTimer()
		inst, err := d.Create(b.Context(), drivertest.Plan(d, rootOf(lease)))
		if err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
		f, err := inst.(driver.Linker).Link(b.Context(), testLink()) // of a sandbox that was made without
		b.StopTimer()
		if err != nil {
			b.Fatal(err)
		}
		_ = f.Close()
		if err := inst.Destroy(b.Context()); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
	}
}
