package commands

import (
	"context"
	"fmt"
	"io"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/sandpit-dev/sandpit"
	v1 "github.com/sandpit-dev/sandpit/internal/api/v1"
	"github.com/sandpit-dev/sandpit/internal/cli"
	"github.com/sandpit-dev/sandpit/internal/notation"
	"github.com/sandpit-dev/sandpit/internal/secret"
)

// secretCommand is sandpit secret.
func (a *tree) secretCommand() *cobra.Command {
	cmd := a.group(&cobra.Command{
		Use: "secret",
		Long: `Secrets are credentials that sandboxes use and never see. The server stores them encrypted.
A sandbox that is created with --secret NAME has a placeholder in its environment; the value
replaces it in requests to the hosts of the secret, which it may reach without --allow.

A secret is of a service, which has hosts and variables, or is bound to hosts. One without
hosts needs them in each use: --secret NAME@HOST. With --secret-env the sandbox gets the
value itself. The services are listed by 'sandpit secret services'.

With --secret-from a sandbox has a secret of its own, which goes with it. Its value is read
on this machine, and stored nowhere else than with the sandbox.`,
	})
	cmd.AddCommand(a.secretSet(), a.secretLogin(), a.secretList(), a.secretRotate(), a.secretRemove(), a.secretServices())
	return cmd
}

// sourced are the flags from which a value is read.
type sourced struct {
	from string
	whose
}

func (f *sourced) register(cmd *cobra.Command, own bool) {
	cmd.Flags().StringVar(&f.from, "from", "", "read the value from `SOURCE` on this machine: env:NAME, file:PATH or cmd:COMMAND (default standard input)")
	f.whose.register(cmd, own)
}

// whose says which secret of a name is meant.
type whose struct {
	shared  bool
	sandbox string
}

func (w *whose) register(cmd *cobra.Command, own bool) {
	cmd.Flags().BoolVar(&w.shared, "server", false, "the server's secret, which all namespaces may use; for administrators")
	if own {
		cmd.Flags().StringVar(&w.sandbox, "sandbox", "", "the own secret of the sandbox `NAME`, which was created with --secret-from")
	}
}

// oneSecret is arguments(1, 1) for commands that read a value. It repeats no argument that may be one.
func oneSecret(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return arguments(1, 1)(cmd, args)
	}
	name, _, assigned := strings.Cut(args[0], "=")
	if len(args) == 1 && !assigned {
		return nil
	}
	hint := "use --from, or enter it"
	if notation.IsName(name) {
		hint = fmt.Sprintf("run 'sandpit secret %s %s' and enter it, or use --from", cmd.Name(), name)
	}
	return sandpit.WithHint(cli.Usagef("the value of a secret is not an argument, because everybody on this machine can read it there"), hint)
}

// secretPath is where the server has a secret.
func secretPath(name, part string, w whose) (string, error) {
	if err := notation.CheckSecretName(name); err != nil {
		return "", sandpit.WithHint(cli.Usagef("%v", err), sandpit.Hint(err))
	}
	path := "/v1/secrets/" + name + part
	switch {
	case w.shared && w.sandbox != "":
		return "", sandpit.WithHint(cli.Usagef("--server and --sandbox can't be combined"), "omit one of them")
	case w.shared:
		path += "?scope=server"
	case w.sandbox != "":
		path += "?sandbox=" + url.QueryEscape(w.sandbox)
	}
	return path, nil
}

func (a *tree) secretSet() *cobra.Command {
	var value sourced
	var want v1.NewSecret
	service := textFlag("NAME")
	cmd := a.serverCommand(&cobra.Command{
		Use:   "set [flags] NAME",
		Short: "store a secret, or replace it",
		Long: `Store a secret, or replace it. The value is read from standard input, or without echo from
the terminal; a line break at its end is not part of it. If neither a service nor hosts are
given and NAME is a service, the secret is of that service.`,
		Example: "  sandpit secret set openai\n  sandpit secret set ci --service github --from cmd:'gh auth token'\n  pass show api | sandpit secret set api --host api.example.com --variable API_KEY",
		Args:    oneSecret,
	}, func(ctx context.Context, s *session, args []string) error {
		path, err := secretPath(args[0], "", value.whose)
		if err == nil {
			want.Value, err = a.readSecret(ctx, value.from)
		}
		if err != nil {
			return err
		}
		want.Service = service.is
		var made v1.Secret
		if err := s.call(ctx, "PUT", path, want, &made); err != nil {
			return err
		}
		if len(made.Hosts) == 0 {
			a.Note("%s is bound to no host: each use must name one (--secret %s@HOST)", args[0], args[0])
		}
		_, err = fmt.Fprintln(a.Stdout, cli.Harmless(made.Name))
		return err
	})
	cmd.Flags().Var(&service, "service", "service whose hosts and variables it has")
	cmd.Flags().StringArrayVar(&want.Hosts, "host", nil, "`HOST`, HOST:PORT or *.HOST to which the value may be sent; may be repeated")
	cmd.Flags().StringArrayVar(&want.Variables, "variable", nil, "environment `VARIABLE` that has the placeholder (default the service's, or NAME in capital letters)")
	cmd.Flags().BoolVar(&want.Body, "body", false, "replace the placeholder in the body of requests and in messages of WebSockets, too")
	query := cmd.Flags().Bool("query", false, "replace the placeholder in the query of requests, too (default the service's)")
	cmd.PreRun = func(cmd *cobra.Command, _ []string) {
		if cmd.Flags().Changed("query") {
			want.Query = query
		}
	}
	value.register(cmd, false)
	return cmd
}

func (a *tree) secretRotate() *cobra.Command {
	var value sourced
	cmd := a.serverCommand(&cobra.Command{
		Use:   "rotate [flags] NAME",
		Short: "replace the value of a secret, also in running sandboxes",
		Args:  oneSecret,
	}, func(ctx context.Context, s *session, args []string) error {
		path, err := secretPath(args[0], "/value", value.whose)
		if err != nil {
			return err
		}
		text, err := a.readSecret(ctx, value.from)
		if err != nil {
			return err
		}
		return s.call(ctx, "PUT", path, v1.SecretValue{Value: text}, &v1.Secret{})
	})
	cmd.ValidArgsFunction = a.completeSecrets(1)
	value.register(cmd, true)
	return cmd
}

func (a *tree) secretRemove() *cobra.Command {
	var of whose
	cmd := a.serverCommand(&cobra.Command{
		Use:   "rm NAME...",
		Short: "remove secrets, also from running sandboxes",
		Args:  arguments(1, -1),
	}, func(ctx context.Context, s *session, args []string) error {
		return a.eachText(ctx, args, func(name string) error {
			path, err := secretPath(name, "", of)
			if err != nil {
				return err
			}
			return s.call(ctx, "DELETE", path, nil, nil)
		})
	})
	cmd.ValidArgsFunction = a.completeSecrets(-1)
	of.register(cmd, true)
	return cmd
}

func (a *tree) secretList() *cobra.Command {
	var asJSON bool
	service, sandbox := textFlag("NAME"), textFlag("NAME")
	cmd := a.serverCommand(&cobra.Command{
		Use:     "ls",
		Aliases: []string{"list"},
		Short:   "list secrets, without their values",
		Args:    noArguments,
	}, func(ctx context.Context, s *session, _ []string) error {
		query := url.Values{}
		if service.is != "" {
			query.Set("service", service.is)
		}
		if sandbox.is != "" {
			query.Set("sandbox", sandbox.is)
		}
		all, err := s.secrets(ctx, query)
		if err != nil {
			return err
		}
		if asJSON {
			return a.PrintJSON(all)
		}
		if len(all) == 0 {
			a.Note("no secrets found")
		}
		table := a.table("NAME", "SCOPE", "SERVICE", "HOSTS", "VARIABLES", "VALUE SET", "LOGIN")
		for _, x := range all {
			fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s ago\t%s\n", cli.Harmless(x.Name), x.Scope, cli.Harmless(x.Service), cli.Harmless(strings.Join(x.Hosts, ",")), cli.Harmless(strings.Join(x.Variables, ",")), ago(x.RotatedAt), loginState(x.Login))
		}
		return table.Flush()
	})
	cmd.Flags().Var(&service, "service", "only secrets of this service")
	cmd.Flags().Var(&sandbox, "sandbox", "this sandbox's own secrets")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print a JSON list")
	return cmd
}

func (a *tree) secretServices() *cobra.Command {
	var asJSON bool
	cmd := a.serverCommand(&cobra.Command{
		Use:   "services",
		Short: "list the services whose hosts and variables are known",
		Args:  noArguments,
	}, func(ctx context.Context, s *session, _ []string) error {
		all, err := s.services(ctx)
		if err != nil {
			return err
		}
		if asJSON {
			return a.PrintJSON(all)
		}
		table := a.table("SERVICE", "VARIABLES", "HOSTS", "HEADER", "LOGIN")
		for _, x := range all {
			fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\n", cli.Harmless(x.Name), cli.Harmless(strings.Join(x.Variables, ",")), cli.Harmless(strings.Join(x.Hosts, ",")), cli.Harmless(x.Header), loginWays(x.OAuth))
		}
		return table.Flush()
	})
	cmd.Flags().BoolVar(&asJSON, "json", false, "print a JSON list")
	return cmd
}

// loginWays says how to log in to a service.
func loginWays(o *v1.OAuth) string {
	switch {
	case o == nil:
		return ""
	case o.Authorize == "":
		return "device"
	case o.Device == "":
		return "browser"
	}
	return "browser,device"
}

// loginState says whether the value of a login is valid, and stays so.
func loginState(l *v1.LoginState) string {
	switch {
	case l == nil:
		return ""
	case l.Over:
		return "log in again: " + cli.Harmless(l.Failed)
	case l.Failed != "":
		return "not renewed: " + cli.Harmless(l.Failed)
	case l.Renewable || l.ExpiresAt == nil:
		return "valid"
	case time.Until(*l.ExpiresAt) < 0:
		return "log in again: expired"
	}
	return "expires in " + coarse(time.Until(*l.ExpiresAt))
}

// secrets returns the secrets that a query selects.
func (s *session) secrets(ctx context.Context, query url.Values) ([]v1.Secret, error) {
	all := []v1.Secret{}
	err := pages(ctx, s, "/v1/secrets", query, func(page v1.SecretList) (string, error) {
		all = append(all, page.Secrets...)
		return page.Next, nil
	})
	return all, err
}

// completeSecrets completes the names of secrets, for the first limit arguments; -1: all of them.
func (a *tree) completeSecrets(limit int) cobra.CompletionFunc {
	return a.completed(func(ctx context.Context, s *session, args []string, prefix string) (names []string) {
		if limit >= 0 && len(args) >= limit {
			return nil
		}
		all, err := s.secrets(ctx, url.Values{})
		if err != nil {
			return nil
		}
		for _, x := range all {
			if strings.HasPrefix(x.Name, prefix) {
				names = append(names, x.Name)
			}
		}
		return names
	})
}

// readSecret reads a value from a source of this machine; "": standard input. A line break at its
// end is removed. Errors do not have the value.
func (a *tree) readSecret(ctx context.Context, source string) (string, error) {
	if source != "" {
		return secret.Read(ctx, source, a.Environ, a.Stderr)
	}
	var text []byte
	var err error
	if cli.IsTerminal(a.Stdin) {
		fmt.Fprint(a.Stderr, "value (not shown): ")
		text, err = a.readHidden(ctx)
		fmt.Fprintln(a.Stderr)
	} else {
		text, err = io.ReadAll(io.LimitReader(a.Stdin, secret.MaxValue+2)) // with a line break
	}
	if err != nil {
		return "", fmt.Errorf("reading the value: %w", err)
	}
	return secret.Trim(text)
}

// readHidden reads a line from the terminal without echo. When ctx ends, the echo is on again.
func (a *tree) readHidden(ctx context.Context) ([]byte, error) {
	fd := int(a.Stdin.Fd())
	saved, err := term.GetState(fd)
	if err != nil {
		return nil, err
	}
	type line struct {
		text []byte
		err  error
	}
	read := make(chan line, 1)
	go func() {
		text, err := term.ReadPassword(fd)
		read <- line{text, err}
	}()
	select {
	case l := <-read:
		return l.text, l.err
	case <-ctx.Done():
		_ = term.Restore(fd, saved)
		return nil, context.Cause(ctx)
	}
}
