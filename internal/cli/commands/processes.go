package commands

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/cli"
	"github.com/sandpit-dev/sandpit/internal/fault"
	"github.com/sandpit-dev/sandpit/internal/notation"
)

const execLong = `Run CMD in an existing sandbox, as sandpit run does in a new one: input, output, signals
and the exit code are CMD's. With -it, ^P^Q detaches from CMD, which goes on in the background
(see --detach-keys: ^P itself waits for the next key). At a terminal, a line at the end says what
the sandbox was denied on the network meanwhile; -q omits it.

With -d it runs in the background: this command prints its ID and exits, and the process keeps
running. With -i its standard input stays open, with -t it has a terminal: sandpit attach passes
on what is typed, or written to it. Use the ID with sandpit wait, signal and logs, too.`

const execExample = `  sandpit exec work -- python3 -c 'print(6*7)'
  sandpit exec -it work -- bash
  sandpit exec -d work -- python3 -m http.server 8000
  sandpit exec -dt work -- bash
  tar c . | sandpit exec work -- tar x -C /workspace`

// execCommand is sandpit exec.
func (a *tree) execCommand() *cobra.Command {
	o := cli.NewOptions(a.Lookup)
	cmd := &cobra.Command{Use: "exec [flags] NAME [--] CMD [ARG...]", Long: execLong, Example: execExample, ValidArgsFunction: a.completeNames(1)}
	for _, section := range o.ExecFlags() {
		addFlags(cmd.Flags(), section.Entries...)
	}
	cmd.Flags().SetInterspersed(false)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		name, argv, ok := cli.ExecArgs(args)
		if !ok && len(args) == 1 && cmd.ArgsLenAtDash() == 0 { // exec -- CMD
			return sandpit.WithHint(cli.Usagef("the name of the sandbox is missing"), "write 'sandpit exec NAME -- CMD [ARG...]'")
		}
		if !ok {
			return sandpit.WithHint(cli.Usagef("no command is given"), "write 'sandpit exec NAME -- CMD [ARG...]'")
		}
		return a.Exec(cmd.Context(), o, a.opener(name), argv)
	}
	return at(cmd, placeServer)
}

// opener opens the sandbox of a name.
func (a *tree) opener(name string) cli.Opener {
	return func(ctx context.Context) (sandpit.Sandbox, func() error, error) {
		s, err := a.connect(ctx, false)
		if err != nil {
			return nil, nil, err
		}
		sb, err := s.find(ctx, name)
		if err != nil {
			_ = s.Close()
			return nil, nil, err
		}
		return sb, s.Close, nil
	}
}

// attachCommand is sandpit attach.
func (a *tree) attachCommand() *cobra.Command {
	var opt cli.AttachOptions
	cmd := &cobra.Command{
		Use: "attach [flags] NAME PROCESS",
		Long: `Attach to a process by its ID or pid: show its output so far and from now on, and pass
standard input to it, if it was started with one (exec -d with -i or -t). The exit code is
that of the process.

It keeps running when this command ends, and its input stays open. At a terminal, ^P^Q detaches
unless --no-stdin is given, and ^C is passed on to a process that has an input, until ^D has
ended yours. Otherwise ^C detaches. SIGTERM, SIGHUP and a closed output always do: the exit code is
then 128+n for signal n.`,
		Example: "  sandpit attach work p3\n  sandpit attach --no-stdin work p3 | head -1\n  echo 'print(1)' | sandpit attach -i work p4",
		Args:    arguments(2, 2),
	}
	stdin := true
	keys := parsed[string]{is: cli.DefaultDetachKeys, parse: cli.ParseDetachKeys, shown: "KEYS"}
	cmd.Flags().BoolVarP(&stdin, "interactive", "i", true, "pass on standard input")
	cmd.Flags().BoolVar(&opt.NoStdin, "no-stdin", false, "do not pass on standard input")
	cmd.Flags().BoolVar(&opt.CloseStdin, "close-stdin", false, "close the process's input at the end of standard input")
	cmd.Flags().BoolVar(&opt.NoHistory, "no-history", false, "omit earlier output")
	cmd.Flags().Var(&keys, "detach-keys", cli.DetachKeysUsage)
	cmd.ValidArgsFunction = a.completeProcesses
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		opt.NoStdin, opt.DetachKeys = opt.NoStdin || !stdin, keys.is
		if keys.set && keys.is != "" && (opt.NoStdin || !cli.IsTerminal(a.Stdin)) {
			return sandpit.WithHint(cli.Usagef("--detach-keys needs a terminal as standard input, and excludes --no-stdin"), "omit it")
		}
		return a.Attach(cmd.Context(), a.opener(args[0]), args[1], opt)
	}
	return at(cmd, placeServer)
}

// completeProcesses completes a sandbox and then one of its processes.
func (a *tree) completeProcesses(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
	if len(args) != 1 {
		return a.completeNames(1)(cmd, args, prefix)
	}
	return a.completed(func(ctx context.Context, s *session, args []string, prefix string) (ids []string) {
		sb, err := s.Get(ctx, args[0])
		if err != nil {
			return nil
		}
		procs, err := sb.Processes(ctx)
		if err != nil {
			return nil
		}
		for _, p := range procs {
			if strings.HasPrefix(p.ID, prefix) {
				ids = append(ids, cobra.CompletionWithDesc(p.ID, clip(cli.Harmless(strings.Join(p.Argv, " ")), 40)))
			}
		}
		return ids
	})(cmd, args, prefix)
}

// waitCommand is sandpit wait.
func (a *tree) waitCommand() *cobra.Command {
	timeout := durationFlag()
	cmd := a.serverCommand(&cobra.Command{
		Use:               "wait [flags] NAME PROCESS",
		Long:              "Wait until a process exits, and return its exit code: 124 if it ran out of time. It is 124\nalso if --timeout ends first; the process then keeps running.",
		Example:           "  sandpit wait work p3",
		Args:              arguments(2, 2),
		ValidArgsFunction: a.completeProcesses,
	}, withSandbox(func(ctx context.Context, sb sandpit.Sandbox, args []string) error {
		info, err := cli.FindProcess(ctx, sb, args[0])
		if err != nil {
			return err
		}
		process, err := sb.Attach(ctx, info.ID, sandpit.AttachOptions{NoHistory: true})
		if err != nil {
			return err
		}
		waiting, cancel := ctx, context.CancelFunc(func() {})
		if timeout.set {
			waiting, cancel = context.WithTimeout(ctx, timeout.is)
		}
		defer cancel()
		result, err := process.Wait(waiting)
		switch {
		case errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil:
			a.Note("process %s of %s is still running after %s", info.ID, sb.Name(), notation.FormatDuration(timeout.is))
			return cli.ExitWith(cli.ExitTimeout)
		case err != nil:
			return err
		}
		a.ExplainFound(ctx, sb, info, result)
		return cli.ExitWith(result.ExitCode)
	}))
	cmd.Flags().Var(&timeout, "timeout", "maximum time to wait")
	return cmd
}

// signalCommand is sandpit signal.
func (a *tree) signalCommand() *cobra.Command {
	sig := parsed[syscall.Signal]{parse: parseSignal, shown: "SIGNAL"}
	var group bool
	cmd := a.serverCommand(&cobra.Command{
		Use:               "signal [flags] NAME PROCESS",
		Long:              "Send a signal to a process. KILL also ends its descendants.",
		Example:           "  sandpit signal work p3\n  sandpit signal -s HUP work p3",
		Args:              arguments(2, 2),
		ValidArgsFunction: a.completeProcesses,
	}, withSandbox(func(ctx context.Context, sb sandpit.Sandbox, args []string) error {
		if _, err := strconv.Atoi(args[0]); err != nil {
			if _, err := parseSignal(args[0]); err == nil {
				return sandpit.WithHint(cli.Usagef("the process is missing: %s is a signal", args[0]), "write 'sandpit signal -s "+args[0]+" "+sb.Name()+" PROCESS'; 'sandpit ps "+sb.Name()+"' lists them")
			}
		}
		info, err := cli.FindProcess(ctx, sb, args[0])
		if err != nil {
			return err
		}
		if info.Result != nil {
			return sandpit.WithHint(fault.NotFoundf("process %s of %s has exited", info.ID, sb.Name()), "run 'sandpit ps -a "+sb.Name()+"' to see how it ended")
		}
		process, err := sb.Attach(ctx, info.ID, sandpit.AttachOptions{NoHistory: true})
		if err != nil {
			return err
		}
		s := syscall.SIGTERM
		if sig.set {
			s = sig.is
		}
		if s == syscall.SIGKILL {
			return process.Kill(ctx)
		}
		if g, ok := process.(sandpit.GroupSignaler); ok && group {
			return g.SignalGroup(ctx, s)
		}
		return process.Signal(ctx, s)
	}))
	cmd.Flags().VarP(&sig, "signal", "s", "signal name or number (default TERM)")
	cmd.Flags().BoolVarP(&group, "group", "g", false, "send it to the process group that the process leads")
	return cmd
}

// parseSignal reads "TERM", "SIGTERM" or "15".
func parseSignal(text string) (syscall.Signal, error) {
	if n, err := strconv.Atoi(text); err == nil && n > 0 && n <= 64 {
		return syscall.Signal(n), nil
	}
	name := strings.ToUpper(text)
	if !strings.HasPrefix(name, "SIG") {
		name = "SIG" + name
	}
	if n := unix.SignalNum(name); n != 0 {
		return n, nil
	}
	return 0, sandpit.WithHint(fmt.Errorf("%q is not a signal", text), "give a name such as TERM, or a number from 1 to 64")
}
