package main

import (
	"fmt"
	"regexp"
	"strings"
)

// listedSkip is a line of the list of skips.
type listedSkip struct {
	pkg, name *regexp.Regexp
	reason    string // how the reason must begin
	where     string // where the test runs instead
	text      string
	used      bool
}

// asRoot is where tests run that root must run. They may not be skipped if it does.
const asRoot = "as root"

// parseSkips reads lines of the form "PACKAGE: TEST | START OF THE REASON | WHERE IT RUNS".
// In packages and tests * stands for any text, slashes included. Empty lines and
// those that begin with # are comments.
func parseSkips(text string) ([]listedSkip, error) {
	var list []listedSkip
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		cells := strings.Split(line, " | ")
		pkg, name, ok := strings.Cut(cells[0], ": ")
		if len(cells) != 3 || !ok || cells[1] == "" || cells[2] == "" {
			return nil, fmt.Errorf("%q is not of the form PACKAGE: TEST | REASON | WHERE", line)
		}
		list = append(list, listedSkip{pkg: pattern(pkg), name: pattern(name), reason: cells[1], where: cells[2], text: cells[0]})
	}
	return list, nil
}

func pattern(text string) *regexp.Regexp {
	return regexp.MustCompile("^" + strings.ReplaceAll(regexp.QuoteMeta(text), `\*`, ".*") + "$")
}

func (l listedSkip) matches(t test) bool {
	return l.pkg.MatchString(t.Package) && l.name.MatchString(t.Name)
}

// generic reports whether the line is about a reason and not about a test.
func (l listedSkip) generic() bool { return strings.HasSuffix(l.text, ": *") }
