package commands

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/cli"
	"github.com/sandpit-dev/sandpit/internal/notation"
)

// updateCommand is sandpit update.
func (a *tree) updateCommand() *cobra.Command {
	var c sandpit.Change
	labels := parsedList[[2]string]{parse: parseLabel, shown: "KEY=VALUE"}
	memory := parsed[int64]{parse: notation.ParseSize, shown: "SIZE"}
	var cmd *cobra.Command
	cmd = a.serverCommand(&cobra.Command{
		Use: "update [flags] NAME...",
		Long: `Change the name, labels and limits of sandboxes, also while they run. Settings that are
not given stay unchanged. Memory can't become less than is in use. sandpit extend changes
lifetimes.`,
		Example:           "  sandpit update --memory 4g --cpus 2 build\n  sandpit update --label team=a --remove-label old build test\n  sandpit update --name release build",
		Args:              arguments(1, -1),
		ValidArgsFunction: a.completeNames(-1),
	}, func(ctx context.Context, s *session, args []string) error {
		for _, flag := range []string{"name", "cpus", "pids"} {
			if value := cmd.Flag(flag).Value.String(); cmd.Flags().Changed(flag) && (value == "" || value == "0") {
				return sandpit.WithHint(cli.Usagef("--%s has no value", flag), "leave it out to keep the present one")
			}
		}
		c.Limits.Memory = memory.is
		for _, l := range labels.are {
			if c.Labels == nil {
				c.Labels = map[string]string{}
			}
			c.Labels[l[0]] = l[1]
		}
		switch {
		case c.Name == "" && len(c.Labels)+len(c.RemoveLabels) == 0 && c.Limits == (sandpit.Limits{}):
			return sandpit.WithHint(cli.Usagef("no change is given"), "give --name, --label, --remove-label, --memory, --cpus or --pids")
		case c.Name != "" && len(args) > 1:
			return sandpit.WithHint(cli.Usagef("one name can't be given to several sandboxes"), "give one NAME")
		}
		return a.each(ctx, s, args, false, func(ctx context.Context, sb sandpit.Sandbox) error { return sb.Update(ctx, c) })
	})
	cmd.Flags().StringVar(&c.Name, "name", "", "new `NAME` of the sandbox")
	cmd.Flags().VarP(&labels, "label", "l", "add or replace a label")
	cmd.Flags().StringArrayVar(&c.RemoveLabels, "remove-label", nil, "remove the label with this `KEY`")
	cmd.Flags().VarP(&memory, "memory", "m", "memory, including swap, /tmp files and page cache: 512m, 1g")
	cmd.Flags().Float64Var(&c.Limits.CPUs, "cpus", 0, "`N` CPUs: 0.5, 2")
	cmd.Flags().Int64Var(&c.Limits.Pids, "pids", 0, "`N` processes and threads")
	return cmd
}
