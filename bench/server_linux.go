package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/client"
)

// served is a server of the benchmark's own, with a data directory of its own.
type served struct {
	*client.Client
	b    *bench
	cmd  *exec.Cmd
	home string
	env  []string // of commands that use it
}

// refill is how long the warm pool is given between two turns: it is a matter
// of the background, and of another row.
const refill = 100 * time.Millisecond

// serve starts a server with a policy file and arguments, and waits until it answers.
func (b *bench) serve(ctx context.Context, policy string, args ...string) (*served, error) {
	home := filepath.Join(b.dir, "served")
	log, err := os.Create(filepath.Join(b.dir, "server.log"))
	if err != nil {
		return nil, err
	}
	defer log.Close()
	// Of a variable that is there twice, a Go program sees the first.
	env := slices.DeleteFunc(slices.Clone(b.env), func(v string) bool { return strings.HasPrefix(v, "SANDPIT_HOME=") })
	s := &served{b: b, home: home, env: append(env, "SANDPIT_HOME="+home)}
	if err := os.MkdirAll(home, 0o700); err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(home, "policy.yaml"), []byte(policy), 0o600); err != nil {
		return nil, err
	}
	s.cmd = exec.Command(b.sandpit, append([]string{"serve"}, args...)...)
	s.cmd.Env, s.cmd.Stderr = s.env, log
	if err := s.cmd.Start(); err != nil {
		return nil, fmt.Errorf("starting the server: %w", err)
	}
	if s.Client, err = client.New(client.Options{Address: "unix://" + filepath.Join(home, "server.sock")}); err != nil {
		s.close()
		return nil, err
	}
	for start := time.Now(); ; time.Sleep(10 * time.Millisecond) {
		if _, err = s.List(ctx, sandpit.ListQuery{Limit: 1}); err == nil {
			return s, nil
		}
		if time.Since(start) > patience || ctx.Err() != nil {
			s.close()
			return nil, fmt.Errorf("waiting for the server: %w", err)
		}
	}
}

// close removes what is left and ends the server.
func (s *served) close() {
	if s.Client != nil {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if page, err := s.List(ctx, sandpit.ListQuery{Limit: 1000}); err == nil {
			for _, info := range page.Sandboxes {
				_ = s.Remove(ctx, info.ID)
			}
		}
		_ = s.Client.Close()
	}
	_ = s.cmd.Process.Signal(syscall.SIGTERM)
	hung := time.AfterFunc(patience, func() { _ = s.cmd.Process.Kill() })
	_ = s.cmd.Wait()
	hung.Stop()
}

// rested is a contestant before which the machine has rested for as long as
// before those of the server: after a pause everything takes longer.
func rested(c *contestant) *contestant {
	once := c.once
	c.once = func(ctx context.Context, rec *record) error {
		time.Sleep(refill)
		return once(ctx, rec)
	}
	return c
}

// run is a whole sandpit run that uses the server.
func (s *served) run(name string, argv ...string) *contestant {
	return s.command(name, s.env, append([]string{"run", "--"}, argv...)...)
}

// overAPI is the environment of commands that use the server as they would use a remote one.
func (s *served) overAPI() []string {
	return append(slices.Clone(s.env), "SANDPIT_SERVER=unix://"+filepath.Join(s.home, "server.sock"))
}

// command is a whole command line of sandpit that uses the server.
func (s *served) command(name string, env []string, argv ...string) *contestant {
	return rested(&contestant{name: name, once: func(ctx context.Context, rec *record) error {
		b := *s.b
		b.env = env
		took, err := b.spawn(ctx, append([]string{b.sandpit}, argv...)...)
		if err == nil {
			rec.time(name, took)
		}
		return err
	}})
}

// life lives through whole sandboxes of the server.
func (s *served) life() *contestant {
	return rested(&contestant{name: "server", once: func(ctx context.Context, rec *record) error {
		start := time.Now()
		sb, err := s.Create(ctx, sandpit.Spec{})
		if err != nil {
			return err
		}
		defer sb.Remove(context.WithoutCancel(ctx)) //nolint:errcheck // the Remove below is the one that is checked
		rec.time("create", time.Since(start))
		if err := s.b.execTrue(ctx, sb); err != nil {
			return err
		}
		rec.time("create + first exec", time.Since(start))
		for range execsPerLife {
			begin := time.Now()
			if err := s.b.execTrue(ctx, sb); err != nil {
				return err
			}
			rec.time("exec", time.Since(begin))
		}
		begin := time.Now()
		if err := sb.Remove(ctx); err != nil {
			return err
		}
		rec.time("destroy", time.Since(begin))
		return nil
	}})
}

// withServer starts a server for a group of rows.
func withServer(measure func(*served, context.Context) error) func(*bench, context.Context) error {
	return func(b *bench, ctx context.Context) error {
		s, err := b.serve(ctx, "")
		if err != nil {
			return err
		}
		defer s.close()
		return measure(s, ctx)
	}
}

// measureLife measures what small things cost by way of a server.
func (s *served) measureLife(ctx context.Context) error {
	b := s.b
	const warm, inside, runAPI, execAPI = "sandpit run, with a server", "sandpit exec", "sandpit run, over the plain API", "sandpit exec, over the plain API"
	sb, err := s.Create(ctx, sandpit.Spec{})
	if err != nil {
		return err
	}
	rec := contest(ctx, b.opts.rounds, b.budget(), rested(b.command(bare, always(b.true))), s.life(),
		s.run(warm, b.true), s.command(runAPI, s.overAPI(), "run", "--", b.true),
		s.command(inside, s.env, "exec", sb.ID(), "--", b.true), s.command(execAPI, s.overAPI(), "exec", sb.ID(), "--", b.true))
	if err := sb.Remove(ctx); err != nil {
		return err
	}
	floor := rec.get(bare)
	for _, row := range []struct {
		title, series string
		to            goal
	}{
		{"create + run `true` + destroy, whole command line, warm", warm, goal{atMost, 3, 2}},
		{"create + run `true` + destroy, whole command line, as from a remote server", runAPI, goal{}},
		{"exec of `true` in a running sandbox, whole command line", inside, goal{}},
		{"exec of `true` in a running sandbox, whole command line, as from a remote server", execAPI, goal{}},
		{"create over the API, warm", "create", goal{}},
		{"create to first answered exec over the API, warm", "create + first exec", goal{}},
		{"exec of `true` in a running sandbox, over the API", "exec", goal{atMost, 2, 1.3}},
		{"destroy over the API, as the caller sees it", "destroy", goal{atMost, 1, 0.5}},
	} {
		mine := rec.get(row.series)
		if mine.n() == 0 && mine.err == nil {
			mine.err = rec.get("server").err
		}
		g := b.group("server", row.title, "ms")
		g.add(row.series, mine)
		g.against(bare, floor, row.series, mine, row.to)
	}
	return s.measurePython(ctx)
}

// measureLoad measures a server at work: many sandboxes at once, and much data.
func (s *served) measureLoad(ctx context.Context) error {
	if err := s.measureBurst(ctx); err != nil {
		return err
	}
	return s.measureData(ctx)
}

func (s *served) measurePython(ctx context.Context) error {
	const mine, cold = "sandpit run, with a server", "python3 -c, no sandbox"
	g := s.b.group("server", "one-shot Python: print(1), warm", "ms")
	python, err := realProgram("python3")
	if err != nil {
		g.add(mine, &series{err: err})
		return nil
	}
	rec := contest(ctx, s.b.opts.rounds, s.b.budget(), s.run(mine, python, "-c", "print(1)"), rested(s.b.command(cold, always(python, "-c", "print(1)"))))
	g.add(mine, rec.get(mine))
	g.against(cold, rec.get(cold), mine, rec.get(mine), goal{atMost, 1.3, 0.3})
	return ctx.Err()
}

// measureBurst makes many at once.
func (s *served) measureBurst(ctx context.Context) error {
	n := 100
	if s.b.opts.quick {
		n = 16
	}
	const mine = "server: create to first answered exec"
	// As many as a server's capacity is to hold at once, on a machine of any size.
	spec := sandpit.Spec{Limits: sandpit.Limits{Memory: 64 << 20}}
	bwrap := s.b.allPeers(ctx)[0]
	cs := []*contestant{{name: mine, once: func(ctx context.Context, rec *record) error {
		boxes := make([]removable, n)
		took, err := atOnce(n, func(i int) error {
			sb, err := s.Create(ctx, spec)
			if err != nil {
				return err
			}
			boxes[i] = sb
			return s.b.execTrue(ctx, sb)
		})
		_, rerr := atOnce(n, func(i int) error {
			if boxes[i] == nil {
				return nil
			}
			return boxes[i].Remove(context.WithoutCancel(ctx))
		})
		if err == nil {
			err = rerr
		}
		if err == nil {
			rec.time(mine, took)
		}
		return err
	}}}
	if bwrap.err == nil {
		cs = append(cs, s.b.commandBurst(bwrap.name, n, func() ([]string, error) { return bwrap.run(s.b.true) }))
	} else {
		cs = append(cs, missing(bwrap.name, bwrap.err))
	}
	rec := contest(ctx, leastTurns, s.b.budget(), cs...)
	g := s.b.group("served", fmt.Sprintf("%d at once over the API, until the last has answered", n), "ms")
	g.add(mine, rec.get(mine))
	g.against(bwrap.name, rec.get(bwrap.name), mine, rec.get(mine), goal{atMost, 1, 0.5})
	return ctx.Err()
}

// measureData streams output, and moves a file in and out.
func (s *served) measureData(ctx context.Context) error {
	size := s.b.amount()
	const out, line, pipe, up, down, copied = "output, over the API", "output, whole command line", "a pipe, no sandbox", "upload, over the API", "download, over the API", "cp, no sandbox"
	dir, remove, err := s.b.fastDir()
	if err != nil {
		return err
	}
	defer remove()
	file, target := filepath.Join(dir, "from"), filepath.Join(dir, "to")
	if err := fill(file, size); err != nil {
		return err
	}
	head, err := realProgram("head")
	if err != nil {
		return err
	}
	cp, err := realProgram("cp")
	if err != nil {
		return err
	}
	sb, err := s.Create(ctx, s.b.roomySpec())
	if err != nil {
		return err
	}
	argv := []string{head, "-c", fmt.Sprint(size), "/dev/zero"}
	timed := func(name string, f func(ctx context.Context) (time.Duration, error)) *contestant {
		return &contestant{name: name, once: func(ctx context.Context, rec *record) error {
			took, err := f(ctx)
			if err == nil {
				rec.speed(name, size, took)
			}
			return err
		}}
	}
	rec := contest(ctx, s.b.fewer(10, 4), s.b.budget(),
		timed(out, func(ctx context.Context) (time.Duration, error) {
			var got counter
			start := time.Now()
			err := succeed(sandpit.Run(ctx, sb, sandpit.Command{Argv: argv, Stdout: &got, OutputLimit: 2 * size}))
			if err == nil && int64(got) != size {
				err = fmt.Errorf("streaming: %d bytes arrived of %d", got, size)
			}
			return time.Since(start), err
		}),
		timed(line, func(ctx context.Context) (time.Duration, error) {
			return piped(ctx, size, s.env, append([]string{s.b.sandpit, "exec", "--output-limit", fmt.Sprint(2 * size), sb.ID()}, argv...))
		}),
		timed(pipe, func(ctx context.Context) (time.Duration, error) { return piped(ctx, size, s.env, argv) }),
		timed(up, func(ctx context.Context) (time.Duration, error) { return upload(ctx, sb, file) }),
		timed(down, func(ctx context.Context) (time.Duration, error) { return download(ctx, sb, target, size) }),
		timed(copied, func(ctx context.Context) (time.Duration, error) {
			_ = os.Remove(target)
			return s.b.spawn(ctx, cp, file, target)
		}))
	for _, row := range []struct{ mine, peer string }{{out, pipe}, {line, pipe}, {up, copied}, {down, copied}} {
		g := s.b.group("served", fmt.Sprintf("%s: %d MiB", row.mine, size/mib), "MB/s")
		g.More = true
		g.add(row.mine, rec.get(row.mine))
		g.against(row.peer, rec.get(row.peer), row.mine, rec.get(row.mine), goal{atLeast, 0.3, 0.7})
	}
	return ctx.Err()
}

// piped runs a program that writes size bytes, and returns how long it took to read them.
func piped(ctx context.Context, size int64, env, argv []string) (time.Duration, error) {
	var got counter
	start := time.Now()
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Env = env
	cmd.Stdout = &got
	err := cmd.Run()
	if err == nil && int64(got) != size {
		err = fmt.Errorf("streaming: %d bytes arrived of %d", got, size)
	}
	return time.Since(start), err
}
