package commands

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sandpit-dev/sandpit"
	v1 "github.com/sandpit-dev/sandpit/internal/api/v1"
	"github.com/sandpit-dev/sandpit/internal/cli"
	"github.com/sandpit-dev/sandpit/internal/notation"
)

// lifetimeFlags are the flags about how long a sandbox lives.
type lifetimeFlags struct {
	life, idle parsed[time.Duration]
	expiry     parsed[sandpit.Expiry]
}

func newLifetimeFlags() *lifetimeFlags {
	return &lifetimeFlags{life: durationFlag(), idle: parsed[time.Duration]{parse: parseIdle, shown: "DURATION"}, expiry: parsed[sandpit.Expiry]{parse: parseExpiry, shown: "WHAT"}}
}

func parseIdle(text string) (time.Duration, error) {
	if text == "never" {
		return sandpit.NoIdle, nil
	}
	return notation.ParseDuration(text)
}

func parseExpiry(text string) (sandpit.Expiry, error) {
	switch e := sandpit.Expiry(text); e {
	case sandpit.ExpiryRemove, sandpit.ExpiryStop, sandpit.ExpiryPause:
		return e, nil
	}
	return "", sandpit.WithHint(fmt.Errorf("%q is not an action at expiry", text), "use remove, stop or pause")
}

// register adds the flags. With defaults, it is said what they are.
func (f *lifetimeFlags) register(cmd *cobra.Command, defaults bool) {
	usage := func(text, builtIn string) string {
		if defaults {
			return text + " (default " + builtIn + ")"
		}
		return text
	}
	cmd.Flags().Var(&f.life, "life", usage("maximum lifetime of the sandbox", "24h"))
	cmd.Flags().Var(&f.idle, "idle", usage("maximum idle time of the sandbox, or never", "never"))
	cmd.Flags().Var(&f.expiry, "on-expiry", usage("action at expiry: remove, stop or pause", "remove"))
}

// createCommand is sandpit create.
func (a *tree) createCommand() *cobra.Command {
	// Flags of run that are about one command, or about this program's own pulls.
	oneRun := map[string]bool{
		"timeout": true, "interactive": true, "tty": true, "json": true, "init-time": true, "entrypoint": true,
		"name": true, "mirror": true, "plain-http": true,
	}
	for _, name := range cli.UpstreamFlags() {
		oneRun[name] = true
	}
	o, life := cli.NewOptions(a.Lookup), newLifetimeFlags()
	cmd := &cobra.Command{
		Use: "create [flags] [NAME]",
		Long: `Create a sandbox that persists, and print its name. Run programs in it with sandpit exec.
It exists until it is removed, or until its lifetime or idle time ends. With --no-start it
takes nothing of the machine, and these times do not pass, until 'sandpit start'.`,
		Example: `  sandpit create work
  sandpit create --image debian:13 --memory 1g --idle 30m build
  name=$(sandpit create) && sandpit exec $name -- uname -a`,
		Args: arguments(0, 1),
	}
	for _, section := range o.Sections() {
		for _, e := range section.Entries {
			switch e.Name {
			case "output-limit":
				e.Usage = "output of a command; the rest is counted and dropped (default 1g)"
			case "ulimit":
				e.Usage = strings.Replace(e.Usage, "CMD", "each command", 1)
			}
			if !oneRun[e.Name] {
				addFlags(cmd.Flags(), e)
			}
		}
	}
	closeFlags(cmd, o)
	life.register(cmd, true)
	noStart := cmd.Flags().Bool("no-start", false, "do not start it: 'sandpit start' does")
	cmd.ValidArgsFunction = cobra.NoFileCompletions
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := o.Configure(a.Config()); err != nil {
			return err
		}
		spec, err := o.Spec()
		if err == nil {
			err = o.Elsewhere(false)
		}
		if err == nil {
			err = a.ReadSecrets(cmd.Context(), o, &spec)
		}
		if err != nil {
			return err
		}
		if len(args) == 1 {
			if spec.Name = args[0]; spec.Name == "" {
				return sandpit.WithHint(cli.Usagef("the name of the sandbox is empty"), "omit it to get a generated name")
			}
			if strings.ContainsAny(args[0], ":/") {
				return sandpit.WithHint(cli.Usagef("%q can't be the name of a sandbox", args[0]), "write 'sandpit create --image "+args[0]+"' if it is an image")
			}
		}
		a.WarnVariables(o)
		a.WarnMachine(o)
		a.WarnInert(o, spec, true)
		spec.NoStart = *noStart
		spec.Limits.Life, spec.Idle, spec.OnExpiry = life.life.is, life.idle.is, life.expiry.is
		return a.withServer(cmd.Context(), false, func(ctx context.Context, s *session) error {
			told := a.sayWaiting(ctx, s)
			sb, err := s.Create(ctx, spec)
			told()
			if err != nil {
				return err
			}
			a.WarnLimits(ctx, o, sb)
			_, err = fmt.Fprintln(a.Stdout, sb.Name())
			return err
		})
	}
	return at(cmd, placeServer)
}

// psCommand is sandpit ps.
func (a *tree) psCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "ps [flags] [NAME]",
		Short: "list sandboxes, or the processes of one",
		Long: `List the running sandboxes or, with a NAME, the processes of that sandbox. With -a, also
list those that have stopped, failed, exited or were not started. --filter state=STATE implies -a.
The oldest come first, or with -r the newest. No server is started: if none is running, but
sandboxes of an earlier one are left, that is an error.

Filters: label=KEY[=VALUE], state=STATE, name=PART, image=PART, since=TIME, until=TIME. A TIME
is that of creation (2026-01-02, 2026-01-02T15:04:05Z), or how long ago that was: until=24h
selects what is older than a day.

With --all-namespaces, this user's own server and administrators' keys list the sandboxes of
all namespaces, such as those of keys of 'sandpit env --new-key'. Other commands reach them
with a key of their namespace: see 'sandpit key create --namespace'.`,
		Example: "  sandpit ps\n  sandpit ps -a --filter label=team=build --filter until=7d\n" +
			"  sandpit ps --format '{{.Name}}\\t{{.State}}\\t{{.Labels.team}}'",
		Args:              arguments(0, 1),
		ValidArgsFunction: a.completeNames(1),
	}
	var as format
	as.register(cmd, jsonInfo{})
	all := cmd.Flags().BoolP("all", "a", false, "also show those that are not running")
	quiet := cmd.Flags().BoolP("quiet", "q", false, "print only names; with --all-namespaces and for processes, IDs")
	everywhere := cmd.Flags().Bool("all-namespaces", false, "list the sandboxes of all namespaces of the server; for administrators")
	only := filter{ListQuery: sandpit.ListQuery{Limit: sandpit.MaxPage}}
	only.register(cmd.Flags())
	cmd.Flags().BoolVarP(&only.NewestFirst, "reverse", "r", false, "list the newest first")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		err := a.withServer(cmd.Context(), true, func(ctx context.Context, s *session) error {
			if len(args) == 1 && *everywhere {
				return sandpit.WithHint(cli.Usagef("--all-namespaces is for lists of sandboxes, but %q is given", args[0]), "omit one of them")
			}
			if len(args) == 1 {
				return a.psProcesses(ctx, s, args[0], *all, &as, *quiet, &only)
			}
			return a.psSandboxes(ctx, s, &only, *all, *everywhere, &as, *quiet)
		})
		switch {
		case !errors.Is(err, cli.ErrNoServer):
			return err
		case sandpit.Hint(err) != "": // there is something to list
			return err
		case len(args) == 1:
			return sandpit.WithHint(err, "run 'sandpit inspect "+args[0]+"' to start it")
		case *quiet:
			return nil
		case as.given():
			return printObjects[jsonInfo](a, &as, nil)
		}
		a.Note("%v; other commands start it", err)
		return nil
	}
	return at(cmd, placeServer)
}

// psSandboxes lists sandboxes.
func (a *tree) psSandboxes(ctx context.Context, s *session, only *filter, all, everywhere bool, as *format, quiet bool) error {
	list := s.list
	if everywhere {
		list = s.listEverywhere
	}
	infos, err := list(ctx, only.ListQuery)
	if err != nil {
		return err
	}
	infos = slices.DeleteFunc(infos, func(i sandpit.Info) bool {
		return !only.matches(i) || !all && len(only.States) == 0 && (i.State == sandpit.StateStopped || i.State == sandpit.StateFailed || i.State == sandpit.StateCreated)
	})
	switch {
	case quiet:
		var b strings.Builder
		for _, info := range infos {
			name := info.Name
			if info.Namespace != s.nested { // the name means another one
				name = info.ID
			}
			b.WriteString(name + "\n")
		}
		_, err := a.Stdout.WriteString(b.String())
		return err
	case as.given():
		objects := make([]jsonInfo, len(infos))
		for i, info := range infos {
			objects[i] = jsonOfInfo(info)
		}
		return printObjects(a, as, objects)
	}
	head := []string{"NAME", "STATE", "IMAGE", "AGE", "EXPIRES", "LABELS"}
	several := everywhere || s.nested == sandpit.AllNamespaces
	if several {
		head = append([]string{"NAMESPACE"}, head...)
	}
	table := a.table(head...)
	for _, info := range infos {
		expires := "-"
		if !info.ExpiresAt.IsZero() {
			expires = "in " + coarse(time.Until(info.ExpiresAt))
		}
		if several {
			fmt.Fprint(table, cli.Harmless(cmp.Or(info.Namespace, "-"))+"\t")
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\n", info.Name, info.State, cli.Harmless(shortImage(info.Image)), ago(info.CreatedAt), expires, cli.Harmless(labelText(info.Labels)))
	}
	return table.Flush()
}

// listEverywhere is session.list for the sandboxes of all namespaces of the server. Their Namespace is the whole one.
func (s *session) listEverywhere(ctx context.Context, q sandpit.ListQuery) ([]sandpit.Info, error) {
	var names []string
	err := pages(ctx, s, "/v1/namespaces", url.Values{}, func(page v1.NamespaceList) (string, error) {
		for _, n := range page.Namespaces {
			names = append(names, n.Name)
		}
		return page.Next, nil
	})
	var all []sandpit.Info
	for _, name := range names {
		if err != nil {
			break
		}
		err = pages(ctx, s, "/v1/namespaces/"+url.PathEscape(name)+"/sandboxes", url.Values{}, func(page v1.SandboxList) (string, error) {
			for _, found := range page.Sandboxes {
				info := found.Sandpit()
				if info.Namespace = name; found.Namespace != "" {
					info.Namespace += "/" + found.Namespace
				}
				if q.Selects(info) {
					all = append(all, info)
				}
			}
			return page.Next, nil
		})
	}
	slices.SortStableFunc(all, func(a, b sandpit.Info) int { return a.CreatedAt.Compare(b.CreatedAt) })
	if q.NewestFirst {
		slices.Reverse(all)
	}
	return all, err
}

// psProcesses lists the processes of a sandbox.
func (a *tree) psProcesses(ctx context.Context, s *session, name string, all bool, as *format, quiet bool, only *filter) error {
	switch {
	case only.set:
		return sandpit.WithHint(cli.Usagef("--filter and --label select sandboxes, but %q is given", name), "omit one of them")
	case as.template != nil:
		return sandpit.WithHint(cli.Usagef("templates are for sandboxes, but %q is given", name), "use --format json")
	}
	sb, err := s.find(ctx, name)
	if err != nil {
		return err
	}
	procs, err := sb.Processes(ctx)
	if err != nil {
		return err
	}
	if !all {
		procs = slices.DeleteFunc(procs, func(p sandpit.ProcessInfo) bool { return p.Result != nil })
	}
	if only.NewestFirst {
		slices.Reverse(procs)
	}
	switch {
	case quiet:
		var b strings.Builder
		for _, p := range procs {
			b.WriteString(p.ID + "\n")
		}
		_, err := a.Stdout.WriteString(b.String())
		return err
	case as.json:
		objects := make([]jsonProcess, len(procs))
		for i, p := range procs {
			objects[i] = jsonOfProcess(p)
		}
		return a.PrintJSON(objects)
	}
	table := a.table("ID", "PID", "STATE", "AGE", "USER", "COMMAND")
	for _, p := range procs {
		state := "running"
		switch {
		case p.Result != nil && p.Result.TimedOut:
			state = "timed out"
		case p.Result != nil && p.Result.Signal != 0:
			state = fmt.Sprintf("signal %d", p.Result.Signal)
		case p.Result != nil:
			state = fmt.Sprintf("exit %d", p.Result.ExitCode)
		}
		fmt.Fprintf(table, "%s\t%d\t%s\t%s\t%s\t%s\n", p.ID, p.PID, state, ago(p.StartedAt), cli.Harmless(p.User), cli.Harmless(clip(strings.Join(p.Argv, " "), 80)))
	}
	return table.Flush()
}

func parseLabel(text string) ([2]string, error) {
	key, value, err := notation.ParseLabel(text)
	return [2]string{key, value}, err
}

// clip shortens a text to n bytes, or a few less.
func clip(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return strings.ToValidUTF8(s[:n], "") + "…"
}

// shortImage leaves the digest out, and the parts of a name that go without saying.
func shortImage(name string) string {
	name, _, _ = strings.Cut(name, "@")
	name = strings.TrimPrefix(name, "docker.io/")
	return strings.TrimPrefix(name, "library/")
}

func labelText(labels map[string]string) string {
	var all []string
	for k, v := range labels {
		all = append(all, k+"="+v)
	}
	slices.Sort(all)
	return strings.Join(all, ",")
}

// inspectCommand is sandpit inspect.
func (a *tree) inspectCommand() *cobra.Command {
	var as format
	cmd := a.serverCommand(&cobra.Command{
		Use:               "inspect [flags] NAME...",
		Long:              "Print the details of a sandbox as JSON: its state, limits, labels, processes, what it may reach,\nthe names of its secrets, and what this machine can't enforce.",
		Example:           "  sandpit inspect work",
		Args:              arguments(1, -1),
		ValidArgsFunction: a.completeNames(-1),
	}, func(ctx context.Context, s *session, args []string) error {
		objects := make([]jsonInfo, 0, len(args))
		for _, name := range args {
			sb, err := s.find(ctx, name)
			if err != nil {
				return err
			}
			info, err := sb.Info(ctx)
			if err != nil {
				return err
			}
			procs, err := sb.Processes(ctx)
			if err != nil {
				return err
			}
			object := jsonOfInfo(info)
			if e, err := sb.Egress(ctx); err == nil { // else it can't have any
				object.Egress = v1.FromEgress(e)
			}
			object.Processes = make([]jsonProcess, len(procs))
			for i, p := range procs {
				object.Processes[i] = jsonOfProcess(p)
			}
			objects = append(objects, object)
		}
		return printObjects(a, &as, objects)
	})
	as.register(cmd, jsonInfo{})
	return cmd
}

// stateCommand is a command that does one thing to each sandbox it is given, if all exist: what
// is meant as a process of the first one must not change that.
func (a *tree) stateCommand(use, long string, do func(context.Context, sandpit.Sandbox) error) *cobra.Command {
	name, _, _ := strings.Cut(use, " ")
	return a.serverCommand(&cobra.Command{
		Use: use, Long: long, Example: "  sandpit " + name + " work",
		Args:              arguments(1, -1),
		ValidArgsFunction: a.completeNames(-1),
	}, func(ctx context.Context, s *session, args []string) error {
		var first sandpit.Sandbox
		for _, arg := range args {
			sb, err := s.find(ctx, arg)
			if errors.Is(err, sandpit.ErrNotFound) && first != nil && (name == "kill" || name == "stop") {
				if _, e := cli.FindProcess(ctx, first, arg); e == nil {
					signal := map[string]string{"kill": "KILL", "stop": "TERM"}[name]
					return sandpit.WithHint(err, "run 'sandpit signal -s "+signal+" "+first.Name()+" "+arg+"' to end that process alone")
				}
			}
			if err != nil {
				return err
			}
			first = cmp.Or(first, sb)
		}
		return a.each(ctx, s, args, false, do)
	})
}

func (a *tree) stopCommand() *cobra.Command {
	grace := durationFlag()
	cmd := a.stateCommand("stop [flags] NAME...", "Stop a sandbox: end its processes with SIGTERM, and those left after the grace period\nwith SIGKILL. Its files stay; sandpit start starts it again.",
		func(ctx context.Context, sb sandpit.Sandbox) error {
			wait := 10 * time.Second
			if grace.set {
				wait = grace.is
			}
			return sb.Stop(ctx, wait)
		})
	cmd.Flags().VarP(&grace, "grace", "t", "time between SIGTERM and SIGKILL (default 10s)")
	return cmd
}

func (a *tree) startCommand() *cobra.Command {
	return a.stateCommand("start NAME...", "Start a sandbox that is stopped, with its files and without processes, or that was created\nwith --no-start.",
		func(ctx context.Context, sb sandpit.Sandbox) error { return sb.Restart(ctx) })
}

func (a *tree) killCommand() *cobra.Command {
	return a.stateCommand("kill NAME...", "End all processes of a sandbox with SIGKILL. Its files stay. 'sandpit signal' ends one\nprocess.",
		func(ctx context.Context, sb sandpit.Sandbox) error { return sb.Stop(ctx, 0) })
}

func (a *tree) pauseCommand() *cobra.Command {
	return a.stateCommand("pause NAME...", "Pause a sandbox: it keeps its memory and uses no CPU time. The next request to it, or\nsandpit resume, resumes it.",
		func(ctx context.Context, sb sandpit.Sandbox) error { return sb.Pause(ctx) })
}

func (a *tree) resumeCommand() *cobra.Command {
	return a.stateCommand("resume NAME...", "Resume a paused sandbox.",
		func(ctx context.Context, sb sandpit.Sandbox) error { return sb.Resume(ctx) })
}

func (a *tree) removeCommand() *cobra.Command {
	var force, all bool
	var only filter
	cmd := a.serverCommand(&cobra.Command{
		Use: "rm [flags] [NAME...]",
		Long: `Remove sandboxes with everything in them, even if they are running, and print their names.
With --all or a filter, all that match are removed, without a question. With -f, sandboxes that do
not exist are no failure.

Filters: label=KEY[=VALUE], state=STATE, name=PART, image=PART, since=TIME, until=TIME; see
'sandpit help ps'.`,
		Example:           "  sandpit rm work\n  sandpit rm --filter label=team=build\n  sandpit rm --all",
		Args:              arguments(0, -1),
		ValidArgsFunction: a.completeNames(-1),
	}, func(ctx context.Context, s *session, args []string) error {
		return a.each(ctx, s, args, force, func(ctx context.Context, sb sandpit.Sandbox) error { return sb.Remove(ctx) })
	})
	remove := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		switch matching := all || only.set; {
		case matching && len(args) > 0:
			return sandpit.WithHint(cli.Usagef("names can't be combined with --all, --filter or --label"), "omit one of them")
		case !matching && len(args) == 0 && force:
			return nil // as rm of files
		case !matching && len(args) == 0:
			return sandpit.WithHint(cli.Usagef("no sandbox is given"), "give names, --filter or --all")
		case matching:
			return a.removeAll(cmd.Context(), &only)
		}
		return remove(cmd, args)
	}
	cmd.Flags().BoolVarP(&force, "force", "f", false, "ignore sandboxes that do not exist")
	cmd.Flags().BoolVarP(&all, "all", "a", false, "remove all sandboxes that the filters select")
	only.register(cmd.Flags())
	return cmd
}

// pruneCommand is sandpit prune.
func (a *tree) pruneCommand() *cobra.Command {
	var only filter
	cmd := at(&cobra.Command{
		Use: "prune [flags]",
		Long: `Remove the sandboxes that have stopped or failed, with their files, and print their names.
It does not ask for confirmation. 'sandpit images prune' removes unused images.

Filters: label=KEY[=VALUE], name=PART, image=PART, since=TIME, until=TIME; see 'sandpit help ps'.`,
		Example:           "  sandpit prune\n  sandpit prune --filter until=7d",
		Args:              noArguments,
		ValidArgsFunction: cobra.NoFileCompletions,
	}, placeServer)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if len(only.States) > 0 {
			return sandpit.WithHint(cli.Usagef("prune removes only stopped and failed sandboxes, and takes no other state"), "use 'sandpit rm --filter state=...'")
		}
		only.States = []sandpit.State{sandpit.StateStopped, sandpit.StateFailed}
		return a.removeAll(cmd.Context(), &only)
	}
	only.register(cmd.Flags())
	return cmd
}

func isDuration(text string) bool {
	_, err := notation.ParseDuration(text)
	return err == nil
}

func (a *tree) extendCommand() *cobra.Command {
	life := newLifetimeFlags()
	cmd := a.serverCommand(&cobra.Command{
		Use:               "extend [flags] NAME...",
		Long:              "Change the lifetime of a sandbox, counted from now, and its idle time. Values that are not\ngiven stay unchanged.",
		Example:           "  sandpit extend --life 2h work\n  sandpit extend --idle never --on-expiry stop work",
		Args:              arguments(1, -1),
		ValidArgsFunction: a.completeNames(-1),
	}, func(ctx context.Context, s *session, args []string) error {
		if !life.life.set && !life.idle.set && !life.expiry.set {
			hint := "give --life, --idle or --on-expiry"
			if last := args[len(args)-1]; len(args) > 1 && isDuration(last) {
				hint = "write 'sandpit extend --life " + last + " " + strings.Join(args[:len(args)-1], " ") + "'"
			}
			return sandpit.WithHint(cli.Usagef("no change is given"), hint)
		}
		return a.each(ctx, s, args, false, func(ctx context.Context, sb sandpit.Sandbox) error {
			return sb.SetLifetime(ctx, sandpit.Lifetime{Life: life.life.is, Idle: life.idle.is, OnExpiry: life.expiry.is})
		})
	})
	life.register(cmd, false)
	return cmd
}
