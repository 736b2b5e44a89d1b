package commands

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/cli"
	"github.com/sandpit-dev/sandpit/internal/config"
)

func TestDistance(t *testing.T) {
	for _, tt := range []struct {
		a, b string
		want int
	}{{"memory", "memory", 0}, {"memory", "memroy", 2}, {"memory", "memor", 1}, {"cpus", "cpu", 1}, {"cpus", "disk", 3}, {"a", strings.Repeat("a", 100), 3}} {
		if got := distance(tt.a, tt.b, 3); got != tt.want {
			t.Errorf("%s, %s: got %d, want %d", tt.a, tt.b, got, tt.want)
		}
	}
}

func TestNamed(t *testing.T) {
	for _, tt := range []struct {
		args []string
		want bool
	}{
		{[]string{"run"}, true},
		{[]string{"help", "run"}, true},
		{[]string{"__complete", "run", "--"}, true},
		{[]string{"__complete", "help", "run"}, true},
		{[]string{"--version", "run"}, true},
		{[]string{"shell", "--", "run"}, false},
		{nil, false},
	} {
		if got := named(tt.args, "run"); got != tt.want {
			t.Errorf("%v: got %v", tt.args, got)
		}
	}
}

// Times are read with a zone, without one, as dates, and as how long ago they were.
func TestParseSince(t *testing.T) {
	here := func(hour, minute, second int) time.Time {
		return time.Date(2026, 11, 28, hour, minute, second, 0, time.Local)
	}
	for text, want := range map[string]time.Time{
		"2026-11-28":                here(0, 0, 0),
		"2026-11-28T07:08":          here(7, 8, 0),
		"2026-11-28 07:08:09":       here(7, 8, 9),
		"2026-11-28T07:08:09":       here(7, 8, 9),
		"2026-11-28T07:08:09Z":      time.Date(2026, 11, 28, 7, 8, 9, 0, time.UTC),
		"2026-11-28T07:08:09+02:00": time.Date(2026, 11, 28, 5, 8, 9, 0, time.UTC),
	} {
		if got, err := parseSince(text); err != nil || !got.Equal(want) {
			t.Errorf("%s is %s, %v", text, got, err)
		}
	}
	if got, err := parseSince("10m"); err != nil || time.Since(got) < 10*time.Minute {
		t.Errorf("10m is %s, %v", got, err)
	}
	for _, text := range []string{"", "yesterday", "2026-11", "2026-11-31", "28.11.2026"} {
		if got, err := parseSince(text); err == nil {
			t.Errorf("%q is %s", text, got)
		}
	}
}

// No line of help is longer than 100 characters.
func TestHelpIsNarrow(t *testing.T) {
	app := &cli.App{Stdin: os.Stdin, Stderr: os.Stderr, Dialects: []cli.Dialect{{Name: "toy", Title: "Toy"}}}
	var pages [][]string
	for _, c := range (&tree{App: app}).commands() {
		pages = append(pages, []string{c.name})
		for _, sub := range c.make().Commands() {
			pages = append(pages, []string{c.name, sub.Name()})
		}
	}
	for _, page := range append(pages, nil) {
		file, err := os.Create(filepath.Join(t.TempDir(), "help"))
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		app.Stdout = file
		if err := Run(t.Context(), app, append([]string{"help"}, page...)); err != nil {
			t.Errorf("%v: %v", page, err)
		}
		text, err := os.ReadFile(file.Name())
		if err != nil || len(text) == 0 {
			t.Errorf("%v: %d bytes, %v", page, len(text), err)
		}
		for line := range strings.Lines(string(text)) {
			if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > helpWidth {
				t.Errorf("%v: %d characters: %s", page, n, line)
			}
		}
	}
}

// BenchmarkParse is the command line's own part of every run.
func BenchmarkParse(b *testing.B) {
	stop := errors.New("stop")
	a := &cli.App{
		Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr, Environ: os.Environ(), SystemConfig: config.SystemFile,
		NewClient: func(cli.ClientOptions) (sandpit.Client, error) { return nil, stop },
	}
	args := []string{"run", "--memory", "256m", "--timeout", "10s", "-e", "A=1", "--", "python3", "-c", "print(6*7)"}
	for b.Loop() {
		if err := Run(context.Background(), a, args); !errors.Is(err, stop) {
			b.Fatal(err)
		}
	}
}

func TestHabits(t *testing.T) {
	known := map[string]*cobra.Command{}
	a := &tree{App: &cli.App{}}
	for _, c := range a.commands() {
		if !c.topic {
			known[c.name] = c.make()
		}
	}
	for _, h := range habits() {
		for name := range strings.FieldsSeq(h.commands) {
			if known[name] == nil {
				t.Fatalf("habit %q: no command is named %q", h.flags, name)
			}
			for flag := range strings.FieldsSeq(h.flags) {
				arg := "--" + flag
				if len(flag) == 1 {
					arg = "-" + flag
				}
				cmd := a.fresh(name)
				own := cmd.Flags().Lookup(flag) != nil || len(flag) == 1 && cmd.Flags().ShorthandLookup(flag) != nil
				acceptHabits(cmd)
				switch err := cmd.ParseFlags([]string{arg}); {
				case own:
					t.Errorf("%s %s is a flag of its own", name, arg)
				case h.means == "" && h.always == "":
					if got := sandpit.Hint(flagError(cmd, err)); err == nil || h.hint == "" || got != h.hint {
						t.Errorf("%s %s: the hint is %q, want %q", name, arg, got, h.hint)
					}
				case h.always == "true":
					if err != nil {
						t.Errorf("%s %s: %v", name, arg, err)
					}
				case h.always != "":
					if err := cmd.ParseFlags([]string{arg, h.always}); err != nil {
						t.Errorf("%s %s %s: %v", name, arg, h.always, err)
					}
					if err := cmd.ParseFlags([]string{arg, "other"}); err == nil || sandpit.Hint(flagError(cmd, err)) != h.hint {
						t.Errorf("%s %s other: %v", name, arg, err)
					}
				case cmd.Flags().Lookup(flag).Value != cmd.Flags().Lookup(h.means).Value:
					t.Errorf("%s %s is not --%s", name, arg, h.means)
				}
			}
		}
	}
}

// fresh returns a command without its habits.
func (a *tree) fresh(name string) *cobra.Command {
	for _, c := range a.commands() {
		if c.name == name {
			return c.make()
		}
	}
	return nil
}

// The name that help gives to the value of a flag is not that of a type of Go.
func TestFlagsHaveNamesOfValues(t *testing.T) {
	for name, cmd := range leaves(t) {
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			value, usage := pflag.UnquoteUsage(f)
			switch {
			case f.Value.Type() == "bool":
			case value != strings.ToUpper(value) && !strings.HasPrefix(value, "SRC:DST"), value == "":
				t.Errorf("%s: --%s %s", name, f.Name, value)
			}
			if usage == "" {
				t.Errorf("%s: --%s has no description", name, f.Name)
			}
		})
	}
}
