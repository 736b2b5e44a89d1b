package commands

import (
	"github.com/spf13/cobra"

	"github.com/sandpit-dev/sandpit/internal/cli"
)

// annotationPlace says where a command works: SANDPIT_SERVER is honoured or refused by name,
// and never ignored. Every command has it.
const annotationPlace = "place"

// The places.
const (
	// placeServer is the configured server. Without one, run, shell and images work in this
	// program, and all others at this user's own server.
	placeServer = "server"

	// placeHere is this machine. The command refuses to work, or says what it is about, if a
	// server is configured.
	placeHere = "here"

	// placeProgram is this program itself: its help and version.
	placeProgram = "program"
)

// at says where a command works.
func at(cmd *cobra.Command, place string) *cobra.Command {
	if cmd.Annotations == nil {
		cmd.Annotations = map[string]string{}
	}
	cmd.Annotations[annotationPlace] = place
	return cmd
}

// hereCommand is a command that works on this machine. It refuses to if a server is
// configured.
func (a *tree) hereCommand(cmd *cobra.Command, name string, do func(cmd *cobra.Command, o *cli.Options, args []string) error) *cobra.Command {
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		o := cli.NewOptions(a.Lookup)
		if err := o.Configure(a.Config()); err != nil {
			return err
		}
		if err := o.OnlyHere(name); err != nil {
			return err
		}
		return do(cmd, o, args)
	}
	return at(cmd, placeHere)
}
