package commands

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/spf13/cobra"

	"github.com/sandpit-dev/sandpit"
	v1 "github.com/sandpit-dev/sandpit/internal/api/v1"
	"github.com/sandpit-dev/sandpit/internal/cli"
	"github.com/sandpit-dev/sandpit/internal/policy"
)

// policyCommand is sandpit policy.
func (a *tree) policyCommand() *cobra.Command {
	cmd := a.group(&cobra.Command{
		Use:  "policy",
		Long: "Show the limits of sandboxes: their defaults and what may be requested.",
	})
	show := &cobra.Command{
		Use:   "show [flags] [KEY]",
		Short: "show limits and their defaults, or the policy of a key",
		Long: `Show the limits of a sandbox: the default, which flags, variables and files change, and
the minimum that may be requested. With the ID of a key (see sandpit key ls),
show what the server allows that key, in the terms of the policy file. If a server is
configured (SANDPIT_SERVER), show what it allows its caller. A change of the policy
holds for new sandboxes and later changes of them: those that exist keep their rules
of egress.`,
		Example:           "  sandpit policy show\n  sandpit policy show --json\n  sandpit policy show k7d2m3xa",
		Args:              arguments(0, 1),
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	asJSON := show.Flags().Bool("json", false, "print JSON")
	show.RunE = func(cmd *cobra.Command, args []string) error {
		o := cli.NewOptions(a.Lookup)
		if err := o.Configure(a.Config()); err != nil {
			return err
		}
		path := "/v1/policy"
		if len(args) == 1 {
			key, err := keyPath(args[0])
			if err != nil {
				return err
			}
			path = key + "/policy"
		}
		if address, _ := o.Server(); address != "" || len(args) == 1 {
			return a.withServer(cmd.Context(), false, func(ctx context.Context, s *session) error { return a.showServerPolicy(ctx, s, path, *asJSON) })
		}
		p := policy.Default()
		if *asJSON {
			return a.PrintJSON(policyObject(p, o))
		}
		return a.printPolicy(p, o)
	}
	cmd.AddCommand(at(show, placeServer))
	return cmd
}

// showServerPolicy prints a policy of the server: the caller's or that of a key.
func (a *tree) showServerPolicy(ctx context.Context, s *session, path string, asJSON bool) error {
	var p v1.NamedPolicy
	if err := s.call(ctx, http.MethodGet, path, nil, &p); err != nil {
		return fmt.Errorf("getting the policy: %w", err)
	}
	if asJSON {
		return a.PrintJSON(p)
	}
	text, err := yaml.JSONToYAML(p.Policy)
	if err != nil {
		return fmt.Errorf("reading the policy: %w", err)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "policies:\n  %s:\n", cli.Harmless(p.Name))
	for line := range strings.Lines(string(text)) {
		fmt.Fprintf(&b, "    %s\n", cli.Harmless(strings.TrimSuffix(line, "\n")))
	}
	_, err = a.Stdout.WriteString(b.String())
	return err
}

// setHere returns what variables and files say about a limit, and where.
func setHere(l policy.Limit, o *cli.Options) (text, where string) {
	for _, e := range o.Settable() {
		if "--"+e.Name == l.Flag {
			return e.Value.String(), e.Value.Origin().Where
		}
	}
	return "", ""
}

func (a *tree) printPolicy(p policy.Policy, o *cli.Options) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%-9s %-15s %-10s %-9s %s\n", "LIMIT", "FLAG", "DEFAULT", "MINIMUM", "MEANING")
	for _, l := range p.Limits() {
		fmt.Fprintf(&b, "%-9s %-15s %-10s %-9s %s\n", l.Name, l.Flag, l.Default, l.Min, l.Meaning)
	}
	var changed strings.Builder
	for _, l := range p.Limits() {
		if text, where := setHere(l, o); where != "" {
			fmt.Fprintf(&changed, "  %s %s (%s)\n", l.Flag, text, cli.Harmless(where))
		}
	}
	if changed.Len() > 0 {
		b.WriteString("\nSet here for every run:\n" + changed.String())
	}
	b.WriteString(`
Disk: the default is at most the memory limit minus an eighth of it or 12 MiB, whichever is larger.
Egress: none, unless --egress or --allow asks for it; you may ask for everything.
Host files: only the image, which is read-only, and what --mount names.
`)
	_, err := a.Stdout.WriteString(b.String())
	return err
}

type jsonPolicy struct {
	Default cli.JSONLimits    `json:"default"`
	Minimum cli.JSONLimits    `json:"minimum"`
	Set     map[string]string `json:"set"` // by variables and files: flag to value
	Egress  string            `json:"egress"`
}

func policyObject(p policy.Policy, o *cli.Options) jsonPolicy {
	object := jsonPolicy{
		Default: cli.JSONOfLimits(p.Default),
		Minimum: cli.JSONOfLimits(policy.Minimum()),
		Set:     map[string]string{},
		Egress:  "none",
	}
	for _, l := range p.Limits() {
		if text, where := setHere(l, o); where != "" {
			object.Set[strings.TrimPrefix(l.Flag, "--")] = text
		}
	}
	return object
}

// group makes a command of commands: on its own it shows its help.
func (a *tree) group(cmd *cobra.Command) *cobra.Command {
	cmd.Args = cobra.ArbitraryArgs
	cmd.SuggestionsMinimumDistance = 2
	cmd.ValidArgsFunction = cobra.NoFileCompletions
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return cmd.Help()
		}
		err := cli.Usagef("unknown command %q of sandpit %s", args[0], cmd.Name())
		return sandpit.WithHint(err, cmp.Or(meant(cmd, args[0]), "see 'sandpit help "+cmd.Name()+"'"))
	}
	return cmd
}

// noArguments is for commands that take none.
func noArguments(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return sandpit.WithHint(cli.Usagef("%s takes no arguments, but got %q", strings.TrimPrefix(cmd.CommandPath(), "sandpit "), args[0]), "see '"+cmd.CommandPath()+" --help'")
	}
	return nil
}
