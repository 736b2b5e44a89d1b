package gate

import (
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/sandpit-dev/sandpit/internal/audit"
	"github.com/sandpit-dev/sandpit/internal/errcode"
)

// Limits bound what callers may cost the server. A zero field has its default. "Key"
// means one key, or one peer of a unix socket, unless peers have no such limit.
type Limits struct {
	Rate         float64       // requests per second of a key; default 100. Peers have no such limit.
	Burst        int           // requests of a key at once; default 200
	Streams      int           // open streams of a key; default 1,000
	TotalStreams int           // open streams of all; default 10,000
	Stall        time.Duration // how long a client may make no progress in sending or receiving; default 30 s
	First        time.Duration // in which the first message of a WebSocket must come; default 10 s
	Tunnel       time.Duration // the same for each end of a tunnel, and for a process that does not read its input; default 10 min
	Calls        int           // calls of a key in progress; default 2,000
	Memory       int64         // bytes of memory that large requests and answers of a key take together; default 256 MiB
	TotalMemory  int64         // the same of all; default 1 GiB
	Spool        int64         // bytes of files in TMPDIR that requests of a key take, as zip archives do; default 1 GiB
	TotalSpool   int64         // the same of all; default 4 GiB
	Audit        AuditShare    // of a key; default that of an audit of 4 GiB in 7 days. Peers have no such limit.
	Strangers    AuditShare    // of all callers without a key together
}

// AuditShare bounds the bytes that are added to the audit.
type AuditShare struct {
	Rate  float64 // per second, in the long run
	Burst int     // at once
}

// DefaultAuditTime is the time in which no key may fill the audit.
const DefaultAuditTime = 7 * 24 * time.Hour

// AuditShares returns the shares of an audit of size bytes. With them, a key that has used
// nothing yet needs at least the given time to fill the audit, and strangers more
// than a year.
func AuditShares(size int64, within time.Duration) (key, strangers AuditShare) {
	const year = 365 * 24 * time.Hour
	// Requests in progress are still recorded when the share is used up.
	kept := max(audit.Kept(size)-2*maxCalls*audit.MaxEntry, size/2)
	key.Burst = int(kept / 8)
	key.Rate = float64(kept-kept/8) / within.Seconds()
	strangers.Burst = int(kept / 1024)
	strangers.Rate = float64(kept/2) / year.Seconds()
	return key, strangers
}

func (l Limits) withDefaults() Limits {
	if l.Rate == 0 {
		l.Rate = 100
	}
	if l.Burst == 0 {
		l.Burst = 200
	}
	if l.Streams == 0 {
		l.Streams = 1000
	}
	if l.TotalStreams == 0 {
		l.TotalStreams = 10_000
	}
	if l.Stall == 0 {
		l.Stall = stall
	}
	if l.First == 0 {
		l.First = HeaderTime
	}
	if l.Tunnel == 0 {
		l.Tunnel = tunnelStall
	}
	if l.Calls == 0 {
		l.Calls = maxCalls
	}
	if l.Memory == 0 {
		l.Memory = 256 << 20
	}
	if l.TotalMemory == 0 {
		l.TotalMemory = 1 << 30
	}
	if l.Spool == 0 {
		l.Spool = 1 << 30
	}
	if l.TotalSpool == 0 {
		l.TotalSpool = 4 << 30
	}
	key, strangers := AuditShares(audit.DefaultSize, DefaultAuditTime)
	if l.Audit == (AuditShare{}) {
		l.Audit = key
	}
	if l.Strangers == (AuditShare{}) {
		l.Strangers = strangers
	}
	return l
}

// tunnelStall is the default of Limits.Tunnel. It is longer than for other streams: the
// protocol inside a tunnel may have long pauses.
const tunnelStall = 10 * time.Minute

// maxCalls is the default of Limits.Calls.
const maxCalls = 2000

// limiter counts what callers use. Its methods are safe for concurrent use.
type limiter struct {
	limits    Limits
	strangers *rate.Limiter // bytes of the audit
	mu        sync.Mutex
	callers   map[string]*use             // by key, or namespace of a peer; guarded by mu
	streams   int                         // of all; guarded by mu
	held      [heldKinds]int64            // of all; guarded by mu
	spaces    map[string][heldKinds]int64 // the same by namespace, without those that hold nothing; guarded by mu
	swept     time.Time                   // guarded by mu

	summaries map[string]*summary // of requests without an entry in the audit; guarded by mu
	pending   []pendingEntry      // of vital requests, oldest first; guarded by mu
}

// half returns the bounds of requests with previews of a caller: its owner can always do something.
func (l Limits) half() Limits {
	l.Rate, l.Burst = l.Rate/2, max(l.Burst/2, 1)
	l.Streams, l.Calls = max(l.Streams/2, 1), max(l.Calls/2, 1)
	l.Memory, l.Spool = l.Memory/2, l.Spool/2
	l.Audit.Rate, l.Audit.Burst = l.Audit.Rate/2, l.Audit.Burst/2
	return l
}

// vitalPart is the part of the rate, burst and calls of a key that its vital requests have of their own.
const vitalPart = 10

// use is what one caller uses. The limiter's mu guards it, but for the rate limiters, which
// have locks of their own.
type use struct {
	limits   Limits
	previews *use // of requests with previews of the caller; nil before the first
	within   *use // that of the caller, if this is of its previews, which count there, too; or nil

	bucket  *rate.Limiter
	buckets map[*service]*rate.Limiter // of dialects with rates of their own; nil before the first
	vital   *rate.Limiter              // of vital requests that find the bucket empty
	audit   *rate.Limiter              // bytes that the caller may add; negative after it has added more
	refused *rate.Limiter              // refusals for too many requests that get an entry of their own
	acts    map[act]bool               // recorded since the share of the audit was used up
	streams int
	held    [heldKinds]int64
	seen    time.Time
	calls   map[*Call]*time.Timer // in progress with a key; the timers are for its expiry
	revoked bool                  // the key
}

// forget is the time after which an idle caller is forgotten, if it has its full share of
// the audit. By then its bucket is full again.
const forget = 10 * time.Minute

func (l *limiter) init(limits Limits) {
	l.limits = limits
	l.callers = map[string]*use{}
	l.spaces = map[string][heldKinds]int64{}
	l.summaries = map[string]*summary{}
	l.strangers = limits.Strangers.limiter()
	l.swept = time.Now()
}

func callerID(c Caller) string {
	switch {
	case c.Preview != "":
		return "previews of " + callerID(c.owner())
	case c.Key != "":
		return "key " + c.Key
	}
	return "peer " + c.Name
}

// of returns the usage of a caller. What a caller uses counts there and in all that it is within.
// Precondition: l.mu is held.
func (l *limiter) of(c Caller) *use {
	now := time.Now()
	if now.Sub(l.swept) > forget {
		for id, u := range l.callers {
			if u.streams == 0 && len(u.calls) == 0 && u.held == [heldKinds]int64{} && now.Sub(u.seen) > forget && u.hasAllAudit() && u.previews.hasAllAudit() {
				delete(l.callers, id)
			}
		}
		l.swept = now
	}
	id := callerID(c.owner())
	u := l.callers[id]
	if u == nil {
		u = l.limits.use(nil)
		l.callers[id] = u
	}
	if u.acts != nil && u.audit.Tokens() > 0 {
		u.acts = nil
	}
	u.seen = now
	if c.Preview == "" {
		return u
	}
	if u.previews == nil {
		u.previews = l.limits.half().use(u)
	}
	return u.previews
}

// use returns a new use with these limits.
func (l Limits) use(within *use) *use {
	return &use{
		limits: l, within: within,
		bucket: rate.NewLimiter(rate.Limit(l.Rate), l.Burst),
		vital:  rate.NewLimiter(rate.Limit(l.Rate/vitalPart), max(l.Burst/vitalPart, 1)),
		audit:  l.Audit.limiter(), refused: rate.NewLimiter(refusedRate, refusedBurst),
	}
}

func (u *use) hasAllAudit() bool { return u == nil || u.audit.Tokens() >= float64(u.audit.Burst()) }

// request counts a request, or refuses it because its key has sent too many.
func (l *limiter) request(c *Call) error {
	if !c.Caller.limited() {
		return nil
	}
	l.mu.Lock()
	u := l.of(c.Caller)
	l.hold(u, c)
	var revoked, many, tooMany bool
	buckets := u.allBuckets(c.service)
	for in := u; in != nil; in = in.within {
		revoked = revoked || in.revoked
		most := in.limits.Calls
		many = many || len(in.calls) > most
		tooMany = tooMany || len(in.calls) > most+max(most/vitalPart, 1)
	}
	l.mu.Unlock()
	if revoked { // since it was verified
		return c.whyEnded()
	}
	if tooMany || many && !c.isVital() {
		return &Refusal{Code: errcode.RateLimited, Message: "too many requests with this key are in progress", Hint: "wait until some of them have finished", After: time.Second}
	}
	if wait := take(buckets); wait > 0 && !(c.isVital() && u.vital.Allow()) {
		return tooOften(wait)
	}
	return l.mayEnter(u, c)
}

// isVital reports whether the call is vital, as its route or its body says.
func (c *Call) isVital() bool {
	if !c.Vital && c.route.VitalIf != nil {
		c.Vital = c.route.VitalIf(c)
	}
	return c.Vital
}

// tooOften returns the refusal of a request beyond the rate of its caller.
func tooOften(wait time.Duration) error {
	return &Refusal{Code: errcode.RateLimited, Message: "too many requests with this key", Hint: "send requests less often", After: wait}
}

// allBuckets returns the buckets that a request in a dialect is taken from. Precondition: limiter.mu is held.
func (u *use) allBuckets(s *service) (all []*rate.Limiter) {
	for ; u != nil; u = u.within {
		all = append(all, u.bucketOf(s))
	}
	return all
}

// bucketOf returns the bucket of requests in a dialect. Precondition: limiter.mu is held.
func (u *use) bucketOf(s *service) *rate.Limiter {
	d := s.dialect
	if d.Rate == 0 {
		return u.bucket
	}
	b := u.buckets[s]
	if b == nil {
		if u.buckets == nil {
			u.buckets = map[*service]*rate.Limiter{}
		}
		own := Limits{Rate: d.Rate, Burst: d.Burst}
		if u.within != nil {
			own = own.half()
		}
		b = rate.NewLimiter(rate.Limit(own.Rate), own.Burst)
		u.buckets[s] = b
	}
	return b
}

// take takes a request from all buckets, or returns for how long there is none.
func take(buckets []*rate.Limiter) (wait time.Duration) {
	if len(buckets) == 0 {
		return 0
	}
	r := buckets[0].Reserve()
	if wait = r.Delay(); wait == 0 {
		wait = take(buckets[1:])
	}
	if wait > 0 {
		r.Cancel()
	}
	return wait
}

// OpenStream counts the call as a stream until it ends, or refuses it. Handlers whose answers
// take long call it once.
func (c *Call) OpenStream() error {
	l := &c.gate.limiter
	l.mu.Lock()
	defer l.mu.Unlock()
	u := l.of(c.Caller)
	for in := u; in != nil; in = in.within {
		if in.streams >= in.limits.Streams {
			return &Refusal{Code: errcode.TooManyStreams, Message: "too many streams of this caller are open", Hint: "close some", After: time.Second}
		}
	}
	if l.streams >= l.limits.TotalStreams {
		return &Refusal{Code: errcode.Overloaded, Message: "too many streams are open", Hint: "try again in a moment", After: time.Second}
	}
	for in := u; in != nil; in = in.within {
		in.streams++
	}
	l.streams++
	c.streams++
	return nil
}

// release releases what a call holds.
func (l *limiter) release(c *Call) {
	l.mu.Lock()
	defer l.mu.Unlock()
	c.released = true
	if c.streams == 0 && c.held == [heldKinds]int64{} && !c.Caller.limited() {
		return
	}
	for u := l.of(c.Caller); u != nil; u = u.within {
		if timer := u.calls[c]; timer != nil {
			timer.Stop()
		}
		delete(u.calls, c)
		u.streams -= c.streams
		for kind, n := range c.held {
			u.held[kind] -= n
		}
	}
	l.streams -= c.streams
	for kind, n := range c.held {
		l.addHeld(c.Caller.Namespace, kind, -n)
	}
	c.streams, c.held = 0, [heldKinds]int64{}
}
