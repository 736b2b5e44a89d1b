package interpreter

import (
	"context"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/fault"
)

// Warm starts an interpreter in a sandbox that nobody has used yet, and returns its process when it has imported
// the modules. One of Python is a zygote: it never runs code, and the contexts of the sandbox are forked from it.
// If it can't be forked, because a module has started threads or it has no ctypes, and for
// another language, it is the default context of its language. Nothing else must be left of it: a Manager of the
// sandbox finds that by its command line, as after a restart of the server, and the guest knows the zygote. The
// error matches sandpit.ErrUnsupported for a language whose interpreters can't import modules ahead.
func Warm(ctx context.Context, place Starter, name string, modules []string) (sandpit.Process, error) {
	l, err := languageOf(name)
	if err != nil {
		return nil, err
	}
	if l.name != sandpit.Python && len(modules) > 0 {
		return nil, fault.Errorf(sandpit.ErrUnsupported, "importing modules ahead for %s", l.name)
	}
	s := setup{Socket: socketPrefix + random(), Nonce: random(), MaxLine: maxLine, Modules: modules}
	if l.name == sandpit.Python {
		s.Zygote = true
		if is, err := l.start(ctx, place, zygoteCommand(), Zygote, s); err == nil || ctx.Err() != nil {
			if err != nil {
				return nil, err
			}
			return is.process, nil
		}
		s.Zygote = false
	}
	is, err := l.start(ctx, place, l.command(l.name, s.Socket), Cold, s)
	if err != nil {
		return nil, err
	}
	return is.process, nil
}
