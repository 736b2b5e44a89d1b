package api

import (
	"context"
	"net/http"
	"strconv"
	"syscall"
	"time"

	v1 "github.com/sandpit-dev/sandpit/internal/api/v1"
	"github.com/sandpit-dev/sandpit/internal/errcode"
	"github.com/sandpit-dev/sandpit/internal/policy"
)

// Phases of an entry of the audit.
const (
	phaseIntent = "intent"
	phaseEnd    = "end"
)

// entry is what the audit gets to know of the call: who, what, on which
// sandbox. Never a secret, nor content of a file.
func (c *call) entry(phase string) v1.Audit {
	e := v1.Audit{
		Time: time.Now(), RequestID: c.id, Phase: phase, Caller: c.caller.Name, Key: c.caller.Key, Namespace: c.caller.Namespace,
		Remote: c.r.RemoteAddr, Action: c.operation(), Sandbox: c.target, Detail: c.detail, Allowed: true,
	}
	if e.Remote == "@" { // as net names the nameless end of a unix socket
		e.Remote = ""
	}
	return e
}

// intend has the audit keep what is about to be done. What it can't keep is
// not done.
func (c *call) intend(detail string) error {
	if !c.route.Guarded || c.intended {
		return nil
	}
	c.detail = detail
	if c.overShare != nil {
		if c.vital {
			return nil
		}
		return c.overShare
	}
	size, err := c.api.opts.Audit.Append(c.ctx, c.entry(phaseIntent), c.vital)
	c.api.limiter.charge(c, size)
	if err != nil {
		c.api.opts.Log.Error("the audit can't be written", "request", c.id, "operation", c.operation(), "sandbox", c.target, "detail", detail, "error", err)
		c.api.metrics.auditFailures.Add(1)
		if c.vital {
			return nil
		}
		return &refusal{status: http.StatusServiceUnavailable, code: errcode.AuditUnavailable, message: "the audit can't record this request, so it was not carried out", hint: "ask the operator to look at the server's disk, which may be full", after: 5 * time.Second}
	}
	c.intended = true
	return nil
}

// intendFor is intend with what a body says of itself.
func (c *call) intendFor(body any) error {
	if !c.route.Guarded {
		return nil
	}
	if s, ok := body.(*v1.Signal); ok && syscall.Signal(s.Signal) != syscall.SIGKILL {
		c.vital = false
	}
	return c.intend(c.detailOf(body))
}

// subject is what a call is about, beside the sandbox: a process, a port, a key,
// a webhook or a file.
func (c *call) subject() string {
	for _, p := range [...]struct{ name, what string }{{"p", "process "}, {"port", "port "}, {"id", ""}} {
		if v := c.r.PathValue(p.name); v != "" {
			return p.what + v
		}
	}
	return c.r.URL.Query().Get("path")
}

// detailOf says in a few words what a request is about. Of a command it names
// the program alone: arguments may be secrets.
func (c *call) detailOf(body any) string {
	switch b := body.(type) {
	case *v1.Spec:
		return "image " + strconv.Quote(b.Image) + " name " + strconv.Quote(b.Name)
	case *v1.Exec:
		return programOf(&b.Command)
	case *v1.Command:
		return programOf(b)
	case *v1.Signal:
		return c.subject() + " signal " + strconv.Itoa(b.Signal)
	case *v1.Pull:
		return "image " + strconv.Quote(b.Image)
	case *v1.NewKey:
		detail := "name " + strconv.Quote(b.Name) + " namespace " + strconv.Quote(b.Namespace) + " policy " + strconv.Quote(b.Policy)
		if b.Admin {
			detail += " administrator"
		}
		return detail
	case *v1.NewWebhook:
		return "" // its URL may hold a secret
	}
	return c.subject()
}

func programOf(c *v1.Command) string {
	program, arguments := "program of the image", len(c.Argv)+len(c.ArgvBase64)
	switch {
	case c.Script != "" || c.ScriptBase64 != nil:
		return "script of " + strconv.Itoa(len(c.Script)+len(c.ScriptBase64)) + " bytes"
	case c.Entrypoint != nil && len(*c.Entrypoint) > 0:
		program, arguments = "program "+strconv.Quote(bounded((*c.Entrypoint)[0])), arguments+len(*c.Entrypoint)-1
	case c.FromImage: // which may begin with a program of its own
	case len(c.Argv) > 0:
		program, arguments = "program "+strconv.Quote(bounded(c.Argv[0])), arguments-1
	case len(c.ArgvBase64) > 0:
		program, arguments = "program "+strconv.Quote(bounded(string(c.ArgvBase64[0]))), arguments-1
	}
	return program + " with " + strconv.Itoa(arguments) + " arguments"
}

// recordEnd has the audit keep how the call ended. The audit is bounded, and nobody
// may push out of it what is older: what is refused to strangers, and to keys that
// ask too often, is entered up to a rate, and beyond it counted.
func (c *call) recordEnd() {
	if c.route != nil && c.route.Open && c.status < 400 || c.route == nil && !c.known && c.status == http.StatusNotFound {
		return
	}
	e := c.entry(phaseEnd)
	e.Status, e.Code, e.Took, e.Bytes = c.status, c.code, time.Since(c.began).Seconds(), c.w.bytes
	switch c.code { // not the status, which may be that of a sandbox
	case "forbidden", errcode.Unauthenticated, errcode.HostRefused, errcode.OriginRefused, "exhausted", errcode.RateLimited, errcode.AuditRate, errcode.TooManyStreams:
		e.Allowed, e.Rule = false, c.code
	}
	if rule := policy.Rule(c.err); rule != "" {
		e.Allowed, e.Rule = false, rule
	}
	p := pendingEntry{c.caller, e, c.changed()}
	if c.overShare != nil && c.vital && !c.api.limiter.enterNow(&p) {
		c.api.enterLater(p)
		return
	}
	if reason := c.api.limiter.summarised(c); reason != "" {
		c.api.summarise(c, reason)
		return
	}
	size, err := c.api.opts.Audit.Append(context.WithoutCancel(c.ctx), e, c.vital)
	c.api.limiter.charge(c, size)
	if err != nil {
		c.api.metrics.auditFailures.Add(1)
		c.api.opts.Log.Error("the audit can't be written", "request", c.id, "error", err)
		later := func() {
			if c.vital && e.Allowed || p.changed {
				c.api.enterLater(p)
			} else {
				c.api.summarise(c, reasonUnrecorded)
			}
		}
		if !late(err, later) {
			later()
		}
	}
}
