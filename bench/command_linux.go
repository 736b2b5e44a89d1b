package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// patience is how long a command may take before it counts as hung.
const patience = 2 * time.Minute

// spawn runs a command with nothing on its input and its output thrown away,
// and returns the time from before the fork until it has been reaped. A code
// other than 0 is an error.
func (b *bench) spawn(ctx context.Context, argv ...string) (time.Duration, error) {
	took, state, err := b.spawnState(ctx, argv...)
	if err == nil && !state.Success() {
		err = fmt.Errorf("%s: %s: %s", argv[0], state, b.said())
	}
	return took, err
}

func (b *bench) spawnState(ctx context.Context, argv ...string) (time.Duration, *os.ProcessState, error) {
	if err := ctx.Err(); err != nil {
		return 0, nil, err
	}
	if err := b.stderr.Truncate(0); err != nil {
		return 0, nil, err
	}
	start := time.Now()
	p, err := os.StartProcess(argv[0], argv, &os.ProcAttr{Dir: "/", Env: b.env, Files: []*os.File{b.null, b.null, b.stderr}})
	if err != nil {
		return 0, nil, err
	}
	hung := time.AfterFunc(patience, func() { _ = p.Kill() })
	state, err := p.Wait()
	took := time.Since(start)
	if !hung.Stop() {
		return took, nil, fmt.Errorf("%s: killed after %s", argv[0], patience)
	}
	return took, state, err
}

// said is what the last command wrote to its stderr, cut short.
func (b *bench) said() string {
	data, _ := io.ReadAll(io.NewSectionReader(b.stderr, 0, 4096))
	return strings.TrimSpace(string(data))
}

// command is a contestant that runs a command line. next makes it: some need a
// new name each time.
func (b *bench) command(name string, next func() ([]string, error)) *contestant {
	return &contestant{name: name, once: func(ctx context.Context, rec *record) error {
		argv, err := next()
		if err != nil {
			return err
		}
		took, err := b.spawn(ctx, argv...)
		if err != nil {
			return err
		}
		rec.time(name, took)
		return nil
	}}
}

// always returns the same command line.
func always(argv ...string) func() ([]string, error) {
	return func() ([]string, error) { return argv, nil }
}

// missing is a contestant that can't take part.
func missing(name string, err error) *contestant {
	return &contestant{name: name, once: func(context.Context, *record) error { return err }}
}

// burst runs a command so many times at once and returns the time until the
// last one has ended.
func (b *bench) burst(ctx context.Context, n int, next func() ([]string, error)) (time.Duration, error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	lines := make([][]string, n)
	for i := range lines {
		var err error
		if lines[i], err = next(); err != nil {
			return 0, err
		}
	}
	return atOnce(n, func(i int) error {
		p, err := os.StartProcess(lines[i][0], lines[i], &os.ProcAttr{Dir: "/", Env: b.env, Files: []*os.File{b.null, b.null, b.null}})
		if err != nil {
			return err
		}
		hung := time.AfterFunc(patience, func() { _ = p.Kill() })
		state, err := p.Wait()
		hung.Stop()
		if err == nil && !state.Success() {
			err = fmt.Errorf("%s: %s", lines[i][0], state)
		}
		return err
	})
}

// atOnce calls f so many times at once and returns the time until the last call
// has returned.
func atOnce(n int, f func(i int) error) (time.Duration, error) {
	errs := make(chan error, n)
	ready := make(chan struct{})
	for i := range n {
		go func() {
			<-ready
			errs <- f(i)
		}()
	}
	start := time.Now()
	close(ready)
	all := make([]error, 0, n)
	for range n {
		all = append(all, <-errs)
	}
	return time.Since(start), errors.Join(all...)
}

// noChildren reports whether this process has no child left, dead or alive.
func noChildren() bool {
	var info unix.Siginfo
	err := unix.Waitid(unix.P_ALL, 0, &info, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil)
	return err == unix.ECHILD
}
