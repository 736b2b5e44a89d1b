package network

import (
	"bufio"
	"context"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/netaddr"
	"github.com/sandpit-dev/sandpit/internal/testkit"
)

// iodine makes no tunnel through the name server inside, with its real client and server. For a
// domain that is not allowed, nothing reaches the server. For one that a wildcard allows, the server
// gets names, in questions for addresses, and the client none of its answers.
func TestAttackF7Iodine(t *testing.T) {
	testkit.NeedRoot(t, "to make a network namespace")
	client, server := testkit.NeedProgram(t, "iodine"), testkit.NeedProgram(t, "iodined")
	if os.Getenv("SANDPIT_TEST_INSIDE") == "" { // again, in a network namespace, as iodine makes interfaces
		cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v") //nolint:gosec // this test
		cmd.Env = append(os.Environ(), "SANDPIT_TEST_INSIDE=1")
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	if out, err := exec.Command("ip", "link", "set", "lo", "up").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	iodined := exec.CommandContext(ctx, server, "-f", "-c", "-P", "word", "-l", "127.0.0.1", "-p", "5353", "10.77.0.1/24", "t.test")
	says, err := iodined.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := iodined.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { cancel(); _ = iodined.Wait() }()
	for lines := bufio.NewScanner(says); ; {
		if !lines.Scan() {
			t.Fatal("iodined has ended")
		}
		if strings.HasPrefix(lines.Text(), "Listening") {
			break
		}
	}

	var mu sync.Mutex
	var asked []string // of iodined
	outside := relayNames(t, "127.0.0.1:5354", func(ctx context.Context, q []byte) ([]byte, error) {
		var p dnsmessage.Parser
		if _, err := p.Start(q); err == nil {
			if question, err := p.Question(); err == nil {
				mu.Lock()
				asked = append(asked, question.Type.String())
				mu.Unlock()
			}
		}
		return exchange(ctx, "127.0.0.1:5353", q)
	})
	try := func(through func(context.Context, []byte) ([]byte, error), kind ...string) string {
		conn := relayNames(t, "127.0.0.1:53", through)
		defer conn.Close()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		cmd := exec.CommandContext(ctx, client, append(kind, "-f", "-r", "-P", "word", "127.0.0.1", "t.test")...)
		out, err := cmd.StderrPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		var said strings.Builder
		for lines := bufio.NewScanner(out); lines.Scan(); {
			said.WriteString(lines.Text() + "\n")
			if strings.HasPrefix(lines.Text(), tunnel) || len(kind) > 0 && strings.Count(said.String(), "Retrying") == 2 {
				cancel()
			}
		}
		_ = cmd.Wait()
		return said.String()
	}
	direct := func(ctx context.Context, q []byte) ([]byte, error) {
		return exchange(ctx, outside.LocalAddr().String(), q)
	}
	if said := try(direct); !strings.Contains(said, tunnel) {
		t.Fatalf("there is no tunnel without a sandbox\n%s", said)
	}
	for name, c := range map[string]struct {
		allow    string
		kind     []string // of questions; else the client tries all
		upstream bool
	}{"denied": {"good.test", nil, false}, "allowed": {"*.t.test", []string{"-T", "A"}, true}} {
		t.Run(name, func(t *testing.T) {
			mu.Lock()
			asked = nil
			mu.Unlock()
			in := join(t, sandpit.Egress{Allow: []string{c.allow}, DNS: []string{outside.LocalAddr().String()}})
			said := try(in.exchangeName, c.kind...)
			if strings.Contains(said, tunnel) || !strings.Contains(said, "Retrying") && !strings.Contains(said, "No suitable DNS query type") {
				t.Errorf("the client says\n%s", said)
			}
			mu.Lock()
			defer mu.Unlock()
			if (len(asked) > 0) != c.upstream {
				t.Errorf("iodined was asked for %q", asked)
			}
			if i := slices.IndexFunc(asked, func(kind string) bool { return kind != "TypeA" && kind != "TypeAAAA" }); i >= 0 {
				t.Errorf("iodined was asked for %s", asked[i])
			}
		})
	}
}

// tunnel is what the client says when it has one.
const tunnel = "Server tunnel IP"

// exchangeName asks the name server inside.
func (in *inside) exchangeName(ctx context.Context, q []byte) ([]byte, error) {
	to, protocol := full(netip.AddrPortFrom(netaddr.Gateway4(), dnsPort))
	conn, err := gonet.DialUDP(in.stack, nil, &to, protocol)
	if err != nil {
		return nil, err
	}
	return oneAnswer(ctx, conn, q)
}

func exchange(ctx context.Context, server string, q []byte) ([]byte, error) {
	conn, err := net.Dial("udp", server)
	if err != nil {
		return nil, err
	}
	return oneAnswer(ctx, conn, q)
}

func oneAnswer(ctx context.Context, conn net.Conn, q []byte) ([]byte, error) {
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	if _, err := conn.Write(q); err != nil {
		return nil, err
	}
	b := make([]byte, 64<<10)
	n, err := conn.Read(b)
	return b[:n], err
}

// namesRelay answers questions at an address with what another gives.
type namesRelay struct {
	net.PacketConn
	end  context.CancelFunc
	work sync.WaitGroup
}

func relayNames(t *testing.T, at string, answer func(ctx context.Context, q []byte) ([]byte, error)) *namesRelay {
	t.Helper()
	conn, err := net.ListenPacket("udp", at)
	if err != nil {
		t.Fatal(err)
	}
	ctx, end := context.WithCancel(t.Context())
	r := &namesRelay{PacketConn: conn, end: end}
	r.work.Go(func() {
		for b := make([]byte, 64<<10); ; {
			n, from, err := conn.ReadFrom(b)
			if err != nil {
				return
			}
			q := slices.Clone(b[:n])
			r.work.Go(func() {
				if a, err := answer(ctx, q); err == nil {
					_, _ = conn.WriteTo(a, from)
				}
			})
		}
	})
	t.Cleanup(r.Close)
	return r
}

func (r *namesRelay) Close() {
	r.end()
	r.PacketConn.Close()
	r.work.Wait()
}
