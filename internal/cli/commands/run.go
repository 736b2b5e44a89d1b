package commands

import (
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/sandpit-dev/sandpit/internal/cli"
)

const runLong = `Run CMD in a new sandbox, then destroy it.

It works like running CMD directly: standard input is passed on, output is shown as it is
written, signals reach CMD, and the exit code is CMD's. The network is closed but for
what --egress and --allow open, the host's files are out of reach, and every limit has a
default: see 'sandpit policy show'. Without CMD, the image's own command runs.

Exit codes: CMD's own; 124 if it timed out; 125 if Sandpit itself failed; 126 if CMD can't
be executed; 127 if CMD does not exist; 128+n if signal n killed it.

If a server is configured (SANDPIT_SERVER, see 'sandpit help config'), the sandbox is created
there. Mounts and images of this machine are then refused.

Standard input is read even if CMD does not use it. In a shell loop that reads lines from
its own input, write sandpit run ... </dev/null.`

const runExample = `  sandpit run -- python3 -c 'print(6*7)'
  sandpit run --memory 256m --timeout 10s -- ./untrusted
  sandpit run --mount .:/work --workdir /work -- make test
  sandpit run --mount .:/src:ro --write /out -- sh -c 'wc -l /src/* >/out/lines'
  sandpit run --image debian:13 -it -- bash
  git diff | sandpit run -- wc -l
  sandpit run --json -- node -e 'console.log(1)'`

const shellLong = `Run a shell script in a new sandbox, then destroy it, as sandpit run does with a command.
SCRIPT is the text of the script; '-' reads it from standard input, and the script's own
input is then empty.`

const shellExample = `  sandpit shell 'cd /tmp && echo hello >a && cat a'
  sandpit shell --mount .:/work --workdir /work 'make && make test'
  sandpit shell - <build.sh`

// runCommand is sandpit run.
func (a *tree) runCommand() *cobra.Command {
	o := cli.NewOptions(a.Lookup)
	cmd := &cobra.Command{
		Use:     "run [flags] [--] CMD [ARG...]",
		Long:    runLong,
		Example: runExample,
		RunE:    func(cmd *cobra.Command, args []string) error { return a.Run(cmd.Context(), o, args) },
		ValidArgsFunction: func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			return nil, cobra.ShellCompDirectiveDefault
		},
	}
	a.sandboxFlags(cmd, o)
	return at(cmd, placeServer)
}

// shellCommand is sandpit shell.
func (a *tree) shellCommand() *cobra.Command {
	o := cli.NewOptions(a.Lookup)
	cmd := &cobra.Command{
		Use:               "shell [flags] [--] SCRIPT",
		Long:              shellLong,
		Example:           shellExample,
		RunE:              func(cmd *cobra.Command, args []string) error { return a.Shell(cmd.Context(), o, args) },
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	a.sandboxFlags(cmd, o)
	return at(cmd, placeServer)
}

// sandboxFlags gives cmd the flags of o.
func (a *tree) sandboxFlags(cmd *cobra.Command, o *cli.Options) {
	for _, section := range o.Sections() {
		addFlags(cmd.Flags(), section.Entries...)
	}
	closeFlags(cmd, o)
	cmd.Flags().SetInterspersed(false) // what follows CMD is CMD's
	cmd.Annotations = map[string]string{annotationSections: ""}
}

// addFlags makes flags known to cobra.
func addFlags(flags *pflag.FlagSet, entries ...cli.Entry) {
	for _, e := range entries {
		f := flags.VarPF(e.Value, e.Name, e.Shorthand, e.Usage)
		if e.Switch() {
			f.NoOptDefVal = "true"
		}
	}
}
