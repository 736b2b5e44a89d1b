package commands

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sandpit-dev/sandpit"
	v1 "github.com/sandpit-dev/sandpit/internal/api/v1"
	"github.com/sandpit-dev/sandpit/internal/cli"
	"github.com/sandpit-dev/sandpit/internal/fault"
	"github.com/sandpit-dev/sandpit/internal/keys"
)

// envCommand is sandpit env.
func (a *tree) envCommand() *cobra.Command {
	var newKey bool
	namespace := textFlag("NAME")
	cmd := at(&cobra.Command{
		Use: "env [flags] CLIENT",
		Long: `Print the variables that point unmodified clients of another project at the server, as
commands for a shell. CLIENT is the name of the project, such as e2b. The server must serve
its API: see 'sandpit help serve'.

With --new-key, the server creates a key in the form that the clients expect. Otherwise the
key is that of this program, SANDPIT_KEY, also if it is for this user's own server.`,
		Example: "  eval \"$(sandpit env --new-key e2b)\"\n  sandpit env e2b",
		Args:    arguments(1, 1),
	}, placeServer)
	settings := func(ctx context.Context, s *session, args []string) error {
		if namespace.set && !newKey {
			return sandpit.WithHint(cli.Usagef("--namespace needs --new-key"), "add --new-key")
		}
		d, err := s.dialect(ctx, args[0])
		if err != nil {
			return err
		}
		if newKey {
			var key v1.Key
			if err := s.call(ctx, "POST", "/v1/keys", v1.NewKey{Name: d.Name, Namespace: namespace.is, Format: d.KeyFormat}, &key); err != nil {
				return err
			}
			return s.showKey(key, func() error {
				a.Note("created key %s of namespace %s; it is shown only once", key.ID, key.Namespace)
				if !namespace.set {
					a.Note("'sandpit ps' does not list sandboxes of that namespace; with --namespace local it does")
				}
				return a.printSettings(d, key.Secret)
			})
		}
		o := cli.NewOptions(a.Lookup)
		if err := o.Configure(a.Config()); err != nil {
			return err
		}
		return a.printSettings(d, keys.Reformat(o.Key(), keys.Format(d.KeyFormat)))
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		a.PrintsKey = !newKey
		// One that this command started would have no address for the clients.
		err := a.withServer(cmd.Context(), true, func(ctx context.Context, s *session) error { return settings(ctx, s, args) })
		var known []string
		for _, d := range a.Dialects {
			known = append(known, d.Name)
		}
		if errors.Is(err, cli.ErrNoServer) && !slices.Contains(known, args[0]) {
			return sandpit.WithHint(cli.Usagef("%.40q is not a project whose clients Sandpit serves", args[0]), "use one of: "+strings.Join(known, ", "))
		}
		if errors.Is(err, cli.ErrNoServer) {
			return sandpit.WithHint(err, fmt.Sprintf("start one in another terminal: 'sandpit serve --%s 127.0.0.1:PORT'", cli.Harmless(args[0])))
		}
		return err
	}
	cmd.Flags().BoolVar(&newKey, "new-key", false, "create a key in the form that the clients expect; for administrators")
	cmd.Flags().Var(&namespace, "namespace", "namespace of the new key (default a new one)")
	cmd.ValidArgsFunction = a.completeDialects
	return cmd
}

// printSettings prints the variables of a dialect's clients, with a key if secret is not empty.
func (a *tree) printSettings(d v1.Dialect, secret string) error {
	for _, x := range d.Settings {
		value := x.Value
		if x.Key {
			value = secret
		}
		if !variable().MatchString(x.Name) {
			return fault.Errorf(sandpit.ErrIntegrity, "the server has sent %.40q as the name of a variable", x.Name)
		}
		if set, _ := a.Lookup(x.Name); value == "" && set != "" {
			continue // by an earlier --new-key, for one
		}
		if value == "" {
			a.Note("%s is missing: add --new-key, or set it to a key of the server", x.Name)
			continue
		}
		if _, err := fmt.Fprintf(a.Stdout, "export %s=%s\n", x.Name, shellWord(value)); err != nil {
			return err
		}
	}
	return nil
}

// dialect returns how the server serves a dialect.
func (s *session) dialect(ctx context.Context, name string) (v1.Dialect, error) {
	var names []string
	var found v1.Dialect
	err := pages(ctx, s, "/v1/dialects", url.Values{}, func(page v1.DialectList) (string, error) {
		for _, d := range page.Dialects {
			if names = append(names, d.Name); d.Name == name {
				found = d
			}
		}
		return page.Next, nil
	})
	switch {
	case err != nil:
		return found, err
	case found.Name == "" && len(names) == 0:
		return found, fault.Errorf(sandpit.ErrNotFound, "the server serves no API of another project")
	case found.Name == "":
		return found, sandpit.WithHint(fault.Errorf(sandpit.ErrNotFound, "the server does not serve clients of %.40q", name), "use one of: "+cli.Harmless(strings.Join(names, ", ")))
	case found.URL == "":
		return found, sandpit.WithHint(fault.Errorf(sandpit.ErrState, "the server has no address for clients of %s", cli.Harmless(found.Title)),
			fmt.Sprintf("run 'sandpit serve --%s 127.0.0.1:PORT', which takes the place of a server that a command started; restart another one with that flag, or add the address to listen in server.yaml with service: %[1]s", name))
	}
	return found, nil
}

// completeDialects completes the names of dialects of this program, which are those of its server.
func (a *tree) completeDialects(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	var names []string
	if len(args) == 0 {
		for _, d := range a.Dialects {
			names = append(names, d.Name)
		}
	}
	slices.Sort(names)
	return names, cobra.ShellCompDirectiveNoFileComp
}

// variable matches names that a shell can export without doing anything else.
func variable() *regexp.Regexp { return regexp.MustCompile(`^[A-Z][A-Z0-9_]*$`) }

// shellWord returns a text as one word of a POSIX shell, whatever it has.
func shellWord(text string) string {
	if strings.Trim(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./:-") == "" {
		return text
	}
	return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'"
}
