package commands

import (
	"context"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sandpit-dev/sandpit"
	v1 "github.com/sandpit-dev/sandpit/internal/api/v1"
	"github.com/sandpit-dev/sandpit/internal/cli"
	"github.com/sandpit-dev/sandpit/internal/fault"
	"github.com/sandpit-dev/sandpit/internal/keys"
	"github.com/sandpit-dev/sandpit/internal/notation"
)

// A caller asks a server what package sandpit has no words for.
type caller interface {
	Call(ctx context.Context, method, path string, in, out any) error
}

// call is caller's Call on a session.
func (s *session) call(ctx context.Context, method, path string, in, out any) error {
	c, ok := s.Client.(caller)
	if !ok {
		return fault.Errorf(sandpit.ErrUnsupported, "calling the server: this client does not support it")
	}
	return c.Call(ctx, method, path, in, out)
}

// keyCommand is sandpit key.
func (a *tree) keyCommand() *cobra.Command {
	cmd := a.group(&cobra.Command{
		Use: "key",
		Long: `Keys authenticate callers over TCP. Each key belongs to a namespace, whose sandboxes it
can use, and to a policy, which defines what it may do. The server stores only a hash of
a key: the key is shown once, when it is created.`,
	})
	cmd.AddCommand(a.keyCreate(), a.keyList(), a.keyRevoke())
	return cmd
}

func (a *tree) keyCreate() *cobra.Command {
	var want v1.NewKey
	var asJSON bool
	namespace, policy, expires, format := textFlag("NAME"), textFlag("NAME"), durationFlag(), textFlag("FORMAT")
	cmd := a.serverCommand(&cobra.Command{
		Use:     "create [flags] [NAME]",
		Short:   "create a key and show it once",
		Example: "  sandpit key create --namespace team-a --policy small ci\n  sandpit key create --expires 720h --json",
		Args:    arguments(0, 1),
	}, func(ctx context.Context, s *session, args []string) error {
		if len(args) == 1 {
			if args[0] == "" {
				return sandpit.WithHint(cli.Usagef("the name is empty"), "give it a value, or omit it")
			}
			want.Name = args[0]
		}
		want.Namespace, want.Policy, want.Expires, want.Format = namespace.is, policy.is, expires.is.Seconds(), format.is
		var key v1.Key
		if err := s.call(ctx, "POST", "/v1/keys", want, &key); err != nil {
			return err
		}
		return s.showKey(key, func() error {
			if asJSON {
				return a.PrintJSON(key)
			}
			a.Note("created key %s of namespace %s; it is shown only once", key.ID, key.Namespace)
			_, err := fmt.Fprintln(a.Stdout, key.Secret)
			return err
		})
	})
	cmd.Flags().Var(&namespace, "namespace", "namespace whose sandboxes it can use (default a new one)")
	cmd.Flags().Var(&policy, "policy", "policy of the key (default the policy named default)")
	cmd.Flags().BoolVar(&want.Admin, "admin", false, "allow managing keys, and reading the audit log and metrics")
	cmd.Flags().Var(&expires, "expires", "time after which the key expires (default never)")
	cmd.Flags().Var(&format, "format", "form of the key, for clients of other projects that check it: "+strings.Join(keys.Formats(), " or "))
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

// showKey shows a new key, or revokes it if that fails: nobody could use it.
func (s *session) showKey(key v1.Key, show func() error) error {
	err := show()
	if err == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second) // also if the command is interrupted
	defer cancel()
	if s.call(ctx, "DELETE", "/v1/keys/"+url.PathEscape(key.ID), nil, nil) != nil {
		return sandpit.WithHint(fmt.Errorf("showing the key %s, which is valid: %w", cli.Harmless(key.ID), err), "run 'sandpit key revoke "+cli.Harmless(key.ID)+"'")
	}
	return fmt.Errorf("showing the key %s, which was revoked: %w", cli.Harmless(key.ID), err)
}

func (a *tree) keyList() *cobra.Command {
	var asJSON bool
	cmd := a.serverCommand(&cobra.Command{
		Use:   "ls",
		Short: "list keys by their public prefix",
		Args:  noArguments,
	}, func(ctx context.Context, s *session, _ []string) error {
		all := []v1.Key{}
		err := pages(ctx, s, "/v1/keys", url.Values{}, func(page v1.KeyList) (string, error) {
			all = append(all, page.Keys...)
			return page.Next, nil
		})
		if err != nil {
			return err
		}
		if asJSON {
			return a.PrintJSON(all)
		}
		table := a.table("ID", "NAME", "NAMESPACE", "POLICY", "AGE", "STATE")
		for _, k := range all {
			state := "valid"
			switch {
			case k.RevokedAt != nil:
				state = "revoked"
			case k.ExpiresAt != nil && k.ExpiresAt.Before(time.Now()):
				state = "expired"
			case k.ExpiresAt != nil:
				state = "expires in " + coarse(time.Until(*k.ExpiresAt))
			}
			if k.Admin {
				state += ", admin"
			}
			fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\n", k.ID, cli.Harmless(k.Name), cli.Harmless(k.Namespace), cli.Harmless(k.Policy), ago(k.CreatedAt), state)
		}
		return table.Flush()
	})
	cmd.Flags().BoolVar(&asJSON, "json", false, "print a JSON list")
	return cmd
}

func (a *tree) keyRevoke() *cobra.Command {
	return a.serverCommand(&cobra.Command{
		Use:   "revoke ID...",
		Short: "revoke keys immediately and permanently",
		Args:  arguments(1, -1),
	}, func(ctx context.Context, s *session, args []string) error {
		return a.eachText(ctx, args, func(key string) error {
			path, err := keyPath(key)
			if err != nil {
				return err
			}
			return s.call(ctx, "DELETE", path, nil, nil)
		})
	})
}

// keyPath is where the server has a key, by its id. Of a whole key only that part
// is told.
func keyPath(key string) (string, error) {
	id, whole := keys.ID(key)
	if !whole {
		id = key
		if rest, ok := strings.CutPrefix(key, "sp_"); ok {
			id, _, _ = strings.Cut(rest, "_")
		}
	}
	if !notation.IsName(id) {
		return "", sandpit.WithHint(cli.Usagef("%.8q is not a key ID", id), "run 'sandpit key ls' to list them")
	}
	return "/v1/keys/" + id, nil
}
