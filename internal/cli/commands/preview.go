package commands

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sandpit-dev/sandpit"
	v1 "github.com/sandpit-dev/sandpit/internal/api/v1"
	"github.com/sandpit-dev/sandpit/internal/cli"
	"github.com/sandpit-dev/sandpit/internal/fault"
)

// previewCommand is sandpit preview.
func (a *tree) previewCommand() *cobra.Command {
	revoke := textFlag("ID")
	var asJSON bool
	life := durationFlag()
	cmd := a.serverCommand(&cobra.Command{
		Use: "preview [flags] NAME [PORT]",
		Long: `Create a preview: a URL that opens a TCP port of a sandbox in a browser without a key.
Everybody who has the URL can use the port until the preview ends: after --for, when it
is revoked, and with the sandbox. Without PORT, list the previews of the sandbox; URLs
are shown only when they are created.

It needs a server that listens on TCP. 'sandpit forward' opens a port on this machine
without one.`,
		Example: `  sandpit preview work 3000
  sandpit preview --for 8h work 3000
  sandpit preview work
  sandpit preview --revoke k3v7q2mak3v7q2ma work`,
		Args:              arguments(1, 2),
		ValidArgsFunction: a.completeNames(1),
	}, func(ctx context.Context, s *session, args []string) error {
		if len(args) == 2 && revoke.set {
			return sandpit.WithHint(cli.Usagef("--revoke takes no PORT"), "write 'sandpit preview --revoke ID NAME'")
		}
		if len(args) == 1 && life.set {
			return sandpit.WithHint(cli.Usagef("--for needs a PORT"), "write 'sandpit preview --for "+life.text+" NAME PORT'")
		}
		var port uint64
		if len(args) == 2 {
			var err error
			if port, err = strconv.ParseUint(args[1], 10, 16); err != nil || port == 0 {
				return sandpit.WithHint(cli.Usagef("%.40q is not a port", args[1]), "use a number from 1 to 65535")
			}
		}
		sb, err := s.find(ctx, args[0])
		if err != nil {
			return err
		}
		p, ok := sb.(sandpit.Previewer)
		if !ok {
			return fault.Errorf(sandpit.ErrUnsupported, "previews: this client does not support them")
		}
		switch {
		case revoke.set:
			err := p.RevokePreview(ctx, revoke.is)
			if errors.Is(err, sandpit.ErrNotFound) {
				return sandpit.WithHint(err, "run 'sandpit preview "+sb.Name()+"' to list them")
			}
			return err
		case len(args) == 1:
			return a.listPreviews(ctx, p, asJSON)
		}
		made, err := p.Preview(ctx, uint16(port), life.is)
		if err != nil {
			return err
		}
		if asJSON {
			return a.PrintJSON(v1.Preview(made))
		}
		a.Note("preview %s expires in %s; its URL is shown only once", made.ID, coarse(made.ExpiresAt.Sub(made.CreatedAt)))
		if refusedByBrowsers(made.URL) {
			a.Note("browsers refuse certificates for names below localhost; set 'domain' in server.yaml to a name with a certificate")
		}
		_, err = fmt.Fprintln(a.Stdout, cli.Harmless(made.URL))
		return err
	})
	cmd.Flags().Var(&life, "for", "time after which it expires (default 1h, or the policy's maximum)")
	cmd.Flags().Var(&revoke, "revoke", "end the preview with this ID, and all that it has opened")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

// refusedByBrowsers reports whether a URL needs a certificate for a name below localhost.
func refusedByBrowsers(text string) bool {
	u, err := url.Parse(text)
	return err == nil && u.Scheme == "https" && strings.HasSuffix(u.Hostname(), ".localhost")
}

func (a *tree) listPreviews(ctx context.Context, p sandpit.Previewer, asJSON bool) error {
	previews, err := p.Previews(ctx)
	if err != nil {
		return err
	}
	if asJSON {
		all := []v1.Preview{}
		for _, p := range previews {
			all = append(all, v1.Preview(p))
		}
		return a.PrintJSON(all)
	}
	table := a.table("ID", "PORT", "AGE", "EXPIRES IN")
	for _, p := range previews {
		fmt.Fprintf(table, "%s\t%d\t%s\t%s\n", cli.Harmless(p.ID), p.Port, ago(p.CreatedAt), coarse(time.Until(p.ExpiresAt)))
	}
	return table.Flush()
}
