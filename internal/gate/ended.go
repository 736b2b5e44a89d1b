package gate

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/sandpit-dev/sandpit/internal/errcode"
)

// Why calls are broken off that a client would have gone on with.
var (
	ErrDraining error = &Refusal{Status: http.StatusServiceUnavailable, Code: "unavailable", Message: "the server is shutting down", Hint: "connect again in a moment: processes keep running and can be attached to", After: time.Second}
	ErrKeyEnded error = &Refusal{Status: http.StatusUnauthorized, Code: errcode.Unauthenticated, Message: "the key is no longer valid", Hint: "ask the operator for a new one: this key has expired or was revoked"}
)

// LastWords is how long calls that are broken off have to say so.
const LastWords = 2 * time.Second

// breakOff ends a call under way. What it reads of its client fails at once, and
// what it writes when the client does not take it soon.
func (c *Call) breakOff(why error) {
	c.deadlines.Lock()
	defer c.deadlines.Unlock()
	if c.over {
		return // the connection is another call's
	}
	c.Cancel(why)
	if c.W.hijacked.Load() {
		return // who has taken the connection over ends it with the context
	}
	control := http.NewResponseController(c.W.ResponseWriter)
	_ = control.SetReadDeadline(time.Unix(1, 0))
	_ = control.SetWriteDeadline(time.Now().Add(LastWords))
}

// readUntil says when what is read of the client must have come.
func (c *Call) readUntil(t time.Time) {
	c.deadlines.Lock()
	defer c.deadlines.Unlock()
	if !c.over && c.BrokenOff() == nil {
		_ = http.NewResponseController(c.W.ResponseWriter).SetReadDeadline(t)
	}
}

// writeFor says how long the client may take nothing of what is written to it.
func (c *Call) writeFor(d time.Duration) {
	c.deadlines.Lock()
	defer c.deadlines.Unlock()
	if c.BrokenOff() != nil {
		d = min(d, LastWords)
	}
	_ = http.NewResponseController(c.W.ResponseWriter).SetWriteDeadline(time.Now().Add(d))
}

// BrokenOff returns why the call was broken off, or nil.
func (c *Call) BrokenOff() error {
	if cause := context.Cause(c.Ctx); errors.Is(cause, ErrKeyEnded) || errors.Is(cause, ErrDraining) {
		return cause
	}
	return nil
}

// clockStep is after what time the clock is looked at again: it may have been
// set, or the machine have slept.
const clockStep = time.Minute

// hold notes that a call of a key is under way. It ends with its key.
// Precondition: l.mu is held.
func (l *limiter) hold(u *use, c *Call) {
	if u.calls == nil {
		u.calls = map[*Call]*time.Timer{}
	}
	u.calls[c] = nil
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
		c.breakOff(ErrKeyEnded)
	}
}

// Revoke ends all calls of a key but by, which has revoked it, and those that
// have just been let in.
func (g *Gate) Revoke(key string, by *Call) {
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
		c.breakOff(ErrKeyEnded)
	}
}
