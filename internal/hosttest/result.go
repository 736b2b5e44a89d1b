package hosttest

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
)

// A Result is the result of one suite on one host.
type Result struct {
	Passed, Failed, Skipped int

	Failures []string // names of failed tests
	Passes   []string // names of passed tests
	Skips    []Skip

	// Status is the test binary's exit status; -1 when it never ended.
	Status int

	// NotRun is the reason why the suite did not run, or "".
	NotRun string

	// Output is the output of failed tests, and the last output of a binary that died.
	Output []byte

	test    string            // whose lines come now; "" between tests
	printed map[string][]byte // by tests that have not ended
	last    []byte            // the end of all lines
}

// A Skip is a skipped test with what it gave as its reason.
type Skip struct{ Test, Reason string }

// OK reports whether nothing failed. A suite that did not run has not failed.
func (r Result) OK() bool { return r.NotRun != "" || r.Status == 0 && r.Failed == 0 }

// Proved returns the names of the tests that passed and did not merely skip all of
// their subtests.
func (r Result) Proved() []string {
	return slices.DeleteFunc(slices.Clone(r.Passes), func(name string) bool {
		sub := func(other string) bool { return strings.HasPrefix(other, name+"/") }
		return slices.ContainsFunc(r.Skips, func(s Skip) bool { return sub(s.Test) }) && !slices.ContainsFunc(r.Passes, sub)
	})
}

// String is the cell in the table.
func (r Result) String() string {
	switch {
	case r.NotRun != "":
		return "not run"
	case r.Status == -1:
		return "NEVER ENDED"
	case !r.OK():
		return fmt.Sprintf("FAILED %d of %d", max(r.Failed, 1), max(r.Passed+r.Failed, 1))
	case r.Passed == 0 && r.Skipped == 0:
		return "no tests"
	case r.Skipped > 0:
		return fmt.Sprintf("%d ok, %d skipped", r.Passed, r.Skipped)
	}
	return fmt.Sprintf("%d ok", r.Passed)
}

// Results are by host and suite.
type Results map[string]map[string]*Result

func (rs Results) at(host, suite string) *Result {
	if rs[host] == nil {
		rs[host] = map[string]*Result{}
	}
	if rs[host][suite] == nil {
		rs[host][suite] = &Result{}
	}
	return rs[host][suite]
}

// errCut is Parse's error for output that ends before run.sh did.
var errCut = errors.New("the output ends before its end: the machine died or was ended")

// frame is what test2json's output mode puts before the lines of the testing
// package itself, so that nothing a test prints can be taken for one of them.
const frame = "\x16"

// What is kept of one test's output, and of a binary's last words, in bytes.
const (
	maxOutput = 64 << 10
	maxLast   = 8 << 10
)

// Parse reads the output of run.sh into rs. A host or suite that has begun and not ended
// has Status -1.
func (rs Results) Parse(r io.Reader) error {
	var host string
	var at *Result
	done := false
	lines := bufio.NewReaderSize(r, 1<<16)
	for {
		raw, err := lines.ReadSlice('\n')
		if len(raw) > 0 {
			line := string(bytes.TrimRight(raw, "\r\n"))
			fields := strings.Fields(line)
			switch {
			case strings.HasPrefix(line, "@@host ") && len(fields) == 2:
				host, at = fields[1], nil
			case strings.HasPrefix(line, "@@none ") && host != "":
				at = nil
				rs.at(host, "").NotRun = strings.TrimPrefix(line, "@@none ")
			case strings.HasPrefix(line, "@@begin ") && len(fields) == 2 && host != "":
				at = rs.at(host, fields[1])
				at.Status = -1
			case strings.HasPrefix(line, "@@end ") && len(fields) == 3 && host != "":
				status, err := strconv.Atoi(fields[2])
				if err != nil {
					return fmt.Errorf("reading line %q: %w", line, err)
				}
				rs.at(host, fields[1]).end(status)
				at = nil
			case line == "@@done":
				done = true
			case at != nil:
				at.line(line)
			}
		}
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
		case errors.Is(err, io.EOF):
			if !done {
				if at != nil {
					at.end(-1)
				}
				return errCut
			}
			return nil
		case err != nil:
			return err
		}
	}
}

// line takes one line of a test binary's output.
func (r *Result) line(line string) {
	rest, framed := strings.CutPrefix(strings.TrimLeft(line, " "), frame)
	keepEnd(&r.last, rest, maxLast)
	if !framed {
		if r.printed == nil {
			r.printed = map[string][]byte{}
		}
		out := r.printed[r.test]
		keepEnd(&out, line, maxOutput)
		r.printed[r.test] = out
		return
	}
	for _, start := range []string{"=== RUN   ", "=== NAME  ", "=== CONT  ", "=== PAUSE "} {
		if name, is := strings.CutPrefix(rest, start); is {
			r.test = name
			return
		}
	}
	for _, verdict := range []string{"PASS", "FAIL", "SKIP"} {
		name, is := strings.CutPrefix(rest, "--- "+verdict+": ")
		if !is {
			continue
		}
		name, _, _ = strings.Cut(name, " ")
		switch verdict {
		case "PASS":
			r.Passed++
			r.Passes = append(r.Passes, name)
		case "FAIL":
			r.Failed++
			r.Failures = append(r.Failures, name)
			r.Output = fmt.Appendf(r.Output, "--- %s\n%s", name, r.printed[name])
		case "SKIP":
			r.Skipped++
			r.Skips = append(r.Skips, Skip{name, reason(r.printed[name])})
		}
		delete(r.printed, name)
	}
}

// end takes the test binary's exit status.
func (r *Result) end(status int) {
	r.Status = status
	if status != 0 && r.Failed == 0 {
		r.Output = r.last
	}
	r.printed, r.last = nil, nil
}

// keepEnd appends a line and lets go of the beginning past a limit.
func keepEnd(to *[]byte, line string, limit int) {
	*to = append(append(*to, line...), '\n')
	if len(*to) > 2*limit {
		*to = append([]byte("…"), (*to)[len(*to)-limit:]...)
	}
}

// reason is the last line that was logged: what t.Skip was given.
func reason(out []byte) string {
	out = bytes.TrimSpace(out)
	if i := bytes.LastIndexByte(out, '\n'); i >= 0 {
		out = out[i+1:]
	}
	text := strings.TrimSpace(string(out))
	// "file_test.go:12: reason"
	if _, after, ok := strings.Cut(text, ".go:"); ok {
		if _, reason, ok := strings.Cut(after, ": "); ok {
			return reason
		}
	}
	return text
}
