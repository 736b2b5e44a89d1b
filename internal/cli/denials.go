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
	Allow   *[]string    `json:"allow,omitempty"` // the rules that would have sufficed, of EgressLearn
	Lost    int64        `json:"lost,omitempty"`  // connections that are missing in allow

	log    sandpit.EgressLog
	closed []string      // destinations that an --allow would open, the latest first
	failed *sandpit.Flow // the last for which the way out of this machine failed
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
	for _, d := range slices.Backward(log.Denials) {
		if len(t.closed) == maxShown {
			break
		}
		if d.Rule != "" || d.Destination == "" {
			continue
		}
		// What is allowed as far as its name says was denied for something else, such as
		// another Host or a method.
		if decided, err := s.CheckEgress(ctx, d.Destination); err == nil && !decided.Allowed && decided.Rule == "" {
			t.closed = append(t.closed, d.Destination)
		}
	}
	if log.Learns {
		t.Allow, t.Lost = new(Learned(log.Flows)), log.Lost
	}
	return t
}

// failedOutside returns the last flow that failed because of the operator's name servers or proxy, and not
// of its destination; nil: none.
func failedOutside(flows []sandpit.Flow) *sandpit.Flow {
	for _, f := range slices.Backward(flows) {
		if f.Allowed && f.Error != "" && (f.Protocol == "dns" || strings.HasPrefix(f.Error, "the upstream proxy")) {
			return &f
		}
	}
	return nil
}

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
		a.tellDenials(t)
	}
	if f := t.failed; f != nil {
		a.Note("%s could not be reached: %s", Harmless(f.Host), Harmless(f.Error))
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

func (a *App) tellDenials(t *traffic) {
	denials := t.log.Denials
	var count int64
	var flags []string
	for _, d := range denials {
		count += d.Count
	}
	for _, destination := range t.closed {
		flags = append(flags, "--allow "+Harmless(destination))
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
	if len(flags) > 0 {
		text += "; to allow it: " + strings.Join(flags, " ")
	}
	a.Note("%s", text)
}

// maxShown is the number of flags that are suggested at most.
const maxShown = 3
