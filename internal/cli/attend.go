package cli

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/fastrun"
	"github.com/sandpit-dev/sandpit/internal/fault"
)

// Opener opens an existing sandbox. The second result closes what was opened for that.
type Opener func(context.Context) (sandpit.Sandbox, func() error, error)

// ExecArgs returns the sandbox and the command that the arguments of sandpit exec name.
func ExecArgs(args []string) (name string, argv []string, ok bool) {
	if len(args) > 1 && args[1] == "--" {
		args = append(args[:1:1], args[2:]...)
	}
	if len(args) < 2 {
		return "", nil, false
	}
	return args[0], args[1:], true
}

// Exec runs sandpit exec: argv in a sandbox, as if it were this program, or, with --detach,
// in the background.
func (a *App) Exec(ctx context.Context, o *Options, open Opener, argv []string) error {
	return a.exec(ctx, o, argv, func(ctx context.Context) (standing, func() error, error) { return open(ctx) })
}

// standing is a place that is there before the command.
type standing interface {
	place
	Name() string
}

func (a *App) exec(ctx context.Context, o *Options, argv []string, open func(context.Context) (standing, func() error, error)) error {
	err := a.execIn(ctx, o, argv, open)
	if err != nil && o.asJSON.is {
		return a.printJSONError(err)
	}
	return err
}

func (a *App) execIn(ctx context.Context, o *Options, argv []string, open func(context.Context) (standing, func() error, error)) error {
	if err := a.checkTerminal(o); err != nil {
		return err
	}
	a.WarnVariables(o)
	env, err := o.environment()
	if err != nil {
		return err
	}
	rlimits, err := o.rlimits()
	if err != nil {
		return err
	}
	cmd := sandpit.Command{
		Argv: argv, Env: env, Dir: o.workdir.is, User: o.user.is, Timeout: o.timeout.is,
		OutputLimit: o.output.is, NoFile: o.nofile.is, Rlimits: rlimits, Background: o.detach.is,
	}
	return inSandbox(ctx, open, func(ctx context.Context, sb standing, relay *relay) error {
		if o.detach.is {
			cmd.Stdin = o.interactive.is
			if o.tty.is {
				a.addTerminal(&cmd, &Terminal{file: a.Stdin})
			}
			process, err := sb.Start(ctx, cmd)
			var failed *sandpit.StartError
			if errors.As(err, &failed) {
				if o.asJSON.is {
					return a.printReport(ctx, sb, modes{}, report{result: sandpit.Result{ExitCode: failed.ExitCode}, startError: failed.Reason, code: failed.ExitCode})
				}
				return a.notStarted(ctx, sb, cmd, failed)
			}
			if err != nil {
				return interrupted(ctx, aboutUser(err))
			}
			if o.asJSON.is {
				return a.PrintJSON(jsonStarted{process.ID(), process.PID(), sb.Name()})
			}
			_, err = fmt.Fprintln(a.Stdout, process.ID())
			return err
		}
		var term *Terminal
		if o.tty.is {
			var err error
			if term, err = OpenTerminal(a.Stdin); err != nil {
				return err
			}
			defer term.Close()
		}
		cmd.Stdin = !o.interactive.set || o.interactive.is
		m := modes{tty: o.tty.is, json: o.asJSON.is, timeout: o.timeout.is, stays: sb.Name(), detachKeys: o.detachKeys()}
		denied := func() []sandpit.EgressDenial { return nil }
		if a.tellsDenials(o) {
			denied = deniedIn(ctx, sb)
		}
		m.traffic = func() *traffic { return deniedTraffic(denied()) }
		err := a.attend(ctx, sb, cmd, m, term, relay, newSteps(false))
		if t := deniedTraffic(denied()); t != nil && !m.json {
			t.flags = flagsFor(t.log.Denials)
			a.tellDenials(t, "sandpit network allow "+sb.Name())
		}
		return err
	})
}

// tellsDenials reports whether exec tells what was denied on the network while the command ran: to a person,
// and in JSON. What reads standard error by a pipe hears of the command alone.
func (a *App) tellsDenials(o *Options) bool {
	if o.asJSON.is {
		return true
	}
	if o.quiet.is || !IsTerminal(a.Stderr) {
		return false
	}
	settings := NewOptions(a.Lookup) // the options of exec have none
	_ = settings.Configure(a.Config())
	return !settings.quiet.is
}

// deniedIn returns what tells the denials in a sandbox since now.
func deniedIn(ctx context.Context, sb standing) func() []sandpit.EgressDenial {
	box, ok := sb.(sandpit.Egresser)
	if !ok {
		run, ok := sb.(*fastrun.Run)
		if !ok {
			return func() []sandpit.EgressDenial { return nil }
		}
		return run.Denied
	}
	read := func() ([]sandpit.EgressDenial, error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), logTime)
		defer cancel()
		log, err := box.EgressLog(ctx)
		return log.Denials, err
	}
	before, failed := read()
	return sync.OnceValue(func() []sandpit.EgressDenial {
		now, err := read()
		if failed != nil || err != nil {
			return nil
		}
		return fastrun.DeniedSince(before, now)
	})
}

// jsonStarted is the object of exec -d --json. Fields are only ever added.
type jsonStarted struct {
	ID      string `json:"id"`
	PID     int    `json:"pid"` // inside the sandbox
	Sandbox string `json:"sandbox"`
}

// inSandbox does something in a sandbox with signals caught.
func inSandbox[S any](ctx context.Context, open func(context.Context) (S, func() error, error), do func(context.Context, S, *relay) error) (err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	relay := startRelay(cancel)
	defer relay.stop()
	relay.ready()
	sb, closing, err := open(ctx)
	if err != nil {
		return interrupted(ctx, err)
	}
	defer func() { err = orFailure(err, "closing the connection", closing()) }()
	return do(ctx, sb, relay)
}

// AttachOptions are the flags of sandpit attach.
type AttachOptions struct {
	NoStdin    bool
	CloseStdin bool // at the end of this program's
	NoHistory  bool
	DetachKeys string // see ParseDetachKeys
}

// Attach runs sandpit attach.
func (a *App) Attach(ctx context.Context, open Opener, id string, opt AttachOptions) error {
	return inSandbox(ctx, open, func(ctx context.Context, sb sandpit.Sandbox, relay *relay) error {
		info, err := FindProcess(ctx, sb, id)
		if err != nil {
			return interrupted(ctx, err)
		}
		return a.attach(ctx, sb, info, opt, relay)
	})
}

func (a *App) attach(ctx context.Context, sb sandpit.Sandbox, info sandpit.ProcessInfo, opt AttachOptions, relay *relay) (err error) {
	atTerminal := !opt.NoStdin && IsTerminal(a.Stdin)
	var term *Terminal
	if info.Terminal && info.Result == nil && atTerminal {
		if term, err = OpenTerminal(a.Stdin); err != nil {
			return err
		}
		defer term.Close()
	}
	if atTerminal && term == nil && info.Result == nil && opt.DetachKeys != "" {
		if term, err = OpenTerminal(a.Stdin); err != nil {
			return err
		}
		defer term.Close()
		term.keys = opt.DetachKeys
	}
	out := newOutput(relay)
	with := sandpit.AttachOptions{NoHistory: opt.NoHistory, Stdin: !opt.NoStdin, Lost: func(n int64) { a.Note("%d earlier bytes of output are no longer stored", n) }}
	if with.Stdout, err = out.to(a.Stdout); err != nil {
		return err
	}
	if with.Stderr, err = out.to(a.Stderr); err != nil {
		return err
	}
	out.watch(a.Stdout)
	if err := term.Raw(); err != nil {
		return err
	}
	process, err := sb.Attach(ctx, info.ID, with)
	if err != nil {
		term.Restore()
		return interrupted(ctx, err)
	}
	waiting, leave := context.WithCancelCause(context.WithoutCancel(ctx))
	defer leave(nil)
	in := process.Stdin()
	input := !opt.NoStdin && info.Stdin && in != nil
	var keyboard atomic.Bool
	keyboard.Store(input && atTerminal)
	relay.assign(job{
		process: process, term: term,
		leave:    func(sig syscall.Signal) { leave(&signalError{sig}) },
		keyboard: &keyboard,
	})
	if term != nil {
		term.resize(process)
	}
	if input || term != nil {
		keys := &detachKeys{WriteCloser: in, keepOpen: !opt.CloseStdin}
		if !input {
			keys.WriteCloser = nowhere{}
		}
		if term != nil {
			keys.keys = opt.DetachKeys
			keys.keepOpen = keys.keepOpen || info.Terminal
			keys.detach = func() error { leave(errDetached); return nil }
		}
		go func() {
			a.feed(keys, a.Stdin)
			keyboard.Store(false) // no more input: ^C leaves
			if term != nil && waiting.Err() == nil {
				keys.WriteCloser = nowhere{} // the keys detach still
				a.feed(keys, a.Stdin)
			}
		}()
	}
	result, err := process.Wait(waiting)
	relay.release()
	term.Restore()
	if failed := out.failure(); failed != nil {
		return outputError(failed, "process", 0)
	}
	var signal *signalError
	switch cause := context.Cause(waiting); {
	case err == nil:
	case errors.Is(cause, errDetached):
		a.noteDetached(sb.Name(), info.ID)
		return nil
	case errors.As(cause, &signal):
		a.noteDetached(sb.Name(), info.ID)
		return ExitWith(exitSignal + int(signal.signal))
	default:
		return lostSight(fmt.Errorf("waiting for the process: %w", err), sb.Name(), process)
	}
	a.ExplainFound(ctx, sb, info, result)
	return ExitWith(result.ExitCode)
}

// nowhere takes what is typed to a process without an input.
type nowhere struct{}

func (nowhere) Write(p []byte) (int, error) { return len(p), nil }
func (nowhere) Close() error                { return nil }

// noteDetached says that a process goes on, and how to find it again.
func (a *App) noteDetached(sandbox, process string) {
	if IsTerminal(a.Stderr) {
		quietly(a.Stderr, "\n") // the process may have left off in the middle of a line
	}
	a.Note("detached from process %s of %s, which keeps running; run 'sandpit attach %[2]s %[1]s' to attach again", process, sandbox)
}

// ExplainFound says on stderr which limits a process that was found again reached, and how to
// raise them.
func (a *App) ExplainFound(ctx context.Context, sb sandpit.Sandbox, info sandpit.ProcessInfo, result sandpit.Result) {
	a.explain(ctx, bounded{sandbox: sb, stays: sb.Name(), timeout: info.Timeout, found: true}, result)
}

// FindProcess finds a process by its id or its pid; of several that had the pid,
// the latest.
func FindProcess(ctx context.Context, sb sandpit.Sandbox, id string) (sandpit.ProcessInfo, error) {
	procs, err := sb.Processes(ctx)
	if err != nil {
		return sandpit.ProcessInfo{}, err
	}
	for _, p := range procs {
		if p.ID == id {
			return p, nil
		}
	}
	if pid, err := strconv.Atoi(id); err == nil {
		for i := len(procs) - 1; i >= 0; i-- {
			if procs[i].PID == pid {
				return procs[i], nil
			}
		}
	}
	return sandpit.ProcessInfo{}, sandpit.WithHint(fault.Errorf(sandpit.ErrNotFound, "sandbox %q has no process %q", sb.Name(), id), "run 'sandpit ps -a "+sb.Name()+"' to list them")
}
