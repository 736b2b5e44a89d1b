package commands

import "github.com/spf13/cobra"

// versionCommand is sandpit version.
func (a *tree) versionCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:               "version",
		Long:              "Show the version of this program.",
		Args:              noArguments,
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	asJSON := cmd.Flags().Bool("json", false, "print JSON")
	cmd.RunE = func(*cobra.Command, []string) error { return a.PrintVersion(*asJSON) }
	return at(cmd, placeProgram)
}
