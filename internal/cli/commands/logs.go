package commands

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/cli"
	"github.com/sandpit-dev/sandpit/internal/notation"
)

// logsCommand is sandpit logs.
func (a *tree) logsCommand() *cobra.Command {
	var q sandpit.LogQuery
	var asJSON, times bool
	since := parsed[time.Time]{parse: parseSince, shown: "TIME"}
	tail := parsed[int64]{parse: parseTail, shown: "N"}
	stream, process := parsed[string]{parse: parseStream, shown: "STREAM"}, textFlag("PROCESS")
	cmd := a.serverCommand(&cobra.Command{
		Use: "logs [flags] NAME",
		Long: `Show the output of the processes of a sandbox, oldest first; standard error goes to
standard error. The latest 16 MiB of each sandbox are stored.`,
		Example:           "  sandpit logs -f work\n  sandpit logs --tail 100 --process p3 work\n  sandpit logs --since 10m --json work",
		Args:              arguments(1, 1),
		ValidArgsFunction: a.completeNames(1),
	}, withSandbox(func(ctx context.Context, sb sandpit.Sandbox, _ []string) error {
		q.Since, q.Tail, q.Stream = since.is, int(tail.is), stream.is
		if process.set {
			info, err := cli.FindProcess(ctx, sb, process.is)
			if err != nil {
				return err
			}
			q.Process = info.ID
		}
		for entry, err := range sb.Logs(ctx, q) {
			if err != nil {
				return err
			}
			if err := a.printLog(entry, asJSON, times); err != nil {
				return err
			}
		}
		return ctx.Err() // a signal has ended it, or nothing is left
	}))
	cmd.Flags().BoolVarP(&q.Follow, "follow", "f", false, "follow new output")
	cmd.Flags().VarP(&tail, "tail", "n", "only this number of latest entries")
	cmd.Flags().Var(&since, "since", "only entries since this time or this long ago: 2026-01-02, 2026-01-02T15:04:05Z, 10m")
	cmd.Flags().VarP(&process, "process", "p", "only output of this process, by ID or pid")
	cmd.Flags().Var(&stream, "stream", "only stdout or stderr")
	cmd.Flags().BoolVarP(&times, "timestamps", "t", false, "show the time and the process of each entry")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON object per line")
	return cmd
}

func (a *tree) printLog(entry sandpit.LogEntry, asJSON, times bool) error {
	if asJSON {
		return a.PrintLine(entry)
	}
	to := a.Stdout
	if entry.Stream == "stderr" {
		to = a.Stderr
	}
	text := entry.Data
	if times {
		text = append([]byte(entry.Time.UTC().Format("2006-01-02T15:04:05.000Z")+" "+entry.Process+" "), text...)
		if n := len(text); n > 0 && text[n-1] != '\n' {
			text = append(text, '\n')
		}
	}
	_, err := to.Write(text)
	return err
}

// parseTail reads how many entries are wanted.
func parseTail(text string) (int64, error) {
	if text == "all" {
		return 0, nil
	}
	n, err := notation.ParseCount(text)
	if err == nil && n > math.MaxInt32 {
		err = fmt.Errorf("%d is more than the log can hold", n)
	}
	return n, err
}

func parseStream(text string) (string, error) {
	if text != "stdout" && text != "stderr" {
		return "", fmt.Errorf("%q is not stdout or stderr", text)
	}
	return text, nil
}

// parseSince reads a time, or how long ago one was. A time without a zone is this machine's, and a date the start of
// the day.
func parseSince(text string) (time.Time, error) {
	for _, layout := range []string{time.RFC3339Nano, time.DateOnly, "2006-01-02T15:04:05", time.DateTime, "2006-01-02T15:04", "2006-01-02 15:04"} {
		if t, err := time.ParseInLocation(layout, text, time.Local); err == nil {
			return t, nil
		}
	}
	d, err := notation.ParseDuration(text)
	if err != nil {
		return time.Time{}, sandpit.WithHint(fmt.Errorf("%q is not a time", text), "write a date like 2026-01-02, a time like 2026-01-02T15:04:05Z, or a duration before now like 10m")
	}
	return time.Now().Add(-d), nil
}

// eventsCommand is sandpit events.
func (a *tree) eventsCommand() *cobra.Command {
	var follow, asJSON bool
	var after uint64
	since := parsed[time.Time]{parse: parseSince, shown: "TIME"}
	only := eventFilter{Labels: map[string]string{}}
	cmd := a.serverCommand(&cobra.Command{
		Use: "events [flags]",
		Long: `Show the events of sandboxes and their processes. Without -f, past events that are stored
are shown. With -f, new events are shown as they happen, and with --since also past ones.

Filters: kind=KIND, sandbox=NAME, label=KEY[=VALUE]. Of several kinds or labels, events have one
kind and all labels.`,
		Example: "  sandpit events -f\n  sandpit events --since 1h --filter kind=process.exited --json",
		Args:    noArguments,
	}, func(ctx context.Context, s *session, _ []string) error {
		query := sandpit.EventQuery(only)
		if query.After = after; after == 0 && (!follow || since.set) {
			query.After = 1 // from the first that is kept
		}
		until := uint64(math.MaxUint64)
		if !follow {
			page, err := s.List(ctx, sandpit.ListQuery{Limit: 1})
			if err != nil || query.After >= page.Seq {
				return err
			}
			// The stream has no end, and of events that it does not select it says nothing: all are
			// asked for, up to this one.
			until, query = page.Seq, sandpit.EventQuery{After: query.After}
		}
		for event, err := range s.Events(ctx, query) {
			switch {
			case err != nil:
				return err
			case event.Kind == sandpit.EventLost && !follow: // what is not kept was not asked for
			case event.Seq > until:
			case event.Kind != sandpit.EventLost && (event.Time.Before(since.is) || !sandpit.EventQuery(only).Matches(event)):
			default:
				if err := a.printEvent(event, asJSON); err != nil {
					return err
				}
			}
			if event.Seq >= until {
				return nil
			}
		}
		return ctx.Err()
	})
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "follow new events")
	cmd.Flags().Var(&since, "since", "only events since this time or this long ago: 2026-01-02, 2026-01-02T15:04:05Z, 10m")
	cmd.Flags().Var(&only, "filter", "only events with this KEY=VALUE; keys are kind, sandbox, label")
	cmd.Flags().Uint64Var(&after, "after", 0, "only events after this sequence `NUMBER`")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON object per line")
	return cmd
}

func (a *tree) printEvent(e sandpit.Event, asJSON bool) error {
	if asJSON {
		return a.PrintLine(e)
	}
	line := e.Time.Local().Format("2006-01-02 15:04:05") + "  " + string(e.Kind)
	if e.Name != "" {
		line += "  " + e.Name
	}
	if e.Process != "" {
		line += "  process " + e.Process
	}
	if e.Exit != nil {
		line += "  exit " + strconv.Itoa(*e.Exit)
	}
	if e.Reason != "" {
		line += "  (" + e.Reason + ")"
	}
	_, err := fmt.Fprintln(a.Stdout, cli.Harmless(line))
	return err
}

// eventFilter is --filter of events.
type eventFilter sandpit.EventQuery

func (f *eventFilter) String() string { return "" }
func (f *eventFilter) Type() string   { return "KEY=VALUE" }

// kindNames lists the kinds of events.
func kindNames() string {
	var names []string
	for _, kind := range sandpit.EventKinds() {
		names = append(names, string(kind))
	}
	return strings.Join(names, ", ")
}

// Set adds a KEY=VALUE.
func (f *eventFilter) Set(text string) error {
	switch key, value, _ := strings.Cut(text, "="); {
	case value == "":
		return sandpit.WithHint(fmt.Errorf("%q is not KEY=VALUE", text), "write a filter as kind=sandbox.created, sandbox=work or label=team=a")
	case (key == "kind" || key == "event" || key == "type") && !slices.Contains(sandpit.EventKinds(), sandpit.EventKind(value)):
		return sandpit.WithHint(fmt.Errorf("%q is not a kind of event", value), "use one of "+kindNames())
	case key == "kind", key == "event", key == "type":
		f.Kinds = append(f.Kinds, sandpit.EventKind(value))
	case (key == "sandbox" || key == "container") && f.Sandbox == "":
		f.Sandbox = value
	case key == "sandbox", key == "container":
		return sandpit.WithHint(errors.New("only one sandbox can be given"), "use a label for several")
	case key == "label" && !strings.Contains(value, "="):
		f.HasLabels = append(f.HasLabels, value)
	case key == "label":
		return requireLabel(f.Labels, value)
	default:
		return sandpit.WithHint(fmt.Errorf("%q is not a filter", key), "use kind, sandbox and label")
	}
	return nil
}
