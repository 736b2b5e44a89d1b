package notation

import (
	"strings"
	"unicode"
)

// Printable makes a text of a sandbox or a server fit to be shown: it replaces
// characters that are not printable, so that a terminal can't obey them. A text that is
// longer than limit, in bytes, is cut and ends with an ellipsis.
func Printable(s string, limit int) string {
	if len(s) > limit {
		s = s[:limit] + "…"
	}
	return strings.Map(func(r rune) rune {
		if r == unicode.ReplacementChar || !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, s)
}
