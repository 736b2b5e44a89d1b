package commands

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/cli"
	"github.com/sandpit-dev/sandpit/internal/notation"
)

// statsCommand is sandpit stats.
func (a *tree) statsCommand() *cobra.Command {
	var asJSON bool
	cmd := a.serverCommand(&cobra.Command{
		Use: "stats [flags] [NAME...]",
		Long: `Show the resource usage of sandboxes: CPU time over the last second, memory, processes,
bytes and inodes in their own file system, all beside their limits, and network traffic.`,
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
		return writeUse(a.Stdout, rows)
	})
	cmd.Flags().BoolVar(&asJSON, "json", false, "print a JSON list")
	return cmd
}

// topCommand is sandpit top.
func (a *tree) topCommand() *cobra.Command {
	every := durationFlag()
	cmd := a.serverCommand(&cobra.Command{
		Use:     "top [flags]",
		Long:    "Show the resource usage of sandboxes continuously until ^C, highest usage first.",
		Example: "  sandpit top",
		Args:    noArguments,
	}, func(ctx context.Context, s *session, _ []string) error {
		pause := 2 * time.Second
		if every.set {
			pause = every.is
		}
		if !cli.IsTerminal(a.Stdout) {
			return sandpit.WithHint(cli.Usagef("top needs a terminal"), "use 'sandpit stats'")
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
			if err := a.drawUse(rows); err != nil {
				return err
			}
			if err := sleep(ctx, pause); err != nil {
				return err
			}
		}
	})
	cmd.Flags().VarP(&every, "every", "n", "time between updates (default 2s)")
	return cmd
}

// drawUse draws the usage on the terminal.
func (a *tree) drawUse(rows []use) error {
	var text strings.Builder
	fmt.Fprintf(&text, "%s  %d sandboxes\n\n", time.Now().Format("15:04:05"), len(rows))
	if err := writeUse(&text, rows); err != nil {
		return err
	}
	width, height, err := term.GetSize(int(a.Stdout.Fd()))
	if err != nil || width <= 0 || height <= 0 {
		width, height = 80, 24
	}
	_, err = io.WriteString(a.Stdout, screen(text.String(), width, height))
	return err
}

// screen is what draws a text on a terminal, over what is there: as many of its
// lines, and of each as much, as there is room for. The sequences are ECMA-48's
// CUP, EL and ED.
func screen(text string, width, height int) string {
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	if n := len(lines) - max(height-1, 1); n > 0 { // the last one is for the cursor
		lines = lines[:len(lines)-n]
		if len(lines) > 1 {
			lines[len(lines)-1] = fmt.Sprintf("and %d more", n+1)
		}
	}
	var b strings.Builder
	b.WriteString("\x1b[H")
	for _, line := range lines {
		if runes := []rune(line); len(runes) > width {
			line = string(runes[:width])
		}
		b.WriteString("\x1b[K" + line + "\n")
	}
	b.WriteString("\x1b[J")
	return b.String()
}

// use is the usage of a sandbox.
type use struct {
	sandpit.Metrics
	sb      sandpit.Sandbox
	limits  sandpit.Limits
	at      time.Time
	percent float64 // of one processor, since the measurement before; -1: not known
}

// measure reads what sandboxes use: those of the names, or all that run, of which
// one may go meanwhile.
func (s *session) measure(ctx context.Context, names []string, before []use) ([]use, error) {
	rows, err := s.measured(ctx, names, before)
	if err != nil {
		return nil, err
	}
	earlier := make(map[string]use, len(before))
	for _, b := range before {
		earlier[b.sb.ID()] = b
	}
	kept := rows[:0]
	for _, row := range rows {
		row.Metrics, err = row.sb.Metrics(ctx)
		if gone(err) && len(names) == 0 {
			continue
		}
		if err != nil {
			return nil, err
		}
		row.at, row.percent = time.Now(), -1
		if b, ok := earlier[row.sb.ID()]; ok && b.CPU >= 0 && row.CPU >= b.CPU {
			row.percent = 100 * float64(row.CPU-b.CPU) / float64(row.at.Sub(b.at))
		}
		kept = append(kept, row)
	}
	return kept, nil
}

// measured returns the sandboxes to measure, without their usage.
func (s *session) measured(ctx context.Context, names []string, before []use) (rows []use, err error) {
	if len(names) > 0 && before != nil {
		return slices.Clone(before), nil
	}
	for _, name := range names {
		sb, err := s.find(ctx, name)
		if err != nil {
			return nil, err
		}
		info, err := sb.Info(ctx)
		if err != nil {
			return nil, err
		}
		rows = append(rows, use{sb: sb, limits: info.Limits})
	}
	if len(names) > 0 {
		return rows, nil
	}
	known := make(map[string]sandpit.Sandbox, len(before))
	for _, b := range before {
		known[b.sb.ID()] = b.sb
	}
	infos, err := s.list(ctx, sandpit.ListQuery{Limit: sandpit.MaxPage, States: []sandpit.State{sandpit.StateRunning}})
	if err != nil {
		return nil, err
	}
	for _, info := range infos {
		sb, ok := known[info.ID]
		if !ok {
			sb, err = s.Get(ctx, info.ID)
		}
		if gone(err) {
			continue
		}
		if err != nil {
			return nil, err
		}
		rows = append(rows, use{sb: sb, limits: info.Limits})
	}
	return rows, nil
}

// gone reports whether an error says that a sandbox does not run any more.
func gone(err error) bool {
	return errors.Is(err, sandpit.ErrNotFound) || errors.Is(err, sandpit.ErrClosed) || errors.Is(err, sandpit.ErrState)
}

func writeUse(w io.Writer, rows []use) error {
	table := tableOn(w, "NAME", "CPU", "CPU TIME", "MEMORY", "PEAK", "PIDS", "DISK", "FILES", "NET IN", "NET OUT")
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
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", r.sb.Name(), percent, cpu, size(r.Memory), size(r.MemoryPeak), number(r.Pids),
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
