package commands

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/term"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/cli"
)

// annotationSections marks commands with the flags of options, which help shows
// in sections.
const annotationSections = "sections"

const rootHelp = `Sandpit creates sandboxes: computers that start in milliseconds, can't touch yours,
and are thrown away after use.

Usage:
  sandpit run [flags] [--] CMD [ARG...]     run CMD in a new sandbox, then destroy it
  sandpit shell [flags] SCRIPT              the same for a shell script; '-' reads it from stdin

  sandpit create [flags] [NAME]             create a sandbox that persists
  sandpit exec [flags] NAME -- CMD          run CMD in it; -d in the background, -it with a terminal
  sandpit code NAME [FILE]                  run code that keeps its state, or read it at a prompt
  sandpit context ls|create|restart|interrupt|rm NAME
  sandpit ps [NAME]                         list sandboxes, or the processes of one
  sandpit attach|wait|signal NAME PROCESS   attach to a process, wait for it, send it a signal
  sandpit logs|inspect|stats NAME           show its output, its details, its resource usage
  sandpit cp SRC DST                        copy files (NAME:/path); also ls, cat, write, edit
  sandpit forward NAME 8080:80              forward a local port to it
  sandpit network allow NAME pypi.org       let it reach a host
  sandpit secret set NAME                   store a credential that sandboxes use and never see
  sandpit preview NAME PORT                 create a URL that opens its port in a browser
  sandpit stop|start|pause|resume|kill|extend|update|rm NAME
  sandpit prune                             remove those that have stopped or failed
  sandpit events|top                        show events, show resource usage
  sandpit serve|key|audit                   run a server, manage its keys and audit log
  sandpit env CLIENT                        print settings of clients of another project
  sandpit mcp                               serve tools for models (Claude Code, Cursor, …)

  sandpit images ls|pull|commit|tag|inspect|rm|prune|import|export
  sandpit doctor                            check what works here, and how to fix what doesn't
  sandpit policy show [KEY]                 show limits and defaults, or the policy of a key
  sandpit version
  sandpit completion bash|zsh|fish|powershell
  sandpit help [COMMAND|config]

Examples:
  sandpit run -- python3 -c 'print(6*7)'
  sandpit run --mount .:/work --workdir /work -- make test
  sandpit run --image debian:13 -it -- bash
  sandpit shell 'echo hello | wc -c'

'sandpit help run' shows all flags; 'sandpit help config' explains how to set defaults.
`

// help shows what a command does. It is not made by cobra's templates, whose
// package would be part of every start of the program.
func (a *tree) help(cmd *cobra.Command, _ []string) {
	if !cmd.HasParent() {
		_, a.unshown = a.Stdout.WriteString(rootHelp)
		return
	}
	var b strings.Builder
	about := cmd.Long
	if about == "" {
		about = upperFirst(cmd.Short) + "."
	}
	b.WriteString(strings.TrimSpace(about) + "\n")
	if cmd.Runnable() || cmd.HasSubCommands() {
		b.WriteString("\nUsage:\n")
		if cmd.HasSubCommands() {
			var rows [][2]string
			for _, sub := range cmd.Commands() {
				if sub.IsAvailableCommand() {
					rows = append(rows, [2]string{cmd.CommandPath() + " " + sub.Use, sub.Short})
				}
			}
			writeRows(&b, rows, 40)
		} else {
			b.WriteString("  " + cmd.Parent().CommandPath() + " " + cmd.Use + "\n")
		}
	}
	if cmd.Example != "" {
		b.WriteString("\nExamples:\n" + strings.TrimRight(cmd.Example, "\n") + "\n")
	}
	width := helpWidth
	if columns, _, err := term.GetSize(int(a.Stdout.Fd())); err == nil && columns >= 40 {
		width = columns
	}
	shown := pflag.NewFlagSet("", pflag.ContinueOnError)
	if _, ok := cmd.Annotations[annotationSections]; ok {
		for _, section := range cli.NewOptions(a.Lookup).Sections() {
			flags := pflag.NewFlagSet("", pflag.ContinueOnError)
			flags.SortFlags = false
			for _, e := range section.Entries {
				if f := cmd.Flags().Lookup(e.Name); f != nil {
					flags.AddFlag(f)
					shown.AddFlag(f)
				}
			}
			b.WriteString("\n" + section.Title + ":\n" + flags.FlagUsagesWrapped(width))
		}
		b.WriteString("\nTo set defaults with variables and files, see 'sandpit help config'.\n")
	}
	rest := pflag.NewFlagSet("", pflag.ContinueOnError)
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if shown.Lookup(f.Name) == nil && f.Name != "help" {
			rest.AddFlag(f)
		}
	})
	if rest.HasAvailableFlags() {
		b.WriteString("\nFlags:\n" + rest.FlagUsagesWrapped(width))
	}
	_, a.unshown = a.Stdout.WriteString(b.String())
}

// helpWidth is the longest line of help where there is no terminal, in characters.
const helpWidth = 100

// writeRows writes rows of two columns, the first of which has a least width. The second one may have several lines.
func writeRows(b *strings.Builder, rows [][2]string, least int) {
	for _, row := range rows {
		least = max(least, len(row[0]))
	}
	for _, row := range rows {
		line := fmt.Sprintf("  %-*s ", least, row[0])
		for _, word := range strings.Fields(row[1]) {
			if len(line)+1+len(word) > helpWidth {
				b.WriteString(line + "\n")
				line = strings.Repeat(" ", least+3)
			}
			line += " " + word
		}
		b.WriteString(line + "\n")
	}
}

func upperFirst(s string) string {
	if s == "" {
		return s
	}
	return strings.ToUpper(s[:1]) + s[1:]
}

// helpCommand is sandpit help.
func (a *tree) helpCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "help [COMMAND]",
		Short: "show help for a command",
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return cmd.Root().Help()
			}
			target, rest, err := cmd.Root().Find(args)
			if err != nil || target == cmd.Root() || len(rest) > 0 && target.HasSubCommands() {
				return sandpit.WithHint(cli.Usagef("unknown command %q", strings.Join(args, " ")), cmp.Or(meant(cmd.Root(), args[0]), "run 'sandpit help' to list all commands"))
			}
			return target.Help()
		},
		ValidArgsFunction: func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			if len(args) > 0 {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			var names []string
			for _, c := range a.commands() {
				names = append(names, cobra.CompletionWithDesc(c.name, c.short))
			}
			return names, cobra.ShellCompDirectiveNoFileComp
		},
	}
}

// configTopic is the page behind sandpit help config.
func (a *tree) configTopic() *cobra.Command {
	var b strings.Builder
	b.WriteString(`Files and variables set defaults for every run. In order of precedence:

  1. a flag on the command line
  2. a variable: SANDPIT_ and the flag's name, for example SANDPIT_MEMORY=512m for
     --memory and SANDPIT_OUTPUT_LIMIT for --output-limit; one value per line
  3. your file: $SANDPIT_CONFIG, else $XDG_CONFIG_HOME/sandpit/config.yaml, else
     ~/.config/sandpit/config.yaml
  4. the machine's file: /etc/sandpit/config.yaml
  5. the built-in default: see 'sandpit policy show'

A setting at a higher level replaces the same setting at a lower one. Only env, env-file,
label and ulimit are merged; an entry at a higher level replaces the one with the same name.
read-only and write can't be combined: the one at the higher level applies.

Every setting is enforced, or the run is refused. Only built-in defaults are omitted
where a machine can't enforce them: sandpit run and create name these in a line, unless -q or
quiet is set, and 'sandpit doctor' says why.

The keys of a file are the names of flags. An unknown key is an error.

  image: debian:13
  memory: 512m
  timeout: 10m
  env:
    LANG: C.UTF-8
  mount:
    - /srv/cache:/cache:ro

If a server is set, all commands work on its sandboxes and images. A command that can't
says so; no command uses this machine instead. server: local is this machine again, for
example in SANDPIT_SERVER=local sandpit run.

Images and state are stored in SANDPIT_HOME, or the key home; by default in
/var/lib/sandpit for root, else $XDG_DATA_HOME/sandpit, else ~/.local/share/sandpit.

Keys:
`)
	var rows [][2]string
	for _, e := range cli.NewOptions(a.Lookup).Settable() {
		rows = append(rows, [2]string{e.Name, e.Usage})
	}
	writeRows(&b, rows, 0)
	return at(&cobra.Command{
		Use:  "config",
		Long: b.String(),
	}, placeProgram)
}
