package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func of(values ...float64) *series { return &series{values: values} }

func TestPercentileIsAValueThatWasSeen(t *testing.T) {
	hundred := &series{}
	for i := range 100 {
		hundred.add(float64(100 - i)) // 100 … 1, not sorted
	}
	for _, tc := range []struct {
		name string
		s    *series
		p    float64
		want float64
	}{
		{"one value is every percentile", of(7), 99, 7},
		{"the lower of two in the middle", of(4, 1, 3, 2), 50, 2},
		{"the middle of three", of(9, 1, 5), 50, 5},
		{"p90 of ten", of(1, 2, 3, 4, 5, 6, 7, 8, 9, 10), 90, 9},
		{"p99 of ten is the most", of(1, 2, 3, 4, 5, 6, 7, 8, 9, 10), 99, 10},
		{"p50 of a hundred", hundred, 50, 50},
		{"p99 of a hundred", hundred, 99, 99},
		{"p0 is the least", hundred, 0, 1},
		{"p100 is the most", hundred, 100, 100},
	} {
		if got := tc.s.percentile(tc.p); got != tc.want {
			t.Errorf("%s: percentile(%v) = %v, want %v", tc.name, tc.p, got, tc.want)
		}
	}
	if got := of().percentile(50); !math.IsNaN(got) {
		t.Errorf("percentile of nothing = %v, want NaN", got)
	}
	if got := hundred.values[0]; got != 100 {
		t.Errorf("percentile has sorted the series itself: first is %v", got)
	}
}

func TestUpperIsTheWorseEnd(t *testing.T) {
	s := of(1, 2, 3, 4, 5, 6, 7, 8, 9, 10)
	if got := s.upper(90, false); got != 9 {
		t.Errorf("p90 of times = %v, want 9", got)
	}
	if got := s.upper(90, true); got != 1 {
		t.Errorf("p90 of speeds = %v, want 1", got)
	}
}

func TestGoals(t *testing.T) {
	for _, tc := range []struct {
		name      string
		g         goal
		own, peer float64
		ratio     float64
		verdict   string
	}{
		{"takes less than both ask", goal{atMost, 2, 1}, 5, 10, 0.5, "both met"},
		{"takes as long as the second allows", goal{atMost, 2, 1}, 10, 10, 1, "both met"},
		{"takes less than the first allows", goal{atMost, 2, 1}, 15, 10, 1.5, "first met"},
		{"takes longer", goal{atMost, 2, 1}, 21, 10, 2.1, "not met"},
		{"fast enough for both", goal{faster, 5, 10}, 2, 20, 10, "both met"},
		{"fast enough for the first", goal{faster, 5, 10}, 3, 18, 6, "first met"},
		{"too slow", goal{faster, 5, 10}, 10, 20, 2, "not met"},
		{"speed", goal{atLeast, 0.3, 0.7}, 500, 1000, 0.5, "first met"},
		{"an absolute figure", goal{below, 4, 1}, 3, 0, 3, "first met"},
		{"one target", goal{atMost, 2, 2}, 10, 10, 1, "met"},
		{"one target, too slow", goal{atMost, 2, 2}, 30, 10, 3, "not met"},
		{"no goal", goal{}, 3, 2, 1.5, ""},
	} {
		ratio := tc.g.ratio(tc.own, tc.peer)
		if ratio != tc.ratio {
			t.Errorf("%s: ratio = %v, want %v", tc.name, ratio, tc.ratio)
		}
		if got := tc.g.verdict(ratio); got != tc.verdict {
			t.Errorf("%s: verdict = %q, want %q", tc.name, got, tc.verdict)
		}
	}
}

func TestNumbersHaveThreeDigits(t *testing.T) {
	for v, want := range map[float64]string{1234.5: "1234", 123.4: "123", 12.34: "12.3", 1.234: "1.23", 2: "2", 0.12345: "0.123", 10: "10", 0: "0"} {
		if got := number(v); got != want {
			t.Errorf("number(%v) = %q, want %q", v, got, want)
		}
	}
	if got := number(math.NaN()); got != "-" {
		t.Errorf("number(NaN) = %q", got)
	}
}

// testReport has one row of each kind.
func testReport() *report {
	own := of(4, 5, 6)
	g := &group{Name: "command", Title: "whole command", Unit: "ms", Note: "the note"}
	g.add("sandpit", own)
	g.against("bwrap", of(10, 10, 10), "sandpit", own, goal{atMost, 2, 1})
	g.against("runc", of(20, 30, 40), "sandpit", own, goal{faster, 5, 10})
	g.against("docker", &series{err: errors.New("no daemon\nanswers | here")}, "sandpit", own, goal{faster, 50, 100})
	m := &group{Name: "size", Title: "size", Unit: "MiB"}
	m.absolute("guest", of(1.5), goal{below, 4, 1})
	return &report{Machine: []fact{{"kernel", "6.1"}}, Groups: []*group{g, m}, Notes: []string{"a last word"}}
}

func TestText(t *testing.T) {
	var b bytes.Buffer
	if err := testReport().writeText(&b); err != nil {
		t.Fatal(err)
	}
	want := `kernel       6.1

           n        p50      p90      p99      sandpit is  target           
whole command [ms]
  sandpit        3        5        6        6
  bwrap          3       10       10       10  0.5x       ≤ 2x, then 1x    both met
  runc           3       30       40       40  6x faster  ≥ 5x, then 10x   first met
  docker         -        -        -        -                              skipped: no daemon answers | here
size [MiB]
  guest          1      1.5                               ≤ 4, then 1      first met

whole command: the note
a last word
`
	// Widths are tabwriter's business; words and their order are ours.
	fields := func(s string) []string { return strings.Fields(s) }
	if diff := cmp.Diff(fields(want), fields(b.String())); diff != "" {
		t.Errorf("text (-want +got):\n%s\n%s", diff, b.String())
	}
	var starts []int
	for _, line := range strings.Split(b.String(), "\n") {
		if strings.TrimRight(line, " ") != line {
			t.Errorf("line %q ends with blanks", line)
		}
		if i := strings.Index(line, "≤"); i >= 0 {
			starts = append(starts, len([]rune(line[:i])))
		}
	}
	if len(starts) != 2 || starts[0] != starts[1] {
		t.Errorf("targets begin in columns %v, want the same\n%s", starts, b.String())
	}
}

func TestMarkdown(t *testing.T) {
	var b bytes.Buffer
	if err := testReport().writeMarkdown(&b); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"- kernel: 6.1\n",
		"| **whole command [ms]** | | | | | | | |\n",
		"| bwrap | 3 | 10 | 10 | 10 | 0.5x | ≤ 2x, then 1x | both met |\n",
		`| docker | - | - | - | - |  |  | skipped: no daemon answers \| here |`,
		"- whole command: the note\n",
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %q in\n%s", want, b.String())
		}
	}
	for _, line := range strings.Split(b.String(), "\n") {
		if strings.HasPrefix(line, "|") && strings.Count(line, "|")-strings.Count(line, `\|`) != len(columns)+1 {
			t.Errorf("wrong number of cells: %s", line)
		}
	}
}

func TestJSON(t *testing.T) {
	name := filepath.Join(t.TempDir(), "report.json")
	r := testReport()
	// A peer that took no time at all must not make the report unwritable.
	r.Groups[0].against("nothing", of(0, 0, 0), "sandpit", of(1, 1, 1), goal{atMost, 2, 1})
	if err := r.writeJSON(name); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	var got report
	if err := json.Unmarshal(data, &got); err != nil {
		t.Fatal(err)
	}
	bwrap := got.Groups[0].Rows[1]
	want := row{Who: "bwrap", N: 3, P50: 10, P90: 10, P99: 10, Own: "sandpit", Ratio: 0.5, Goal: "≤ 2x, then 1x", Verdict: "both met"}
	if bwrap != want {
		t.Errorf("row = %+v, want %+v", bwrap, want)
	}
}

func TestRatiosOfAnEarlierRun(t *testing.T) {
	name := filepath.Join(t.TempDir(), "report.json")
	if err := testReport().writeJSON(name); err != nil {
		t.Fatal(err)
	}
	earlier, err := readJSON(name)
	if err != nil {
		t.Fatal(err)
	}
	r := testReport()
	earlier.Groups[0].Rows[1].Ratio = 0.75
	earlier.Groups[0].Rows[2].Ratio = 0 // was not measured
	r.setBefore(earlier)
	for i, want := range map[int]string{0: "", 1: "0.5x (before: 0.75x)", 2: "6x faster", 3: ""} {
		if got := r.Groups[0].Rows[i].comparison(); got != want {
			t.Errorf("row %d says %q, want %q", i, got, want)
		}
	}
	if got := r.Groups[1].Rows[0].comparison(); got != "" {
		t.Errorf("a figure without a peer says %q", got)
	}
	if _, err := readJSON(filepath.Join(t.TempDir(), "none")); err == nil {
		t.Error("a report that is not there was read")
	}
}

func TestContestTakesTurns(t *testing.T) {
	var order []string
	turn := func(name string) *contestant {
		return &contestant{name: name, once: func(_ context.Context, rec *record) error {
			order = append(order, name)
			rec.time(name, time.Millisecond)
			return nil
		}}
	}
	rec := contest(context.Background(), 3, time.Hour, turn("a"), turn("b"))
	if diff := cmp.Diff([]string{"a", "b", "a", "b", "b", "a", "a", "b"}, order); diff != "" {
		t.Errorf("order (-want +got), the first two warm up:\n%s", diff)
	}
	if n := rec.get("a").n(); n != 3 {
		t.Errorf("a was recorded %d times, want 3", n)
	}
}

func TestContestGoesOnWithoutWhoFails(t *testing.T) {
	broken := errors.New("broken")
	bad := &contestant{name: "bad", once: func(context.Context, *record) error { return broken }}
	good := &contestant{name: "good", once: func(_ context.Context, rec *record) error {
		rec.time("good", time.Millisecond)
		return nil
	}}
	rec := contest(context.Background(), 4, time.Hour, bad, good)
	if rec.get("bad").err != broken || rec.get("bad").n() != 0 {
		t.Errorf("bad = %+v", rec.get("bad"))
	}
	if rec.get("good").err != nil || rec.get("good").n() != 4 {
		t.Errorf("good = %+v", rec.get("good"))
	}
}

func TestSpacing(t *testing.T) {
	for _, tc := range []struct {
		name         string
		rounds       int
		budget, turn time.Duration
		want         int
	}{
		{"fits", 100, time.Second, time.Millisecond, 1},
		{"half of them fit", 100, time.Second, 20 * time.Millisecond, 2},
		{"too slow for any", 100, time.Second, time.Minute, 20},
		{"few rounds are all taken", 5, time.Second, time.Minute, 1},
		{"no time at all", 100, time.Second, 0, 1},
	} {
		if got := spacing(tc.rounds, tc.budget, tc.turn); got != tc.want {
			t.Errorf("%s: spacing = %d, want %d", tc.name, got, tc.want)
		}
	}
}

func TestFlags(t *testing.T) {
	var stderr bytes.Buffer
	o, err := parse([]string{"-quick", "-only", "^exec$"}, &stderr)
	if err != nil {
		t.Fatal(err)
	}
	if o.rounds != quickRounds || o.build || !o.wants("exec") || o.wants("exec python") {
		t.Errorf("options = %+v", o)
	}
	for _, args := range [][]string{{"-only", "("}, {"-n", "-1"}, {"extra"}, {"-nonsense"}} {
		if _, err := parse(args, &stderr); err == nil {
			t.Errorf("parse(%q) = nil error", args)
		}
	}
}

func TestInitSteps(t *testing.T) {
	got := initSteps("something of the command: 5 ms or so\n\nopen the engine                           0.185 ms\ncreate the sandbox                       22.186 ms\n  policy                                  0.395 ms\nall                                      26.267 ms\n 3 ms\nms\n")
	want := []step{{"open the engine", 0.185}, {"create the sandbox", 22.186}, {"  policy", 0.395}, {"all", 26.267}}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(step{})); diff != "" {
		t.Errorf("steps (-want +got):\n%s", diff)
	}
}
