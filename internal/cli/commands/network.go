package commands

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sandpit-dev/sandpit"
	v1 "github.com/sandpit-dev/sandpit/internal/api/v1"
	"github.com/sandpit-dev/sandpit/internal/cli"
	"github.com/sandpit-dev/sandpit/internal/egress"
	"github.com/sandpit-dev/sandpit/internal/fault"
	"github.com/sandpit-dev/sandpit/internal/notation"
)

// networkCommand is sandpit network.
func (a *tree) networkCommand() *cobra.Command {
	var sets strings.Builder
	for _, s := range egress.Sets() {
		fmt.Fprintf(&sets, "\n  %-20s %s", s.Name, s.Meaning)
	}
	cmd := a.group(&cobra.Command{
		Use: "network",
		Long: `Show and change what a sandbox may reach. Changes take effect at once: connections that are
no longer allowed end.

A rule is HOST, HOST:PORT, *.HOST (all names below HOST), ADDRESS, CIDR or a set, optionally
after udp: or ping:, or METHOD:https://HOST/PATH* for requests. The sets:
` + sets.String(),
	})
	cmd.AddCommand(a.networkShow(), a.networkChange("allow"), a.networkChange("deny"), a.networkCheck(), a.networkLog())
	return cmd
}

func (a *tree) networkShow() *cobra.Command {
	var asJSON bool
	cmd := a.serverCommand(&cobra.Command{
		Use: "show [flags] NAME", Short: "show what a sandbox may reach",
		Long:              "Show what a sandbox may reach, as the flags that ask for it, with what the policy adds. The hosts of\nits secrets, which it reaches without a rule, are beside them.",
		Example:           "  sandpit network show work",
		Args:              arguments(1, 1),
		ValidArgsFunction: a.completeNames(1),
	}, func(ctx context.Context, s *session, args []string) error {
		sb, err := s.find(ctx, args[0])
		if err != nil {
			return err
		}
		e, err := sb.Egress(ctx)
		if err != nil {
			return err
		}
		info, err := sb.Info(ctx)
		if err != nil {
			return err
		}
		if asJSON {
			return a.PrintJSON(shownEgress{cmp.Or(v1.FromEgress(e), new(v1.Egress)), v1.FromInfo(info).Secrets})
		}
		return a.printEgress(e, info.Secrets)
	})
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

// shownEgress is the JSON of sandpit network show.
type shownEgress struct {
	*v1.Egress
	Secrets []v1.UsedSecret `json:"secrets,omitempty"` // whose hosts are reached, too
}

func (a *tree) printEgress(e sandpit.Egress, secrets []sandpit.SecretUse) error {
	var b strings.Builder
	fmt.Fprintf(&b, "--egress %s\n", cli.Harmless(string(cmp.Or(e.Preset, sandpit.EgressNone))))
	for _, list := range []struct {
		flag  string
		texts []string
	}{{"allow", e.Allow}, {"deny", e.Deny}, {"resolve", e.Resolve}, {"dns", e.DNS}} {
		for _, text := range list.texts {
			fmt.Fprintf(&b, "--%s %s\n", list.flag, cli.Harmless(text))
		}
	}
	for _, bound := range notation.TrafficBounds(&e.Bounds) {
		if *bound.Value != 0 {
			fmt.Fprintf(&b, "--%s %s\n", bound.Flag, strings.ReplaceAll(bound.Format(*bound.Value), " ", ""))
		}
	}
	for _, use := range secrets {
		if len(use.Hosts) > 0 {
			fmt.Fprintf(&b, "--secret %s    # reaches %s\n", use.Name, cli.Harmless(strings.Join(use.Hosts, ", ")))
		}
	}
	_, err := a.Stdout.WriteString(b.String())
	return err
}

// networkChange is sandpit network allow or deny.
func (a *tree) networkChange(verb string) *cobra.Command {
	var remove bool
	preset := parsed[sandpit.EgressPreset]{parse: notation.ParseEgress, shown: "PRESET"}
	resolve := parsedList[string]{parse: notEmpty, shown: "HOST:ADDR"}
	cmd := &cobra.Command{
		Use:   verb + " [flags] NAME [RULE...]",
		Short: map[string]string{"allow": "let a sandbox reach more, or less", "deny": "keep a sandbox from reaching something"}[verb],
		Long: map[string]string{
			"allow": "Add rules to what a sandbox may reach, or remove them with --remove. Without a rule, change\n--egress or --resolve alone. See 'sandpit network --help' for rules.",
			"deny":  "Add rules to what a sandbox may not reach, or remove them with --remove. They win over what is\nallowed. See 'sandpit network --help' for rules.",
		}[verb],
		Example: map[string]string{
			"allow": "  sandpit network allow work pypi.org:443 '*.example.com'\n  sandpit network allow --egress registries work\n  sandpit network allow --remove work pypi.org:443",
			"deny":  "  sandpit network deny work telemetry.example.com\n  sandpit network deny --remove work telemetry.example.com",
		}[verb],
		Args: arguments(1, -1),
	}
	names := a.completeNames(1)
	cmd.ValidArgsFunction = func(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
		if len(args) == 0 {
			return names(cmd, args, prefix)
		}
		return egress.SetNames(), cobra.ShellCompDirectiveNoFileComp
	}
	cmd = a.serverCommand(cmd, func(ctx context.Context, s *session, args []string) error {
		name, rules := args[0], args[1:]
		if len(rules) == 0 && !preset.set && len(resolve.are) == 0 {
			return sandpit.WithHint(cli.Usagef("no rule is given"), "write 'sandpit network "+verb+" "+name+" HOST:PORT'")
		}
		for _, rule := range rules {
			if _, err := egress.ParseRule(rule); err != nil && !remove {
				return cli.WithHintOf(cli.Usagef("%v", err), err)
			}
		}
		sb, err := s.find(ctx, name)
		if err != nil {
			return err
		}
		e, err := sb.Egress(ctx)
		if err != nil {
			return err
		}
		var change sandpit.EgressChange
		if preset.set {
			change.Preset = preset.is
		}
		edit, are := sandpit.EgressRules{Allow: rules, Resolve: resolve.are}, append(slices.Clip(e.Allow), e.Resolve...)
		if verb == "deny" {
			edit, are = sandpit.EgressRules{Deny: rules}, e.Deny
		}
		if remove {
			change.Remove = edit
			for _, rule := range append(slices.Clip(rules), resolve.are...) {
				if !slices.Contains(are, rule) {
					return sandpit.WithHint(fault.Errorf(sandpit.ErrNotFound, "sandbox %q has no rule %q", name, rule), "see 'sandpit network show "+name+"'")
				}
			}
		} else {
			change.Add = edit
		}
		if err := sb.ChangeEgress(ctx, change); err != nil {
			return err
		}
		if !remove || verb == "allow" {
			return nil
		}
		now, err := sb.Egress(ctx)
		for _, rule := range rules {
			if err == nil && slices.Contains(now.Deny, rule) {
				return fault.Errorf(sandpit.ErrForbidden, "the policy denies %q to every sandbox", rule)
			}
		}
		return err
	})
	cmd.Flags().BoolVar(&remove, "remove", false, "remove the rules")
	if verb == "allow" {
		cmd.Flags().Var(&preset, "egress", "what may be reached besides: none, registries, public, all or learn")
		cmd.Flags().Var(&resolve, "resolve", "use this address for a host; allows nothing by itself")
	}
	return cmd
}

func (a *tree) networkCheck() *cobra.Command {
	var asJSON bool
	cmd := a.serverCommand(&cobra.Command{
		Use: "check [flags] NAME HOST[:PORT]", Short: "check whether a sandbox may reach something, and by which rule",
		Long: `Check whether a sandbox may reach a host or address, and by which rule; udp: or ping:
may stand before it. Nothing is sent. The addresses of an allowed name are checked when it is
connected to. The exit code is 1 if it is denied.`,
		Example:           "  sandpit network check work pypi.org:443\n  sandpit network check work udp:192.0.2.1:53",
		Args:              arguments(2, 2),
		ValidArgsFunction: a.completeNames(1),
	}, func(ctx context.Context, s *session, args []string) error {
		sb, err := s.find(ctx, args[0])
		if err != nil {
			return err
		}
		d, err := sb.CheckEgress(ctx, args[1])
		if err != nil {
			return err
		}
		if asJSON {
			err = a.PrintJSON(v1.EgressDecision(d))
		} else {
			verdict := "denied"
			if d.Allowed {
				verdict = "allowed"
			}
			_, err = fmt.Fprintf(a.Stdout, "%s: %s\n", verdict, cli.Harmless(strings.TrimPrefix(d.Why, verdict+" ")))
		}
		switch {
		case err != nil:
			return err
		case !d.Allowed:
			return cli.ExitWith(1)
		}
		if text := lastFailure(ctx, sb, args[1]); text != "" && !asJSON {
			a.Note("%s", cli.Harmless(text))
		}
		return nil
	})
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

// lastFailure says why the last connection to an allowed destination failed, if it did: its name may not
// exist, or lead to an address that no rule names.
func lastFailure(ctx context.Context, sb sandpit.Sandbox, destination string) string {
	to, err := egress.ParseDestination(destination)
	if err != nil || to.Host == "" {
		return ""
	}
	log, err := sb.EgressLog(ctx)
	if err != nil {
		return ""
	}
	slices.SortStableFunc(log.Flows, func(x, y sandpit.Flow) int { return x.Started.Compare(y.Started) })
	for _, f := range slices.Backward(log.Flows) {
		if f.Host != to.Host || f.Protocol != "dns" && (f.Protocol != string(to.Protocol) || to.Port != 0 && f.Port != to.Port) {
			continue
		}
		switch {
		case !f.Allowed:
			return "its last connection was denied: " + f.Why
		case f.Error != "":
			return "its last connection failed: " + f.Error
		}
		return ""
	}
	return ""
}

func (a *tree) networkLog() *cobra.Command {
	var asJSON, denied bool
	host := textFlag("HOST")
	cmd := a.serverCommand(&cobra.Command{
		Use: "log [flags] NAME", Short: "show the latest connections of a sandbox",
		Long: `Show the latest connections of a sandbox, and those that it was denied, oldest first. The log is
bounded, and ends with the server's process. Of a sandbox with --egress learn it ends with the
--allow flags that suffice in its place.`,
		Example:           "  sandpit network log work\n  sandpit network log --denied work",
		Args:              arguments(1, 1),
		ValidArgsFunction: a.completeNames(1),
	}, func(ctx context.Context, s *session, args []string) error {
		sb, err := s.find(ctx, args[0])
		if err != nil {
			return err
		}
		log, err := sb.EgressLog(ctx)
		if err != nil {
			return err
		}
		var allow *[]string
		if log.Learns {
			allow = new(cli.Learned(log.Flows))
		}
		log.Flows = slices.DeleteFunc(log.Flows, func(f sandpit.Flow) bool {
			return denied && f.Allowed || host.set && f.Host != host.is && v1.HostOf(f.Address) != host.is
		})
		slices.SortStableFunc(log.Flows, func(x, y sandpit.Flow) int { return x.Started.Compare(y.Started) })
		if asJSON {
			l := v1.FromEgressLog(log)
			return a.PrintJSON(networkLog{l.Flows, l.Lost, l.Denials, allow})
		}
		table := a.table("STARTED", "DURATION", "PROTOCOL", "DESTINATION", "ADDRESS", "SENT", "RECEIVED", "RESULT")
		for _, f := range log.Flows {
			result := "denied: " + f.Why
			switch {
			case f.Allowed && f.Error != "":
				result = "failed: " + f.Error
			case f.Allowed && f.Open:
				result = "open"
			case f.Allowed:
				result = "ok"
			}
			destination := cmp.Or(f.Host, v1.HostOf(f.Address))
			if f.Port != 0 {
				destination = net.JoinHostPort(destination, strconv.Itoa(int(f.Port)))
			}
			fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", f.Started.Format(time.TimeOnly), f.Took.Round(time.Millisecond), f.Protocol,
				cli.Harmless(destination), cli.Harmless(f.Address), notation.FormatSize(f.Sent), notation.FormatSize(f.Received), cli.Harmless(result))
		}
		if err := table.Flush(); err != nil {
			return err
		}
		switch {
		case allow != nil:
			a.TellLearned(*allow, log.Lost, len(log.Flows)+len(log.Denials) > 0)
		case log.Lost > 0:
			a.Note("%d earlier connections are no longer in the log", log.Lost)
		}
		return nil
	})
	cmd.Flags().BoolVar(&denied, "denied", false, "only what was denied")
	cmd.Flags().Var(&host, "host", "only connections to this name or address")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

// networkLog is the JSON of sandpit network log.
type networkLog struct {
	Flows   []v1.Flow         `json:"flows"`
	Lost    int64             `json:"lost"` // connections that are no longer in the log
	Denials []v1.EgressDenial `json:"denials"`
	Allow   *[]string         `json:"allow,omitempty"` // the rules that suffice in place of the preset learn
}
