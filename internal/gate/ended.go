package gate

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/sandpit-dev/sandpit/internal/errcode"
)

// ErrDraining, ErrKeyEnded and ErrPreviewEnded are the reasons why the gate breaks off calls in progress.
var (
	ErrDraining error = &Refusal{Code: errcode.Unavailable, Message: "the server is shutting down", Hint: "connect again in a moment: processes keep running and can be attached to", After: time.Second}
	ErrKeyEnded error = &Refusal{Code: errcode.Unauthenticated, Message: "the key is no longer valid", Hint: "ask the operator for a new one: this key has expired or was revoked"}

	// ErrPreviewEnded is also the answer to every other preview that can't be used: a stranger
	// must not find out which exist.
	ErrPreviewEnded error = &Refusal{Code: errcode.PreviewInvalid, Message: "the preview has ended, or its URL is not valid for this address", Hint: "ask for a new preview"}
)

// whyEnded is the error of a call whose key or preview has ended.
func (c *Call) whyEnded() error {
	if c.Caller.Preview != "" {
		return ErrPreviewEnded
	}
	return ErrKeyEnded
}

// LastWords is the time that calls that are broken off have to tell their clients why. The
// gate waits for their end twice as long.
const LastWords = time.Second

// breakOff ends a call in progress. Reads from its client fail at once, and writes fail if
// the client does not take them within LastWords. A connection that the handler has taken
// over is closed after that time.
func (c *Call) breakOff(why error) {
	c.deadlines.Lock()
	defer c.deadlines.Unlock()
	if c.over {
		return // the connection may belong to another call by now
	}
	c.Cancel(why)
	if c.W == nil {
		return // it is work that has outlived its call
	}
	if c.W.hijacked.Load() {
		c.W.CloseIn(LastWords)
		return
	}
	_ = c.control.SetReadDeadline(time.Unix(1, 0))
	_ = c.control.SetWriteDeadline(time.Now().Add(LastWords))
}

// OutliveClient lets the call go on when its client leaves, also if it has left. The call still ends with
// its key and the server. Its handler calls it before it starts goroutines that use the call.
func (c *Call) OutliveClient() {
	c.deadlines.Lock()
	defer c.deadlines.Unlock()
	why := c.BrokenOff()
	c.Ctx, c.Cancel = context.WithCancelCause(context.WithoutCancel(c.Ctx))
	if why != nil {
		c.Cancel(why)
	}
}

// Outlive returns a context for work that may go on after its call has ended. The work counts as a call in progress of the caller's
// key. The context ends with the key and with the server. Call end once the work has ended.
func (g *Gate) Outlive(ctx context.Context, who Caller) (work context.Context, end func()) {
	c := &Call{gate: g, Caller: who}
	c.Ctx, c.Cancel = context.WithCancelCause(context.WithoutCancel(ctx))
	stop := context.AfterFunc(g.live, func() { c.Cancel(ErrDraining) })
	l := &g.limiter
	if who.limited() {
		l.mu.Lock()
		u := l.of(who)
		l.hold(u, c)
		revoked := u.revoked // since it was verified
		for in := u.within; in != nil; in = in.within {
			revoked = revoked || in.revoked
		}
		l.mu.Unlock()
		if revoked {
			c.Cancel(c.whyEnded())
		}
	}
	return c.Ctx, func() {
		stop()
		l.release(c)
		c.Cancel(nil)
	}
}

// A deadline of HTTP/1 matters to a read or write in progress, and to the next one. One of HTTP/2
// breaks the stream off when it is reached, although the handler may neither read nor write then.
// Therefore the deadlines of an HTTP/2 stream are removed after each read and write.

// readUntil sets the deadline for reads from the client.
func (c *Call) readUntil(t time.Time) {
	c.deadlines.Lock()
	defer c.deadlines.Unlock()
	if !c.over && !c.unread && c.BrokenOff() == nil {
		_ = c.control.SetReadDeadline(t)
	}
}

// hasRead notes that a read has returned.
func (c *Call) hasRead() {
	if c.R.ProtoMajor > 1 {
		c.readUntil(time.Time{})
	}
}

// writeFor sets how long the client may make no progress in reading the answer.
func (c *Call) writeFor(d time.Duration) {
	c.deadlines.Lock()
	defer c.deadlines.Unlock()
	if c.BrokenOff() != nil {
		d = min(d, LastWords)
	}
	_ = c.control.SetWriteDeadline(time.Now().Add(d))
}

// hasWritten notes that a write has returned.
func (c *Call) hasWritten() {
	c.deadlines.Lock()
	defer c.deadlines.Unlock()
	if c.R.ProtoMajor > 1 && c.BrokenOff() == nil {
		_ = c.control.SetWriteDeadline(time.Time{})
	}
}

// BrokenOff returns why the call was broken off, or nil.
func (c *Call) BrokenOff() error {
	if cause := context.Cause(c.Ctx); errors.Is(cause, ErrKeyEnded) || errors.Is(cause, ErrDraining) || errors.Is(cause, ErrPreviewEnded) {
		return cause
	}
	return nil
}

// clockStep is the longest time for which a timer is trusted: the clock may be set, and the
// machine may sleep.
const clockStep = time.Minute

// hold notes that a call of a key or preview is in progress, and ends it when that expires.
// Precondition: l.mu is held.
func (l *limiter) hold(u *use, c *Call) {
	for in := u; in != nil; in = in.within {
		if in.calls == nil {
			in.calls = map[*Call]*time.Timer{}
		}
		in.calls[c] = nil
	}
	if until := c.Caller.Expires; !until.IsZero() {
		u.calls[c] = time.AfterFunc(min(time.Until(until), clockStep), func() { l.expired(u, c) })
	}
}

// expired ends a call whose key has expired.
func (l *limiter) expired(u *use, c *Call) {
	l.mu.Lock()
	timer := u.calls[c]
	left := time.Until(c.Caller.Expires)
	if timer != nil && left > 0 {
		timer.Reset(min(left, clockStep))
	}
	l.mu.Unlock()
	if timer != nil && left <= 0 {
		c.breakOff(c.whyEnded())
	}
}

// Revoke ends all calls of a key, also those that have just been let in. It spares by, the
// call that revokes the key.
func (g *Gate) Revoke(key string, by *Call) {
	g.tickets.revoke(key)
	l := &g.limiter
	l.mu.Lock()
	u := l.of(Caller{Key: key})
	u.revoked = true
	var all []*Call
	for c := range u.calls {
		if c != by {
			all = append(all, c)
		}
	}
	l.mu.Unlock()
	for _, c := range all {
		c.breakOff(c.whyEnded())
	}
}

// EndPreview ends all calls in progress that were made with a preview. The caller is as
// Route.Proof returned it. Calls that were proven but not yet admitted are not among them: their
// handlers must ask again whether the preview exists.
func (g *Gate) EndPreview(who Caller) {
	id := callerID(who.owner())
	g.EndPreviews(func(c Caller) bool { return c.Preview == who.Preview && callerID(c.owner()) == id })
}

// EndPreviews is EndPreview for all callers that which reports.
func (g *Gate) EndPreviews(which func(Caller) bool) {
	l := &g.limiter
	l.mu.Lock()
	var all []*Call
	for _, u := range l.callers {
		if u.previews == nil {
			continue
		}
		for c := range u.previews.calls {
			all = append(all, c)
		}
	}
	l.mu.Unlock()
	all = slices.DeleteFunc(all, func(c *Call) bool { return !which(c.Caller) })
	for _, c := range all {
		c.breakOff(ErrPreviewEnded)
	}
}
