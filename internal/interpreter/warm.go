package interpreter

import (
	"context"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/fault"
)

// Warm starts the interpreter of the default context of a language, in a sandbox that nobody has used yet,
// and returns its process when it has imported the modules. Nothing else must be left of it: a Manager of
// the sandbox finds it by its command line, as after a restart of the server. The error matches
// sandpit.ErrUnsupported for a language whose interpreters can't import modules ahead.
func Warm(ctx context.Context, place Starter, name string, modules []string) (sandpit.Process, error) {
	l, err := languageOf(name)
	if err != nil {
		return nil, err
	}
	if l.name != sandpit.Python && len(modules) > 0 {
		return nil, fault.Errorf(sandpit.ErrUnsupported, "importing modules ahead for %s", l.name)
	}
	is, err := l.start(ctx, place, l.name, setup{Socket: socketPrefix + random(), Nonce: random(), MaxLine: maxLine, Modules: modules})
	if err != nil {
		return nil, err
	}
	return is.process, nil
}
