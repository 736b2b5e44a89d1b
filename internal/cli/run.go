package cli

import (
	"context"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sandpit-dev/sandpit"
)

const runLong = `Run CMD in a fresh sandbox, then destroy it.

It works like running CMD itself: standard input is passed on, output comes as
it is written, signals reach CMD, and its exit code is returned. The network is
closed, the host's files are out of reach, and every limit has a default: see
sandpit policy show. Without a CMD, the image's own program runs.

Exit codes: CMD's own; 124 when it ran out of time; 125 when Sandpit itself
failed; 126 when CMD can't be executed, 127 when it does not exist; 128+n when
signal n killed it.

Standard input is read as it comes, also when CMD does not ask for it. In a loop
that reads lines from its own input, write sandpit run ... </dev/null.`

const runExample = `  sandpit run -- python3 -c 'print(6*7)'
  sandpit run --memory 256m --timeout 10s -- ./untrusted
  sandpit run --mount .:/work --workdir /work -- make test
  sandpit run --mount .:/src:ro --write /out -- sh -c 'wc -l /src/* >/out/lines'
  sandpit run --image debian:13 -it -- bash
  git diff | sandpit run -- wc -l
  sandpit run --json -- node -e 'console.log(1)'`

const shellLong = `Run a shell script in a fresh sandbox, then destroy it: what sandpit run does for a
command. SCRIPT is the text of the script; '-' reads it from standard input, and
the script's own input is then empty.`

const shellExample = `  sandpit shell 'cd /tmp && echo hello >a && cat a'
  sandpit shell --mount .:/work --workdir /work 'make && make test'
  sandpit shell - <build.sh`

// runCommand is sandpit run.
func (a *App) runCommand() *cobra.Command {
	o := newOptions(a.lookup)
	cmd := &cobra.Command{
		Use:     "run [flags] [--] CMD [ARG...]",
		Long:    runLong,
		Example: runExample,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.run(cmd.Context(), o, sandpit.Command{Argv: args})
		},
		ValidArgsFunction: func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			return nil, cobra.ShellCompDirectiveDefault
		},
	}
	a.sandboxFlags(cmd, o)
	return cmd
}

// shellCommand is sandpit shell.
func (a *App) shellCommand() *cobra.Command {
	o := newOptions(a.lookup)
	cmd := &cobra.Command{
		Use:     "shell [flags] [--] SCRIPT",
		Long:    shellLong,
		Example: shellExample,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 {
				return sandpit.WithHint(usageErrorf("shell takes one script, not %d", len(args)), "quote it: sandpit shell 'echo hello | wc -c'")
			}
			if o.entrypoint.set {
				return sandpit.WithHint(usageErrorf("--entrypoint makes no sense with a script"), "use sandpit run")
			}
			script := args[0]
			if script == "-" {
				text, err := a.readScript(o)
				if err != nil {
					return err
				}
				script = text
				o.interactive.is, o.interactive.set = false, true
			}
			if script == "" {
				script = ":" // does what an empty script does
			}
			return a.run(cmd.Context(), o, sandpit.Command{Script: script})
		},
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	a.sandboxFlags(cmd, o)
	return cmd
}

// maxScript is the longest script, in bytes: it is one argument of /bin/sh, and
// Linux takes none of 128 KiB and more (MAX_ARG_STRLEN of linux/binfmts.h).
const maxScript = 128<<10 - 1

func (a *App) readScript(o *options) (string, error) {
	if o.tty.is {
		return "", sandpit.WithHint(usageErrorf("the script can't be read from a terminal that --tty gives away"), "give the script as an argument")
	}
	text, err := io.ReadAll(io.LimitReader(a.Stdin, maxScript+1))
	switch {
	case err != nil:
		return "", usageErrorf("reading the script from standard input: %v", err)
	case len(text) > maxScript:
		return "", sandpit.WithHint(usageErrorf("the script is longer than 128 KiB"), "let the shell read it: sandpit run -- sh <SCRIPT")
	}
	return string(text), nil
}

// sandboxFlags gives cmd the flags of o.
func (a *App) sandboxFlags(cmd *cobra.Command, o *options) {
	o.register(cmd.Flags())
	cmd.Flags().SetInterspersed(false) // what follows CMD is CMD's
	cmd.Annotations = map[string]string{annotationSections: ""}
	if !a.completing {
		return
	}
	_ = cmd.RegisterFlagCompletionFunc("image", a.completeImages)
	_ = cmd.RegisterFlagCompletionFunc("pull", cobra.FixedCompletions([]string{"missing", "always", "never"}, cobra.ShellCompDirectiveNoFileComp))
	_ = cmd.RegisterFlagCompletionFunc("tmpfs", cobra.NoFileCompletions)
	for _, name := range [...]string{
		"entrypoint", "env", "workdir", "user", "timeout", "memory", "cpus", "pids", "disk", "files", "nofile",
		"output-limit", "write", "mirror", "name", "hostname", "label",
	} {
		_ = cmd.RegisterFlagCompletionFunc(name, cobra.NoFileCompletions)
	}
}

// run makes the request that o and cmd stand for, and carries it out.
func (a *App) run(ctx context.Context, o *options, cmd sandpit.Command) error {
	steps := newSteps(o.initTime.is)
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	relay := startRelay(cancel)
	defer relay.stop()
	err := a.runSteps(ctx, o, cmd, relay, steps)
	steps.print(a.Stderr)
	if err != nil && o.asJSON.is {
		return a.printJSONError(err)
	}
	return err
}

func (a *App) runSteps(ctx context.Context, o *options, cmd sandpit.Command, relay *relay, steps *steps) error {
	if err := o.configure(a.environ()); err != nil {
		return err
	}
	home, err := o.dataDir()
	if err != nil {
		return err
	}
	spec, err := o.spec()
	if err != nil {
		return err
	}
	if cmd.Script == "" {
		if err := o.program(&cmd, spec.Image); err != nil {
			return err
		}
	}
	if err := a.checkTerminal(o); err != nil {
		return err
	}
	cmd.Timeout = o.timeout.is
	cmd.Stdin = !o.interactive.set || o.interactive.is
	steps.done("flags and configuration")
	shown := a.showProgress()
	defer shown.end()
	client := ClientOptions{Home: home, Trace: steps.trace(), PlainHTTP: o.plainHTTP.is, Mirrors: o.mirrors(), Progress: shown.update}
	m := modes{tty: o.tty.is, json: o.asJSON.is, timeout: o.timeout.is, workdir: o.workdir.set, created: shown.end}
	return a.execute(ctx, client, spec, cmd, m, relay, steps)
}

// program completes the command by the image's entrypoint and command, which
// the engine knows.
func (o *options) program(cmd *sandpit.Command, image string) error {
	cmd.FromImage = true
	if o.entrypoint.set {
		cmd.Entrypoint = []string{}
		if o.entrypoint.is != "" {
			cmd.Entrypoint = append(cmd.Entrypoint, o.entrypoint.is)
		}
	}
	if len(cmd.Argv) > 0 {
		if cmd.Argv[0] == "" {
			return usageErrorf("the name of the command is empty")
		}
		return nil
	}
	if (image == "" || image == "host") && len(cmd.Entrypoint) == 0 {
		return sandpit.WithHint(usageErrorf("there is no command to run"), "sandpit run -- CMD [ARG...]")
	}
	return nil
}

// checkTerminal refuses flags about input and output that exclude each other.
func (a *App) checkTerminal(o *options) error {
	if !o.tty.is {
		return nil
	}
	switch {
	case o.asJSON.is:
		return sandpit.WithHint(usageErrorf("--json and --tty exclude each other"), "leave one of them out")
	case o.interactive.set && !o.interactive.is:
		return sandpit.WithHint(usageErrorf("--tty needs standard input"), "leave --interactive=false out")
	case !isTerminal(a.Stdin):
		return sandpit.WithHint(usageErrorf("--tty needs a terminal, and standard input is none"), "leave --tty out: input and output are passed on anyway")
	}
	return nil
}

// programName is how messages name a program.
func programName(cmd sandpit.Command) string {
	switch {
	case cmd.Script != "":
		return "/bin/sh"
	case len(cmd.Argv) > 0:
		return cmd.Argv[0]
	}
	return strings.Join(cmd.Entrypoint, " ")
}
