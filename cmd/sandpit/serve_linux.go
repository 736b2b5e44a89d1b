//go:build !launcher

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/client"
	"github.com/sandpit-dev/sandpit/internal/audit"
	"github.com/sandpit-dev/sandpit/internal/cli"
	"github.com/sandpit-dev/sandpit/internal/fault"
	"github.com/sandpit-dev/sandpit/internal/image"
	"github.com/sandpit-dev/sandpit/internal/network/apart"
	"github.com/sandpit-dev/sandpit/internal/server"
	"github.com/sandpit-dev/sandpit/internal/upstream"
)

// addServer gives the command line what has to do with servers.
func addServer(app *cli.App) {
	app.Connect = connect
	app.Serve = func(ctx context.Context, opt cli.ServeOptions) error { return serve(ctx, app, opt) }
	app.VerifyAudit = verifyAudit
	for _, d := range dialects() {
		app.Dialects = append(app.Dialects, cli.Dialect{Name: d.Name, Title: d.Title})
	}
}

// connect opens the server at an address, or this user's own, which is started
// when there is none, unless only one that runs is wanted.
func connect(ctx context.Context, opt cli.ConnectOptions) (c sandpit.Client, started bool, err error) {
	address := opt.Address
	if address == "" {
		background := server.Background{Home: opt.Home, Environ: opt.Environ}
		if opt.Running {
			var answers bool
			if answers, err = background.Answers(ctx); err == nil && !answers {
				if background.Left() {
					return nil, false, sandpit.WithHint(cli.ErrNoServer, "an earlier server has left sandboxes; start your server again, or run 'sandpit stats' to start one for this user")
				}
				return nil, false, cli.ErrNoServer
			}
		} else {
			started, err = background.Ensure(ctx)
		}
		if err != nil {
			return nil, false, wantsHome(err, opt.Home)
		}
		address = server.SocketIn(opt.Home).String()
	}
	c, err = client.New(client.Options{Address: address, Key: opt.Key, Namespace: opt.Nested, UserAgent: "sandpit/" + version})
	return c, started, err
}

// serve runs a server.
func serve(ctx context.Context, app *cli.App, opt cli.ServeOptions) error {
	cli.OwnerUmask()
	settings, err := settingsOf(opt)
	var way *upstream.Way
	if err == nil {
		way, err = wayOf(cli.Upstream(settings.Upstream), settings.DNS)
	}
	if err != nil {
		if opt.Background {
			server.TellStarter(err)
		}
		return err
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	networks := apart.New(log, way)
	defer networks.Close()
	err = server.Run(ctx, server.Options{
		Home: opt.Home, Settings: settings,
		Driver: newDriver(opt.Home), Images: openImages(opt.Home), Version: version,
		Background: opt.Background, RemoveOrphans: opt.RemoveOrphans, Lookup: app.Lookup, Reload: opt.Reload, Leave: opt.Leave,
		Network: networks, Way: way, Dialects: dialects(),
		Acquire: image.AcquireOptions{Proxy: settings.Upstream.Proxy, NoProxy: settings.Upstream.NoProxy, CABundle: settings.Upstream.CABundle},
		Say:     func(text string) { app.Note("%s", text) },
		Log:     log,
	})
	return wantsHome(err, opt.Home)
}

// settingsOf returns the settings of the file, and of the flags on top of them.
func settingsOf(opt cli.ServeOptions) (server.Settings, error) {
	file, asked := opt.Settings, true
	if file == "" {
		file, asked = server.SettingsFile, false
	}
	settings, err := server.ReadSettings(file, asked)
	if err != nil {
		return settings, err
	}
	for _, l := range opt.Listen {
		a, err := server.ParseAddress(l.Address)
		if err != nil {
			return settings, err
		}
		settings.Listen = append(settings.Listen, server.Listen{Address: a, Service: l.Service})
	}
	of := &settings.Upstream
	of.Proxy, of.NoProxy, of.CABundle = cmp.Or(opt.Upstream.Proxy, of.Proxy), cmp.Or(opt.Upstream.NoProxy, of.NoProxy), cmp.Or(opt.Upstream.CABundle, of.CABundle)
	switch {
	case opt.IdleExit != nil:
		settings.IdleExit = *opt.IdleExit
	case opt.Background && settings.IdleExit == 0:
		settings.IdleExit = backgroundIdle
	}
	return settings, nil
}

// backgroundIdle is the idle time after which a server exits that a command has started, unless
// the settings have another.
const backgroundIdle = 5 * time.Minute

// wantsHome returns an error with the hint to choose another data directory, if
// it is about a file of home, or about making it.
func wantsHome(err error, home string) error {
	var path *fs.PathError
	if sandpit.Hint(err) == "" && errors.As(err, &path) && (path.Op == "mkdir" || filepath.Dir(path.Path) == home) {
		return sandpit.WithHint(err, "set SANDPIT_HOME to a directory that you can write to")
	}
	return err
}

// verifyAudit checks the audit of a data directory.
func verifyAudit(_ context.Context, home string, known cli.AuditEntry) (string, error) {
	found, err := audit.Verify(server.AuditDir(home), audit.Anchor(known))
	if errors.Is(err, fs.ErrNotExist) {
		return "", sandpit.WithHint(fault.Errorf(sandpit.ErrNotFound, "verifying the audit log: %s has none", home), "start a server first, with 'sandpit serve' or 'sandpit create'")
	}
	if err != nil {
		return "", fmt.Errorf("verifying the audit log: %w", err)
	}
	return fmt.Sprintf("the chain is intact: entries %d to %d in %d files; the last hash is %s", found.First, found.Last, found.Files, found.Hash), nil
}
