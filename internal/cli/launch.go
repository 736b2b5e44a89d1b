package cli

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"unicode/utf8"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/fastrun"
	"github.com/sandpit-dev/sandpit/internal/image"
)

// Launch runs a command line if it is one of the few that must start quickly: run and shell
// with an image in the store, exec in a sandbox of this user's server, and version. For any
// other, and for one with a mistake, it reports false and has done nothing: package
// commands, in the full program, handles it. So it does if a server is configured.
//
// The store of OpenImages has no Fetcher.
func (a *App) Launch(ctx context.Context, args []string) (ok bool, err error) {
	if len(args) == 0 {
		return false, nil
	}
	var do func(context.Context, *Options, []string) error
	switch args[0] {
	case "run":
		do = a.Run
	case "shell":
		do = a.Shell
	case "exec":
		return a.launchExec(ctx, args[1:])
	case "version":
		if len(args) == 1 {
			return true, a.PrintVersion(false)
		}
		return false, nil
	default:
		return false, nil
	}
	o := NewOptions(a.Lookup)
	rest, ok := parse(o.Sections(), args[1:])
	if !ok || !a.stored(ctx, o) {
		return false, nil
	}
	return true, do(ctx, o, rest)
}

// launchExec is Launch for exec. Whether the server does it is found out first: reading
// the files that flags name may use them up.
func (a *App) launchExec(ctx context.Context, args []string) (ok bool, err error) {
	o := NewOptions(a.Lookup)
	rest, ok := parse(o.ExecFlags(), args)
	if !ok || o.detach.is || !utf8.ValidString(o.user.is) {
		return false, nil
	}
	name, argv, ok := ExecArgs(rest)
	home, address := a.configured()
	if !ok || home == "" || address != "" {
		return false, nil
	}
	box, err := fastrun.Open(home, a.Version, name)
	if err != nil {
		return false, nil
	}
	defer box.Close()
	box.Report, box.Denials = o.asJSON.is, a.tellsDenials(o)
	return true, a.exec(ctx, o, argv, func(context.Context) (standing, func() error, error) {
		return box, func() error { return nil }, nil
	})
}

// stored reports whether the sandbox is made here and its image need not be fetched. What is
// wrong with the configuration, or with the name of the image, is left for the run to find.
func (a *App) stored(ctx context.Context, o *Options) bool {
	if o.Configure(a.Config()) != nil {
		return true
	}
	if address, _ := o.Server(); address != "" {
		return false
	}
	if !o.network().IsZero() || len(o.secret.items)+len(o.secretEnv.items)+len(o.secretFrom.items) > 0 {
		return false // it has no network, and starts no server
	}
	if o.image.is == "" || o.image.is == "host" {
		return true
	}
	home, err := o.DataDir()
	if err != nil {
		return true
	}
	lease, err := a.OpenImages(home).Acquire(ctx, o.image.is, o.Acquire())
	if err == nil {
		lease.Release()
	}
	return !errors.Is(err, image.ErrNoFetcher)
}

// mayServe reports whether a server of this user may be asked to do a run: what
// it is asked for must be the same there. An image must be in the store, since
// how one is fetched, and that it is, is this side's to say.
func (a *App) mayServe(ctx context.Context, o *Options, home string, spec sandpit.Spec) bool {
	if o.plainHTTP.is || len(o.mirror.items) > 0 || o.initTime.is || spec.Pull == sandpit.PullAlways || !spec.Egress.IsZero() || len(spec.Secrets) > 0 {
		return false
	}
	if _, err := os.Lstat(filepath.Join(home, "server.sock")); err != nil {
		return false
	}
	for _, m := range spec.Mounts {
		if !filepath.IsAbs(m.Source) {
			return false
		}
	}
	if spec.Image == "" || spec.Image == "host" {
		return true
	}
	if kind, file, ok := strings.Cut(spec.Image, ":"); ok && (kind == "dir" || kind == "oci-archive" || kind == "docker-archive") && !filepath.IsAbs(file) {
		return false
	}
	never := o.Acquire()
	never.Pull = sandpit.PullNever
	lease, err := a.OpenImages(home).Acquire(ctx, spec.Image, never)
	if err != nil {
		return false
	}
	lease.Release()
	return true
}

// DataDir returns the configured data directory, or "" if it is unknown.
func (a *App) DataDir() string {
	home, _ := a.configured()
	return home
}

// configured returns the data directory and the address of the server that are
// configured. Home is "" when that can't be told, and so is the address of none.
func (a *App) configured() (home, address string) {
	o := NewOptions(a.Lookup)
	if o.Configure(a.Config()) != nil {
		return "", ""
	}
	address, _ = o.Server()
	home, err := o.DataDir()
	if err != nil {
		return "", address
	}
	return home, address
}
