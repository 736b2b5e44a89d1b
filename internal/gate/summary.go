package gate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"golang.org/x/time/rate"

	"github.com/sandpit-dev/sandpit/internal/audit"
	"github.com/sandpit-dev/sandpit/internal/errcode"
)

// The audit is bounded: new entries push out old ones. So each key has a share of it.
// A key that has used up its share is refused until it may enter more, except for
// vital requests.
//
// The first vital request about each thing is entered at once all the same, up to as
// much as the share again: whatever it ends was made by a request with an entry. Other
// entries of vital requests, and those that the disk did not take, wait in memory and
// are written with their own times when there is room. There, requests that touched
// nothing make room for others, and so do repeats. So a caller can hide what it ends
// only among as many other things that it ends.
//
// Other requests without an entry are counted, and each minute one entry of each
// caller says how many there were.

const (
	actionSummary = "audit.summary"
	summaryEvery  = time.Minute

	// Bounds of the entries that wait until they can be written.
	maxPending      = 1000
	maxPendingOfOne = 250 // caller

	// maxActs is how many different acts of a key are remembered while its share is
	// used up.
	maxActs = 1000

	// How many refusals of a key that asks too often have entries of their own.
	refusedRate  = 1 // a second
	refusedBurst = 100
)

// Why a request has no entry of its own, beside the codes of refusals.
const (
	reasonStrangers  = "strangers"
	reasonUnrecorded = "unrecorded" // it was carried out, and could not be written
)

// pendingEntry is an entry of a vital request that could not be written.
type pendingEntry struct {
	caller  Caller
	entry   audit.Record
	changed bool // the request has changed something, or may have
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

// mayEnter refuses a request of a key that has used up its share of the audit.
func (l *limiter) mayEnter(u *use, c *Call) error {
	left := u.audit.Tokens()
	if left > 0 {
		return nil
	}
	wait := time.Second
	if r := l.limits.Audit.Rate; r > 0 {
		wait += time.Duration(min(-left/r, 3600) * float64(time.Second))
	}
	c.overShare = &Refusal{Status: http.StatusTooManyRequests, Code: errcode.AuditRate, Message: "this key has used up its share of the audit log", Hint: "send requests less often; the operator can enlarge the audit log (audit-size in server.yaml)", After: wait}
	if c.Vital {
		return nil
	}
	return c.overShare
}

// charge takes the bytes of an entry from the share of the caller.
func (l *limiter) charge(c *Call, size int) {
	switch {
	case !c.known:
		l.strangers.ReserveN(time.Now(), size)
	case c.Caller.Key != "":
		l.mu.Lock()
		u := l.of(c.Caller)
		l.mu.Unlock()
		u.audit.ReserveN(time.Now(), size)
	}
}

// summarised returns why a call gets no entry at its end, or "".
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
		if u.audit.Tokens() <= 0 || !u.refused.Allow() {
			return c.code
		}
	}
	return ""
}

// summarise counts a call that gets no entry.
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

// count counts a request of a caller, or of a stranger, that gets no entry.
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
// the bounds are counted: those of calls that touched nothing first, then those that
// repeat an act.
func (g *Gate) enterLater(p pendingEntry) {
	p.entry.Vital = false // the room that is kept on a full disk is for entries that are written at once
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
	least := -1 // the one that makes room
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

// changed reports whether a vital call has changed something, or may have: whatever
// its status, unless its handler has proved that it has not.
func (c *Call) changed() bool { return c.Vital && !c.vain }

// enterNow reports whether a vital call beyond its key's share is entered at once: it
// may have changed something that no earlier one did, and there is room.
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

// late reports whether an entry may still be written, because the disk hangs that its
// error is about. Then it calls f should it not be.
func late(err error, f func()) bool {
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

// entry is what the audit gets.
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

// writePending writes the entries that wait for room on the disk and in the share of
// their caller, or all of them whatever the shares are. Those that can't be written
// go on waiting.
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
			if late(err, func() { g.enterLater(p) }) {
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

// hasShare reports whether a caller may enter more into the audit. changed says that
// the entry is of a vital call that changed something.
func (l *limiter) hasShare(c Caller, changed bool) bool {
	if c.Key == "" {
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

// Summarise writes the entries of vital requests that could not be written before, and
// once a minute, or at once with all, the counts of requests without an entry. It is
// to be called every few seconds. What can't be written is kept for the next call.
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
		if !late(err, again) {
			again()
		}
	}
	return errors.Join(errs...)
}
