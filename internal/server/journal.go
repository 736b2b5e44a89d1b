package server

import (
	"context"

	"github.com/sandpit-dev/sandpit/internal/api"
	v1 "github.com/sandpit-dev/sandpit/internal/api/v1"
	"github.com/sandpit-dev/sandpit/internal/audit"
	"github.com/sandpit-dev/sandpit/internal/engine"
)

// journal is the audit as the API reads it.
type journal struct {
	dir    string
	engine *engine.Engine // whose tasks searches are
}

// Search searches in a task: a disk that hangs holds up neither the request nor more than
// a few threads.
func (j journal) Search(ctx context.Context, q api.AuditQuery) ([]v1.Audit, error) {
	var found []v1.Audit // not looked at until the task has ended
	err := j.engine.Read(ctx, "searching the audit", func(ctx context.Context, progress func(string)) error {
		for r, err := range audit.Search(ctx, j.dir, audit.Query{
			Sandbox: q.Sandbox, Namespace: q.Namespace, Caller: q.Caller, Action: q.Action, RequestID: q.RequestID,
			Since: q.Since, Until: q.Until, After: q.After, Denied: q.Denied, Progress: progress,
		}) {
			if err != nil {
				return err
			}
			found = append(found, v1.Audit{
				Seq: r.Seq, Time: r.Time, RequestID: r.RequestID, Phase: r.Phase, Caller: r.Caller, Key: r.Key, Namespace: r.Namespace, Remote: r.Remote,
				Action: r.Action, Sandbox: r.Sandbox, Detail: r.Detail, Allowed: r.Allowed, Rule: r.Rule,
				Status: r.Status, Code: r.Code, Took: r.Took, Bytes: r.Bytes,
			})
			if len(found) == q.Limit {
				break
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return found, nil
}
