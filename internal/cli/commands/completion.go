package commands

import (
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/cli"
	"github.com/sandpit-dev/sandpit/internal/egress"
	"github.com/sandpit-dev/sandpit/internal/keys"
	"github.com/sandpit-dev/sandpit/internal/mcp"
	"github.com/sandpit-dev/sandpit/internal/notation"
)

const completionLong = `Write a completion script for a shell to standard output. It completes commands, flags,
their values, and the names of sandboxes and images. For bash it needs the package
bash-completion.`

const completionExample = `  source <(sandpit completion bash)
  sandpit completion bash >/etc/bash_completion.d/sandpit
  sandpit completion zsh >"${fpath[1]}/_sandpit"
  sandpit completion fish >~/.config/fish/completions/sandpit.fish
  sandpit completion powershell | Out-String | Invoke-Expression`

// completionCommand is sandpit completion.
func (a *tree) completionCommand() *cobra.Command {
	shells := []string{"bash", "zsh", "fish", "powershell"}
	return at(&cobra.Command{
		Use:       "completion bash|zsh|fish|powershell",
		Long:      completionLong,
		Example:   completionExample,
		ValidArgs: shells,
		RunE: func(cmd *cobra.Command, args []string) error {
			root := cmd.Root()
			if len(args) == 1 {
				switch args[0] {
				case "bash":
					return root.GenBashCompletionV2(a.Stdout, true)
				case "zsh":
					return root.GenZshCompletion(a.Stdout)
				case "fish":
					return root.GenFishCompletion(a.Stdout, true)
				case "powershell":
					return root.GenPowerShellCompletionWithDesc(a.Stdout)
				}
			}
			return sandpit.WithHint(cli.Usagef("completion needs the name of a shell: %s", strings.Join(shells, ", ")), "see 'sandpit completion --help'")
		},
	}, placeProgram)
}

// completeFlags says what completes the value of each flag of a command and of
// those below it.
func (a *tree) completeFlags(cmd *cobra.Command) {
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		complete := cobra.NoFileCompletions
		words := func(words ...string) {
			complete = cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp)
		}
		switch f.Name {
		case "image":
			complete = a.completeImages
		case "pull":
			words("missing", "always", "never")
		case "egress":
			words("none", "registries", "public", "all", "learn")
		case "allow", "deny":
			words(egress.SetNames()...)
		case "ulimit":
			resources := notation.RlimitResources()
			for i := range resources {
				resources[i] += "="
			}
			complete = cobra.FixedCompletions(resources, cobra.ShellCompDirectiveNoFileComp|cobra.ShellCompDirectiveNoSpace)
		case "on-expiry":
			words("remove", "stop", "pause")
		case "language":
			words(slices.Concat(sandpit.Languages(), sandpit.StatelessLanguages())...)
		case "context":
			complete = a.completeContexts
		case "platform":
			words("linux/amd64", "linux/arm64")
		case "signal":
			words("TERM", "INT", "HUP", "KILL", "STOP", "CONT", "USR1", "USR2")
		case "stream":
			words("stdout", "stderr")
		case "filter":
			complete = cobra.FixedCompletions(filterKeys(cmd.Name()), cobra.ShellCompDirectiveNoFileComp|cobra.ShellCompDirectiveNoSpace)
		case "format":
			if cmd.Name() == "create" { // a key
				words(keys.Formats()...)
				break
			}
			words("json", "{{.")
		case "secret", "secret-env":
			complete = a.completeSecrets(-1)
		case "sandbox":
			complete = a.completeNames(-1)
		case "tools":
			words(mcp.Names()...)
		case "from":
			complete = cobra.FixedCompletions([]string{"env:", "file:", "cmd:"}, cobra.ShellCompDirectiveNoSpace)
		case "upstream-proxy":
			complete = cobra.FixedCompletions([]string{"http://", "https://", "socks5://"}, cobra.ShellCompDirectiveNoFileComp|cobra.ShellCompDirectiveNoSpace)
		case "env-file", "mount", "volume", "config", "ca-bundle":
			return // files, as the shell has them
		}
		_ = cmd.RegisterFlagCompletionFunc(f.Name, complete)
	})
	for _, sub := range cmd.Commands() {
		a.completeFlags(sub)
	}
}
