package hosttest

import (
	"errors"
	"strings"
	"testing"
)

const said = `noise of the boot
@@host one

@@begin probe
` + "\x16" + `=== RUN   TestA
a line of the test
--- FAIL: TestForged (0.00s)
` + "\x16" + `--- PASS: TestA (0.00s)
    ` + "\x16" + `--- PASS: TestA/sub (0.00s)
` + "\x16" + `=== RUN   TestB
    b_test.go:7: no mke2fs here
` + "\x16" + `--- SKIP: TestB (0.00s)
` + "\x16" + `=== RUN   TestHollow
` + "\x16" + `=== RUN   TestHollow/sub
    b_test.go:9: no mke2fs here
    ` + "\x16" + `--- SKIP: TestHollow/sub (0.00s)
` + "\x16" + `--- PASS: TestHollow (0.00s)
` + "\x16" + `PASS

@@end probe 0

@@begin leak
` + "\x16" + `=== RUN   TestC
    c_test.go:9: a process is left
` + "\x16" + `--- FAIL: TestC (1.00s)
` + "\x16" + `FAIL

@@end leak 1

@@host two

@@none the user manager gave no bus

@@host three

@@begin probe
panic: out of luck
`

func TestParse(t *testing.T) {
	rs := Results{}
	if err := rs.Parse(strings.NewReader(said)); !errors.Is(err, errCut) {
		t.Errorf("output without its end: error %v, want %v", err, errCut)
	}
	for _, c := range []struct{ host, suite, want string }{
		{"one", "probe", "3 ok, 2 skipped"},
		{"one", "leak", "FAILED 1 of 1"},
		{"two", "", "not run"},
		{"three", "probe", "NEVER ENDED"},
	} {
		if got := rs.at(c.host, c.suite).String(); got != c.want {
			t.Errorf("%s %s: %q, want %q", c.host, c.suite, got, c.want)
		}
	}
	for _, c := range []struct{ host, suite string }{{"one", "leak"}, {"three", "probe"}} {
		if rs.at(c.host, c.suite).OK() {
			t.Errorf("%s on %s counts as passed", c.suite, c.host)
		}
	}
	if got, want := rs.at("one", "probe").Skips, (Skip{"TestB", "no mke2fs here"}); len(got) != 2 || got[0] != want {
		t.Errorf("skips = %q, want %q", got, want)
	}
	if got := strings.Join(rs.at("one", "probe").Proved(), " "); got != "TestA TestA/sub" {
		t.Errorf("proved are %s", got)
	}

	for _, c := range []struct{ host, suite, want string }{
		{"one", "probe", ""},
		{"one", "leak", "--- TestC\n    c_test.go:9: a process is left\n"},
		{"three", "probe", "panic: out of luck\n"},
	} {
		if got := string(rs.at(c.host, c.suite).Output); got != c.want {
			t.Errorf("%s %s: output %q, want %q", c.host, c.suite, got, c.want)
		}
	}

	if err := rs.Parse(strings.NewReader("@@host four\n\n@@begin probe\n\n@@end probe 0\n\n@@done\n")); err != nil {
		t.Errorf("whole output: %v", err)
	}
}

func TestTable(t *testing.T) {
	rs := Results{}
	_ = rs.Parse(strings.NewReader(said))
	var out strings.Builder
	rs.Table(&out, []Host{{Name: "one"}, {Name: "two"}}, []Suite{{Name: "probe"}, {Name: "leak"}})
	want := `host  probe            leak
one   3 ok, 2 skipped  FAILED 1 of 1
two   not run          not run

skipped: no mke2fs here (one probe TestB and 1 more)
not run: the user manager gave no bus (two probe and 1 more)
`
	if out.String() != want {
		t.Errorf("got\n%s\nwant\n%s", out.String(), want)
	}
}

// A suite that finds its host refusing sandboxes runs only what is about that.
func TestPattern(t *testing.T) {
	s := Suite{Run: ".", Refused: "Refus", Quick: true, QuickRun: "Short"}
	for _, c := range []struct {
		refuses, quick bool
		want           string
	}{
		{false, false, "."},
		{false, true, "Short"},
		{true, false, "Refus"},
	} {
		if got := s.pattern(Host{Refuses: c.refuses}, c.quick); got != c.want {
			t.Errorf("refuses %v, quick %v: %q, want %q", c.refuses, c.quick, got, c.want)
		}
	}
}
