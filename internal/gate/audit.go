package gate

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/sandpit-dev/sandpit/internal/audit"
	"github.com/sandpit-dev/sandpit/internal/errcode"
	"github.com/sandpit-dev/sandpit/internal/policy"
)

// entry returns an entry about the call for the audit: who does what to which sandbox. It
// never has a secret or the content of a file.
func (c *Call) entry(phase string) audit.Record {
	e := audit.Record{
		Time: time.Now(), RequestID: c.ID, Phase: phase, Caller: c.Caller.Name, Key: c.Caller.Key, Namespace: c.Caller.Namespace,
		Remote: c.R.RemoteAddr, Action: c.operation(), Sandbox: c.Target, Detail: c.Detail, Allowed: true, Vital: c.Vital,
	}
	if c.Caller.Nested != "" {
		e.Namespace += "/" + c.Caller.Nested
	}
	if e.Remote == "@" { // as net names the nameless end of a unix socket
		e.Remote = ""
	}
	return e
}

// Intend records in the audit what the handler is about to do, and with detail what that is
// about. On an error the audit can't record it, and it must not be done. Intend is a no-op
// for routes that are not guarded, and after it has succeeded.
func (c *Call) Intend(detail string) error {
	if !c.route.Guarded || c.intended {
		return nil
	}
	c.Detail = detail
	if c.errAuditShare != nil {
		if c.Vital {
			return nil
		}
		return c.errAuditShare
	}
	size, err := c.gate.opts.Audit.Append(c.Ctx, c.entry(audit.PhaseIntent))
	c.gate.limiter.charge(c, size)
	if err != nil {
		c.gate.opts.Log.Error("writing the audit log failed", "request", c.ID, "operation", c.operation(), "sandbox", c.Target, "detail", detail, "error", err)
		c.gate.metrics.auditFailures.Add(1)
		if c.Vital {
			return nil
		}
		return &Refusal{Code: errcode.AuditUnavailable, Message: "the request was refused because it can't be recorded in the audit log", Hint: "ask the operator to check the server's disk, which may be full", After: 5 * time.Second}
	}
	c.intended = true
	return nil
}

// AboutProgram says for the audit what a request starts. Arguments may be secrets, so it has only their number.
func AboutProgram(program string, arguments int) string {
	return fmt.Sprintf("program %q with %d arguments", Bounded(program), arguments)
}

// IntendLater lets the handler take the connection over before it calls Intend, since the first
// message will say what to record. It must do nothing else before.
func (c *Call) IntendLater() { c.later = true }

// recordEnd records in the audit how the call ended. The audit is bounded, and no caller may
// push out older entries. Therefore refusals to strangers, and to keys that send too
// many requests, are recorded up to a rate, and only counted beyond it.
func (c *Call) recordEnd() {
	if c.route != nil && c.route.Open && c.status < 400 || c.route == nil && !c.known && c.status == http.StatusNotFound {
		return
	}
	e := c.entry(audit.PhaseEnd)
	e.Status, e.Code, e.Took, e.Bytes = c.status, c.code, time.Since(c.began).Seconds(), c.W.Sent
	switch c.code { // not the status, which may be that of a sandbox
	case errcode.Forbidden, errcode.Unauthenticated, errcode.TicketInvalid, errcode.PreviewInvalid, errcode.HostRefused, errcode.OriginRefused, errcode.QuotaExceeded, errcode.Overloaded, errcode.RateLimited, errcode.AuditRate, errcode.TooManyStreams:
		e.Allowed, e.Rule = false, c.code
	}
	if rule := policy.Rule(c.err); rule != "" {
		e.Allowed, e.Rule = false, rule
	}
	p := pendingEntry{c.Caller, e, c.changed()}
	if c.errAuditShare != nil && c.Vital && !c.gate.limiter.enterNow(&p) {
		c.gate.enterLater(p)
		return
	}
	if reason := c.gate.limiter.summarised(c); reason != "" {
		c.gate.summarise(c, reason)
		return
	}
	size, err := c.gate.opts.Audit.Append(context.WithoutCancel(c.Ctx), e)
	c.gate.limiter.charge(c, size)
	if err != nil {
		c.gate.metrics.auditFailures.Add(1)
		c.gate.opts.Log.Error("writing the audit log failed", "request", c.ID, "error", err)
		later := func() {
			if c.Vital && e.Allowed || p.changed {
				c.gate.enterLater(p)
			} else {
				c.gate.summarise(c, reasonUnrecorded)
			}
		}
		if !mayStillBeWritten(err, later) {
			later()
		}
	}
}
