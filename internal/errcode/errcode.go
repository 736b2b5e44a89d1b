// Package errcode defines the stable codes of errors in /v1 and in the audit, and their kinds in
// Go. It is separate from the JSON of /v1, so that other dialects can map the codes to their own.
package errcode

import (
	"context"
	"errors"
	"io/fs"

	"github.com/sandpit-dev/sandpit"
)

// table has every code and its kind in Go. The code of an error is the first one whose
// kind it matches, so the more specific kinds come first.
func table() []struct {
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

		// Of the server itself; each is a case of a kind above.
		{Unauthenticated, sandpit.ErrForbidden},
		{HostRefused, sandpit.ErrForbidden},
		{OriginRefused, sandpit.ErrForbidden},
		{RateLimited, sandpit.ErrExhausted},
		{AuditRate, sandpit.ErrExhausted},
		{TooManyStreams, sandpit.ErrExhausted},
		{TooLarge, sandpit.ErrInvalid},
		{UnsupportedMedia, sandpit.ErrInvalid},
		{IdempotencyMismatch, sandpit.ErrInvalid},
		{NoRoute, sandpit.ErrUnsupported},
		{MethodNotAllowed, sandpit.ErrUnsupported},
		{AuditUnavailable, sandpit.ErrUnavailable},
		{Draining, sandpit.ErrUnavailable},
		{TooManyConnections, sandpit.ErrUnavailable},
	}
}

// All returns the codes of all errors.
func All() []string {
	var all []string
	for _, c := range table() {
		all = append(all, c.Code)
	}
	return append(all, Internal)
}

// Internal is the code of an error that has no kind.
const Internal = "internal"

// Codes of requests that a server refuses before they reach the engine.
const (
	Unauthenticated     = "unauthenticated"      // no key, or one that is not valid (any more)
	HostRefused         = "host_refused"         // the request is for another host
	OriginRefused       = "origin_refused"       // a page of an origin that is not allowed
	RateLimited         = "rate_limited"         // too many requests; Retry-After says when to try again
	AuditRate           = "audit_rate"           // this key has used up its share of the audit
	TooManyStreams      = "too_many_streams"     // too many are open
	TooLarge            = "too_large"            // the body of the request
	UnsupportedMedia    = "unsupported_media"    // the type or encoding of the body
	IdempotencyMismatch = "idempotency_mismatch" // the key was used for another request
	NoRoute             = "no_route"             // this server has no such path
	MethodNotAllowed    = "method_not_allowed"   // nothing can be done with the path in this way
	AuditUnavailable    = "audit_unavailable"    // the request can't be recorded
	Draining            = "draining"             // the server is about to end
	TooManyConnections  = "too_many_connections" // of all, of an address or of a namespace
)

// Of returns the code of an error.
func Of(err error) string {
	for _, c := range table() {
		if errors.Is(err, c.Kind) {
			return c.Code
		}
	}
	return Internal
}

// Kind returns the kind of error that a code stands for, or nil for an unknown
// code.
func Kind(code string) error {
	for _, c := range table() {
		if c.Code == code {
			return c.Kind
		}
	}
	return nil
}
