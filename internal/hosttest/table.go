package hosttest

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
)

// Table prints one line per host and one column per suite, and under it why
// something did not run or was skipped.
func (rs Results) Table(w io.Writer, hosts []Host, suites []Suite) {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprint(tw, "host")
	for _, s := range suites {
		fmt.Fprintf(tw, "\t%s", s.Name)
	}
	fmt.Fprintln(tw)
	for _, h := range hosts {
		fmt.Fprint(tw, h.Name)
		for _, s := range suites {
			cell := "-"
			if r := rs.find(h, s); r != nil {
				cell = r.String()
			}
			fmt.Fprintf(tw, "\t%s", cell)
		}
		fmt.Fprintln(tw)
	}
	tw.Flush()

	// A reason that many hosts share is printed once.
	var order []string
	who := map[string][]string{}
	note := func(reason, where string) {
		if len(reason) > 200 {
			reason = strings.ToValidUTF8(reason[:200], "") + "…"
		}
		if !slices.Contains(order, reason) {
			order = append(order, reason)
		}
		who[reason] = append(who[reason], where)
	}
	for _, h := range hosts {
		for _, s := range suites {
			r := rs.find(h, s)
			if r == nil {
				continue
			}
			if r.NotRun != "" {
				note("not run: "+r.NotRun, h.Name+" "+s.Name)
			}
			for _, skip := range r.Skips {
				note("skipped: "+skip.Reason, h.Name+" "+s.Name+" "+skip.Test)
			}
		}
	}
	if len(order) > 0 {
		fmt.Fprintln(w)
	}
	for _, reason := range order {
		where := who[reason]
		more := ""
		if len(where) > 1 {
			more = fmt.Sprintf(" and %d more", len(where)-1)
		}
		fmt.Fprintf(w, "%s (%s%s)\n", reason, where[0], more)
	}
}

// find is the result of a suite on a host, which may be the host's own.
func (rs Results) find(h Host, s Suite) *Result {
	if r := rs[h.Name][""]; r != nil && rs[h.Name][s.Name] == nil {
		return r
	}
	return rs[h.Name][s.Name]
}
