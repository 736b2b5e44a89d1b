package cli

import (
	"context"
	"fmt"
	"strings"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/notation"
)

func parseSecretFrom(text string) ([2]string, error) {
	name, source, _ := strings.Cut(text, "=")
	kind, rest, _ := strings.Cut(source, ":")
	if err := notation.CheckSecretName(name); err != nil {
		return [2]string{}, err
	}
	if rest == "" || kind != "env" && kind != "file" && kind != "cmd" {
		return [2]string{}, sandpit.WithHint(fmt.Errorf("no source is given for the value of the secret %q", name), "write NAME=env:VARIABLE, NAME=file:PATH or NAME=cmd:COMMAND")
	}
	return [2]string{name, source}, nil
}

// ReadSecrets completes the secrets of a Spec by the values that are read on this machine.
func (a *App) ReadSecrets(ctx context.Context, o *Options, spec *sandpit.Spec) error {
	for _, from := range o.secretFrom.values() { // of one name, the last is in force, as of flags
		value, err := a.ReadSecret(ctx, from[1], a.Environ, a.Stderr)
		if err != nil {
			return fmt.Errorf("the secret %q: %w", from[0], err)
		}
		for i := range spec.Secrets {
			if spec.Secrets[i].Name == from[0] {
				spec.Secrets[i].Value = value
			}
		}
	}
	return nil
}
