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
	name, remove := textFlag("NAME"), parsedList[string]{parse: notEmpty, shown: "KEY"}
	memory := parsed[int64]{parse: notation.ParseSize, shown: "SIZE"}
	cpus := parsed[float64]{parse: notation.ParseCPUs, shown: "N"}
	pids := parsed[int64]{parse: notation.ParseCount, shown: "N"}
	cmd := a.serverCommand(&cobra.Command{
		Use: "update [flags] NAME...",
		Long: `Change the name, labels and limits of sandboxes, also while they run. Settings that are
not given stay unchanged. Memory can't become less than is in use. sandpit extend changes
lifetimes.`,
		Example:           "  sandpit update --memory 4g --cpus 2 build\n  sandpit update --label team=a --remove-label old build test\n  sandpit update --name release build",
		Args:              arguments(1, -1),
		ValidArgsFunction: a.completeNames(-1),
	}, func(ctx context.Context, s *session, args []string) error {
		c.Name, c.RemoveLabels = name.is, remove.are
		c.Limits.Memory, c.Limits.CPUs, c.Limits.Pids = memory.is, cpus.is, pids.is
		for _, l := range labels.are {
			if c.Labels == nil {
				c.Labels = map[string]string{}
			}
			c.Labels[l[0]] = l[1]
		}
		for _, key := range c.RemoveLabels {
			if _, both := c.Labels[key]; both {
				return sandpit.WithHint(cli.Usagef("--label and --remove-label both name %q", key), "give one of them")
			}
		}
		switch {
		case c.Name == "" && len(c.Labels)+len(c.RemoveLabels) == 0 && c.Limits == (sandpit.Limits{}):
			return sandpit.WithHint(cli.Usagef("no change is given"), "give --name, --label, --remove-label, --memory, --cpus or --pids")
		case c.Name != "" && len(args) > 1:
			return sandpit.WithHint(cli.Usagef("one name can't be given to several sandboxes"), "give one NAME")
		}
		return a.each(ctx, s, args, false, func(ctx context.Context, sb sandpit.Sandbox) error { return sb.Update(ctx, c) })
	})
	cmd.Flags().Var(&name, "name", "new name of the sandbox")
	cmd.Flags().VarP(&labels, "label", "l", "add or replace a label")
	cmd.Flags().Var(&remove, "remove-label", "remove the label with this key")
	cmd.Flags().VarP(&memory, "memory", "m", "memory, including swap, /tmp files and page cache: 512m, 1g")
	cmd.Flags().Var(&cpus, "cpus", "CPUs: 2, 0.5")
	cmd.Flags().Var(&pids, "pids", "processes and threads")
	return cmd
}
