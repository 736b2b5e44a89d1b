package hosttest

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
)

// A Result is what one suite said on one host.
type Result struct {
	Passed, Failed, Skipped int

	Failures []string // names of failed tests
	Skips    []Skip

	// Status is the test binary's exit status; -1 when it never ended.
	Status int

	// NotRun is the reason why it did not run, or "".
	NotRun string

	// Output is what the binary printed, bounded to its last part.
	Output []byte
}

// A Skip is a skipped test with what it gave as its reason.
type Skip struct{ Test, Reason string }

// OK reports whether nothing failed. A suite that did not run did not fail.
func (r Result) OK() bool { return r.NotRun != "" || r.Status == 0 && r.Failed == 0 }

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

// maxOutput bounds what is kept of a suite's output.
const maxOutput = 1 << 20

// Parse reads the output of run.sh into rs. A host or suite that was begun and
// not ended has Status -1.
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
				if _, err := fmt.Sscanf(fields[2], "%d", &rs.at(host, fields[1]).Status); err != nil {
					return fmt.Errorf("reading line %q: %w", line, err)
				}
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
	if framed {
		for verdict, count := range map[string]*int{"--- PASS: ": &r.Passed, "--- FAIL: ": &r.Failed, "--- SKIP: ": &r.Skipped} {
			name, is := strings.CutPrefix(rest, verdict)
			if !is {
				continue
			}
			*count++
			name, _, _ = strings.Cut(name, " ")
			switch count {
			case &r.Failed:
				r.Failures = append(r.Failures, name)
			case &r.Skipped:
				r.Skips = append(r.Skips, Skip{name, r.reason()})
			}
		}
	}
	if r.Output = append(append(r.Output, strings.ReplaceAll(line, frame, "")...), '\n'); len(r.Output) > 2*maxOutput {
		r.Output = append([]byte(nil), r.Output[len(r.Output)-maxOutput:]...)
	}
}

// reason is the last line that was logged: what t.Skip was given.
func (r *Result) reason() string {
	out := bytes.TrimSpace(r.Output)
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
