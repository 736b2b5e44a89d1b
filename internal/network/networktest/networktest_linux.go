// Package networktest tests every promise of engine.Network and engine.Joined that needs no other machine, for
// any implementation.
package networktest

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"
	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/engine"
	"github.com/sandpit-dev/sandpit/internal/netaddr"
	"github.com/sandpit-dev/sandpit/internal/testkit"
)

// Test tests a network.
func Test(t *testing.T, n engine.Network) {
	t.Run("terms that can't be met are refused", func(t *testing.T) { testRefusedTerms(t, n) })
	t.Run("Set changes all or nothing", func(t *testing.T) { testSet(t, n) })
	t.Run("an authority is made where TLS is intercepted", func(t *testing.T) { testAuthority(t, n) })
	t.Run("denials are told once", func(t *testing.T) { testDenials(t, n) })
	t.Run("Close leaves nobody with the interface", func(t *testing.T) { testClose(t, n) })
}

// Pair returns what stands for a sandbox's interface, and the sandbox's end of it.
func Pair(t testing.TB) (file *os.File, inside int) {
	t.Helper()
	ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(ends[1]) })
	return os.NewFile(uintptr(ends[0]), "interface"), ends[1]
}

// Join makes the network of a sandbox, with the sandbox's end of its interface.
func Join(t *testing.T, n engine.Network, allow ...string) (engine.Joined, int) {
	t.Helper()
	file, inside := Pair(t)
	j, err := n.Join(t.Context(), file, Terms(allow...))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = j.Close() })
	return j, inside
}

// Terms returns terms with rules, in which good.test has the address 127.0.0.1.
func Terms(allow ...string) engine.Terms {
	e := sandpit.Egress{Allow: allow, Resolve: []string{"good.test:127.0.0.1"}}
	return engine.Terms{Egress: e, Own: []netip.Addr{netip.MustParseAddr("127.0.0.1")}}
}

// Closed reports whether nobody has the other end of the interface any more.
func Closed(inside int) bool {
	_, err := unix.Write(inside, []byte{0})
	return errors.Is(err, unix.EPIPE) || errors.Is(err, unix.ECONNREFUSED) || errors.Is(err, unix.ECONNRESET)
}

// Resolves asks for the IPv4 address of a name, as the sandbox, until there is an answer. It reports whether that
// has one.
func Resolves(t *testing.T, inside int, name string) (found bool) {
	t.Helper()
	question := query(t, name)
	testkit.Until(t, "the name server answers", func() bool {
		_, _ = unix.Write(inside, question)
		_, _ = unix.Poll([]unix.PollFd{{Fd: int32(inside), Events: unix.POLLIN}}, int(time.Second/time.Millisecond)) //nolint:gosec // a descriptor
		packet := make([]byte, netaddr.MTU)
		n, _ := unix.Read(inside, packet)
		var answer dnsmessage.Message
		if n < ipHeader+udpHeader || answer.Unpack(packet[ipHeader+udpHeader:n]) != nil || answer.Questions[0].Name.String() != name+"." {
			return false
		}
		found = len(answer.Answers) > 0
		return true
	})
	return found
}

// Bytes of headers.
const (
	ipHeader  = 20
	udpHeader = 8
)

// query is an IPv4 datagram with a question.
func query(t *testing.T, name string) []byte {
	t.Helper()
	asked, err := dnsmessage.NewName(name + ".")
	if err != nil {
		t.Fatal(err)
	}
	m := dnsmessage.Message{Questions: []dnsmessage.Question{{Name: asked, Type: dnsmessage.TypeA, Class: dnsmessage.ClassINET}}}
	dns, err := m.Pack()
	if err != nil {
		t.Fatal(err)
	}
	udp := append([]byte{0x30, 0x39, 0, 53, 0, byte(udpHeader + len(dns)), 0, 0}, dns...)
	from, to := netaddr.Inside4().Addr().AsSlice(), netaddr.Gateway4().AsSlice()
	ip := append(append([]byte{0x45, 0, 0, byte(ipHeader + len(udp)), 0, 1, 0, 0, 64, 17, 0, 0}, from...), to...)
	sum := uint32(0)
	for i := 0; i < len(ip); i += 2 {
		sum += uint32(ip[i])<<8 | uint32(ip[i+1])
	}
	for sum>>16 != 0 {
		sum = sum&0xffff + sum>>16
	}
	ip[10], ip[11] = byte(^sum>>8), byte(^sum)
	return append(ip, udp...)
}

func testRefusedTerms(t *testing.T, n engine.Network) {
	for name, c := range map[string]struct {
		terms engine.Terms
		want  error
	}{
		"an invalid rule":                {Terms("a b"), sandpit.ErrInvalid},
		"a rule about requests":          {Terms("GET:https://good.test/a*"), sandpit.ErrUnsupported},
		"a denial of requests":           {engine.Terms{Egress: sandpit.Egress{Preset: sandpit.EgressPublic, Deny: []string{"*:https://good.test/*"}}}, sandpit.ErrUnsupported},
		"a secret that is put in":        {engine.Terms{Secrets: []engine.Secret{secret()}}, sandpit.ErrUnsupported},
		"a certificate that is not one":  {engine.Terms{CA: []byte("x")}, sandpit.ErrInvalid},
		"a placeholder that is a letter": {engine.Terms{CA: authority(t, n), Secrets: []engine.Secret{{Name: "s", Placeholder: "x", Value: secret().Value, Hosts: secret().Hosts}}}, sandpit.ErrInvalid},
	} {
		t.Run(name, func(t *testing.T) {
			file, inside := Pair(t)
			if _, err := n.Join(t.Context(), file, c.terms); !errors.Is(err, c.want) {
				t.Errorf("Join: %v", err)
			}
			testkit.Until(t, "the interface is closed", func() bool { return Closed(inside) })
			j, _ := Join(t, n, "good.test")
			if err := j.Set(t.Context(), c.terms); !errors.Is(err, c.want) {
				t.Errorf("Set: %v", err)
			}
		})
	}
}

func secret() engine.Secret {
	return engine.Secret{Name: "s", Placeholder: "placeholder-of-the-secret", Value: []byte("the value"), Hosts: []string{"good.test"}}
}

// authority returns Terms.CA for secrets.
func authority(t *testing.T, n engine.Network) []byte {
	t.Helper()
	ca, own, _, err := n.Authority(engine.Terms{Secrets: []engine.Secret{secret()}})
	if err != nil || len(ca) == 0 || len(own) == 0 {
		t.Fatalf("a certificate of %d bytes, %v", len(own), err)
	}
	return ca
}

func testSet(t *testing.T, n engine.Network) {
	j, inside := Join(t, n, "other.test")
	for _, c := range []struct {
		rule string
		good bool
	}{{"a b", false}, {"good.test", true}, {"a b", true}, {"other.test", false}} {
		if err := j.Set(t.Context(), Terms(c.rule)); (err == nil) == (c.rule == "a b") {
			t.Errorf("%s: %v", c.rule, err)
		}
		if got := Resolves(t, inside, "good.test"); got != c.good {
			t.Errorf("after a change to %q, good.test is allowed: %t", c.rule, got)
		}
	}
}

func testAuthority(t *testing.T, n engine.Network) {
	if ca, own, _, err := n.Authority(Terms("good.test")); ca != nil || own != nil || err != nil {
		t.Errorf("for nothing to intercept: %d bytes, %v", len(ca), err)
	}
	file, _ := Pair(t)
	with := Terms("good.test")
	with.Secrets, with.CA = []engine.Secret{secret()}, authority(t, n)
	j, err := n.Join(t.Context(), file, with)
	if err != nil {
		t.Fatal(err)
	}
	if err := j.Close(); err != nil {
		t.Error(err)
	}
}

func testDenials(t *testing.T, n engine.Network) {
	j, inside := Join(t, n, "good.test")
	told := map[string]int64{}
	tell := func() {
		for _, d := range j.Denials() {
			told[d.Destination] += d.Count
		}
	}
	const names = 100 // more than are kept apart
	var all int64
	for i := range names {
		if Resolves(t, inside, fmt.Sprintf("evil%d.test", i)) {
			t.Fatal("a name that no rule allows has an address")
		}
		if i == 0 {
			testkit.Until(t, "a denial is told", func() bool { tell(); return len(told) > 0 })
		}
	}
	testkit.Until(t, "all denials are told", func() bool {
		tell()
		all = 0
		for _, count := range told {
			all += count
		}
		return all >= names && all == j.Traffic().Denials
	})
	if told["evil0.test"] < 1 || told[""] < 1 {
		t.Errorf("the denials are %v", told)
	}
	log, err := j.Log(t.Context())
	if err != nil || len(log.Flows) < names {
		t.Errorf("the log has %d flows, %v", len(log.Flows), err)
	}
	logged := int64(0)
	for _, d := range log.Denials {
		logged += d.Count
	}
	if logged < all {
		t.Errorf("%d denials are in the log, %d were told", logged, all)
	}
}

func testClose(t *testing.T, n engine.Network) {
	j, inside := Join(t, n, "good.test")
	Resolves(t, inside, "evil.test")
	if err := errors.Join(j.Close(), j.Close()); err != nil {
		t.Error(err)
	}
	if !Closed(inside) {
		t.Error("the interface is open")
	}
	if err := j.Set(t.Context(), Terms()); !errors.Is(err, sandpit.ErrClosed) {
		t.Errorf("Set: %v", err)
	}
	if _, err := j.Log(t.Context()); !errors.Is(err, sandpit.ErrClosed) {
		t.Errorf("Log: %v", err)
	}
	if d := j.Denials(); len(d) != 1 || d[0].Destination != "evil.test" || d[0].Count != j.Traffic().Denials {
		t.Errorf("the last denials are %+v of %+v", d, j.Traffic())
	}
}
