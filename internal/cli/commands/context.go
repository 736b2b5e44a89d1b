package commands

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sandpit-dev/sandpit"
	v1 "github.com/sandpit-dev/sandpit/internal/api/v1"
	"github.com/sandpit-dev/sandpit/internal/cli"
)

// contextCommand is sandpit context.
func (a *tree) contextCommand() *cobra.Command {
	cmd := a.group(&cobra.Command{
		Use: "context",
		Long: `A context is an interpreter in a sandbox that keeps its state from one run of 'sandpit code' to
the next, beside its own working directory and variables. Each language has one whose ID is the
name of the language, which its first run creates. Runs in one context wait for each other, those in
several are parallel.`,
	})
	cmd.AddCommand(
		a.contextList(), a.contextCreate(),
		a.contextChange("restart", "end an interpreter; the next run starts without its state", "Kill the interpreter of a context with everything that it has started.\nThe next run starts a new one.", sandpit.Coder.RestartContext),
		a.contextChange("interrupt", "interrupt the present run", "Interrupt the present run of a context, as ^C does. Its state stays. Without a run it does nothing.", sandpit.Coder.InterruptContext),
		a.contextChange("rm", "remove contexts", "Remove contexts, with their interpreters and everything that these have started.", sandpit.Coder.RemoveContext),
	)
	return cmd
}

func (a *tree) contextList() *cobra.Command {
	var as format
	cmd := a.serverCommand(&cobra.Command{
		Use: "ls [flags] NAME", Aliases: []string{"list"}, Short: "list the contexts of a sandbox",
		Args: arguments(1, 1), ValidArgsFunction: a.completeNames(1),
	}, withSandbox(func(ctx context.Context, sb sandpit.Sandbox, _ []string) error {
		all, err := sb.Contexts(ctx)
		if err != nil {
			return err
		}
		if as.given() {
			objects := []v1.CodeContext{}
			for _, c := range all {
				objects = append(objects, v1.FromCodeContext(c))
			}
			return printObjects(a, &as, objects)
		}
		table := a.table("ID", "LANGUAGE", "AGE", "STATE", "PROCESS", "DIRECTORY")
		for _, c := range all {
			state := "idle"
			switch {
			case c.Process == "":
				state = "ended"
			case c.Busy:
				state = "busy"
			}
			fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\n", cli.Harmless(c.ID), cli.Harmless(c.Language), ago(c.CreatedAt), state, cmp.Or(cli.Harmless(c.Process), "-"), cmp.Or(cli.Harmless(c.Dir), "-"))
		}
		return table.Flush()
	}))
	as.register(cmd, v1.CodeContext{})
	return cmd
}

func (a *tree) contextCreate() *cobra.Command {
	language, workdir := textFlag("LANGUAGE"), textFlag("DIRECTORY")
	env := a.envFlag()
	cmd := a.serverCommand(&cobra.Command{
		Use: "create [flags] NAME [ID]", Short: "create a context and start its interpreter",
		Long:    "Create a context, start its interpreter, and print its ID. Without ID, it gets a random one.",
		Example: "  sandpit context create work plots\n  sandpit context create --language python --workdir /workspace --env A=1 work",
		Args:    arguments(1, 2), ValidArgsFunction: a.completeNames(1),
	}, withSandbox(func(ctx context.Context, sb sandpit.Sandbox, args []string) error {
		made, err := sb.CreateContext(ctx, sandpit.NewContext{ID: append(args, "")[0], Language: language.is, Dir: workdir.is, Env: env.entries()})
		if err != nil {
			return err
		}
		_, err = fmt.Fprintln(a.Stdout, cli.Harmless(made.ID))
		return err
	}))
	cmd.Flags().VarP(&language, "language", "l", "language (default "+sandpit.Python+")")
	cmd.Flags().VarP(&workdir, "workdir", "w", "working directory (default that of the sandbox)")
	cmd.Flags().VarP(env, "env", "e", "set a variable; KEY alone takes its value from here")
	return cmd
}

// contextChange is a command that does something to contexts.
func (a *tree) contextChange(verb, short, long string, do func(sb sandpit.Coder, ctx context.Context, id string) error) *cobra.Command {
	return a.serverCommand(&cobra.Command{
		Use: verb + " NAME ID...", Short: short, Long: long,
		Example: "  sandpit context " + verb + " work " + sandpit.Python,
		Args:    arguments(2, -1), ValidArgsFunction: a.completeNamedContexts,
	}, withSandbox(func(ctx context.Context, sb sandpit.Sandbox, args []string) error {
		return a.eachText(ctx, args, func(id string) error { return aboutContext(sb, sandpit.Code{}, do(sb, ctx, id)) })
	}))
}

// completeNamedContexts completes a sandbox and then its contexts.
func (a *tree) completeNamedContexts(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
	if len(args) == 0 {
		return a.completeNames(1)(cmd, args, prefix)
	}
	return a.completeContexts(cmd, args, prefix)
}

// completeContexts completes the contexts of the sandbox that the first argument names.
func (a *tree) completeContexts(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
	return a.completed(func(ctx context.Context, s *session, args []string, prefix string) (ids []string) {
		if len(args) == 0 {
			return nil
		}
		sb, err := s.Get(ctx, args[0])
		if err != nil {
			return nil
		}
		all, err := sb.Contexts(ctx)
		if err != nil {
			return nil
		}
		for _, c := range all {
			if strings.HasPrefix(c.ID, prefix) && !slices.Contains(args[1:], c.ID) {
				ids = append(ids, cobra.CompletionWithDesc(c.ID, c.Language))
			}
		}
		return ids
	})(cmd, args, prefix)
}
