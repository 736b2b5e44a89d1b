package commands

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/term"

	"github.com/sandpit-dev/sandpit/internal/cli"
)

// annotationSections marks commands with the flags of options, which help shows
// in sections.
const annotationSections = "sections"

const rootHelp = `Sandpit makes sandboxes: computers that are there in milliseconds, can't touch
yours, and are thrown away when they have done their work.

Usage:
  sandpit run [flags] [--] CMD [ARG...]     run CMD in a fresh sandbox, then destroy it
  sandpit shell [flags] SCRIPT              the same for a shell script; '-' reads it from stdin

  sandpit create [flags] [NAME]             make a sandbox that stays
  sandpit exec [flags] NAME -- CMD          run CMD in it; -d in the background, -it with a terminal
  sandpit ps [NAME]                         list sandboxes, or the processes of one
  sandpit attach|wait|signal NAME PROCESS   connect to a process, wait for its end, send it a signal
  sandpit logs|inspect|stats NAME           what it has written, what is known of it, what it uses
  sandpit cp SRC DST                        copy files in or out (NAME:/path); also ls, cat, write, edit
  sandpit forward NAME 8080:80              make a port reachable here
  sandpit stop|start|pause|resume|kill|extend|rm NAME
  sandpit events|top                        what happens, what is used
  sandpit serve|key|audit                   a server for others, their keys, what they did

  sandpit images ls|pull|inspect|rm|prune|import|export
  sandpit doctor                            what works here, what doesn't, and what to do about it
  sandpit policy show [KEY]                 limits and their defaults, or what a key may do
  sandpit version
  sandpit completion bash|zsh|fish|powershell
  sandpit help [COMMAND|config]

Examples:
  sandpit run -- python3 -c 'print(6*7)'
  sandpit run --mount .:/work --workdir /work -- make test
  sandpit run --image debian:13 -it -- bash
  sandpit shell 'echo hello | wc -c'

sandpit help run has all flags; sandpit help config says how to set their defaults.
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
			for _, sub := range cmd.Commands() {
				if sub.IsAvailableCommand() {
					fmt.Fprintf(&b, "  %-42s %s\n", cmd.CommandPath()+" "+sub.Use, sub.Short)
				}
			}
		} else {
			b.WriteString("  " + cmd.Parent().CommandPath() + " " + cmd.Use + "\n")
		}
	}
	if cmd.Example != "" {
		b.WriteString("\nExamples:\n" + strings.TrimRight(cmd.Example, "\n") + "\n")
	}
	width := 100
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
		b.WriteString("\nVariables and files set defaults for these: see sandpit help config.\n")
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
		Short: "say how a command is used",
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return cmd.Root().Help()
			}
			target, rest, err := cmd.Root().Find(args)
			if err != nil || target == cmd.Root() || len(rest) > 0 && target.HasSubCommands() {
				return unknownCommand(cmd.Root(), strings.Join(args, " "))
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
	b.WriteString(`Defaults for every run come from files and variables. The strongest first:

  1. a flag on the command line
  2. a variable: SANDPIT_ and the flag's name, so SANDPIT_MEMORY=512m for --memory,
     SANDPIT_OUTPUT_LIMIT for --output-limit; several values stand on lines of their own
  3. your file: $SANDPIT_CONFIG, else $XDG_CONFIG_HOME/sandpit/config.yaml, else
     ~/.config/sandpit/config.yaml
  4. the machine's file: /etc/sandpit/config.yaml
  5. what is built in: see sandpit policy show

A stronger level replaces what a weaker one says for the same key. Only env,
env-file and label add up, and a stronger entry replaces a weaker one of its name.
Of read-only and write, which exclude each other, the stronger level's counts.

What any of them asks for is enforced, or the run is refused; only what is built in
may be left out where a machine can't enforce it, and sandpit doctor lists that.

A file has the names of flags as keys. A key that does not exist is an error.

  image: debian:13
  memory: 512m
  timeout: 10m
  env:
    LANG: C.UTF-8
  mount:
    - /srv/cache:/cache:ro

Images and state are kept in SANDPIT_HOME, or the key home; by default in
/var/lib/sandpit for root, else $XDG_DATA_HOME/sandpit, else ~/.local/share/sandpit.

Keys:
`)
	for _, e := range cli.NewOptions(a.Lookup).Settable() {
		fmt.Fprintf(&b, "  %-13s %s\n", e.Name, e.Usage)
	}
	return &cobra.Command{
		Use:  "config",
		Long: b.String(),
	}
}
