package main

import (
	"fmt"
	"regexp"
	"strings"
	"unicode"
)

// document is a text that names tests as `folder: name`.
type document struct{ name, text string }

// named matches such names; "." is the root of the module. internal/archtest checks with the same pattern that each of them exists.
const named = "`(\\.|(?:cmd|internal|sandpittest|bench|client|local|examples|sdk)[a-z0-9/]*): ([^`]+)`"

// isSuite reports whether the cases of a folder run in other packages.
func isSuite(folder string) bool {
	return folder == "sandpittest" || folder == "internal/driver/drivertest"
}

// checkDocuments says which tests that the documents name did not pass.
func (r *report) checkDocuments(documents []document) []string {
	var problems []string
	var elsewhere []string
	seen := map[test]bool{}
	// The names of all that was proved, and of their ends after each slash.
	proved, everywhere := map[test]bool{}, map[string]bool{}
	for t := range r.passed {
		if !r.proved(t) {
			continue
		}
		proved[t] = true
		for i, c := range t.Name {
			if c == '/' {
				function, _, _ := strings.Cut(t.Name, "/")
				proved[test{t.Package, function + "/" + t.Name[i+1:]}] = true
				proved[test{t.Package, t.Name[i+1:]}] = true
				everywhere[t.Name[i+1:]] = true
			}
		}
	}
	for _, d := range documents {
		for _, ref := range regexp.MustCompile(named).FindAllStringSubmatch(strings.Join(strings.Fields(d.text), " "), -1) {
			t := test{ref[1], rewrite(strings.TrimSuffix(ref[2], ".txt"))}
			if seen[t] {
				continue
			}
			seen[t] = true
			if proved[t] || isSuite(t.Package) && everywhere[t.Name] {
				continue
			}
			if where := r.whereNamed(t); where != "" {
				elsewhere = append(elsewhere, fmt.Sprintf("%s: %s", t, where))
				continue
			}
			problems = append(problems, fmt.Sprintf("%s names %s: %s, which did not pass in this run", d.name, ref[1], ref[2]))
		}
	}
	fmt.Fprintf(r.out, "\nof %d tests that documents name %d passed", len(seen), len(seen)-len(elsewhere)-len(problems))
	if len(elsewhere) > 0 {
		fmt.Fprintf(r.out, "; these run only elsewhere:\n  %s", strings.Join(elsewhere, "\n  "))
	}
	fmt.Fprintln(r.out)
	return problems
}

// whereNamed says where a test runs that a document names and that did not pass here.
func (r *report) whereNamed(t test) string {
	for skip, reason := range r.skipped {
		if skip == t || isSuite(t.Package) && strings.HasSuffix(skip.Name, "/"+t.Name) || strings.HasPrefix(t.Name, skip.Name+"/") && skip.Package == t.Package {
			return r.where(skip, reason)
		}
	}
	return ""
}

// rewrite makes the name of a subtest of a text as package testing does.
func rewrite(text string) string {
	return strings.Map(func(c rune) rune {
		if unicode.IsSpace(c) {
			return '_'
		}
		return c
	}, text)
}
