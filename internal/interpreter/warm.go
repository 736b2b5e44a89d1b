package interpreter

import (
	"context"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/fault"
)

// Warm starts interpreters in a sandbox that nobody has used yet, and returns their processes when they are ready. The
// last one waits to be the default context of the language: it is one from its first run on, and nobody sees it as one
// before. For Python the other is a zygote, which has imported the modules. It never runs code, and contexts are forked
// from it, the default one at once. If it can't be forked, because a module has started threads or it has no ctypes,
// the default context has imported the modules itself. The caller need not keep anything else:
// a Manager finds the processes by their command lines, as after a restart of the server, and the guest knows the zygote. The
// error matches sandpit.ErrUnsupported for a language whose interpreters can't import modules ahead.
func Warm(ctx context.Context, place Starter, name string, modules []string) ([]sandpit.Process, error) {
	l, err := languageOf(name)
	if err != nil {
		return nil, err
	}
	if l.name != sandpit.Python && len(modules) > 0 {
		return nil, fault.Errorf(sandpit.ErrUnsupported, "importing modules ahead for %s", l.name)
	}
	var made []sandpit.Process
	origin := Cold
	if l.name == sandpit.Python {
		zygote, err := l.start(ctx, place, zygoteCommand(), Zygote, setup{Nonce: random(), MaxLine: maxLine, Modules: modules, Zygote: true})
		switch {
		case err == nil:
			made, origin, modules = append(made, zygote.process), Fork, nil
		case ctx.Err() != nil:
			return nil, err
		}
	}
	s := setup{Language: l.name, Socket: Sockets + random(), Nonce: random(), MaxLine: maxLine, Modules: modules}
	is, err := l.start(ctx, place, identity{readyTag, l.name, l, s.Socket}.command(), origin, s)
	if err != nil {
		return nil, err
	}
	return append(made, is.process), nil
}
