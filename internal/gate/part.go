package gate

import (
	"context"
	"time"
)

// Part begins an operation that a client asks for on the stream of c, which carries many. id is that of a route
// without a path. The operation is limited, recorded, counted and traced as a request of its own, with
// the caller and target of c and a Writer of which only Sent counts. It ends with c at the latest. Call
// End once, also before c ends. After an error nothing has begun.
func (c *Call) Part(id, detail string) (*Call, error) {
	route := c.service.picked[id]
	p := &Call{gate: c.gate, service: c.service, route: route, control: c.control, R: c.R, ID: NewRequestID(), began: time.Now(), Caller: c.Caller, known: true, Target: c.Target, Detail: detail, Vital: route.Vital}
	p.W = &Writer{call: p}
	p.W.Taken()
	p.Ctx, p.Cancel = context.WithCancelCause(c.Ctx)
	p.traced()
	err := p.gate.limiter.request(p)
	if err == nil {
		err = p.Intend(detail)
	}
	if err != nil {
		p.End(p.Untouched(err))
		return nil, err
	}
	return p, nil
}

// Count counts an operation on the stream of c against the rate of its caller, or refuses it. It is for operations that
// the audit has as a whole, under what has opened what they are about.
func (c *Call) Count() error {
	if !c.Caller.limited() {
		return nil
	}
	l := &c.gate.limiter
	l.mu.Lock()
	buckets := l.of(c.Caller).allBuckets(c.service)
	l.mu.Unlock()
	if wait := take(buckets); wait > 0 {
		return tooOften(wait)
	}
	return nil
}

// End ends an operation that Part has begun, with its error or nil, and returns what the client may read of the error.
func (c *Call) End(err error) (f Failure) {
	if err != nil {
		f = c.Describe(err)
		c.NoteOutcome(f.Status, f.Code, err)
	}
	c.finish()
	c.Cancel(nil)
	return f
}
