package gate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"golang.org/x/time/rate"

	"github.com/sandpit-dev/sandpit/internal/audit"
	"github.com/sandpit-dev/sandpit/internal/errcode"
)

// The audit is bounded: new entries push out old ones. Therefore each key has a share of
// it. The gate refuses requests of a key that has used up its share, except vital ones.
//
// The first vital request about each object is recorded at once even then, up to as many bytes
// as the share again: the request that made the object has an entry. Entries of other
// vital requests, and entries that could not be written, wait in memory. They are written
// with their original times when there is room. If too many wait, entries of requests that
// touched nothing make room first, then repeated ones. So a caller can hide what it
// ends only by ending as many other things.
//
// Other requests without an entry are counted, and once a minute one entry per
// caller reports the counts.

const (
	actionSummary = "audit.summary"
	summaryEvery  = time.Minute

	// Bounds of the number of entries that wait.
	maxPending      = 1000
	maxPendingOfOne = 250 // caller

	// maxActs bounds the number of acts that are remembered of a key that has used up
	// its share.
	maxActs = 1000

	// How many refusals for too many requests get entries of their own.
	refusedRate  = 1 // per second
	refusedBurst = 100
)

// Reasons why a request has no entry of its own, besides the codes of refusals.
const (
	reasonStrangers  = "strangers"
	reasonUnrecorded = "unrecorded" // it was carried out, but its entry could not be written
)

// pendingEntry is an entry of a vital request that waits to be written.
type pendingEntry struct {
	caller  Caller
	entry   audit.Record
	changed bool // the request may have changed something
}

// act is what a vital request does, and to what.
type act struct {
	caller                  Caller
	action, sandbox, detail string
}

func (p *pendingEntry) act() act {
	return act{p.caller, p.entry.Action, p.entry.Sandbox, p.entry.Detail}
}

// summary counts requests of one caller.
type summary struct {
	caller Caller
	reason string
	since  time.Time
	count  int
	kinds  map[string]int
}

func (s AuditShare) limiter() *rate.Limiter {
	return rate.NewLimiter(rate.Limit(s.Rate), max(s.Burst, 2*audit.MaxEntry))
}

// mayEnter refuses a request if its key has used up its share of the audit.
func (l *limiter) mayEnter(u *use, c *Call) error {
	if u = u.outOfAudit(); u == nil {
		return nil
	}
	wait := time.Second
	if r := u.limits.Audit.Rate; r > 0 {
		wait += time.Duration(min(-min(u.audit.Tokens(), 0)/r, 3600) * float64(time.Second))
	}
	c.errAuditShare = &Refusal{Code: errcode.AuditRate, Message: "this key has used up its share of the audit log", Hint: "send requests less often; the operator can enlarge the audit log (audit-size in server.yaml)", After: wait}
	if c.isVital() {
		return nil
	}
	return c.errAuditShare
}

// outOfAudit returns u, or what it is within, if that has used up its share of the audit, or nil.
func (u *use) outOfAudit() *use {
	for u != nil && u.audit.Tokens() > 0 {
		u = u.within
	}
	return u
}

// charge subtracts the bytes of an entry from the share of the caller.
func (l *limiter) charge(c *Call, size int) {
	switch {
	case !c.known:
		l.strangers.ReserveN(time.Now(), size)
	case c.Caller.limited():
		l.mu.Lock()
		u := l.of(c.Caller)
		l.mu.Unlock()
		for ; u != nil; u = u.within {
			u.audit.ReserveN(time.Now(), size)
		}
	}
}

// summarised returns why the end of a call gets no entry, or "".
func (l *limiter) summarised(c *Call) string {
	switch {
	case c.intended:
		return ""
	case !c.known:
		if l.strangers.Tokens() <= 0 {
			return reasonStrangers
		}
	case c.code == errcode.RateLimited, c.code == errcode.AuditRate, c.code == errcode.TooManyStreams:
		l.mu.Lock()
		u := l.of(c.Caller)
		l.mu.Unlock()
		if u.outOfAudit() != nil || !u.refused.Allow() {
			return c.code
		}
	}
	return ""
}

// summarise counts a call without an entry.
func (g *Gate) summarise(c *Call, reason string) {
	l := &g.limiter
	l.mu.Lock()
	defer l.mu.Unlock()
	if c.known {
		g.count(c.Caller, reason, c.operation())
	} else {
		g.count(Caller{}, reason, c.operation())
	}
}

// count counts a request without an entry. The zero Caller stands for strangers.
// Precondition: the limiter's mu is held.
func (g *Gate) count(caller Caller, reason, kind string) {
	g.metrics.auditSkipped.Add(1)
	id := reason
	if caller != (Caller{}) {
		id += " " + callerID(caller)
	}
	s := g.limiter.summaries[id]
	if s == nil {
		s = &summary{caller: caller, reason: reason, since: time.Now(), kinds: map[string]int{}}
		g.limiter.summaries[id] = s
	}
	s.add(kind, 1)
}

// add counts n requests of an operation.
func (s *summary) add(kind string, n int) {
	s.kinds[kind] += n
	s.count += n
}

// enterLater keeps the entry of a vital call until it can be written. Entries beyond
// the bounds are only counted: first those of calls that touched nothing, then those that
// repeat an act.
func (g *Gate) enterLater(p pendingEntry) {
	p.entry.Vital = false // the room reserved on a full disk is only for entries that are written at once
	p.entry.Sandbox, p.entry.Detail = strings.Clone(Bounded(p.entry.Sandbox)), strings.Clone(Bounded(p.entry.Detail))
	l := &g.limiter
	l.mu.Lock()
	defer l.mu.Unlock()
	own := 0
	for _, other := range l.pending {
		if other.caller == p.caller {
			own++
		}
	}
	if own < maxPendingOfOne && len(l.pending) < maxPending {
		l.pending = append(l.pending, p)
		return
	}
	least := -1 // the entry that makes room
	acts := map[act]bool{}
	for i := range l.pending {
		other := &l.pending[i]
		if own >= maxPendingOfOne && other.caller != p.caller {
			continue
		}
		if !other.changed || acts[other.act()] && least < 0 {
			least = i
		}
		if !other.changed {
			break
		}
		acts[other.act()] = true
	}
	if least < 0 || !p.changed || acts[p.act()] && l.pending[least].changed {
		g.count(p.caller, reasonUnrecorded, p.entry.Action)
		return
	}
	g.count(l.pending[least].caller, reasonUnrecorded, l.pending[least].entry.Action)
	l.pending = append(slices.Delete(l.pending, least, least+1), p)
}

// changed reports whether a vital call may have changed something. Its status does not
// tell: only its handler can prove that it has not.
func (c *Call) changed() bool { return c.Vital && !c.unchanged }

// enterNow reports whether a vital call is recorded at once although its key has used up
// its share: there is room, and no earlier call did the same.
func (l *limiter) enterNow(p *pendingEntry) bool {
	if !p.changed || !l.hasShare(p.caller, true) {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	u := l.of(p.caller)
	if u.acts[p.act()] {
		return false
	}
	if u.acts == nil || len(u.acts) >= maxActs {
		u.acts = map[act]bool{}
	}
	u.acts[act{p.caller, p.entry.Action, strings.Clone(p.entry.Sandbox), strings.Clone(p.entry.Detail)}] = true
	return true
}

// mayStillBeWritten reports whether an entry may still be written after err, because the
// disk hangs. In that case it calls f later if the entry was not written.
func mayStillBeWritten(err error, f func()) bool {
	var l interface{ Wait() error }
	if !errors.As(err, &l) {
		return false
	}
	go func() {
		if l.Wait() != nil {
			f()
		}
	}()
	return true
}

// entry returns the entry for the audit.
func (s *summary) entry() audit.Record {
	kinds := slices.SortedFunc(maps.Keys(s.kinds), func(a, b string) int {
		return cmp.Or(cmp.Compare(s.kinds[b], s.kinds[a]), cmp.Compare(a, b))
	})
	for i, kind := range kinds {
		kinds[i] = fmt.Sprintf("%s (%d)", kind, s.kinds[kind])
	}
	e := audit.Record{
		Time: time.Now(), RequestID: NewRequestID(), Phase: audit.PhaseEnd, Action: actionSummary,
		Caller: s.caller.Name, Key: s.caller.Key, Namespace: s.caller.Namespace,
		Detail:  fmt.Sprintf("%d requests since %s: %s", s.count, s.since.UTC().Format(time.RFC3339), strings.Join(kinds, ", ")),
		Allowed: s.reason == reasonUnrecorded, Rule: s.reason,
	}
	return e
}

// writePending writes waiting entries of callers that have a share of the audit left, or
// with all those of every caller. Entries that can't be written keep waiting.
func (g *Gate) writePending(ctx context.Context, all bool) error {
	l := &g.limiter
	l.mu.Lock()
	due := l.pending
	l.pending = nil
	l.mu.Unlock()
	var wait []pendingEntry
	var err error
	for _, p := range due {
		if err == nil && (all || l.hasShare(p.caller, p.changed)) {
			var size int
			if size, err = g.opts.Audit.Append(ctx, p.entry); err == nil {
				l.charge(&Call{Caller: p.caller, known: true}, size)
				continue
			}
			if mayStillBeWritten(err, func() { g.enterLater(p) }) {
				continue
			}
		}
		wait = append(wait, p)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.pending = append(wait, l.pending...)
	return err
}

// hasShare reports whether a caller may add to the audit. changed says that the entry is
// of a vital call that changed something.
func (l *limiter) hasShare(c Caller, changed bool) bool {
	if !c.limited() {
		return true
	}
	l.mu.Lock()
	u := l.of(c)
	l.mu.Unlock()
	left := u.audit.Tokens()
	if changed {
		left += float64(u.audit.Burst())
	}
	return left > 0
}

// Summarise writes waiting entries of vital requests and, once a minute, the counts of
// requests without an entry. With all it writes everything at once. Call it every few
// seconds. Entries that can't be written are kept for the next call.
func (g *Gate) Summarise(ctx context.Context, all bool) error {
	if err := g.writePending(ctx, all); err != nil {
		return err
	}
	l := &g.limiter
	now := time.Now()
	l.mu.Lock()
	due := map[string]*summary{}
	for id, s := range l.summaries {
		if all || now.Sub(s.since) >= summaryEvery {
			due[id] = s
			delete(l.summaries, id)
		}
	}
	l.mu.Unlock()
	var errs []error
	for id, s := range due {
		size, err := g.opts.Audit.Append(ctx, s.entry())
		if err == nil {
			l.charge(&Call{Caller: s.caller, known: s.caller != Caller{}}, size)
			continue
		}
		errs = append(errs, err)
		again := func() {
			l.mu.Lock()
			defer l.mu.Unlock()
			if later := l.summaries[id]; later != nil {
				for kind, n := range later.kinds {
					s.add(kind, n)
				}
			}
			l.summaries[id] = s
		}
		if !mayStillBeWritten(err, again) {
			again()
		}
	}
	return errors.Join(errs...)
}
