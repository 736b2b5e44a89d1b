package commands

import (
	"context"
	"errors"
	"os"
	"slices"
	"testing"

	"github.com/sandpit-dev/sandpit/internal/cli"
)

// Each dialect of the program is a flag for addresses.
func TestServeFlagsOfDialects(t *testing.T) {
	stop := errors.New("stop")
	var got []cli.Listen
	app := &cli.App{
		Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr, Environ: []string{"HOME=" + t.TempDir()},
		Dialects: []cli.Dialect{{Name: "toy", Title: "Toy"}},
		Serve: func(_ context.Context, opt cli.ServeOptions) error {
			got = opt.Listen
			return stop
		},
	}
	err := Run(t.Context(), app, []string{"serve", "--toy", ":1", "--listen", ":2", "--toy=unix:///s"})
	want := []cli.Listen{{Address: ":1", Service: "toy"}, {Address: ":2"}, {Address: "unix:///s", Service: "toy"}}
	if !errors.Is(err, stop) || !slices.Equal(got, want) {
		t.Errorf("%v %v, want %v", got, err, want)
	}
}
