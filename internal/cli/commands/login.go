package commands

import (
	"context"
	"fmt"
	"net/url"
	"os/exec"
	"runtime"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/sandpit-dev/sandpit"
	v1 "github.com/sandpit-dev/sandpit/internal/api/v1"
	"github.com/sandpit-dev/sandpit/internal/cli"
	"github.com/sandpit-dev/sandpit/internal/fault"
	"github.com/sandpit-dev/sandpit/internal/oauth"
	"github.com/sandpit-dev/sandpit/internal/secret"
)

// secretLogin is sandpit secret login.
func (a *tree) secretLogin() *cobra.Command {
	var (
		of                whose
		device, noBrowser bool
		clientSecret      string
		scopes            []string
	)
	name, client := textFlag("NAME"), textFlag("ID")
	cmd := a.serverCommand(&cobra.Command{
		Use:   "login [flags] SERVICE",
		Short: "log in to a service with OAuth, and store the token as a secret",
		Long: `Log in to a service with OAuth, and store the token as a secret. The login happens on this
machine: a browser opens here, and comes back to a port of the loopback. With --device it
happens on any machine, by a code. The server keeps the token valid as long as the provider
renews it; 'sandpit secret ls' says if that fails.

'sandpit secret services --json' has what is known of each service. Most providers want an
application of yours to be registered first: pass its ID with --client-id, or describe it in
server.yaml.`,
		Example: "  sandpit secret login github --device --client-id Iv1.0123456789abcdef\n  sandpit secret login google --client-id ID --client-secret-from file:secret.txt",
		Args:    arguments(1, 1),
	}, func(ctx context.Context, s *session, args []string) error {
		if name.is == "" {
			name.is = args[0]
		}
		path, err := secretPath(name.is, "", of)
		if err != nil {
			return err
		}
		app, err := s.appOf(ctx, args[0], device)
		if err != nil {
			return err
		}
		o := cli.NewOptions(a.Lookup)
		if err := o.Configure(a.Config()); err != nil {
			return err
		}
		if app.Way, err = wayOf(o); err != nil {
			return err
		}
		grant := v1.Login{ClientID: client.is}
		if clientSecret != "" {
			if grant.ClientSecret, err = secret.Read(ctx, clientSecret, a.Environ, a.Stderr); err != nil {
				return err
			}
			app.ClientSecret = grant.ClientSecret
		}
		if client.is != "" {
			app.ClientID = client.is
		}
		if len(scopes) > 0 {
			app.Scopes = scopes
		}
		if app.ClientID == "" {
			return sandpit.WithHint(cli.Usagef("%s needs an application of yours", args[0]), "register one there as a native or device application, and pass its ID with --client-id")
		}
		got, err := a.login(ctx, app, device, noBrowser)
		if err != nil {
			return fmt.Errorf("logging in to %s: %w", args[0], err)
		}
		if grant.RefreshToken = got.Refresh; !got.ExpiresAt.IsZero() {
			grant.ExpiresAt = &got.ExpiresAt
			if got.Refresh == "" {
				a.Note("the provider has given no refresh token: log in again in %s", coarse(time.Until(got.ExpiresAt)))
			}
		}
		var made v1.Secret
		if err := s.call(ctx, "PUT", path, v1.NewSecret{Value: got.Access, Service: args[0], Login: &grant}, &made); err != nil {
			return err
		}
		_, err = fmt.Fprintln(a.Stdout, cli.Harmless(made.Name))
		return err
	})
	cmd.Flags().Var(&name, "name", "name of the secret (default SERVICE)")
	cmd.Flags().BoolVar(&device, "device", false, "log in by a code that is entered in a browser anywhere")
	cmd.Flags().BoolVar(&noBrowser, "no-browser", false, "open no browser, only print the URL")
	cmd.Flags().Var(&client, "client-id", "ID of the application that is registered at the provider (default the service's)")
	cmd.Flags().StringVar(&clientSecret, "client-secret-from", "", "read the application's secret from `SOURCE` on this machine: env:NAME, file:PATH or cmd:COMMAND")
	cmd.Flags().StringArrayVar(&scopes, "scope", nil, "`SCOPE` to ask for; may be repeated (default the service's)")
	of.register(cmd, false)
	cmd.ValidArgsFunction = a.completed(func(ctx context.Context, s *session, args []string, _ string) (names []string) {
		all, err := s.services(ctx)
		if err != nil || len(args) > 0 {
			return nil
		}
		for _, x := range all {
			if x.OAuth != nil {
				names = append(names, x.Name)
			}
		}
		return names
	})
	return cmd
}

// appOf returns the application of a service, as the server knows it.
func (s *session) appOf(ctx context.Context, name string, device bool) (oauth.App, error) {
	all, err := s.services(ctx)
	if err != nil {
		return oauth.App{}, err
	}
	i := slices.IndexFunc(all, func(x v1.Service) bool { return x.Name == name })
	if i < 0 {
		return oauth.App{}, sandpit.WithHint(fault.NotFoundf("there is no service %q", fault.Clip(name)), "'sandpit secret services' lists them")
	}
	o := all[i].OAuth
	if o == nil {
		if name == "openrouter" { // whose logins are no OAuth 2.0, and return only to https, or to port 3000
			return oauth.App{}, sandpit.WithHint(fault.Errorf(sandpit.ErrUnsupported, "logins to openrouter are not supported: they do not follow RFC 6749"),
				"create a key at https://openrouter.ai/settings/keys, and run 'sandpit secret set openrouter'")
		}
		return oauth.App{}, sandpit.WithHint(fault.Errorf(sandpit.ErrUnsupported, "nothing is known of how to log in to the service %s", name),
			"run 'sandpit secret set "+name+"' with a key of the service, or describe its OAuth in the services of server.yaml")
	}
	app := oauth.App{OAuth: secret.OAuth(*o)}
	if err := app.Check(); err != nil {
		return oauth.App{}, fmt.Errorf("the service %s: %w", name, err)
	}
	switch {
	case device && app.OAuth.Device == "":
		return app, sandpit.WithHint(fault.Errorf(sandpit.ErrUnsupported, "%s gives no device codes", name), "omit --device")
	case !device && app.Authorize == "":
		return app, sandpit.WithHint(fault.Errorf(sandpit.ErrUnsupported, "%s only gives device codes", name), "add --device")
	}
	return app, nil
}

// login has the user log in. What it says is needed, however quiet the command is to be.
func (a *tree) login(ctx context.Context, app oauth.App, device, noBrowser bool) (oauth.Tokens, error) {
	if device {
		return app.Device(ctx, func(uri, code string) {
			fmt.Fprintf(a.Stderr, "sandpit: open %s and enter the code %s\n", cli.Harmless(uri), cli.Harmless(code))
		})
	}
	return app.Browser(ctx, func(address string) {
		fmt.Fprintf(a.Stderr, "sandpit: log in at %s\n", cli.Harmless(address))
		if !noBrowser {
			openBrowser(ctx, address)
		}
	})
}

// openBrowser opens a URL, if there is a desktop. The user has it anyway.
func openBrowser(ctx context.Context, address string) {
	program := "xdg-open"
	if runtime.GOOS == "darwin" {
		program = "open"
	}
	if cmd := exec.CommandContext(ctx, program, address); cmd.Start() == nil {
		go func() { _ = cmd.Wait() }()
	}
}

// services returns the services that the server knows.
func (s *session) services(ctx context.Context) ([]v1.Service, error) {
	all := []v1.Service{}
	err := pages(ctx, s, "/v1/services", url.Values{}, func(page v1.ServiceList) (string, error) {
		all = append(all, page.Services...)
		return page.Next, nil
	})
	return all, err
}
