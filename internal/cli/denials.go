package cli

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sandpit-dev/sandpit"
)

// traffic is what is said of a run's network at its end. Fields are only ever added.
type traffic struct {
	Denials []jsonDenial `json:"denials"`
	Allow   *[]string    `json:"allow,omitempty"`  // the rules that would have sufficed, of EgressLearn
	Lost    int64        `json:"lost,omitempty"`   // connections that are missing in allow
	Failed  *jsonFailure `json:"failed,omitempty"` // the last allowed name that name servers or the upstream proxy had no way to

	log    sandpit.EgressLog
	flags  []string      // that would open what was denied last
	failed *sandpit.Flow // see Failed
}

type jsonFailure struct {
	Host  string `json:"host"`
	Error string `json:"error"`
}

type jsonDenial struct {
	Destination string `json:"destination,omitempty"` // missing: all those that are no longer known
	Rule        string `json:"rule,omitempty"`
	Why         string `json:"why"`
	Count       int64  `json:"count"`
}

// trafficOf reads what a sandbox did on the network; nil: it asked for none, or it is not known.
func trafficOf(ctx context.Context, s sandpit.Egresser) *traffic {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), logTime)
	defer cancel()
	log, err := s.EgressLog(ctx)
	if err != nil {
		return nil
	}
	t := &traffic{Denials: []jsonDenial{}, log: log, failed: failedOutside(log.Flows)}
	for _, d := range log.Denials {
		t.Denials = append(t.Denials, jsonDenial(d))
	}
	if t.failed != nil {
		t.Failed = &jsonFailure{t.failed.Host, t.failed.Error}
	}
	for _, d := range slices.Backward(log.Denials) {
		if len(t.flags) == maxShown {
			break
		}
		if d.Rule != "" || d.Destination == "" {
			continue
		}
		switch decided, err := s.CheckEgress(ctx, d.Destination); {
		case err != nil:
		case !decided.Allowed && decided.Rule == "":
			t.flags = append(t.flags, "--allow "+Harmless(d.Destination))
		case decided.Allowed && privateAddress(d.Why):
			flag := "--resolve " + Harmless(hostOf(d.Destination)) + ":ADDRESS (or --allow CIDR)"
			if !slices.Contains(t.flags, flag) {
				t.flags = append(t.flags, flag)
			}
		} // else it was denied for something else, such as another Host or a method
	}
	if log.Learns {
		t.Allow, t.Lost = new(Learned(log.Flows)), log.Lost
	}
	return t
}

// privateAddress reports whether an allowed name was denied because it leads to a private address, or one of
// the machine, that no rule names.
func privateAddress(why string) bool {
	return strings.HasPrefix(why, "its address is ") && strings.HasSuffix(why, "no rule names it")
}

// hostOf returns the host of a destination.
func hostOf(destination string) string {
	destination = strings.TrimPrefix(strings.TrimPrefix(destination, "udp:"), "ping:")
	if host, _, err := net.SplitHostPort(destination); err == nil {
		return host
	}
	return destination
}

// failedOutside returns the last flow that failed because of name servers or the operator's proxy, and not of
// its destination; nil: none. What was reached later does not count, nor do names that only a preset allows
// and that do not exist: programs try some in vain.
func failedOutside(flows []sandpit.Flow) *sandpit.Flow {
	reached := map[string]bool{}
	for _, f := range slices.Backward(flows) {
		switch {
		case !f.Allowed || reached[f.Host]:
		case f.Error == "":
			reached[f.Host] = true
		case f.Protocol == "dns" && strings.HasSuffix(f.Error, noSuchHost) && slices.Contains([]sandpit.EgressPreset{sandpit.EgressPublic, sandpit.EgressAll, sandpit.EgressLearn}, sandpit.EgressPreset(f.Rule)):
		case f.Protocol == "dns", strings.HasPrefix(f.Error, "the upstream proxy"):
			return &f
		}
	}
	return nil
}

// noSuchHost ends the error of a name that does not exist, as package net has it.
const noSuchHost = "no such host"

// logTime is how long a server may take to return the log at the end of a run.
const logTime = 5 * time.Second

// Learned returns the smallest list of rules that allow what was reached: one for each name, or
// address, with its port.
func Learned(flows []sandpit.Flow) []string {
	rules := []string{}
	for _, f := range flows {
		if !f.Allowed || f.Protocol == "dns" {
			continue
		}
		host := f.Host
		if host == "" {
			host, _, _ = net.SplitHostPort(f.Address)
		}
		if host == "" {
			continue
		}
		rule := host
		if f.Port != 0 && f.Protocol != "ping" {
			rule = net.JoinHostPort(host, strconv.Itoa(int(f.Port)))
		}
		if f.Protocol != "tcp" {
			rule = f.Protocol + ":" + rule
		}
		rules = append(rules, rule)
	}
	slices.Sort(rules)
	return slices.Compact(rules)
}

// tellTraffic says in one line what a sandbox could not reach, and how to allow it; and which
// flags would have sufficed for what it reached.
func (a *App) tellTraffic(t *traffic) {
	if len(t.log.Denials) > 0 {
		a.tellDenials(t, "")
	}
	if f := t.failed; f != nil {
		host, why := Harmless(f.Host), Harmless(strings.TrimPrefix(f.Error, "lookup "+f.Host+": "))
		switch {
		case f.Protocol != "dns":
			a.Note("%s could not be reached: %s", host, why)
		case strings.HasSuffix(f.Error, noSuchHost):
			a.Note("%s could not be resolved: %s; if it has an address, write --resolve %s:ADDRESS", host, why, host)
		default:
			a.Note("%s could not be resolved: %s; write --dns ADDRESS for another name server, or --resolve %s:ADDRESS", host, why, host)
		}
	}
	if t.Allow != nil {
		a.TellLearned(*t.Allow, t.Lost, len(t.log.Flows)+len(t.log.Denials) > 0)
	}
}

// TellLearned says which flags would have sufficed in place of EgressLearn: those of Learned. used says
// whether the network was used at all.
func (a *App) TellLearned(rules []string, lost int64, used bool) {
	switch {
	case len(rules) > 0 || lost > 0:
	case used:
		a.Note("nothing was reached, so --egress learn has no rules to suggest")
		return
	default:
		a.Note("the network was not used; no --allow is needed")
		return
	}
	flags := make([]string, 0, len(rules))
	for _, rule := range rules {
		flags = append(flags, "--allow "+Harmless(rule))
	}
	note := "in place of --egress learn these suffice: " + strings.Join(flags, " ")
	if lost > 0 {
		note += fmt.Sprintf(" (%d earlier connections are not in the log)", lost)
	}
	a.Note("%s", note)
}

// deniedTraffic is the traffic of an exec, of which only the denials are known; nil: there were none.
func deniedTraffic(denials []sandpit.EgressDenial) *traffic {
	if len(denials) == 0 {
		return nil
	}
	t := &traffic{log: sandpit.EgressLog{Denials: denials}}
	for _, d := range denials {
		t.Denials = append(t.Denials, jsonDenial(d))
	}
	return t
}

// flagsFor returns what 'sandpit network allow NAME' takes to open what was denied, the latest first, as far
// as the reasons tell.
func flagsFor(denials []sandpit.EgressDenial) (flags []string) {
	for _, d := range slices.Backward(denials) {
		flag := Harmless(d.Destination)
		switch {
		case len(flags) == maxShown:
			return flags
		case privateAddress(d.Why):
			flag = "--resolve " + Harmless(hostOf(d.Destination)) + ":ADDRESS"
		case d.Rule != "" || d.Destination == "" || d.Why != "no rule allows it":
			continue
		}
		if !slices.Contains(flags, flag) {
			flags = append(flags, flag)
		}
	}
	return flags
}

// tellDenials says in one line what was denied. The command, if any, is what takes the flags that allow it.
func (a *App) tellDenials(t *traffic, command string) {
	denials := t.log.Denials
	var count int64
	for _, d := range denials {
		count += d.Count
	}
	times := "once"
	if count != 1 {
		times = fmt.Sprintf("%d times", count)
	}
	latest := denials[len(denials)-1]
	text := "network access was denied " + times + ": " + Harmless(latest.Why)
	if d := latest.Destination; d != "" {
		text = "network access was denied " + times + ", last to " + Harmless(d) + " (" + Harmless(latest.Why) + ")"
	}
	if len(t.flags) > 0 {
		text += "; to allow it: " + strings.TrimPrefix(command+" "+strings.Join(t.flags, " "), " ")
	}
	a.Note("%s", text)
}

// maxShown is the number of flags that are suggested at most.
const maxShown = 3
