package commands

import (
	"strings"

	"github.com/spf13/cobra"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/cli"
)

const completionLong = `Write the completions of a shell to standard output: of commands, flags, their
values, and the names of images.`

const completionExample = `  source <(sandpit completion bash)
  sandpit completion bash >/etc/bash_completion.d/sandpit
  sandpit completion zsh >"${fpath[1]}/_sandpit"
  sandpit completion fish >~/.config/fish/completions/sandpit.fish
  sandpit completion powershell | Out-String | Invoke-Expression`

// completionCommand is sandpit completion.
func (a *tree) completionCommand() *cobra.Command {
	shells := []string{"bash", "zsh", "fish", "powershell"}
	return &cobra.Command{
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
			return sandpit.WithHint(cli.Usagef("completion takes the name of a shell: %s", strings.Join(shells, ", ")), "see sandpit completion --help")
		},
	}
}
