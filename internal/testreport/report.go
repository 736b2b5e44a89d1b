package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"
)

const module = "github.com/sandpit-dev/sandpit"

// event is a line of go test -json; see go doc test2json and go help buildjson.
type event struct {
	Action     string
	Package    string
	ImportPath string // of build events
	Test       string
	Output     string
}

// test names a test or subtest. The package is its folder in the module.
type test struct{ Package, Name string }

func (t test) String() string { return t.Package + ": " + t.Name }

// outcome says how a test ended: pass, fail or skip.
type outcome struct {
	test
	Action string
	Reason string `json:",omitempty"` // of a skip
}

// maxOutput bounds what is kept of the output of one test, in bytes. The end is kept.
const maxOutput = 256 << 10

// report collects the events of a run.
type report struct {
	out     io.Writer
	verbose bool
	root    bool // whether root runs the tests
	listed  []listedSkip

	running  map[test]string // tests that have not ended, with their output
	packages map[string]bool // whether the package has ended
	failed   []string        // packages and tests, in the order in which they failed
	ended    []outcome       // of this run, tests only
	passed   map[test]bool   // in this run or an earlier one
	skipped  map[test]string // in this run, with reasons
}

func newReport(out io.Writer, verbose bool) *report {
	return &report{
		out: out, verbose: verbose, root: os.Geteuid() == 0,
		running: map[test]string{}, packages: map[string]bool{}, passed: map[test]bool{}, skipped: map[test]string{},
	}
}

// earlier reads the outcomes of an earlier run.
func (r *report) earlier(from io.Reader) error {
	for dec := json.NewDecoder(from); ; {
		var o outcome
		if err := dec.Decode(&o); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		if o.Action == "pass" {
			r.passed[o.test] = true
		}
	}
}

// write appends the outcomes of this run to a file.
func (r *report) write(name string) error {
	file, err := os.OpenFile(name, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	enc := json.NewEncoder(file)
	for _, o := range r.ended {
		if err := enc.Encode(o); err != nil {
			file.Close()
			return err
		}
	}
	return file.Close()
}

// read takes the events of go test until they end.
func (r *report) read(from io.Reader) error {
	lines := bufio.NewReader(from)
	for {
		line, err := lines.ReadString('\n')
		if line != "" {
			var e event
			if json.Unmarshal([]byte(line), &e) == nil && e.Action != "" {
				r.take(e)
			} else {
				fmt.Fprint(r.out, line)
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return fmt.Errorf("reading the output of go test: %w", err)
		}
	}
}

func (r *report) take(e event) {
	if e.Action == "build-output" {
		fmt.Fprint(r.out, e.Output)
		return
	}
	if e.Package == "" {
		return
	}
	t := test{strings.TrimPrefix(strings.TrimPrefix(e.Package, module), "/"), e.Test}
	if t.Package == "" {
		t.Package = "."
	}
	if e.Test == "" {
		r.takePackage(e, t)
		return
	}
	switch e.Action {
	case "run":
		r.running[t] = ""
	case "output":
		if strings.HasPrefix(e.Output, "=== ") {
			return
		}
		// internal/hosttest names the tests that passed on other machines.
		if _, found, ok := strings.Cut(e.Output, ": passed elsewhere: "); ok {
			pkg, name, _ := strings.Cut(strings.TrimSpace(found), " ")
			r.end(outcome{test: test{pkg, name}, Action: "pass"})
			return
		}
		if r.verbose {
			fmt.Fprint(r.out, e.Output)
		}
		kept := r.running[t] + e.Output
		if len(kept) > 2*maxOutput {
			kept = "…" + kept[len(kept)-maxOutput:]
		}
		r.running[t] = kept
	case "pass", "fail", "skip":
		o := outcome{test: t, Action: e.Action}
		switch e.Action {
		case "fail":
			r.failed = append(r.failed, t.String())
			r.show(r.running[t])
		case "skip":
			o.Reason = reason(r.running[t])
		}
		delete(r.running, t)
		r.end(o)
	}
}

// takePackage takes an event of a package as a whole.
func (r *report) takePackage(e event, t test) {
	switch e.Action {
	case "start":
		r.packages[t.Package] = false
	case "output":
		if e.Output != "PASS\n" && !strings.Contains(e.Output, "[no test files]") {
			fmt.Fprint(r.out, e.Output)
		}
	case "pass", "fail", "skip":
		r.packages[t.Package] = true
		if e.Action == "fail" {
			r.failed = append(r.failed, t.Package)
		}
		// A program that died has left these.
		for _, left := range sorted(r.running) {
			if left.Package == t.Package {
				r.show(r.running[left])
				r.failed = append(r.failed, left.String()+" (did not end)")
				delete(r.running, left)
			}
		}
	}
}

// show prints the output of a test that failed.
func (r *report) show(output string) {
	if !r.verbose {
		fmt.Fprint(r.out, output)
	}
}

func (r *report) end(o outcome) {
	r.ended = append(r.ended, o)
	switch o.Action {
	case "pass":
		r.passed[o.test] = true
	case "skip":
		r.skipped[o.test] = o.Reason
	}
}

// reason returns what a test logged last, which is what t.Skip was given.
func reason(output string) string {
	output, _, _ = strings.Cut(strings.TrimPrefix(output, "\n"), "--- SKIP: ")
	logged := regexp.MustCompile(`(?m)^ +[\w.-]+\.go:\d+: `)
	if at := logged.FindAllStringIndex(output, -1); at != nil {
		output = output[at[len(at)-1][1]:]
	}
	return strings.Join(strings.Fields(output), " ")
}

// proved reports whether a test passed and did not merely skip all of its subtests.
func (r *report) proved(t test) bool {
	if !r.passed[t] {
		return false
	}
	hollow := false
	for skip := range r.skipped {
		hollow = hollow || skip.Package == t.Package && strings.HasPrefix(skip.Name, t.Name+"/") && !r.passed[skip]
	}
	for other := range r.passed {
		if hollow && other.Package == t.Package && strings.HasPrefix(other.Name, t.Name+"/") && r.proved(other) {
			return true
		}
	}
	return !hollow
}

// summary prints the skipped tests and the total, and returns what is wrong.
func (r *report) summary(documents []document, took time.Duration) []string {
	var problems []string
	for _, pkg := range slices.Sorted(maps.Keys(r.packages)) {
		if !r.packages[pkg] {
			problems = append(problems, pkg+" did not end")
		}
	}
	if len(r.failed) > 0 {
		fmt.Fprintf(r.out, "\nfailed:\n  %s\n", strings.Join(r.failed, "\n  "))
		problems = append(problems, fmt.Sprintf("%d packages and tests failed", len(r.failed)))
	}

	skips, unlisted, last := sorted(r.skipped), 0, ""
	for _, t := range skips {
		where := r.where(t, r.skipped[t])
		if where == "" {
			unlisted++
			where = "nowhere that the list of skips names"
		}
		if head := fmt.Sprintf("\nskipped in %s: %s\n  runs %s\n", t.Package, r.skipped[t], where); head != last {
			fmt.Fprint(r.out, head)
			last = head
		}
		fmt.Fprintf(r.out, "    %s\n", t.Name)
	}
	if unlisted > 0 {
		problems = append(problems, fmt.Sprintf("%d skipped tests are not in the list", unlisted))
	}

	if len(documents) > 0 {
		problems = append(problems, r.checkDocuments(documents)...)
		for _, l := range r.listed {
			if !l.used && !l.generic() && !r.known(l) {
				problems = append(problems, fmt.Sprintf("the list of skips has %q, and no such test ran or was skipped", l.text))
			}
		}
	}

	passed := 0
	for _, o := range r.ended {
		if o.Action == "pass" {
			passed++
		}
	}
	if passed == 0 {
		problems = append(problems, "no test passed")
	}
	fmt.Fprintf(r.out, "\n%d tests passed, %d failed, %d were skipped, in %d packages, in %s\n",
		passed, len(r.failed), len(skips), len(r.packages), took.Round(time.Second))
	return problems
}

// where says where a skipped test runs, or is empty if it should have run.
func (r *report) where(t test, reason string) string {
	if r.passed[t] {
		return "in another run of these tests, where it passed"
	}
	for i := range r.listed {
		if l := &r.listed[i]; l.matches(t) && strings.HasPrefix(reason, l.reason) && (l.where != asRoot || !r.root) {
			l.used = true
			return l.where
		}
	}
	return ""
}

// known reports whether any test of the run is one that a line of the list means.
func (r *report) known(l listedSkip) bool {
	return slices.ContainsFunc(r.ended, func(o outcome) bool { return l.matches(o.test) })
}

func sorted[V any](tests map[test]V) []test {
	return slices.SortedFunc(maps.Keys(tests), func(a, b test) int { return strings.Compare(a.String(), b.String()) })
}
