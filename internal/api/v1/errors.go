package v1

import (
	"context"
	"errors"
	"io/fs"

	"github.com/sandpit-dev/sandpit"
)

// codes are the stable codes of errors and what they are in Go. The first that
// an error matches is its code: what says more comes first.
func codes() []struct {
	Code string
	Kind error
} {
	return []struct {
		Code string
		Kind error
	}{
		{"closed", sandpit.ErrClosed},
		{"integrity", sandpit.ErrIntegrity},
		{"protocol", sandpit.ErrProtocol},
		{"state", sandpit.ErrState},
		{"forbidden", sandpit.ErrForbidden},
		{"unsupported", sandpit.ErrUnsupported},
		{"disk_full", sandpit.ErrDiskFull}, // a case of the next
		{"exhausted", sandpit.ErrExhausted},
		{"unavailable", sandpit.ErrUnavailable},
		{"is_directory", sandpit.ErrIsDirectory},
		{"not_directory", sandpit.ErrNotDirectory},
		{"not_empty", sandpit.ErrNotEmpty},
		{"no_space", sandpit.ErrNoSpace},
		{"file_not_found", fs.ErrNotExist},
		{"file_exists", fs.ErrExist},
		{"permission", fs.ErrPermission},
		{"not_found", sandpit.ErrNotFound},
		{"exists", sandpit.ErrExists},
		{"invalid", sandpit.ErrInvalid},
		{"timeout", context.DeadlineExceeded},
		{"canceled", context.Canceled},

		// Of the API itself; each is a case of a kind above.
		{CodeUnauthenticated, sandpit.ErrForbidden},
		{CodeHostRefused, sandpit.ErrForbidden},
		{CodeOriginRefused, sandpit.ErrForbidden},
		{CodeRateLimited, sandpit.ErrExhausted},
		{CodeAuditRate, sandpit.ErrExhausted},
		{CodeTooManyStreams, sandpit.ErrExhausted},
		{CodeTooLarge, sandpit.ErrInvalid},
		{CodeUnsupportedMedia, sandpit.ErrInvalid},
		{CodeIdempotencyMismatch, sandpit.ErrInvalid},
		{CodeNoRoute, sandpit.ErrUnsupported},
		{CodeMethodNotAllowed, sandpit.ErrUnsupported},
		{CodeAuditUnavailable, sandpit.ErrUnavailable},
		{CodeDraining, sandpit.ErrUnavailable},
		{CodeTooManyConnections, sandpit.ErrUnavailable},
	}
}

// Codes returns the codes of all errors.
func Codes() []string {
	var all []string
	for _, c := range codes() {
		all = append(all, c.Code)
	}
	return append(all, CodeInternal)
}

// CodeInternal is the code of an error that has no kind.
const CodeInternal = "internal"

// Codes of what the API itself refuses.
const (
	CodeUnauthenticated     = "unauthenticated"      // no key, or one that is not valid (any more)
	CodeHostRefused         = "host_refused"         // the request is for another host
	CodeOriginRefused       = "origin_refused"       // a web page asks that may not
	CodeRateLimited         = "rate_limited"         // too many requests; Retry-After says when to come again
	CodeAuditRate           = "audit_rate"           // this key has used up its share of the audit
	CodeTooManyStreams      = "too_many_streams"     // too many are open
	CodeTooLarge            = "too_large"            // the body of the request
	CodeUnsupportedMedia    = "unsupported_media"    // the type or encoding of the body
	CodeIdempotencyMismatch = "idempotency_mismatch" // the key was used for another request
	CodeNoRoute             = "no_route"             // this server has no such path
	CodeMethodNotAllowed    = "method_not_allowed"   // nothing can be done with the path in this way
	CodeAuditUnavailable    = "audit_unavailable"    // what can't be recorded is not done
	CodeDraining            = "draining"             // the server is about to end
	CodeTooManyConnections  = "too_many_connections" // of all, of an address or of a namespace
)

// CodeOf returns the code of an error.
func CodeOf(err error) string {
	for _, c := range codes() {
		if errors.Is(err, c.Kind) {
			return c.Code
		}
	}
	return CodeInternal
}

// KindOf returns the kind of error that a code stands for, or nil for one that
// is unknown here.
func KindOf(code string) error {
	for _, c := range codes() {
		if c.Code == code {
			return c.Kind
		}
	}
	return nil
}

// FromError is an error as the API tells it, without a request id.
func FromError(err error) Error {
	e := Error{Code: CodeOf(err), Message: err.Error(), Hint: sandpit.Hint(err)}
	var pe *fs.PathError
	if errors.As(err, &pe) {
		e.Path = pe.Path
	}
	return e
}
