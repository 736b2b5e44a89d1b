package cli

import (
	"context"
	"errors"

	"github.com/sandpit-dev/sandpit/internal/image"
)

// Front carries out a command line if it is one of the few that start sandboxes
// and so must start quickly: run and shell with an image that is in the store,
// and version. For any other, and for one with something wrong about it, it
// reports false, and has done nothing: it is for package commands, in a program
// that has all of it.
//
// The store that OpenImages opens is one without a Fetcher.
func (a *App) Front(ctx context.Context, args []string) (ok bool, err error) {
	if len(args) == 0 {
		return false, nil
	}
	var do func(context.Context, *Options, []string) error
	switch args[0] {
	case "run":
		do = a.Run
	case "shell":
		do = a.Shell
	case "version":
		if len(args) == 1 {
			return true, a.PrintVersion(false)
		}
		return false, nil
	default:
		return false, nil
	}
	o := NewOptions(a.Lookup)
	rest, ok := o.Parse(args[1:])
	if !ok || !a.stored(ctx, o) {
		return false, nil
	}
	return true, do(ctx, o, rest)
}

// stored reports whether the image need not be fetched. What is wrong with the
// configuration, or with the name of the image, is left for the run to find.
func (a *App) stored(ctx context.Context, o *Options) bool {
	if o.Configure(a.Config()) != nil || o.image.is == "" || o.image.is == "host" {
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

// DataDir returns the data directory as it is configured, or "" when that can't
// be told.
func (a *App) DataDir() string {
	o := NewOptions(a.Lookup)
	if o.Configure(a.Config()) != nil {
		return ""
	}
	home, err := o.DataDir()
	if err != nil {
		return ""
	}
	return home
}
