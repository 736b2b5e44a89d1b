package server

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/audit"
	"github.com/sandpit-dev/sandpit/internal/gate"
)

// Denials of egress enter the audit as counts, once a minute: a sandbox that tries a thousand names
// a second must not push out what others did.
const (
	maxDenied  = 256 // sandboxes with a destination that are counted, of each namespace
	maxEntered = 16  // that have an entry of their own, those with most denials
)

// actionDenied is the action of an entry that counts denials.
const actionDenied = "egress.denied"

// denials counts those that are not in the audit yet. It is safe for concurrent use.
type denials struct {
	mu sync.Mutex
	by map[string][]denied // by namespace, guarded by mu
}

// denied counts the denials of a destination for a sandbox, or with an empty sandbox all others.
type denied struct {
	sandbox string
	sandpit.EgressDenial
}

// add is engine.Options.Denied.
func (d *denials) add(namespace, sandbox string, all []sandpit.EgressDenial) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.by == nil {
		d.by = map[string][]denied{}
	}
	for _, n := range slices.SortedFunc(slices.Values(all), func(a, b sandpit.EgressDenial) int { return cmp.Compare(b.Count, a.Count) }) {
		d.by[namespace] = merge(d.by[namespace], denied{sandbox, n}, maxDenied)
	}
}

// merge counts n in a list of at most so many elements, and one more for all others.
func merge(list []denied, n denied, most int) []denied {
	at := func(n denied) int {
		return slices.IndexFunc(list, func(o denied) bool { return o.sandbox == n.sandbox && o.Destination == n.Destination })
	}
	i := at(n)
	if i < 0 && len(list) >= most {
		n = denied{"", sandpit.EgressDenial{Why: "other destinations", Count: n.Count}}
		i = at(n)
	}
	if i < 0 {
		return append(list, n)
	}
	n.Count += list[i].Count
	list[i] = n
	return list
}

// enterDenials writes what was counted to the audit.
func (s *server) enterDenials(ctx context.Context) {
	s.engine.TellDenials()
	s.denials.mu.Lock()
	due := s.denials.by
	s.denials.by = nil
	s.denials.mu.Unlock()
	for namespace, all := range due {
		slices.SortFunc(all, func(a, b denied) int { return cmp.Compare(b.Count, a.Count) })
		var list []denied
		for _, n := range all {
			list = merge(list, n, maxEntered)
		}
		for _, n := range list {
			_, err := s.journal.Append(ctx, audit.Record{
				Time: time.Now(), RequestID: gate.NewRequestID(), Phase: audit.PhaseEnd, Action: actionDenied,
				Namespace: namespace, Sandbox: n.sandbox, Rule: n.Rule,
				Detail: fmt.Sprintf("%s: denied %d times: %s", cmp.Or(n.Destination, "several"), n.Count, n.Why),
			})
			if err != nil {
				s.opt.Log.Warn("the audit log lacks denials of egress", "error", err)
				s.denials.add(namespace, n.sandbox, []sandpit.EgressDenial{n.EgressDenial})
			}
		}
	}
}
