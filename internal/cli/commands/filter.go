package commands

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/cli"
	"github.com/sandpit-dev/sandpit/internal/fault"
)

// filter selects sandboxes: --filter KEY=VALUE, as Docker has it, and --label. Sandboxes
// have all labels, and one value of each other key.
type filter struct {
	sandpit.ListQuery
	names, images []string // parts of either, which servers do not know
	set           bool
}

// register adds the flags.
func (f *filter) register(flags *pflag.FlagSet) {
	f.Labels = map[string]string{}
	flags.Var(f, "filter", "only sandboxes with this KEY=VALUE; keys are label, state, name, image, since, until")
	flags.VarP(labelFilter{f}, "label", "l", "only those with this label")
}

func (f *filter) String() string { return "" }
func (f *filter) Type() string   { return "KEY=VALUE" }

// Set adds a KEY=VALUE.
func (f *filter) Set(text string) (err error) {
	key, value, _ := strings.Cut(text, "=")
	switch {
	case value == "":
		return sandpit.WithHint(fmt.Errorf("%q is not KEY=VALUE", text), "write a filter as label=team=a, state=stopped or until=24h")
	case key == "label":
		return labelFilter{f}.Set(value)
	case key == "state", key == "status":
		state := sandpit.State(value)
		all := []sandpit.State{sandpit.StateCreated, sandpit.StateCreating, sandpit.StateRunning, sandpit.StatePaused, sandpit.StateStopped, sandpit.StateFailed}
		if state == "exited" { // as Docker calls it
			state = sandpit.StateStopped
		}
		if !slices.Contains(all, state) {
			return sandpit.WithHint(fmt.Errorf("%q is not a state", value), "use created, creating, running, paused, stopped or failed")
		}
		f.States = append(f.States, state)
	case key == "name":
		f.names = append(f.names, value)
	case key == "image", key == "ancestor":
		f.images = append(f.images, value)
	case key == "since" && f.Since.IsZero():
		f.Since, err = parseSince(value)
	case key == "until" && f.Until.IsZero():
		f.Until, err = parseSince(value)
	case key == "since", key == "until":
		return sandpit.WithHint(fmt.Errorf("%s is given twice", key), "give one time")
	default:
		return sandpit.WithHint(fmt.Errorf("%q is not a filter", key), "use label, state, name, image, since and until")
	}
	f.set = true
	return err
}

// matches reports whether the part of the filter that servers do not know selects a sandbox.
func (f *filter) matches(i sandpit.Info) bool {
	has := func(parts []string, texts ...string) bool {
		return len(parts) == 0 || slices.ContainsFunc(parts, func(part string) bool {
			return slices.ContainsFunc(texts, func(text string) bool { return strings.Contains(text, part) })
		})
	}
	return has(f.names, i.Name) && has(f.images, i.Image, shortImage(i.Image))
}

// labelFilter is a label that sandboxes have: KEY=VALUE, or KEY with any value.
type labelFilter struct{ f *filter }

func (l labelFilter) String() string { return "" }
func (l labelFilter) Type() string   { return "KEY[=VALUE]" }

func (l labelFilter) Set(text string) error {
	l.f.set = true
	if text != "" && !strings.Contains(text, "=") {
		l.f.HasLabels = append(l.f.HasLabels, text)
		return nil
	}
	return requireLabel(l.f.Labels, text)
}

// requireLabel adds KEY=VALUE to the labels of a filter, all of which are needed. It refuses a
// second value of a key: nothing has both.
func requireLabel(labels map[string]string, text string) error {
	label, err := parseLabel(text)
	if err != nil {
		return err
	}
	if value, given := labels[label[0]]; given && value != label[1] {
		return sandpit.WithHint(fmt.Errorf("label %q is given twice with different values", label[0]), "run the command once for each value")
	}
	labels[label[0]] = label[1]
	return nil
}

// A remover removes many sandboxes at a time: a client of a server.
type remover interface {
	RemoveAll(ctx context.Context, q sandpit.ListQuery) iter.Seq2[sandpit.Info, error]
}

// removeAll removes the sandboxes that a filter selects, and prints their names. It reports each
// that could not be removed.
func (a *tree) removeAll(ctx context.Context, only *filter) error {
	remove := func(ctx context.Context, s *session) error { return a.removeAt(ctx, s, only) }
	err := a.withServer(ctx, true, remove)
	switch {
	case !errors.Is(err, cli.ErrNoServer):
		return err
	case sandpit.Hint(err) == "" && !a.hadServer(): // nor any sandbox that runs
		return nil
	}
	return a.withServer(ctx, false, remove)
}

// hadServer reports whether this user has had a server. Sandboxes that are stopped or have failed
// may be left then, of which only its state knows.
func (a *tree) hadServer() bool {
	o := cli.NewOptions(a.Lookup)
	if o.Configure(a.Config()) != nil {
		return true
	}
	home, err := o.DataDir()
	if err != nil {
		return true
	}
	_, err = os.Stat(filepath.Join(home, "state"))
	return !errors.Is(err, fs.ErrNotExist)
}

// removed removes the sandboxes that a filter selects, one by one or as remover does. Those that are gone are passed over.
func (s *session) removed(ctx context.Context, only *filter) (iter.Seq2[sandpit.Info, error], error) {
	if len(only.names)+len(only.images) == 0 {
		r, ok := s.Client.(remover)
		if !ok {
			return nil, fault.Errorf(sandpit.ErrUnsupported, "removing sandboxes: this client does not support filters")
		}
		return r.RemoveAll(ctx, only.ListQuery), nil
	}
	infos, err := s.list(ctx, only.ListQuery)
	return func(yield func(sandpit.Info, error) bool) {
		for _, info := range infos {
			if !only.matches(info) {
				continue
			}
			err := s.Remove(ctx, info.ID)
			if !errors.Is(err, sandpit.ErrNotFound) && (!yield(info, err) || ctx.Err() != nil) {
				return
			}
		}
	}, err
}

func (a *tree) removeAt(ctx context.Context, s *session, only *filter) error {
	all, err := s.removed(ctx, only)
	if err != nil {
		return err
	}
	var failed error
	for info, err := range all {
		name := cli.Harmless(info.Name)
		switch {
		case info.ID == "":
			return errors.Join(failed, err)
		case err != nil:
			err = fmt.Errorf("%s: %w", name, err)
			a.PrintError(err)
			failed = cli.Reported{Err: err}
		default:
			if _, err := fmt.Fprintln(a.Stdout, name); err != nil {
				return err
			}
		}
	}
	return failed
}

// filterKeys returns how filters of a command begin, for completion.
func filterKeys(command string) []string {
	switch command {
	case "events":
		return []string{"kind=", "sandbox=", "label="}
	case "prune":
		return []string{"label=", "name=", "image=", "since=", "until="}
	}
	return []string{"label=", "state=running", "state=paused", "state=stopped", "state=failed", "state=created", "name=", "image=", "since=", "until="}
}
