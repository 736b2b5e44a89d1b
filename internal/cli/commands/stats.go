package commands

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/cli"
	"github.com/sandpit-dev/sandpit/internal/notation"
)

// statsCommand is sandpit stats.
func (a *tree) statsCommand() *cobra.Command {
	var asJSON bool
	cmd := a.serverCommand(&cobra.Command{
		Use: "stats [flags] [NAME...]",
		Long: "Show what sandboxes use: processor time over the last second, memory, processes, and of their own " +
			"file system bytes and inodes beside their limits; and what went over their network.",
		Example:           "  sandpit stats\n  sandpit stats --json work",
		ValidArgsFunction: a.completeNames(-1),
	}, func(ctx context.Context, s *session, args []string) error {
		rows, err := s.measure(ctx, args, nil)
		if err != nil {
			return err
		}
		if err := sleep(ctx, time.Second); err != nil {
			return err
		}
		if rows, err = s.measure(ctx, args, rows); err != nil {
			return err
		}
		if asJSON {
			objects := make([]jsonMetrics, len(rows))
			for i, r := range rows {
				objects[i] = jsonOfUse(r)
			}
			return a.PrintJSON(objects)
		}
		return a.printUse(rows)
	})
	cmd.Flags().BoolVar(&asJSON, "json", false, "print a list of objects")
	return cmd
}

// topCommand is sandpit top.
func (a *tree) topCommand() *cobra.Command {
	every := durationFlag()
	cmd := a.serverCommand(&cobra.Command{
		Use:     "top [flags]",
		Long:    "Show what sandboxes use, those that use most first, again and again until ^C.",
		Example: "  sandpit top",
		Args:    noArguments,
	}, func(ctx context.Context, s *session, _ []string) error {
		pause := 2 * time.Second
		if every.set {
			pause = every.is
		}
		if !cli.IsTerminal(a.Stdout) {
			return sandpit.WithHint(cli.Usagef("top needs a terminal to draw on"), "use sandpit stats")
		}
		var rows []use
		for {
			var err error
			if rows, err = s.measure(ctx, nil, rows); err != nil {
				return err
			}
			slices.SortStableFunc(rows, func(x, y use) int {
				switch {
				case x.percent > y.percent:
					return -1
				case x.percent < y.percent:
					return 1
				}
				return 0
			})
			// Home, and clear what is below: ECMA-48's CUP and ED.
			fmt.Fprint(a.Stdout, "\x1b[H\x1b[J")
			fmt.Fprintf(a.Stdout, "%s  %d sandboxes\n\n", time.Now().Format("15:04:05"), len(rows))
			if err := a.printUse(rows); err != nil {
				return err
			}
			if err := sleep(ctx, pause); err != nil {
				return err
			}
		}
	})
	cmd.Flags().VarP(&every, "every", "n", "how often (default 2s)")
	return cmd
}

// use is what a sandbox uses.
type use struct {
	sandpit.Metrics
	name    string
	id      string
	limits  sandpit.Limits
	at      time.Time
	percent float64 // of one processor, since the measurement before; -1: not known
}

// measure reads what sandboxes use: those of the names, or all that run.
func (s *session) measure(ctx context.Context, names []string, before []use) ([]use, error) {
	if len(names) == 0 {
		infos, err := s.list(ctx, sandpit.ListQuery{Limit: 1000, State: sandpit.StateRunning})
		if err != nil {
			return nil, err
		}
		for _, info := range infos {
			names = append(names, info.ID)
		}
	}
	earlier := make(map[string]use, len(before))
	for _, b := range before {
		earlier[b.id] = b
	}
	var rows []use
	for _, name := range names {
		sb, err := s.find(ctx, name)
		if err != nil {
			return nil, err
		}
		m, err := sb.Metrics(ctx)
		if err != nil {
			return nil, err
		}
		row := use{Metrics: m, name: sb.Name(), id: sb.ID(), at: time.Now(), percent: -1}
		b, ok := earlier[row.id]
		if ok && b.CPU >= 0 && m.CPU >= b.CPU {
			row.percent = 100 * float64(m.CPU-b.CPU) / float64(row.at.Sub(b.at))
		}
		if row.limits = b.limits; !ok { // they never change
			info, err := sb.Info(ctx)
			if err != nil {
				return nil, err
			}
			row.limits = info.Limits
		}
		rows = append(rows, row)
	}
	return rows, nil
}

func (a *tree) printUse(rows []use) error {
	table := a.table("NAME", "CPU", "CPU TIME", "MEMORY", "PEAK", "PIDS", "DISK", "FILES", "NET IN", "NET OUT")
	size := func(n int64) string {
		if n < 0 {
			return "-"
		}
		return notation.FormatSize(n)
	}
	number := func(n int64) string {
		if n < 0 {
			return "-"
		}
		return strconv.FormatInt(n, 10)
	}
	of := func(used, limit string) string { return used + " / " + limit }
	for _, r := range rows {
		percent, cpu := "-", "-"
		if r.percent >= 0 {
			percent = strconv.FormatFloat(r.percent, 'f', 1, 64) + "%"
		}
		if r.CPU >= 0 {
			cpu = r.CPU.Round(10 * time.Millisecond).String()
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", r.name, percent, cpu, size(r.Memory), size(r.MemoryPeak), number(r.Pids),
			of(size(r.Disk), size(r.limits.Disk)), of(number(r.Files), number(r.limits.Files)), size(r.RxBytes), size(r.TxBytes))
	}
	return table.Flush()
}

// sleep waits, unless ctx ends.
func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}
