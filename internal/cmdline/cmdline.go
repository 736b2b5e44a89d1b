// Package cmdline shortens command lines that are kept in memory. The guest and the
// host use the same rule, so that a process has the same command line when the host
// finds it again. It stands on the standard library alone.
package cmdline

import "strings"

// Max bounds what is kept of a command line, in bytes. Each argument counts argCost
// more, so that many empty ones are bounded, too.
const (
	Max     = 8 << 10
	argCost = 16
)

// Clip returns the beginning of a command line, in memory of its own, and reports
// whether anything is missing. An argument that is cut ends between two characters
// if it is UTF-8.
func Clip(argv []string) (kept []string, truncated bool) {
	left := Max
	kept = []string{}
	for _, arg := range argv {
		if left -= argCost; left <= 0 {
			return kept, true
		}
		if len(arg) > left {
			if cut := strings.ToValidUTF8(arg[:left], ""); cut != "" {
				kept = append(kept, strings.Clone(cut))
			}
			return kept, true
		}
		kept = append(kept, strings.Clone(arg))
		left -= len(arg)
	}
	return kept, false
}

// Size returns the memory that a command line takes, in bytes.
func Size(argv []string) int64 {
	n := int64(0)
	for _, arg := range argv {
		n += int64(len(arg)) + 2*argCost
	}
	return n
}
