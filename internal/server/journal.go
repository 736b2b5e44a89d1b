package server

import (
	"context"
	"iter"

	"github.com/sandpit-dev/sandpit/internal/api"
	v1 "github.com/sandpit-dev/sandpit/internal/api/v1"
	"github.com/sandpit-dev/sandpit/internal/audit"
)

// journal is the audit as the API uses it.
type journal struct {
	log *audit.Log
	dir string
}

func (j journal) Append(ctx context.Context, e v1.Audit, vital bool) (int, error) {
	return j.log.Append(ctx, audit.Record{
		Time:      e.Time,
		RequestID: e.RequestID, Phase: e.Phase, Caller: e.Caller, Key: e.Key, Namespace: e.Namespace, Remote: e.Remote,
		Action: e.Action, Sandbox: e.Sandbox, Detail: e.Detail, Allowed: e.Allowed, Rule: e.Rule,
		Status: e.Status, Code: e.Code, Took: e.Took, Bytes: e.Bytes, Vital: vital,
	})
}

func (j journal) Search(ctx context.Context, q api.AuditQuery) iter.Seq2[v1.Audit, error] {
	return func(yield func(v1.Audit, error) bool) {
		for r, err := range audit.Search(ctx, j.dir, audit.Query{
			Sandbox: q.Sandbox, Namespace: q.Namespace, Caller: q.Caller, Action: q.Action, RequestID: q.RequestID,
			Since: q.Since, Until: q.Until, After: q.After, Denied: q.Denied,
		}) {
			e := v1.Audit{
				Seq: r.Seq, Time: r.Time, RequestID: r.RequestID, Phase: r.Phase, Caller: r.Caller, Key: r.Key, Namespace: r.Namespace, Remote: r.Remote,
				Action: r.Action, Sandbox: r.Sandbox, Detail: r.Detail, Allowed: r.Allowed, Rule: r.Rule,
				Status: r.Status, Code: r.Code, Took: r.Took, Bytes: r.Bytes,
			}
			if !yield(e, err) {
				return
			}
		}
	}
}
