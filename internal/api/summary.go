package api

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

	v1 "github.com/sandpit-dev/sandpit/internal/api/v1"
)

// The audit is bounded, so that what enters it pushes out what is older. Each key
// has a share of it: a key that has used it up is refused until it may enter more,
// but for vital requests. Requests without an entry of their own are counted, and
// each minute one entry of each caller says how many they were. They are those of
// strangers and of keys that ask too often, and vital ones that could not be
// entered, because the disk was full or the share used up.

const (
	actionSummary = "audit.summary"
	summaryEvery  = time.Minute

	// maxKinds is how many different requests a summary tells apart.
	maxKinds = 16

	// Refusals of a key that asks too often which have an entry of their own.
	refusedRate  = 1 // a second
	refusedBurst = 100
)

// Why a request has no entry of its own, beside the codes of refusals.
const (
	reasonStrangers  = "strangers"
	reasonUnrecorded = "unrecorded" // it was carried out
)

// summary counts requests of one caller.
type summary struct {
	caller Caller
	reason string
	since  time.Time
	count  int
	kinds  map[string]int
}

func (s AuditShare) limiter() *rate.Limiter {
	return rate.NewLimiter(rate.Limit(s.Rate), max(s.Burst, 2*MaxAuditEntry))
}

// mayEnter refuses a request of a key that has used up its share of the audit.
func (l *limiter) mayEnter(u *use, c *call) error {
	left := u.audit.Tokens()
	if left > 0 {
		return nil
	}
	if c.route.Vital {
		c.unrecorded = true
		return nil
	}
	wait := time.Second
	if r := l.limits.Audit.Rate; r > 0 {
		wait += time.Duration(min(-left/r, 3600) * float64(time.Second))
	}
	return &refusal{status: http.StatusTooManyRequests, code: v1.CodeAuditRate, message: "this key has used up its share of the audit", hint: "ask less often; the operator can enlarge the audit (audit-size in server.yaml)", after: wait}
}

// charge takes the bytes of an entry from the share of the caller.
func (l *limiter) charge(c *call, size int) {
	switch {
	case !c.known:
		l.strangers.ReserveN(time.Now(), size)
	case c.caller.Key != "":
		l.mu.Lock()
		u := l.of(c.caller)
		l.mu.Unlock()
		u.audit.ReserveN(time.Now(), size)
	}
}

// summarised returns why a call gets no entry at its end, or "".
func (l *limiter) summarised(c *call) string {
	switch {
	case c.unrecorded:
		return reasonUnrecorded
	case c.intended:
		return ""
	case !c.known:
		if l.strangers.Tokens() <= 0 {
			return reasonStrangers
		}
	case c.code == v1.CodeRateLimited, c.code == v1.CodeAuditRate, c.code == v1.CodeTooManyStreams:
		l.mu.Lock()
		u := l.of(c.caller)
		l.mu.Unlock()
		if u.audit.Tokens() <= 0 || !u.refused.Allow() {
			return c.code
		}
	}
	return ""
}

// summarise counts a call that gets no entry.
func (a *API) summarise(c *call, reason string) {
	a.metrics.auditSkipped.Add(1)
	id, caller, kind := reason, Caller{}, c.operation()
	if c.known {
		id, caller = reason+" "+callerID(c.caller), c.caller
	}
	if reason == reasonUnrecorded {
		kind = strings.Join(strings.Fields(kind+" "+c.target+" "+c.detail), " ")
	}
	l := &a.limiter
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.summaries[id]
	if s == nil {
		s = &summary{caller: caller, reason: reason, since: time.Now(), kinds: map[string]int{}}
		l.summaries[id] = s
	}
	s.add(kind, 1)
}

func (s *summary) add(kind string, n int) {
	kind = kind[:min(len(kind), 64)]
	if s.kinds[kind] == 0 && len(s.kinds) >= maxKinds {
		kind = "others"
	}
	s.kinds[kind] += n
	s.count += n
}

// entry is what the audit gets.
func (s *summary) entry() v1.Audit {
	kinds := slices.SortedFunc(maps.Keys(s.kinds), func(a, b string) int {
		return cmp.Or(cmp.Compare(s.kinds[b], s.kinds[a]), cmp.Compare(a, b))
	})
	for i, kind := range kinds {
		kinds[i] = fmt.Sprintf("%s (%d)", kind, s.kinds[kind])
	}
	e := v1.Audit{
		Time: time.Now(), RequestID: newRequestID(), Phase: phaseEnd, Action: actionSummary,
		Caller: s.caller.Name, Key: s.caller.Key, Namespace: s.caller.Namespace,
		Detail:  clip(fmt.Sprintf("%d requests since %s: %s", s.count, s.since.UTC().Format(time.RFC3339), strings.Join(kinds, ", "))),
		Allowed: s.reason == reasonUnrecorded, Rule: s.reason,
	}
	return e
}

// Summarise enters what was counted and has no entry: what a full disk kept out as
// soon as there is room, the rest once a minute, or all of it now. To be called
// every few seconds. What can't be entered is kept for the next time.
func (a *API) Summarise(ctx context.Context, all bool) error {
	l := &a.limiter
	now := time.Now()
	l.mu.Lock()
	due := map[string]*summary{}
	for id, s := range l.summaries {
		if all || s.reason == reasonUnrecorded || now.Sub(s.since) >= summaryEvery {
			due[id] = s
			delete(l.summaries, id)
		}
	}
	l.mu.Unlock()
	var errs []error
	for id, s := range due {
		size, err := a.opts.Audit.Append(ctx, s.entry(), false)
		if err == nil {
			l.charge(&call{caller: s.caller, known: s.caller != Caller{}}, size)
			continue
		}
		errs = append(errs, err)
		l.mu.Lock()
		if later := l.summaries[id]; later != nil {
			for kind, n := range later.kinds {
				s.add(kind, n)
			}
		}
		l.summaries[id] = s
		l.mu.Unlock()
	}
	return errors.Join(errs...)
}
