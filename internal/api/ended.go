package api

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/sandpit-dev/sandpit/internal/errcode"
)

// Why calls are broken off that a client would have gone on with.
var (
	errDraining error = &refusal{status: http.StatusServiceUnavailable, code: "unavailable", message: "the server is about to end", hint: "connect again in a moment: processes go on, and can be attached to", after: time.Second}
	errKeyEnded error = &refusal{status: http.StatusUnauthorized, code: errcode.Unauthenticated, message: "the key is not valid any more", hint: "it has expired or was revoked: ask for a new one"}
)

// lastWords is how long calls that are broken off have to say so.
const lastWords = 2 * time.Second

// breakOff ends a call under way. What it reads of its client fails at once, and
// what it writes when the client does not take it soon.
func (c *call) breakOff(why error) {
	c.deadlines.Lock()
	defer c.deadlines.Unlock()
	if c.over {
		return // the connection is another call's
	}
	c.cancel(why)
	if c.w.hijacked.Load() {
		return // who has taken the connection over ends it with the context
	}
	control := http.NewResponseController(c.w.ResponseWriter)
	_ = control.SetReadDeadline(time.Unix(1, 0))
	_ = control.SetWriteDeadline(time.Now().Add(lastWords))
}

// readUntil says when what is read of the client must have come.
func (c *call) readUntil(t time.Time) {
	c.deadlines.Lock()
	defer c.deadlines.Unlock()
	if !c.over && c.brokenOff() == nil {
		_ = http.NewResponseController(c.w.ResponseWriter).SetReadDeadline(t)
	}
}

// writeFor says how long the client may take nothing of what is written to it.
func (c *call) writeFor(d time.Duration) {
	c.deadlines.Lock()
	defer c.deadlines.Unlock()
	if c.brokenOff() != nil {
		d = min(d, lastWords)
	}
	_ = http.NewResponseController(c.w.ResponseWriter).SetWriteDeadline(time.Now().Add(d))
}

// brokenOff returns why the call was broken off, or nil.
func (c *call) brokenOff() error {
	if cause := context.Cause(c.ctx); errors.Is(cause, errKeyEnded) || errors.Is(cause, errDraining) {
		return cause
	}
	return nil
}

// clockStep is after what time the clock is looked at again: it may have been
// set, or the machine have slept.
const clockStep = time.Minute

// hold notes that a call of a key is under way. It ends with its key.
// Precondition: l.mu is held.
func (l *limiter) hold(u *use, c *call) {
	if u.calls == nil {
		u.calls = map[*call]*time.Timer{}
	}
	u.calls[c] = nil
	if until := c.caller.Expires; !until.IsZero() {
		u.calls[c] = time.AfterFunc(min(time.Until(until), clockStep), func() { l.expired(u, c) })
	}
}

// expired ends a call whose key has expired.
func (l *limiter) expired(u *use, c *call) {
	l.mu.Lock()
	timer := u.calls[c]
	left := time.Until(c.caller.Expires)
	if timer != nil && left > 0 {
		timer.Reset(min(left, clockStep))
	}
	l.mu.Unlock()
	if timer != nil && left <= 0 {
		c.breakOff(errKeyEnded)
	}
}

// revoked ends all calls of a key but one, which has revoked it, and those that
// have just been let in.
func (l *limiter) revoked(key string, by *call) {
	l.mu.Lock()
	u := l.of(Caller{Key: key})
	u.revoked = true
	var all []*call
	for c := range u.calls {
		if c != by {
			all = append(all, c)
		}
	}
	l.mu.Unlock()
	for _, c := range all {
		c.breakOff(errKeyEnded)
	}
}
