package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sandpit-dev/sandpit"
)

// originName is what sandboxes of the benchmark call this program.
const originName = "origin.test"

// measureEgress measures what reaching the network costs.
func (s *served) measureEgress(ctx context.Context) error {
	return errors.Join(s.measureEgressHeld(ctx), s.measureEgressCreate(ctx), s.measureEgressStreams(ctx), s.measureEgressRequest(ctx))
}

// outward is a Spec that reaches the origin, and nothing else.
func outward(spec sandpit.Spec) sandpit.Spec {
	spec.Egress = sandpit.Egress{Allow: []string{originName}, Resolve: []string{originName + ":127.0.0.1"}}
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
	g.absolute("egress's part", &series{values: []float64{more - base}}, goal{below, 1, 0.25})
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
// and beside it.
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
	for _, way := range []struct{ name, script string }{
		{"down", `printf '<%12d' $2 >&3; cat <&3 >/dev/null`},
		{"up", `printf '>%12d' $2 >&3; head -c $2 /dev/zero >&3; head -c 1 <&3 >/dev/null`},
	} {
		for _, n := range []int64{1, 8} {
			each := size / n
			argv := func(host string) []string {
				return []string{"bash", "-c", fmt.Sprintf("for i in $(seq %d); do (exec 3<>/dev/tcp/$1/%d; %s) & done; wait", n, port, way.script), "bash", host, fmt.Sprint(each)}
			}
			const mine, other = "in a sandbox", "no sandbox"
			rec := contest(ctx, s.b.fewer(10, 3), s.b.budget(),
				&contestant{name: mine, once: func(ctx context.Context, rec *record) error {
					start := time.Now()
					err := succeed(sandpit.Run(ctx, sb, sandpit.Command{Argv: argv(originName)}))
					rec.speed(mine, each*n, time.Since(start))
					return err
				}},
				&contestant{name: other, once: func(ctx context.Context, rec *record) error {
					start := time.Now()
					a := argv("127.0.0.1")
					err := exec.CommandContext(ctx, a[0], a[1:]...).Run()
					rec.speed(other, each*n, time.Since(start))
					return err
				}})
			g := s.b.group("egress", fmt.Sprintf("TCP %s, streams: %d, %d MiB in all", way.name, n, size/mib), "MB/s")
			g.More = true
			g.add(mine, rec.get(mine))
			g.against(other, rec.get(other), mine, rec.get(mine), goal{atLeast, 0.3, 0.6})
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

// measureEgressRequest times whole requests over HTTPS, which are not intercepted.
func (s *served) measureEgressRequest(ctx context.Context) error {
	origin := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok") }))
	defer origin.Close()
	_, port, err := net.SplitHostPort(origin.Listener.Addr().String())
	if err != nil {
		return err
	}
	sb, err := s.Create(ctx, outward(sandpit.Spec{}))
	if err != nil {
		return err
	}
	defer sb.Remove(context.WithoutCancel(ctx)) //nolint:errcheck // best effort
	const mine, other = "in a sandbox, as curl says", "no sandbox"
	argv := []string{"curl", "-sk", "-o", "/dev/null", "-w", "%{time_total}", "--resolve", originName + ":" + port + ":127.0.0.1", "https://" + originName + ":" + port + "/"}
	told := func(rec *record, name string, out []byte, err error) error {
		var seconds float64
		if err == nil {
			_, err = fmt.Sscan(string(out), &seconds)
		}
		if err == nil {
			rec.time(name, time.Duration(seconds*float64(time.Second)))
		}
		return err
	}
	rec := contest(ctx, s.b.fewer(100, 10), s.b.budget(),
		&contestant{name: mine, once: func(ctx context.Context, rec *record) error {
			inside := append(slices.Clone(argv[:6]), argv[8:]...) // the sandbox's own name server
			res, err := sandpit.Run(ctx, sb, sandpit.Command{Argv: inside})
			return told(rec, mine, res.Stdout, succeed(res, err))
		}},
		&contestant{name: other, once: func(ctx context.Context, rec *record) error {
			out, err := exec.CommandContext(ctx, argv[0], argv[1:]...).Output()
			return told(rec, other, out, err)
		}})
	g := s.b.group("egress", "an HTTPS request, not intercepted, with the lookup of the name and the handshakes", "ms")
	g.add(mine, rec.get(mine))
	g.against(other, rec.get(other), mine, rec.get(mine), goal{})
	return ctx.Err()
}
