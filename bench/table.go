package main

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"strings"
	"text/tabwriter"
)

// report is all that a run of the benchmark found.
type report struct {
	Machine []fact   `json:"machine"`
	Groups  []*group `json:"groups"`
	Notes   []string `json:"notes,omitempty"`
}

// fact is a line about the machine.
type fact struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// group is rows that measure the same of different programs, Sandpit first.
type group struct {
	Name  string `json:"name"`           // for -only
	Title string `json:"title"`          // one line for people
	Unit  string `json:"unit"`           // "ms", "MiB", "MB/s"
	More  bool   `json:"more,omitempty"` // more is better
	Rows  []row  `json:"rows"`
	Note  string `json:"note,omitempty"`
}

// row is one program's figures.
type row struct {
	Who     string  `json:"who"`
	N       int     `json:"n"`
	P50     float64 `json:"p50"`
	P90     float64 `json:"p90"`
	P99     float64 `json:"p99"`
	Own     string  `json:"own,omitempty"`   // the row of Sandpit that Ratio compares with it
	Ratio   float64 `json:"ratio,omitempty"` // in the sense of Goal
	Goal    string  `json:"goal,omitempty"`
	Verdict string  `json:"verdict,omitempty"`
	Skipped string  `json:"skipped,omitempty"` // why there are no figures

	to     goal    // what Ratio is compared with
	before float64 // the ratio of an earlier run, or 0
}

// setBefore gives the rows the ratios of an earlier run.
func (r *report) setBefore(earlier *report) {
	type key struct{ title, who, own string }
	ratios := map[key]float64{}
	for _, g := range earlier.Groups {
		for _, row := range g.Rows {
			if row.Ratio != 0 {
				ratios[key{g.Title, row.Who, row.Own}] = row.Ratio
			}
		}
	}
	for _, g := range r.Groups {
		for i, row := range g.Rows {
			if v, ok := ratios[key{g.Title, row.Who, row.Own}]; ok {
				g.Rows[i].before = v
			}
		}
	}
}

// comparison returns the ratio for people, beside that of an earlier run.
func (r row) comparison() string {
	if r.Ratio == 0 {
		return ""
	}
	now := r.to.text(r.Ratio)
	if now == "" || r.before == 0 {
		return now
	}
	return now + " (before: " + r.to.text(r.before) + ")"
}

// add adds a row without a comparison.
func (g *group) add(who string, s *series) *row {
	g.Rows = append(g.Rows, g.row(who, s))
	return &g.Rows[len(g.Rows)-1]
}

// against adds the row of a peer, with the ratio of own to it at the p50.
func (g *group) against(who string, s *series, ownName string, own *series, to goal) {
	r := g.row(who, s)
	if s.n() > 0 && own.n() > 0 {
		g.compare(&r, ownName, own.percentile(50), r.P50, to)
	}
	g.Rows = append(g.Rows, r)
}

// absolute adds a row of Sandpit's own that is compared with a figure.
func (g *group) absolute(who string, s *series, to goal) {
	r := g.row(who, s)
	if s.n() > 0 {
		g.compare(&r, "", r.P50, 0, to)
	}
	g.Rows = append(g.Rows, r)
}

func (g *group) compare(r *row, ownName string, own, peer float64, to goal) {
	ratio := to.ratio(own, peer)
	if math.IsNaN(ratio) || math.IsInf(ratio, 0) {
		return // JSON has no word for it
	}
	r.Own, r.Ratio, r.to = ownName, ratio, to
	r.Goal, r.Verdict = to.target(), to.verdict(ratio)
}

func (g *group) row(who string, s *series) row {
	r := row{Who: who, N: s.n()}
	if r.N == 0 {
		r.Skipped = "not measured"
	} else {
		r.P50, r.P90, r.P99 = s.upper(50, g.More), s.upper(90, g.More), s.upper(99, g.More)
	}
	if s.err != nil {
		r.Skipped = oneLine(s.err.Error())
	}
	return r
}

// columns of the table.
var columns = [...]string{"", "n", "p50", "p90", "p99", "sandpit is", "target", ""}

// cells returns a row as text.
func (r row) cells() [len(columns)]string {
	if r.N == 0 {
		return [...]string{r.Who, "-", "-", "-", "-", "", "", "skipped: " + r.Skipped}
	}
	last := r.Verdict
	if r.Skipped != "" {
		last = strings.TrimSpace(last + " (stopped: " + r.Skipped + ")")
	}
	one := fmt.Sprint(r.N)
	if r.N == 1 { // one figure has no distribution
		return [...]string{r.Who, one, number(r.P50), "", "", r.comparison(), r.Goal, last}
	}
	return [...]string{r.Who, one, number(r.P50), number(r.P90), number(r.P99), r.comparison(), r.Goal, last}
}

// writeText prints the report for a terminal.
func (r *report) writeText(w io.Writer) error {
	var b strings.Builder
	for _, f := range r.Machine {
		fmt.Fprintf(&b, "%-12s %s\n", f.Name, f.Value)
	}
	b.WriteByte('\n')
	// Aligned right, but for the first column, which tabwriter can't do apart:
	// so the names are padded by hand.
	width := 0
	for _, g := range r.Groups {
		for _, row := range g.Rows {
			width = max(width, len([]rune(row.Who))+2)
		}
	}
	tw := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	line := func(cells [len(columns)]string) {
		fmt.Fprintf(tw, "%-*s", width, cells[0])
		for i, c := range cells[1:] {
			if i < 4 {
				fmt.Fprintf(tw, "\t%7s", c)
			} else {
				fmt.Fprintf(tw, "\t%s", c)
			}
		}
		fmt.Fprint(tw, "\n")
	}
	line(columns)
	for _, g := range r.Groups {
		// Cells of a line without tabs would end the columns; these do not.
		fmt.Fprintf(tw, "%s%s\n", g.heading(), strings.Repeat("\t", len(columns)-1))
		for _, row := range g.Rows {
			cells := row.cells()
			cells[0] = "  " + cells[0]
			line(cells)
		}
	}
	if err := tw.Flush(); err != nil {
		return err
	}
	r.writeNotes(&b, "")
	_, err := io.WriteString(w, trimLines(b.String()))
	return err
}

func (g *group) heading() string { return g.Title + " [" + g.Unit + "]" }

// writeMarkdown prints the report as a Markdown table.
func (r *report) writeMarkdown(w io.Writer) error {
	var b strings.Builder
	for _, f := range r.Machine {
		fmt.Fprintf(&b, "- %s: %s\n", f.Name, f.Value)
	}
	b.WriteString("\n| what | n | p50 | p90 | p99 | sandpit is | target | |\n|---|---:|---:|---:|---:|---:|---|---|\n")
	for _, g := range r.Groups {
		fmt.Fprintf(&b, "| **%s** | | | | | | | |\n", escapeCell(g.heading()))
		for _, row := range g.Rows {
			cells := row.cells()
			b.WriteString("|")
			for _, c := range cells {
				b.WriteString(" " + escapeCell(c) + " |")
			}
			b.WriteByte('\n')
		}
	}
	r.writeNotes(&b, "- ")
	_, err := io.WriteString(w, b.String())
	return err
}

func (r *report) writeNotes(b *strings.Builder, bullet string) {
	b.WriteByte('\n')
	for _, g := range r.Groups {
		if g.Note != "" {
			fmt.Fprintf(b, "%s%s: %s\n", bullet, g.Title, g.Note)
		}
	}
	for _, n := range r.Notes {
		fmt.Fprintf(b, "%s%s\n", bullet, n)
	}
}

// readJSON reads the report of an earlier run.
func readJSON(name string) (*report, error) {
	data, err := os.ReadFile(name)
	if err != nil {
		return nil, fmt.Errorf("reading the earlier report: %w", err)
	}
	r := new(report)
	if err := json.Unmarshal(data, r); err != nil {
		return nil, fmt.Errorf("reading the earlier report %s: %w", name, err)
	}
	return r, nil
}

// writeJSON writes the report to a file.
func (r *report) writeJSON(name string) error {
	data, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return fmt.Errorf("writing the report: %w", err)
	}
	if err := os.WriteFile(name, append(data, '\n'), 0o644); err != nil {
		return fmt.Errorf("writing the report: %w", err)
	}
	return nil
}

func escapeCell(s string) string { return strings.ReplaceAll(s, "|", "\\|") }

// trimLines takes the blanks off the ends of lines.
func trimLines(s string) string {
	lines := strings.Split(s, "\n")
	for i, l := range lines {
		lines[i] = strings.TrimRight(l, " \t")
	}
	return strings.Join(lines, "\n")
}

// oneLine is a message's first line that says something, not too long for a table.
func oneLine(s string) string {
	s = strings.Join(strings.Fields(s), " ")
	const limit = 160
	if r := []rune(s); len(r) > limit {
		return string(r[:limit]) + "…"
	}
	return s
}

// trimmed takes the zeros off the end of a decimal fraction, so that a target
// of 2 reads "2"; a figure keeps what was measured of it.
func trimmed(s string) string {
	if strings.ContainsRune(s, '.') {
		s = strings.TrimRight(strings.TrimRight(s, "0"), ".")
	}
	return s
}
