// Package fault has the errors of the guest that have a code for the host.
package fault

import (
	"errors"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit/internal/guest/wire"
)

// ErrGone ends what a stream is doing when nobody wants it any more.
var ErrGone = errors.New("the stream is closed")

// Error is an error with a code for the host.
type Error struct {
	Code  wire.Code
	Errno unix.Errno // or 0
	Text  string
}

// Error returns the text.
func (e *Error) Error() string { return e.Text }

// New returns an error with a code.
func New(code wire.Code, text string) error { return &Error{Code: code, Text: text} }

// Invalid returns an error about a request that makes no sense.
func Invalid(text string) error { return New(wire.CodeInvalid, text) }

// Of makes an errno an error of a file operation. It returns other errors as they are.
func Of(err error) error {
	if errno, ok := err.(unix.Errno); ok {
		return &Error{Code: wire.CodeFile, Errno: errno, Text: errno.Error()}
	}
	return err
}

// Quote shortens s and makes it fit to be shown.
func Quote(s string) string {
	if len(s) > 64 {
		s = s[:64] + "…"
	}
	return strconv.Quote(s)
}
