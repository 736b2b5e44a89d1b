package cli

import (
	"github.com/spf13/cobra"
)

func (a *App) imagesCommand() *cobra.Command { return &cobra.Command{Use: "images"} }

// completeImages completes the names of images in the store.
func (a *App) completeImages(_ *cobra.Command, _ []string, prefix string) ([]string, cobra.ShellCompDirective) {
	o := newOptions(a.lookup)
	if err := o.configure(a.environ()); err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	home, err := o.dataDir()
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return a.OpenImages(home).Names(prefix), cobra.ShellCompDirectiveNoFileComp
}
