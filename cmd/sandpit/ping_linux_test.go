package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/client"
	"github.com/sandpit-dev/sandpit/internal/testkit"
)

// pinger sends one echo request to a name, by IPv4 or IPv6, and prints the data of the answer or the error.
const pinger = `
import socket, struct, sys, time
v6 = sys.argv[2] == "6"
family = socket.AF_INET6 if v6 else socket.AF_INET
try:
    s = socket.socket(family, socket.SOCK_DGRAM, 58 if v6 else socket.IPPROTO_ICMP)
    s.settimeout(60)
    to = socket.getaddrinfo(sys.argv[1], 0, family)[0][4]
    for patience in range(600):
        try:
            s.connect(to)
            break
        except OSError as e:
            if e.errno not in (99, 101): # the kernel takes a new IPv6 address into use a moment later
                raise
            time.sleep(0.1)
    m = struct.pack("!BBHHH", 128 if v6 else 8, 0, 0, 0, 7) + b"are you there"
    total = sum(struct.unpack("!%dH" % (len(m + b"0") // 2), m + b"\0")) # that of IPv6 is the kernel's
    total = (total >> 16) + (total & 0xffff)
    s.send(m[:2] + struct.pack("!H", ~(total + (total >> 16)) & 0xffff) + m[4:])
    r = s.recv(4096)
    print("type", r[0], "number", r[7], r[8:].decode())
except OSError as e:
    print("failed:", e.errno, e)
`

// A program inside reaches with echo requests what a rule says, and can't open such a socket without
// one; so it is while rules change, and in a sandbox that a server has adopted.
func TestPing(t *testing.T) {
	needSandboxes(t)
	testkit.NeedRoot(t, "to make a network namespace")
	testkit.NeedProgram(t, "ip")
	testkit.NeedTUN(t)
	net := newNetworkNamespace(t)
	groups := func(text string) {
		t.Helper()
		done := make(chan error)
		net.do <- func() { done <- os.WriteFile("/proc/sys/net/ipv4/ping_group_range", []byte(text), 0) }
		testkit.Need(t, "a writable /proc/sys", <-done)
	}
	home := shortHome(t)
	t.Cleanup(func() { endServer(t, home) })
	run := func(args ...string) string {
		t.Helper()
		out, _ := net.run(home, binDir(t), args...)
		return out
	}
	ping := func(host, version string) []string { return []string{"--", "python3", "-c", pinger, host, version} }
	resolve := []string{"--resolve", "good.test:127.0.0.1", "--resolve", "good.test:::1", "--resolve", "other.test:127.0.0.1"}
	const refused, answer4, answer6 = "failed: 13", "type 0 number 7 are you there", "type 129 number 7 are you there"
	expect := func(what, out, want string) {
		t.Helper()
		if !strings.Contains(out, want) {
			t.Errorf("%s: %q, want %q", what, out, want)
		}
	}

	groups("1 0")
	const lacking = "allowing ping: group 0 may not send ICMP echo requests on this machine"
	expect("on a machine that does not ping", run("run", "--allow", "ping:good.test", "--", "true"), lacking)
	expect("the doctor there", run("doctor"), "ping: group 0 may not send ICMP echo requests on this machine: permission denied\n  fix: run 'sysctl -w net.ipv4.ping_group_range=")
	groups("0 2147483647")
	with := append([]string{"run", "--allow", "ping:good.test", "--allow", "other.test"}, resolve...)
	for _, user := range []string{"root", "user"} {
		box := append(with[:len(with):len(with)], "--user", user)
		expect(user+", IPv4", run(append(box, ping("good.test", "4")...)...), answer4)
		expect(user+", IPv6", run(append(box, ping("good.test", "6")...)...), answer6)
	}
	expect("another name", run(append(with, ping("other.test", "4")...)...), "failed: 113")
	expect("an address", run(append(with, ping("127.0.0.1", "4")...)...), "type 0") // the sandbox's own
	expect("an address outside", run(append(with, ping("192.0.2.1", "4")...)...), "failed: 113")
	expect("without a rule", run(append(append([]string{"run", "--allow", "good.test"}, resolve...), ping("good.test", "4")...)...), refused)
	expect("without egress", run(append([]string{"run"}, ping("127.0.0.1", "4")...)...), refused)

	// The server's process of the networks is another user: the server opens its sockets.
	groups("1 0")
	if out, err := net.run(home, binDir(t), append([]string{"create", "--allow", "good.test", "web"}, resolve...)...); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	expect("a rule for a server that does not ping", run("network", "allow", "web", "ping:good.test"), lacking)
	groups("0 0")
	expect("the doctor where it does", run("doctor"), "egress, ping,")
	c, err := client.New(client.Options{Address: "unix://" + filepath.Join(home, "server.sock")})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	sb, err := c.Get(t.Context(), "web")
	if err != nil {
		t.Fatal(err)
	}
	answer := func() string {
		res, err := sandpit.Run(t.Context(), sb, sandpit.Command{Argv: ping("good.test", "4")[1:]})
		if err != nil {
			t.Fatal(err)
		}
		return string(res.Stdout)
	}
	e, err := sb.(sandpit.Egresser).Egress(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	allow := func(rules ...string) {
		t.Helper()
		e.Allow = rules
		if err := sb.(sandpit.Egresser).SetEgress(t.Context(), e); err != nil {
			t.Fatal(err)
		}
	}
	changes := 4
	if os.Getenv("SANDPIT_TEST_LONG") != "" {
		changes = 200
	}
	for i := range changes {
		allow("good.test", "ping:good.test")
		expect(fmt.Sprintf("change %d, allowed", i), answer(), answer4)
		allow("good.test")
		expect(fmt.Sprintf("change %d, denied", i), answer(), refused)
	}
	allow("good.test", "ping:good.test")
	expect("before the server is killed", answer(), answer4)
	if err := unix.Kill(serverPID(t, home), unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	testkit.Until(t, "the next server's network works", func() bool {
		return strings.Contains(run(append([]string{"exec", "web"}, ping("good.test", "4")...)...), answer4)
	})

	// The next one may not ping.
	groups("1 0")
	if err := unix.Kill(serverPID(t, home), unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	testkit.Until(t, "sockets are refused", func() bool {
		return strings.Contains(run(append([]string{"exec", "web"}, ping("good.test", "4")...)...), refused)
	})
	expect("the sandbox", run("inspect", "web"), lacking)
	expect("a rule that is not kept", run("network", "check", "web", "ping:good.test"), lacking)
	expect("a further rule", run("network", "allow", "web", "ping:other.test"), lacking)
}
