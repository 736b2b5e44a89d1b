package main

import (
	"context"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/netaddr"
)

// originName is what sandboxes of the benchmark call this program. The certificate of httptest has it.
const originName = "example.com"

// measureEgress measures what reaching the network costs.
func (b *bench) measureEgress(ctx context.Context) error {
	err := withServer(func(s *served, ctx context.Context) error {
		return errors.Join(s.measureEgressHeld(ctx), s.measureEgressCreate(ctx), s.measureEgressStreams(ctx), s.measureEgressNames(ctx))
	})(b, ctx)
	return errors.Join(err, b.measureEgressRequests(ctx))
}

// measureEgressRequests starts an origin, and a server that trusts its certificate, as all its sandboxes do.
func (b *bench) measureEgressRequests(ctx context.Context) error {
	origin := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok") }))
	defer origin.Close()
	_, port, err := net.SplitHostPort(origin.Listener.Addr().String())
	if err != nil {
		return err
	}
	bundle := filepath.Join(b.dir, "origin.pem")
	if err := os.WriteFile(bundle, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: origin.Certificate().Raw}), 0o644); err != nil {
		return err
	}
	trusting := *b
	trusting.env = append(slices.Clone(b.env), "SANDPIT_CA_BUNDLE="+bundle)
	return withServer(func(s *served, ctx context.Context) error {
		return errors.Join(s.measureEgressCreated(ctx, "create, warm, with a ca-bundle", sandpit.Spec{}), s.measureEgressRequest(ctx, port))
	})(&trusting, ctx)
}

// outward is a Spec that reaches the origin, and nothing else.
func outward(spec sandpit.Spec) sandpit.Spec { return outwardBy(spec, originName) }

func outwardBy(spec sandpit.Spec, rule string) sandpit.Spec {
	spec.Egress = sandpit.Egress{Allow: []string{rule}, Resolve: []string{originName + ":127.0.0.1"}}
	return spec
}

// measureEgressHeld holds idle sandboxes without egress, and then as many with it.
func (s *served) measureEgressHeld(ctx context.Context) error {
	n := 500
	if s.b.opts.quick {
		n = 40
	}
	const with, without = "a sandbox with egress", "one without"
	g := s.b.group("egress", fmt.Sprintf("memory of the server and its network process, for each of %d held", n), "MiB")
	hold := func(spec sandpit.Spec) (float64, error) {
		spec.Limits = sandpit.Limits{Memory: 32 << 20, Pids: 16}
		first, err := s.Create(ctx, spec) // and with it the process
		if err != nil {
			return 0, err
		}
		boxes := []removable{first}
		defer func() {
			_, _ = atOnce(len(boxes), func(i int) error { return boxes[i].Remove(context.WithoutCancel(ctx)) })
		}()
		before := s.ownMemory()
		for range n {
			sb, err := s.Create(ctx, spec)
			if err != nil {
				return 0, err
			}
			boxes = append(boxes, sb)
		}
		return mebibytes(s.ownMemory()-before) / float64(n), nil
	}
	base, err := hold(sandpit.Spec{})
	if err != nil {
		g.add(without, &series{err: err})
		return ctx.Err()
	}
	more, err := hold(outward(sandpit.Spec{}))
	if err != nil {
		g.add(with, &series{err: err})
		return ctx.Err()
	}
	g.add(without, &series{values: []float64{base}})
	g.add(with, &series{values: []float64{more}})
	part := &series{values: []float64{more - base}}
	g.absolute("egress's part", part, goal{below, 1, 0.25})
	for _, u := range userNets() {
		const few = 20 // the same for each of many
		g.against(fmt.Sprintf("%s, its process, for each of %d", u.name, few), u.memory(ctx, few), "egress's part", part, goal{})
	}
	return ctx.Err()
}

// ownMemory is that of the server and its network process, in bytes.
func (s *served) ownMemory() int64 {
	own, _ := readPSS(s.cmd.Process.Pid)
	for _, pid := range descendants(s.cmd.Process.Pid) {
		line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if strings.HasPrefix(string(line), "sandpit-network") {
			p, _ := readPSS(pid)
			own = own.plus(p)
		}
	}
	return own.all
}

// measureEgressCreate creates sandboxes of blanks, and such that no blank fits, because they have less
// memory than one is given.
func (s *served) measureEgressCreate(ctx context.Context) error {
	return errors.Join(s.measureEgressCreated(ctx, "create, warm", sandpit.Spec{}),
		s.measureEgressCreated(ctx, "create, cold", sandpit.Spec{Limits: sandpit.Limits{Memory: 31 << 20}}))
}

func (s *served) measureEgressCreated(ctx context.Context, title string, spec sandpit.Spec) error {
	const with, without = "with egress", "without"
	once := func(name string, spec sandpit.Spec) *contestant {
		return rested(&contestant{name: name, once: func(ctx context.Context, rec *record) error {
			start := time.Now()
			sb, err := s.Create(ctx, spec)
			if err != nil {
				return err
			}
			rec.time(name, time.Since(start))
			return sb.Remove(ctx)
		}})
	}
	rec := contest(ctx, s.b.fewer(100, 10), s.b.budget(), once(with, outward(spec)), once(without, spec))
	g := s.b.group("egress", title, "ms")
	g.add(with, rec.get(with))
	g.against(without, rec.get(without), with, rec.get(with), goal{})
	return ctx.Err()
}

// measureEgressStreams moves data over TCP between an origin in this program and bash, in a sandbox
// and beside it, and in network namespaces of other programs.
func (s *served) measureEgressStreams(ctx context.Context) error {
	size := s.b.amount()
	origin, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	var serving sync.WaitGroup
	defer serving.Wait()
	defer origin.Close()
	port := origin.Addr().(*net.TCPAddr).Port
	serving.Go(func() {
		for {
			c, err := origin.Accept()
			if err != nil {
				return
			}
			serving.Go(func() { stream(c, size) })
		}
	})
	sb, err := s.Create(ctx, outward(sandpit.Spec{}))
	if err != nil {
		return err
	}
	defer sb.Remove(context.WithoutCancel(ctx)) //nolint:errcheck // best effort
	nets := userNets()
	held := make([]*userNetHolder, len(nets))
	for i, u := range nets {
		if held[i], u.err = u.hold(ctx); u.err == nil {
			defer held[i].close()
		}
	}
	for _, way := range []struct{ name, script string }{
		{"down", `printf '<%12d' $2 >&3; cat <&3 >/dev/null`},
		{"up", `printf '>%12d' $2 >&3; head -c $2 /dev/zero >&3; head -c 1 <&3 >/dev/null`},
	} {
		for _, n := range []int64{1, 8} {
			each := size / n
			argv := func(host string) []string {
				return []string{"bash", "-c", fmt.Sprintf("for i in $(seq %d); do (exec 3<>/dev/tcp/$1/%d; %s) & done; wait", n, port, way.script), "bash", host, fmt.Sprint(each)}
			}
			timed := func(name string, run func(context.Context) error) *contestant {
				return &contestant{name: name, once: func(ctx context.Context, rec *record) error {
					start := time.Now()
					if err := run(ctx); err != nil {
						return err
					}
					rec.speed(name, each*n, time.Since(start))
					return nil
				}}
			}
			const mine, other = "in a sandbox", "no sandbox"
			cs := []*contestant{
				timed(mine, func(ctx context.Context) error {
					return succeed(sandpit.Run(ctx, sb, sandpit.Command{Argv: argv(originName)}))
				}),
				timed(other, func(ctx context.Context) error {
					a := argv("127.0.0.1")
					return exec.CommandContext(ctx, a[0], a[1:]...).Run()
				}),
			}
			for i, u := range nets {
				if held[i] == nil {
					cs = append(cs, missing(u.name, u.err))
					continue
				}
				cs = append(cs, timed(u.name, func(ctx context.Context) error { return held[i].run(ctx, argv(userNetHost)) }))
			}
			rec := contest(ctx, s.b.fewer(10, 3), s.b.budget(), cs...)
			g := s.b.group("egress", fmt.Sprintf("TCP %s, streams: %d, %d MiB in all", way.name, n, size/mib), "MB/s")
			g.More = true
			g.add(mine, rec.get(mine))
			g.against(other, rec.get(other), mine, rec.get(mine), goal{atLeast, 0.3, 0.6})
			for _, u := range nets {
				g.against(u.name, rec.get(u.name), mine, rec.get(mine), goal{})
			}
		}
	}
	return ctx.Err()
}

// stream sends (<) or receives (>) as much as the other end asks for, at most the given number of bytes.
func stream(c net.Conn, most int64) {
	defer c.Close()
	head := make([]byte, 13)
	if _, err := io.ReadFull(c, head); err != nil {
		return
	}
	var size int64
	if _, err := fmt.Sscan(string(head[1:]), &size); err != nil || size > most {
		return
	}
	if head[0] == '>' {
		_, _ = io.CopyN(io.Discard, c, size)
		_, _ = c.Write([]byte{'k'})
		return
	}
	block := make([]byte, mib)
	for size > 0 {
		n, err := c.Write(block[:min(size, mib)])
		if err != nil {
			return
		}
		size -= int64(n)
	}
}

// measureEgressRequest times whole requests over HTTPS.
func (s *served) measureEgressRequest(ctx context.Context, port string) error {
	const opened, passed, other = "intercepted", "not intercepted", "no sandbox"
	url := "https://" + originName + ":" + port + "/"
	argv := []string{"curl", "-sk", "-o", "/dev/null", "-w", "%{time_total}", url}
	beside := append(slices.Clone(argv), "--resolve", originName+":"+port+":127.0.0.1")
	told := func(rec *record, name string, out []byte, err error) error {
		return secondsOf(out, err, func(seconds float64) { rec.get(name).add(1000 * seconds) })
	}
	cs := []*contestant{{name: other, once: func(ctx context.Context, rec *record) error {
		out, err := exec.CommandContext(ctx, beside[0], beside[1:]...).Output()
		return told(rec, other, out, err)
	}}}
	for name, rule := range map[string]string{opened: "GET:" + url + "*", passed: originName} {
		sb, err := s.Create(ctx, outwardBy(sandpit.Spec{}, rule))
		if err != nil {
			return err
		}
		defer sb.Remove(context.WithoutCancel(ctx)) //nolint:errcheck // best effort
		cs = append(cs, &contestant{name: name, once: func(ctx context.Context, rec *record) error {
			res, err := sandpit.Run(ctx, sb, sandpit.Command{Argv: argv})
			return told(rec, name, res.Stdout, succeed(res, err))
		}})
	}
	rec := contest(ctx, s.b.fewer(100, 10), s.b.budget(), cs...)
	g := s.b.group("egress", "an HTTPS request, with the lookup of the name and the handshakes, as curl says", "ms")
	g.add(opened, rec.get(opened))
	g.against(passed, rec.get(passed), opened, rec.get(opened), goal{})
	g.against(other, rec.get(other), opened, rec.get(opened), goal{})
	if rec.get(opened).n() > 0 && rec.get(passed).n() > 0 {
		more := rec.get(opened).percentile(50) - rec.get(passed).percentile(50)
		g.absolute("the part of interception", &series{values: []float64{more}}, goal{below, 1, 0.3})
	}
	return ctx.Err()
}

// secondsOf records the seconds that a command has printed.
func secondsOf(out []byte, err error, record func(float64)) error {
	if err != nil {
		return err
	}
	var seconds float64
	if _, err := fmt.Sscan(string(out), &seconds); err != nil {
		return fmt.Errorf("reading what the command printed: %w", err)
	}
	record(seconds)
	return nil
}

// askNames asks the name server $1:$2 for a name, $3 times one after the other, and prints how
// many seconds that took.
const askNames = `
import socket, sys, time
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.settimeout(5)
s.connect((sys.argv[1], int(sys.argv[2])))
name = b''.join(bytes([len(l)]) + l.encode() for l in '` + originName + `'.split('.')) + b'\0'
def ask(i):
    s.send(i.to_bytes(2, 'big') + b'\1\0\0\1\0\0\0\0\0\0' + name + b'\0\1\0\1')
    if s.recv(512)[:2] != i.to_bytes(2, 'big'): sys.exit('another answer')
ask(0)
start = time.monotonic()
for i in range(int(sys.argv[3])): ask(i)
print(time.monotonic() - start)
`

// measureEgressNames counts the answers of the name server inside. Each turn has a sandbox of its
// own and asks fewer questions than one may ask at once: above that, the answers are limited.
func (s *served) measureEgressNames(ctx context.Context) error {
	const mine, other, questions = "in a sandbox", "no sandbox, an echo in place of a name server", 300
	g := s.b.group("egress", "DNS answers, of one question after the other", "1/s")
	g.More = true
	python, err := realProgram("python3")
	if err != nil {
		g.add(mine, &series{err: err})
		return nil
	}
	echo, err := net.ListenPacket("udp4", "127.0.0.1:0")
	if err != nil {
		return err
	}
	defer echo.Close()
	go func() {
		packet := make([]byte, 512)
		for {
			n, from, err := echo.ReadFrom(packet)
			if err != nil {
				return
			}
			_, _ = echo.WriteTo(packet[:n], from)
		}
	}()
	argv := func(server string, port int) []string {
		return []string{python, "-c", askNames, server, fmt.Sprint(port), fmt.Sprint(questions)}
	}
	told := func(rec *record, name string, out []byte, err error) error {
		return secondsOf(out, err, func(seconds float64) { rec.get(name).add(questions / seconds) })
	}
	rec := contest(ctx, s.b.fewer(20, 5), s.b.budget(),
		&contestant{name: mine, once: func(ctx context.Context, rec *record) error {
			sb, err := s.Create(ctx, outward(sandpit.Spec{}))
			if err != nil {
				return err
			}
			defer sb.Remove(context.WithoutCancel(ctx)) //nolint:errcheck // best effort
			res, err := sandpit.Run(ctx, sb, sandpit.Command{Argv: argv(netaddr.Gateway4().String(), 53)})
			return told(rec, mine, res.Stdout, succeed(res, err))
		}},
		&contestant{name: other, once: func(ctx context.Context, rec *record) error {
			a := argv("127.0.0.1", echo.LocalAddr().(*net.UDPAddr).Port)
			out, err := exec.CommandContext(ctx, a[0], a[1:]...).Output()
			return told(rec, other, out, err)
		}})
	g.add(mine, rec.get(mine))
	g.against(other, rec.get(other), mine, rec.get(mine), goal{})
	return ctx.Err()
}
