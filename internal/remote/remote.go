// Package remote has what everybody needs who speaks to a sandbox that is
// elsewhere, be it in another process or behind a server: signals by the numbers
// that it knows, and texts of its that a person may be shown.
package remote

import (
	"fmt"
	"strings"
	"syscall"
	"unicode"

	"github.com/sandpit-dev/sandpit"
)

// maxSignal is the last signal of Linux, SIGRTMAX (signal(7)).
const maxSignal = 64

// SignalNumber returns the number from 1 to 64 that a sandbox, which runs on
// Linux, knows a signal by. It is sandpit.ErrInvalid if Linux has no such signal.
func SignalNumber(sig syscall.Signal) (int, error) {
	n := linuxSignal(sig)
	if n < 1 || n > maxSignal {
		return 0, fmt.Errorf("sending signal %d: %w", int(sig), sandpit.ErrInvalid)
	}
	return n, nil
}

// Printable makes a text from elsewhere fit to be shown: a terminal must not
// obey it. What is longer than limit, in bytes, is cut, which an ellipsis says.
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
