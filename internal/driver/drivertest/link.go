package drivertest

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/driver"
	"github.com/sandpit-dev/sandpit/internal/feature"
)

// linkProperties are those of Linker.
var linkProperties = []property{
	{"Link is ErrUnsupported, and says what to do, without the feature", testLinkUnsupported},
	{"Link makes an interface to which every destination leads", testLink},
	{"Link returns the interface of the plan once, and attaches to it afterwards", testLinkOfPlan},
	{"AllowPing opens ICMP sockets to the programs of every user, and closes them again", testAllowPing},
	{"Link is ErrExists while the interface is open, and attaches to it again afterwards", testLinkAgain},
	{"many Links at once: one has the interface", testLinkMany},
	{"Link while programs run, and while the instance is frozen", testLinkRunning},
	{"Link after Recover, with and without an interface", testLinkRecovered},
	{"after Leave, Destroy or the guest's death Link is ErrClosed", testLinkClosed},
	{"Destroy may race with Link, and with an open interface", testLinkDestroy},
	{"Link whose context has ended makes nothing", testLinkCancelled},
}

// netLink is an interface with the largest MTU.
func netLink() driver.Link {
	return driver.Link{MTU: 65535, IPv4: netip.MustParsePrefix("198.18.0.2/16"), IPv6: netip.MustParsePrefix("fd73::2/64")}
}

// linker returns an instance as a Linker, or skips the test.
func (e *env) linker(t *testing.T, inst driver.Instance) driver.Linker {
	t.Helper()
	l, ok := inst.(driver.Linker)
	switch {
	case !e.has(t, feature.Egress):
		t.Skip("needs the feature egress: the driver lacks it here")
	case !ok:
		t.Fatal("the driver has feature.Egress, and its instance is not a Linker")
	}
	return l
}

// link makes the interface of an instance or attaches to it.
func (e *env) link(t *testing.T, inst driver.Instance) *os.File {
	t.Helper()
	f, err := e.linker(t, inst).Link(t.Context(), netLink())
	if err != nil {
		t.Fatalf("linking: %v (hint: %s)", err, sandpit.Hint(err))
	}
	t.Cleanup(func() { _ = f.Close() })
	return f
}

// gateway is an address that is only known to be somewhere behind the interface.
var gateway = []netip.Addr{netip.MustParseAddr("203.0.113.7"), netip.MustParseAddr("2001:db8::7")}

// carries checks that packets of the largest size go both ways: the kernel inside answers echo
// requests from addresses that lead nowhere else.
func carries(t *testing.T, f *os.File) {
	t.Helper()
	l := netLink()
	raw, err := f.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	front, err := driver.PacketHeader(raw)
	if err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, front+l.MTU+1)
	for i, to := range []netip.Addr{l.IPv4.Addr(), l.IPv6.Addr()} {
		if _, err := os.Stat("/proc/net/if_inet6"); err != nil && to.Is6() {
			continue // the machine has no IPv6
		}
		for _, size := range []int{128, l.MTU} {
			ask := append(make([]byte, front), echo(gateway[i], to, size)...)
			answered := false
			for end := time.Now().Add(guard); !answered && time.Now().Before(end); {
				// The kernel puts an IPv6 address into use a moment after it was set.
				if n, err := f.Write(ask); err != nil || n != len(ask) {
					t.Fatalf("sending %d bytes: %d, %v", size, n, err)
				}
				if err := f.SetReadDeadline(time.Now().Add(50 * time.Millisecond)); err != nil {
					t.Fatalf("the file is not non-blocking: %v", err)
				}
				for !answered {
					n, err := f.Read(buf)
					if errors.Is(err, os.ErrDeadlineExceeded) {
						break
					}
					if err != nil {
						t.Fatalf("receiving: %v", err)
					}
					// And not what the kernel sends by itself.
					answered = n == len(ask) && bytes.Equal(buf[n-64:n], ask[n-64:]) && bytes.Contains(buf[front:front+40], gateway[i].AsSlice())
				}
			}
			if !answered {
				t.Fatalf("%v does not answer to %d bytes", to, size)
			}
		}
	}
}

// echo is an ICMP echo request of size bytes (RFC 792, RFC 4443).
func echo(from, to netip.Addr, size int) []byte {
	var ip, pseudo []byte
	kind, body := byte(8), size-20
	if to.Is4() {
		ip = append([]byte{0x45, 0, byte(size >> 8), byte(size), 0, 0, 0x40, 0, 64, 1, 0, 0}, from.AsSlice()...)
		ip = append(ip, to.AsSlice()...)
		binary.BigEndian.PutUint16(ip[10:], checksum(ip))
	} else {
		kind, body = 128, size-40
		ip = append([]byte{0x60, 0, 0, 0, byte(body >> 8), byte(body), 58, 64}, from.AsSlice()...)
		ip = append(ip, to.AsSlice()...)
		pseudo = append(slices.Clone(ip[8:40]), 0, 0, byte(body>>8), byte(body), 0, 0, 0, 58)
	}
	icmp := make([]byte, body)
	icmp[0] = kind
	for i := 8; i < body; i++ {
		icmp[i] = byte(i * 7)
	}
	binary.BigEndian.PutUint16(icmp[2:], checksum(append(pseudo, icmp...)))
	return append(ip, icmp...)
}

// checksum is that of RFC 1071.
func checksum(b []byte) uint16 {
	if len(b)%2 == 1 {
		b = append(slices.Clone(b), 0)
	}
	sum := uint32(0)
	for i := 0; i < len(b); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}

func testLinkUnsupported(t *testing.T, e *env) {
	inst := e.create(t, e.plan(t))
	if e.has(t, feature.Egress) {
		t.Skip("the driver has the feature egress here")
	}
	caps := e.driver.Probe(t.Context())
	if i := slices.IndexFunc(caps.Gaps, func(g sandpit.Gap) bool { return g.What == string(feature.Egress) }); i < 0 || caps.Gaps[i].Why == "" || caps.Gaps[i].Fix == "" {
		t.Errorf("Probe does not say why, and what to do: %+v", caps.Gaps)
	}
	if l, ok := inst.(driver.Linker); ok {
		if f, err := l.Link(t.Context(), netLink()); !errors.Is(err, sandpit.ErrUnsupported) || sandpit.Hint(err) == "" {
			t.Errorf("linking: %v, %v (hint: %s)", f, err, sandpit.Hint(err))
		}
	}
}

func testLink(t *testing.T, e *env) {
	inst := e.create(t, e.plan(t))
	if got := shell(t, configured(t, inst), "cat /proc/net/dev | wc -l"); got != "3\n" {
		t.Errorf("before, there are %s lines about interfaces", got)
	}
	carries(t, e.link(t, inst))
	if got := shell(t, configured(t, inst), "cat /proc/net/dev | wc -l"); got != "4\n" {
		t.Errorf("afterwards, there are %s lines about interfaces", got)
	}
}

func testLinkOfPlan(t *testing.T, e *env) {
	plan, l := e.plan(t), netLink()
	if plan.Link = &l; !e.has(t, feature.Egress) {
		t.Skip("needs the feature egress: the driver lacks it here")
	}
	for _, asked := range []driver.Link{l, {MTU: 1280, IPv4: l.IPv4, IPv6: l.IPv6}} {
		plan.ID = Plan(e.driver, plan.Root).ID
		inst := e.create(t, plan)
		c := configured(t, inst)
		first, err := e.linker(t, inst).Link(t.Context(), asked)
		if err != nil {
			t.Fatalf("linking: %v (hint: %s)", err, sandpit.Hint(err))
		}
		if asked == l {
			carries(t, first)
		}
		if got, want := shell(t, c, "cat /sys/class/net/eth0/mtu 2>/dev/null || ip link show eth0 2>/dev/null || echo unknown"), strconv.Itoa(asked.MTU); !strings.Contains(got, want) && got != "unknown\n" {
			t.Errorf("the MTU is %s, want %s", got, want)
		}
		if f, err := e.linker(t, inst).Link(t.Context(), l); !errors.Is(err, sandpit.ErrExists) {
			t.Errorf("linking twice: %v, %v", f, err)
		}
		if err := first.Close(); err != nil {
			t.Error(err)
		}
		carries(t, e.link(t, inst))
		if got := shell(t, c, "cat /proc/net/dev | wc -l"); got != "4\n" {
			t.Errorf("there are %s lines about interfaces", got)
		}
	}
}

func testAllowPing(t *testing.T, e *env) {
	plan := e.plan(t)
	plan.MultiUser = e.has(t, feature.Users)
	inst := e.create(t, plan)
	l, c := e.linker(t, inst), configured(t, inst)
	const groups = "cat /proc/sys/net/ipv4/ping_group_range"
	none := shell(t, c, groups)
	for range 2 {
		for range 2 { // which is a no-op
			if err := l.AllowPing(t.Context(), true); !e.has(t, feature.Ping) && errors.Is(err, sandpit.ErrUnsupported) && sandpit.Hint(err) != "" {
				t.Skip("this machine does not let the driver change net.ipv4.ping_group_range")
			} else if err != nil {
				t.Fatalf("allowing: %v", err)
			}
		}
		var low, high, group int
		if _, err := fmt.Sscan(shell(t, c, groups+"; id -g"), &low, &high, &group); err != nil || low > group || high < group {
			t.Errorf("allowed, the groups are %d to %d, without %d: %v", low, high, group, err)
		}
		err := l.AllowPing(t.Context(), false)
		if errors.Is(err, sandpit.ErrUnsupported) && sandpit.Hint(err) != "" && low == high { // there is only this group
			break
		} else if err != nil {
			t.Fatalf("forbidding: %v", err)
		}
		if got := shell(t, c, groups); got != none {
			t.Errorf("forbidden, the groups are %q", got)
		}
	}
	e.destroy(t, inst)
	if err := l.AllowPing(t.Context(), true); !errors.Is(err, sandpit.ErrClosed) {
		t.Errorf("after Destroy: %v", err)
	}
}

func testLinkAgain(t *testing.T, e *env) {
	inst := e.create(t, e.plan(t))
	first := e.link(t, inst)
	for range 2 {
		if f, err := e.linker(t, inst).Link(t.Context(), netLink()); !errors.Is(err, sandpit.ErrExists) {
			t.Fatalf("linking twice: %v, %v", f, err)
		}
	}
	carries(t, first)
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	if got := shell(t, configured(t, inst), "cat /proc/net/dev | wc -l"); got != "4\n" {
		t.Errorf("without the file, there are %s lines about interfaces", got)
	}
	for range 3 {
		again := e.link(t, inst)
		carries(t, again)
		_ = again.Close()
	}
}

func testLinkMany(t *testing.T, e *env) {
	inst := e.create(t, e.plan(t))
	l := e.linker(t, inst)
	files := make([]*os.File, 8)
	var wg sync.WaitGroup
	for i := range files {
		wg.Go(func() {
			f, err := l.Link(t.Context(), netLink())
			if err != nil && !errors.Is(err, sandpit.ErrExists) {
				t.Errorf("linking: %v", err)
			}
			files[i] = f
		})
	}
	wg.Wait()
	if files = slices.DeleteFunc(files, func(f *os.File) bool { return f == nil }); len(files) != 1 {
		t.Fatalf("%d have the interface", len(files))
	}
	defer files[0].Close()
	carries(t, files[0])
}

func testLinkRunning(t *testing.T, e *env) {
	inst := e.create(t, e.plan(t))
	c := configured(t, inst)
	p, err := c.Start(t.Context(), sandpit.Command{Script: "until grep -q eth0 /proc/net/dev; do sleep 0.01; done; exit 7"})
	if err != nil {
		t.Fatal(err)
	}
	f := e.link(t, inst)
	carries(t, f)
	if res, err := p.Wait(guarded(t)); err != nil || res.ExitCode != 7 {
		t.Errorf("a program that runs does not see the interface: %+v, %v", res, err)
	}
	if !e.has(t, feature.Pause) {
		return
	}
	frozen := e.create(t, e.plan(t))
	if err := frozen.(driver.Freezer).Freeze(t.Context()); err != nil {
		t.Fatal(err)
	}
	carries(t, e.link(t, frozen))
	if err := frozen.(driver.Freezer).Thaw(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := shell(t, configured(t, frozen), "cat /proc/net/dev | wc -l"); got != "4\n" {
		t.Errorf("there are %s lines about interfaces", got)
	}
}

func testLinkRecovered(t *testing.T, e *env) {
	r := e.recoverer(t)
	for name, before := range map[string]bool{"with": true, "without": false} {
		inst := e.createPersistent(t)
		l := e.linker(t, inst)
		if before {
			f, err := l.Link(t.Context(), netLink())
			if err != nil {
				t.Fatal(err)
			}
			_ = f.Close()
		}
		inst.(driver.Leaver).Leave()
		again := e.recover(t, r, inst.Handle())
		t.Log(name, "an interface")
		carries(t, e.link(t, again))
	}
}

func testLinkClosed(t *testing.T, e *env) {
	check := func(when string, l driver.Linker) {
		t.Helper()
		if f, err := l.Link(t.Context(), netLink()); !errors.Is(err, sandpit.ErrClosed) {
			t.Errorf("%s: %v, %v", when, f, err)
		}
	}
	inst := e.create(t, e.plan(t))
	l := e.linker(t, inst)
	e.destroy(t, inst)
	check("after Destroy", l)
	if e.Without["Recoverer"] == "" {
		left := e.createPersistent(t)
		left.(driver.Leaver).Leave()
		check("after Leave", left.(driver.Linker))
	}
	if e.KillGuest != nil {
		dead := e.create(t, e.plan(t))
		e.KillGuest(t, dead)
		<-dead.Done()
		check("after the death of the guest", dead.(driver.Linker))
	}
}

func testLinkDestroy(t *testing.T, e *env) {
	open := e.create(t, e.plan(t))
	f := e.link(t, open)
	e.destroy(t, open)
	if err := f.Close(); err != nil {
		t.Error(err)
	}
	for range 5 {
		inst := e.create(t, e.plan(t))
		l := e.linker(t, inst)
		var wg sync.WaitGroup
		for range 2 {
			wg.Go(func() {
				for {
					f, err := l.Link(t.Context(), netLink())
					switch {
					case err == nil:
						_ = f.Close()
					case errors.Is(err, sandpit.ErrClosed):
						return
					case !errors.Is(err, sandpit.ErrExists):
						t.Errorf("linking: %v", err)
						return
					}
				}
			})
		}
		e.destroy(t, inst)
		wg.Wait()
	}
}

func testLinkCancelled(t *testing.T, e *env) {
	inst := e.create(t, e.plan(t))
	l := e.linker(t, inst)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if f, err := l.Link(ended, netLink()); !errors.Is(err, context.Canceled) {
		t.Errorf("linking: %v, %v", f, err)
	}
	// At any moment: it is made and returned, or the error is that of the context, and it can
	// be had by the next.
	for i := range 20 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i)*100*time.Microsecond)
		f, err := l.Link(ctx, netLink())
		cancel()
		if err == nil {
			_ = f.Close()
		} else if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("linking: %v", err)
		}
		carriesAfter := e.link(t, inst)
		_ = carriesAfter.Close()
	}
	p := new(driver.Progress)
	f, err := l.Link(driver.WithProgress(t.Context(), p), netLink())
	if err != nil {
		t.Fatal(err)
	}
	_ = f.Close()
	if p.Now().Step == "" {
		t.Error("Link tells of no step")
	}
}
