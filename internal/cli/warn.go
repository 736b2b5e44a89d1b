package cli

import (
	"context"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/config"
	"github.com/sandpit-dev/sandpit/internal/fastrun"
	"github.com/sandpit-dev/sandpit/internal/feature"
	"github.com/sandpit-dev/sandpit/internal/notation"
)

// Warnings are single lines on stderr about a command that goes on. --quiet omits them.

// WarnVariables names, once, the SANDPIT_ variables that mean nothing, which are most likely
// typing errors, and a key without a server.
func (a *App) WarnVariables(o *Options) {
	if a.warned {
		return
	}
	a.warned = true
	unknown := config.UnknownVariables(a.Environ, Keys(o.Settable()))
	key, _ := a.Lookup("SANDPIT_KEY")
	if len(unknown) == 0 && key == "" {
		return
	}
	settings := NewOptions(a.Lookup) // the options of exec have none
	_ = settings.Configure(a.Config())
	if o.quiet.is || settings.quiet.is {
		return
	}
	if key != "" && settings.server.is == "" && !a.PrintsKey {
		a.Note("SANDPIT_KEY is not used: no server is configured, and a server of this user needs no key; set SANDPIT_SERVER")
	}
	if len(unknown) == 0 {
		return
	}
	const shown = 3
	text, verb := strings.Join(unknown[:min(len(unknown), shown)], ", "), "is not a setting"
	if n := len(unknown) - shown; n > 0 {
		text += " and " + strconv.Itoa(n) + " more"
	}
	if len(unknown) > 1 {
		verb = "are not settings"
	}
	a.Note("%s %s; 'sandpit help config' lists them", text, verb)
}

// WarnMachine names the limits that are beyond this machine: they are in force, and bound
// nothing. It says nothing about a server that may be on another machine.
func (a *App) WarnMachine(o *Options) {
	if address, _ := o.Server(); o.quiet.is || !isHere(address) {
		return
	}
	if have := runtime.NumCPU(); o.cpus.is > float64(have) {
		a.Note("%s is more than this machine's %d", o.cpus.shownAs("cpus"), have)
	}
	if o.memory.is == 0 && o.disk.is == 0 {
		return
	}
	have := machineMemory()
	if have <= 0 {
		return
	}
	if o.memory.is > have {
		a.Note("%s is more than this machine's memory and swap of %s", o.memory.shownAs("memory"), notation.FormatSize(have))
	}
	if a.FilesInMemory && o.disk.is > have {
		a.Note("%s is more than this machine's memory and swap of %s, where a sandbox's own files are", o.disk.shownAs("disk"), notation.FormatSize(have))
	}
}

// WarnInert names the flags that mean nothing to a sandbox without a network, or, if it stays, not yet.
func (a *App) WarnInert(o *Options, spec sandpit.Spec, stays bool) {
	bound := slices.ContainsFunc(spec.Secrets, func(u sandpit.Secret) bool { return !u.Env })
	if o.quiet.is || spec.Egress.Asked() || bound {
		return
	}
	var inert []string
	for _, flag := range append([]Entry{o.Flag("deny"), o.Flag("resolve"), o.Flag("dns")}, o.boundFlags()...) {
		if flag.Value.Origin().Level == config.Flag {
			inert = append(inert, "--"+flag.Name)
		}
	}
	switch {
	case len(inert) == 0:
	case stays:
		a.Note("without --egress, --allow or --secret there is no network; until 'sandpit network allow' these do nothing: %s", strings.Join(inert, ", "))
	default:
		a.Note("without --egress, --allow or --secret there is no network; these do nothing: %s", strings.Join(inert, ", "))
	}
}

// shownAs names a setting with its value and where that is from.
func (s *scalar[T]) shownAs(name string) string {
	if s.from.Level == config.Flag {
		return "--" + name + " " + s.text
	}
	return name + " " + s.text + " (" + s.from.Where + ")"
}

// WarnLimits names the default limits that are not enforced for a new sandbox.
func (a *App) WarnLimits(ctx context.Context, o *Options, sb sandpit.Sandbox) {
	if server, _ := o.Server(); !o.quiet.is {
		a.warnLimits(ctx, sb, server)
	}
}

// warnLimits is WarnLimits for the sandbox of a run.
func (a *App) warnLimits(ctx context.Context, sandbox place, server string) {
	var lacking []string
	switch run := sandbox.(type) {
	case *fastrun.Run:
		lacking = run.NotEnforced()
	default:
		info, err := sandbox.Info(ctx)
		if err != nil {
			return // the command will tell
		}
		lacking = feature.LimitsAmong(info.NotEnforced)
	}
	switch {
	case len(lacking) == 0:
	case server != "":
		a.Note("the server does not enforce the default limits of %s; -q omits this warning", strings.Join(lacking, ", "))
	default:
		a.Note("the default limits of %s are not enforced on this machine; 'sandpit doctor' says why, -q omits this warning", strings.Join(lacking, ", "))
	}
}
