package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/sandpit-dev/sandpit"
)

const (
	// warmHeld is how many sandboxes with interpreters the server holds. Each turn takes one.
	warmHeld = 4
	// heldPythons are the processes of Python in each: the one that contexts are forked from, and the default context
	// with its helper.
	heldPythons = 3
)

// measureWarm measures code in sandboxes that are held ready with an interpreter, and what these cost.
func (b *bench) measureWarm(ctx context.Context) error {
	const mine, coldSandbox, cold = "create + run code + destroy, held ready", "the same, started cold", "python3 -c, no sandbox"
	g := b.group("warm", "one-shot Python in a new sandbox, over the API: print(1)", "ms")
	python, err := realProgram("python3")
	if err != nil {
		g.add(mine, &series{err: err})
		return nil
	}
	s, err := b.serve(ctx, fmt.Sprintf("pool: {warm: [{image: host, size: %d}]}\n", warmHeld))
	if err != nil {
		return err
	}
	defer s.close()
	rec := contest(ctx, b.opts.rounds, b.budget(),
		s.code(mine, sandpit.Spec{}, true), s.code(coldSandbox, sandpit.Spec{Env: []string{"COLD=1"}}, false), rested(b.command(cold, always(python, "-c", "print(1)"))))
	g.add(mine, rec.get(mine))
	g.against(cold, rec.get(cold), mine, rec.get(mine), goal{atMost, 1.3, 0.3})
	g.against(coldSandbox, rec.get(coldSandbox), mine, rec.get(mine), goal{})
	for _, part := range []string{"of that, create", "of that, code", "of that, destroy"} {
		g.add(part, rec.get(part))
	}
	if err := s.interpreters(ctx, warmHeld); err != nil {
		return err
	}
	return s.measureWarmMemory(python)
}

// code creates a sandbox, runs code in it and removes it.
func (s *served) code(name string, spec sandpit.Spec, parts bool) *contestant {
	return &contestant{name: name, once: func(ctx context.Context, rec *record) error {
		if err := s.interpreters(ctx, 1); err != nil {
			return err
		}
		time.Sleep(refill)
		var times []time.Duration
		start := time.Now()
		lap := func() { times = append(times, time.Since(start)) }
		sb, err := s.Create(ctx, spec)
		if err != nil {
			return err
		}
		defer sb.Remove(context.WithoutCancel(ctx)) //nolint:errcheck // the Remove below is the one that is checked
		lap()
		var out strings.Builder
		if res, err := sb.(sandpit.Coder).RunCode(ctx, sandpit.Code{Source: "print(1)", Stdout: &out}); err != nil || res.Error != nil || out.String() != "1\n" {
			return fmt.Errorf("running code: %q, %+v: %w", out.String(), res.Error, err)
		}
		lap()
		if err := sb.Remove(ctx); err != nil {
			return err
		}
		lap()
		rec.time(name, times[2])
		if parts {
			rec.time("of that, create", times[0])
			rec.time("of that, code", times[1]-times[0])
			rec.time("of that, destroy", times[2]-times[1])
		}
		return nil
	}}
}

// interpreters waits until the server holds the interpreters of at least n sandboxes.
func (s *served) interpreters(ctx context.Context, n int) error {
	for start := time.Now(); len(s.pythons()) < n*heldPythons; time.Sleep(time.Millisecond) {
		if time.Since(start) > patience || ctx.Err() != nil {
			return fmt.Errorf("waiting for %d processes of Python that are held: there are %d", n*heldPythons, len(s.pythons()))
		}
	}
	return nil
}

// pythons are the interpreters below the server.
func (s *served) pythons() (pids []int) {
	for _, pid := range descendants(s.cmd.Process.Pid) {
		if name, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid)); err == nil && strings.HasPrefix(string(name), "python") {
			pids = append(pids, pid)
		}
	}
	return pids
}

// measureWarmMemory compares what is held with idle interpreters without a sandbox, as many.
func (s *served) measureWarmMemory(python string) error {
	const interpreter, idle = "the interpreters of a held sandbox", "python3, idle, no sandbox"
	g := s.b.group("warm", fmt.Sprintf("memory of held warm interpreters, of %d sandboxes", warmHeld), "MiB")
	const wait = "import sys; sys.stdout.write('.'); sys.stdout.flush(); sys.stdin.read()"
	var others []int
	for range warmHeld {
		cmd := exec.Command(python, "-c", wait)
		in, err := cmd.StdinPipe()
		if err != nil {
			return err
		}
		out, err := cmd.StdoutPipe()
		if err != nil {
			return err
		}
		if err := cmd.Start(); err != nil {
			return err
		}
		defer func() {
			_ = in.Close()
			_ = cmd.Wait()
		}()
		if _, err := out.Read(make([]byte, 1)); err != nil {
			return err
		}
		others = append(others, cmd.Process.Pid)
	}
	each := func(pids []int) *series {
		total := pss{}
		for _, pid := range pids {
			p, err := readPSS(pid)
			if err != nil {
				return &series{err: err}
			}
			total = total.plus(p)
		}
		return &series{values: []float64{mebibytes(total.all) / warmHeld}}
	}
	held := s.pythons()
	g.add(interpreter, each(held))
	g.against(idle, each(others), interpreter, each(held), goal{})
	g.Note = "proportional set sizes: what processes share is divided among them"
	return nil
}
