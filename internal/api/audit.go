package api

import (
	"context"
	"net/http"
	"strconv"
	"time"

	v1 "github.com/sandpit-dev/sandpit/internal/api/v1"
)

func auditRoutes() []Route {
	const tag = "Server"
	return []Route{
		{
			Method: http.MethodGet, Path: "/v1/audit", ID: "searchAudit", Tag: tag, Summary: "Search the audit log, oldest first",
			Query: pageParams(timeParams(
				Param{Name: "sandbox", Type: "string"},
				Param{Name: "namespace", Type: "string"},
				Param{Name: "caller", Type: "string"},
				Param{Name: "action", Type: "string"},
				Param{Name: "request_id", Type: "string"},
				flag("denied", "Only denied requests"))...),
			Status: http.StatusOK, Out: v1.AuditList{}, Admin: true, handle: asJSON(searchAudit),
		},
	}
}

// AuditReader reads the audit.
type AuditReader interface {
	// Search returns the entries that match, oldest first, at most q.Limit.
	Search(ctx context.Context, q AuditQuery) ([]v1.Audit, error)
}

// AuditQuery picks entries of the audit. Empty fields match everything.
type AuditQuery struct {
	Sandbox, Namespace, Caller, Action, RequestID string

	Since, Until time.Time
	After        uint64 // entries with a greater Seq
	Denied       bool   // only refused requests
	Limit        int    // at least 1
}

// searchAudit answers with a page of the audit.
func searchAudit(c *call) (v1.AuditList, error) {
	out := v1.AuditList{Entries: []v1.Audit{}}
	q := c.query()
	query := AuditQuery{
		Sandbox: q.text("sandbox"), Namespace: q.text("namespace"), Caller: q.text("caller"), Action: q.text("action"), RequestID: q.text("request_id"),
		Since: q.time("since"), Until: q.time("until"), After: q.number("after", maxSeq), Denied: q.flag("denied", false),
	}
	limit := q.page().limit
	if q.err != nil {
		return out, q.err
	}
	query.Limit = limit + 1
	found, err := c.api.opts.Audit.Search(c.Ctx, query)
	if err != nil {
		return out, err
	}
	if len(found) > limit {
		found = found[:limit]
		out.Next = strconv.FormatUint(found[limit-1].Seq, 10)
	}
	out.Entries = append(out.Entries, found...)
	return out, nil
}
