package api

import (
	"net/http"
	"slices"

	"github.com/sandpit-dev/sandpit"
	v1 "github.com/sandpit-dev/sandpit/internal/api/v1"
)

func egressRoutes() []Route {
	const tag = "Sandboxes"
	return []Route{
		{Method: http.MethodGet, Path: oneSandbox + "/egress", ID: "getEgress", Tag: tag, Summary: "Get what a sandbox may reach outside", Status: http.StatusOK, Out: v1.Egress{}, handle: asJSON(getEgress)},
		{
			Method: http.MethodPut, Path: oneSandbox + "/egress", ID: "setEgress", Tag: tag, Summary: "Change what a sandbox may reach outside",
			Text: "The body replaces all rules; an empty object allows nothing, and a body is required. It applies at once: open connections that are no longer allowed end. The response has what is in force, with what the policy adds. After an error the former rules are in force.",
			In:   v1.Egress{}, Status: http.StatusOK, Out: v1.Egress{}, Guarded: true, handle: fromJSON(setEgress),
		},
		{
			Method: http.MethodPatch, Path: oneSandbox + "/egress", ID: "changeEgress", Tag: tag, Summary: "Change a part of what a sandbox may reach outside",
			Text: "What others change at the same time stays. Otherwise as PUT.",
			In:   v1.EgressChange{}, Status: http.StatusOK, Out: v1.Egress{}, Guarded: true, handle: fromJSON(changeEgress),
		},
		{
			Method: http.MethodGet, Path: oneSandbox + "/egress/check", ID: "checkEgress", Tag: tag, Summary: "Check whether a sandbox may reach a destination, and by which rule",
			Text:   "No name is resolved and nothing is sent. The addresses of an allowed name are checked only when it is connected to.",
			Query:  []Param{{Name: "destination", Type: "string", Required: true, Doc: "HOST, HOST:PORT, or the same after udp: or ping:"}},
			Status: http.StatusOK, Out: v1.EgressDecision{}, handle: asJSON(checkEgress),
		},
		{
			Method: http.MethodGet, Path: oneSandbox + "/egress/log", ID: "getEgressLog", Tag: tag, Summary: "Get the latest connections of a sandbox, oldest first, and what it was denied",
			Text: "The log is bounded: lost counts connections that are no longer in it. It ends with the server's process. denials count every denial by destination; they and lost are in the first page.",
			Query: pageParams(
				flag("denied", "Only connections that were denied"),
				Param{Name: "host", Type: "string", Doc: "Only connections to this name or address"}),
			Status: http.StatusOK, Out: v1.EgressLog{}, handle: asJSON(getEgressLog),
		},
	}
}

func getEgress(c *call) (v1.Egress, error) {
	sb, err := c.sandbox()
	if err != nil {
		return v1.Egress{}, err
	}
	return egressOf(c, sb)
}

// egressOf returns what a sandbox may reach.
func egressOf(c *call, sb sandpit.Egresser) (v1.Egress, error) {
	e, err := sb.Egress(c.Ctx)
	if err != nil {
		return v1.Egress{}, err
	}
	if v := v1.FromEgress(e); v != nil {
		return *v, nil
	}
	return v1.Egress{}, nil
}

func setEgress(c *call, in *v1.Egress) (v1.Egress, error) {
	sb, err := c.sandbox()
	if err != nil {
		return v1.Egress{}, err
	}
	if err := sb.SetEgress(c.Ctx, in.Sandpit()); err != nil {
		return v1.Egress{}, err
	}
	return egressOf(c, sb)
}

func changeEgress(c *call, in *v1.EgressChange) (v1.Egress, error) {
	sb, err := c.sandbox()
	if err != nil {
		return v1.Egress{}, err
	}
	if err := sb.ChangeEgress(c.Ctx, in.Sandpit()); err != nil {
		return v1.Egress{}, err
	}
	return egressOf(c, sb)
}

func checkEgress(c *call) (v1.EgressDecision, error) {
	q := c.query()
	destination := q.text("destination")
	if q.err != nil {
		return v1.EgressDecision{}, q.err
	}
	sb, err := c.sandbox()
	if err != nil {
		return v1.EgressDecision{}, err
	}
	d, err := sb.CheckEgress(c.Ctx, destination)
	return v1.EgressDecision(d), err
}

func getEgressLog(c *call) (out v1.EgressLog, err error) {
	q := c.query()
	denied, host, p := q.flag("denied", false), q.text("host"), q.cutPage()
	if q.err != nil {
		return out, q.err
	}
	sb, err := c.sandbox()
	if err != nil {
		return out, err
	}
	log, err := sb.EgressLog(c.Ctx)
	if err != nil {
		return out, err
	}
	if p.after != "" {
		log = sandpit.EgressLog{Flows: log.Flows}
	}
	out = v1.FromEgressLog(log)
	out.Flows = slices.DeleteFunc(out.Flows, func(f v1.Flow) bool {
		return denied && f.Allowed || host != "" && f.Host != host && v1.HostOf(f.Address) != host
	})
	out.Flows, out.Next = cut(p, out.Flows, func(f v1.Flow) string { return byTime(f.Started, f.Protocol+"/"+f.Host+"/"+f.Address) })
	return out, nil
}
