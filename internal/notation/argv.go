package notation

import "strings"

// What is kept of a command line, and told again: its beginning, in bytes. Each
// argument counts argCost more, so that many empty ones are bounded, too.
const (
	MaxArgv = 8 << 10
	argCost = 16
)

// ClipArgv returns a command line as it is kept, in memory of its own, and
// whether it was longer than that. An argument that is cut ends between two
// characters if it is UTF-8.
func ClipArgv(argv []string) (kept []string, truncated bool) {
	left := MaxArgv
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

// ArgvSize is what a command line takes in memory, in bytes.
func ArgvSize(argv []string) int64 {
	n := int64(0)
	for _, arg := range argv {
		n += int64(len(arg)) + 2*argCost
	}
	return n
}
