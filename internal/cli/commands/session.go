package commands

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/cli"
	"github.com/sandpit-dev/sandpit/internal/fault"
)

// session is one conversation with a server.
type session struct {
	sandpit.Client
	home   string
	nested string // the nested namespace of its sandboxes; empty: none
}

// serverCommand is a command that needs a server: cmd, with what it does with
// the server. A signal ends it; what it was doing to a sandbox is then undone
// or done, as the method it called says.
func (a *tree) serverCommand(cmd *cobra.Command, do func(ctx context.Context, s *session, args []string) error) *cobra.Command {
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return a.withServer(cmd.Context(), false, func(ctx context.Context, s *session) error { return do(ctx, s, args) })
	}
	if cmd.ValidArgsFunction == nil {
		cmd.ValidArgsFunction = cobra.NoFileCompletions
	}
	return at(cmd, placeServer)
}

// withServer does something with the server, until a signal ends it. With running, none is
// started: the error matches cli.ErrNoServer if none is there.
func (a *tree) withServer(ctx context.Context, running bool, do func(context.Context, *session) error) error {
	return cli.Interruptible(ctx, func(ctx context.Context) error {
		s, err := a.connect(ctx, running)
		if err != nil {
			return err
		}
		return errors.Join(aboutSandbox(do(ctx, s)), s.Close())
	})
}

// aboutSandbox returns the error that a sandbox is stopped without the path that it was
// asked about, to which it does not matter.
func aboutSandbox(err error) error {
	if about, ok := errors.AsType[*fs.PathError](err); ok && errors.Is(about.Err, sandpit.ErrState) {
		return about.Err
	}
	return err
}

// connect opens the server that is configured, or this user's own, which it
// starts when there is none, unless only one that runs is wanted.
func (a *tree) connect(ctx context.Context, running bool) (*session, error) {
	o := cli.NewOptions(a.Lookup)
	if err := o.Configure(a.Config()); err != nil {
		return nil, err
	}
	if !a.completing {
		a.WarnVariables(o)
	}
	address, key := o.Server()
	home, err := o.DataDir()
	if err != nil && address == "" {
		return nil, err
	}
	client, started, err := a.Connect(ctx, cli.ConnectOptions{Home: home, Address: address, Key: key, Nested: o.Namespace(), Environ: o.ServerEnviron(a.Environ), Running: running})
	if err != nil {
		return nil, err
	}
	if started {
		a.Note("started a server for this user; it exits when it is idle (see 'sandpit help serve')")
	}
	return &session{client, home, o.Namespace()}, nil
}

// withSandbox is do for the sandbox that the first argument names.
func withSandbox(do func(ctx context.Context, sb sandpit.Sandbox, args []string) error) func(context.Context, *session, []string) error {
	return func(ctx context.Context, s *session, args []string) error {
		sb, err := s.find(ctx, args[0])
		if err != nil {
			return err
		}
		return do(ctx, sb, args[1:])
	}
}

// find returns the sandbox of a name or id.
func (s *session) find(ctx context.Context, name string) (sandpit.Sandbox, error) {
	sb, err := s.Get(ctx, name)
	if errors.Is(err, sandpit.ErrNotFound) {
		hint := cmp.Or(separately(name), "run 'sandpit ps -a' to list all sandboxes")
		return nil, sandpit.WithHint(fault.Errorf(sandpit.ErrNotFound, "no sandbox is named %q", name), hint)
	}
	return sb, err
}

// separately returns a hint if arg is a sandbox and a path as sandpit cp takes them, or "".
func separately(arg string) string {
	box, path, ok := strings.Cut(arg, ":")
	if !ok || box == "" || path == "" {
		return ""
	}
	what := "path"
	if strings.Trim(path, "0123456789") == "" {
		what = "port"
	}
	return "write the sandbox and the " + what + " separately: " + box + " " + path
}

// each does something to every sandbox that args name. It goes on after a failure, and
// reports each. With absent, sandboxes that do not exist are passed over.
func (a *tree) each(ctx context.Context, s *session, args []string, absent bool, do func(context.Context, sandpit.Sandbox) error) error {
	var failed error
	for _, name := range args {
		sb, err := s.find(ctx, name)
		if err == nil {
			err = do(ctx, sb)
		}
		switch {
		case absent && errors.Is(err, sandpit.ErrNotFound):
		case err != nil && (len(args) == 1 || ctx.Err() != nil):
			return err
		case err != nil:
			a.PrintError(fmt.Errorf("%s: %w", name, err))
			failed = cli.Reported{Err: err}
		default:
			if _, err := fmt.Fprintln(a.Stdout, cli.Harmless(sb.Name())); err != nil {
				return err
			}
		}
	}
	return failed
}

// eachText does something for each argument, also after one has failed. An error of do names
// its argument.
func (a *tree) eachText(ctx context.Context, args []string, do func(string) error) error {
	var failed error
	for _, arg := range args {
		switch err := do(arg); {
		case err != nil && (len(args) == 1 || ctx.Err() != nil):
			return err
		case err != nil:
			a.PrintError(err)
			failed = cli.Reported{Err: err}
		}
	}
	return failed
}

// list returns every sandbox that matches.
func (s *session) list(ctx context.Context, q sandpit.ListQuery) ([]sandpit.Info, error) {
	var all []sandpit.Info
	for {
		page, err := s.List(ctx, q)
		if err != nil {
			return nil, err
		}
		all = append(all, page.Sandboxes...)
		switch page.Next {
		case "":
			return all, nil
		case q.After:
			return nil, errSamePage
		}
		q.After = page.Next
	}
}

// errSamePage is why a list is not read on: it would have no end.
var errSamePage = fault.Errorf(sandpit.ErrUnavailable, "the server sends the same page of a list again")

// pages reads a list of the server, page by page. take returns the position of the next page, or
// "" with the last one.
func pages[List any](ctx context.Context, s *session, path string, query url.Values, take func(List) (next string, err error)) error {
	query.Set("limit", strconv.Itoa(sandpit.MaxPage))
	for {
		var list List
		if err := s.call(ctx, http.MethodGet, path+"?"+query.Encode(), nil, &list); err != nil {
			return err
		}
		next, err := take(list)
		if err != nil || next == "" {
			return err
		}
		if next == query.Get("after") {
			return errSamePage
		}
		query.Set("after", next)
	}
}

// completeNames completes the names of sandboxes, for the first limit arguments;
// -1: all of them.
func (a *tree) completeNames(limit int) cobra.CompletionFunc {
	return a.completed(func(ctx context.Context, s *session, args []string, prefix string) (names []string) {
		if limit >= 0 && len(args) >= limit {
			return nil
		}
		infos, err := s.list(ctx, sandpit.ListQuery{Limit: sandpit.MaxPage})
		if err != nil {
			return nil
		}
		for _, info := range infos {
			if strings.HasPrefix(info.Name, prefix) && !slices.Contains(args, info.Name) {
				names = append(names, info.Name)
			}
		}
		return names
	})
}

// completionPatience is the time that a shell completion waits for a server.
const completionPatience = 2 * time.Second

// completed completes by what a server says, if one answers: none is started.
func (a *tree) completed(ask func(ctx context.Context, s *session, args []string, prefix string) []string) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
		ctx, cancel := context.WithTimeout(cmd.Context(), completionPatience)
		defer cancel()
		s, err := a.connect(ctx, true)
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		defer s.Close()
		return ask(ctx, s, args, prefix), cobra.ShellCompDirectiveNoFileComp
	}
}

// table starts a table with its head, on standard output.
func (a *tree) table(head ...string) *tabwriter.Writer { return tableOn(a.Stdout, head...) }

func tableOn(w io.Writer, head ...string) *tabwriter.Writer {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, strings.Join(head, "\t"))
	return t
}

// ago is how long ago something was, in the largest unit that says enough.
func ago(t time.Time) string { return coarse(time.Since(t)) }

func coarse(d time.Duration) string {
	switch {
	case d < 0:
		return "0s"
	case d < 2*time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < 2*time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", int(d.Hours()))
	}
	return fmt.Sprintf("%dd", int(d.Hours()/24))
}
