package cli

import (
	"context"
	"io"
	"strings"

	"github.com/sandpit-dev/sandpit"
)

// Run is sandpit run: o has its flags, argv is what follows them.
func (a *App) Run(ctx context.Context, o *Options, argv []string) error {
	return a.run(ctx, o, sandpit.Command{Argv: argv})
}

// Shell is sandpit shell: o has its flags, args is what follows them.
func (a *App) Shell(ctx context.Context, o *Options, args []string) error {
	if len(args) != 1 {
		return sandpit.WithHint(Usagef("shell takes one argument, the script, not %d", len(args)), "quote the script: sandpit shell 'echo hello | wc -c'")
	}
	if o.entrypoint.set {
		return sandpit.WithHint(Usagef("--entrypoint can't be combined with a script"), "use 'sandpit run'")
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
	return a.run(ctx, o, sandpit.Command{Script: script})
}

// maxScript is the longest script, in bytes: it is one argument of /bin/sh, and
// Linux takes none of 128 KiB and more (MAX_ARG_STRLEN of linux/binfmts.h).
const maxScript = 128<<10 - 1

func (a *App) readScript(o *Options) (string, error) {
	if o.tty.is {
		return "", sandpit.WithHint(Usagef("--tty can't be combined with a script from standard input"), "give the script as an argument")
	}
	text, err := io.ReadAll(io.LimitReader(a.Stdin, maxScript+1))
	switch {
	case err != nil:
		return "", Usagef("reading the script from standard input: %v", err)
	case len(text) > maxScript:
		return "", sandpit.WithHint(Usagef("the script is longer than 128 KiB"), "let the shell read it: 'sandpit run -- sh <SCRIPT'")
	}
	return string(text), nil
}

// run makes the request that o and cmd stand for, and carries it out.
func (a *App) run(ctx context.Context, o *Options, cmd sandpit.Command) error {
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

func (a *App) runSteps(ctx context.Context, o *Options, cmd sandpit.Command, relay *relay, steps *steps) (err error) {
	OwnerUmask()
	if err := o.Configure(a.Config()); err != nil {
		return err
	}
	address, key := o.Server()
	home, remove, err := o.runDir(o.image.is)
	if err != nil {
		return err
	}
	defer func() { err = orFailure(err, "removing the data directory of this sandbox", remove()) }()
	spec, err := o.Spec()
	if err == nil {
		err = o.Elsewhere(true)
	}
	if err == nil {
		err = a.ReadSecrets(ctx, o, &spec)
	}
	if err != nil {
		return err
	}
	cmd.Rlimits, spec.Rlimits = spec.Rlimits, nil // of the only command
	if cmd.Script == "" {
		if err := o.program(&cmd, spec.Image); err != nil {
			return err
		}
	}
	if err := a.checkTerminal(o); err != nil {
		return err
	}
	a.WarnVariables(o)
	a.WarnMachine(o)
	if !o.asJSON.is {
		a.WarnInert(o, spec, false)
	}
	cmd.Timeout = o.timeout.is
	cmd.Stdin = !o.interactive.set || o.interactive.is
	steps.done("flags and configuration")
	shown := a.ShowProgress()
	defer shown.End()
	way, err := o.Upstream()
	if err != nil {
		return err
	}
	options := ClientOptions{Home: home, Trace: steps.trace(), Acquire: o.Acquire(), Upstream: way}
	options.Acquire.Progress = shown.Update
	m := modes{tty: o.tty.is, json: o.asJSON.is, timeout: o.timeout.is, workdir: o.workdir.set, created: shown.End, warn: !o.quiet.is && !o.asJSON.is}
	switch {
	case address == "" && len(spec.Secrets) > 0: // which this user's server stores
		m.server, spec.Idle = home, serverIdle
		m.open = func(ctx context.Context) (sandpit.Client, error) {
			client, started, err := a.Connect(ctx, ConnectOptions{Home: home, Environ: o.ServerEnviron(a.Environ)})
			if err == nil && !started {
				if err = o.restart(home); err != nil {
					_ = client.Close()
				}
			}
			return client, err
		}
	case address == "":
		m.open = func(context.Context) (sandpit.Client, error) { return a.NewClient(options) }
		if a.mayServe(ctx, o, home, spec) {
			m.served = home
		}
	default:
		m.server, spec.Idle = address, serverIdle
		m.open = func(ctx context.Context) (sandpit.Client, error) {
			client, _, err := a.Connect(ctx, ConnectOptions{Address: address, Key: key})
			return client, err
		}
	}
	return a.execute(ctx, spec, cmd, m, relay, steps)
}

// program completes the command by the image's entrypoint and command, which
// the engine knows.
func (o *Options) program(cmd *sandpit.Command, image string) error {
	cmd.FromImage = true
	if o.entrypoint.set {
		cmd.Entrypoint = []string{}
		if o.entrypoint.is != "" {
			cmd.Entrypoint = append(cmd.Entrypoint, o.entrypoint.is)
		}
	}
	if len(cmd.Argv) > 0 {
		return nil
	}
	if (image == "" || image == "host") && len(cmd.Entrypoint) == 0 {
		return sandpit.WithHint(Usagef("no command is given"), "write 'sandpit run -- CMD [ARG...]'")
	}
	return nil
}

// checkTerminal refuses flags about input and output that exclude each other.
func (a *App) checkTerminal(o *Options) error {
	if o.detachOn.is != "" && (!o.tty.is || o.detach.is) {
		return sandpit.WithHint(Usagef("--detach-keys needs --tty, and excludes --detach"), "omit it, or give it to 'sandpit attach'")
	}
	if !o.tty.is {
		return nil
	}
	switch {
	case o.asJSON.is && !o.detach.is:
		return sandpit.WithHint(Usagef("--json and --tty can't be combined"), "omit one of them")
	case o.interactive.set && !o.interactive.is:
		return sandpit.WithHint(Usagef("--tty needs standard input"), "omit --interactive=false")
	case !o.detach.is && !IsTerminal(a.Stdin):
		return sandpit.WithHint(Usagef("--tty needs a terminal as standard input"), "omit --tty: input and output are passed on without it")
	}
	return nil
}

// programName is how messages name a program.
func programName(cmd sandpit.Command) string {
	switch {
	case cmd.Script != "":
		return "/bin/sh"
	case len(cmd.Argv) > 0 && cmd.Argv[0] == "":
		return `""`
	case len(cmd.Argv) > 0:
		return cmd.Argv[0]
	}
	return strings.Join(cmd.Entrypoint, " ")
}
