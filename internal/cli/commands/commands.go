// Package commands is the whole command line: the commands of package cli and
// all others, with their help and their completion in shells, by cobra.
package commands

import (
	"cmp"
	"context"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/cli"
)

// tree makes the commands of an App.
type tree struct {
	*cli.App
	completing bool  // a shell asks for completions
	prompting  bool  // code is read at a prompt, which has said whether it keeps state
	unshown    error // why help could not be written; cobra has no place for that
}

// Run runs a command line, without the program's name. The error is for App.Report, which
// prints it and returns the exit code.
func Run(ctx context.Context, app *cli.App, args []string) error {
	a := &tree{App: app, completing: len(args) > 0 && strings.HasPrefix(args[0], cobra.ShellCompRequestCmd)}
	root := a.root(args)
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	return cmp.Or(err, a.unshown)
}

// command is one of the program's commands.
type command struct {
	name, short string
	make        func() *cobra.Command
	topic       bool // a page of help
}

func (a *tree) commands() []command {
	return []command{
		{"run", "run a command in a new sandbox", a.runCommand, false},
		{"shell", "run a shell script in a new sandbox", a.shellCommand, false},
		{"create", "create a sandbox that persists", a.createCommand, false},
		{"exec", "run a command in a sandbox", a.execCommand, false},
		{"code", "run code in a sandbox, which keeps its state", a.codeCommand, false},
		{"context", "list and change the contexts of code", a.contextCommand, false},
		{"ps", "list sandboxes, or the processes of one", a.psCommand, false},
		{"attach", "attach to a process", a.attachCommand, false},
		{"wait", "wait until a process exits", a.waitCommand, false},
		{"signal", "send a signal to a process", a.signalCommand, false},
		{"stop", "stop a sandbox", a.stopCommand, false},
		{"start", "start a sandbox that is stopped or was not started", a.startCommand, false},
		{"kill", "stop a sandbox immediately", a.killCommand, false},
		{"pause", "pause a sandbox", a.pauseCommand, false},
		{"resume", "resume a paused sandbox", a.resumeCommand, false},
		{"extend", "change the lifetime of a sandbox", a.extendCommand, false},
		{"update", "change the name, labels and limits of a sandbox", a.updateCommand, false},
		{"rm", "remove a sandbox", a.removeCommand, false},
		{"prune", "remove all sandboxes that have stopped or failed", a.pruneCommand, false},
		{"logs", "show the output of processes", a.logsCommand, false},
		{"inspect", "show the details of a sandbox", a.inspectCommand, false},
		{"stats", "show the resource usage of sandboxes", a.statsCommand, false},
		{"top", "show the resource usage of sandboxes continuously", a.topCommand, false},
		{"events", "show the events of sandboxes", a.eventsCommand, false},
		{"ls", "list a directory of a sandbox", a.lsCommand, false},
		{"cat", "write files of a sandbox to standard output", a.catCommand, false},
		{"write", "write a file of a sandbox", a.writeCommand, false},
		{"edit", "replace text in a file of a sandbox", a.editCommand, false},
		{"cp", "copy files into or out of a sandbox", a.cpCommand, false},
		{"forward", "forward local ports to a sandbox", a.forwardCommand, false},
		{"preview", "open a port of a sandbox in browsers, by a URL", a.previewCommand, false},
		{"network", "show and change what a sandbox may reach", a.networkCommand, false},
		{"serve", "run a server for many users", a.serveCommand, false},
		{"mcp", "serve tools for models, by the Model Context Protocol", a.mcpCommand, false},
		{"env", "print the settings of clients of other projects", a.envCommand, false},
		{"secret", "store credentials that sandboxes use and never see", a.secretCommand, false},
		{"key", "create, list and revoke keys", a.keyCommand, false},
		{"audit", "verify and search the audit log of a server", a.auditCommand, false},
		{"images", "list, fetch and remove images", a.imagesCommand, false},
		{"doctor", "check what works on this machine, and how to fix what doesn't", a.doctorCommand, false},
		{"policy", "show limits and their defaults", a.policyCommand, false},
		{"version", "show the version", a.versionCommand, false},
		{"completion", "write a shell completion script", a.completionCommand, false},
		{"config", "set defaults with files and variables", a.configTopic, true},
	}
}

// root returns the tree of commands. Only the commands that args name are
// built with their flags; the others are there with their names.
func (a *tree) root(args []string) *cobra.Command {
	root := &cobra.Command{
		Use:                        "sandpit",
		Long:                       "Sandpit gives AI agents, and you, safe computers: sandboxes that start in milliseconds and are thrown away after use.",
		Args:                       cobra.ArbitraryArgs,
		SilenceErrors:              true,
		SuggestionsMinimumDistance: 2,
		SilenceUsage:               true,
		CompletionOptions:          cobra.CompletionOptions{DisableDefaultCmd: true},
		RunE: func(cmd *cobra.Command, args []string) error {
			if showVersion, _ := cmd.Flags().GetBool("version"); showVersion {
				return a.PrintVersion(false)
			}
			if len(args) == 0 {
				return cmd.Help()
			}
			return unknownCommand(cmd, args[0])
		},
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	root.Flags().Bool("version", false, "show the version")
	root.SetOut(a.Stdout)
	root.SetErr(a.Stderr)
	root.SetIn(a.Stdin)
	root.SetFlagErrorFunc(flagError)
	root.SetHelpFunc(a.help)
	root.SetUsageFunc(func(*cobra.Command) error { return nil })
	for _, c := range a.commands() {
		var made *cobra.Command
		if named(args, c.name) {
			made = c.make()
			acceptHabits(made)
		} else {
			made = &cobra.Command{Use: c.name, RunE: func(*cobra.Command, []string) error {
				return sandpit.WithHint(cli.Usagef("command %s must come before all flags", c.name), "put flags after the command")
			}}
		}
		made.Short, made.Hidden = c.short, c.topic
		root.AddCommand(made)
	}
	root.SetHelpCommand(a.helpCommand())
	if a.completing {
		a.completeFlags(root)
	}
	return root
}

// named reports whether a command's name is among the arguments: in the first
// place, or, for help and completion, after those.
func named(args []string, name string) bool {
	for i, arg := range args {
		if arg == name {
			return true
		}
		if i == 1 && args[0] != "help" && !strings.HasPrefix(args[0], cobra.ShellCompRequestCmd) {
			break
		}
	}
	return false
}

func unknownCommand(cmd *cobra.Command, name string) error {
	hint := "to run a program: 'sandpit run -- " + cmp.Or(name, "CMD") + "'; for all commands: 'sandpit help'"
	return sandpit.WithHint(cli.Usagef("unknown command %q", name), cmp.Or(meant(cmd, name), hint))
}

// meant returns a hint to the command that an unknown one probably means, or "".
func meant(cmd *cobra.Command, name string) string {
	similar := cmd.SuggestionsFor(name)
	if hint := commandHabit(name); hint != "" && (!cmd.HasParent() || strings.Contains(hint, cmd.CommandPath()+" ")) {
		return hint
	}
	if !cmd.HasParent() {
		if distance("help", name, 3) < 3 { // which cobra does not suggest
			similar = append(similar, "help")
		}
	}
	for _, like := range similar {
		// Two changes can turn a short word into an unrelated one, such as nope into top.
		if name != "" && like != name && (like[0] == name[0] || distance(like, name, 3) < 2) {
			return "did you mean '" + cmd.CommandPath() + " " + like + "'?"
		}
	}
	return ""
}
