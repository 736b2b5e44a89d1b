package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
)

// Exit codes of sandpit run, besides those of CMD. 126, 127 and 128+n are those
// of POSIX shells; 124 and 125 those of timeout(1) and docker run.
const (
	ExitTimeout = 124 // CMD ran out of time
	ExitFailure = 125 // Sandpit itself failed
	exitSignal  = 128 // plus the number of the signal that killed CMD
)

// ExitError is the exit code of a CMD that ran. There is nothing more to say.
type ExitError struct{ Code int }

// Error returns the exit code as text.
func (e *ExitError) Error() string { return "exit status " + strconv.Itoa(e.Code) }

// Reported is an error that has been shown already.
type Reported struct{ Err error }

// Error returns the text of Err.
func (e Reported) Error() string { return e.Err.Error() }

// Unwrap returns Err.
func (e Reported) Unwrap() error { return e.Err }

// Report prints an error of Run and returns the exit code.
func (a *App) Report(err error) int {
	var exit *ExitError
	var reported Reported
	switch {
	case err == nil:
		return 0
	case errors.As(err, &exit):
		return exit.Code
	case errors.As(err, &reported):
		return ExitFailure
	}
	a.PrintError(err)
	return ExitFailure
}

// PrintError writes "sandpit: …" and, when there is one, "hint: …".
func (a *App) PrintError(err error) {
	text := "sandpit: " + Harmless(err.Error()) + "\n"
	if hint := sandpit.Hint(err); hint != "" {
		text += "hint: " + Harmless(hint) + "\n"
	}
	quietly(a.Stderr, text)
}

// quietly writes to a file that may be a closed pipe, which is not allowed to
// end this program before it has cleaned up.
func quietly(f *os.File, text string) {
	for p := []byte(text); len(p) > 0; {
		n, err := unix.Write(int(f.Fd()), p)
		switch err {
		case nil, unix.EINTR:
		case unix.EAGAIN: // whoever has the other end may have it not wait
			if _, err := unix.Poll([]unix.PollFd{{Fd: int32(f.Fd()), Events: unix.POLLOUT}}, -1); err != nil && err != unix.EINTR {
				return
			}
		default:
			return
		}
		p = p[max(n, 0):]
	}
}

// Note writes a line about a CMD that ran.
func (a *App) Note(format string, args ...any) {
	quietly(a.Stderr, "sandpit: "+Harmless(fmt.Sprintf(format, args...))+"\n")
}

// Harmless returns s on one line and without control sequences: messages may quote text
// from a sandbox, an image or a registry.
func Harmless(s string) string {
	const limit = 4096
	var b strings.Builder
	for i, r := range s {
		if i > limit {
			b.WriteString("…")
			break
		}
		switch {
		case r == '\n' || r == '\t':
			b.WriteByte(' ')
		case r == utf8.RuneError:
			b.WriteRune('\uFFFD')
		case unicode.IsControl(r) || unicode.Is(unicode.Cf, r): // Cf: among them those that turn text around
			quoted := strconv.QuoteRuneToASCII(r)
			b.WriteString(quoted[1 : len(quoted)-1])
		default:
			b.WriteRune(r)
		}
	}
	return strings.TrimRight(b.String(), " ")
}

// Usagef returns an error about the command line itself.
func Usagef(format string, args ...any) error {
	return &usageError{fmt.Sprintf(format, args...)}
}

type usageError struct{ text string }

func (e *usageError) Error() string { return e.text }
func (e *usageError) Unwrap() error { return sandpit.ErrInvalid }

// WithHintOf returns err with the hint that cause has, if any.
func WithHintOf(err, cause error) error {
	if hint := sandpit.Hint(cause); hint != "" {
		return sandpit.WithHint(err, hint)
	}
	return err
}

// kind returns the name of an error's kind, for programs.
func kind(err error) string {
	for _, k := range [...]struct {
		name string
		err  error
	}{
		{"start_failed", sandpit.ErrStart},
		{"unsupported", sandpit.ErrUnsupported},
		{"forbidden", sandpit.ErrForbidden},
		{"exists", sandpit.ErrExists},
		{"unavailable", sandpit.ErrUnavailable},
		{"integrity", sandpit.ErrIntegrity},
		{"disk_full", sandpit.ErrDiskFull},
		{"quota_exceeded", sandpit.ErrQuota},
		{"rate_limited", sandpit.ErrRateLimited},
		{"overloaded", sandpit.ErrExhausted},
		{"protocol", sandpit.ErrProtocol},
		{"closed", sandpit.ErrClosed},
		{"state", sandpit.ErrState},
		{"invalid", sandpit.ErrInvalid},
		{"not_found", sandpit.ErrNotFound},
		{"not_found", fs.ErrNotExist},
	} {
		if errors.Is(err, k.err) {
			return k.name
		}
	}
	return "failed"
}
