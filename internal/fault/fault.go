// Package fault makes errors of a kind of the root package, without the words of the kind
// in their text, errors after which to try again, and errors of panics.
package fault

import (
	"fmt"

	"github.com/sandpit-dev/sandpit"
)

// Kind gives an error one of the root package's kinds without changing its text.
type Kind struct{ Err, Kind error }

func (e Kind) Error() string   { return e.Err.Error() }
func (e Kind) Unwrap() []error { return []error{e.Err, e.Kind} }

// Errorf returns an error with the text of format that matches kind.
func Errorf(kind error, format string, args ...any) error {
	return Kind{fmt.Errorf(format, args...), kind}
}

// Invalidf returns an error that matches sandpit.ErrInvalid.
func Invalidf(format string, args ...any) error {
	return Kind{fmt.Errorf(format, args...), sandpit.ErrInvalid}
}

// Integrityf returns an error that matches sandpit.ErrIntegrity.
func Integrityf(format string, args ...any) error {
	return Kind{fmt.Errorf(format, args...), sandpit.ErrIntegrity}
}

// Unsupportedf returns an error that matches sandpit.ErrUnsupported.
func Unsupportedf(format string, args ...any) error {
	return Kind{fmt.Errorf(format, args...), sandpit.ErrUnsupported}
}

// NotFoundf returns an error that matches sandpit.ErrNotFound.
func NotFoundf(format string, args ...any) error {
	return Kind{fmt.Errorf(format, args...), sandpit.ErrNotFound}
}

// Clip shortens an untrusted string for an error message.
func Clip(s string) string {
	if len(s) > 100 {
		return s[:100] + "…"
	}
	return s
}
