package commands

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	v1 "github.com/sandpit-dev/sandpit/internal/api/v1"
	"github.com/sandpit-dev/sandpit/internal/cli"
)

// auditCommand is sandpit audit.
func (a *tree) auditCommand() *cobra.Command {
	cmd := a.group(&cobra.Command{
		Use: "audit",
		Long: `The audit log records who requested what from a server, on which sandbox, whether it was
allowed and by which rule, and how it ended. It never contains secrets or file contents.
Each entry holds the hash of the previous one, so that changing, removing or adding an
entry is noticed.`,
	})
	cmd.AddCommand(a.auditVerify(), a.auditGrep())
	return cmd
}

func (a *tree) auditVerify() *cobra.Command {
	known := parsed[cli.AuditEntry]{parse: parseAuditEntry, shown: "NUMBER:HASH"}
	cmd := a.hereCommand(&cobra.Command{
		Use:   "verify [flags]",
		Short: "verify the audit log of this user's server",
		Long: `Verify the whole hash chain of the audit log of this user's server.

Someone with write access to the data directory could forge a whole new chain. Store the
last number and hash that this command prints where they can't change them, and pass them
to the next check with --known: the log must still contain that entry unchanged.`,
		Example:           "  sandpit audit verify\n  sandpit audit verify --known 1842:5d41402abc4b2a76b9719d911017c592ae4bd8a4e3c8e0f3a7d0b1c2d3e4f506",
		Args:              noArguments,
		ValidArgsFunction: cobra.NoFileCompletions,
	}, "audit verify", func(cmd *cobra.Command, o *cli.Options, _ []string) error {
		home, err := o.DataDir()
		if err != nil {
			return err
		}
		return cli.Interruptible(cmd.Context(), func(ctx context.Context) error {
			summary, err := a.VerifyAudit(ctx, home, known.is)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintln(a.Stdout, summary)
			return err
		})
	})
	cmd.Flags().Var(&known, "known", "an entry from an earlier check, which must still exist")
	return cmd
}

// parseAuditEntry reads NUMBER:HASH, as a check of the audit has told them.
func parseAuditEntry(text string) (cli.AuditEntry, error) {
	number, hash, ok := strings.Cut(text, ":")
	seq, err := strconv.ParseUint(number, 10, 64)
	if _, herr := hex.DecodeString(hash); !ok || err != nil || seq == 0 || herr != nil || len(hash) != hex.EncodedLen(sha256.Size) {
		return cli.AuditEntry{}, fmt.Errorf("%q is not the NUMBER:HASH of an entry, as printed by 'sandpit audit verify'", text)
	}
	return cli.AuditEntry{Seq: seq, Hash: strings.ToLower(hash)}, nil
}

func (a *tree) auditGrep() *cobra.Command {
	var asJSON, denied bool
	since, until := parsed[time.Time]{parse: parseSince, shown: "TIME"}, parsed[time.Time]{parse: parseSince, shown: "TIME"}
	where := map[string]*parsed[string]{}
	cmd := a.serverCommand(&cobra.Command{
		Use:     "grep [flags]",
		Short:   "search the audit log",
		Example: "  sandpit audit grep --sandbox work --since 1h\n  sandpit audit grep --denied --json",
		Args:    noArguments,
	}, func(ctx context.Context, s *session, _ []string) error {
		query := url.Values{}
		about := map[string]bool{}
		if name := where["sandbox"].is; name != "" {
			// It stands in the audit as it was asked for: by name or by id.
			about[name] = true
			if sb, err := s.Get(ctx, name); err == nil {
				about[sb.Name()], about[sb.ID()] = true, true
			}
		}
		for name, value := range where {
			if value.set && name != "sandbox" {
				query.Set(name, value.is)
			}
		}
		if since.set {
			query.Set("since", since.is.UTC().Format(time.RFC3339Nano))
		}
		if until.set {
			query.Set("until", until.is.UTC().Format(time.RFC3339Nano))
		}
		if denied {
			query.Set("denied", "true")
		}
		return pages(ctx, s, "/v1/audit", query, func(page v1.AuditList) (string, error) {
			for _, e := range page.Entries {
				if len(about) > 0 && !about[e.Sandbox] {
					continue
				}
				if err := a.printAudit(e, asJSON); err != nil {
					return "", err
				}
			}
			return page.Next, nil
		})
	})
	for _, f := range [...][4]string{
		{"sandbox", "sandbox", "SANDBOX", "only entries about this sandbox"},
		{"namespace", "namespace", "NAMESPACE", "only entries of this namespace"},
		{"caller", "caller", "CALLER", "only entries of this caller"},
		{"action", "action", "OPERATION", "only entries of this operation"},
		{"request", "request_id", "REQUEST", "only entries of this request"},
	} {
		value := textFlag(f[2])
		where[f[1]] = &value
		cmd.Flags().Var(&value, f[0], f[3])
	}
	cmd.Flags().Var(&since, "since", "only entries since this time or this long ago: 2026-01-02, 10m")
	cmd.Flags().Var(&until, "until", "only entries before this time or this long ago")
	cmd.Flags().BoolVar(&denied, "denied", false, "only denied requests")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON object per line")
	return cmd
}

func (a *tree) printAudit(e v1.Audit, asJSON bool) error {
	if asJSON {
		return a.PrintLine(e)
	}
	parts := []string{strconv.FormatUint(e.Seq, 10), e.Time.Local().Format("2006-01-02 15:04:05.000"), e.Phase, e.Namespace + "/" + e.Caller, e.Action}
	if e.Sandbox != "" {
		parts = append(parts, e.Sandbox)
	}
	if e.Detail != "" {
		parts = append(parts, e.Detail)
	}
	if !e.Allowed {
		parts = append(parts, "denied by "+e.Rule)
	}
	if e.Status != 0 {
		parts = append(parts, strconv.Itoa(e.Status))
	}
	_, err := fmt.Fprintln(a.Stdout, cli.Harmless(strings.Join(parts, "  ")))
	return err
}
