// Package cli is the command line: what a person types, made into requests to
// a sandpit.Client, and what came of them, made into output and an exit code.
//
// The rules of what is shown:
//
//   - Stdout and stderr of `sandpit run` are those of CMD. Sandpit adds to
//     stderr only when it has something to say, and to stdout only what was
//     asked for by name.
//   - An error is one line, "sandpit: doing something: why", without a capital
//     or a full stop, and, when there is a way out, a second: "hint: do this".
//   - What comes from a sandbox, an image or a registry is made harmless before
//     it is shown on a terminal as part of a message.
//   - Progress is shown only when stderr is a terminal.
//
// The start of the program counts as part of every sandbox's start, so nothing
// is built that the command at hand does not need.
package cli

import (
	"context"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/config"
	"github.com/sandpit-dev/sandpit/internal/driver"
	"github.com/sandpit-dev/sandpit/internal/image"
)

// App is the program, with everything that it takes from outside.
type App struct {
	// Stdin, Stdout and Stderr are files because they may be terminals.
	Stdin, Stdout, Stderr *os.File

	// Environ is the environment: "NAME=VALUE".
	Environ []string

	// SystemConfig is the configuration file of the machine; empty: none.
	SystemConfig string

	// Version is the release, empty for a build from a work tree.
	Version string

	// NewClient opens the engine.
	NewClient func(ClientOptions) (sandpit.Client, error)

	// Drivers returns the drivers of this program, the preferred one first.
	Drivers func(home string) []driver.Driver

	// OpenImages opens the image store that is kept under home.
	OpenImages func(home string) *image.Store

	completing bool // a shell asks for completions; set by Run
}

// ClientOptions say how a client is opened.
type ClientOptions struct {
	// Home is the data directory.
	Home string

	// Trace, when set, receives the time of every step of making a sandbox.
	Trace func(step string, took time.Duration)

	// Progress, when set, is called as layers of an image arrive.
	Progress func(image.Progress)

	// PlainHTTP and Mirrors are those of image.AcquireOptions.
	PlainHTTP bool
	Mirrors   map[string][]string
}

// lookup finds a variable of the environment.
func (a *App) lookup(name string) (string, bool) {
	// The last one wins, as in os/exec.
	for i := len(a.Environ) - 1; i >= 0; i-- {
		if value, ok := strings.CutPrefix(a.Environ[i], name); ok && strings.HasPrefix(value, "=") {
			return value[1:], true
		}
	}
	return "", false
}

func (a *App) environ() config.Environ {
	return config.Environ{Lookup: a.lookup, System: a.SystemConfig}
}

// Run carries out a command line, without the program's name. The error is for
// Report, which says what is left to say and gives the exit code.
func (a *App) Run(ctx context.Context, args []string) error {
	a.completing = len(args) > 0 && strings.HasPrefix(args[0], cobra.ShellCompRequestCmd)
	root := a.root(args)
	root.SetArgs(args)
	return root.ExecuteContext(ctx)
}

// command is one of the program's commands.
type command struct {
	name, short string
	make        func() *cobra.Command
	topic       bool // a page of help
}

func (a *App) commands() []command {
	return []command{
		{"run", "run a command in a fresh sandbox", a.runCommand, false},
		{"shell", "run a shell script in a fresh sandbox", a.shellCommand, false},
		{"images", "list, fetch and remove images", a.imagesCommand, false},
		{"doctor", "say what works here, what doesn't, and what to do about it", a.doctorCommand, false},
		{"policy", "show limits and their defaults", a.policyCommand, false},
		{"version", "show the version", a.versionCommand, false},
		{"completion", "write the completions of a shell", a.completionCommand, false},
		{"config", "how files and variables set defaults", a.configTopic, true},
	}
}

// root returns the tree of commands. Only the commands that args name are
// built with their flags; the others are there with their names.
func (a *App) root(args []string) *cobra.Command {
	root := &cobra.Command{
		Use:                        "sandpit",
		Long:                       "Sandpit gives AI agents, and you, safe computers: sandboxes that are made in milliseconds and thrown away.",
		Args:                       cobra.ArbitraryArgs,
		SilenceErrors:              true,
		SuggestionsMinimumDistance: 2,
		SilenceUsage:               true,
		CompletionOptions:          cobra.CompletionOptions{DisableDefaultCmd: true},
		RunE: func(cmd *cobra.Command, args []string) error {
			if showVersion, _ := cmd.Flags().GetBool("version"); showVersion {
				return a.printVersion(false)
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
		} else {
			made = &cobra.Command{Use: c.name, RunE: func(*cobra.Command, []string) error {
				return sandpit.WithHint(usageErrorf("the command %s does not come first", c.name), "put flags after it")
			}}
		}
		made.Short, made.Hidden = c.short, c.topic
		root.AddCommand(made)
	}
	root.SetHelpCommand(a.helpCommand())
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
	err := usageErrorf("there is no command %q", name)
	if like := cmd.SuggestionsFor(name); len(like) > 0 {
		return sandpit.WithHint(err, "did you mean: sandpit "+like[0])
	}
	return sandpit.WithHint(err, "to run a program: sandpit run -- "+name+"; for all commands: sandpit help")
}
