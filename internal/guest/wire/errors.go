package wire

import (
	"strconv"
	"syscall"
)

// Error returns the text, which makes the message an error that the guest can
// return to the host as it is.
func (m *ErrorMessage) Error() string { return m.Text }

// Fail returns an error with a code for the host.
func Fail(code Code, text string) error { return &ErrorMessage{Code: code, Text: text} }

// Invalid returns an error about a malformed request.
func Invalid(text string) error { return Fail(CodeInvalid, text) }

// At returns err with the stage at which it occurred, if err is one for the host.
func At(stage Stage, err error) error {
	if m, ok := err.(*ErrorMessage); ok {
		at := *m
		at.Stage = stage
		return &at
	}
	return err
}

// FileError makes an errno the error of a file operation. It returns other errors
// unchanged.
func FileError(err error) error {
	if errno, ok := err.(syscall.Errno); ok {
		return &ErrorMessage{Code: CodeFile, Errno: uint64(errno), Text: errno.Error()}
	}
	return err
}

// Quote quotes s for an error message, and shortens it if it is long.
func Quote(s string) string {
	if len(s) > 64 {
		s = s[:64] + "…"
	}
	return strconv.Quote(s)
}
