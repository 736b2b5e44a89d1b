package cli

import (
	"github.com/spf13/cobra"
)

type Images interface{}

func (a *App) imagesCommand() *cobra.Command { return &cobra.Command{Use: "images"} }

func (a *App) completeImages(_ *cobra.Command, _ []string, prefix string) ([]string, cobra.ShellCompDirective) {
	return nil, cobra.ShellCompDirectiveNoFileComp
}
