// Command bench measures Sandpit beside its peers and prints one table.
//
// All rows are measured in the same run, and what is compared takes turns
// (A B A B …), so that the noise of a machine hits all alike. Absolute times say
// as much about the machine as about the program; the ratios carry over. No
// time makes it fail: it exits with 1 only when it can't measure at all.
//
// Usage, from the top of the source tree:
//
//	go run ./bench [-quick] [-n ROUNDS] [-only REGEXP] [-markdown] [-json FILE] [-before FILE]
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"regexp"
	"syscall"
)

// options are what the flags say.
type options struct {
	rounds   int            // how often each thing is timed, unless it is slow
	quick    bool           // be done within a minute
	only     *regexp.Regexp // groups to measure; nil: all
	markdown bool
	json     string // file to write the report to, or ""
	before   string // file with the report of an earlier run, or ""
	sandpit  string // the program to measure, or "" for bin/sandpit
	build    bool   // build peers that are not there
}

// wants reports whether a group of rows is to be measured.
func (o options) wants(group string) bool { return o.only == nil || o.only.MatchString(group) }

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	switch err := run(ctx, os.Args[1:], os.Stdout, os.Stderr); {
	case errors.Is(err, flag.ErrHelp):
	case err != nil:
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	opts, err := parse(args, stderr)
	if err != nil {
		return err
	}
	var earlier *report
	if opts.before != "" {
		if earlier, err = readJSON(opts.before); err != nil {
			return err
		}
	}
	report, err := measure(ctx, opts, stderr)
	if err != nil {
		return err
	}
	if earlier != nil {
		report.setBefore(earlier)
	}
	if opts.json != "" {
		if err := report.writeJSON(opts.json); err != nil {
			return err
		}
	}
	if opts.markdown {
		return report.writeMarkdown(stdout)
	}
	return report.writeText(stdout)
}

// rounds are how often a thing is timed by default.
const (
	fullRounds  = 200
	quickRounds = 30
)

func parse(args []string, stderr io.Writer) (options, error) {
	var o options
	fs := flag.NewFlagSet("bench", flag.ContinueOnError)
	fs.SetOutput(stderr)
	fs.IntVar(&o.rounds, "n", 0, fmt.Sprintf("how often each thing is timed, slow ones less often (default %d, with -quick %d)", fullRounds, quickRounds))
	fs.BoolVar(&o.quick, "quick", false, "be done within a minute: fewer rounds, less data, no building of peers")
	only := fs.String("only", "", "measure only the groups of rows whose name matches this `REGEXP`: "+groupNames())
	fs.BoolVar(&o.markdown, "markdown", false, "print the table as Markdown")
	fs.StringVar(&o.json, "json", "", "also write everything to `FILE` as JSON")
	fs.StringVar(&o.before, "before", "", "print the ratios of an earlier run, written by -json to `FILE`, beside the new ones")
	fs.StringVar(&o.sandpit, "sandpit", "", "the `PROGRAM` to measure (default bin/sandpit, built when missing)")
	if err := fs.Parse(args); err != nil {
		return o, err
	}
	if fs.NArg() > 0 {
		return o, fmt.Errorf("reading the command line: %q is one argument too many", fs.Arg(0))
	}
	if o.rounds < 0 {
		return o, fmt.Errorf("reading the command line: -n %d is negative", o.rounds)
	}
	if o.rounds == 0 {
		o.rounds = fullRounds
		if o.quick {
			o.rounds = quickRounds
		}
	}
	o.build = !o.quick
	if *only != "" {
		re, err := regexp.Compile(*only)
		if err != nil {
			return o, fmt.Errorf("reading -only: %w", err)
		}
		o.only = re
	}
	return o, nil
}
